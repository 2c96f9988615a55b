// Which lines of a program and of the same program after passes belong together. `pairs` is what `hir/lowered` answers:
// [line after the passes, line of the program], both from 0.
"use strict";

/** Returns the first line after the passes that comes from a line, or from the next line before it that has one. */
function lineAfter(pairs, line) {
  const before = pairs.filter((pair) => pair[1] <= line);
  const nearest = Math.max(...before.map((pair) => pair[1]));
  const found = before.filter((pair) => pair[1] === nearest).map((pair) => pair[0]);
  return found.length > 0 ? Math.min(...found) : undefined;
}

/** Returns the line from which a line after the passes comes, or from which the next line before it comes. */
function lineBefore(pairs, line) {
  const before = pairs.filter((pair) => pair[0] <= line);
  const nearest = Math.max(...before.map((pair) => pair[0]));
  const found = before.find((pair) => pair[0] === nearest);
  return found && found[1];
}

module.exports = { lineAfter, lineBefore };
