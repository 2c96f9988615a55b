// Tests of the extension in an editor that only records what it is asked: `npm test`.
"use strict";

const assert = require("node:assert");
const Module = require("node:module");
const test = require("node:test");

/** Loads the extension with `vscode` and the client of the protocol replaced. `start` is what the client does when it starts. */
function load(start) {
  const seen = { commands: {}, errors: [], clients: [], stopped: 0, settings: undefined };
  const nothing = { dispose() {} };
  class LanguageClient {
    constructor(...words) { seen.clients.push(words); }
    async start() { await start(); }
    async stop() { seen.stopped += 1; }
  }
  const vscode = {
    EventEmitter: class { fire() {} },
    commands: { registerCommand: (name, run) => { seen.commands[name] = run; return nothing; } },
    window: {
      showErrorMessage: (text) => seen.errors.push(text), showInformationMessage: (text) => seen.errors.push(text),
      onDidChangeTextEditorSelection: () => nothing, visibleTextEditors: [],
    },
    workspace: {
      getConfiguration: () => ({ get: () => "/opt/hir" }), registerTextDocumentContentProvider: () => nothing,
      onDidCloseTextDocument: () => nothing, onDidChangeConfiguration: (run) => { seen.settings = run; return nothing; },
    },
  };
  const replaced = { vscode, "vscode-languageclient/node": { LanguageClient } };
  const original = Module._load;
  Module._load = (name, ...rest) => replaced[name] ?? original(name, ...rest);
  delete require.cache[require.resolve("./extension")];
  const extension = require("./extension");
  Module._load = original;
  return { extension, seen };
}

test("the extension starts the server of the setting, and again when the setting changes", async () => {
  const { extension, seen } = load(async () => {});
  await extension.activate({ subscriptions: [] });
  assert.deepStrictEqual(seen.clients[0][2], { command: "/opt/hir", args: ["lsp"] });
  assert.deepStrictEqual(seen.clients[0][3], { documentSelector: [{ language: "hir" }] });
  await seen.settings({ affectsConfiguration: (name) => name === "hir.path" });
  assert.deepStrictEqual([seen.clients.length, seen.stopped], [2, 1]);
  await extension.deactivate();
  await extension.deactivate();
  assert.strictEqual(seen.stopped, 2);
});

test("a server that does not start is reported, and the commands go on", async () => {
  const { extension, seen } = load(async () => { throw new Error("spawn /opt/hir ENOENT"); });
  const subscriptions = [];
  await extension.activate({ subscriptions });
  assert.match(seen.errors[0], /cannot start `\/opt\/hir lsp`: spawn \/opt\/hir ENOENT/);
  await seen.commands["hir.showAfterPasses"]();
  assert.match(seen.errors[1], /open a program first/);
  await seen.commands["hir.restart"]();
  assert.strictEqual(seen.clients.length, 2);
});

test("every command of the package is registered", async () => {
  const { extension, seen } = load(async () => {});
  await extension.activate({ subscriptions: [] });
  const named = require("./package.json").contributes.commands.map((it) => it.command);
  assert.deepStrictEqual(Object.keys(seen.commands).sort(), named.sort());
});
