// The page: an editor, and what hir says about its text.

import { EditorView, basicSetup } from "codemirror";
import { Decoration } from "@codemirror/view";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { Engine } from "./engine.js";
import { fragmentOf, textOf } from "./link.js";
import { language } from "./language.js";
import samples from "samples";
import packed from "hir.wasm.gz";

const engine = new Engine(packed);
const at = id => document.getElementById(id);

/** Makes an element with children, which are elements and texts. */
function make(name, attributes = {}, ...children) {
  const it = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    key.startsWith("on") ? it.addEventListener(key.slice(2), value) : it.setAttribute(key, value);
  it.append(...children);
  return it;
}

// The lines of the current step.
const setStep = StateEffect.define();
const stepField = StateField.define({
  create: () => Decoration.none,
  update(marks, change) {
    for (const effect of change.effects) if (effect.is(setStep)) marks = effect.value;
    return change.docChanged ? Decoration.none : marks;
  },
  provide: field => EditorView.decorations.from(field),
});

const view = new EditorView({
  parent: at("editor"),
  state: EditorState.create({
    extensions: [
      basicSetup, language, lintGutter(), stepField,
      EditorView.contentAttributes.of({ "aria-label": "Program" }),
      EditorView.updateListener.of(update => { if (update.docChanged) changed(); }),
    ],
  }),
});
const text = () => view.state.doc.toString();
const replaceAll = insert => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert } });

function goTo(line) {
  const found = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines));
  view.dispatch({ selection: { anchor: found.from }, effects: EditorView.scrollIntoView(found.from, { y: "center" }) });
  view.focus();
}

// What each view shows is made when it is seen.
const views = { check: "Check", forms: "Forms", passes: "Passes", ranks: "Ranks", timeline: "Timeline", hang: "Hang" };
let chosen = "check", version = 0, timer = null;

for (const [id, name] of Object.entries(views)) {
  const tab = make("button", { role: "tab", id: "tab-" + id, "aria-controls": id, onclick: () => choose(id) }, name);
  at(id).setAttribute("aria-labelledby", tab.id);
  document.querySelector("[role=tablist]").append(tab);
}
document.querySelector("[role=tablist]").addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const all = Object.keys(views);
  choose(all[(all.indexOf(chosen) + step + all.length) % all.length]);
  at("tab-" + chosen).focus();
});
function choose(id) {
  chosen = id;
  // The lines of a step belong to its view.
  if (id !== "ranks") view.dispatch({ effects: setStep.of(Decoration.none) });
  for (const it of Object.keys(views)) {
    at(it).hidden = it !== id;
    at("tab-" + it).setAttribute("aria-selected", it === id);
    at("tab-" + it).tabIndex = it === id ? 0 : -1;
  }
  show();
}

function changed() {
  // What is shown belongs to another text now.
  ++version;
  verdict("reading…");
  at("fix").hidden = at("take").hidden = true;
  for (const it of ["lowered", "certified"]) at(it).replaceChildren();
  clearTimeout(timer);
  timer = setTimeout(read, 250);
}

function verdict(words, isGood) {
  at("verdict").textContent = words;
  at("verdict").className = isGood === undefined ? "" : isGood ? "ok" : "bad";
}

/** Reads and checks the text. Answers about a text that has changed meanwhile are dropped. */
async function read() {
  const own = version, program = text();
  const found = await engine.ask({ op: "read", text: program });
  if (own !== version) return;
  forms = found;
  mark(found.diagnostics ?? []);
  if (found.error || found.diagnostics.some(it => it.severity === "error")) {
    verdict("the program is rejected", false);
    findings(found, []);
    return show();
  }
  verdict("checking…");
  const checked = await engine.ask({ op: "check", text: program });
  if (own !== version) return;
  mark([...found.diagnostics, ...checked.diagnostics ?? []]);
  verdict(checked.error ?? checked.verdicts.join("; "), checked.error ? false : !checked.diagnostics.some(it => it.severity === "error"));
  at("fix").hidden = !checked.diagnostics?.some(it => it.code.startsWith("E070"));
  findings(checked, found.diagnostics);
  show();
}
let forms = {};

function mark(found) {
  const length = view.state.doc.length;
  const marks = found.flatMap(it => {
    const message = [`${it.code} ${it.message}`, ...it.notes.map(note => "note: " + note), it.help && "help: " + it.help].filter(Boolean).join("\n");
    // Both statements of a race are marked.
    const labels = it.code.startsWith("E07") ? it.labels : it.labels.slice(0, 1);
    return labels.map(label => ({
      from: Math.min(label.span[0], length), to: Math.min(Math.max(label.span[1], label.span[0] + 1), length),
      severity: it.severity, message: label.text ? `${message}\nhere: ${label.text}` : message,
      actions: it.fixes.length ? [{ name: "Make this edit", apply: () => apply(it.fixes) }] : [],
    }));
  });
  view.dispatch(setDiagnostics(view.state, marks.sort((a, b) => a.from - b.from)));
}

function apply(fixes) {
  view.dispatch({ changes: fixes.map(it => ({ from: it.span[0], to: it.span[1], insert: it.text })) });
}

/** Describes a diagnostic. Its lines lead to those of the editor, if it is about the program there. */
function finding(it, isOfProgram = true) {
  const line = number => make("button", { class: "place", onclick: () => goTo(number) }, `line ${number}`);
  const places = it.labels.map(label => isOfProgram ? make("p", {}, line(label.line), label.text && ": " + label.text)
    : make("p", {}, `${label.file}:${label.line} `, make("code", {}, label.code), ": " + label.text));
  return make("div", { class: "finding " + it.severity }, make("p", {}, make("b", {}, it.code), " " + it.message), ...places,
    ...it.notes.map(note => make("p", {}, "note: " + note)), ...(it.help ? [make("p", {}, "help: " + it.help)] : []),
    ...(it.fixes.length ? [make("button", { onclick: () => apply(it.fixes) }, "Make this edit")] : []));
}

function findings(checked, before) {
  const all = [...before, ...checked.diagnostics ?? []];
  at("check").replaceChildren(...(checked.error ? [make("p", {}, checked.error)] : []), ...all.map(it => finding(it)),
    ...(checked.not_checked ?? []).map(it => make("p", {}, "not checked: " + it)),
    ...(all.length || checked.error ? [] : [make("p", {}, "No race, no deadlock, and every output is written.")]),
    ...(checked.overlap?.length ? [make("pre", {}, checked.overlap.join("\n"))] : []));
}

// Each view remembers for which text it was made.
const made = {};
async function show() {
  const id = chosen;
  if (id === "ranks" && made[id] === version) return at("step")?.oninput();
  if (id === "check" || id === "passes" || id === "hang" || made[id] === version) return;
  const own = version;
  const fill = { forms: showForms, ranks: showRanks, timeline: showTimeline }[id];
  await fill();
  if (own === version) made[id] = own;
}

function showForms() {
  const form = (name, text) => make("div", {}, make("h2", { style: "font-size:14px" }, name,
    " ", make("button", { onclick: () => replaceAll(text) }, "Edit this")), make("pre", {}, text));
  at("forms").replaceChildren(...(forms.canonical
    ? [form("Short", forms.short), form("Canonical", forms.canonical)] : [make("p", {}, "The program has errors: the check lists them.")]),
    ...(forms.fixed ? [make("button", { onclick: () => replaceAll(forms.fixed) }, "Make all edits of the reader")] : []));
}

async function lower() {
  const own = version, program = text();
  at("lowered").replaceChildren("running…");
  at("other").value = "";
  at("other").oninput();
  const before = await engine.ask({ op: "read", text: program });
  const found = await engine.ask({ op: "lower", text: program, passes: at("list").value });
  if (own !== version) return;
  at("take").hidden = !found.text;
  at("other").value = found.text ?? "";
  at("take").onclick = () => replaceAll(found.text);
  at("lowered").replaceChildren(...(found.text
    ? [make("div", { class: "sides" }, make("div", {}, "before", make("pre", {}, before.short)), make("div", {}, "after", make("pre", {}, found.short)))]
    : [make("p", {}, found.error ?? found.reason), ...(found.diagnostics ?? []).map(it => finding(it))]));
}
at("lower").onclick = lower;

/** Shows the options of the passes of the list. */
let known = [];
function showOptions() {
  const names = at("list").value.replace(/\{[^}]*\}/g, "").split(",").map(it => it.trim());
  const option = it => make("li", {}, make("code", {}, `${it.name}=${it.default ?? "…"}`), ` ${it.kind}${it.about && ": " + it.about}`);
  const ofPass = it => make("li", {}, make("code", {}, `${it.name}{option=value}`), make("ul", {}, ...it.options.map(option)));
  at("options").replaceChildren(...known.filter(it => names.includes(it.name) && it.options.length).map(ofPass));
}
at("list").oninput = showOptions;

async function certify() {
  const own = version;
  at("certified").replaceChildren("certifying…");
  const seed = [...crypto.getRandomValues(new Uint32Array(2))];
  const program = at("other").value;
  const found = await engine.ask({ op: "certify", text: text(), program, seed });
  if (own !== version || program !== at("other").value) return;
  at("certified").replaceChildren(...(found.error ? [make("p", {}, found.error)]
    : found.lines ? [make("p", {}, make("b", {}, "certified: both compute the same")), ...found.lines.map(it => make("p", {}, it))]
      : found.diagnostics.map(it => finding(it, found.is_of_original))));
}
at("certify").onclick = certify;
// A certificate is of the texts that it was made of.
at("other").oninput = () => at("certified").replaceChildren();
at("list").onkeydown = event => { if (event.key === "Enter") lower(); };

async function showRanks() {
  at("ranks").replaceChildren("running…");
  const own = version;
  const ran = await engine.ask({ op: "run", text: text() });
  if (own !== version) return;
  if (ran.error) return at("ranks").replaceChildren(make("p", { style: "white-space:pre-wrap" }, ran.error));
  const slider = make("input", { type: "range", id: "step", min: 0, max: ran.steps.length, value: 0, "aria-label": "Step" });
  const where = make("p", { role: "status" });
  const rows = Array.from({ length: ran.ranks }, (_, rank) => make("tr", {}, make("th", {}, "rank " + rank), make("td"), make("td")));
  const outputs = ran.outputs.map(it => make("tr", {}, make("td", {}, `${it.name} of rank ${it.rank}`), make("td", {}, it.shape.join(" × ") || "scalar"),
    make("td", {}, it.values.join(" ") + (it.elements > it.values.length ? " …" : "") + (it.unwritten ? " (some were never written)" : ""))));
  slider.oninput = () => {
    const count = Number(slider.value);
    const last = new Map();
    for (const step of ran.steps.slice(0, count)) last.set(step.rank, step);
    rows.forEach((row, rank) => {
      const step = last.get(rank);
      row.children[1].textContent = step ? step.line ? `line ${step.line}` : "end" : "–";
      row.children[2].textContent = step ? [step.iteration, step.stream].filter(Boolean).join(", ") : "";
    });
    const step = ran.steps[count - 1];
    where.textContent = `step ${count} of ${ran.steps.length}` + (step ? `: rank ${step.rank}, line ${step.line}` : "")
      + (ran.all_steps > ran.steps.length ? ` (${ran.all_steps} in all)` : "");
    const lines = [...new Set([...last.values()].map(it => it.line))].filter(it => it > 0 && it <= view.state.doc.lines).sort((a, b) => a - b);
    view.dispatch({ effects: setStep.of(Decoration.set(lines.map(it => Decoration.line({ class: "cm-step" }).range(view.state.doc.line(it).from)))) });
  };
  at("ranks").replaceChildren(make("p", {}, "Each step is an instruction that completes, on one of the simulated ranks, in the order of the program."), slider, where,
    make("table", {}, make("tr", {}, make("th", {}, "rank"), make("th", {}, "has completed"), make("th", {}, "iteration and stream")), ...rows),
    make("h2", { style: "font-size:14px" }, "Outputs"), make("table", {}, ...outputs));
  slider.oninput();
}

async function showTimeline() {
  at("timeline").replaceChildren("estimating…");
  const own = version;
  const drawn = await engine.ask({ op: "timeline", text: text() });
  if (own !== version) return;
  if (drawn.error) return at("timeline").replaceChildren(make("p", {}, drawn.error));
  const picture = make("div", { class: "picture" });
  // Made by hir, which escapes what a program says.
  picture.innerHTML = drawn.svg;
  const page = make("a", { href: URL.createObjectURL(new Blob([drawn.html], { type: "text/html" })), target: "_blank" }, "Open it as a page to zoom and search");
  at("timeline").replaceChildren(page, picture, make("pre", {}, drawn.overlap.join("\n")));
}

/** The largest file that is read, in bytes: that of `hir hang`. */
const LARGEST_FILE = 256 << 20;

/** Returns the path and the bytes, as characters, of a file of a job that may be a dump or a part of its program; no bytes if it is too large. */
async function contents([path, file]) {
  // Pickles, JSON and what gzip has compressed.
  const [first] = new Uint8Array(await file.slice(0, 1).arrayBuffer());
  if (/(^|\/)(\.|site-packages\/|node_modules\/)/.test(path) || !path.endsWith(".py") && ![0x80, 0x7b, 0x1f, undefined].includes(first)) return [];
  if (file.size > LARGEST_FILE) return [[path, null]];
  let characters = "";
  for (const byte of new Uint8Array(await file.arrayBuffer())) characters += String.fromCharCode(byte);
  return [[path, characters]];
}

/** Explains a job from its files, `[path, file]` each: dumps, and the program beside them. */
async function explain(files) {
  at("hung").replaceChildren("reading…");
  const read = (await Promise.all(files.map(contents))).flat();
  const found = await engine.ask({ op: "hang", files: read.filter(it => it[1] !== null) });
  const large = read.filter(it => it[1] === null).map(it => `${it[0]} is not read: it has more than ${LARGEST_FILE >> 20} MiB`);
  at("hung").replaceChildren(...(found.error ? [make("p", {}, found.error)]
    : [make("p", {}, make("b", {}, found.verdict)), make("p", {}, found.summary), ...found.diagnostics.map(it => finding(it, false)),
      ...[...found.notes, ...large].map(it => make("p", {}, it)), make("pre", {}, found.table.join("\n"))]));
}

/** Returns the files of what is dropped, also those in folders. A browser reads a folder in several parts. */
async function dropped(entry) {
  if (entry.isFile) return [[entry.fullPath.slice(1), await new Promise((done, failed) => entry.file(done, failed))]];
  const reader = entry.createReader(), all = [];
  for (let part; part = await new Promise((done, failed) => reader.readEntries(done, failed)), part.length;) all.push(...part);
  return (await Promise.all(all.map(dropped))).flat();
}
for (const id of ["dumps", "folder"])
  at(id).onchange = event => explain([...event.target.files].map(it => [it.webkitRelativePath || it.name, it]));
at("hang").ondragover = event => event.preventDefault();
at("hang").ondrop = async event => {
  event.preventDefault();
  const { items, files } = event.dataTransfer;
  const entries = [...items].map(it => it.webkitGetAsEntry()).filter(Boolean);
  explain(entries.length ? (await Promise.all(entries.map(dropped))).flat() : [...files].map(it => [it.name, it]));
};

at("fix").onclick = async () => {
  const own = version;
  const fixed = await engine.ask({ op: "fix", text: text() });
  if (own !== version) return;
  if (fixed.error) return verdict(fixed.error, false);
  replaceAll(fixed.text);
};
at("link").onclick = async () => {
  const fragment = await fragmentOf(text());
  history.replaceState(null, "", fragment);
  try {
    await navigator.clipboard.writeText(location.href);
    verdict("the link is copied");
  } catch {
    verdict("the link is in the address bar");
  }
};
for (const name of Object.keys(samples)) at("sample").append(make("option", { value: name }, name));
at("sample").onchange = () => replaceAll(samples[at("sample").value]);

engine.ask({ op: "passes" }).then(all => {
  known = all;
  at("known").append(...all.map(it => make("option", { value: it.name }, it.about)));
  showOptions();
});
choose("check");
textOf(location.hash).then(program => replaceAll(program ?? Object.values(samples)[0]));
