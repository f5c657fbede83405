import { html } from "./html.js";

const KEYS = [
  ["[  ]", "the view before, the next view"],
  ["/", "search all texts"],
  ["t", "light or dark"],
  ["1 … 8", "show or hide a level (Trace)"],
  ["Enter", "follow the line of the cursor (Trace)"],
  ["n  N", "the next, the last linked line (Trace)"],
  ["p", "pin what is chosen (Trace)"],
  ["Ctrl F", "search in a pane"],
  ["Esc", "close"],
];

export function Help({ close }) {
  return html`
    <div class="veil" onClick=${close}>
      <div class="dialog" role="dialog" aria-label="Keys" onClick=${(event) => event.stopPropagation()}>
        <h2>Keys</h2>
        <dl class="keys">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
        <button onClick=${close}>Close</button>
      </div>
    </div>
  `;
}
