//! Tests jobs whose ranks are children of one process (`hir-run --ranks`).

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdout},
    thread,
    time::Instant,
};

use hir_launch::spawn::{self, Job};
use hir_process::exit::Exit;
use libtest_mimic::Failed;

use super::{LIMIT, ON_GPUS, STOPPED, end, expect, port, rank, send};
use crate::{ROOT, timeout::Deadline};

/// A job on GPUs whose ranks are children of one process.
struct SpawnedJob {
    parent: Child,
    said: BufReader<ChildStdout>,
    children: Vec<String>,
}

impl SpawnedJob {
    /// Starts a job in its own process group, and waits until all ranks run.
    fn start() -> Result<Self, Failed> {
        let (arguments, ranks, lines) = ON_GPUS;
        let mut command = rank(0, 1, port()?, arguments);
        let mut parent = command.args(["--ranks", &ranks.to_string()]).process_group(0).spawn()?;
        let mut said = BufReader::new(parent.stdout.take().ok_or("no standard output")?);
        let deadline = Deadline::of(&parent);
        for _ in 0..lines {
            said.read_line(&mut String::new())?;
        }
        drop(deadline);
        let id = parent.id();
        // Any thread of the parent may have started the children.
        let mut children = String::new();
        for task in fs::read_dir(format!("/proc/{id}/task"))? {
            children += &fs::read_to_string(task?.path().join("children"))?;
        }
        let children: Vec<String> = children.split_whitespace().map(str::to_owned).collect();
        if children.len() == ranks {
            Ok(Self { parent, said, children })
        } else {
            Err(format!("{ranks} ranks, but the children are {children:?}").into())
        }
    }

    /// Waits until the job ends with this exit code and no process is left. Returns its output.
    fn end(mut self, code: i32) -> Result<String, Failed> {
        let ends = end(vec![self.parent], LIMIT);
        let left = |id: &&String| Path::new("/proc").join(id).exists();
        let left: Vec<&String> = self.children.iter().filter(left).collect();
        left.iter().try_for_each(|id| send("KILL", id))?;
        let ends = ends?;
        expect(left.is_empty() && ends[0].0 == Some(code), &ends)?;
        let mut text = String::new();
        self.said.read_to_string(&mut text)?;
        Ok(text + &ends[0].2)
    }
}

pub(super) fn a_stopped_child_ends_all(victim: usize) -> Result<(), Failed> {
    let family = SpawnedJob::start()?;
    let since = Instant::now();
    send("STOP", &family.children[victim])?;
    let text = family.end(4)?;
    let named = text.contains(&format!("[FAILED] rank {victim} is silent for"));
    if named && since.elapsed() < STOPPED {
        Ok(())
    } else {
        Err(format!("{:?}\n{text}", since.elapsed()).into())
    }
}

/// The user knows only the process that starts the ranks, so a signal to that process must reach rank 0.
pub(super) fn a_parent_forwards_requests_for_a_report() -> Result<(), Failed> {
    let family = SpawnedJob::start()?;
    send("USR1", &family.parent.id().to_string())?;
    let text = family.end(4)?;
    if text.contains("[FAILED] rank 0: report requested (SIGUSR1)") { Ok(()) } else { Err(text.into()) }
}

/// Sends a signal to all processes of the group, as a terminal does, or only to the parent.
pub(super) fn is_stopped_by(signal: &str, code: i32, all: bool) -> Result<(), Failed> {
    let family = SpawnedJob::start()?;
    let group = if all { "-" } else { "" };
    send(signal, &format!("{group}{}", family.parent.id()))?;
    let text = family.end(code)?;
    let last = format!("[STOPPED] received SIG{signal}\n");
    if text.ends_with(&last) && text.matches("[STOPPED]").count() == 1 && !text.contains("[FAILED]") {
        Ok(())
    } else {
        Err(text.into())
    }
}

/// Returns the output of a job that runs `sh`.
fn sh(script: &str, ranks: usize) -> Result<(Exit, String, String), Failed> {
    let job = Job { program: "sh".into(), arguments: vec!["-c".into(), script.into()], ranks };
    spawned(&job)
}

fn spawned(job: &Job) -> Result<(Exit, String, String), Failed> {
    let (mut out, out_end) = std::io::pipe()?;
    let (mut err, err_end) = std::io::pipe()?;
    let read = |from: &mut std::io::PipeReader| {
        let mut text = String::new();
        from.read_to_string(&mut text).map(|_| text)
    };
    let errors = thread::spawn(move || read(&mut err));
    let prints = thread::spawn(move || read(&mut out));
    let exit = spawn::run(job, out_end, Some(Box::new(err_end)))?;
    let (out, err) = (prints.join().map_err(|_| "lost")??, errors.join().map_err(|_| "lost")??);
    Ok((exit, out, err))
}

pub(super) fn a_failing_child_ends_all() -> Result<(), Failed> {
    let start = Instant::now();
    let script = "echo $RANK/$WORLD_SIZE; echo $$ >&2; [ $RANK = 1 ] && exit 7; exec sleep 60";
    let (exit, out, err) = sh(script, 3)?;
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    if exit != Exit::Check || lines != ["0/3", "[1] 1/3", "[2] 2/3"] || start.elapsed() > LIMIT {
        return Err(format!("{exit:?} {out} {:?}", start.elapsed()).into());
    }
    // Every child has been waited for, so its process id no longer exists.
    for line in err.lines() {
        let id = line.rsplit(' ').next().unwrap_or_default();
        if Path::new("/proc").join(id).exists() {
            return Err(format!("process {id} still exists").into());
        }
    }
    Ok(())
}

pub(super) fn a_killed_child_is_named() -> Result<(), Failed> {
    // The rank has not joined the others, so no other rank notices its loss.
    let (exit, out, _) = sh("[ $RANK = 1 ] && kill -9 $$; exec sleep 60", 3)?;
    if exit == Exit::Hang && out == "[FAILED] rank 1 was killed by SIGKILL\n" {
        Ok(())
    } else {
        Err(format!("{exit:?} {out}").into())
    }
}

pub(super) fn a_child_that_stays_is_not_waited_for() -> Result<(), Failed> {
    let start = Instant::now();
    let (exit, out, _) = sh("[ $RANK = 0 ] && exit 0; exec sleep 60", 2)?;
    if exit == Exit::Success && out.is_empty() && start.elapsed() < LIMIT {
        Ok(())
    } else {
        Err(format!("{exit:?} {out} {:?}", start.elapsed()).into())
    }
}

pub(super) fn children_run_a_job() -> Result<(), Failed> {
    let program = env!("CARGO_BIN_EXE_hir-run").into();
    let arguments = vec![format!("{ROOT}/samples/allgather.hir").into(), "--device=sim".into()];
    let (exit, out, err) = spawned(&Job { program, arguments, ranks: 4 })?;
    if exit == Exit::Success && out.ends_with("[SUCCESS] ran, complete, not compared\n") && err.is_empty() {
        Ok(())
    } else {
        Err(format!("{exit:?}\n{out}{err}").into())
    }
}
