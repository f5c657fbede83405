// The report's document with what the views ask of it: texts, links both ways, decisions by subject.

export const LEVELS = ["python", "captured", "forward", "backward", "loops", "kernel", "ptx", "assembly"];
export const LEVEL_NAMES = {
  python: "Python",
  captured: "Captured",
  forward: "Forward",
  backward: "Backward",
  loops: "Loops",
  kernel: "Kernel",
  ptx: "PTX",
  assembly: "Assembly",
};
const MOST_LINES = 4000;

export class Report {
  constructor(data) {
    this.data = data;
    this.name = data.name;
    this.texts = data.texts.map((text, number) => new Text(text, number));
    this.byKey = new Map(this.texts.map((text) => [text.key, text]));
    for (const [upper, lower, flat] of data.links) {
      const [from, to] = pairs(flat);
      this.texts[upper].down.push(new Table(lower, from, to));
      this.texts[lower].up.push(new Table(upper, ...sorted(to, from)));
    }
    this.stages = data.stages;
    this.passes = data.passes;
    this.decisions = data.decisions.map((decision, number) => ({
      ...decision,
      number,
      region: data.stages[decision.stage].region,
    }));
  }

  ofLevel(level) {
    return this.texts.filter((text) => text.level === level);
  }

  // All lines that a line came from and became, by number of the text: the line itself among them.
  linked(text, line) {
    const found = new Map([[text, new Set([line])]]);
    this.#follow(text, [line], "up", found);
    this.#follow(text, [line], "down", found);
    this.#beside(text, found);
    return new Map([...found].map(([number, lines]) => [number, Int32Array.from(lines).sort()]));
  }

  #follow(text, lines, way, found) {
    const waiting = new Map([[text, new Set(lines)]]);
    const order = (number) => LEVELS.indexOf(this.texts[number].level) * (way === "up" ? -1 : 1);
    while (waiting.size) {
      const number = [...waiting.keys()].reduce((a, b) => (order(b) < order(a) ? b : a));
      const here = waiting.get(number);
      waiting.delete(number);
      for (const table of this.texts[number][way]) {
        if (this.#aside(text, number, table.to)) continue;
        for (const line of here) {
          table.each(line, (other) => {
            const all = at(found, table.to);
            if (all.size < MOST_LINES) all.add(other);
            at(waiting, table.to).add(other);
          });
        }
      }
    }
    for (const [number, all] of found) if (!all.size) found.delete(number);
  }

  // PTX and machine code are both made of the kernel: instructions of one lead to those of the other by its lines.
  #beside(text, found) {
    if (this.texts[text].level !== "ptx" && this.texts[text].level !== "assembly") return;
    for (const { to } of this.texts[text].up) {
      if (this.texts[to].level !== "kernel" || !found.has(to)) continue;
      for (const table of this.texts[to].down) {
        if (table.to === text) continue;
        for (const line of found.get(to)) table.each(line, (other) => at(found, table.to).add(other));
      }
    }
  }

  // Values that a forward keeps join it to its backward; who comes from elsewhere does not go that way.
  #aside(start, from, to) {
    const levels = [this.texts[from].level, this.texts[to].level];
    return levels.includes("forward") && levels.includes("backward") && from !== start;
  }

  // A text of the passes, whose lines stand in one table for all of them.
  passText(number) {
    const runs = this.data.pass_texts[number];
    const lines = [];
    for (let i = 0; i < runs.length; i += 2) for (let k = 0; k < runs[i + 1]; k++) lines.push(this.data.pass_lines[runs[i] + k]);
    return lines.join("\n");
  }

  place(key) {
    const cut = key.indexOf("/");
    for (let at = key.length; at > 0; at = key.lastIndexOf("/", at - 1)) {
      const text = this.byKey.get(key.slice(0, at));
      if (text && at < key.length) return { text: text.number, line: text.lineOf(key.slice(at + 1)) };
      if (text) return { text: text.number, line: 1 };
      if (cut < 0) break;
    }
    return null;
  }

  // The address of a line of Python that is called "file.py:12" or "folder/file.py:12"; "" where the report has none.
  pythonLine(place) {
    const [, file, line] = /^(.*):(\d+)$/.exec(place) ?? [];
    const text = file && this.ofLevel("python").find((one) => `/${file}`.endsWith(`/${one.key.slice(7)}`));
    return text && Number(line) <= text.lineCount ? `${text.key}/${line}` : "";
  }

  addressOf(text, line) {
    return `${this.texts[text].key}/${this.texts[text].nameOf(line)}`;
  }

  decisionsAbout(names) {
    const wanted = new Set(names);
    return this.decisions.filter((d) => d.subject.some((one) => wanted.has(one)));
  }
}

function at(map, key) {
  let value = map.get(key);
  if (!value) map.set(key, (value = new Set()));
  return value;
}

class Text {
  constructor(data, number) {
    Object.assign(this, data);
    this.number = number;
    this.up = [];
    this.down = [];
    this.byLine = new Map(data.names);
    this.byName = null;
    this.lineStarts = null;
  }

  nameOf(line) {
    return this.byLine.get(line) ?? String(line);
  }

  lineOf(name) {
    this.byName ??= new Map(this.names.map(([line, own]) => [own, line]));
    return this.byName.get(name) ?? Math.min(Math.max(1, Number.parseInt(name, 10) || 1), this.lineCount);
  }

  get starts() {
    if (!this.lineStarts) {
      this.lineStarts = [0];
      for (let i = this.text.indexOf("\n"); i >= 0; i = this.text.indexOf("\n", i + 1)) this.lineStarts.push(i + 1);
    }
    return this.lineStarts;
  }

  get lineCount() {
    return this.starts.length;
  }

  line(number) {
    const end = number < this.lineCount ? this.starts[number] - 1 : this.text.length;
    return this.text.slice(this.starts[number - 1], end);
  }

  lineAt(offset) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return low + 1;
  }
}

// Pairs of lines sorted by the first, which is looked for.
class Table {
  constructor(to, keys, values) {
    this.to = to;
    this.keys = keys;
    this.values = values;
  }

  each(line, call) {
    let low = 0;
    let high = this.keys.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.keys[middle] < line) low = middle + 1;
      else high = middle;
    }
    for (; low < this.keys.length && this.keys[low] === line; low++) call(this.values[low]);
  }
}

function pairs(flat) {
  const count = flat.length / 2;
  const from = new Int32Array(count);
  const to = new Int32Array(count);
  for (let i = 0, a = 0, b = 0; i < count; i++) {
    from[i] = a += flat[2 * i];
    to[i] = b += flat[2 * i + 1];
  }
  return [from, to];
}

function sorted(keys, values) {
  const order = Uint32Array.from(keys.keys()).sort((a, b) => keys[a] - keys[b]);
  return [order.map((i) => keys[i]), order.map((i) => values[i])].map((list) => Int32Array.from(list));
}
