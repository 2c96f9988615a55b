//! Runs the example of each code (`hir explain`): its command reports the code, and does not after the edit.

use std::{fs, path::PathBuf};

use grammar::codes::{Code, Severity};
use libtest_mimic::{Failed, Trial};

use crate::ci::{Ran, expect_exit, hir};

pub fn trials() -> Vec<Trial> {
    let trial = |code: &Code| {
        let code = *code;
        Trial::test(format!("explained::{}", code.text()), move || check(code))
    };
    Code::ALL.iter().map(trial).collect()
}

fn check(code: Code) -> Result<(), Failed> {
    let text = code.example();
    if text.is_empty() {
        // A pass of hir would have to be wrong.
        return if code == Code::Miscompiled { Ok(()) } else { Err("no example".into()) };
    }
    let [before, after] = ["-", "+"].map(|side| run(text, side));
    let (before, after) = (before?, after?);
    let names = [format!("[{}]", code.text()), format!("\"code\":\"{}\"", code.text())];
    let reports = |it: &Ran| names.iter().any(|name| it.out.contains(name) || it.err.contains(name));
    let fails = before.exit != Some(0) || code.severity() != Severity::Error;
    if !reports(&before) || !fails || reports(&after) {
        return Err(
            format!("{}{}\nafter the edit:\n{}{}", before.out, before.err, after.out, after.err).into()
        );
    }
    // With the lost records, the dumps show which rank diverged.
    expect_exit(&after, if code == Code::HangUndecided { 4 } else { 0 })
}

/// Runs the command of an example in a folder with its files: without the lines of the other side, which are behind `-` before the edit
/// and behind `+` after it.
fn run(text: &str, side: &str) -> Result<Ran, Failed> {
    let folder = tempfile::tempdir()?;
    let (mut command, mut files) = (None, Vec::<(PathBuf, String)>::new());
    for line in text.lines() {
        let (mark, rest) = line.split_at(line.len().min(2));
        let line = match mark.trim_end() {
            it @ ("-" | "+") if it != side => continue,
            "-" | "+" | "" => rest,
            _ => line,
        };
        if let Some(words) = line.strip_prefix("$ hir ") {
            command = shlex::split(words);
        } else if let (false, Some(name)) = (mark.starts_with([' ', '-', '+']), line.strip_suffix(':')) {
            files.push((folder.path().join(name), String::new()));
        } else {
            let (_, lines) = files.last_mut().ok_or("a line before the name of its file")?;
            *lines += line;
            lines.push('\n');
        }
    }
    for (path, lines) in files.iter().filter(|it| !it.1.is_empty()) {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, lines)?;
    }
    let words = command.ok_or("no command")?;
    hir(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>())
}
