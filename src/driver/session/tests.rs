//! Jobs with sessions of their own in one process: one after the other, and at the same time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Barrier, Mutex, PoisonError},
    thread,
};

use grammar::render::Format;
use hir_check::{Checks, check};
use hir_plan::limits::{DEFAULT_MEMORY_LIMIT, Limits};
use hir_process::threads::start_workers;
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;

use super::*;
use crate::{
    run::{
        RunError,
        failure::JobFailure,
        inputs::InputFlag,
        output::{OutputFlag, watched_views, write_outputs},
        prepare::{PrepareOptions, Prepared, prepare},
        program_files::ProgramFiles,
        verdict::{Criteria, judge_outputs, simulation_options},
    },
    tool::{Color, Reporter},
};

/// A program that copies its input.
const COPY: &str = "\
%HostIrContainer { (T0_g_float[iS0{2}]) -> (T1_g_float[iS1{2}]) :
  T1_g_float[iS1{2}]
     = Set( T0_g_float[iS0{2}] )
} // %HostIrContainer
";

/// A program whose output is read before the stream that writes it is done.
const RACE: &str = "\
%HostIrContainer { (T0_g_float[iS0{2}]) -> (T2_g_float[iS2{2}]) :
  Stream s0 = GetCurrentStream()
  T2_g_float[iS2{2}] = ALLOCATE(mem_type=global, zero_init=false)
  SetCurrentStream(Stream 1)
  T2_g_float[iS2{2}]
     = -T0_g_float[iS0{2}];
  SetCurrentStream(Stream s0)
} // %HostIrContainer
";

/// A stream that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a job leaves: its exit code, what it printed, and the programs that its reproducer would contain.
#[derive(Debug, PartialEq)]
struct Ended {
    exit: Exit,
    stdout: String,
    stderr: String,
    recorded: Vec<String>,
}

/// A program with the name of its output, and a file with its input.
struct Job {
    tool: &'static str,
    program: PathBuf,
    input: PathBuf,
    output: &'static str,
}

impl Job {
    fn new(folder: &Path, name: &'static str, text: &str, output: &'static str) -> io::Result<Self> {
        let program = folder.join(format!("{name}.hir"));
        fs::write(&program, text)?;
        Ok(Self { tool: name, program, input: folder.join("x.npy"), output })
    }

    /// Runs the job in a new session.
    fn run(&self) -> Ended {
        let (stdout, stderr) = (Kept::default(), Kept::default());
        let session =
            Session::new(self.tool, OutputStream::to(stdout.clone()), OutputStream::to(stderr.clone()));
        session.crash_record.record_command(Vec::new());
        let screen = Reporter::new(&session, Format::Sarif, Color::Never);
        let exit =
            self.run_in(&session, &screen).unwrap_or_else(|failure| screen.fail(Exit::Environment, failure));
        let exit = screen.finish(exit, true, |_| ());
        let recorded = session.crash_record.take().map_or(Vec::new(), |it| it.texts);
        let recorded = recorded.into_iter().map(Arc::unwrap_or_clone).collect();
        Ended { exit, stdout: stdout.text(), stderr: stderr.text(), recorded }
    }

    /// Prepares, checks and runs the program, and prints its output.
    fn run_in(&self, session: &Arc<Session>, screen: &Reporter) -> Result<Exit, JobFailure> {
        let value = format!("@{}", self.input.display());
        let inputs = [InputFlag { name: "T0".to_owned(), local: false, value }];
        let setup = PrepareOptions {
            session,
            ranks: None,
            limits: Limits::default(),
            container: None,
            fusions: &[],
            bindings: &[],
            assume: false,
            is_reference: false,
            inputs: &inputs,
            uses: hir_plan::CallerUses::default(),
            passes: &|_, _| Ok(()),
        };
        let files = ProgramFiles::One(self.program.display().to_string());
        let Prepared { sources, world, warnings, .. } = prepare(&files, &setup)?;
        screen.report_diagnostics(&sources[0], &warnings[0]);
        let report = check(&world, Checks::ALL_FAULTS);
        for (text, fault) in report.diagnostics(&world, &sources) {
            screen.report_diagnostics(&sources[text], &[fault]);
        }
        if !report.findings.is_empty() {
            return Ok(Exit::Check);
        }
        start_workers().map_err(RunError::from)?;
        let inputs = crate::run::inputs::InputSpec::new(InputKind::Exact, 0, &world)
            .with_flags(inputs.to_vec(), &session.files)
            .fill(&world)?;
        let shown = [OutputFlag { name: self.output.to_owned(), local: false, value: "-".to_owned() }];
        let options = hir_sim::SimOptions {
            watch: watched_views(&world, &shown, None)?,
            ..simulation_options(&world, DEFAULT_MEMORY_LIMIT)
        };
        let outcome = hir_sim::run(&world, inputs, &Schedule::Program, &options);
        let outcome = outcome.map_err(RunError::from)?;
        write_outputs(&world, &outcome, &shown, None, &mut |line| session.print(&line))?;
        let verdict = judge_outputs(&world, &outcome, &[], &Criteria::default())?;
        let exit = verdict.exit;
        session.print(&Report::Verdict(verdict.line));
        Ok(exit)
    }

    /// Writes the input of all jobs.
    fn write_input(&self, values: [f32; 2]) -> io::Result<()> {
        let header = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        let mut bytes = header.to_vec();
        bytes.resize(127, b' ');
        bytes.push(b'\n');
        values.iter().for_each(|it| bytes.extend(it.to_le_bytes()));
        fs::write(&self.input, bytes)
    }
}

const VERDICT: &str = "[SUCCESS] ran, complete, not compared\n";

/// Checks that the copy has the results, and the race the diagnostics, of their own.
fn assert_own(copied: &Ended, racing: &Ended, values: &str) {
    assert_eq!(copied.stdout, format!("T1 2xf32= {values}\n{VERDICT}"));
    assert_eq!((copied.exit, &copied.recorded[..]), (Exit::Success, &[COPY.to_owned()][..]));
    assert!(copied.stderr.contains("\"copy\"") && !copied.stderr.contains("race"), "{}", copied.stderr);
    assert_eq!((racing.exit, racing.stdout.as_str()), (Exit::Check, ""));
    assert_eq!(racing.recorded, [RACE]);
    assert!(racing.stderr.contains("race.hir") && !racing.stderr.contains("copy"), "{}", racing.stderr);
}

#[test]
fn jobs_run_one_after_the_other_and_at_the_same_time() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = Job::new(folder.path(), "copy", COPY, "T1")?;
    let race = Job::new(folder.path(), "race", RACE, "T2")?;
    copy.write_input([1.0, 2.0])?;
    assert_own(&copy.run(), &race.run(), "1 2");
    // A file may change between two jobs, but not during one.
    copy.write_input([3.0, 4.0])?;
    let (copied, racing) = (copy.run(), race.run());
    assert_own(&copied, &racing, "3 4");

    let (threads, start) = (4, Barrier::new(4));
    thread::scope(|scope| {
        for number in 0..threads {
            let (job, alone, start) = match number % 2 {
                0 => (&copy, &copied, &start),
                _ => (&race, &racing, &start),
            };
            scope.spawn(move || {
                for _ in 0..25 {
                    start.wait();
                    assert_eq!(job.run(), *alone);
                }
            });
        }
    });
    Ok(())
}

#[test]
fn a_failure_belongs_to_one_job() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = Job::new(folder.path(), "copy", COPY, "T1")?;
    let failed = copy.run();
    assert_eq!((failed.exit, failed.stdout.as_str()), (Exit::Environment, ""));
    assert!(failed.stderr.contains("cannot read"), "{}", failed.stderr);
    copy.write_input([1.0, 2.0])?;
    let fine = copy.run();
    assert_eq!((fine.exit, fine.stdout), (Exit::Success, format!("T1 2xf32= 1 2\n{VERDICT}")));
    assert!(!fine.stderr.contains("cannot read"));
    Ok(())
}

/// A stream that accepts nothing.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_of_a_stream_belongs_to_one_session() {
    let finish = |stdout: OutputStream| {
        let session = Session::new("hir-run", stdout, OutputStream::to(io::sink()));
        session.print(&Report::Output("T0 = 1".to_owned()));
        Reporter::new(&session, Format::Short, Color::Never).finish(Exit::Success, true, |_| ())
    };
    assert_eq!(finish(OutputStream::to(Full)), Exit::Environment);
    assert_eq!(finish(OutputStream::to(Kept::default())), Exit::Success);
}

#[test]
fn a_command_is_shown_as_it_was_started() {
    let shown = |words: &[&str]| {
        let start = words.iter().map(OsString::from).collect();
        Session::of_process("hir-opt", CommandLine { start, ..CommandLine::default() }).command_text()
    };
    assert_eq!(shown(&[]), "hir-opt");
    assert_eq!(shown(&["/opt/my tool", "opt"]), "'my tool' opt");
}
