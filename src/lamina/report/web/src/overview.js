import { useMemo } from "preact/hooks";
import { html } from "./html.js";
import { go } from "./app.js";
import { Program } from "./program.js";
import { bytes, count, operations, plural, seconds } from "./format.js";

// Things that are shown; their order is that of the compiler, the most useful first.
const ADVICE = 5;

export function Overview({ report }) {
  const { data } = report;
  const totals = useMemo(() => totalsOf(data), [data]);
  const stages = useMemo(() => stagesOf(data), [data]);
  const longest = Math.max(...stages.map(([, own]) => own), 1e-9);
  return html`
    <section class="page">
      <h1>${report.name}</h1>
      <p class="faint">
        ${[`Lamina ${data.made.lamina}`, `torch ${data.made.torch}`, `Python ${data.made.python}`, data.made.gpu || data.made.processor]
          .filter(Boolean)
          .join(" · ")}
      </p>
      <div class="cards">
        <${Card} value=${count(totals.graphs)} label=${totals.graphs === 1 ? "graph" : "graphs"} onClick=${() => go("trace")} />
        <${Card} value=${count(totals.kernels)} label=${`kernels of ${count(totals.launches)} launches`} onClick=${() => go("kernels")} />
        <${Card} value=${count(totals.library)} label="library calls" onClick=${() => go("fusion")} />
        <${Card} value=${bytes(totals.bytes)} label="moved in a run" onClick=${() => go("kernels")} />
        <${Card} value=${operations(totals.flops)} label="floating-point operations" onClick=${() => go("kernels")} />
        <${Card} value=${seconds(totals.seconds)} label="to compile" onClick=${() => go("time")} />
      </div>
      <h2>What to change first</h2>
      ${data.advice.length
        ? html`<ol class="advice">
            ${data.advice.slice(0, ADVICE).map(
              (one) => html`<li key=${`${one.code} ${one.remedy} ${one.places[0] ?? ""}`}>
                <b>${one.remedy}</b>
                <div>
                  ${one.what} <button class="link" onClick=${() => go("decisions", one.code || one.what)}>
                    ${one.code || "decisions"}${one.count > 1 ? ` × ${one.count}` : ""}
                  </button>
                </div>
                <div class="faint">
                  ${one.places.slice(0, 4).map((place) => html`<${Place} report=${report} place=${place} /> `)}${one.places.length > 4 ? "…" : ""}
                </div>
              </li>`,
            )}
          </ol>
          ${data.advice.length > ADVICE && html`<p class="faint">And ${count(data.advice.length - ADVICE)} more among the <button class="link" onClick=${() => go("decisions")}>decisions</button>.</p>`}`
        : html`<p>Nothing: no decision of the compiler asks for a change of the program.</p>`}
      ${data.faults.length > 0 &&
      html`<h2>Not shown</h2>
        <ul>
          ${data.faults.map((one) => html`<li>${one.region && html`<code>${one.region}</code> `}${one.what}</li>`)}
        </ul>`}
      <h2>Regions</h2>
      <table>
        <thead>
          <tr><th>Region</th><th class="number">Nodes</th><th class="number">Kernel launches</th><th class="number">Library calls</th><th class="number">Moved</th><th class="number">Operations</th><th></th></tr>
        </thead>
        <tbody>
          ${data.regions.map((region) => {
            const steps = region.steps ?? [];
            return html`<tr key=${region.name}>
              <td><code>${region.name}</code></td>
              <td class="number">${count(region.nodes)}</td>
              <td class="number">${count(region.launches ?? 0)}</td>
              <td class="number">${count(region.library ?? 0)}</td>
              <td class="number">${bytes(moved(steps))}</td>
              <td class="number">${operations(steps.reduce((all, one) => all + one.flops, 0))}</td>
              <td>
                <button class="link" onClick=${() => go("trace", `${region.kind}:${region.name}`)}>trace</button>
                ${region.fusion && html` <button class="link" onClick=${() => go("fusion", region.name)}>map</button>`}
                ${" "}<${Program} report=${report} program=${region.program} text=${`${region.kind}:${region.name}`} name=${region.name} />
              </td>
            </tr>`;
          })}
        </tbody>
      </table>
      <h2>Where compiling spent its time</h2>
      <table class="bars">
        <tbody>
          ${stages.map(
            ([name, own]) => html`<tr key=${name}>
              <td>${name}${name.startsWith("build") && html` <span class="faint">beside the others</span>`}</td>
              <td class="number">${seconds(own)}</td>
              <td class="bar-cell"><span class="meter" style=${{ width: `${(100 * own) / longest}%` }}></span></td>
            </tr>`,
          )}
        </tbody>
      </table>
    </section>
  `;
}

function Card({ value, label, onClick }) {
  return html`<button class="card" onClick=${onClick}><span class="value">${value}</span><span class="label">${label}</span></button>`;
}

// A line of the program, "model.py:12", which the trace shows where the report has the file.
function Place({ report, place }) {
  const found = report.pythonLine(place);
  const name = place.split("/").at(-1);
  return found ? html`<button class="link" title=${place} onClick=${() => go("trace", found)}>${name}</button>` : html`<span title=${place}>${name}</span>`;
}

function moved(steps) {
  return steps.reduce((all, one) => all + one.bytes_read + one.bytes_written, 0);
}

export function totalsOf(data) {
  const steps = data.regions.flatMap((region) => region.steps ?? []);
  return {
    graphs: new Set(data.regions.map((region) => region.graph)).size,
    kernels: data.kernels.length,
    launches: steps.filter((one) => one.kind === "kernel").length,
    library: steps.filter((one) => one.kind === "library").length,
    bytes: moved(steps),
    flops: steps.reduce((all, one) => all + one.flops, 0),
    seconds: data.stages.reduce((all, one) => all + (one.name.startsWith("build") ? 0 : one.seconds), 0),
  };
}

export function stagesOf(data) {
  const found = new Map();
  for (const one of data.stages) if (one.seconds) found.set(one.name, (found.get(one.name) ?? 0) + one.seconds);
  return [...found].sort((a, b) => b[1] - a[1]);
}
