// Builds the page: hir as WebAssembly, and one file with everything else. `node build.mjs [FOLDER]` writes to FOLDER (`docs/playground`).
//
// The compiler is `cargo`, or what HIR_WASM_CARGO names with its options, for a toolchain whose standard library is built from its source.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url)), root = join(here, "..");
const out = process.argv[2] ?? join(root, "docs/playground");
/** The largest page, in bytes, as servers send it: compressed by gzip. */
const LIMIT = 3e6;

const target = process.env.CARGO_TARGET_DIR ?? join(here, "target");
const [cargo, ...options] = (process.env.HIR_WASM_CARGO ?? "cargo").split(" ");
execFileSync(cargo, ["build", "--release", "--locked", "--target", "wasm32-unknown-unknown", ...options], { cwd: here, stdio: "inherit" });
const module = readFileSync(join(target, "wasm32-unknown-unknown/release/hir_playground.wasm"));

const samples = { "the race of the README": "tests/cases/check/race-long-allocate.hir" };
for (const name of readdirSync(join(root, "samples")).filter(it => it.endsWith(".hir")))
  samples[name.replace(".hir", "")] = join("samples", name);
const virtual = {
  "hir.wasm.gz": () => ({ contents: gzipSync(module, { level: 9 }), loader: "binary" }),
  samples: () => ({ contents: JSON.stringify(Object.fromEntries(Object.entries(samples).map(([name, file]) =>
    [name, readFileSync(join(root, file), "utf8")]))), loader: "json" }),
  grammar: () => ({ contents: readFileSync(join(root, "editors/vscode/syntaxes/hir.tmLanguage.json"), "utf8"), loader: "json" }),
};
mkdirSync(out, { recursive: true });
await build({
  entryPoints: [join(here, "page/main.js")], outfile: join(out, "playground.js"), bundle: true, minify: true, format: "iife", target: "es2022",
  plugins: [{ name: "made", setup(it) {
    it.onResolve({ filter: /^(hir\.wasm\.gz|samples|grammar)$/ }, found => ({ path: found.path, namespace: "made" }));
    it.onLoad({ filter: /.*/, namespace: "made" }, found => virtual[found.path]());
  } }],
});
copyFileSync(join(here, "page/index.html"), join(out, "index.html"));
const size = gzipSync(readFileSync(join(out, "playground.js"))).length;
console.log(`${out}: ${(size / 1e6).toFixed(2)} MB compressed; hir has ${(module.length / 1e6).toFixed(2)} MB before compression`);
if (size > LIMIT) throw new Error("the page is larger than 3 MB");
