//! Test files with several cases, separated by `// -----`, and with `// expected-error@+1 {{text}}` for
//! expected diagnostics.

use std::collections::HashMap;

use grammar::{Code, Diagnostic, Named, Severity, Source, Span};

/// The line that separates two parts of a file.
pub const SEPARATOR: &str = "// -----";

/// Maximum total number of empty lines that are inserted before the parts of a text.
const MOST_EMPTY_LINES: usize = 1 << 26;

/// Splits a text into its parts, without the separators.
///
/// # Errors
/// Rejects a text whose parts would need too many empty lines before them to keep their line numbers.
pub fn split_input(source: &Source) -> Result<Vec<&str>, Diagnostic> {
    let text = &source.text;
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    let mut empty_lines = 0usize;
    for (line_count, line) in (1..).zip(text.split_inclusive('\n')) {
        let start = at;
        at += line.len();
        if line.trim_end() == SEPARATOR {
            parts.push(&text[begin..start]);
            begin = at;
            empty_lines = empty_lines.saturating_add(line_count);
            if empty_lines > MOST_EMPTY_LINES {
                let message = format!("too many parts: the text has {} parts before this line", parts.len());
                let it = Diagnostic::new(
                    Code::TooLarge,
                    Span::new(start, at),
                    message,
                    "another part begins here",
                );
                return Err(it.help("move the parts after this line to another file"));
            }
        }
    }
    parts.push(&text[begin..]);
    Ok(parts)
}

/// A diagnostic that a comment expects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExpectedDiagnostic {
    severity: Severity,
    /// The line of the expected diagnostic.
    line: u32,
    /// A part of the message.
    text: String,
    /// The comment's own line.
    comment: u32,
}

/// Returns one line for each expected diagnostic that is missing and for each diagnostic that is not
/// expected.
pub fn mismatches(source: &Source, diagnostics: &[Diagnostic]) -> Vec<String> {
    let (mut expected, mut faults) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(source.text.lines()) {
        let Some((_, comment)) = text.split_once("//") else { continue };
        match parse_expectation(comment.trim_start_matches('/').trim(), line) {
            Ok(it) => expected.extend(it),
            Err(fault) => faults.push(format!("{}:{line}: {fault}", source.name)),
        }
    }
    // Indexed by line, because a text may have many comments and many diagnostics.
    let mut by_line: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, wanted) in expected.iter().enumerate() {
        by_line.entry(wanted.line).or_default().push(at);
    }
    let mut has_come = vec![false; expected.len()];
    for it in diagnostics {
        let line = source.lines.line(it.span().start);
        let wanted = by_line.get(&line).into_iter().flatten().copied();
        let fits = |at: &usize| {
            let wanted = &expected[*at];
            !has_come[*at] && wanted.severity == it.severity() && it.message.contains(&wanted.text)
        };
        match wanted.into_iter().find(fits) {
            Some(at) => has_come[at] = true,
            None => {
                let (severity, code) = (it.severity().name(), it.code.text());
                faults.push(format!("{}:{line}: unexpected {severity}[{code}]: {}", source.name, it.message));
            }
        }
    }
    let missing = expected.iter().zip(has_come).filter(|(_, has_come)| !has_come);
    faults.extend(missing.map(|(it, _)| {
        let severity = it.severity.name();
        format!("{}:{}: expected {severity} at line {}: {}", source.name, it.comment, it.line, it.text)
    }));
    faults
}

/// A comment that begins like an expected diagnostic and is not one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `// expected-error@+1 {{{{part of the message}}}}`")]
struct BadExpectation;

/// Parses `expected-error@+1 {{text}}`; returns `None` for any other comment.
fn parse_expectation(comment: &str, line: u32) -> Result<Option<ExpectedDiagnostic>, BadExpectation> {
    let Some(word) = comment.strip_prefix("expected-") else { return Ok(None) };
    let read = Severity::ALL.iter().find_map(|it| Some((*it, word.strip_prefix(it.name())?)));
    let Some((severity, rest)) = read else { return Ok(None) };
    let (place, text) = rest.split_once("{{").ok_or(BadExpectation)?;
    let text = text.trim_end().strip_suffix("}}").ok_or(BadExpectation)?.trim().to_owned();
    let offset: i64 = match place.trim().strip_prefix('@') {
        Some("above") => -1,
        Some("below") => 1,
        Some(number) => number.parse().map_err(|_| BadExpectation)?,
        None if place.trim().is_empty() => 0,
        None => return Err(BadExpectation),
    };
    let target = i64::from(line).checked_add(offset).and_then(|it| u32::try_from(it).ok());
    let target = target.ok_or(BadExpectation)?;
    Ok(Some(ExpectedDiagnostic { severity, line: target, text, comment: line }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_parts() {
        let split = |text: &str| {
            let source = Source::new("a".to_owned(), text.to_owned());
            split_input(&source).map(|parts| parts.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let parts = split("one\n// -----\ntwo\n// ----- \nthree\n");
        assert_eq!(parts.ok(), Some(["one\n", "two\n", "three\n"].map(str::to_owned).to_vec()));
        assert_eq!(split("// -----").ok().map(|it| it.len()), Some(2));
        let many = split(&"// -----\n".repeat(20_000));
        assert_eq!(many.err().map(|it| it.code), Some(Code::TooLarge));
    }

    #[test]
    fn comments_are_read() {
        let expected = |line, text: &str| ExpectedDiagnostic {
            severity: Severity::Error,
            line,
            text: text.to_owned(),
            comment: 5,
        };
        assert_eq!(parse_expectation("expected-error {{a b}}", 5), Ok(Some(expected(5, "a b"))));
        assert_eq!(parse_expectation("expected-error@+2 {{ x }} ", 5), Ok(Some(expected(7, "x"))));
        assert_eq!(parse_expectation("expected-error@-1 {{x}}", 5), Ok(Some(expected(4, "x"))));
        assert_eq!(parse_expectation("expected-error@above {{x}}", 5), Ok(Some(expected(4, "x"))));
        assert!(
            matches!(parse_expectation("expected-warning {{x}}", 5), Ok(Some(it)) if it.severity == Severity::Warning)
        );
        assert_eq!(parse_expectation("a comment", 5), Ok(None));
        assert!(parse_expectation("expected-error@x {{x}}", 5).is_err());
        assert!(parse_expectation("expected-error@-9 {{x}}", 5).is_err());
        assert!(parse_expectation(&format!("expected-error@+{} {{{{x}}}}", i64::MAX), 5).is_err());
        assert!(parse_expectation("expected-error {x}", 5).is_err());
    }
}
