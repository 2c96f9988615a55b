// Tests the built page in a headless Chromium, as a visitor uses it: load, find the race of the README, remove it, run, see the timeline, follow a
// link, drop the dumps of a job that hangs; with the mouse, with keys, from a file and from a server.
// `node test.mjs [FOLDER [PICTURES]]` writes pictures to the second folder; CHROMIUM names the browser.

import { strict as assert } from "node:assert";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";
import { faint } from "./contrast.mjs";

const here = dirname(fileURLToPath(import.meta.url)), root = join(here, "..");
const page_file = resolve(process.argv[2] ?? join(root, "docs/playground"), "index.html"), pictures = process.argv[3];
const executablePath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--allow-file-access-from-files"] });
const page = await browser.newPage();
await page.setViewport({ width: 1300, height: 640 });
const faults = [];
page.on("pageerror", it => faults.push(it.message));
page.on("requestfailed", it => faults.push(it.url()));
const outside = [];
page.on("request", it => { if (/^https?:/.test(it.url()) && !it.url().startsWith(site)) outside.push(it.url()); });
let site = "file:";
/** The longest time from a visit to the first verdict, in milliseconds; the best of three visits counts. */
const FIRST_RESULT = 1000;
const RACE = readFileSync(join(root, "tests/cases/check/race-long-allocate.hir"), "utf8");

const until = (test, ...more) => page.waitForFunction(test, { timeout: 60000, polling: 50 }, ...more);
const words = id => page.$eval(id, it => it.textContent);
const verdict = start => until(start => document.querySelector("#verdict").textContent.match(start), start);
/** Looks at what is shown: everything can be read, and a picture is written, if there is a folder for them. */
const look = async name => {
  assert.deepEqual(await page.evaluate(faint), [], `${name}: texts with too little contrast`);
  await picture(name);
};
const picture = async name => {
  if (!pictures) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `playground-${name}.png`) });
};
const paste = async text => {
  await page.focus(".cm-content");
  await page.keyboard.down("Control");
  await page.keyboard.press("a");
  await page.keyboard.up("Control");
  await page.$eval(".cm-content", (it, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    it.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, text);
};
/** Presses Tab until the element has the focus. */
const tabTo = async id => {
  for (let presses = 0; presses < 12; ++presses) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(id => document.activeElement.matches(id), id)) return;
  }
  assert.fail(`Tab does not reach ${id}`);
};
/** Opens the timeline as a page, looks at it, and searches, folds and zooms in it. A search for `words` has to find bars. */
const timelinePage = async (ranks, words) => {
  await until(() => document.querySelector("#timeline a"));
  const html = await page.$eval("#timeline a", it => fetch(it.href).then(it => it.text()));
  const own = await browser.newPage();
  await own.setViewport({ width: 1300, height: 640 });
  own.on("pageerror", it => faults.push(it.message));
  await own.setContent(html);
  const texts = () => own.$$eval("#picture text", all => all.map(it => it.textContent));
  const outside = () => own.$$eval("svg text", all => all.filter(it => {
    const { left, right } = it.getBoundingClientRect(), picture = it.ownerSVGElement.getBoundingClientRect();
    return left < picture.left || right > picture.right;
  }).map(it => it.textContent));
  const heads = await own.$$eval("text.rank", all => all.length), before = await texts();
  assert.equal(heads, ranks);
  assert.deepEqual(await outside(), [], "texts that are cut off");
  for (const value of ["dark", "light"]) {
    await own.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);
    assert.deepEqual(await own.evaluate(faint), [], `${value}: texts with too little contrast`);
  }
  assert.match(await own.$eval(".key", it => it.textContent), /compute.*communication.*wait/);
  assert.ok(before.some(it => /^(stream \d|NCCL)/.test(it)) && (await own.$$("#picture .c:not(:empty)")).length, "streams say what they carry");
  if (pictures) await own.screenshot({ path: join(pictures, `playground-timeline-page-${ranks}.png`) });
  // A click on a communication keeps what hiding it gains, while the pointer is over other bars; a click on the picture ends it.
  const about = () => own.$eval("#about", it => it.textContent), bar = async (kind, at) => {
    const all = await own.$$eval("#picture rect." + kind, all => all.map(it => it.getBoundingClientRect()).map(it => [it.x + it.width / 2, it.y + it.height / 2]));
    return all.at(at);
  };
  await own.mouse.click(...await bar("communication", 0));
  const gain = await about();
  assert.match(gain, /the run of .* takes .* if the .* is free, .* if it is hidden/);
  await own.mouse.move(...await bar("compute", 0));
  assert.equal(await about(), gain);
  await own.mouse.click(...await bar("communication", 0));
  await own.mouse.move(...await bar("compute", 0));
  assert.notEqual(await about(), gain);
  await own.type("#search", words);
  assert.match(await own.$eval("#found", it => it.textContent), /^[1-9]\d* found$/);
  const bars = () => own.$$eval("#picture rect", all => all.length);
  const all = await bars();
  await own.click("#in");
  await own.click("#in");
  assert.ok(await bars() < all, "what is outside of the part that is shown is not drawn");
  await own.click("#all");
  await own.click("#fold");
  assert.equal(await own.$$eval("#picture .c:not(:empty)", all => all.length), 0, "folded ranks show no streams");
  await own.click("text.rank");
  assert.ok((await own.$$("#picture .c:not(:empty)")).length > 0, "a click unfolds a rank");
  await own.close();
  await page.bringToFront();
};
const view = async id => { await page.click("#tab-" + id); };

try {
  // The first sample is the racy program of the README.
  let best = Infinity;
  for (let visit = 0; visit < 3 && best > FIRST_RESULT; ++visit) {
    const start = Date.now();
    await page.goto(pathToFileURL(page_file).href);
    await verdict("1 fault");
    best = Math.min(best, Date.now() - start);
  }
  console.log(`first result after ${best} ms`);
  assert.ok(best <= FIRST_RESULT, `the first result takes ${best} ms, more than ${FIRST_RESULT} ms`);
  assert.match(await words("#check"), /E0701.*line 13.*line 17/s);
  assert.equal(await page.$$eval(".cm-lintRange-error", it => it.length > 1), true, "both statements are marked");
  await look("race");

  await page.click("#fix");
  await verdict("2 ranks: no race");
  assert.match(await words("#check"), /No race/);
  // The same by keys alone: paste, go to the button, press it.
  await paste(RACE);
  await verdict("1 fault");
  await page.focus("#sample");
  await tabTo("#fix");
  await page.keyboard.press("Enter");
  await verdict("2 ranks: no race");
  assert.match(await words(".cm-content"), /ALLOCATE\(mem_type=global, zero_init=false\)\s*T3/);
  await look("fixed");

  await view("ranks");
  await until(() => document.querySelector("#step"));
  await page.$eval("#step", it => { it.value = 30; it.oninput(); });
  assert.match(await words("#ranks"), /step 30 of \d+: rank \d, line \d+/);
  assert.equal(await page.$$eval(".cm-step", it => it.length > 0), true, "the line of the step is marked");
  assert.match(await words("#ranks"), /T1 of rank 0/);
  await look("ranks");

  await view("timeline");
  await until(() => document.querySelector("#timeline svg rect"));
  assert.match(await words("#timeline"), /the whole run takes/);
  await look("timeline");
  await timelinePage(2, "Allreduce, line 17");

  await view("forms");
  await until(() => document.querySelector("#forms pre"));
  assert.match(await words("#forms"), /%tensor T0_g_float/);

  // Another sample, lowered and overlapped.
  await page.select("#sample", "column-parallel");
  await verdict("4 ranks: no race");
  await view("passes");
  await page.click("#lower");
  await until(() => document.querySelectorAll("#lowered pre").length === 2);
  assert.match(await words("#lowered"), /before.*linear.*after.*Communication/s);
  assert.equal(await page.$$eval("#lowered pre", all => all.every(it => it.getBoundingClientRect().right <= innerWidth)), true, "both sides are visible");
  await look("passes");
  await page.click("#take");
  await verdict("4 ranks: no race");
  await view("timeline");
  await timelinePage(4, "line");

  // What passes make of a small layer is certified, another text is not; passes have options.
  await paste(readFileSync(join(root, "docs/examples/mlp-tensor-parallel.hir"), "utf8"));
  await verdict("2 ranks: no race");
  await view("passes");
  await page.click("#lower");
  await until(() => document.querySelector("#other").value.includes("Communication"));
  await page.click("#certify");
  await until(() => document.querySelector("#certified").textContent.match("certified: both compute the same"));
  await page.$eval("#other", it => { it.value = it.value.replace("Communication", "Comunication"); it.oninput(); });
  assert.equal(await words("#certified"), "", "the certificate is of another text");
  await page.click("#certify");
  await until(() => document.querySelector("#certified").textContent.match("the second text: the text has errors"));
  await page.$eval("#list", it => { it.value = "schedule-communication"; it.oninput(); });
  assert.match(await words("#options"), /posts=.*waits=/s);
  await page.$eval("#list", it => { it.value = "@overlap"; });

  // A small one on 64 ranks.
  const mesh = Array.from({ length: 64 }, (_, rank) => rank).join(" ");
  const layer = readFileSync(join(root, "tests/cases/overlap/column-parallel.hir"), "utf8");
  await paste(layer.replaceAll("{0 1 2 3 4 5 6 7}", `{${mesh}}`).replaceAll("x0{8}", "x0{64}").replaceAll("istreamIdx6{8}", "istreamIdx6{64}"));
  await verdict("64 ranks: no race");
  await view("passes");
  await page.click("#lower");
  await until(() => document.querySelectorAll("#lowered pre").length === 2);
  await page.click("#take");
  await verdict("64 ranks: no race");
  await view("timeline");
  await timelinePage(64, "line");

  // What is pasted and wrong is rejected with a place.
  const wrong = RACE.replace("Wait(Communication 7)", "Wiat(Communication 7)");
  await paste(wrong);
  await verdict("rejected");
  assert.equal(await words(".cm-content"), wrong.replaceAll("\n", ""));
  await view("check");
  await look("rejected");

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

  // The dumps of a job that hangs: dropped, then chosen. Without the program, the calls are shown.
  await view("hang");
  const folder = join(root, "docs/examples/job-hangs"), dumps = [0, 1, 2, 3].map(rank => join(folder, `rank_${rank}.json`));
  const explained = async () => {
    await until(() => document.querySelector("#hung b"));
    const found = await words("#hung");
    assert.match(found, /rank 2 skips the all_reduce \(train\.py:13\)/);
    await page.$eval("#hung", it => it.replaceChildren());
    return found;
  };
  await page.$eval("#hang", (it, texts) => {
    const dataTransfer = new DataTransfer();
    texts.forEach((text, rank) => dataTransfer.items.add(new File([text], `rank_${rank}.json`)));
    it.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  }, dumps.map(it => readFileSync(it, "utf8")));
  const without = await explained();
  assert.match(without, /train\.py:14 all_reduce\(float32 \[1024\]\): rank 2 calls/);
  await (await page.$("#dumps")).uploadFile(...dumps);
  assert.equal(await explained(), without);
  // Its folder with the program: chosen, then dropped.
  await (await page.$("#folder")).uploadFile(folder);
  const whole = await explained();
  assert.match(whole, /train\.py:14 dist\.all_reduce\(weights\): rank 2 calls/);
  const browserItself = await page.createCDPSession(), { x, y } = await (await page.$("#hang")).clickablePoint();
  for (const type of ["dragEnter", "dragOver", "drop"])
    await browserItself.send("Input.dispatchDragEvent", { type, x, y, data: { items: [], files: [folder], dragOperationsMask: 1 } });
  await until(() => document.querySelector("#hung b"));
  await look("hang");
  assert.equal(await explained(), whole);

  // From a server, as in the built book: below a folder, and with nothing but its own files.
  const server = createServer((asked, answer) => {
    const name = /^\/book\/playground\/(index\.html|playground\.js)$/.exec(new URL(asked.url, "http://x").pathname)?.[1];
    answer.writeHead(name ? 200 : 204, { "Content-Type": name?.endsWith("js") ? "text/javascript" : "text/html" });
    answer.end(name && readFileSync(join(dirname(page_file), name)));
  }).listen(0, "127.0.0.1");
  await new Promise(done => server.once("listening", done));
  site = `http://127.0.0.1:${server.address().port}/`;
  await page.goto(`${site}book/playground/index.html`);
  await verdict("1 fault");
  server.close();
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
