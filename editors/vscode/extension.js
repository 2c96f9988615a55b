// The extension: starts `hir lsp`, which does everything else, and shows a program after passes beside its text.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");
const { lineAfter, lineBefore } = require("./lowered");
const { serverCommand, startFailure } = require("./server");

const SCHEME = "hir-after-passes";

let client;
/** What is shown beside a program, by its name: { source, text, pairs }. */
const shown = new Map();
const changed = new vscode.EventEmitter();
let passes = "@overlap";

async function start() {
  const server = serverCommand(vscode.workspace.getConfiguration("hir").get("path"));
  client = new LanguageClient("hir", "hir", server, { documentSelector: [{ language: "hir" }] });
  try {
    await client.start();
  } catch (reason) {
    client = undefined;
    vscode.window.showErrorMessage(startFailure(server.command, reason.message || reason));
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running) {
    await running.stop();
  }
}

async function restart() {
  await stop();
  await start();
}

/** Asks for passes, runs them on the program at the cursor, and shows the result beside it. */
async function showAfterPasses() {
  const editor = vscode.window.activeTextEditor;
  if (!client || !editor || editor.document.languageId !== "hir" || editor.document.uri.scheme === SCHEME) {
    vscode.window.showInformationMessage("hir: open a program first");
    return;
  }
  const chosen = await vscode.window.showInputBox({ prompt: "Passes, as after --passes", value: passes });
  if (!chosen) {
    return;
  }
  passes = chosen;
  const source = editor.document.uri;
  const place = { textDocument: { uri: source.toString() }, position: editor.selection.active, passes };
  try {
    const found = await client.sendRequest("hir/lowered", place);
    const name = source.path.split("/").pop();
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${name} after ${passes}.hir`, query: source.toString() });
    shown.set(uri.toString(), { source: source.toString(), text: found.text, pairs: found.lines });
    changed.fire(uri);
    const options = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: true };
    await vscode.window.showTextDocument(uri, options);
  } catch (reason) {
    vscode.window.showErrorMessage(`hir: ${reason.message || reason}`);
  }
}

/** Shows in the other editors the line that belongs to the selected one. */
function follow({ textEditor, selections, kind }) {
  // Only what the user selects, not what this function does.
  if (kind === undefined || textEditor !== vscode.window.activeTextEditor) {
    return;
  }
  const own = textEditor.document.uri.toString();
  const line = selections[0].active.line;
  for (const other of vscode.window.visibleTextEditors) {
    const name = other.document.uri.toString();
    let target;
    if (shown.has(own) && shown.get(own).source === name) {
      target = lineBefore(shown.get(own).pairs, line);
    } else if (shown.has(name) && shown.get(name).source === own) {
      target = lineAfter(shown.get(name).pairs, line);
    }
    if (target !== undefined && target < other.document.lineCount) {
      const range = other.document.lineAt(target).range;
      other.selection = new vscode.Selection(range.start, range.start);
      other.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}

async function activate(context) {
  const provider = {
    onDidChange: changed.event,
    provideTextDocumentContent: (uri) => shown.get(uri.toString())?.text ?? "",
  };
  context.subscriptions.push(
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, provider),
    vscode.commands.registerCommand("hir.restart", restart),
    vscode.commands.registerCommand("hir.showAfterPasses", showAfterPasses),
    vscode.window.onDidChangeTextEditorSelection(follow),
    vscode.workspace.onDidCloseTextDocument((document) => shown.delete(document.uri.toString())),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("hir.path")) {
        return restart();
      }
    }),
  );
  await start();
}

module.exports = { activate, deactivate: stop };
