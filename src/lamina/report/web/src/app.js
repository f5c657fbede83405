import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { html } from "./html.js";
import { Overview } from "./overview.js";
import { Trace } from "./trace.js";
import { Fusion } from "./fusion.js";
import { Decisions } from "./decisions.js";
import { Guards } from "./guards.js";
import { Kernels } from "./kernels.js";
import { Passes } from "./passes.js";
import { Memory } from "./memory.js";
import { Time } from "./time.js";
import { Compare } from "./compare.js";
import { Search } from "./search.js";
import { Help } from "./help.js";

const VIEWS = [
  ["overview", "Overview", Overview],
  ["trace", "Trace", Trace],
  ["fusion", "Fusion", Fusion],
  ["decisions", "Decisions", Decisions],
  ["guards", "Guards", Guards],
  ["kernels", "Kernels", Kernels],
  ["passes", "Passes", Passes],
  ["memory", "Memory", Memory],
  ["time", "Time", Time],
];

// The address: #view, #view=what is chosen in it, or a place of a text, which the trace shows.
function address() {
  const hash = decodeURIComponent(location.hash.slice(1));
  const [view, ...rest] = hash.split("=");
  return { view: view || "overview", what: rest.join("=") };
}

export function go(view, what = "") {
  location.hash = encodeURIComponent(what ? `${view}=${what}` : view).replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%3D", "=");
}

export function App({ report, other }) {
  const [place, setPlace] = useState(address);
  const [searching, setSearching] = useState(false);
  const [helping, setHelping] = useState(false);
  const views = useMemo(() => (other ? [...VIEWS, ["compare", "Compare", Compare]] : VIEWS), [other]);
  const current = views.find(([name]) => name === place.view) ?? views[0];

  // Before the page is said to be ready: an effect after it is painted would miss an address that changes until then.
  useLayoutEffect(() => {
    const moved = () => setPlace(address());
    const typed = (event) => {
      if (event.target.closest?.("input, select, .cm-panel") || event.ctrlKey || event.metaKey || event.altKey) {
        if (event.key === "Escape") setSearching(false);
        return;
      }
      const step = { "[": -1, "]": 1 }[event.key];
      if (step) go(views[(views.indexOf(current) + step + views.length) % views.length][0]);
      else if (event.key === "/") setSearching(true);
      else if (event.key === "?") setHelping((open) => !open);
      else if (event.key === "t") toggleTheme();
      else if (event.key === "Escape") {
        setSearching(false);
        setHelping(false);
        return;
      } else return;
      event.preventDefault();
    };
    addEventListener("hashchange", moved);
    addEventListener("keydown", typed);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("keydown", typed);
    };
  }, [current, views]);

  const View = current[2];
  return html`
    <header class="bar">
      <div class="brand"><span class="mark" aria-hidden="true"></span><b>${report.name}</b></div>
      <nav role="tablist" aria-label="Views">
        ${views.map(
          ([name, label]) => html`<button
            role="tab"
            key=${name}
            aria-selected=${name === current[0]}
            class=${name === current[0] ? "tab on" : "tab"}
            onClick=${() => go(name)}
          >
            ${label}
          </button>`,
        )}
      </nav>
      <div class="tools">
        <button class="quiet" onClick=${() => setSearching(true)} title="Search all texts ( / )">Search</button>
        <button class="quiet" onClick=${toggleTheme} title="Light or dark ( t )" aria-label="Light or dark">◐</button>
        <button class="quiet" onClick=${() => setHelping(true)} title="Keys ( ? )" aria-label="Keys">?</button>
      </div>
    </header>
    <main><${View} report=${report} other=${other} what=${place.view === current[0] ? place.what : ""} /></main>
    ${searching && html`<${Search} report=${report} close=${() => setSearching(false)} />`}
    ${helping && html`<${Help} close=${() => setHelping(false)} />`}
  `;
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  dispatchEvent(new Event("themechange"));
}
