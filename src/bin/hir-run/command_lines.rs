//! The command lines of a batch file.

use std::{ffi::OsString, iter::once};

use clap::Parser;
use hir::tool;

use crate::options::Options;

/// A command line of a batch file.
pub struct BatchLine {
    /// Its number in the file, from 1.
    pub number: usize,
    /// As it stands there.
    pub text: String,
    /// With those that are for all lines.
    pub options: Options,
}

/// The command lines of a text, each behind the options that are for all of them. Blank lines and comments (`#`) are skipped.
///
/// # Errors
/// The number of the first line that is no command line, and why.
pub fn parse_batch(text: &str, common: &[OsString]) -> Result<Vec<BatchLine>, (usize, String)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(number, line): (usize, &str)| {
        let words = shlex::split(line).ok_or_else(|| (number, "a quote is not closed".to_owned()))?;
        let words = words.into_iter().map(OsString::from);
        let words = once("hir-run".into()).chain(common.iter().cloned()).chain(words);
        let options = Options::try_parse_from(words).map_err(|it| (number, tool::usage_error_text(&it)))?;
        Ok(BatchLine { number, text: line.to_owned(), options })
    };
    lines.map(read).collect()
}

/// The words of a command line without `--batch` and its value.
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
