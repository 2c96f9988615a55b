// Tests of the extension that need no editor: `npm test`.

import assert from "node:assert";
import test from "node:test";
import { load } from "./load.mjs";

const { serverCommand, startFailure } = load("server");

test("the server is the setting, or hir from PATH", () => {
  assert.deepStrictEqual(serverCommand(undefined), { command: "hir", args: ["lsp"] });
  assert.deepStrictEqual(serverCommand("  "), { command: "hir", args: ["lsp"] });
  assert.deepStrictEqual(serverCommand("/opt/hir/bin/hir"), { command: "/opt/hir/bin/hir", args: ["lsp"] });
});

test("a server that does not start says how to get one", () => {
  const text = startFailure("hir", "spawn hir ENOENT");
  assert.match(text, /cannot start `hir lsp`: spawn hir ENOENT\. .*`hir\.path`/);
});
