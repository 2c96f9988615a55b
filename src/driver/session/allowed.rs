//! What the user allows: diagnostics that are not reported, by `// hir: allow(R0703)` in a program, by `allow` in `hir.toml`, and as known
//! ones of a baseline.
//!
//! ```text
//! // hir: allow(R0703)
//! T1_g_float[iS1{4}] = ALLOCATE(mem_type=global, zero_init=true)
//! Synchronize(Stream 1) // hir: allow(R0701, R0702)
//! ```
//!
//! A comment of its own applies to the statement that begins on the next line, and one behind a statement to its line. A diagnostic is allowed
//! if one of its places is there. Errors are reported anyway, except those of the check: a program that cannot be read is rejected.

use std::{
    collections::BTreeSet,
    fmt,
    ops::RangeInclusive,
    path::{self, Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use grammar::{Code, Diagnostic, Severity, Source, Span, nearest};

use super::baseline::Baseline;

/// Begins a comment for hir.
const MARK: &str = "hir:";

/// An entry of `allow` in `hir.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowEntry {
    /// The code that is not reported.
    pub(crate) code: Code,
    /// Only in this file.
    pub(crate) file: Option<PathBuf>,
    /// Only in this line.
    pub(crate) line: Option<u32>,
}

/// The codes that one session does not report.
#[derive(Default)]
pub(super) struct Allowed {
    entries: OnceLock<Vec<AllowEntry>>,
    /// The comments that have an effect: file, offset and code.
    used: Mutex<BTreeSet<(String, u32, &'static str)>>,
    /// The entries that have an effect, by index.
    used_entries: Mutex<BTreeSet<usize>>,
    baseline: Mutex<Option<Baseline>>,
    /// How many faults were removed.
    faults: AtomicUsize,
}

/// A comment that allows codes.
struct Comment {
    /// The lines that it applies to.
    lines: RangeInclusive<u32>,
    /// The codes, each with its place.
    codes: Vec<(Code, Span)>,
}

/// Returns whether the diagnostics of a code can be allowed.
pub(crate) fn is_allowable(code: Code) -> bool {
    code.severity() != Severity::Error || code.check().is_some()
}

/// Removes the diagnostics about a text that its comments allow.
pub fn remove_allowed_by_comments(source: &Source, diagnostics: &mut Vec<Diagnostic>) {
    Allowed::default().remove(source, diagnostics);
}

impl Allowed {
    /// Sets the entries of `hir.toml`.
    pub(super) fn set_entries(&self, entries: Vec<AllowEntry>) {
        let _ = self.entries.set(entries);
    }

    /// Returns the known findings, if there are any.
    pub(super) fn baseline(&self) -> MutexGuard<'_, Option<Baseline>> {
        self.baseline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries of `hir.toml` that had no effect.
    pub(super) fn unused_entries(&self) -> Vec<&AllowEntry> {
        let used = self.used_entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.entries.get().into_iter().flatten().enumerate();
        entries.filter(|(at, _)| !used.contains(at)).map(|it| it.1).collect()
    }

    /// Removes the diagnostics about a text that are allowed, and returns their number.
    pub(super) fn remove(&self, source: &Source, diagnostics: &mut Vec<Diagnostic>) -> usize {
        let entries = self.entries.get().map_or(&[][..], Vec::as_slice);
        let comments = comments(source).0;
        let mut baseline = self.baseline();
        if entries.is_empty() && comments.is_empty() && baseline.is_none() {
            return 0;
        }
        let before = diagnostics.len();
        diagnostics.retain(|it| {
            let lines: Vec<u32> = it.labels.iter().map(|label| source.lines.line(label.0.start)).collect();
            let by_entry =
                (0..).zip(entries).filter(|entry| entry.1.applies_to(it.code, &source.name, &lines));
            let by_entry: Vec<usize> = by_entry.map(|it| it.0).collect();
            self.used_entries.lock().unwrap_or_else(PoisonError::into_inner).extend(&by_entry);
            let by_comment = comments.iter().find_map(|comment| {
                let code = comment.codes.iter().find(|code| code.0 == it.code)?;
                lines.iter().any(|line| comment.lines.contains(line)).then_some(code)
            });
            if let Some((code, place)) = by_comment {
                let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
                used.insert((source.name.clone(), place.start, code.text()));
            }
            let is_allowed = !by_entry.is_empty() || by_comment.is_some();
            let mut is_known = || baseline.as_mut().is_some_and(|known| known.takes(source, it));
            let removed = is_allowable(it.code) && (is_allowed || is_known());
            let is_fault = removed && it.severity() == Severity::Error;
            self.faults.fetch_add(is_fault.into(), Ordering::Relaxed);
            !removed
        });
        before - diagnostics.len()
    }

    /// Returns how many faults were allowed so far.
    pub(super) fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }

    /// Returns warnings about comments of a text that allow nothing: unknown codes, and codes that were looked for and not found.
    pub(super) fn unused(&self, source: &Source, is_searched: impl Fn(Code) -> bool) -> Vec<Diagnostic> {
        let (comments, mut found) = comments(source);
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        for (code, place) in comments.into_iter().flat_map(|it| it.codes) {
            if is_searched(code) && !used.contains(&(source.name.clone(), place.start, code.text())) {
                let message = format!(
                    "`{}` is allowed here, but this statement has no finding of this code",
                    code.text()
                );
                found.push(
                    Diagnostic::new(Code::UnusedAllow, place, message, "not needed")
                        .help("remove it from the comment"),
                );
            }
        }
        found
    }
}

impl fmt::Display for AllowEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.code.text())?;
        self.file.iter().try_for_each(|it| write!(f, " in `{}`", it.display()))?;
        self.line.iter().try_for_each(|it| write!(f, ", line {it}"))
    }
}

impl AllowEntry {
    fn applies_to(&self, code: Code, file: &str, lines: &[u32]) -> bool {
        // `hir.toml` names a file from its own folder, and the tool may run in one below it.
        let is_same = |wanted: &Path| {
            path::absolute(file).is_ok_and(|it| it.ends_with(wanted.strip_prefix(".").unwrap_or(wanted)))
        };
        code == self.code
            && self.file.as_deref().is_none_or(is_same)
            && self.line.is_none_or(|line| lines.contains(&line))
    }
}

/// Returns the comments for hir in a text, and warnings about those that say nothing.
fn comments(source: &Source) -> (Vec<Comment>, Vec<Diagnostic>) {
    let text = Source::own_text(&source.text);
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    if !text.contains(MARK) {
        return (found, faults);
    }
    for (number, line) in (1..).zip(text.lines()) {
        let Some((before, comment)) = line.split_once("//") else { continue };
        let Some(words) = comment.trim_start().strip_prefix(MARK) else { continue };
        let start = source.lines.start(number) + line.len() - words.len();
        let listed = words.trim().strip_prefix("allow(").and_then(|it| it.split_once(')')).map(|it| it.0);
        let Some(listed) = listed else {
            let place = Span::new(start - MARK.len(), start + words.trim_end().len());
            let it = Diagnostic::new(
                Code::UnusedAllow,
                place,
                "this comment says nothing to hir",
                "not understood",
            );
            faults.push(it.help("write `// hir: allow(R0703)`, with the codes that are not to be reported"));
            continue;
        };
        let lines = if before.trim().is_empty() { next_statement(text, number) } else { number..=number };
        let mut codes = Vec::new();
        let mut at = start + words.find('(').map_or(0, |it| it + 1);
        for word in listed.split(',') {
            let indent = word.len() - word.trim_start().len();
            let place = Span::new(at + indent, at + indent + word.trim().len());
            at += word.len() + 1;
            match parse_code(word.trim()) {
                Ok(code) => codes.push((code, place)),
                Err((message, help)) => {
                    let it = Diagnostic::new(Code::UnusedAllow, place, message, "allows nothing");
                    faults.push(it.help(help));
                }
            }
        }
        found.push(Comment { lines, codes });
    }
    (found, faults)
}

/// Parses a code that is to be allowed. An error has a message and a help.
pub(crate) fn parse_code(word: &str) -> Result<Code, (String, String)> {
    let all = || "`hir explain` lists all codes".to_owned();
    let Some(code) = Code::from_text(word) else {
        let near = nearest(word, Code::ALL.iter().map(|it| it.text()));
        return Err((
            format!("no diagnostic has the code `{word}`"),
            near.map_or_else(all, |it| format!("did you mean `{it}`?")),
        ));
    };
    if is_allowable(code) {
        Ok(code)
    } else {
        let message =
            format!("`{word}` cannot be allowed: it says that a program is rejected or a job hangs");
        Err((
            message,
            "remove it; warnings, remarks and faults of the check (E07xx) can be allowed".to_owned(),
        ))
    }
}

/// Returns the lines of the statement that begins behind a line: the next one that is no comment, and those below it that are indented more,
/// unless it has a body.
fn next_statement(text: &str, number: u32) -> RangeInclusive<u32> {
    let is_statement = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let mut lines = (1..).zip(text.lines()).skip(number as usize).skip_while(|it| !is_statement(it.1));
    let Some((first, line)) = lines.next() else { return number..=number };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let has_body =
        ["FOR", "IF", "ELSE", "%HostIrContainer"].iter().any(|it| line.trim_start().starts_with(it));
    if has_body {
        return first..=first;
    }
    let more = lines.take_while(|it| is_statement(it.1) && indent(it.1) > indent(line)).last();
    first..=more.map_or(first, |it| it.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// hir: allow(R0703, W9999)\n\n  T1\n     = Set( T0\n     )\n  T2 // hir: allow( E0701 )\n// hir: alow(R0703)\n// hir: allow(E0102)\n  FOR i0 from 0 to 4:\n    T3\n";

    fn source() -> Source {
        Source::new("a.hir".to_owned(), TEXT.to_owned())
    }

    fn at_line(code: Code, line: u32) -> Diagnostic {
        let start = source().lines.start(line);
        Diagnostic::new(code, Span::new(start, start + 1), "m", "")
    }

    #[test]
    fn a_comment_applies_to_its_statement() {
        let lines: Vec<_> = comments(&source()).0.into_iter().map(|it| it.lines).collect();
        assert_eq!(lines, [3..=5, 6..=6, 9..=9]);
        let allowed = Allowed::default();
        let mut found = vec![
            at_line(Code::UnreadWrite, 3),
            at_line(Code::UnreadWrite, 4),
            at_line(Code::UnreadWrite, 6),
            at_line(Code::Race, 6),
            at_line(Code::Race, 3),
            at_line(Code::Syntax, 9),
        ];
        assert_eq!(allowed.remove(&source(), &mut found), 3);
        let left: Vec<_> = found.iter().map(|it| it.code).collect();
        assert_eq!(left, [Code::UnreadWrite, Code::Race, Code::Syntax]);
    }

    #[test]
    fn comments_without_effect_are_reported() {
        let allowed = Allowed::default();
        allowed.remove(&source(), &mut vec![at_line(Code::Race, 6)]);
        let found = allowed.unused(&source(), |_| true);
        let texts: Vec<_> = found.iter().map(|it| (it.span().text(TEXT), it.message.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("W9999", "no diagnostic has the code `W9999`"),
                ("hir: alow(R0703)", "this comment says nothing to hir"),
                ("E0102", "`E0102` cannot be allowed: it says that a program is rejected or a job hangs"),
                ("R0703", "`R0703` is allowed here, but this statement has no finding of this code"),
            ]
        );
        assert_eq!(allowed.unused(&source(), |_| false).len(), 3);
    }

    #[test]
    fn an_entry_applies_to_a_code_a_file_and_a_line() {
        let allowed = Allowed::default();
        let entry = AllowEntry { code: Code::UnreadWrite, file: Some("a.hir".into()), line: Some(10) };
        allowed.set_entries(vec![entry]);
        let mut found =
            vec![at_line(Code::UnreadWrite, 10), at_line(Code::UnreadWrite, 9), at_line(Code::Race, 10)];
        assert_eq!(allowed.remove(&source(), &mut found), 1);
        let other = Source { name: "dir/b.hir".to_owned(), ..source() };
        assert_eq!(allowed.remove(&other, &mut vec![at_line(Code::UnreadWrite, 10)]), 0);
    }
}
