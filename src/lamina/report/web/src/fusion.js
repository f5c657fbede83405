import { useMemo, useState } from "preact/hooks";
import { html } from "./html.js";
import { go } from "./app.js";
import { bytes, operations, plural } from "./format.js";

const MARGIN = 28;

export function Fusion({ report, what }) {
  const regions = report.data.regions.filter((region) => region.fusion);
  const [name, map = ""] = what.split(" ");
  const region = regions.find((one) => one.name === name) ?? regions[0];
  const [picked, setPicked] = useState(null);
  if (!region) return html`<section class="page"><h1>Fusion</h1><p>No region of this program was planned.</p></section>`;
  const drawn = region.fusion[map] ?? region.fusion[""];
  const show = (own, inner = "") => {
    setPicked(null);
    go("fusion", inner ? `${own} ${inner}` : own);
  };
  return html`
    <section class="split">
      <div class="canvas">
        <div class="filters">
          <label class="choice">Region
            <select value=${region.name} onChange=${(event) => show(event.target.value)}>
              ${regions.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
            </select>
          </label>
          ${map && html`<button class="quiet" onClick=${() => show(region.name)}>← all of it</button>
            <b>${region.fusion[""].boxes[Number(map)]?.label}</b>`}
          <span class="grow"></span>
          <span class="legend"><i class="kernel"></i>kernel <i class="library"></i>library call <i class="group"></i>module</span>
        </div>
        <${Drawing} map=${drawn} picked=${picked} pick=${setPicked} open=${(inner) => show(region.name, inner)} />
      </div>
      <aside>
        ${picked ? html`<${Picked} report=${report} region=${region} map=${drawn} picked=${picked} />` : html`<${Legend} region=${region} />`}
      </aside>
    </section>
  `;
}

function Drawing({ map, picked, pick, open }) {
  const width = Math.max(...map.boxes.map((b) => b.x + b.w), 200) + 2 * MARGIN;
  const height = Math.max(...map.boxes.map((b) => b.y + b.h), 100) + 2 * MARGIN;
  return html`
    <div class="drawing">
      <svg width=${width} height=${height} role="img" aria-label="Kernels and library calls, joined by the buffers between them">
        <g transform=${`translate(${MARGIN} ${MARGIN})`}>
          ${map.edges.map((edge, i) => {
            const path = curve(map.boxes[edge.from], map.boxes[edge.to]);
            const on = picked?.edge === i;
            return html`<g key=${`e${i}`} class=${on ? "edge on" : "edge"} tabindex="0" role="button"
              aria-label=${`${edge.buffers.join(", ")}, ${bytes(edge.bytes)}`}
              onClick=${() => pick({ edge: i })} onKeyDown=${pressed(() => pick({ edge: i }))}>
              <path class="reach" d=${path} /><path class="wire" d=${path} style=${{ strokeWidth: thickness(edge.bytes) }} />
              <title>${edge.buffers.join(", ")}: ${bytes(edge.bytes)}${edge.why ? `. ${edge.why}` : ""}</title>
            </g>`;
          })}
          ${map.boxes.map((box, i) => {
            const choose = () => (box.opens === undefined ? pick({ box: i }) : open(box.opens));
            return html`<g key=${`b${i}`} class=${`box ${box.kind} ${picked?.box === i ? "on" : ""}`} tabindex="0" role="button"
              transform=${`translate(${box.x} ${box.y})`} onClick=${choose} onKeyDown=${pressed(choose)}>
              <rect width=${box.w} height=${box.h} rx="7" />
              <text x="13" y="23" class="label">${fitted(box.label, box.w, 7.6)}</text>
              <text x="13" y="41" class="detail">${fitted(box.detail, box.w, 6.7)}</text>
              <title>${box.label} (${box.detail})${box.module ? ` in ${box.module}` : ""}</title>
            </g>`;
          })}
        </g>
      </svg>
    </div>
  `;
}

function pressed(call) {
  return (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    call();
  };
}

function fitted(text, width, letter) {
  const most = Math.floor((width - 24) / letter);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function thickness(size) {
  return Math.min(5, 1 + Math.max(0, Math.log10(Math.max(size, 1)) - 3) * 0.7);
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
  const bend = Math.max(28, (y2 - y1) / 2);
  // Past a row of boxes, the line keeps to the side that it comes from.
  const aside = y2 - y1 > 120 ? (x1 <= x2 ? -1 : 1) * Math.min(90, (y2 - y1) / 5) : 0;
  return `M${x1} ${y1}C${x1 + aside} ${y1 + bend},${x2 + aside} ${y2 - bend},${x2} ${y2}`;
}

function Legend({ region }) {
  const steps = region.steps;
  const reasons = useMemo(() => {
    const found = new Map();
    for (const map of Object.values(region.fusion)) {
      for (const edge of map.edges) {
        if (!edge.why) continue;
        const one = found.get(edge.code || edge.why) ?? { count: 0, bytes: 0, code: edge.code, why: new Set() };
        one.count++;
        one.bytes += edge.bytes;
        found.set(edge.code || edge.why, one);
        one.why.add(edge.why);
      }
    }
    return [...found.values()].sort((a, b) => b.bytes - a.bytes);
  }, [region]);
  return html`
    <h2>${region.name}</h2>
    <p>${plural(region.launches, "kernel launch", "kernel launches")}, ${plural(region.library, "library call")}.</p>
    <h3>Why there is a boundary</h3>
    <ul class="reasons">
      ${reasons.map(
        (one) => html`<li key=${[...one.why][0]} title=${[...one.why].join("\n")}>
          ${one.code && html`<code>${one.code}</code> `}${[...one.why][0]}
          ${one.why.size > 1 && ` (and ${plural(one.why.size - 1, "other")} like it)`}
          <span class="faint"> × ${one.count}, ${bytes(one.bytes)}</span>
        </li>`,
      )}
    </ul>
    <p class="faint">Choose a box to see what it computes, a line to see why its ends are two steps.</p>
  `;
}

function Picked({ report, region, map, picked }) {
  if (picked.edge !== undefined) {
    const edge = map.edges[picked.edge];
    const [from, to] = [map.boxes[edge.from], map.boxes[edge.to]];
    return html`
      <h2>${from.label} → ${to.label}</h2>
      <p>${bytes(edge.bytes)} in ${plural(edge.buffers.length, "buffer")}: <code>${edge.buffers.slice(0, 12).join(", ")}</code></p>
      ${edge.why
        ? html`<h3>Why they are two steps</h3>
            <p>${edge.code && html`<code>${edge.code}</code> `}${edge.why}</p>
            ${edge.remedy && html`<p class="remedy">${edge.remedy}</p>`}`
        : html`<p class="faint">${from.kind === "group" ? "Open a module to see the reasons between its steps." : "No reason was recorded."}</p>`}
    `;
  }
  const step = region.steps[map.boxes[picked.box].step];
  const kernel = report.byKey.get(`kernel:${step.calls}`);
  const loops = report.byKey.get(`loops:${region.name}`);
  return html`
    <h2>${step.ops.join(", ")}</h2>
    <p><code>${step.calls}</code>${step.module && html` in <code>${step.module}</code>`}</p>
    <dl>
      <dt>Reads</dt><dd>${bytes(step.bytes_read)}: <code>${step.reads.join(", ")}</code></dd>
      <dt>Writes</dt><dd>${bytes(step.bytes_written)}: <code>${step.writes.join(", ")}</code></dd>
      <dt>Operations</dt><dd>${operations(step.flops)}</dd>
      <dt>Lines</dt><dd>${step.places.join(", ")}</dd>
      ${step.why && html`<dt>Library</dt><dd>${step.why}</dd>`}
    </dl>
    <div class="actions">
      ${loops && html`<button onClick=${() => go("trace", `${loops.key}/${step.name}`)}>Its loops</button>`}
      ${kernel && html`<button onClick=${() => go("trace", kernel.key)}>Its kernel</button>`}
    </div>
  `;
}
