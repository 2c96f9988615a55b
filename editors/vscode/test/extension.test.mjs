// Tests of the extension in an editor that only records what it is asked: `npm test`.

import assert from "node:assert";
import { readFileSync } from "node:fs";
import test from "node:test";
import { load } from "./load.mjs";

/** Loads the extension. `start` is what the client does when it starts. */
function extension(start) {
  const seen = { commands: {}, errors: [], clients: [], stopped: 0, settings: undefined, pages: [], texts: [] };
  const nothing = { dispose() {} };
  class LanguageClient {
    constructor(...words) { seen.clients.push(words); }
    async start() { await start(); }
    async stop() { seen.stopped += 1; }
    async sendRequest(method, it) { return `${method} ${it.code}`; }
  }
  const uri = text => ({ path: text, toString: () => text });
  const vscode = {
    EventEmitter: class { fire() {} },
    Uri: { parse: uri, from: it => uri(`${it.scheme}:${it.path}`) },
    ViewColumn: { Beside: -2 },
    commands: { registerCommand: (name, run) => { seen.commands[name] = run; return nothing; } },
    window: {
      showErrorMessage: text => seen.errors.push(text), showInformationMessage: text => seen.errors.push(text),
      showTextDocument: async it => { seen.texts.push(it.toString()); },
      createWebviewPanel: (kind, title) => { const page = { title, webview: {} }; seen.pages.push(page); return page; },
      onDidChangeTextEditorSelection: () => nothing, visibleTextEditors: [],
    },
    workspace: {
      getConfiguration: () => ({ get: () => "/opt/hir" }), registerTextDocumentContentProvider: (scheme, it) => { seen.provider = it; return nothing; },
      onDidCloseTextDocument: () => nothing, onDidChangeConfiguration: run => { seen.settings = run; return nothing; },
    },
  };
  return { seen, ...load("extension", { vscode, "vscode-languageclient/node": { LanguageClient } }) };
}

test("the extension starts the server of the setting, and again when the setting changes", async () => {
  const { activate, deactivate, seen } = extension(async () => {});
  await activate({ subscriptions: [] });
  assert.deepStrictEqual(seen.clients[0][2], { command: "/opt/hir", args: ["lsp"] });
  assert.deepStrictEqual(seen.clients[0][3].documentSelector, [{ language: "hir" }]);
  await seen.settings({ affectsConfiguration: name => name === "hir.path" });
  assert.deepStrictEqual([seen.clients.length, seen.stopped], [2, 1]);
  await deactivate();
  await deactivate();
  assert.strictEqual(seen.stopped, 2);
});

test("a server that does not start is reported, and the commands go on", async () => {
  const { activate, seen } = extension(async () => { throw new Error("spawn /opt/hir ENOENT"); });
  await activate({ subscriptions: [] });
  assert.match(seen.errors[0], /cannot start `\/opt\/hir lsp`: spawn \/opt\/hir ENOENT/);
  await seen.commands["hir.showAfterPasses"]();
  assert.match(seen.errors[1], /open a program first/);
  await seen.commands["hir.restart"]();
  assert.strictEqual(seen.clients.length, 2);
});

test("outcomes of code lenses are shown: pages as pages, texts beside the program, failures as messages", async () => {
  const { activate, seen } = extension(async () => {});
  await activate({ subscriptions: [] });
  const { executeCommand } = seen.clients[0][3].middleware;
  const place = [{ textDocument: { uri: "file:///a/b.hir" } }];
  await executeCommand("hir.timeline", place, async () => ({ title: "timeline", text: "", html: "<html>" }));
  assert.deepStrictEqual(seen.pages, [{ title: "timeline", webview: { html: "<html>" } }]);
  await executeCommand("hir.run", place, async () => ({ title: "ran", text: "T1" }));
  assert.deepStrictEqual(seen.texts, ["hir-answer:/b.hir: run.txt"]);
  await executeCommand("hir.run", place, async () => { throw new Error("the program deadlocks"); });
  assert.deepStrictEqual(seen.errors, ["hir: the program deadlocks"]);
});

test("the link of a code leads to its explanation, and a result that is closed to nothing", async () => {
  const { activate, seen } = extension(async () => {});
  await activate({ subscriptions: [] });
  const text = await seen.provider.provideTextDocumentContent({ path: "/E0701.txt", query: "", toString: () => "hir-answer:/E0701.txt" });
  assert.strictEqual(text, "hir/explain E0701");
  assert.strictEqual(seen.provider.provideTextDocumentContent({ path: "/b.hir: run.txt", query: "file:///b.hir" }), "");
});

test("every command of the package is registered", async () => {
  const { activate, seen } = extension(async () => {});
  await activate({ subscriptions: [] });
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url)));
  assert.deepStrictEqual(Object.keys(seen.commands).sort(), manifest.contributes.commands.map(it => it.command).sort());
});
