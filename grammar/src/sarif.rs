//! Writes diagnostics as a SARIF 2.1.0 log (OASIS, "Static Analysis Results Interchange Format"), which code
//! hosts and editors read.
//!
//! A log contains one run: `add` collects results, and `text` returns the log. Its rules are the codes of its
//! results.

use serde_json::{Value, json};

use crate::{
    codes::{Code, Severity},
    diagnostic::{Diagnostic, Fix},
    files::TextFiles,
    raw_bytes,
    span::{LineIndex, Span},
};

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// The log of one run of a tool.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Codes of the results; a result refers to its rule by index.
    rules: Vec<Code>,
    results: Vec<Value>,
    findings: Vec<Finding>,
    notifications: Vec<Value>,
}

/// A result, for other formats.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file as the tool names it.
    pub file: String,
    /// The line in which the finding begins, from 1.
    pub line: u32,
    /// The text of this line, without indentation.
    pub statement: String,
    /// The code.
    pub code: Code,
    /// `error`, `warning` or `note`.
    pub level: &'static str,
    /// The message, with its notes and help in further lines.
    pub message: String,
}

/// How a run of a tool ended.
#[derive(Clone, Copy, Debug)]
pub struct Invocation {
    /// The exit code.
    pub code: u8,
    /// Whether the tool completed its work, regardless of its findings.
    pub is_success: bool,
}

impl Log {
    /// Creates an empty log.
    pub const fn new() -> Self {
        Self { rules: Vec::new(), results: Vec::new(), findings: Vec::new(), notifications: Vec::new() }
    }

    /// Returns whether the log contains neither results nor notifications.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty() && self.notifications.is_empty()
    }

    /// Returns the results, as objects of SARIF.
    pub fn results(&self) -> &[Value] {
        &self.results
    }

    /// Returns the results for other formats.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the results as a table of Markdown, with a row for each; no rows without results.
    pub fn table(&self) -> String {
        if self.results.is_empty() {
            return String::new();
        }
        let mut table = "| | code | place | finding |\n| --- | --- | --- | --- |\n".to_owned();
        for it in &self.results {
            let mark = match it["level"].as_str() {
                Some("error") => "❌",
                Some("warning") => "⚠️",
                Some(_) | None => "ℹ️",
            };
            let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
            let place = |it: &Value| {
                let place = &it["physicalLocation"];
                let line = place["region"]["startLine"].as_u64();
                text(&place["artifactLocation"]["uri"]) + &line.map_or(String::new(), |it| format!(":{it}"))
            };
            let places: Vec<String> = [&it["locations"], &it["relatedLocations"]]
                .into_iter()
                .flat_map(|it| it.as_array().into_iter().flatten())
                .map(place)
                .collect();
            let message = markdown_cell(it["message"]["text"].as_str().unwrap_or_default());
            table += &format!("| {mark} | {} | {} | {message} |\n", text(&it["ruleId"]), places.join("<br>"));
        }
        table + "\n"
    }

    /// Adds diagnostics about a text, which was read from `file`.
    pub fn add(&mut self, diagnostics: &[Diagnostic], file: &str, source: &str) {
        if let Some((diagnostics, source)) = raw_bytes::in_file(diagnostics, source) {
            return self.add(&diagnostics, file, &source);
        }
        let lines = LineIndex::new(source);
        let files = TextFiles::new(file, source, &lines);
        let text = Artifact { uri: uri(file), files, source, lines: &lines };
        for it in diagnostics {
            let known = self.rules.iter().position(|rule| *rule == it.code);
            let rule = known.unwrap_or(self.rules.len());
            if known.is_none() {
                self.rules.push(it.code);
            }
            let message = whole_message(it);
            let start = it.labels.first().map_or(0, |label| label.0.start);
            let (file, line) = text.line(start);
            self.results.push(text.result(it, rule, &message));
            self.findings.push(Finding {
                file: file.to_owned(),
                line,
                statement: lines.line_text(lines.line(start), source).trim().to_owned(),
                code: it.code,
                level: level(it.severity()),
                message,
            });
        }
    }

    /// Adds a message that does not refer to a position in a text.
    pub fn add_notification(&mut self, message: &str, is_error: bool) {
        let level = if is_error { "error" } else { "note" };
        self.notifications.push(json!({ "level": level, "message": { "text": message } }));
    }

    /// Returns the log as JSON; `ending` describes how the tool ended, if it has ended.
    pub fn text(&self, tool: &str, version: &str, ending: Option<Invocation>) -> String {
        let rules: Vec<Value> = self.rules.iter().map(|it| rule(*it)).collect();
        let mut run = json!({
            "tool": { "driver": { "name": tool, "version": version, "rules": rules } },
            "columnKind": "utf16CodeUnits",
            "results": self.results,
        });
        if let (Some(ending), Some(run)) = (ending, run.as_object_mut()) {
            let invocation = json!({
                "executionSuccessful": ending.is_success,
                "exitCode": ending.code,
                "toolExecutionNotifications": self.notifications,
            });
            run.insert("invocations".to_owned(), json!([invocation]));
        }
        format!("{:#}\n", json!({ "$schema": SCHEMA, "version": "2.1.0", "runs": [run] }))
    }
}

/// Returns a text as the cell of a table. Code between backquotes stays, unless it has a bar.
fn markdown_cell(text: &str) -> String {
    let escaped = text.replace('|', "\\|").replace('<', "&lt;");
    escaped.lines().collect::<Vec<_>>().join("<br>")
}

/// Returns the message of a diagnostic, with what follows it.
fn whole_message(it: &Diagnostic) -> String {
    let mut message = it.message.clone();
    it.notes.iter().for_each(|note| message += &format!("\nnote: {note}"));
    it.help.iter().for_each(|help| message += &format!("\nhelp: {help}"));
    it.remedy.iter().for_each(|flags| message += &format!("\nadd to the command line: {flags}"));
    message
}

/// Returns the SARIF level of a severity.
fn level(severity: Severity) -> &'static str {
    if severity == Severity::Remark { "note" } else { severity.name() }
}

/// Returns the SARIF rule of a code, with the text that `--explain` prints.
fn rule(code: Code) -> Value {
    let lines: Vec<&str> = code.explanation().lines().map(str::trim).collect();
    let whole = lines.join(" ").trim().to_owned();
    let short = whole.find(". ").map_or(whole.as_str(), |end| &whole[..=end]);
    json!({
        "id": code.text(),
        "name": format!("{code:?}"),
        "shortDescription": { "text": short },
        "help": { "text": whole },
        "defaultConfiguration": { "level": level(code.severity()) },
    })
}

/// A text that results refer to.
struct Artifact<'a> {
    uri: String,
    files: TextFiles<'a>,
    source: &'a str,
    lines: &'a LineIndex,
}

impl Artifact<'_> {
    fn result(&self, it: &Diagnostic, rule: usize, message: &str) -> Value {
        let mut labels = it.labels.iter();
        let mut result = json!({
            "ruleId": it.code.text(),
            "ruleIndex": rule,
            "level": level(it.severity()),
            "message": { "text": message },
            "locations": labels.next().map(|label| self.location(label, None)).or(self.whole()).into_iter().collect::<Vec<_>>(),
        });
        let related: Vec<Value> = labels.zip(1..).map(|(label, id)| self.location(label, Some(id))).collect();
        let Some(object) = result.as_object_mut() else { return result };
        if !related.is_empty() {
            object.insert("relatedLocations".to_owned(), json!(related));
        }
        if !it.fixes.is_empty() {
            let replacements: Vec<Value> = it.fixes.iter().map(|it| self.replacement(it)).collect();
            let change = json!({ "artifactLocation": { "uri": self.uri }, "replacements": replacements });
            object.insert("fixes".to_owned(), json!([{ "artifactChanges": [change] }]));
        }
        result
    }

    /// Returns the location that is the whole file, if the text is that of a file.
    fn whole(&self) -> Option<Value> {
        let place = json!({ "physicalLocation": { "artifactLocation": { "uri": self.uri } } });
        (!self.uri.is_empty()).then_some(place)
    }

    fn location(&self, (span, label): &(Span, String), id: Option<u32>) -> Value {
        let mut region = self.region(*span);
        let snippet = span.text(self.source);
        if let Some(region) = region.as_object_mut().filter(|_| !snippet.is_empty()) {
            region.insert("snippet".to_owned(), json!({ "text": snippet }));
        }
        let mut location = json!({ "physicalLocation": { "artifactLocation": { "uri": uri(self.line(span.start).0) }, "region": region } });
        let Some(object) = location.as_object_mut() else { return location };
        if !label.is_empty() {
            object.insert("message".to_owned(), json!({ "text": label }));
        }
        object.extend(id.map(|id| ("id".to_owned(), json!(id))));
        location
    }

    fn replacement(&self, fix: &Fix) -> Value {
        json!({ "deletedRegion": self.region(fix.span), "insertedContent": { "text": fix.text } })
    }

    /// Returns a region: lines and columns count from 1, and the end is one past the last character.
    fn region(&self, span: Span) -> Value {
        json!({
            "startLine": self.line(span.start).1,
            "startColumn": self.column(span.start),
            "endLine": self.line(span.end).1,
            "endColumn": self.column(span.end),
        })
    }

    /// Returns the file and the line of a byte offset.
    fn line(&self, offset: u32) -> (&str, u32) {
        self.files.place(self.lines.line(offset))
    }

    /// Returns the column of a byte offset in UTF-16 code units, from 1.
    fn column(&self, offset: u32) -> usize {
        let start = (offset + 1).saturating_sub(self.lines.column(offset)) as usize;
        let before = self.source.get(start..offset as usize).unwrap_or_default();
        before.encode_utf16().count() + 1
    }
}

/// Returns a file's name as a URI reference; characters that RFC 3986 does not allow in a path are
/// percent-encoded.
fn uri(file: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=@/".contains(&byte);
    let mut uri = String::with_capacity(file.len());
    for byte in file.bytes() {
        if is_plain(byte) { uri.push(byte as char) } else { uri += &format!("%{byte:02X}") }
    }
    uri
}
