//! Parses the command lines of a batch file (`--batch`).

use std::{collections::BTreeMap, ffi::OsString, iter::once, path::PathBuf};

use clap::Parser;
use grammar::InvalidOption;

use super::{
    command_line::Options,
    option_files::{OptionFile, exclusive_destination},
};
use crate::{tensor_file::TensorFile, tool};

/// A command line of a batch file.
pub struct BatchLine {
    /// 1-based line number in the file.
    pub number: usize,
    /// The text of the line.
    pub text: String,
    /// The parsed options, including those that apply to all lines.
    pub options: Options,
}

/// A line of a batch file that is refused.
#[derive(Debug, thiserror::Error)]
#[error("{number}: {reason}")]
pub struct BadLine {
    /// 1-based line number in the file.
    pub number: usize,
    /// Why.
    pub reason: InvalidOption,
}

/// Parses the lines of a batch file, each after the `common` options. Blank lines and comments (`#`) are
/// skipped.
///
/// # Errors
/// The first invalid line.
pub fn parse_batch(text: &str, common: &[OsString]) -> Result<Vec<BatchLine>, BadLine> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(number, line): (usize, &str)| {
        let wrong = |reason| BadLine { number, reason };
        let words = shlex::split(line).ok_or_else(|| wrong("a quote is not closed".into()))?;
        let own = words.iter().map(OsString::from);
        let words_of_tool = once("hir-run".into()).chain(common.iter().cloned()).chain(own);
        let options = Options::try_parse_from(words_of_tool)
            .map_err(|it| wrong(tool::usage::error_text(&it, &words).into()))?;
        Ok(BatchLine { number, text: line.to_owned(), options })
    };
    lines.map(read).collect()
}

/// Checks that no two lines write the same file. Several lines may add to one table of `--tune`.
///
/// # Errors
/// The second of the two lines.
pub fn check_destinations(lines: &[BatchLine]) -> Result<(), BadLine> {
    let mut written: BTreeMap<PathBuf, (usize, &str)> = BTreeMap::new();
    for line in lines {
        let tables = ["--tune", "--tuning"];
        let files = line.options.option_files();
        let tensors: Vec<TensorFile> =
            line.options.output.iter().filter_map(|it| it.value.parse().ok()).collect();
        let tensors = tensors.iter().map(|it| OptionFile { option: "--output", path: it.path() });
        let files = files.into_iter().filter(|it| !tables.contains(&it.option)).chain(tensors);
        for OptionFile { option, path } in files {
            let Some(destination) = exclusive_destination(path) else { continue };
            let (first, other) = *written.entry(destination).or_insert((line.number, option));
            if first != line.number {
                let shown = path.display();
                let why = format!(
                    "`{option}` would replace `{shown}`, which `{other}` of line {first} writes: use another file"
                );
                return Err(BadLine { number: line.number, reason: why.into() });
            }
        }
    }
    Ok(())
}

/// Removes `--batch` and `--config`, which apply to the whole job, and their values from a command line.
pub fn without_batch(words: Vec<OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut rest = Vec::new();
    while let Some(word) = words.next() {
        match word.as_encoded_bytes() {
            b"--batch" | b"--config" => drop(words.next()),
            it if it.starts_with(b"--batch=") || it.starts_with(b"--config=") => {}
            _ => rest.push(word),
        }
    }
    rest
}
