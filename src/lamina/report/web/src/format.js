export function count(value) {
  return value.toLocaleString("en");
}

export function bytes(value) {
  return scaled(value, ["B", "kB", "MB", "GB", "TB"]);
}

export function operations(value) {
  return value ? scaled(value, ["", "k", "M", "G", "T"]) : "0";
}

function scaled(value, units) {
  let unit = 0;
  let left = value;
  for (; left >= 1000 && unit < units.length - 1; unit++) left /= 1000;
  return `${left >= 100 || unit === 0 ? Math.round(left) : left.toFixed(1)}\u00a0${units[unit]}`.trim();
}

export function seconds(value) {
  if (value >= 1) return `${value.toFixed(2)}\u00a0s`;
  return value >= 0.001 ? `${(value * 1000).toFixed(1)}\u00a0ms` : `${(value * 1e6).toFixed(value < 1e-4 ? 1 : 0)}\u00a0µs`;
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}\u00a0%`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
