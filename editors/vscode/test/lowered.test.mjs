// Tests of the lines of a program and of the same program after passes: `npm test`.

import assert from "node:assert";
import test from "node:test";
import { load } from "./load.mjs";

const { lineAfter, lineBefore } = load("lowered");

// Line 3 became a loop on the lines 5 to 7; line 4 is line 9.
const pairs = [[2, 1], [5, 3], [6, 3], [7, 3], [9, 4]];

test("a line leads to the first line that comes from it", () => {
  assert.deepStrictEqual([1, 2, 3, 4, 8].map((line) => lineAfter(pairs, line)), [2, 2, 5, 9, 9]);
  assert.strictEqual(lineAfter(pairs, 0), undefined);
  assert.strictEqual(lineAfter([], 3), undefined);
});

test("a line after the passes leads to its origin", () => {
  assert.deepStrictEqual([2, 4, 6, 8, 9].map((line) => lineBefore(pairs, line)), [1, 1, 3, 3, 4]);
  assert.strictEqual(lineBefore(pairs, 0), undefined);
});
