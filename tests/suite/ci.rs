//! Tests of what a pipeline of continuous integration meets: `hir check` on many files, formats for programs, and exit codes.

use std::{fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use crate::{ROOT, timeout::RunWithTimeout};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("ci::check_takes_files_and_folders", check_takes_files_and_folders),
        Trial::test("ci::annotations_are_one_line_each", annotations_are_one_line_each),
        Trial::test("ci::json_has_no_plain_lines", json_has_no_plain_lines),
        Trial::test("ci::explain_is_that_of_hir_opt", explain_is_that_of_hir_opt),
        Trial::test("ci::help_and_completions_know_the_tools", help_and_completions_know_the_tools),
        Trial::test(
            "ci::hir_reduce_reads_the_fusions_of_its_reference",
            hir_reduce_reads_the_fusions_of_its_reference,
        ),
    ]
}

/// What a command of `hir` has printed.
pub struct Ran {
    pub exit: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs `hir` in a folder.
pub fn hir(folder: &Path, words: &[&str]) -> Result<Ran, Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
    command.args(words).current_dir(folder).env("NO_COLOR", "1").env("CUDA_VISIBLE_DEVICES", "");
    let output = command.output_with_timeout()?;
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    Ok(Ran { exit: output.status.code(), out, err })
}

/// Fails if a command did not end with `exit`.
pub fn expect_exit(ran: &Ran, exit: i32) -> Result<(), Failed> {
    if ran.exit == Some(exit) {
        Ok(())
    } else {
        Err(format!("exit code {:?} instead of {exit}\n{}{}", ran.exit, ran.out, ran.err).into())
    }
}

/// Fails if `text` does not contain `part`.
pub fn expect_part(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no `{part}` in:\n{text}").into()) }
}

const RACE: &str = "tests/cases/check/race-streams.hir";
const CLEAN: &str = "samples/ring.hir";

/// Makes a folder with a program without faults, one with a race below it, and files that are none.
fn folder() -> Result<tempfile::TempDir, Failed> {
    let folder = tempfile::tempdir()?;
    for sub in ["below", ".hidden"] {
        fs::create_dir(folder.path().join(sub))?;
        fs::copy(Path::new(ROOT).join(RACE), folder.path().join(sub).join("race.hir"))?;
    }
    fs::copy(Path::new(ROOT).join(CLEAN), folder.path().join("clean.hir"))?;
    fs::write(folder.path().join("notes.txt"), "no program")?;
    Ok(folder)
}

fn check_takes_files_and_folders() -> Result<(), Failed> {
    let folder = folder()?;
    let check = |words: &[&str]| hir(folder.path(), &[&["check"], words].concat());
    // A folder and a file in it: each file once, without those that are hidden.
    let ran = check(&[".", "./clean.hir"])?;
    expect_exit(&ran, 7)?;
    expect_part(&ran.err, "hir check: ./below/race.hir: the check found 1 fault (")?;
    expect_part(&ran.err, "hir check: 2 files: 1 without faults, 1 with faults\n")?;
    if !ran.out.is_empty() || ran.err.contains(".hidden") {
        return Err(format!("{}{}", ran.out, ran.err).into());
    }
    let ran = check(&["clean.hir"])?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "hir check: the check found no fault (8 ranks, ")?;
    // A file of which less is known counts more than a fault.
    fs::write(folder.path().join("bad.hir"), "%HostIrContainer { (")?;
    let ran = check(&["bad.hir", "below", "clean.hir"])?;
    expect_exit(&ran, 1)?;
    expect_part(&ran.err, "3 files: 1 without faults, 1 with faults, 1 rejected\n")?;
    let ran = check(&["bad.hir", "absent.hir", "below"])?;
    expect_exit(&ran, 6)?;
    expect_part(&ran.err, "cannot read `absent.hir`")?;
    expect_part(&ran.err, "3 files: 1 with faults, 1 rejected, 1 not checked\n")?;
    fs::create_dir(folder.path().join("empty"))?;
    let ran = check(&["empty"])?;
    expect_exit(&ran, 6)?;
    expect_part(&ran.err, "no `.hir` file in `empty`")?;
    expect_exit(&check(&[])?, 2)
}

fn annotations_are_one_line_each() -> Result<(), Failed> {
    let folder = folder()?;
    let ran = hir(folder.path(), &["check", ".", "absent,1.hir", "--error-format=github"])?;
    expect_exit(&ran, 6)?;
    let annotations: Vec<&str> = ran.err.lines().filter(|it| it.starts_with("::")).collect();
    // The number of faults is no annotation of its own.
    let [absent, race] = annotations[..] else { return Err(ran.err.into()) };
    expect_part(absent, "::error title=hir check::cannot read `absent,1.hir`: ")?;
    expect_part(
        race,
        "::error file=./below/race.hir,line=15,col=3,endColumn=21,title=E0701::race on `T1` of rank 0: ",
    )?;
    expect_part(race, "%0Ahelp: insert `Synchronize(Stream 1)` before line 18")?;
    let ran = hir(folder.path(), &["check", "clean.hir", "--check=none", "--error-format=github"])?;
    expect_exit(&ran, 2)?;
    expect_part(&ran.err, "::error title=hir check::")
}

fn json_has_no_plain_lines() -> Result<(), Failed> {
    let folder = folder()?;
    let check = |words: &[&str]| -> Result<Vec<serde_json::Value>, Failed> {
        let ran = hir(folder.path(), &[words, &["--error-format=json"]].concat())?;
        let lines = ran.err.lines().map(|line| serde_json::from_str(line).map_err(|_| line.into()));
        lines.collect()
    };
    let lines = check(&["check", ".", "absent.hir"])?;
    let messages: Vec<_> = lines.iter().map(|it| (&it["file"], &it["code"], &it["severity"])).collect();
    let none = serde_json::Value::Null;
    let expected = [
        (&none, "error"),
        (&"./below/race.hir".into(), "error"),
        (&"./below/race.hir".into(), "error"),
        (&none, "remark"),
    ];
    let has = messages.iter().map(|it| (it.0, it.2.as_str().unwrap_or_default())).eq(expected);
    if !has || messages[1].1 != "E0701" {
        return Err(format!("{lines:#?}").into());
    }
    check(&["hang", "absent"])?;
    check(&["opt", "clean.hir", "--passes=remove-dead-code", "--bisect"])?;
    let refused = check(&["opt", "clean.hir", "--passes=remove-dead-code", "--timing"])?;
    expect_part(&refused[0].to_string(), "`--timing` prints text to standard error, which is JSON lines")
}

fn explain_is_that_of_hir_opt() -> Result<(), Failed> {
    for (words, same) in [
        (&["explain", "e0801"][..], &["opt", "--explain", "E0801"][..]),
        (&["explain"], &["opt", "--explain"]),
    ] {
        let [have, want] = [words, same].map(|it| hir(Path::new(ROOT), it));
        let (have, want) = (have?, want?);
        if have.out != want.out || have.out.is_empty() {
            return Err(format!("{}\n{}", have.out, want.out).into());
        }
    }
    let ran = hir(Path::new(ROOT), &["explain", "E0801", "E9999"])?;
    expect_exit(&ran, 2)?;
    expect_part(&ran.err, "hir explain: no diagnostic has the code `E9999`")
}

fn help_and_completions_know_the_tools() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let help = hir(folder.path(), &["help", "hang"])?;
    expect_exit(&help, 0)?;
    expect_part(&help.out, "--timeline")?;
    let script = hir(folder.path(), &["--completions", "bash"])?;
    expect_exit(&script, 0)?;
    // The name of a function has no blank.
    expect_part(&script.out, "_hir() {")?;
    expect_part(&script.out, "--timeline")?;
    let part = hir(folder.path(), &["hang", "--completions", "bash"])?;
    expect_exit(&part, 2)
}

/// Only the fusion states that the reference reduces with a maximum.
fn hir_reduce_reads_the_fusions_of_its_reference() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let log = Path::new(ROOT).join("tests/cases/log/reduction-operator.hir");
    let text = fs::read_to_string(&log)?;
    let container = text.find("%HostIrContainer {").and_then(|at| text.get(at..)).ok_or("no container")?;
    fs::write(folder.path().join("reference.hir"), container)?;
    let sum = container.replacen("team=(0 1), ", "team=(0 1), red_op=SUM, ", 1);
    fs::write(folder.path().join("sum.hir"), sum)?;
    let log = log.display().to_string();
    let words =
        ["reduce", "sum.hir", "--oracle", "wrong-result", "--reference", "reference.hir", "--fusions", &log];
    expect_exit(&hir(folder.path(), &words)?, 0)?;
    // Without it, both are sums.
    expect_exit(&hir(folder.path(), &words[..6])?, 1)
}
