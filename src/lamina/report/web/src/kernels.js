import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { html } from "./html.js";
import { go } from "./app.js";
import { Program } from "./program.js";
import { bytes, count, operations, percent, plural, seconds } from "./format.js";

const COLUMNS = [
  ["name", "Kernel", (k) => k.name],
  ["launches", "Launches", (k) => k.launches.length],
  ["schedule", "Schedule", (k) => k.kinds],
  ["bytes", "Moved", (k) => k.bytes],
  ["flops", "Operations", (k) => k.flops],
  ["seconds", "Time", (k) => k.seconds ?? -1],
  ["share", "Of the roofline", (k) => k.share ?? -1],
  ["registers", "Registers", (k) => k.registers ?? -1],
  ["spills", "Spills", (k) => k.spills ?? -1],
  ["shared", "Shared", (k) => k.shared ?? -1],
  ["candidates", "Tried", (k) => k.candidates.length],
];

// Columns that are left out where no kernel has the figure.
const OPTIONAL = new Set(["shared", "candidates"]);

const SAID =
  "Time is the median of launches that were measured. The roofline is the time in which the bytes could be copied or the operations " +
  "computed, whichever is more; what lies in caches goes faster. Registers are those of a thread of a GPU, or vector registers; spills " +
  "are instructions that move one to or from memory.";

export function Kernels({ report, what }) {
  const [order, setOrder] = useState(["bytes", -1]);
  const [open, setOpen] = useState(what);
  const kernels = useMemo(() => {
    const candidates = new Map();
    for (const d of report.decisions) {
      if (d.kind !== "candidate") continue;
      const name = d.subject[0];
      candidates.set(name, [...(candidates.get(name) ?? []), d]);
    }
    return report.data.kernels.map((k) => ({
      ...k,
      kinds: [...new Set(k.schedules.map((s) => /\('(\w+)'|kind='(\w+)'/.exec(s)?.slice(1).find(Boolean) ?? ""))].join(", "),
      candidates: candidates.get(k.name) ?? [],
    }));
  }, [report]);
  const columns = COLUMNS.filter(([name, , of]) => !OPTIONAL.has(name) || kernels.some((k) => of(k) > (name === "candidates" ? 0 : -1)));
  const value = COLUMNS.find(([name]) => name === order[0])[2];
  const sorted = [...kernels].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * order[1]);
  return html`
    <section class="page">
      <h1>Kernels</h1>
      ${kernels.length > 1 && html`<${Intensity} kernels=${kernels} />`}
      <p class="faint">${SAID}${Object.entries(report.data.peaks).map(([device, peaks]) => ` This machine's ${device.toUpperCase()} copies ${bytes(peaks.bytes_per_second)} and computes ${operations(peaks.flops_per_second)} operations a second.`)}</p>
      <table class="wide">
        <thead>
          <tr>
            ${columns.map(
              ([name, label]) => html`<th key=${name} class=${name === "name" || name === "schedule" ? "" : "number"}
                aria-sort=${order[0] === name ? (order[1] > 0 ? "ascending" : "descending") : "none"}>
                <button class="head" onClick=${() => setOrder([name, order[0] === name ? -order[1] : -1])}>
                  ${label}${order[0] === name ? (order[1] > 0 ? " ↑" : " ↓") : ""}
                </button>
              </th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${sorted.map((k) => html`<${Row} key=${k.name} columns=${columns} report=${report} kernel=${k} open=${open === k.name} toggle=${() => setOpen(open === k.name ? "" : k.name)} />`)}
        </tbody>
      </table>
    </section>
  `;
}

// A figure that is known, as text.
function known(value, format) {
  return value === undefined ? "" : format(value);
}

function Row({ columns, report, kernel, open, toggle }) {
  const text = report.byKey.get(`kernel:${kernel.name}`);
  const has = (column) => columns.some(([name]) => name === column);
  return html`
    <tr class=${open ? "open" : ""}>
      <td><button class="link hanging" aria-expanded=${open} onClick=${toggle}>${open ? "▾" : "▸"} ${kernel.name}</button></td>
      <td class="number">${count(kernel.launches.length)}</td>
      <td>${kernel.kinds}</td>
      <td class="number">${bytes(kernel.bytes)}</td>
      <td class="number">${operations(kernel.flops)}</td>
      <td class="number">${known(kernel.seconds, seconds)}</td>
      <td class="number">${known(kernel.share, percent)}</td>
      <td class="number">${known(kernel.registers, count)}</td>
      <td class="number">${known(kernel.spills, count)}</td>
      ${has("shared") && html`<td class="number">${known(kernel.shared, bytes)}</td>`}
      ${has("candidates") && html`<td class="number">${kernel.candidates.length || ""}</td>`}
    </tr>
    ${open &&
    html`<tr class="more"><td colspan=${columns.length}>
      ${kernel.schedules.map((one) => html`<pre>${one}</pre>`)}
      <p>
        ${plural(kernel.nests, "nest")} with ${plural(kernel.equations, "equation")},
        ${" "}${kernel.bytes ? (kernel.flops / kernel.bytes).toFixed(2) : "no"} operations a byte.
        ${kernel.runs && ` Time: the median of ${plural(kernel.runs, "launch", "launches")}.`}
        ${kernel.local > 0 && ` Local memory of a thread: ${bytes(kernel.local)}.`}
      </p>
      ${kernel.grid && html`<p>Grid ${kernel.grid.join(" × ")}, ${plural(kernel.warps, "warp")}, ${plural(kernel.stages, "stage")}.</p>`}
      <p>
        Launched by
        ${kernel.launches.map(
          (one, i) => html`${i ? ", " : " "}<button class="link" onClick=${() => go("trace", `loops:${one.region}/${one.step}`)}>${one.region} ${one.step}</button>`,
        )}
      </p>
      ${kernel.candidates.length > 0 &&
      html`<h3>Candidates</h3>
        <table>
          <tbody>
            ${kernel.candidates.map((d) => html`<tr><td>${d.taken ? "● " : ""}${d.subject[1]}</td><td>${d.reason}</td></tr>`)}
          </tbody>
        </table>`}
      ${text && html`<button class="small" onClick=${() => go("trace", text.key)}>Show its code</button> `}
      <${Program} report=${report} program=${kernel.program} text=${`kernel:${kernel.name}`} name=${kernel.name} />
    </td></tr>`}
  `;
}

// Each kernel by what it moves and computes in one launch, both on logarithmic scales.
function Intensity({ kernels }) {
  const place = useRef(null);
  useEffect(() => {
    const shown = kernels.filter((k) => k.bytes > 0 && k.flops > 0).sort((a, b) => a.bytes - b.bytes);
    if (!shown.length) return undefined;
    const draw = () => {
      place.current.textContent = "";
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const plot = new uPlot(
        {
          width: Math.min(760, place.current.clientWidth || 760),
          height: 220,
          scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
          legend: { show: false },
          cursor: { drag: { x: false, y: false } },
          axes: [
            { ...axis, label: "bytes moved by a launch", labelSize: 22, values: (_, all) => all.map((v) => (v === null ? "" : bytes(v))) },
            { ...axis, label: "operations", labelSize: 22, size: 64, values: (_, all) => all.map((v) => (v === null ? "" : operations(v))) },
          ],
          series: [{}, { stroke: colour("--accent"), fill: colour("--accent"), paths: () => null, points: { show: true, size: 7, fill: colour("--accent") } }],
        },
        [shown.map((k) => k.bytes), shown.map((k) => k.flops)],
        place.current,
      );
      const names = document.createElement("p");
      names.className = "faint caption";
      plot.over.addEventListener("mousemove", () => {
        const kernel = shown[plot.cursor.idx];
        names.textContent = kernel ? `${kernel.name}: ${bytes(kernel.bytes)}, ${operations(kernel.flops)} operations` : "";
      });
      names.textContent = "Each point is a kernel: right is more memory traffic, up is more arithmetic.";
      place.current.append(names);
    };
    draw();
    addEventListener("themechange", draw);
    return () => removeEventListener("themechange", draw);
  }, [kernels]);
  return html`<div class="chart" ref=${place}></div>`;
}
