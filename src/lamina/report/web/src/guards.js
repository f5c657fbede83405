import { html } from "./html.js";
import { Place } from "./decisions.js";
import { plural } from "./format.js";

export function Guards({ report }) {
  const of = (...kinds) => report.decisions.filter((d) => kinds.includes(d.kind));
  const recompiles = of("recompile");
  const breaks = [...of("break"), ...of("capture").filter((d) => !d.taken)];
  const fixed = of("specialise", "fixed sizes");
  const guards = report.data.guards;
  return html`
    <section class="page">
      <h1>Guards</h1>
      <h2>Compiled again</h2>
      ${recompiles.length
        ? html`<table class="wide coded">
            <thead><tr><th>Code</th><th>Function</th><th>What changed</th><th>Called at</th><th>Guard that failed</th></tr></thead>
            <tbody>
              ${recompiles.map((d) => {
                const facts = Object.fromEntries(d.facts);
                return html`<tr key=${d.number}>
                  <td><code>${d.code}</code></td>
                  <td>${d.subject.join(", ")}</td>
                  <td>${d.reason}${d.remedy && html`<div class="remedy">${d.remedy}</div>`}</td>
                  <td><${Place} report=${report} place=${facts["called at"] ?? facts.line ?? ""} /></td>
                  <td><code>${facts.guard ?? ""}</code></td>
                </tr>`;
              })}
            </tbody>
          </table>`
        : html`<p class="faint">Nothing was compiled twice.</p>`}
      <h2>Left to Python</h2>
      ${breaks.length
        ? html`<table class="wide coded">
            <thead><tr><th>Code</th><th>Where</th><th>Line</th><th>Why</th></tr></thead>
            <tbody>
              ${breaks.map(
                (d) => html`<tr key=${d.number}>
                  <td><code>${d.code}</code></td>
                  <td><${Place} report=${report} place=${d.subject[0]} /></td>
                  <td><code>${Object.fromEntries(d.facts).line ?? ""}</code></td>
                  <td>${d.reason}${d.remedy && html`<div class="remedy">${d.remedy}</div>`}</td>
                </tr>`,
              )}
            </tbody>
          </table>`
        : html`<p class="faint">All of the program was captured.</p>`}
      ${fixed.length > 0 &&
      html`<h2>Sizes that were fixed</h2>
        <ul>
          ${fixed.map((d) => html`<li key=${d.number}>${d.subject.join(" at ")}: ${d.reason} <span class="remedy">${d.remedy}</span></li>`)}
        </ul>`}
      <h2>What each version rests on</h2>
      ${guards.map(
        (one, number) => html`<details key=${number}>
          <summary>${one.function} <span class="faint">${plural(one.lines.length, "guard")}</span></summary>
          <pre>${one.lines.join("\n")}</pre>
        </details>`,
      )}
    </section>
  `;
}
