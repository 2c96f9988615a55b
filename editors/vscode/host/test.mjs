// Tests the packaged extension in VS Code, as a stranger uses it: open the racy program of the README, see both statements marked, remove the race
// with one keystroke, use the code lenses, follow lines between a program and the same program after passes.
// `node test.mjs [PICTURES]` writes pictures to the folder. `hir` is found in PATH, CHROMIUM names the browser.

import { strict as assert } from "node:assert";
import { mkdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { open } from "./editor.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const pictures = process.argv[2];
const files = { "race.hir": "tests/cases/check/race-long-allocate.hir", "layer.hir": "tests/cases/overlap/column-parallel.hir" };
const editor = await open({
  vsix: join(root, "editors/vscode/hir-0.1.0.vsix"), size: { width: 1300, height: 640 },
  files: Object.fromEntries(Object.entries(files).map(([name, file]) => [name, join(root, file)])),
});
const { page, keys } = editor;
const until = (test, ...more) => within(60000, test, ...more);
const within = (timeout, test, ...more) => page.waitForFunction(test, { timeout, polling: 50 }, ...more);
const picture = async name => {
  if (!pictures) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `vscode-${name}.png`) });
};

/** Waits until exactly these lines of the first editor have a mark of an error. */
const marked = (lines, timeout = 60000) => within(timeout, lines => {
  const top = it => Math.round(it.getBoundingClientRect().top);
  const numbers = new Map([...document.querySelectorAll(".line-numbers")].map(it => [top(it), Number(it.textContent)]));
  const found = new Set([...document.querySelectorAll(".squiggly-error")].map(it => numbers.get(top(it.parentElement))));
  return [...found].sort((a, b) => a - b).join() === lines.join();
}, lines);
/** Waits for a text in an editor: the spaces of VS Code are no-break spaces. */
const text = (wanted, at = 0) => until((wanted, at) => {
  const lines = document.querySelectorAll(".editor-instance .view-lines")[at]?.innerText ?? "";
  return lines.replaceAll("\u00a0", " ").includes(wanted);
}, wanted, at);
/** Waits until the cursor of an editor is on a line. */
const cursor = (line, at) => until((line, at) => {
  const editor = document.querySelectorAll(".editor-instance")[at];
  return editor?.querySelector(".line-numbers.active-line-number")?.textContent === String(line);
}, line, at);
/** Clicks a code lens of the active editor until its answer is shown: lenses move while the layout changes. */
const lens = async (title, name) => {
  await line(1);
  const find = title => {
    const found = [...document.querySelectorAll(".codelens-decoration a")].find(it => it.textContent === title);
    const { x, y, width, height } = found?.getBoundingClientRect() ?? {};
    return found?.checkVisibility() && width > 0 && { x: x + width / 2, y: y + height / 2 };
  };
  const isShown = name => [...document.querySelectorAll(".tab")].some(it => it.textContent.includes(name));
  for (let tries = 0; tries < 10; ++tries) {
    const { x, y } = await (await until(find, title)).jsonValue();
    await page.mouse.click(x, y);
    if (await page.waitForFunction(isShown, { timeout: 6000, polling: 50 }, name).then(() => true, () => false)) return;
  }
  assert.fail(`the lens \`${title}\` shows no \`${name}\``);
};
/** Goes to a line of the active editor. */
const line = async number => {
  await keys("Control+g");
  await page.waitForSelector(".quick-input-widget input", { visible: true });
  await page.keyboard.type(String(number));
  await page.keyboard.press("Enter");
  await until(number => {
    const editor = document.activeElement?.closest(".editor-instance");
    return editor?.querySelector(".line-numbers.active-line-number")?.textContent === String(number);
  }, number);
};
const command = async name => {
  await keys("F1");
  await page.waitForSelector(".quick-input-widget input", { visible: true });
  await page.keyboard.type(name);
  await until(name => document.querySelector(".quick-input-list .focused")?.textContent.includes(name), name);
  await page.keyboard.press("Enter");
};

/** Closes what is shown beside the program. */
const closeBeside = async () => {
  await command("View: Close Editors in Other Groups");
  await until(() => document.querySelectorAll(".editor-group-container").length === 1);
};
try {
  // Both statements of the race are marked.
  await marked([13, 17]);
  await line(17);
  await text("Stream i5");
  await picture("race");

  // One keystroke removes it: Auto Fix. VS Code ignores the keystroke until it has asked for the fixes at the cursor.
  for (let tries = 0; tries < 15; ++tries) {
    await keys("Shift+Alt+Period");
    if (await marked([], 4000).then(() => true, () => false)) break;
  }
  await marked([]);
  await text("ALLOCATE(mem_type=global, zero_init=false)");
  await keys("Control+b");
  await lens("overlap", "race.hir: overlap.txt");
  await text("hidden behind computation", 1);
  await closeBeside();
  await lens("timeline", "timeline of 2 simulated ranks");
  await editor.inFrame("#picture rect");
  await picture("timeline");
  await closeBeside();
  await lens("run on 2 simulated ranks", "race.hir: run.txt");
  await text("ran to the end on 2 simulated ranks", 1);
  await picture("fixed");
  await closeBeside();

  // A hover, with what the check knows.
  await line(17);
  await page.keyboard.press("Home");
  await command("Show or Focus Hover");
  await until(() => /estimated time/.test(document.querySelector(".monaco-hover:not(.hidden)")?.textContent ?? ""));
  await page.keyboard.press("Escape");

  // A program after passes, with jumps in both directions.
  await editor.file("layer.hir");
  await text("linear(");
  await line(9);
  await command("hir: Show the Program After Passes");
  await until(() => document.querySelector(".quick-input-widget input")?.value === "@overlap");
  // The program has a few rows: without braces, `@overlap` leaves it whole.
  await page.keyboard.press("End");
  await page.keyboard.type("{}");
  await page.keyboard.press("Enter");
  await text("FOR streamIdx in", 1);
  await line(7);
  await page.keyboard.press("ArrowDown");
  await cursor(2, 1);
  await line(1);
  await cursor(1, 0);
  await keys("Control+2");
  await until(() => document.activeElement?.closest(".editor-instance") === document.querySelectorAll(".editor-instance")[1]);
  await page.keyboard.press("ArrowDown");
  await cursor(8, 0);
  await picture("after-passes");
  console.log("the extension works in VS Code");
} catch (fault) {
  await page.screenshot({ path: join(tmpdir(), "hir-vscode-fault.png") });
  throw fault;
} finally {
  await editor.close();
}
