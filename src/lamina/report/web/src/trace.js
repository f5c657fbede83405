import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { Pane } from "./code.js";
import { go } from "./app.js";
import { DecisionLines } from "./decisions.js";
import { LEVELS, LEVEL_NAMES } from "./model.js";
import { plural } from "./format.js";

const FIRST = ["python", "forward", "loops", "kernel"];
const NOTHING = new Map();

function startingPanes(report) {
  const there = LEVELS.filter((level) => report.ofLevel(level).length);
  let saved = null;
  try {
    saved = JSON.parse(sessionStorage.getItem("panes"));
  } catch {
    // storage may be closed to pages from files
  }
  const wanted = (saved ?? FIRST).filter((level) => there.includes(level));
  return wanted.length ? wanted : there.slice(0, 3);
}

export function Trace({ report, what }) {
  const [panes, setPanes] = useState(() => startingPanes(report));
  const [chosen, setChosen] = useState(null);
  const [pinned, setPinned] = useState(null);
  const [hovered, setHovered] = useState(null);
  const [shown, setShown] = useState(() => firstTexts(report));
  const [turn, setTurn] = useState(0);

  const linked = useMemo(() => (chosen ? report.linked(chosen.text, chosen.line) : NOTHING), [report, chosen]);
  const kept = useMemo(() => (pinned ? report.linked(pinned.text, pinned.line) : NOTHING), [report, pinned]);
  const near = useMemo(() => (hovered ? report.linked(hovered.text, hovered.line) : NOTHING), [report, hovered]);

  // Choosing a line shows, in each other pane, a text that it leads to.
  useEffect(() => {
    const place = what && report.place(what);
    if (!place) return;
    const found = report.linked(place.text, place.line);
    setChosen(place);
    setTurn(0);
    const level = report.texts[place.text].level;
    setPanes((open) => (open.includes(level) ? open : LEVELS.filter((one) => one === level || open.includes(one))));
    setShown((before) => {
      const after = { ...before };
      for (const [text] of found) {
        const own = report.texts[text].level;
        if (!found.has(after[own])) after[own] = text;
      }
      after[level] = place.text;
      return after;
    });
  }, [report, what]);

  useEffect(() => {
    try {
      sessionStorage.setItem("panes", JSON.stringify(panes));
    } catch {
      // as above
    }
  }, [panes]);

  const toggle = useCallback(
    (level) =>
      setPanes((open) => {
        const after = open.includes(level) ? open.filter((one) => one !== level) : [...open, level];
        return after.length ? LEVELS.filter((one) => after.includes(one)) : open;
      }),
    [],
  );

  useEffect(() => {
    const typed = (event) => {
      if (event.target.closest?.("input, select, .cm-panel") || event.ctrlKey || event.metaKey || event.altKey) return;
      const number = Number(event.key);
      if (number >= 1 && number <= LEVELS.length && report.ofLevel(LEVELS[number - 1]).length) toggle(LEVELS[number - 1]);
      else if (event.key === "p") setPinned((before) => (before ? null : chosen));
      else if (event.key === "n") setTurn((at) => at + 1);
      else if (event.key === "N") setTurn((at) => at - 1);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", typed);
    return () => removeEventListener("keydown", typed);
  }, [report, chosen, toggle]);

  const choose = useCallback((text, line) => go("trace", report.addressOf(text, line)), [report]);
  const hover = useMemo(() => delayed(setHovered), []);
  const columns = panes.length <= 3 ? panes.length : panes.length === 4 ? 2 : 3;
  return html`
    <section class="trace">
      <div class="levels" role="group" aria-label="Levels">
        ${LEVELS.map((level, number) => {
          const there = report.ofLevel(level).length;
          return html`<button
            key=${level}
            class=${`level ${level} ${panes.includes(level) ? "on" : ""}`}
            aria-pressed=${panes.includes(level)}
            disabled=${!there}
            title=${there ? `Show or hide ( ${number + 1} )` : "The report has none"}
            onClick=${() => toggle(level)}
          >
            ${LEVEL_NAMES[level]}
          </button>`;
        })}
        <span class="grow"></span>
        <button
          class=${pinned ? "quiet on" : "quiet"}
          disabled=${!chosen && !pinned}
          aria-pressed=${Boolean(pinned)}
          title="Keep what is chosen marked ( p )"
          onClick=${() => setPinned(pinned ? null : chosen)}
        >
          ${pinned ? "Unpin" : "Pin"}
        </button>
      </div>
      <div class="panes" style=${{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>
        ${panes.map(
          (level) => html`<${CodePane}
            key=${level}
            report=${report}
            level=${level}
            text=${shown[level]}
            show=${(text) => setShown((before) => ({ ...before, [level]: text }))}
            linked=${linked}
            pinned=${kept}
            near=${near}
            origin=${chosen}
            turn=${turn}
            choose=${choose}
            hover=${hover}
          />`,
        )}
      </div>
      <${Details} report=${report} chosen=${chosen} linked=${linked} />
    </section>
  `;
}

function firstTexts(report) {
  return Object.fromEntries(LEVELS.map((level) => [level, report.ofLevel(level)[0]?.number]));
}

function delayed(call) {
  let waiting = 0;
  return (value) => {
    clearTimeout(waiting);
    waiting = setTimeout(call, value ? 25 : 120, value);
  };
}

function CodePane({ report, level, text, show, linked, pinned, near, origin, turn, choose, hover }) {
  const place = useRef(null);
  const pane = useRef(null);
  const now = useRef(null);
  now.current = { text, choose, hover };
  const own = linked.get(text);
  const at = own?.length ? ((turn % own.length) + own.length) % own.length : 0;

  useEffect(() => {
    pane.current = new Pane(place.current, {
      label: `${LEVEL_NAMES[level]} code`,
      onHover: (line) => now.current.hover(line ? { text: now.current.text, line } : null),
      onChoose: (line) => now.current.choose(now.current.text, line),
    });
    return () => pane.current.destroy();
  }, [level]);

  useEffect(() => {
    if (text === undefined) return;
    pane.current.show(report.texts[text]);
    pane.current.mark({ pinned: pinned.get(text), hover: near.get(text), chosen: own });
  }, [report, text, own, pinned, near]);

  // The text that was clicked in stays where it is.
  useEffect(() => {
    if (!own?.length) return;
    const clicked = origin?.text === text && turn === 0;
    if (!clicked || !visible(place.current, pane.current, origin.line)) pane.current.scrollTo(clicked ? origin.line : own[at]);
  }, [text, own, at]);

  const texts = report.ofLevel(level);
  const others = [...linked.keys()].filter((number) => report.texts[number].level === level);
  return html`
    <article class=${`pane ${level}`}>
      <header>
        <span class="dot" aria-hidden="true"></span>
        ${texts.length > 1
          ? html`<select
              aria-label=${`Text of ${LEVEL_NAMES[level]}`}
              value=${text}
              onChange=${(event) => show(Number(event.target.value))}
            >
              ${texts.map(
                (one) => html`<option key=${one.number} value=${one.number}>
                  ${others.includes(one.number) ? "● " : ""}${one.title}
                </option>`,
              )}
            </select>`
          : html`<b>${texts[0]?.title}</b>`}
        <span class="grow"></span>
        ${others.length > 1 &&
        html`<button class="quiet small" title="The next text that is linked" onClick=${() => show(following(others, text))}>
          ${others.length} texts
        </button>`}
        ${own?.length > 0 && html`<span class="faint">${plural(own.length, "line")}</span>`}
      </header>
      <div class="code" ref=${place}></div>
    </article>
  `;
}

function following(numbers, current) {
  return numbers[(numbers.indexOf(current) + 1) % numbers.length];
}

function visible(element, pane, line) {
  const doc = pane.view.state.doc;
  if (line > doc.lines) return false;
  const box = pane.view.lineBlockAt(doc.line(line).from);
  const { scrollTop, clientHeight } = pane.view.scrollDOM;
  return box.top >= scrollTop && box.bottom <= scrollTop + clientHeight;
}

// What is said of the chosen line: where it leads to, and the decisions about what stands on the lines it is linked to.
function Details({ report, chosen, linked }) {
  const found = useMemo(() => {
    if (!chosen) return [];
    const names = new Set();
    for (const [text, lines] of linked) {
      const own = report.texts[text];
      if (own.level === "kernel") names.add(own.title);
      if (!["forward", "backward", "loops", "captured"].includes(own.level)) continue;
      for (const line of lines) {
        const name = own.nameOf(line);
        names.add(name);
        names.add(name.split("/")[0]);
      }
    }
    return report.decisionsAbout(names);
  }, [report, chosen, linked]);
  if (!chosen) {
    return html`<footer class="details faint">
      Point at a line to see what it came from and what it became; click to follow it. Keys: 1 to 8 show levels, n next
      line, p pin, / search.
    </footer>`;
  }
  const text = report.texts[chosen.text];
  return html`
    <footer class="details">
      <div class="said">
        <code>${text.line(chosen.line).trim().slice(0, 160) || "(empty line)"}</code>
        <span class="faint"> ${text.title}:${chosen.line}</span>
      </div>
      ${found.length > 0
        ? html`<${DecisionLines} report=${report} decisions=${found.slice(0, 40)} />`
        : html`<span class="faint">No decision is recorded about this line.</span>`}
    </footer>
  `;
}
