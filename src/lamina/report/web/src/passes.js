import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { unifiedMergeView } from "@codemirror/merge";
import { html } from "./html.js";
import { plainExtensions } from "./code.js";
import { go } from "./app.js";
import { DecisionLines } from "./decisions.js";

export function Passes({ report, what }) {
  const passes = report.passes;
  const current = passes[Number(what) || 0];
  const [changed, setChanged] = useState(true);
  if (!current) return html`<section class="page"><h1>Passes</h1><p>No stage left a text.</p></section>`;
  const regions = [...new Set(passes.map((one) => one.region))];
  const decisions = report.decisions.filter((d) => current.stages.includes(d.stage));
  return html`
    <section class="split passes">
      <aside class="list">
        <label class="choice"><input type="checkbox" checked=${changed} onChange=${() => setChanged(!changed)} /> Only what changed</label>
        ${regions.map(
          (region) => html`<h3 key=${region}>${region}</h3>
            <ol>
              ${passes.map(
                (one, number) =>
                  one.region === region &&
                  (!changed || one.before !== one.after) &&
                  html`<li key=${number}>
                    <button class=${one === current ? "link on" : "link"} onClick=${() => go("passes", String(number))}>${one.name}</button>
                  </li>`,
              )}
            </ol>`,
        )}
      </aside>
      <div class="canvas">
        <header class="filters"><b>${current.name}</b> <span class="faint">${current.region}</span></header>
        <${Difference} before=${report.passText(current.before)} after=${report.passText(current.after)} language=${current.language} />
        ${decisions.length > 0 && html`<div class="details"><${DecisionLines} report=${report} decisions=${decisions.slice(0, 60)} /></div>`}
      </div>
    </section>
  `;
}

export function Difference({ before, after, language }) {
  const place = useRef(null);
  const same = before === after;
  useEffect(() => {
    const view = new EditorView({
      parent: place.current,
      state: EditorState.create({
        doc: after,
        extensions: [
          ...plainExtensions(language, after.length),
          ...(before && !same
            ? [unifiedMergeView({ original: before, mergeControls: false, gutter: true, diffConfig: { scanLimit: 20_000, timeout: 500 }, collapseUnchanged: { margin: 3, minSize: 6 } })]
            : []),
        ],
      }),
    });
    return () => view.destroy();
  }, [before, after, language]);
  return html`${same && html`<p class="faint">Nothing changed.</p>`}
    <div class="code" ref=${place}></div>`;
}
