// The extension: starts `hir lsp`, which does everything else, and shows beside a program what the server answers: the program after passes,
// and the results of code lenses.

import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { lineAfter, lineBefore, type Pair } from "./lowered";
import { serverCommand, startFailure } from "./server";

/** The scheme of the texts that the extension shows. */
const SCHEME = "hir-answer";

/** A text that is shown beside a program. A program after passes has the lines that belong together. */
interface Shown { source: string; text: string; pairs: Pair[] }

/** What the command of a code lens answers. */
interface Outcome { title: string; text: string; html?: string }

let client: LanguageClient | undefined;
/** What is shown, by its name. */
const shown = new Map<string, Shown>();
const changed = new vscode.EventEmitter<vscode.Uri>();
let passes = "@overlap";

const message = (reason: unknown) => reason instanceof Error ? reason.message : String(reason);

async function start(): Promise<void> {
  const server = serverCommand(vscode.workspace.getConfiguration("hir").get("path"));
  client = new LanguageClient("hir", "hir", server, {
    documentSelector: [{ language: "hir" }],
    initializationOptions: { showsResults: true },
    middleware: { executeCommand: showOutcome },
  });
  try {
    await client.start();
  } catch (reason) {
    client = undefined;
    vscode.window.showErrorMessage(startFailure(server.command, message(reason)));
  }
}

async function stop(): Promise<void> {
  const running = client;
  client = undefined;
  await running?.stop();
}

async function restart(): Promise<void> {
  await stop();
  await start();
}

/** Shows a text beside the program with the name `source`. */
async function showBeside(source: vscode.Uri, name: string, text: string, pairs: Pair[]): Promise<void> {
  const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${name}`, query: source.toString() });
  shown.set(uri.toString(), { source: source.toString(), text, pairs });
  changed.fire(uri);
  await vscode.window.showTextDocument(uri, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: true });
}

/** Returns what the code means that the link of a diagnostic names. */
async function explanation(uri: vscode.Uri): Promise<string> {
  return await client?.sendRequest<string>("hir/explain", { code: nameOf(uri).replace(".txt", "") }) ?? "";
}

const nameOf = (uri: vscode.Uri) => uri.path.split("/").pop() ?? "";

/** Executes the command of a code lens, and shows its outcome: a page, or a text beside the program. */
async function showOutcome(command: string, args: unknown[], next: (command: string, args: unknown[]) => unknown): Promise<unknown> {
  try {
    const outcome = await next(command, args) as Outcome | undefined;
    const place = args[0] as { textDocument: { uri: string } } | undefined;
    if (outcome?.html) {
      const options = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
      const panel = vscode.window.createWebviewPanel("hir.timeline", outcome.title, options, { enableScripts: true });
      panel.webview.html = outcome.html;
    } else if (outcome && place) {
      const source = vscode.Uri.parse(place.textDocument.uri);
      await showBeside(source, `${nameOf(source)}: ${command.replace("hir.", "")}.txt`, outcome.text, []);
    }
    return outcome;
  } catch (reason) {
    vscode.window.showErrorMessage(`hir: ${message(reason)}`);
    return undefined;
  }
}

/** Asks for passes, runs them on the program at the cursor, and shows the result beside it. */
async function showAfterPasses(): Promise<void> {
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
    const found = await client.sendRequest<{ text: string; lines: Pair[] }>("hir/lowered", place);
    await showBeside(source, `${nameOf(source)} after ${passes}.hir`, found.text, found.lines);
  } catch (reason) {
    vscode.window.showErrorMessage(`hir: ${message(reason)}`);
  }
}

/** Shows in the other editors the line that belongs to the selected one. */
function follow({ textEditor, selections, kind }: vscode.TextEditorSelectionChangeEvent): void {
  // Only what the user selects, not what this function does.
  if (kind === undefined || textEditor !== vscode.window.activeTextEditor) {
    return;
  }
  const own = textEditor.document.uri.toString();
  const line = selections[0].active.line;
  for (const other of vscode.window.visibleTextEditors) {
    const name = other.document.uri.toString();
    const [after, before] = [shown.get(own), shown.get(name)];
    let target: number | undefined;
    if (after?.source === name) {
      target = lineBefore(after.pairs, line);
    } else if (before?.source === own) {
      target = lineAfter(before.pairs, line);
    }
    if (target !== undefined && target < other.document.lineCount) {
      const range = other.document.lineAt(target).range;
      other.selection = new vscode.Selection(range.start, range.start);
      other.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }
}

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const provider = {
    onDidChange: changed.event,
    provideTextDocumentContent: (uri: vscode.Uri) => uri.query ? shown.get(uri.toString())?.text ?? "" : explanation(uri),
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

export const deactivate = stop;
