// Which lines of a program and of the same program after passes belong together.

/** What `hir/lowered` answers: [line after the passes, line of the program], both from 0. */
export type Pair = [number, number];

/** Returns the first line after the passes that comes from a line, or from the next line before it that has one. */
export function lineAfter(pairs: Pair[], line: number): number | undefined {
  const before = pairs.filter((pair) => pair[1] <= line);
  const nearest = Math.max(...before.map((pair) => pair[1]));
  const found = before.filter((pair) => pair[1] === nearest).map((pair) => pair[0]);
  return found.length > 0 ? Math.min(...found) : undefined;
}

/** Returns the line from which a line after the passes comes, or from which the next line before it comes. */
export function lineBefore(pairs: Pair[], line: number): number | undefined {
  const before = pairs.filter((pair) => pair[0] <= line);
  const nearest = Math.max(...before.map((pair) => pair[0]));
  return before.find((pair) => pair[0] === nearest)?.[1];
}
