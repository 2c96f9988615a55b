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
        Trial::test("ci::a_simulated_run_writes_its_verdict", a_simulated_run_writes_its_verdict),
        Trial::test("ci::fixes_are_the_edits_of_fix", fixes_are_the_edits_of_fix),
        Trial::test("ci::comments_allow_findings", comments_allow_findings),
        Trial::test("ci::a_file_sets_defaults", a_file_sets_defaults),
        Trial::test("ci::a_baseline_has_what_is_known", a_baseline_has_what_is_known),
        Trial::test("ci::other_systems_read_what_was_found", other_systems_read_what_was_found),
        Trial::test("ci::a_wrong_file_of_defaults_is_refused", a_wrong_file_of_defaults_is_refused),
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
const CLEAN: &str = "tests/cases/overlap/ring.hir";
/// A module without faults.
const MODULE: &str = "tests/cases/stablehlo/type-aliases.mlir";
const SYMBOL: &str = "\
%HostIrContainer { (T0_g_float[iS0{i0}] (DeviceMesh{0})) -> (T1_g_float[iS1{i0}] (DeviceMesh{0})) :
  T1_g_float[iS1{i0}] (DeviceMesh{0})
     = Set( T0_g_float[iS0{i0}] (DeviceMesh{0}) )
} // %HostIrContainer
";

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
    // A link that leads nowhere, and one that leads to itself.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere.hir", folder.path().join("below/lost.hir"))?;
        std::os::unix::fs::symlink("itself.hir", folder.path().join("below/itself.hir"))?;
        let ran = check(&["."])?;
        expect_exit(&ran, 6)?;
        expect_part(&ran.err, "hir check: 4 files: 1 without faults, 1 with faults, 2 not checked\n")?;
        fs::remove_file(folder.path().join("below/lost.hir"))?;
        fs::remove_file(folder.path().join("below/itself.hir"))?;
    }
    if !ran.out.is_empty() || ran.err.contains(".hidden") {
        return Err(format!("{}{}", ran.out, ran.err).into());
    }
    // Programs have the values of their own scalars.
    fs::write(folder.path().join("symbol.hir"), SYMBOL)?;
    let ran = check(&["symbol.hir", "clean.hir", "--set=i0=4"])?;
    expect_exit(&ran, 0)?;
    let ran = check(&["symbol.hir", "clean.hir", "--set=i0=4", "--set=i9=4"])?;
    expect_exit(&ran, 2)?;
    expect_part(&ran.err, "hir check: `--set i9=4`: no program that was read has a scalar `i9`\n")?;
    fs::remove_file(folder.path().join("symbol.hir"))?;
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
    expect_part(&ran.err, "no `.hir` or `.mlir` file in `empty`")?;
    // A folder of StableHLO modules.
    fs::copy(Path::new(ROOT).join(MODULE), folder.path().join("empty/module.mlir"))?;
    let ran = check(&["empty"])?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "hir check: the check found no fault (1 rank, ")?;
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

/// Each command prints a completion script and a manual page, also behind its other arguments. The script of a part of `hir` is that of
/// `hir`, which completes the options of all parts.
fn help_and_completions_know_the_tools() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let help = hir(folder.path(), &["help", "hang"])?;
    expect_exit(&help, 0)?;
    expect_part(&help.out, "--timeline")?;
    let listed = hir(folder.path(), &["--help"])?.out;
    let commands = listed.lines().skip_while(|it| *it != "Commands:").skip(1).take_while(|it| !it.is_empty());
    // Lines that continue a description are indented further.
    let commands = commands.filter_map(|it| it.strip_prefix("  ")?.split_once(' ')).map(|it| it.0);
    let commands: Vec<&str> = commands.filter(|it| !it.is_empty() && *it != "help").collect();
    if commands.len() < 12 {
        return Err(format!("{commands:?}").into());
    }
    let whole = hir(folder.path(), &["--completions", "bash"])?.out;
    // The name of a function has no blank.
    expect_part(&whole, "_hir() {")?;
    let behind = ["tune", "collectives"];
    let of_hir = [&[][..], &behind[..]].into_iter().chain(commands.iter().map(std::slice::from_ref));
    for words in of_hir {
        let script = hir(folder.path(), &[words, &["--completions=bash"]].concat())?;
        let man = hir(folder.path(), &[words, &["--man"]].concat())?;
        expect_part(&man.out, ".SH OPTIONS")?;
        if script.out != whole {
            return Err(format!("{words:?}: {}{}", script.out, script.err).into());
        }
        let Some(name) = words.first() else { continue };
        let help = hir(folder.path(), &[name, "--help"])?.out;
        let case = whole.split(&format!("hir__subcmd__{name})\n")).nth(1).unwrap_or_default();
        let options = case.lines().next().unwrap_or_default();
        let flags =
            help.lines().filter(|it| it.trim_start().starts_with('-')).filter_map(|it| it.split_once("--"));
        for (_, flag) in flags {
            let flag: String =
                flag.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '-').collect();
            expect_part(options, &format!("--{flag}"))?;
        }
    }
    for tool in [env!("CARGO_BIN_EXE_hir-opt"), env!("CARGO_BIN_EXE_hir-run")] {
        let name = tool.rsplit('/').next().unwrap_or_default();
        let function = name.replace('-', "__");
        for (option, expected) in
            [("--completions=bash", format!("complete -F _{function}")), ("--man", format!(".TH {name}"))]
        {
            let out = Command::new(tool).args(["f.hir", option]).output_with_timeout()?;
            expect_part(&String::from_utf8_lossy(&out.stdout), &expected)?;
        }
    }
    let certify = |option: &str| {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let read = |_: &Path| Ok(Vec::new());
        let system = hir_certify::System { read: &read, stdout: &mut stdout, stderr: &mut stderr };
        let exit = hir_certify::main_with([option.into()].into_iter(), system);
        (exit, String::from_utf8_lossy(&stdout).into_owned())
    };
    expect_part(&certify("--completions=bash").1, "complete -F _hir__certify")?;
    expect_part(&certify("--man").1, ".SH OPTIONS")?;
    let wrong = hir(folder.path(), &["check", "--completions", "moon"])?;
    expect_exit(&wrong, 2)
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

/// The file of `-J` has the verdict, also on a program that hangs or is rejected; where standard error is for programs, it has a verdict
/// that no diagnostic says.
fn a_simulated_run_writes_its_verdict() -> Result<(), Failed> {
    let folder = folder()?;
    let at = |name: &str| folder.path().join(name);
    let json = || -> Result<serde_json::Value, Failed> {
        Ok(serde_json::from_str(&fs::read_to_string(at("verdict.json"))?)?)
    };
    let run = |words: &[&str]| hir(folder.path(), &[&["run", "-J", "verdict.json"], words].concat());
    expect_exit(&run(&["clean.hir"])?, 0)?;
    let it = json()?;
    let figures = &it["overlap"]["ranks"][7];
    let has_figures = figures["rank"] == 7 && figures["hidden"].as_f64().is_some_and(|it| it > 0.0);
    if it["exit_code"] != 0 || it["ranks"] != 8 || it["program"][0] != "clean.hir" || !has_figures {
        return Err(format!("{it:#}").into());
    }
    expect_part(&it["verdict"].to_string(), "[SUCCESS] ")?;
    fs::copy(Path::new(ROOT).join("tests/cases/deadlock/one-rank-skips.hir"), at("hang.hir"))?;
    let ran = run(&["hang.hir", "--error-format=github"])?;
    expect_exit(&ran, 4)?;
    expect_part(
        &ran.err,
        "::error file=hang.hir,title=hir-run::deadlock: rank 3 never posts Communication 3",
    )?;
    let it = json()?;
    if it["exit_code"] != 4 || it["ranks"] != 4 {
        return Err(format!("{it:#}").into());
    }
    expect_part(&it["verdict"].to_string(), "[FAILED] deadlock: rank 3 never posts")?;
    fs::write(at("bad.hir"), "%HostIrContainer { (")?;
    expect_exit(&run(&["bad.hir"])?, 1)?;
    let it = json()?;
    if it["exit_code"] != 1 || !it["ranks"].is_null() {
        return Err(format!("{it:#}").into());
    }
    // A race is found before the run.
    expect_exit(&run(&["below/race.hir"])?, 7)?;
    if json()?["exit_code"] != 7 {
        return Err("a race has another exit code in the file".into());
    }
    let ran = hir(folder.path(), &["run", "clean.hir", "-J", "clean.hir"])?;
    expect_exit(&ran, 2)?;
    if fs::read(at("clean.hir"))? != fs::read(Path::new(ROOT).join(CLEAN))? {
        return Err("`-J` has replaced the program".into());
    }
    let ran = hir(folder.path(), &["run", "clean.hir", "-J", "absent/verdict.json"])?;
    expect_exit(&ran, 6)?;
    expect_part(&ran.out, "[FAILED] cannot write `absent/verdict.json`")
}

/// With `--fix`, the edits in JSON turn the file into what `--fix` writes, and SARIF has as many.
fn fixes_are_the_edits_of_fix() -> Result<(), Failed> {
    let folder = folder()?;
    let (program, fixed) = (folder.path().join("a.hir"), folder.path().join("fixed.hir"));
    let mut changed = 0;
    for case in crate::files(&Path::new(ROOT).join("tests/cases/fix"), "hir") {
        let text = fs::read_to_string(&case)?;
        fs::write(&program, &text)?;
        for mode in ["--fix", "--fix=check"] {
            let fix = |format: &str| {
                hir(folder.path(), &["opt", "a.hir", mode, "-o", "fixed.hir", "--error-format", format])
            };
            let _ = fs::remove_file(&fixed);
            let ran = fix("json")?;
            let Ok(written) = fs::read_to_string(&fixed) else { continue };
            let lines = ran.err.lines().map(serde_json::from_str);
            let lines: Vec<serde_json::Value> = lines.collect::<Result<_, _>>()?;
            let edits: Vec<_> = lines.iter().filter(|it| it["code"] == "R0101").collect();
            let mut edited = text.clone();
            for it in edits.iter().rev() {
                let number = |key: &str| it["fixes"][0][key].as_u64().unwrap_or(u64::MAX) as usize;
                let new = it["fixes"][0]["text"].as_str().ok_or("no text")?;
                edited.replace_range(number("start")..number("end"), new);
            }
            if edited != written {
                let case = case.display();
                return Err(
                    format!("{case} {mode}: the edits give\n{edited}\nbut the file is\n{written}").into()
                );
            }
            let log: serde_json::Value = serde_json::from_str(&fix("sarif")?.err)?;
            let results = log["runs"][0]["results"].as_array().ok_or("no results")?;
            let replaced = |it: &serde_json::Value| {
                it["ruleId"] == "R0101" && it["fixes"][0]["artifactChanges"][0]["replacements"][0].is_object()
            };
            if results.iter().filter(|it| replaced(it)).count() != edits.len() {
                return Err(format!("{log:#}").into());
            }
            changed += usize::from(written != text);
        }
    }
    if changed < 20 { Err(format!("only {changed} texts change").into()) } else { Ok(()) }
}

fn a_baseline_has_what_is_known() -> Result<(), Failed> {
    let folder = folder()?;
    let check =
        |words: &[&str]| hir(folder.path(), &[&["check", ".", "--baseline=known.json"], words].concat());
    let ran = check(&[])?;
    expect_exit(&ran, 6)?;
    expect_part(&ran.err, "cannot read `known.json`: ")?;
    let ran = check(&["--update-baseline"])?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "`known.json` has 1 finding: 1 new, 0 gone\n")?;
    let ran = check(&[])?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "1 finding of `known.json`: not reported\n")?;
    // Lines before the statement change nothing. The baseline may be in another folder than the command.
    let race = folder.path().join("below/race.hir");
    let text = fs::read_to_string(&race)?;
    fs::write(&race, format!("// A comment.\n\n{text}"))?;
    expect_exit(&hir(&folder.path().join("below"), &["check", "race.hir", "--baseline=../known.json"])?, 0)?;
    // A second file with the same race is new, and stays so where only the first one is checked.
    fs::write(folder.path().join("other.hir"), &text)?;
    let ran = check(&["--error-format=short"])?;
    expect_exit(&ran, 7)?;
    expect_part(&ran.err, "./other.hir:15:3: error[E0701]: ")?;
    expect_part(&ran.err, "3 files: 2 without faults, 1 with faults, 1 fault allowed\n")?;
    if ran.err.contains("race.hir:") {
        return Err(ran.err.into());
    }
    // What is gone is said, where it was looked for, and removed when the baseline is written.
    fs::copy(folder.path().join("clean.hir"), &race)?;
    fs::remove_file(folder.path().join("other.hir"))?;
    let gone = "`known.json` has findings that are gone (1): ";
    expect_part(&check(&[])?.err, gone)?;
    if check(&["--check=memory"])?.err.contains(gone) {
        return Err("a race that was not looked for is not gone".into());
    }
    expect_part(&check(&["--update-baseline"])?.err, "`known.json` has 0 findings: 0 new, 1 gone\n")?;
    if fs::read_to_string(folder.path().join("known.json"))? != "[]\n" {
        return Err("the baseline is not empty".into());
    }
    // A program that cannot be read is not known.
    fs::write(folder.path().join("bad.hir"), "%HostIrContainer { (")?;
    expect_exit(&check(&["--update-baseline"])?, 1)?;
    fs::remove_file(folder.path().join("bad.hir"))?;
    fs::write(folder.path().join("known.json"), "{}")?;
    let ran = check(&[])?;
    expect_exit(&ran, 6)?;
    expect_part(&ran.err, "it is no baseline: ")?;
    // Entries of hir.toml that match nothing.
    fs::write(
        folder.path().join("hir.toml"),
        "allow = [\"R0703\", { code = \"E0701\", file = \"clean.hir\" }]",
    )?;
    let ran = hir(folder.path(), &["check", "."])?;
    expect_part(&ran.err, "`hir.toml` allows `R0703`, which is not found: remove the entry\n")?;
    expect_part(&ran.err, "`hir.toml` allows `E0701` in `clean.hir`, which is not found: remove the entry\n")
}

fn other_systems_read_what_was_found() -> Result<(), Failed> {
    let folder = folder()?;
    fs::write(folder.path().join("bad & worse.hir"), "%HostIrContainer { (")?;
    let check = |words: &[&str]| hir(folder.path(), &[&["check", "."], words].concat());
    let ran = check(&["--junit=junit.xml", "--gitlab=gitlab.json", "--exit-zero"])?;
    expect_exit(&ran, 1)?;
    let junit = fs::read_to_string(folder.path().join("junit.xml"))?;
    expect_part(&junit, "<testsuites tests=\"3\" failures=\"1\" errors=\"1\">\n")?;
    expect_part(&junit, "<testcase classname=\"hir check\" name=\"./clean.hir\" file=\"./clean.hir\"/>\n")?;
    expect_part(&junit, "name=\"./bad &amp; worse.hir\" file=\"./bad &amp; worse.hir\">\n<error type=\"E0")?;
    expect_part(&junit, "<failure type=\"E0701\" message=\"race on `T1` of rank 0: ")?;
    let gitlab: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("gitlab.json"))?)?;
    let [.., race] = &gitlab.as_array().ok_or("no array")?[..] else { return Err("nothing found".into()) };
    let of = |path: &str| race.pointer(path).map(ToString::to_string).unwrap_or_default();
    let found = [of("/check_name"), of("/severity"), of("/location/path"), of("/location/lines/begin")];
    if found != ["\"E0701\"", "\"major\"", "\"below/race.hir\"", "15"] {
        return Err(format!("{found:?}").into());
    }
    fs::remove_file(folder.path().join("bad & worse.hir"))?;
    expect_exit(&check(&["--exit-zero"])?, 0)?;
    // The fingerprint stays when lines are added before the statement.
    let race = folder.path().join("below/race.hir");
    fs::write(&race, format!("\n\n{}", fs::read_to_string(&race)?))?;
    check(&["--gitlab=gitlab.json"])?;
    let moved: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("gitlab.json"))?)?;
    if moved.pointer("/0/fingerprint").map(ToString::to_string) != Some(of("/fingerprint")) {
        return Err(format!("{moved:#} for {}", of("/fingerprint")).into());
    }
    Ok(())
}

fn comments_allow_findings() -> Result<(), Failed> {
    let folder = folder()?;
    let text = fs::read_to_string(folder.path().join("below/race.hir"))?;
    let allowed = |line: usize, comment: &str| -> String {
        let lines = (1..).zip(text.lines());
        lines
            .map(
                |(at, it)| {
                    if at == line { format!("  // hir: {comment}\n{it}\n") } else { format!("{it}\n") }
                },
            )
            .collect()
    };
    let check = |text: &str| -> Result<Ran, Failed> {
        fs::write(folder.path().join("a.hir"), text)?;
        hir(folder.path(), &["check", "a.hir"])
    };
    let ran = check(&allowed(15, "allow(E0701)"))?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "the check found no fault, 1 allowed (")?;
    let ran = hir(folder.path(), &["run", "a.hir"])?;
    expect_part(&ran.out, "# check: no fault but 1 that the text or hir.toml allows; ")?;
    // The comment of another statement, of another code, and of one that no text can allow.
    let ran = check(&allowed(1, "allow(E0701)"))?;
    expect_exit(&ran, 7)?;
    expect_part(
        &ran.err,
        "[W0101] Warning: `E0701` is allowed here, but this statement has no finding of this code",
    )?;
    // One without parentheses, beside the race that it was to allow.
    let ran = check(&allowed(15, "allow E0701"))?;
    expect_exit(&ran, 7)?;
    expect_part(&ran.err, "[W0101] Warning: this comment says nothing to hir")?;
    let ran = check(&allowed(15, "allow(E0701, E0702, E0102)"))?;
    expect_exit(&ran, 0)?;
    expect_part(
        &ran.err,
        "[W0101] Warning: `E0702` is allowed here, but this statement has no finding of this code",
    )?;
    expect_part(&ran.err, "[W0101] Warning: `E0102` cannot be allowed")?;
    // Without the check, nothing is known about its findings.
    let ran = hir(folder.path(), &["opt", "a.hir"])?;
    if ran.err.contains("`E0702`") {
        return Err(ran.err.into());
    }
    Ok(())
}

fn a_file_sets_defaults() -> Result<(), Failed> {
    let folder = folder()?;
    fs::create_dir(folder.path().join(".git"))?;
    let file = "error-format = \"short\"\nallow = [\"R0702\", { code = \"E0701\", file = \"below/race.hir\", line = 15 }]\n\
                [check]\nset = [\"i9=1\"]\n[opt]\nprint = \"short\"\n";
    fs::write(folder.path().join("hir.toml"), file)?;
    let below = folder.path().join("below");
    let ran = hir(&below, &["check", "race.hir"])?;
    // The program has no scalar `i9`.
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "/hir.toml` sets --set=i9?=1 --error-format=short\n")?;
    let ran = hir(folder.path(), &["check", ".", "--set", "i8=1"])?;
    expect_part(&ran.err, "`hir.toml` sets --error-format=short\n")?;
    fs::write(folder.path().join("hir.toml"), file.replace("set = [\"i9=1\"]\n", ""))?;
    let ran = hir(folder.path(), &["check", "."])?;
    expect_exit(&ran, 0)?;
    expect_part(&ran.err, "hir check: 2 files: 2 without faults, 1 fault allowed\n")?;
    // The command line replaces what the file says.
    let ran = hir(folder.path(), &["check", "bad.hir", "--error-format=json"])?;
    expect_part(&ran.err, "{\"code\":null")?;
    let ran = hir(folder.path(), &["check", "below", "--config=none"])?;
    expect_exit(&ran, 7)?;
    let ran = hir(folder.path(), &["opt", "clean.hir"])?;
    expect_part(&ran.out, "%tensor ")?;
    // The file of a folder above the repository is not read.
    fs::create_dir(below.join(".git"))?;
    expect_exit(&hir(&below, &["check", "race.hir"])?, 7)
}

fn a_wrong_file_of_defaults_is_refused() -> Result<(), Failed> {
    let folder = folder()?;
    for (text, message) in [
        ("ranks = [", "`hir.toml`: line 1: "),
        ("\nranks = 0\n", "`hir.toml`: invalid value '0' for '--ranks <RANKS>'"),
        ("output = \"x\"\n", "`hir.toml`: `output` cannot be set here: expected `allow`, "),
        ("[check]\noutput = \"x\"\n", "`hir.toml`: `[check]`: `output` cannot be set here"),
        ("[check]\ndevice = \"cuda\"\n", "`hir.toml`: `[check]`: hir check has no option `--device`"),
        ("allow = \"R0703\"\n", "`hir.toml`: `allow` needs a list of codes"),
        ("allow = [\"R9999\"]\n", "`hir.toml`: `allow`: no diagnostic has the code `R9999`"),
        ("allow = [{ code = \"R0703\", line = 3 }]\n", "`hir.toml`: `allow`: `line` needs `file`"),
    ] {
        fs::write(folder.path().join("hir.toml"), text)?;
        let ran = hir(folder.path(), &["check", "clean.hir"])?;
        expect_exit(&ran, 2)?;
        expect_part(&ran.err, message)?;
    }
    let ran = hir(folder.path(), &["check", "clean.hir", "--config", "absent.toml"])?;
    expect_exit(&ran, 2)?;
    expect_part(&ran.err, "`absent.toml`: cannot be read: ")
}
