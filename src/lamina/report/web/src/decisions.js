import { useMemo, useState } from "preact/hooks";
import { html } from "./html.js";
import { go } from "./app.js";
import { plural } from "./format.js";

const PAGE = 200;

export function Decisions({ report, what }) {
  const [text, setText] = useState(what);
  const [kind, setKind] = useState("");
  const [region, setRegion] = useState("");
  const [answer, setAnswer] = useState("");
  const [most, setMost] = useState(PAGE);
  const kinds = useMemo(() => counted(report.decisions.map((d) => d.kind)), [report]);
  const regions = useMemo(() => counted(report.decisions.map((d) => d.region || "capture")), [report]);
  const found = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return report.decisions.filter(
      (d) =>
        (!kind || d.kind === kind) &&
        (!region || (d.region || "capture") === region) &&
        (!answer || (answer === "yes") === d.taken) &&
        words.every((word) => searchable(d).includes(word)),
    );
  }, [report, text, kind, region, answer]);
  return html`
    <section class="page">
      <h1>Decisions</h1>
      <div class="filters">
        <input
          type="search"
          placeholder="Code, subject or words of the reason"
          aria-label="Filter"
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
        <${Choice} label="Kind" value=${kind} set=${setKind} options=${kinds} />
        <${Choice} label="Region" value=${region} set=${setRegion} options=${regions} />
        <${Choice} label="Answer" value=${answer} set=${setAnswer} options=${[["yes"], ["no"]]} />
        <span class="faint">${plural(found.length, "decision")}</span>
      </div>
      <table class="wide coded">
        <thead>
          <tr><th>Code</th><th>Kind</th><th>About</th><th></th><th>Reason</th></tr>
        </thead>
        <tbody>
          ${found.slice(0, most).map((d) => html`<${Row} key=${d.number} report=${report} decision=${d} />`)}
        </tbody>
      </table>
      ${found.length > most && html`<button onClick=${() => setMost(most * 2)}>Show more</button>`}
    </section>
  `;
}

function searchable(d) {
  d.words ??= [d.code, d.kind, ...d.subject, d.reason, d.remedy].join(" ").toLowerCase();
  return d.words;
}

function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function Choice({ label, value, set, options }) {
  return html`<label class="choice">
    ${label}
    <select value=${value} onChange=${(event) => set(event.target.value)}>
      <option value="">all</option>
      ${options.map(([name, count]) => html`<option key=${name} value=${name}>${name}${count ? ` (${count})` : ""}</option>`)}
    </select>
  </label>`;
}

function Row({ report, decision }) {
  return html`<tr>
    <td><code>${decision.code}</code></td>
    <td>${decision.kind}</td>
    <td>${decision.subject.map((one, i) => html`${i ? ", " : ""}<${Subject} report=${report} region=${decision.region} name=${one} />`)}</td>
    <td><${Answer} taken=${decision.taken} /></td>
    <td>
      ${decision.reason}
      ${decision.facts.length > 0 && html`<span class="faint"> ${decision.facts.map(([k, v]) => `${k} ${v}`).join(", ")}</span>`}
      ${decision.remedy && html`<div class="remedy">${decision.remedy}</div>`}
    </td>
  </tr>`;
}

export function Answer({ taken }) {
  return html`<span class=${taken ? "yes" : "no"}>${taken ? "yes" : "no"}</span>`;
}

// A name that something in a text has leads there.
export function Subject({ report, region, name }) {
  const place = ["forward", "backward", "loops"].map((level) => `${level}:${region}`);
  const text = place.map((key) => report.byKey.get(key)).find((one) => one?.names.some(([, own]) => own === name));
  const kernel = report.byKey.get(`kernel:${name}`);
  const address = text ? `${text.key}/${name}` : kernel ? kernel.key : "";
  return address ? html`<button class="link" onClick=${() => go("trace", address)}>${name}</button>` : html`<span>${name}</span>`;
}

// "file.py:12", which leads to the line where the report has the file.
export function Place({ report, place }) {
  const [, file, line] = /([^\s/]+):(\d+)/.exec(place) ?? [];
  const text = file && report.byKey.get(`python:${file}`);
  return text ? html`<button class="link" onClick=${() => go("trace", `${text.key}/${line}`)}>${place}</button>` : html`<span>${place}</span>`;
}

export function DecisionLines({ report, decisions }) {
  return html`<ul class="lines">
    ${decisions.map(
      (d) => html`<li key=${d.number}>
        <${Answer} taken=${d.taken} /> ${d.code && html`<code>${d.code}</code> `}<b>${d.kind}</b>${" "}
        ${d.subject.map((one, i) => html`${i ? ", " : ""}<${Subject} report=${report} region=${d.region} name=${one} />`)}:${" "}
        ${d.reason}${d.remedy && html`<span class="remedy"> ${d.remedy}</span>`}
      </li>`,
    )}
  </ul>`;
}
