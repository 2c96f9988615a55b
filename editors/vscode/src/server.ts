// How the extension starts the server.

/** Returns the command that starts the server. `path` is the setting `hir.path`. */
export function serverCommand(path?: string): { command: string; args: string[] } {
  const command = (path ?? "").trim() || "hir";
  return { command, args: ["lsp"] };
}

/** Returns what the user reads when the server does not start. */
export function startFailure(command: string, reason: string): string {
  return `hir: cannot start \`${command} lsp\`: ${reason}. Install hir (\`cargo install --path .\` or \`pip install .\`), or set \`hir.path\`.`;
}
