//! Checks that every tool ends with a message and a documented exit code with little memory, a small stack,
//! hostile sizes and names, FIFOs (`streams`), and after an internal error.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};

use crate::{ROOT, timeout::RunWithTimeout};

mod streams;

const OPT: &str = env!("CARGO_BIN_EXE_hir-opt");
const RUN: &str = env!("CARGO_BIN_EXE_hir-run");
const HIR: &str = env!("CARGO_BIN_EXE_hir");

/// Returns the trials about resources.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("resources::refused_memory_is_reported", refused_memory_is_reported),
        Trial::test(
            "resources::the_memory_limit_holds_for_the_whole_tool",
            the_memory_limit_holds_for_the_whole_tool,
        ),
        Trial::test("resources::a_small_stack_is_enough", a_small_stack_is_enough),
        Trial::test("resources::many_parts_are_refused", many_parts_are_refused),
        Trial::test("resources::many_expected_errors_take_little_time", many_expected_errors),
        Trial::test("resources::inlining_has_a_limit", inlining_has_a_limit),
        Trial::test("resources::unrolling_has_a_limit", unrolling_has_a_limit),
        Trial::test("resources::many_axes_take_little_time", many_axes_take_little_time),
        Trial::test("resources::many_undeclared_names_take_little_time", many_undeclared_names),
        Trial::test("resources::a_thousand_passes_run", a_thousand_passes_run),
        Trial::test("resources::many_containers_take_little_time", many_containers_take_little_time),
        Trial::test(
            "resources::a_command_that_cannot_run_is_reported",
            a_command_that_cannot_run_is_reported,
        ),
        Trial::test("resources::names_need_not_be_utf_8", names_need_not_be_utf_8),
    ];
    trials.extend(streams::trials());
    // In a release build a tool cannot be made to panic.
    for (name, tool) in [("hir-opt", OPT), ("hir-run", RUN), ("hir reduce", HIR)] {
        let trial = format!("resources::a_bug_of_{}_leaves_a_reproducer", name.replace(['-', ' '], "_"));
        let trial = Trial::test(trial, || bug(name, tool));
        trials.push(trial.with_ignored_flag(!cfg!(debug_assertions)));
    }
    trials
}

/// A temporary folder for one trial.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, Failed> {
        let folder = std::env::temp_dir().join(format!("hir-resources-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    fn file(&self, name: &str, text: &str) -> Result<String, Failed> {
        let path = self.0.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a shell script without GPUs. `$OPT`, `$RUN` and `$HIR` are the tools.
fn shell(script: &str) -> Result<Output, Failed> {
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).current_dir(ROOT).envs([("OPT", OPT), ("RUN", RUN), ("HIR", HIR)]);
    bash.envs([("NO_COLOR", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("HIR_CUDA", "/no/libcuda.so.1")]);
    Ok(bash.output_with_timeout()?)
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>, Failed> {
    let names = fs::read_dir(folder)?.map(|it| Ok(it?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<std::io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn expect(holds: bool, output: &Output) -> Result<(), Failed> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    if holds {
        Ok(())
    } else {
        Err(format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            output.status,
            shown(&output.stdout),
            shown(&output.stderr)
        )
        .into())
    }
}

/// Checks that a script ends with `code` and prints `says` to standard error.
fn expect_exit(script: &str, code: i32, says: &str) -> Result<(), Failed> {
    let output = shell(script)?;
    let is_said = String::from_utf8_lossy(&output.stderr).contains(says);
    expect(output.status.code() == Some(code) && is_said, &output)
        .map_err(|fault| format!("{script}: {:?}", fault.message()).into())
}

fn container(body: &str, definitions: &str) -> String {
    format!(
        "%HostIrContainer {{ (T0_g_float[iS0{{4}}]) -> (T0_g_float[iS0{{4}}]) :\n{body}}} // %HostIrContainer\n\
         \nIndex definitions:\n{definitions}"
    )
}

/// From the smallest limit on address space with which a tool starts, every limit is sufficient or the tool
/// ends with 6. Files are never truncated.
fn refused_memory_is_reported() -> Result<(), Failed> {
    let folder = Folder::new("memory")?;
    let program = folder.file("a.hir", &container(&"  SetCurrentStream(Stream 1)\n".repeat(40_000), ""))?;
    let output = folder.0.join("out.hir").display().to_string();
    let temporary = folder.0.join("temporary");
    fs::create_dir(&temporary)?;
    let temporary = temporary.display();
    for line in [
        format!("$OPT {program} --passes unroll -o {output}"),
        format!("$RUN {program} --device=sim"),
        "$RUN tests/cases/overlap/ring.hir --device=sim".to_owned(),
        format!("$HIR reduce {program} --oracle race"),
    ] {
        let (mut refused, mut started, mut kibibytes) = (0, false, 30_000);
        loop {
            fs::write(&output, "old")?;
            let ended = shell(&format!("ulimit -v {kibibytes}; TMPDIR={temporary} exec {line}"))?;
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            let is_whole = !line.contains("-o") || fs::read(&output)? == b"old" || ended.status.success();
            match ended.status.code() {
                // hir reduce ends with 1, because the program does not have the race that it looks for.
                Some(0 | 1) => break,
                Some(6) if is_whole && names(&folder.0)? == ["a.hir", "out.hir", "temporary"] => {
                    if !names(&folder.0.join("temporary"))?.is_empty() {
                        return Err(format!("{line}: leaves a temporary file: {said}").into());
                    }
                    let is_ours = said.contains(": out of memory: an allocation of ");
                    let others =
                        ["cannot start a thread", "memory cannot hold", "out of memory", "cannot handle"];
                    expect(is_ours || others.iter().any(|it| said.contains(it)), &ended)?;
                    refused += usize::from(is_ours);
                    started = true;
                }
                // glibc itself needs memory when a thread starts, and ends the process if there is none.
                None if said.starts_with("Fatal glibc error") && is_whole => (),
                // The dynamic loader failed before the tool started.
                Some(127) | None if !started => (),
                Some(_) | None => return expect(false, &ended),
            }
            kibibytes += kibibytes / 12;
            if kibibytes > 4_000_000 {
                return expect(false, &ended);
            }
        }
        if refused == 0 {
            return Err(format!("{line}: no limit on memory was too small").into());
        }
    }
    Ok(())
}

/// While a tool waits for its text, the system already limits its data to `--memory-limit` and the allowance.
fn the_memory_limit_holds_for_the_whole_tool() -> Result<(), Failed> {
    let folder = Folder::new("memory-limit")?;
    let fifo = folder.0.join("a.hir").display().to_string();
    shell(&format!("mkfifo {fifo}"))?;
    for tool in ["$OPT {}", "$RUN {} --device=sim", "$HIR reduce {} --oracle race"] {
        let line = tool.replace("{}", &fifo);
        let script = format!(
            "{line} --memory-limit=3 & tool=$!; for i in $(seq 100); do sleep 0.05; \
             grep -q '^Max data size *5368709120 ' /proc/$tool/limits && break; done; \
             grep '^Max data size' /proc/$tool/limits >&2; kill $tool"
        );
        expect_exit(&script, 0, " 5368709120 ")?;
    }
    Ok(())
}

/// Nesting has its own limits, independent of `ulimit -s` and RUST_MIN_STACK.
fn a_small_stack_is_enough() -> Result<(), Failed> {
    let folder = Folder::new("stack")?;
    let blocks = |header: &str, depth: usize| {
        let lines = (0..depth).map(|at| format!("{}{header}\n", " ".repeat(2 + at)));
        let last = format!("{}SetCurrentStream(Stream 0)\n", " ".repeat(2 + depth));
        container(&(lines.collect::<String>() + &last), "")
    };
    let stream = |index: &str, definitions: &str| {
        container(&format!("  SetCurrentStream(Stream {index})\n"), definitions)
    };
    let chain: String = (1..20_000).map(|at| format!("  i{at} = i{} + 1;\n", at - 1)).collect();
    let chain = stream("i19999", &format!("  i0 = rank;\n{chain}"));
    let (blocks_message, brackets) = ("more than 200 nested loops", "more than 200 nested brackets");
    for (name, text, message) in [
        ("for", blocks("FOR i1 from 0 to 1:", 10_000), blocks_message),
        ("if", blocks("IF Manual ( ( rank < 5 ) ):", 10_000), blocks_message),
        ("brackets", stream(&format!("{}rank{}", "(".repeat(100_000), ")".repeat(100_000)), ""), brackets),
        ("minus", stream(&format!("{}rank", "-".repeat(100_000)), ""), brackets),
        ("plus", stream(&format!("{}rank", "1 + ".repeat(100_000)), ""), brackets),
        ("calls", stream(&"ceilDiv(".repeat(100_000), ""), brackets),
        ("definitions", chain, "more than 1000 deep"),
    ] {
        let path = folder.file(&format!("{name}.hir"), &text)?;
        let lines = ["$OPT {} --print-plan", "$RUN {} --device=sim", "$HIR reduce {} --oracle race"];
        for line in lines.map(|it| it.replace("{}", &path)) {
            expect_exit(&format!("ulimit -s 128; RUST_MIN_STACK=1 exec {line}"), 1, message)?;
        }
    }
    // The deepest program that is read can also be printed, checked, rewritten, planned and run.
    let text = blocks("FOR i1 from 0 to 1:", 199).replace("FOR i1 ", "FOR i0 ");
    let numbered: Vec<String> =
        text.lines().enumerate().map(|(at, it)| it.replace("i0 from", &format!("i{at} from"))).collect();
    let path = folder.file("deepest.hir", &(numbered.join("\n") + "\n"))?;
    expect_exit(
        &format!("ulimit -s 128; $OPT {path} --passes @default,unroll --verify-each=semantic"),
        0,
        "",
    )?;
    expect_exit(&format!("ulimit -s 128; $RUN {path} --device=sim"), 0, "")
}

fn many_parts_are_refused() -> Result<(), Failed> {
    let folder = Folder::new("parts")?;
    let path = folder.file("a.hir", &"// -----\n".repeat(100_000))?;
    expect_exit(&format!("ulimit -v 1000000; exec $OPT {path} --split-input-file"), 1, "E0409")?;
    // The place of the error is behind the text of its line: printing it did not end.
    let path = folder.file("returns.hir", &"\r".repeat(100_000))?;
    expect_exit(&format!("ulimit -t 20; exec $OPT {path}"), 1, "E0103")
}

/// The time was quadratic in the number of expected errors: 60,000 took 8 s.
fn many_expected_errors() -> Result<(), Failed> {
    let folder = Folder::new("expected")?;
    let body = "  garbage garbage // expected-error {{another}}\n".repeat(60_000);
    let path = folder.file("a.hir", &container(&body, ""))?;
    expect_exit(
        // Time of the processor: other tests run beside this one.
        &format!("ulimit -t 20; exec $OPT {path} --verify-diagnostics"),
        1,
        "expected error at line 2: another",
    )
}

fn inlining_has_a_limit() -> Result<(), Failed> {
    let folder = Folder::new("inlining")?;
    let doubled: String = (1..13).map(|at| format!("  i{at} = i{} + i{};\n", at - 1, at - 1)).collect();
    let body = "  SetCurrentStream(Stream i12)\n".repeat(30_000);
    let path = folder.file("a.hir", &container(&body, &format!("  i0 = rank;\n{doubled}")))?;
    expect_exit(&format!("exec $OPT {path} --passes inline-definitions"), 1, "more than 10000000 parts")?;
    expect_exit(&format!("exec $OPT {path} --passes canonicalize"), 0, "")
}

fn unrolling_has_a_limit() -> Result<(), Failed> {
    let folder = Folder::new("unrolling")?;
    let text = container("  FOR i1 from 0 to 1000000000000:\n    SetCurrentStream(Stream i1)\n", "");
    let path = folder.file("a.hir", &text)?;
    expect_exit(&format!("exec $OPT {path} --passes unroll"), 1, "`factor=…`")?;
    // A hundred million iterations of an empty body took 7 GB.
    let path = folder.file("empty.hir", &container("  FOR i1 from 0 to 100000000:\n", ""))?;
    for pass in ["unroll", "unroll{factor=50000000}"] {
        let script = format!("ulimit -v 500000; exec timeout 20 $OPT {path} --passes '{pass}'");
        expect_exit(&script, 0, "")?;
    }
    Ok(())
}

/// The time was quadratic in the number of axes: 20,000 took 17 s.
fn many_axes_take_little_time() -> Result<(), Failed> {
    let folder = Folder::new("axes")?;
    let axes: Vec<String> = (0..40_000).map(|at| format!("iS{at}{{1}}")).collect();
    let text =
        format!("%HostIrContainer {{ (T0_g_float[{}]) -> () :\n}} // %HostIrContainer\n", axes.join(", "));
    let path = folder.file("a.hir", &text)?;
    expect_exit(&format!("exec timeout 40 $RUN {path} --device=sim"), 0, "")
}

/// The time was quadratic in the number of undeclared names, each of which was searched for in the whole text.
fn many_undeclared_names() -> Result<(), Failed> {
    let folder = Folder::new("undeclared")?;
    let body: String =
        (0..64_000).map(|at| format!("  T{} = Set( T{} )\n", 2 * at + 1, 2 * at + 2)).collect();
    let path = folder.file("a.hir", &container(&body, ""))?;
    expect_exit(&format!("exec timeout 10 $OPT {path}"), 1, "`T1` is not declared")
}

fn a_thousand_passes_run() -> Result<(), Failed> {
    let passes = ["canonicalize"; 1000].join(",");
    expect_exit(&format!("exec $OPT tests/cases/overlap/column-parallel.hir --passes {passes}"), 0, "")
}

/// The time was quadratic in the number of containers: 100,000 took 7 s.
fn many_containers_take_little_time() -> Result<(), Failed> {
    let folder = Folder::new("containers")?;
    let path = folder.file("a.hir", &"%HostIrContainer {\n".repeat(400_000))?;
    expect_exit(&format!("exec timeout 40 $OPT {path}"), 1, "the container is never closed")
}

/// A command that cannot run gives no verdict on a program. The smallest program found so far is written, and
/// the exit code is that of the environment.
fn a_command_that_cannot_run_is_reported() -> Result<(), Failed> {
    let folder = Folder::new("command")?;
    let program = folder.file("a.hir", &container(&"  SetCurrentStream(Stream 1)\n".repeat(1000), ""))?;
    let (output, temporary) = (folder.0.join("out.hir"), folder.0.join("temporary"));
    fs::create_dir(&temporary)?;
    let line = |command: &str| {
        let (output, temporary) = (output.display(), temporary.display());
        format!("TMPDIR={temporary} exec $HIR reduce {program} --oracle 'cmd:{command}' -o {output}")
    };
    expect_exit(&format!("ulimit -n 6; {}", line("true")), 6, "cannot run `true`: Too many open files")?;
    // The folder of the candidates disappears after some tests.
    let after_some = "echo >> $TMPDIR/count; test $(wc -l < $TMPDIR/count) -lt 4 || rm -r $(dirname %s)";
    expect_exit(&line(after_some), 6, "No such file or directory")?;
    let left = names(&temporary)?;
    if left == ["count"] && fs::read_to_string(&output)?.starts_with("%HostIrContainer") {
        Ok(())
    } else {
        Err(format!("{left:?}").into())
    }
}

/// Reproducers and batches contain the command line, and a file name in it may contain any bytes.
fn names_need_not_be_utf_8() -> Result<(), Failed> {
    let folder = Folder::new("names")?;
    let path = folder.0.display();
    let program = format!("{ROOT}/tests/cases/overlap/ring.hir");
    let name = format!("{path}/$'\\xff'.x");
    expect_exit(&format!("exec $HIR reduce {program} --oracle cmd:true -o {name}"), 0, "")?;
    expect_exit(&format!("exec $RUN {program} --device=sim -n 1 -J {name}"), 0, "")?;
    expect_exit(&format!("echo {program} > {name}; exec $RUN --batch {name} --device=sim"), 0, "")?;
    expect_exit(&format!("echo {program} > {name}; exec $RUN --batch={name} --device=sim"), 0, "")?;
    expect_exit(
        &format!("HIR_TEST_PANIC=1 TMPDIR={path} exec $HIR reduce {program} --oracle race -o {name}"),
        101,
        "\u{fffd}.x",
    )
}

/// An internal error leaves one file that only its owner can read, with the program and the command line that
/// runs it again. The message names the file.
fn bug(name: &str, tool: &str) -> Result<(), Failed> {
    let folder = Folder::new(&name.replace(' ', "-"))?;
    let mut command = Command::new(tool);
    let (subcommand, options): (&[_], &[_]) =
        if tool == HIR { (&["reduce"], &["--oracle", "race"]) } else { (&[], &[]) };
    command.args(subcommand).args(["tests/cases/overlap/ring.hir", "--set", "numberOfStreams=3"]);
    command.args(options).current_dir(ROOT);
    command.envs([("NO_COLOR", "1"), ("HIR_TEST_PANIC", "1"), ("CUDA_VISIBLE_DEVICES", "")]);
    let output = command.env("TMPDIR", &folder.0).output_with_timeout()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default();
    let path = last.strip_prefix(&format!("{name}: reproducer written to "));
    let Some(path) = path.filter(|_| output.status.code() == Some(101)) else {
        return expect(false, &output);
    };
    let (text, about) = (fs::read_to_string(path)?, fs::metadata(path)?);
    let source = fs::read_to_string(Path::new(ROOT).join("tests/cases/overlap/ring.hir"))?;
    let is_alone = fs::read_dir(&folder.0)?.count() == 1;
    let begins = format!("// {name} reproducer: panic: HIR_TEST_PANIC is set\n");
    let is_complete =
        text.starts_with(&begins) && text.contains("numberOfStreams=3") && text.ends_with(&source);
    if about.mode() & 0o777 == 0o600 && is_alone && is_complete {
        Ok(())
    } else {
        Err(format!("{:o} {is_alone} {text}", about.mode()).into())
    }
}
