import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { go } from "./app.js";
import { LEVEL_NAMES } from "./model.js";

const MOST = 60;

export function Search({ report, close }) {
  const [word, setWord] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef(null);
  useEffect(() => input.current.focus(), []);
  const found = useMemo(() => (word.length > 1 ? matches(report, word) : []), [report, word]);
  const open = (one) => {
    close();
    go("trace", report.addressOf(one.text, one.line));
  };
  const typed = (event) => {
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter" && found[at]) open(found[at]);
    else return;
    event.preventDefault();
  };
  return html`
    <div class="veil" onClick=${close}>
      <div class="dialog" role="dialog" aria-label="Search" onClick=${(event) => event.stopPropagation()} onKeyDown=${typed}>
        <input ref=${input} type="search" placeholder="Search all texts" aria-label="Search all texts" value=${word}
          onInput=${(event) => { setWord(event.target.value); setAt(0); }} />
        <ul class="results">
          ${found.map(
            (one, i) => html`<li key=${i} class=${i === at ? "on" : ""} onClick=${() => open(one)}>
              <span class=${`badge ${one.level}`}>${LEVEL_NAMES[one.level]}</span>
              <code>${one.shown}</code> <span class="faint">${one.title}:${one.line}</span>
            </li>`,
          )}
          ${word.length > 1 && !found.length && html`<li class="faint">Nothing found.</li>`}
        </ul>
      </div>
    </div>
  `;
}

function matches(report, word) {
  const found = [];
  const lower = word.toLowerCase();
  for (const text of report.texts) {
    text.lower ??= text.text.toLowerCase();
    for (let i = text.lower.indexOf(lower); i >= 0 && found.length < MOST; i = text.lower.indexOf(lower, i + 1)) {
      const line = text.lineAt(i);
      if (found.at(-1)?.text === text.number && found.at(-1).line === line) continue;
      found.push({ text: text.number, line, level: text.level, title: text.title, shown: text.line(line).trim().slice(0, 110) });
    }
  }
  return found;
}
