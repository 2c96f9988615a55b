//! Makes a short answer of what a tool prints: its findings with code, place and edit, and its verdict.

use grammar::{Code, Severity, count_text};
use hir_process::exit::Exit;
use serde_json::{Value, json};

use super::limited_command::Printed;

/// The most findings in an answer.
const MAX_FINDINGS: usize = 20;

/// The most lines of output in an answer.
const MAX_LINES: usize = 80;

/// The name of a text that is no file.
const STDIN: &str = "<stdin>";

/// The answer to a call.
pub(super) struct Answer {
    /// What the agent reads.
    text: Vec<String>,
    /// The same for programs.
    findings: Vec<Value>,
    /// The edits that remove the faults.
    edits: Vec<Value>,
    /// What the tool makes: the text of a program, or the figures of a run.
    result: Option<(&'static str, Value)>,
    exit: Option<i32>,
    is_error: bool,
}

/// Returns the schema of `structuredContent`.
pub(super) fn schema() -> Value {
    let list = |what: &str| json!({ "type": "array", "items": { "type": "object" }, "description": what });
    json!({
        "type": "object",
        "properties": {
            "exit_code": { "type": ["integer", "null"], "description": "as hir returns it; null if a limit stopped it" },
            "findings": list("code, message, labels with lines, help, and fixes"),
            "edits": list("file, line, start and end in bytes, and the new text"),
            "program": { "type": "string", "description": "the program that `fix`, `lower` and `opt` return" },
            "figures": { "type": "object", "description": "what `overlap` and `run` estimate or measure" },
        },
        "required": ["exit_code", "findings", "edits"],
    })
}

impl Answer {
    /// The call has no result, for this reason.
    pub(super) fn failed(reason: &str) -> Self {
        Self {
            text: vec![reason.to_owned()],
            findings: Vec::new(),
            edits: Vec::new(),
            result: None,
            exit: None,
            is_error: true,
        }
    }

    /// Returns what a tool has printed with `--error-format=json`: diagnostics on standard error, and notes on standard output.
    pub(super) fn of_diagnostics(printed: &Printed) -> Self {
        let (messages, findings): (Vec<Value>, Vec<Value>) =
            json_lines(&printed.err).partition(|it| it["code"].is_null());
        let mut text: Vec<String> = findings.iter().take(MAX_FINDINGS).map(finding_text).collect();
        if let Some(more @ 1..) = findings.len().checked_sub(MAX_FINDINGS) {
            text.push(format!("and {} more", count_text(more, "finding")));
        }
        let lines = printed.out.lines();
        text.extend(lines.clone().take(MAX_LINES).map(str::to_owned));
        if let Some(more @ 1..) = lines.count().checked_sub(MAX_LINES) {
            text.push(format!("and {}", count_text(more, "line")));
        }
        text.extend(messages.iter().filter_map(|it| {
            let file = it["file"].as_str().filter(|it| *it != STDIN);
            Some(file.map_or(String::new(), |it| format!("{it}: ")) + it["message"].as_str()?)
        }));
        // What is no JSON is a refused option or a bug, which the agent cannot read otherwise.
        let plain = printed.err.lines().filter(|it| !it.trim_start().starts_with('{'));
        text.extend(plain.take(MAX_LINES).map(str::to_owned));
        // Of usage errors, files that cannot be read and bugs, nothing follows about the program.
        let code = printed.exit.and_then(|it| u8::try_from(it).ok());
        let is_error = !code.is_some_and(|it| Exit::from_code(it).is_verdict());
        Self { text, findings, edits: Vec::new(), result: None, exit: printed.exit, is_error }
    }

    /// As `of_diagnostics`, of a tool that prints a program.
    pub(super) fn of_program(printed: &Printed) -> Self {
        let mut answer = Self::of_diagnostics(printed);
        answer.result = (!printed.out.is_empty()).then(|| ("program", printed.out.clone().into()));
        answer
    }

    /// As `of_diagnostics`, of a run that prints its figures as JSON behind its text.
    pub(super) fn of_run(mut printed: Printed) -> Self {
        // The object has lines of its own for its braces.
        let begin =
            if printed.out.starts_with("{\n") { Some(0) } else { printed.out.find("\n{\n").map(|it| it + 1) };
        let end = begin.and_then(|it| Some(it + printed.out[it..].find("\n}\n")? + 3));
        let figures = begin.zip(end).map(|(begin, end)| printed.out.drain(begin..end).collect::<String>());
        let mut answer = Self::of_diagnostics(&printed);
        answer.set_figures(&figures.unwrap_or_default());
        answer
    }

    /// Sets the figures, if a text is those as JSON.
    pub(super) fn set_figures(&mut self, text: &str) {
        self.result = serde_json::from_str(text).ok().map(|it| ("figures", it));
    }

    /// Adds lines that a tool has printed.
    pub(super) fn add_text(&mut self, text: &str) {
        self.text.extend(text.lines().take(MAX_LINES).map(str::to_owned));
    }

    /// Returns the files with a finding that an edit may remove.
    pub(super) fn racy_files(&self) -> Vec<String> {
        let is_race = |it: Code| it.severity() == Severity::Error && it.check().is_some();
        let racy = self
            .findings
            .iter()
            .filter(|it| it["code"].as_str().and_then(Code::from_text).is_some_and(is_race));
        let mut files: Vec<String> = racy.filter_map(|it| it["file"].as_str()).map(str::to_owned).collect();
        files.dedup();
        files.truncate(MAX_FINDINGS);
        files
    }

    /// Adds the edits that `--fix=check` has made in a file, and what the check says after them.
    pub(super) fn add_edits(&mut self, file: &str, printed: &Printed) {
        let before = self.edits.len();
        let of = if file == STDIN { String::new() } else { format!(" of {file}") };
        for it in json_lines(&printed.err).filter(|it| it["code"] == "R0101") {
            let line = &it["labels"][0]["line"];
            for fix in it["fixes"].as_array().into_iter().flatten() {
                let (start, end, new) =
                    (&fix["start"], &fix["end"], fix["text"].as_str().unwrap_or_default());
                self.text.push(format!(
                    "edit: replace bytes {start} to {end}{of}, from line {line}, by\n{}",
                    new.trim_end()
                ));
                self.edits
                    .push(json!({ "file": file, "line": line, "start": start, "end": end, "text": new }));
            }
        }
        if self.edits.len() == before {
            self.text.push("no single edit removes this fault: the help says what to decide".to_owned());
            return;
        }
        let verdict = json_lines(&printed.err).filter(|it| it["code"].is_null()).last();
        if let Some(verdict) = verdict.and_then(|it| it["message"].as_str().map(str::to_owned)) {
            self.text.push(format!("after the edits: {verdict}"));
        }
    }

    /// Returns the result of the call.
    pub(super) fn value(self) -> Value {
        let shown = &self.findings[..self.findings.len().min(MAX_FINDINGS)];
        let text = if self.text.is_empty() { "nothing was found".to_owned() } else { self.text.join("\n") };
        let mut content = json!({ "exit_code": self.exit, "findings": shown, "edits": self.edits });
        if let Some((name, value)) = self.result {
            content[name] = value;
        }
        json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": content,
            "isError": self.is_error,
        })
    }
}

/// Returns what a tool has printed, as it is.
pub(super) fn of_text(printed: &Printed) -> Answer {
    let text = if printed.exit == Some(0) { &printed.out } else { &printed.err };
    let text = text.lines().take(MAX_LINES).map(str::to_owned).collect();
    let is_error = printed.exit != Some(0);
    Answer { text, findings: Vec::new(), edits: Vec::new(), result: None, exit: printed.exit, is_error }
}

fn json_lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().filter_map(|it| serde_json::from_str(it).ok())
}

/// Describes a finding in a few lines: code and place, the other places, and what to do.
fn finding_text(it: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = it["labels"].as_array().map_or(&[][..], Vec::as_slice);
    let place = labels.first().map_or(String::new(), |label| {
        format!("{}:{}:{}: ", text(&it["file"]), label["line"], label["column"])
    });
    let mut lines = vec![format!("{} {place}{}", text(&it["code"]), text(&it["message"]))];
    for label in labels.iter().filter(|label| label["text"].as_str().is_some_and(|it| !it.is_empty())) {
        lines.push(format!("  line {}: {}", label["line"], text(&label["text"])));
    }
    if let Some(help) = it["help"].as_str() {
        lines.push(format!("  help: {help}"));
    }
    for fix in it["fixes"].as_array().into_iter().flatten() {
        let new = text(&fix["text"]);
        lines.push(format!(
            "  edit: replace bytes {} to {} by `{}`",
            fix["start"],
            fix["end"],
            new.trim_end()
        ));
    }
    lines.join("\n")
}
