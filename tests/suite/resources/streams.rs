//! Tests inputs that are FIFOs, devices, or too large to read.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use libtest_mimic::{Failed, Trial};

use super::{Folder, OPT, expect, expect_exit, shell};
use crate::{ROOT, ranks, timeout::RunWithTimeout};

/// Time limit for what must happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("resources::a_fifo_without_a_writer_is_reported", a_fifo_without_a_writer_is_reported),
        Trial::test("resources::an_interrupt_ends_the_wait_for_a_writer", an_interrupt_ends_the_wait),
        Trial::test("resources::an_abort_ends_a_tool", an_abort_ends_a_tool),
        Trial::test("resources::an_input_comes_from_a_fifo", an_input_comes_from_a_fifo),
        Trial::test("resources::a_substituted_process_is_read", a_substituted_process_is_read),
        Trial::test("resources::endless_files_are_refused", endless_files_are_refused),
        Trial::test("resources::large_texts_are_not_read", large_texts_are_not_read),
    ]
}

/// Starts a tool that waits for a writer of a FIFO, and waits until it has printed that.
fn waiting(fifo: &Path) -> Result<Child, Failed> {
    expect_success(&Command::new("mkfifo").arg(fifo).output_with_timeout()?)?;
    let mut command = Command::new(OPT);
    command.arg(fifo).env("NO_COLOR", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    let stderr = child.stderr.as_mut().ok_or("no standard error")?;
    BufReader::with_capacity(1, stderr).read_line(&mut line)?;
    let wanted = format!("hir-opt: waiting for a writer of the FIFO `{}`\n", fifo.display());
    if line == wanted {
        Ok(child)
    } else {
        child.kill()?;
        Err(line.into())
    }
}

fn expect_success(output: &Output) -> Result<(), Failed> {
    expect(output.status.success(), output)
}

fn a_fifo_without_a_writer_is_reported() -> Result<(), Failed> {
    let folder = Folder::new("fifo")?;
    let fifo = folder.0.join("a.hir");
    let child = waiting(&fifo)?;
    let text = fs::read(Path::new(ROOT).join("tests/cases/overlap/ring.hir"))?;
    fs::OpenOptions::new()
        .append(true)
        .open(&fifo)
        .and_then(|mut it| std::io::Write::write_all(&mut it, &text))?;
    let ended = ranks::end(vec![child], SOON)?.pop().ok_or("no process")?;
    if ended.0 == Some(0) && ended.1.starts_with("%HostIrContainer") {
        Ok(())
    } else {
        Err(format!("{ended:?}").into())
    }
}

/// Sends a signal to a tool that waits for a writer of a FIFO. Returns its exit code and what it prints.
fn ended_by(signal: &str) -> Result<(Option<i32>, String, String), Failed> {
    let folder = Folder::new(&format!("ended-by{signal}"))?;
    let child = waiting(&folder.0.join("a.hir"))?;
    expect_success(
        &Command::new("kill").args([signal, "--", &child.id().to_string()]).output_with_timeout()?,
    )?;
    Ok(ranks::end(vec![child], SOON)?.pop().ok_or("no process")?)
}

/// An abort keeps its exit status if no allocation has failed: a process without an exit code was ended by a signal.
fn an_abort_ends_a_tool() -> Result<(), Failed> {
    let ended = ended_by("-ABRT")?;
    match ended.0 {
        None => Ok(()),
        Some(_) => Err(format!("{ended:?}").into()),
    }
}

fn an_interrupt_ends_the_wait() -> Result<(), Failed> {
    let ended = ended_by("-INT")?;
    if ended.0 == Some(130) && ended.2.contains("stopped by SIGINT while reading") {
        Ok(())
    } else {
        Err(format!("{ended:?}").into())
    }
}

/// A FIFO can be read only once, and a run needs an input's shape before its elements.
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
    expect(output.status.success() && is_right, &output)
}

fn a_substituted_process_is_read() -> Result<(), Failed> {
    let output = shell("exec $OPT <(sleep 2; cat tests/cases/overlap/ring.hir)")?;
    expect(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty(), &output)
}

fn endless_files_are_refused() -> Result<(), Failed> {
    let message = "contains more than 256 MiB";
    for line in [
        "$OPT /dev/zero",
        "$OPT --run-reproducer /dev/zero",
        "$RUN /dev/zero",
        "$RUN --batch /dev/zero",
        "$HIR reduce /dev/zero --oracle race",
    ] {
        expect_exit(&format!("exec {line}"), 6, message)?;
    }
    Ok(())
}

/// A file that was too large used to be read before it was refused.
fn large_texts_are_not_read() -> Result<(), Failed> {
    let folder = Folder::new("large")?;
    let path = folder.0.join("a.hir");
    fs::File::create(&path)?.set_len(5 << 30)?;
    let path = path.display();
    for line in [format!("$OPT {path}"), format!("$RUN {path}"), format!("$HIR reduce {path} --oracle race")]
    {
        expect_exit(
            &format!("ulimit -v 1000000; exec {line}"),
            6,
            "5368709120 bytes; the limit is 4294967295",
        )?;
    }
    Ok(())
}
