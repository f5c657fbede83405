import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { html } from "./html.js";
import { unpacked } from "./data.js";
import { Report } from "./model.js";
import { App } from "./app.js";

const root = document.getElementById("app");
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

async function start() {
  const [own, other] = await Promise.all(["report", "other"].map((id) => unpacked(id)));
  const report = new Report(own);
  document.title = `${report.name} · Lamina report`;
  root.textContent = "";
  render(html`<${App} report=${report} other=${other && new Report(other)} />`, root);
  window.lamina = { report, ready: performance.now() };
}

start().catch((error) => {
  root.textContent = `The report cannot be shown: ${error}`;
});
