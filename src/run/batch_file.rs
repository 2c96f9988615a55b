//! Parses the command lines of a batch file (`--batch`).

use std::{ffi::OsString, iter::once};

use super::command_line::Options;
use crate::tool;
use clap::Parser;

/// A command line of a batch file.
pub struct BatchLine {
    /// 1-based line number in the file.
    pub number: usize,
    /// The text of the line.
    pub text: String,
    /// The parsed options, including those that apply to all lines.
    pub options: Options,
}

/// Parses the lines of a batch file, each after the `common` options. Blank lines and comments (`#`) are
/// skipped.
///
/// # Errors
/// The number of the first invalid line, and the reason.
pub fn parse_batch(text: &str, common: &[OsString]) -> Result<Vec<BatchLine>, (usize, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(number, line): (usize, &str)| {
        let words = shlex::split(line).ok_or_else(|| (number, "a quote is not closed".to_owned()))?;
        let words = words.into_iter().map(OsString::from);
        let words = once("hir-run".into()).chain(common.iter().cloned()).chain(words);
        let options = Options::try_parse_from(words).map_err(|it| (number, tool::usage::error_text(&it)))?;
        Ok(BatchLine { number, text: line.to_owned(), options })
    };
    lines.map(read).collect()
}

/// Removes `--batch` and its value from a command line.
pub fn without_batch(words: Vec<OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut rest = Vec::new();
    while let Some(word) = words.next() {
        match word.as_encoded_bytes() {
            b"--batch" => drop(words.next()),
            it if it.starts_with(b"--batch=") => {}
            _ => rest.push(word),
        }
    }
    rest
}
