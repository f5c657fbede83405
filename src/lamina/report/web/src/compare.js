import { useMemo, useState } from "preact/hooks";
import { html } from "./html.js";
import { Difference } from "./passes.js";
import { stagesOf, totalsOf } from "./overview.js";
import { bytes, count, operations, seconds } from "./format.js";

const TOTALS = [
  ["graphs", "Graphs", count],
  ["kernels", "Kernels", count],
  ["launches", "Kernel launches", count],
  ["library", "Library calls", count],
  ["bytes", "Moved", bytes],
  ["flops", "Operations", operations],
  ["seconds", "Seconds to compile", seconds],
];

// `other` is the report that this one is held against: what was before.
export function Compare({ report, other }) {
  const [key, setKey] = useState("");
  const totals = useMemo(() => [totalsOf(other.data), totalsOf(report.data)], [report, other]);
  const kernels = useMemo(() => setsOf(other.data.kernels, report.data.kernels, (k) => k.name), [report, other]);
  const decisions = useMemo(() => setsOf(other.decisions, report.decisions, (d) => [d.region, d.kind, ...d.subject, d.taken, d.reason].join("\n")), [report, other]);
  const texts = useMemo(() => changedTexts(other, report), [report, other]);
  const stages = useMemo(() => {
    const before = new Map(stagesOf(other.data));
    const after = new Map(stagesOf(report.data));
    return [...new Set([...before.keys(), ...after.keys()])].map((name) => [name, before.get(name) ?? 0, after.get(name) ?? 0]);
  }, [report, other]);
  const shown = texts.find((one) => one.key === key) ?? texts[0];
  return html`
    <section class="page">
      <h1>Compared with ${other.name}</h1>
      <table>
        <thead><tr><th></th><th class="number">Before</th><th class="number">After</th><th class="number">Change</th></tr></thead>
        <tbody>
          ${TOTALS.map(([name, label, format]) => html`<${Line} label=${label} before=${totals[0][name]} after=${totals[1][name]} format=${format} />`)}
        </tbody>
      </table>
      <h2>Kernels</h2>
      <${Sets} sets=${kernels} show=${(k) => html`<code>${k.name}</code> <span class="faint">${bytes(k.bytes)}, ${operations(k.flops)} operations</span>`} />
      <h2>Decisions</h2>
      <${Sets} sets=${decisions} show=${(d) => html`${d.code && html`<code>${d.code}</code> `}<b>${d.kind}</b> ${d.subject.join(", ")}: ${d.taken ? "yes" : "no"}, ${d.reason}`} />
      <h2>Texts</h2>
      ${shown
        ? html`<div class="filters"><select aria-label="Text" value=${shown.key} onChange=${(event) => setKey(event.target.value)}>
              ${texts.map((one) => html`<option key=${one.key} value=${one.key}>${one.key}</option>`)}
            </select></div>
            <${Difference} before=${shown.before} after=${shown.after} language=${shown.language} />`
        : html`<p class="faint">All texts that both have are equal.</p>`}
      <h2>Stages</h2>
      <table>
        <thead><tr><th></th><th class="number">Before</th><th class="number">After</th><th class="number">Change</th></tr></thead>
        <tbody>${stages.map(([name, before, after]) => html`<${Line} label=${name} before=${before} after=${after} format=${seconds} />`)}</tbody>
      </table>
    </section>
  `;
}

function Line({ label, before, after, format }) {
  const change = before ? `${after >= before ? "+" : "−"}${Math.abs((100 * (after - before)) / before).toFixed(1)}\u00a0%` : "";
  return html`<tr>
    <td>${label}</td>
    <td class="number">${format(before)}</td>
    <td class="number">${format(after)}</td>
    <td class="number faint">${after === before ? "" : change}</td>
  </tr>`;
}

function setsOf(before, after, key) {
  const [old, made] = [new Set(before.map(key)), new Set(after.map(key))];
  return { gone: before.filter((one) => !made.has(key(one))), fresh: after.filter((one) => !old.has(key(one))) };
}

function Sets({ sets, show }) {
  if (!sets.gone.length && !sets.fresh.length) return html`<p class="faint">No difference.</p>`;
  return html`<ul class="lines">
    ${sets.gone.slice(0, 200).map((one) => html`<li><span class="no">−</span> ${show(one)}</li>`)}
    ${sets.fresh.slice(0, 200).map((one) => html`<li><span class="yes">+</span> ${show(one)}</li>`)}
  </ul>`;
}

function changedTexts(other, report) {
  return report.texts
    .filter((text) => !["ptx", "assembly"].includes(text.level) && other.byKey.has(text.key) && other.byKey.get(text.key).text !== text.text)
    .map((text) => ({ key: text.key, language: text.language, before: other.byKey.get(text.key).text, after: text.text }));
}
