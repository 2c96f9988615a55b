// Tests the built page in a headless Chromium, as a visitor uses it: load, find the race of the README, remove it, run, see the timeline, follow a link.
// `node test.mjs [FOLDER [SCREENSHOTS]]`; CHROMIUM names the browser.

import { strict as assert } from "node:assert";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const here = dirname(fileURLToPath(import.meta.url)), root = join(here, "..");
const page_file = resolve(process.argv[2] ?? join(root, "docs/playground"), "index.html"), pictures = process.argv[3];
const executablePath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--allow-file-access-from-files"] });
const page = await browser.newPage();
await page.setViewport({ width: 1400, height: 900 });
const faults = [];
page.on("pageerror", it => faults.push(it.message));
page.on("requestfailed", it => faults.push(it.url()));
const outside = [];
page.on("request", it => { if (/^https?:/.test(it.url())) outside.push(it.url()); });

const until = (test, ...more) => page.waitForFunction(test, { timeout: 60000, polling: 50 }, ...more);
const words = id => page.$eval(id, it => it.textContent);
const verdict = start => until(start => document.querySelector("#verdict").textContent.match(start), start);
const picture = async name => { if (pictures) { mkdirSync(pictures, { recursive: true }); await page.screenshot({ path: join(pictures, name + ".png") }); } };
const view = async id => { await page.click("#tab-" + id); };

try {
  const start = Date.now();
  await page.goto(pathToFileURL(page_file).href);
  // The first sample is the racy program of the README.
  await verdict("1 fault");
  console.log(`first result after ${Date.now() - start} ms`);
  assert.match(await words("#check"), /E0701.*line 13.*line 17/s);
  assert.equal(await page.$$eval(".cm-lintRange-error", it => it.length > 1), true, "both statements are marked");
  await picture("race");

  await page.click("#fix");
  await verdict("2 ranks: no race");
  assert.match(await words("#check"), /No race/);
  await picture("fixed");

  await view("ranks");
  await until(() => document.querySelector("#step"));
  await page.$eval("#step", it => { it.value = 30; it.oninput(); });
  assert.match(await words("#ranks"), /step 30 of \d+: rank \d, line \d+/);
  assert.equal(await page.$$eval(".cm-step", it => it.length > 0), true, "the line of the step is marked");
  assert.match(await words("#ranks"), /T1 of rank 0/);
  await picture("ranks");

  await view("timeline");
  await until(() => document.querySelector("#timeline svg rect"));
  assert.match(await words("#timeline"), /the whole run takes/);
  await picture("timeline");

  await view("forms");
  await until(() => document.querySelector("#forms pre"));
  assert.match(await words("#forms"), /%tensor T0_g_float/);

  // Another sample, lowered and overlapped.
  await page.select("#sample", "column-parallel");
  await verdict("8 ranks: no race");
  await view("passes");
  await page.click("#lower");
  await until(() => document.querySelectorAll("#lowered pre").length === 2);
  assert.match(await words("#lowered"), /before.*linear.*after.*Communication/s);
  assert.equal(await page.$$eval("#lowered pre", all => all.every(it => it.getBoundingClientRect().right <= innerWidth)), true, "both sides are visible");
  await picture("passes");
  await page.click("#take");
  await verdict("8 ranks: no race");

  // What is pasted and wrong is rejected with a place.
  await page.focus(".cm-content");
  await page.keyboard.down("Control");
  await page.keyboard.press("a");
  await page.keyboard.up("Control");
  const wrong = readFileSync(join(root, "tests/cases/check/race-long-allocate.hir"), "utf8").replace("Wait(Communication 7)", "Wiat(Communication 7)");
  await page.$eval(".cm-content", (it, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    it.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, wrong);
  await verdict("rejected");
  assert.equal(await words(".cm-content"), wrong.replaceAll("\n", ""));
  await view("check");
  await picture("rejected");

  // A link holds the program.
  await page.click("#link");
  await until(() => location.hash.startsWith("#p="));
  const text = await words(".cm-content"), link = page.url();
  await page.goto("about:blank");
  await page.goto(link);
  await verdict("rejected");
  assert.equal(await words(".cm-content"), text);

  // Keys: the tabs are one stop, arrows move in them.
  await page.focus("#tab-check");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.$eval("#tab-forms", it => it.getAttribute("aria-selected")), "true");

  // The dumps of a job that hangs.
  await view("hang");
  const dumps = join(root, "docs/examples/job-hangs");
  await (await page.$("#dumps")).uploadFile(...[0, 1, 2, 3].map(rank => join(dumps, `rank_${rank}.json`)));
  await until(() => document.querySelector("#hung b"));
  assert.match(await words("#hung"), /rank/);
  await picture("hang");
  assert.deepEqual(faults, []);
  assert.deepEqual(outside, [], "the page asks no server");
  console.log("the page works");
} catch (fault) {
  await picture("fault");
  console.error("verdict:", await words("#verdict").catch(() => "?"), faults);
  throw fault;
} finally {
  await browser.close();
}
