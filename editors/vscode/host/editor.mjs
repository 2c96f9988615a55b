// VS Code for a test: its server, with the packaged extension and its real extension host, and its window in a headless Chromium.
//
// The server is that of the npm package code-server, without the program around it. `lib/vscode` is the release of VS Code.

import { execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const here = dirname(fileURLToPath(import.meta.url));
const code = join(here, "node_modules/code-server/lib/vscode"), main = join(code, "out/server-main.js");

const SETTINGS = {
  "workbench.startupEditor": "none", "workbench.colorTheme": "Default Light Modern", "workbench.tips.enabled": false,
  "window.commandCenter": false, "chat.disableAIFeatures": true, "editor.minimap.enabled": false, "git.enabled": false,
  "telemetry.telemetryLevel": "off", "extensions.ignoreRecommendations": true, "workbench.secondarySideBar.defaultVisibility": "hidden",
};

/** Opens the first of `files`, a name and what it is a copy of, in VS Code with the extension `vsix`. Programs are found in the PATH of this process. */
export async function open({ vsix, files, size }) {
  if (!existsSync(join(code, "node_modules")))
    execFileSync("npm", ["run", "--silent", "parts"], { cwd: here, stdio: "inherit" });
  const folder = mkdtempSync(join(tmpdir(), "hir-vscode-")), work = join(folder, "work");
  const folders = ["--extensions-dir", join(folder, "extensions"), "--user-data-dir", join(folder, "user"), "--server-data-dir", join(folder, "server")];
  for (const it of [work, join(folder, "user/User")]) mkdirSync(it, { recursive: true });
  for (const [name, source] of Object.entries(files)) cpSync(source, join(work, name));
  writeFileSync(join(folder, "user/User/settings.json"), JSON.stringify(SETTINGS));
  const start = ["--accept-server-license-terms", ...folders];
  execFileSync(process.execPath, [main, ...start, "--install-extension", vsix], { stdio: "ignore" });
  const server = spawn(process.execPath, [main, ...start, "--without-connection-token", "--disable-workspace-trust", "--force-disable-user-env", "--host=127.0.0.1", "--port=0"]);
  const port = await new Promise((done, failed) => {
    server.stdout.on("data", text => { const found = /listening on (\d+)/.exec(text); if (found) done(found[1]); });
    server.stderr.resume();
    server.on("exit", status => failed(new Error(`VS Code has ended with ${status}`)));
  });
  const executablePath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
  const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
  const page = await browser.newPage();
  await page.setViewport(size);
  await page.goto(`http://127.0.0.1:${port}/?folder=${work}`);
  const close = async () => {
    await browser.close();
    server.kill();
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  /** Presses keys at once, such as `Shift+Alt+Period`. */
  const keys = async chord => {
    const all = chord.split("+"), last = all.pop();
    for (const it of all) await page.keyboard.down(it);
    await page.keyboard.press(last);
    for (const it of all.reverse()) await page.keyboard.up(it);
  };
  /** Opens a file of the folder. */
  const file = async name => {
    await keys("Control+p");
    await page.waitForSelector(".quick-input-widget input", { visible: true, timeout: 60000 });
    await page.keyboard.type(name);
    await page.waitForFunction(name => document.querySelector(".quick-input-list .focused")?.textContent.includes(name), { timeout: 60000 }, name);
    await page.keyboard.press("Enter");
  };
  /** Waits for an element in a page that VS Code shows. */
  const inFrame = async selector => {
    for (let tries = 0; tries < 300; ++tries) {
      for (const frame of page.frames()) if (await frame.$(selector).catch(() => null) && frame !== page.mainFrame()) return frame;
      await new Promise(done => setTimeout(done, 100));
    }
    throw new Error(`no page has ${selector}`);
  };
  await page.waitForFunction(name => document.querySelector(".explorer-viewlet")?.textContent.includes(name), { timeout: 60000 }, Object.keys(files)[0]);
  await file(Object.keys(files)[0]);
  return { page, keys, file, inFrame, close };
}
