// Tests of the extension that need no editor: `npm test`.
"use strict";

const assert = require("node:assert");
const test = require("node:test");
const { serverCommand, startFailure } = require("./server");

test("the server is the setting, or hir from PATH", () => {
  assert.deepStrictEqual(serverCommand(undefined), { command: "hir", args: ["lsp"] });
  assert.deepStrictEqual(serverCommand("  "), { command: "hir", args: ["lsp"] });
  assert.deepStrictEqual(serverCommand("/opt/hir/bin/hir"), { command: "/opt/hir/bin/hir", args: ["lsp"] });
});

test("a server that does not start says how to get one", () => {
  const text = startFailure("hir", "spawn hir ENOENT");
  assert.match(text, /cannot start `hir lsp`: spawn hir ENOENT\. .*`hir\.path`/);
});
