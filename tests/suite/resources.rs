//! Little memory, a small stack, hostile sizes, FIFOs and our own bugs: every tool ends with a message and a documented exit code.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use libtest_mimic::{Failed, Trial};

use crate::{ROOT, limited::Limited, ranks};

const OPT: &str = env!("CARGO_BIN_EXE_hir-opt");
const RUN: &str = env!("CARGO_BIN_EXE_hir-run");
const REDUCE: &str = env!("CARGO_BIN_EXE_hir-reduce");

/// For what has to happen soon, on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

/// Trials about resources.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("resources::refused_memory_is_reported", refused_memory_is_reported),
        Trial::test("resources::a_small_stack_is_enough", a_small_stack_is_enough),
        Trial::test("resources::many_parts_are_refused", many_parts_are_refused),
        Trial::test("resources::many_expected_errors_take_little_time", many_expected_errors),
        Trial::test("resources::inlining_has_a_limit", inlining_has_a_limit),
        Trial::test("resources::unrolling_has_a_limit", unrolling_has_a_limit),
        Trial::test("resources::many_axes_take_little_time", many_axes_take_little_time),
        Trial::test("resources::a_thousand_passes_run", a_thousand_passes_run),
        Trial::test("resources::a_fifo_without_a_writer_is_reported", a_fifo_without_a_writer_is_reported),
        Trial::test("resources::an_interrupt_ends_the_wait_for_a_writer", an_interrupt_ends_the_wait),
        Trial::test("resources::an_input_comes_from_a_fifo", an_input_comes_from_a_fifo),
        Trial::test("resources::a_substituted_process_is_read", a_substituted_process_is_read),
        Trial::test("resources::endless_files_are_refused", endless_files_are_refused),
    ];
    // Release builds have no way to make a tool panic.
    for tool in [OPT, RUN, REDUCE] {
        let name = Path::new(tool).file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        let trial = Trial::test(format!("resources::a_bug_of_{name}_leaves_a_reproducer"), || bug(tool));
        trials.push(trial.with_ignored_flag(!cfg!(debug_assertions)));
    }
    trials
}

/// A folder for one trial.
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

/// Runs a shell script without GPUs; `$OPT`, `$RUN` and `$REDUCE` in it are the tools.
fn shell(script: &str) -> Result<Output, Failed> {
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).current_dir(ROOT).envs([("OPT", OPT), ("RUN", RUN), ("REDUCE", REDUCE)]);
    bash.envs([("NO_COLOR", "1"), ("CUDA_VISIBLE_DEVICES", ""), ("HIR_CUDA", "/no/libcuda.so.1")]);
    Ok(bash.limited()?)
}

fn holds(holds: bool, output: &Output) -> Result<(), Failed> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
    match holds {
        true => Ok(()),
        false => Err(format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            output.status,
            shown(&output.stdout),
            shown(&output.stderr)
        )
        .into()),
    }
}

/// A script that ends with this code, and says this on standard error.
fn ends(script: &str, code: i32, says: &str) -> Result<(), Failed> {
    let output = shell(script)?;
    let is_said = String::from_utf8_lossy(&output.stderr).contains(says);
    holds(output.status.code() == Some(code) && is_said, &output)
        .map_err(|fault| format!("{script}: {:?}", fault.message()).into())
}

fn container(body: &str, definitions: &str) -> String {
    format!(
        "%HostIrContainer {{ (T0_g_float[iS0{{4}}]) -> (T0_g_float[iS0{{4}}]) :\n{body}}} // %HostIrContainer\n\
         \nIndex definitions:\n{definitions}"
    )
}

/// From the first limit on address space at which a tool starts, every limit is enough or ends with 6; files stay whole.
fn refused_memory_is_reported() -> Result<(), Failed> {
    let folder = Folder::new("memory")?;
    let program = folder.file("a.hir", &container(&"  SetCurrentStream(Stream 1)\n".repeat(40_000), ""))?;
    let output = folder.0.join("out.hir").display().to_string();
    for line in [
        format!("$OPT {program} --passes unroll -o {output}"),
        format!("$RUN {program} --device=sim"),
        "$RUN samples/ring.hir --device=sim".to_owned(),
        format!("$REDUCE {program} --oracle race"),
    ] {
        let (mut refused, mut started, mut kibibytes) = (0, false, 30_000);
        loop {
            fs::write(&output, "old")?;
            let ended = shell(&format!("ulimit -v {kibibytes}; exec {line}"))?;
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            let is_whole = !line.contains("-o") || fs::read(&output)? == b"old" || ended.status.success();
            match ended.status.code() {
                // The race that hir-reduce looks for is not there.
                Some(0 | 1) => break,
                Some(6) if is_whole => {
                    let is_ours = said.contains(": out of memory: the system refuses ");
                    let others =
                        ["cannot start a thread", "memory cannot hold", "out of memory", "cannot handle"];
                    holds(is_ours || others.iter().any(|it| said.contains(it)), &ended)?;
                    refused += usize::from(is_ours);
                    started = true;
                }
                // The dynamic loader, before the tool begins.
                Some(127) | None if !started => (),
                Some(_) | None => return holds(false, &ended),
            }
            kibibytes += kibibytes / 24;
            if kibibytes > 4_000_000 {
                return holds(false, &ended);
            }
        }
        if refused == 0 {
            return Err(format!("{line}: memory was never refused").into());
        }
    }
    Ok(())
}

/// Nesting has limits of its own, whatever `ulimit -s` and RUST_MIN_STACK say.
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
    let (blocks_message, brackets) = ("more than 200 loops", "more than 200 brackets");
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
        let lines = ["$OPT {} --print-plan", "$RUN {} --device=sim", "$REDUCE {} --oracle race"];
        for line in lines.map(|it| it.replace("{}", &path)) {
            ends(&format!("ulimit -s 128; RUST_MIN_STACK=1 exec {line}"), 1, message)?;
        }
    }
    // The deepest that is read is printed, checked, rewritten, planned and run.
    let text = blocks("FOR i1 from 0 to 1:", 199).replace("FOR i1 ", "FOR i0 ");
    let numbered: Vec<String> =
        text.lines().enumerate().map(|(at, it)| it.replace("i0 from", &format!("i{at} from"))).collect();
    let path = folder.file("deepest.hir", &(numbered.join("\n") + "\n"))?;
    ends(&format!("ulimit -s 128; $OPT {path} --passes @default,unroll --verify-each=semantic"), 0, "")?;
    ends(&format!("ulimit -s 128; $RUN {path} --device=sim"), 0, "")
}

fn many_parts_are_refused() -> Result<(), Failed> {
    let folder = Folder::new("parts")?;
    let path = folder.file("a.hir", &"// -----\n".repeat(100_000))?;
    ends(&format!("ulimit -v 1000000; exec $OPT {path} --split-input-file"), 1, "E0409")
}

/// They took time that grows with the square of their number: 60,000 took 8 s.
fn many_expected_errors() -> Result<(), Failed> {
    let folder = Folder::new("expected")?;
    let body = "  garbage garbage // expected-error {{another}}\n".repeat(250_000);
    let path = folder.file("a.hir", &container(&body, ""))?;
    ends(&format!("exec timeout 60 $OPT {path} --verify-diagnostics"), 1, "expected error at line 2: another")
}

fn inlining_has_a_limit() -> Result<(), Failed> {
    let folder = Folder::new("inlining")?;
    let doubled: String = (1..13).map(|at| format!("  i{at} = i{} + i{};\n", at - 1, at - 1)).collect();
    let body = "  SetCurrentStream(Stream i12)\n".repeat(30_000);
    let path = folder.file("a.hir", &container(&body, &format!("  i0 = rank;\n{doubled}")))?;
    ends(&format!("exec $OPT {path} --passes inline-definitions"), 1, "more than 10000000 parts")?;
    ends(&format!("exec $OPT {path} --passes canonicalize"), 0, "")
}

fn unrolling_has_a_limit() -> Result<(), Failed> {
    let folder = Folder::new("unrolling")?;
    let text = container("  FOR i1 from 0 to 1000000000000:\n    SetCurrentStream(Stream i1)\n", "");
    let path = folder.file("a.hir", &text)?;
    ends(&format!("exec $OPT {path} --passes unroll"), 1, "`factor=…`")
}

/// They took time that grows with the square of their number: 20,000 took 17 s.
fn many_axes_take_little_time() -> Result<(), Failed> {
    let folder = Folder::new("axes")?;
    let axes: Vec<String> = (0..40_000).map(|at| format!("iS{at}{{1}}")).collect();
    let text =
        format!("%HostIrContainer {{ (T0_g_float[{}]) -> () :\n}} // %HostIrContainer\n", axes.join(", "));
    let path = folder.file("a.hir", &text)?;
    ends(&format!("exec timeout 40 $RUN {path} --device=sim"), 0, "")
}

fn a_thousand_passes_run() -> Result<(), Failed> {
    let passes = ["canonicalize"; 1000].join(",");
    ends(&format!("exec $OPT samples/column-parallel.hir --passes {passes}"), 0, "")
}

/// A tool that waits for a writer of a FIFO, and has said so.
fn waiting(fifo: &Path) -> Result<Child, Failed> {
    holds_status(&Command::new("mkfifo").arg(fifo).limited()?)?;
    let mut command = Command::new(OPT);
    command.arg(fifo).env("NO_COLOR", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    let stderr = child.stderr.as_mut().ok_or("no standard error")?;
    BufReader::with_capacity(1, stderr).read_line(&mut line)?;
    let wanted = format!("hir-opt: waiting for a writer of the FIFO `{}`\n", fifo.display());
    match line == wanted {
        true => Ok(child),
        false => {
            child.kill()?;
            Err(line.into())
        }
    }
}

fn holds_status(output: &Output) -> Result<(), Failed> {
    holds(output.status.success(), output)
}

fn a_fifo_without_a_writer_is_reported() -> Result<(), Failed> {
    let folder = Folder::new("fifo")?;
    let fifo = folder.0.join("a.hir");
    let child = waiting(&fifo)?;
    let text = fs::read(Path::new(ROOT).join("samples/ring.hir"))?;
    fs::OpenOptions::new()
        .append(true)
        .open(&fifo)
        .and_then(|mut it| std::io::Write::write_all(&mut it, &text))?;
    let ended = ranks::end(vec![child], SOON)?.pop().ok_or("no process")?;
    match ended.0 == Some(0) && ended.1.starts_with("%HostIrContainer") {
        true => Ok(()),
        false => Err(format!("{ended:?}").into()),
    }
}

fn an_interrupt_ends_the_wait() -> Result<(), Failed> {
    let folder = Folder::new("interrupted")?;
    let child = waiting(&folder.0.join("a.hir"))?;
    holds_status(&Command::new("kill").args(["-INT", "--", &child.id().to_string()]).limited()?)?;
    let ended = ranks::end(vec![child], SOON)?.pop().ok_or("no process")?;
    match ended.0 == Some(130) && ended.2.contains("stopped by SIGINT while reading") {
        true => Ok(()),
        false => Err(format!("{ended:?}").into()),
    }
}

/// A FIFO gives its contents once, and a run reads an input's shape before its elements.
fn an_input_comes_from_a_fifo() -> Result<(), Failed> {
    let folder = Folder::new("input")?;
    let text = "%HostIrContainer { (T0_g_float[iS0{i0}]) -> (T1_g_float[iS1{i0}]) :\n  T1_g_float[iS1{i0}] = \
                relu(T0_g_float[iS0{i0}])\n} // %HostIrContainer\n";
    let program = folder.file("a.hir", text)?;
    let header = format!("{:117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
    let bytes =
        [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &1.5f32.to_le_bytes(), &(-2f32).to_le_bytes()];
    let (npy, fifo) = (folder.0.join("x.npy"), folder.0.join("fifo.npy"));
    fs::write(&npy, bytes.concat())?;
    let (npy, fifo) = (npy.display(), fifo.display());
    let output = shell(&format!(
        "mkfifo {fifo}; cat {npy} > {fifo} & timeout 60 $RUN {program} --device=sim --input T0=@{fifo} --output T1=-"
    ))?;
    let is_right = String::from_utf8_lossy(&output.stdout).contains("T1 2xf32= 1.5 0\n");
    holds(output.status.success() && is_right, &output)
}

fn a_substituted_process_is_read() -> Result<(), Failed> {
    let output = shell("exec $OPT <(sleep 2; cat samples/ring.hir)")?;
    holds(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty(), &output)
}

fn endless_files_are_refused() -> Result<(), Failed> {
    let message = "gives more than 256 MiB";
    for line in [
        "$OPT /dev/zero",
        "$OPT --run-reproducer /dev/zero",
        "$RUN /dev/zero",
        "$RUN --batch /dev/zero",
        "$REDUCE /dev/zero --oracle race",
    ] {
        ends(&format!("exec {line}"), 6, message)?;
    }
    Ok(())
}

/// One file that only its owner reads, with the program and how to run it again; the message says where.
fn bug(tool: &str) -> Result<(), Failed> {
    let name = Path::new(tool).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = Folder::new(&name)?;
    let mut command = Command::new(tool);
    command.args(["samples/ring.hir", "--set", "numberOfStreams=3"]).current_dir(ROOT);
    command.args(if tool == REDUCE { &["--oracle", "race"][..] } else { &[] });
    command.envs([("NO_COLOR", "1"), ("HIR_TEST_PANIC", "1"), ("CUDA_VISIBLE_DEVICES", "")]);
    let output = command.env("TMPDIR", &folder.0).limited()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default();
    let path = last.strip_prefix(&format!("{name}: reproducer written to "));
    let Some(path) = path.filter(|_| output.status.code() == Some(101)) else { return holds(false, &output) };
    let (text, about) = (fs::read_to_string(path)?, fs::metadata(path)?);
    let source = fs::read_to_string(Path::new(ROOT).join("samples/ring.hir"))?;
    let is_alone = fs::read_dir(&folder.0)?.count() == 1;
    let begins = format!("// {name} reproducer: panic: HIR_TEST_PANIC is set\n");
    let is_told = text.starts_with(&begins) && text.contains("numberOfStreams=3") && text.ends_with(&source);
    match about.mode() & 0o777 == 0o600 && is_alone && is_told {
        true => Ok(()),
        false => Err(format!("{:o} {is_alone} {text}", about.mode()).into()),
    }
}
