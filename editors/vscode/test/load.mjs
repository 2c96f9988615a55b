// Loads a module of the extension, with `vscode` and the client of the protocol replaced.

import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";

const require = createRequire(import.meta.url);

/** Returns what `src/NAME.ts` exports. `replaced` has what it and its parts get for the names of packages. */
export function load(name, replaced = {}) {
  const entry = fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url));
  const built = buildSync({ entryPoints: [entry], bundle: true, platform: "node", format: "cjs", packages: "external", write: false });
  const module = { exports: {} };
  new Function("module", "exports", "require", built.outputFiles[0].text)(module, module.exports, it => replaced[it] ?? require(it));
  return module.exports;
}
