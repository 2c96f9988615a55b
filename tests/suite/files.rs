//! Checks that a failed write leaves every file as it was.
//!
//! The shell limits the size of files (`ulimit -f`, in blocks), so that a write fails as on a full disk.
//! Every limit is tried, from zero blocks to one that is large enough. After each run, a file must have its
//! old contents or its new ones, and the folder must contain nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use libtest_mimic::{Failed, Trial};

use crate::ROOT;
use crate::timeout::RunWithTimeout;

/// Contents of the old file, unless it is a program.
const OLD: &str = "old contents\n";
/// Maximum limit to try, in blocks. No file of these commands is as large.
const MOST_BLOCKS: usize = 200;

/// A command that writes a file. `{}` in it stands for the file.
struct Writer {
    name: &'static str,
    tool: &'static str,
    line: &'static [&'static str],
    file: &'static str,
    /// The initial contents of the file: those of another file, or `OLD` if `None`.
    source: Option<&'static str>,
    /// The exit code if everything is written.
    exit: i32,
}

const WRITERS: &[Writer] = &[
    Writer {
        name: "a_program_is_rewritten_in_place",
        tool: env!("CARGO_BIN_EXE_hir-opt"),
        line: &["{}", "--passes", "unroll", "-o", "{}"],
        file: "a.hir",
        source: Some("tests/cases/overlap/ring.hir"),
        exit: 0,
    },
    Writer {
        name: "a_dump_replaces_an_older_one",
        tool: env!("CARGO_BIN_EXE_hir-opt"),
        line: &["tests/cases/overlap/ring.hir", "--passes", "canonicalize", "--print-ir-tree-dir", "{.}"],
        file: "00-canonicalize.hir",
        source: None,
        exit: 0,
    },
    Writer {
        name: "an_npy_file_replaces_an_older_one",
        tool: env!("CARGO_BIN_EXE_hir-run"),
        line: &["tests/cases/errors/unreadable-npy.hir", "--output", "T1=@{}"],
        file: "y.npy",
        source: None,
        exit: 0,
    },
    Writer {
        name: "a_safetensors_file_replaces_an_older_one",
        tool: env!("CARGO_BIN_EXE_hir-run"),
        line: &["tests/cases/errors/unreadable-npy.hir", "--output", "T1=@{}#y"],
        file: "y.safetensors",
        source: None,
        exit: 0,
    },
    Writer {
        name: "a_reduced_program_replaces_its_source",
        tool: env!("CARGO_BIN_EXE_hir"),
        line: &["reduce", "{}", "--oracle", "cmd:grep -q relu", "--max-tests", "3", "-o", "{}"],
        file: "a.hir",
        source: Some("tests/cases/errors/unreadable-npy.hir"),
        exit: 0,
    },
];

/// Returns the trials about files that tools write.
pub fn trials() -> Vec<Trial> {
    let writers = WRITERS.iter().map(|it| Trial::test(format!("files::{}", it.name), || fails_anywhere(it)));
    let others = [
        Trial::test("files::only_one_module_writes_files", only_one_module_writes_files),
        Trial::test("files::open_descriptors_and_fifos_are_written", open_descriptors_and_fifos_are_written),
        Trial::test("files::a_full_device_is_reported", a_full_device_is_reported)
            .with_ignored_flag(!Path::new("/dev/full").exists()),
        Trial::test("files::a_fifo_without_a_reader_is_reported", a_fifo_without_a_reader_is_reported),
        Trial::test("files::a_dump_is_not_overwritten", a_dump_is_not_overwritten),
        Trial::test("files::names_write_no_lines_of_their_own", names_write_no_lines_of_their_own),
        Trial::test("files::lines_of_a_batch_write_their_own_files", lines_of_a_batch_write_their_own_files),
    ];
    writers.chain(others).collect()
}

/// Creates a folder for one trial.
fn folder(name: &str) -> Result<PathBuf, Failed> {
    let folder = std::env::temp_dir().join(format!("hir-files-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn a_dump_is_not_overwritten() -> Result<(), Failed> {
    let folder = folder("dump")?;
    let log = folder.join("job.log");
    fs::copy(format!("{ROOT}/docs/examples/job-hangs.log"), &log)?;
    let old = fs::read(&log)?;
    let hang = |path: &Path, option: &str, file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        command.arg("hang").arg(path).args([option, file]).current_dir(&folder).output_with_timeout()
    };
    for output in [hang(&log, "-o", "./job.log")?, hang(&folder, "-o", "job.log")?] {
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(2) || !said.contains("would overwrite") || fs::read(&log)? != old {
            return Err(format!("{output:?}").into());
        }
    }
    // A program of an earlier call is replaced.
    for _ in 0..2 {
        let output = hang(&folder, "-o", "hang.hir")?;
        if output.status.code() != Some(4) {
            return Err(format!("{output:?}").into());
        }
    }
    Ok(fs::remove_dir_all(&folder)?)
}

/// A line that begins with `::` is a command in the log of a CI job.
fn names_write_no_lines_of_their_own() -> Result<(), Failed> {
    const NAME: &str = "a\n::error title=x::y.hir";
    const PROGRAM: &str = "docs/examples/mlp.hir";
    for line in [&[NAME][..], &["certify", "--original", PROGRAM, NAME], &["opt", NAME], &["hang", NAME]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        let output = command.args(line).current_dir(ROOT).output_with_timeout()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || said.lines().any(|it| it.trim_start().starts_with("::")) {
            return Err(format!("{line:?}: {said}").into());
        }
    }
    // A name writes no line that looks like another message, either.
    let folder = folder("names")?;
    let path = folder.join("a\r\nhir: forged.hir");
    fs::write(&path, "no program")?;
    for line in [["check", "--error-format=short"], ["opt", "--error-format=human"], ["run", "--input=T0=@x"]]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        let paths = [path.clone(), folder.join("absent\nhir: forged.hir")];
        let output = command
            .args(line)
            .args(&paths[..if line[0] == "check" { 2 } else { 1 }])
            .output_with_timeout()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if output.status.success() || said.lines().any(|it| it.starts_with("hir: forged")) {
            return Err(format!("{line:?}: {said}").into());
        }
    }
    // Nor does a name that begins the line.
    fs::write(folder.join("::error file=x::y.hir"), "no program")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
    let line = ["check", "--error-format=short", "--", "::error file=x::y.hir"];
    let output = command.args(line).current_dir(&folder).output_with_timeout()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.starts_with("./::error file=x::y.hir:1:") {
        return Err(format!("{line:?}: {said}").into());
    }
    Ok(fs::remove_dir_all(&folder)?)
}

fn fails_anywhere(writer: &Writer) -> Result<(), Failed> {
    let folder = folder(writer.name)?;
    let path = folder.join(writer.file);
    let old = writer.source.map_or(Ok(OLD.to_owned()), fs::read_to_string)?;
    fs::write(&path, &old)?;
    run(writer, &path, None)?;
    let new = fs::read(&path)?;
    let mut failures = 0;
    for blocks in 0..MOST_BLOCKS {
        fs::write(&path, &old)?;
        let output = run(writer, &path, Some(blocks))?;
        let names: Vec<_> = fs::read_dir(&folder)?.map(|it| it.map(|it| it.file_name())).collect();
        let shown = || format!("{blocks} blocks: {output:?} {names:?}");
        if names.len() != 1 {
            return Err(shown().into());
        }
        let left = fs::read(&path)?;
        match output.status.code() {
            Some(code) if code == writer.exit && left == new => {
                fs::remove_dir_all(&folder)?;
                // A trial in which no write fails proves nothing.
                return if failures > 0 { Ok(()) } else { Err("no write failed".into()) };
            }
            Some(code) if code > 0 && left == old.as_bytes() => failures += 1,
            Some(_) | None => return Err(shown().into()),
        }
    }
    Err(format!("{} fails even with a limit of {MOST_BLOCKS} blocks", writer.name).into())
}

/// Runs a command with a limit on the size of files, in blocks.
fn run(writer: &Writer, path: &Path, blocks: Option<usize>) -> Result<Output, Failed> {
    let (file, folder) = (path.display().to_string(), path.parent().unwrap_or(path).display().to_string());
    let words = writer.line.iter().map(|it| it.replace("{}", &file).replace("{.}", &folder));
    // The tool must also survive the signal of the limit.
    let limit = blocks.map_or(String::new(), |it| format!("ulimit -f {it}; "));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit}exec \"$0\" \"$@\""), writer.tool]).args(words);
    shell.current_dir(ROOT).env("NO_COLOR", "1").stdin(Stdio::null());
    Ok(shell.output_with_timeout()?)
}

/// A file that is not a regular file is written in place: the name of a terminal or a pipe is not replaced.
fn open_descriptors_and_fifos_are_written() -> Result<(), Failed> {
    let folder = folder("descriptors")?;
    let fifo = folder.join("fifo").display().to_string();
    let tool = env!("CARGO_BIN_EXE_hir-opt");
    let ring = format!("{ROOT}/tests/cases/overlap/ring.hir");
    let script = format!(
        "set -e; {tool} {ring} > plain; {tool} {ring} -o /dev/stdout > out; cmp plain out; \
         {{ echo first; {tool} {ring} -o /dev/stdout; }} > both; test \"$(head -n 1 both)\" = first; \
         {tool} {ring} -o - > dash; cmp plain dash; \
         {tool} {ring} --check -o /dev/stdout > out 2> err; cmp plain out; \
         {tool} {ring} --fix > plain-fix; {tool} {ring} --fix -o /dev/stdout > out; cmp plain-fix out; \
         echo first > both; {tool} {ring} -o /dev/stdout >> both; tail -n +2 both | cmp plain -; mkfifo {fifo}; cat {fifo} > piped & \
         {tool} {ring} -o {fifo}; wait; cmp plain piped; test -p {fifo}"
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(&folder).output_with_timeout()?;
    fs::remove_dir_all(&folder)?;
    if output.status.success() { Ok(()) } else { Err(format!("{output:?}").into()) }
}

/// Every option that writes a file says that it could not, with exit code 6.
fn a_full_device_is_reported() -> Result<(), Failed> {
    let (opt, run) = (env!("CARGO_BIN_EXE_hir-opt"), env!("CARGO_BIN_EXE_hir-run"));
    let hir = env!("CARGO_BIN_EXE_hir");
    let (program, race) = ("tests/cases/overlap/ring.hir", "tests/cases/check/race-streams.hir");
    let vector = "tests/cases/errors/unreadable-npy.hir";
    let folder = folder("full")?;
    let link = |name: &str| {
        let path = folder.join(name);
        std::os::unix::fs::symlink("/dev/full", &path).map(|()| path.display().to_string())
    };
    let (svg, tensor) = (link("t.svg")?, format!("T1=@{}", link("y.npy")?));
    for (tool, arguments) in [
        (opt, &[program, "-o", "/dev/full"][..]),
        (opt, &[program, "--timeline", &svg]),
        (opt, &[race, "--check", "--witness", "/dev/full"]),
        (opt, &["--list-passes", "-o", "/dev/full"]),
        (run, &[program, "--timeline", &svg]),
        (run, &[vector, "--output", &tensor]),
        (run, &[race, "--check=off", "--schedule=explore:20", "--witness", "/dev/full"]),
        (hir, &["reduce", race, "--oracle", "race", "-o", "/dev/full"]),
    ] {
        let mut command = Command::new(tool);
        let output = command.args(arguments).current_dir(ROOT).output_with_timeout()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(6) || !said.contains("cannot write") {
            return Err(format!("{arguments:?}: {output:?}").into());
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Nobody opens the other end: the tools say so instead of waiting for it without end.
fn a_fifo_without_a_reader_is_reported() -> Result<(), Failed> {
    let folder = folder("no-reader")?;
    let fifo = folder.join("fifo").display().to_string();
    let (opt, hir) = (env!("CARGO_BIN_EXE_hir-opt"), env!("CARGO_BIN_EXE_hir"));
    let script = format!(
        "mkfifo {fifo}; {opt} tests/cases/overlap/ring.hir -o {fifo} & first=$!; \
         {hir} reduce tests/cases/errors/unreadable-npy.hir --oracle 'cmd:grep -q relu' --max-tests 1 -qo {fifo} & second=$!; \
         wait $first; echo $?; wait $second; echo $?; test -p {fifo}"
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(ROOT).output_with_timeout()?;
    fs::remove_dir_all(&folder)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let is_reported = said.matches("fifo: no process reads this FIFO (waited 5s)").count() == 2;
    if is_reported && output.stdout == b"6\n6\n" && output.status.success() {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}

/// A file that two lines would write is refused before the first of them runs.
fn lines_of_a_batch_write_their_own_files() -> Result<(), Failed> {
    let folder = folder("batch")?;
    let (tool, program) =
        (env!("CARGO_BIN_EXE_hir-run"), format!("{ROOT}/tests/cases/errors/unreadable-npy.hir"));
    let run = |options: &str, lines: [&str; 2]| {
        let text = lines.map(|it| format!("{program} --device=sim {it}\n")).concat();
        fs::write(folder.join("batch.txt"), text)?;
        let script = format!("ln -sf y.npy link.npy; exec {tool} --batch batch.txt {options}");
        Command::new("sh").args(["-c", &script]).current_dir(&folder).output_with_timeout()
    };
    let refused = [
        ("", ["--output T1=@y.npy", "--output T1=@./y.npy"]),
        ("", ["--output T1=@y.npy", "--output T1=@link.npy"]),
        ("", ["--output T1@local=@y.%r.npy", "--output T1@local=@y.%r.npy"]),
        ("", ["--timeline t.svg", "--timeline t.svg"]),
        ("--timeline t.svg", ["", ""]),
    ];
    for (options, lines) in refused {
        let output = run(options, lines)?;
        let said = String::from_utf8_lossy(&output.stdout);
        let is_refused =
            said.starts_with("[FAILED] not run: batch.txt:2: ") && output.status.code() == Some(2);
        if !is_refused || folder.join("y.npy").is_file() || folder.join("t.svg").exists() {
            return Err(format!("{lines:?}: {output:?}").into());
        }
    }
    let output = run("", ["--output T1=@y.npy --timeline t.svg", "--output T1=@z.npy --timeline u.svg"])?;
    let are_written = ["y.npy", "z.npy", "t.svg", "u.svg"].iter().all(|it| folder.join(it).is_file());
    fs::remove_dir_all(&folder)?;
    if are_written && output.status.success() { Ok(()) } else { Err(format!("{output:?}").into()) }
}

/// Code that writes a file by other means would lose the old one on a full disk.
fn only_one_module_writes_files() -> Result<(), Failed> {
    let mut found = Vec::new();
    for path in crate::files(&Path::new(ROOT).join("src"), "rs") {
        let (text, name) = (fs::read_to_string(&path)?, path.display().to_string());
        // Exempt: test modules, which create their own files; secrets, which are never replaced; the temporary
        // files of the reducer; and the empty file that claims a report.
        let is_exempt = [
            "src/process/atomic_file.rs",
            "tests.rs",
            "/tests/",
            "src/driver/reduce/failure_test.rs",
            "src/launch/secret",
            "src/launch/report_claim.rs",
        ];
        if is_exempt.iter().any(|it| name.contains(it)) {
            continue;
        }
        let writers = ["fs::write(", "File::create", "OpenOptions", "fs::rename("];
        // An example in the documentation of a package is a test.
        let code = (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with("//!"));
        let lines = code.filter(|(_, line)| writers.iter().any(|it| line.contains(it)));
        found.extend(lines.map(|(number, line)| format!("{name}:{number}: {}", line.trim())));
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n").into()) }
}
