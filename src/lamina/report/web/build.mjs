// Builds dist/page.js and dist/page.css from src/. `--to FOLDER` writes them elsewhere.
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const to = process.argv.includes("--to") ? process.argv[process.argv.indexOf("--to") + 1] : join(here, "dist");

await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.js" },
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  outdir: to,
  logLevel: "warning",
});
