import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { html } from "./html.js";
import { go } from "./app.js";
import { bytes } from "./format.js";

const MOST_ROWS = 160;

export function Memory({ report, what }) {
  const regions = report.data.regions.filter((region) => region.memory?.temporary.length);
  const region = regions.find((one) => one.name === what) ?? regions[0];
  const [step, setStep] = useState(0);
  if (!region) return html`<section class="page"><h1>Memory</h1><p>No region of this program was planned.</p></section>`;
  const memory = region.memory;
  const peak = memory.temporary.reduce((best, own, i) => Math.max(best, own + memory.results[i]), 0);
  const alive = memory.buffers.filter((b) => b.from <= step && step <= b.to).sort((a, b) => b.bytes - a.bytes);
  const current = region.steps[Math.min(step, region.steps.length - 1)];
  return html`
    <section class="page">
      <h1>Memory</h1>
      <div class="filters">
        <label class="choice">Region
          <select value=${region.name} onChange=${(event) => go("memory", event.target.value)}>
            ${regions.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
          </select>
        </label>
        <span>Peak beyond inputs <b>${bytes(peak)}</b></span>
        <span>Workspace <b>${bytes(memory.arena)}</b></span>
        <span>Inputs <b>${bytes(memory.inputs)}</b></span>
      </div>
      <${Chart} memory=${memory} steps=${region.steps} pick=${setStep} />
      <p>
        Step ${step}: <button class="link" onClick=${() => go("trace", `loops:${region.name}/${current.name}`)}>${current.ops.join(", ")}</button>
        <span class="faint"> ${current.calls}</span>
      </p>
      <table>
        <thead><tr><th>Alive at this step</th><th class="number">Size</th><th>Where</th><th>Steps</th></tr></thead>
        <tbody>
          ${alive.slice(0, MOST_ROWS).map(
            (b) => html`<tr key=${b.name}>
              <td><code>${b.name}</code></td>
              <td class="number">${bytes(b.bytes)}</td>
              <td>${b.where === "arena" ? `workspace at ${b.offset}` : b.where}</td>
              <td class="faint">${b.from} to ${b.to}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </section>
  `;
}

function Chart({ memory, steps, pick }) {
  const place = useRef(null);
  useEffect(() => {
    const draw = () => {
      place.current.textContent = "";
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const total = memory.temporary.map((own, i) => own + memory.results[i]);
      const stepped = uPlot.paths.stepped({ align: 1 });
      const plot = new uPlot(
        {
          width: place.current.clientWidth || 900,
          height: 240,
          scales: { x: { time: false } },
          legend: { live: false },
          axes: [
            { ...axis, label: "step", labelSize: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
            { ...axis, size: 74, values: (_, all) => all.map((v) => bytes(v)) },
          ],
          series: [
            { label: "Step", value: (_, v) => (v === null ? "" : `${v} ${steps[v]?.ops.join(", ") ?? ""}`) },
            { label: "With temporaries", stroke: colour("--accent"), fill: colour("--accent-soft"), paths: stepped, width: 2, points: { show: false }, value: (_, v) => (v === null ? "" : bytes(v)) },
            { label: "Results", stroke: colour("--loops"), paths: stepped, width: 2, points: { show: false }, value: (_, v) => (v === null ? "" : bytes(v)) },
          ],
          hooks: { setCursor: [(own) => own.cursor.idx !== null && own.cursor.idx !== undefined && pick(own.cursor.idx)] },
        },
        [total.map((_, i) => i), total, memory.results],
        place.current,
      );
      return plot;
    };
    draw();
    addEventListener("themechange", draw);
    return () => removeEventListener("themechange", draw);
  }, [memory]);
  return html`<div class="chart" ref=${place}></div>`;
}
