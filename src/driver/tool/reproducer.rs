//! Reproducers: files that reproduce a failure of a pass. They contain the program before the pass and, in
//! comments, the command line that runs it again.
//!
//! ```text
//! // hir-opt reproducer: pass `fuse` panicked: index out of bounds
//! // --passes=fuse{depth=2}
//! // --verify-each=structural
//! %HostIrContainer { … }
//! ```
//!
//! `crash_reproducer` writes such a file when a tool crashes.

use std::{io, path::Path};

use grammar::InvalidOption;
use hir_process::input_file::InputFiles;

pub mod crash_reproducer;

/// The beginning of the first line of a reproducer for hir-opt.
const TITLE: &str = "// hir-opt reproducer: ";

/// The flags that a reproducer may set; other flags do not affect whether a pass or the planner fails.
const FLAGS: &[&str] = &[
    "--passes",
    "--verify-each",
    "--verify-roundtrip",
    "--ranks",
    "--rank",
    "--max-ranks",
    "--memory-limit",
    "--max-work",
    "--set",
    "--print-plan",
    "--print-hb",
    "--check",
    "--check-model",
    "--nccl",
    "--p2p",
    "--profile",
    "--storage",
    "--bisect",
];

/// Returns the text of a reproducer for a tool. `lines` give the command to run it again; for hir-opt, each
/// line is one `--name=value`.
pub fn text(tool: &str, failure: &str, lines: &[String], program: &str) -> String {
    let failure = failure.lines().next().unwrap_or_default();
    let lines: String = lines.iter().map(|it| format!("// {it}\n")).collect();
    format!("// {tool} reproducer: {failure}\n{lines}{program}")
}

/// Why the flags of a reproducer cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReproducerError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a reproducer.
    #[error(transparent)]
    Invalid(InvalidOption),
}

/// Reads the flags of a reproducer.
///
/// # Errors
/// The file cannot be read, or is not a reproducer.
pub fn flags(files: &InputFiles, path: &Path) -> Result<Vec<String>, ReproducerError> {
    let text = String::from_utf8(files.read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a text file"))?;
    read(&text).map_err(|reason| ReproducerError::Invalid(format!("`{}` {reason}", path.display()).into()))
}

fn read(text: &str) -> Result<Vec<String>, InvalidOption> {
    let mut comments = text.lines().take_while(|line| line.starts_with("//"));
    if !comments.any(|line| line.starts_with(TITLE)) {
        return Err(format!(
            "is not a reproducer: none of its first lines begins with `{}`",
            TITLE.trim_end()
        )
        .into());
    }
    let flags = comments.filter_map(|line| line.strip_prefix("// ").filter(|it| it.starts_with("--")));
    flags
        .map(|flag| {
            let name = flag.split_once('=').map_or(flag, |(name, _)| name);
            if FLAGS.contains(&name) {
                Ok(flag.to_owned())
            } else {
                Err(format!("sets `{name}`: a reproducer may set {}", FLAGS.join(", ")).into())
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let flags = ["--passes=fuse{names={a, b}}".to_owned(), "--ranks=8".to_owned()];
        let text = text(
            "hir-opt",
            "pass `fuse` panicked: one\ntwo",
            &flags,
            "%HostIrContainer\n// --passes=other\n",
        );
        assert!(
            text.starts_with("// hir-opt reproducer: pass `fuse` panicked: one\n// --passes=fuse{"),
            "{text}"
        );
        assert_eq!(read(&text), Ok(flags.to_vec()));
        assert!(read("// --passes=fuse\n").is_err());
        let foreign = read("// hir-opt reproducer: x\n// --output=a\n");
        assert!(foreign.is_err_and(|it| it.to_string().starts_with("sets `--output`")));
    }
}
