import { useState } from "preact/hooks";
import { html } from "./html.js";

// Buttons for a program that runs one kernel or region by itself: `program` stands before and after its text.
export function Program({ report, program, text, name }) {
  const [said, setSaid] = useState("");
  const own = report.byKey.get(text);
  if (!program || !own) return null;
  const whole = () => program.before + own.text + program.after;
  const copy = async () => {
    setSaid((await copied(whole())) ? "copied" : "the browser does not let a page copy");
    setTimeout(setSaid, 2500, "");
  };
  return html`<span class="program">
    <button class="small" title="Copy a program that runs it by itself, on random inputs" onClick=${copy}>Copy program</button>
    ${" "}<button class="small" title=${`Save it as ${name}.py`} onClick=${() => save(`${name}.py`, whole())}>Save</button>
    <span class="faint" role="status"> ${said}</span>
  </span>`;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // pages from files may have no clipboard but the old one
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/x-python" }));
  link.download = name.replace(/[^\w.-]/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
