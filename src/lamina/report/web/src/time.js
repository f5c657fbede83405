import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { seconds } from "./format.js";

const ROW = 22;
const SMALLEST = 1e-4; // of the whole: what can be zoomed to

export function Time({ report }) {
  const { spans } = report.data;
  const [range, setRange] = useState([0, 1]);
  const [over, setOver] = useState(null);
  const rows = useMemo(() => placedRows(spans), [spans]);
  const whole = useMemo(() => Math.max(...spans.map((s) => s.start + s.length), 1), [spans]);
  if (!spans.length) return html`<section class="page"><h1>Time</h1><p>No stage took time.</p></section>`;
  return html`
    <section class="page">
      <h1>Time</h1>
      <p class="faint">
        The stages of compiling as they ran; what runs in the background has rows of its own. Scroll to zoom, drag to move,
        double-click for all of it.
      </p>
      <${Flames} spans=${spans} rows=${rows} whole=${whole} range=${range} setRange=${setRange} setOver=${setOver} />
      <p class="said">
        ${over
          ? html`<b>${over.name}</b> ${over.region} <b>${seconds(over.length / 1e6)}</b>
              <span class="faint"> from ${seconds(over.start / 1e6)}</span>`
          : html`<span class="faint">All: ${seconds(whole / 1e6)}</span>`}
      </p>
    </section>
  `;
}

function placedRows(spans) {
  const deepest = [];
  for (const span of spans) deepest[span.lane] = Math.max(deepest[span.lane] ?? 0, span.depth + 1);
  const first = [];
  let next = 0;
  for (let lane = 0; lane < deepest.length; lane++) {
    first[lane] = next;
    next += deepest[lane] ?? 1;
  }
  return { of: (span) => first[span.lane] + span.depth, count: next };
}

function Flames({ spans, rows, whole, range, setRange, setOver }) {
  const canvas = useRef(null);
  const drag = useRef(null);
  useEffect(() => {
    const draw = () => paint(canvas.current, spans, rows, whole, range);
    draw();
    addEventListener("resize", draw);
    addEventListener("themechange", draw);
    return () => {
      removeEventListener("resize", draw);
      removeEventListener("themechange", draw);
    };
  }, [spans, range]);
  const at = (event) => range[0] + (event.offsetX / canvas.current.clientWidth) * (range[1] - range[0]);
  const wheel = (event) => {
    event.preventDefault();
    const middle = at(event);
    const length = Math.min(1, Math.max(SMALLEST, (range[1] - range[0]) * 1.0015 ** event.deltaY));
    const start = Math.min(1 - length, Math.max(0, middle - ((middle - range[0]) / (range[1] - range[0])) * length));
    setRange([start, start + length]);
  };
  const move = (event) => {
    if (drag.current) {
      const length = range[1] - range[0];
      const start = Math.min(1 - length, Math.max(0, drag.current.start - ((event.offsetX - drag.current.x) / canvas.current.clientWidth) * length));
      setRange([start, start + length]);
      return;
    }
    const when = at(event) * whole;
    const row = Math.floor(event.offsetY / ROW);
    setOver(spans.find((s) => rows.of(s) === row && s.start <= when && when <= s.start + s.length) ?? null);
  };
  return html`<canvas
    ref=${canvas}
    class="flames"
    style=${{ height: `${rows.count * ROW}px` }}
    role="img"
    aria-label="Stages of compiling over time"
    onWheel=${wheel}
    onMouseMove=${move}
    onMouseDown=${(event) => (drag.current = { x: event.offsetX, start: range[0] })}
    onMouseUp=${() => (drag.current = null)}
    onMouseLeave=${() => {
      drag.current = null;
      setOver(null);
    }}
    onDblClick=${() => setRange([0, 1])}
  ></canvas>`;
}

const HUES = { python: "--python", capture: "--captured", graph: "--captured", aot: "--forward", joint: "--forward", partition: "--forward", rewrite: "--backward", lower: "--loops", fuse: "--loops", plan: "--loops", codegen: "--kernel", host: "--kernel", build: "--assembly", wait: "--assembly" };

function paint(canvas, spans, rows, whole, range) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = rows.count * ROW * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  context.font = `11px ${style.getPropertyValue("--sans")}`;
  context.textBaseline = "middle";
  const scale = width / (whole * (range[1] - range[0]));
  for (const span of spans) {
    const x = (span.start - range[0] * whole) * scale;
    const length = Math.max(1, span.length * scale);
    if (x > width || x + length < 0) continue;
    const y = rows.of(span) * ROW;
    context.fillStyle = style.getPropertyValue(HUES[span.name.split(" ")[0]] ?? "--faint");
    context.globalAlpha = 0.85;
    context.beginPath();
    context.roundRect(x, y + 1, Math.max(1, length - 1), ROW - 3, Math.min(3, length / 2));
    context.fill();
    context.globalAlpha = 1;
    if (length < 40) continue;
    context.fillStyle = "#fff";
    const from = Math.max(x, 0) + 6;
    const label = `${span.name} ${span.region}`;
    const room = Math.min(x + length, width) - from - 4;
    const letters = Math.floor(room / 6.2);
    if (letters > 2) context.fillText(label.length > letters ? `${label.slice(0, letters - 1)}…` : label, from, y + ROW / 2);
  }
}
