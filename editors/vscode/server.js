// How the extension starts the server.
"use strict";

/** Returns the command that starts the server. `path` is the setting `hir.path`. */
function serverCommand(path) {
  const command = (path || "").trim() || "hir";
  return { command, args: ["lsp"] };
}

/** Returns what the user reads when the server does not start. */
function startFailure(command, reason) {
  return `hir: cannot start \`${command} lsp\`: ${reason}. Install hir (\`cargo install --path .\` or \`pip install .\`), or set \`hir.path\`.`;
}

module.exports = { serverCommand, startFailure };
