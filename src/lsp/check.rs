//! The thread that plans and checks programs while the editor goes on. An edit cancels the check of the text before it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use grammar::{Diagnostic, LineIndex, Program, Source, Span, apply_bindings};
use hir_check::Checks;
use hir_ir::search::Budget;
use hir_plan::{
    Plan, World, assume_scalars,
    limits::Limits,
    timeline::{
        Timeline,
        estimator::{Estimator, Planned},
        gain::Gain,
    },
};

use crate::{estimate::Summary, refusal::Refusal, snapshot::Snapshot};

/// The size of the stack of a thread that reads or checks programs. The nesting of texts is limited, and needs less.
const STACK: usize = 32 << 20;

/// The limits on the plans of a program that is checked while it is edited. `hir-opt --check` checks larger ones.
const LIMITS: Limits = Limits { ranks: 4096, memory: 2 << 30, instructions: 2_000_000 };

/// The largest number of instructions that are estimated to say what communications cost: about a hundredth of a second.
pub(crate) const MAX_ESTIMATED: usize = 20_000;

/// What a program does not need.
const EXCESS: Checks = Checks { race: false, comm: false, memory: false, ..Checks::DEFAULT };

/// What the check of a text has found.
pub(crate) struct Checked {
    /// The document.
    pub(crate) uri: String,
    /// The text.
    pub(crate) snapshot: Arc<Snapshot>,
    /// What was found.
    pub(crate) report: CheckReport,
    /// Whether this is all; else what the programs do not need is not known yet.
    pub(crate) is_complete: bool,
}

/// What the check says about the programs of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckReport {
    /// The findings, and why a program could not be planned.
    pub(crate) findings: Vec<Diagnostic>,
    /// What was not checked, and why, with the header of the program: without findings, a program looks proven.
    pub(crate) not_checked: Vec<(Span, String)>,
    /// What it says about each program as a whole.
    pub(crate) summaries: Vec<Summary>,
}

/// A check that runs or waits. It ends when this is dropped.
pub(crate) struct RunningCheck(Arc<AtomicBool>);

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The threads that check texts: one looks for what can be wrong, the other one then for what is not needed, which takes longer.
pub(crate) struct Checker {
    jobs: Sender<Job>,
    /// What they have found.
    pub(crate) results: Receiver<Checked>,
}

struct Job {
    is_cancelled: Arc<AtomicBool>,
    uri: String,
    snapshot: Arc<Snapshot>,
}

/// A text in which nothing is wrong or what is wrong is known, with the plans of its programs, by their position.
struct Checkable {
    job: Job,
    report: CheckReport,
    worlds: Vec<(usize, World)>,
}

impl Job {
    fn is_current(&self) -> bool {
        !self.is_cancelled.load(Ordering::Relaxed)
    }

    fn checked(&self, report: CheckReport, is_complete: bool) -> Checked {
        Checked { uri: self.uri.clone(), snapshot: Arc::clone(&self.snapshot), report, is_complete }
    }
}

impl Checker {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(estimator: Estimator<'static>) -> std::io::Result<Self> {
        let (jobs, todo) = unbounded::<Job>();
        let (done, results) = unbounded();
        let (later, waiting) = unbounded::<Checkable>();
        let (done_later, queue) = (done.clone(), waiting.clone());
        spawn("check", move || {
            for job in todo {
                let Some((report, worlds)) = check(&job.snapshot, estimator, &|| job.is_current()) else {
                    continue;
                };
                if done.send(job.checked(report.clone(), worlds.is_empty())).is_err() {
                    return;
                }
                if worlds.is_empty() {
                    continue;
                }
                // The queue has no text that has changed meanwhile, so it is not longer than the list of documents.
                let current: Vec<Checkable> = waiting.try_iter().filter(|it| it.job.is_current()).collect();
                for it in current.into_iter().chain([Checkable { job, report, worlds }]) {
                    // The other thread ends after this one.
                    let _ = later.send(it);
                }
            }
        })?;
        spawn("excess", move || {
            for it in queue {
                let Some(report) = search_excess(&it) else { continue };
                if done_later.send(it.job.checked(report, true)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, results })
    }

    /// Checks a text after those that wait.
    pub(crate) fn check(&self, uri: String, snapshot: Arc<Snapshot>) -> RunningCheck {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        // The thread ends only with the server.
        let _ = self.jobs.send(Job { is_cancelled: Arc::clone(&is_cancelled), uri, snapshot });
        RunningCheck(is_cancelled)
    }
}

/// Starts a thread that is large enough for reading and checking.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(|_| ())
}

/// Looks for what can be wrong with the programs of a text. Returns what it has found, with the plans of the programs; `None` if the text is no
/// longer current.
fn check(
    snapshot: &Snapshot,
    estimator: Estimator<'_>,
    is_current: &dyn Fn() -> bool,
) -> Option<(CheckReport, Vec<(usize, World)>)> {
    let mut report = CheckReport::default();
    let mut worlds = Vec::new();
    for (number, program) in snapshot.programs.iter().enumerate() {
        let check = |report: &mut CheckReport| {
            check_program(program, &snapshot.source, estimator, is_current, report)
        };
        worlds.extend(guarded(&mut report, program, check)?.map(|world| (number, world)));
    }
    Some((report, worlds))
}

/// Adds what the programs of a text do not need. Returns `None` if the text is no longer current.
fn search_excess(it: &Checkable) -> Option<CheckReport> {
    let (mut report, snapshot) = (it.report.clone(), &it.job.snapshot);
    let is_current = || it.job.is_current();
    for (number, world) in &it.worlds {
        let program = snapshot.programs.get(*number)?;
        let search = |report: &mut CheckReport| {
            let found = is_current().then(|| hir_check::check(world, EXCESS))?;
            add_findings(&found, world, program, &snapshot.source, &is_current, report).map(|()| None)
        };
        guarded(&mut report, program, search)?;
    }
    Some(report)
}

/// Does a part of a check. A bug in the checker must not end the editor's session.
fn guarded(
    report: &mut CheckReport,
    program: &Program,
    part: impl FnOnce(&mut CheckReport) -> Option<Option<World>>,
) -> Option<Option<World>> {
    catch_unwind(AssertUnwindSafe(|| part(report))).unwrap_or_else(|_| {
        let reason = "this program, because of a bug in hir, which the log of the server shows";
        report.not_checked.push((program.spans.header, reason.to_owned()));
        Some(None)
    })
}

/// Plans a program and looks for what can be wrong. Returns its plans, if it has some, or `None` if the text is no longer current.
fn check_program(
    program: &Program,
    source: &Source,
    estimator: Estimator<'_>,
    is_current: &dyn Fn() -> bool,
    report: &mut CheckReport,
) -> Option<Option<World>> {
    let before = report.findings.len();
    let mut assumed = program.clone();
    report.findings.extend(assume_scalars(&mut assumed, source, None, &LIMITS));
    let world = match is_current().then(|| plan(&assumed, &source.lines))? {
        Ok(world) => world,
        Err(faults) => {
            report.findings.extend(faults.into_iter().map(with_tool_of_flags));
            return Some(None);
        }
    };
    let found = is_current().then(|| hir_check::check(&world, Checks::ALL_FAULTS))?;
    add_findings(&found, &world, program, source, is_current, report)?;
    let faults = report.findings.iter().skip(before).filter(|it| it.is_error()).count();
    let summary = || {
        let timeline = || estimated(estimator, &world, &assumed, source, MAX_ESTIMATED);
        Summary::of(&world, program.spans.header, faults, found.not_checked.is_empty(), timeline)
    };
    report.summaries.push(is_current().then(summary)?);
    is_current().then_some(Some(world))
}

/// Adds what a check has found about a program, without what is known.
fn add_findings(
    found: &hir_check::Report,
    world: &World,
    program: &Program,
    source: &Source,
    is_current: &dyn Fn() -> bool,
    report: &mut CheckReport,
) -> Option<()> {
    let findings = is_current().then(|| found.diagnostics(world, std::slice::from_ref(source)))?;
    for (_, it) in findings {
        let it = whole_lines(it, source);
        if !report.findings.contains(&it) {
            report.findings.push(it);
        }
    }
    let header = program.spans.header;
    report.not_checked.extend(found.not_checked.iter().map(|reason| (header, reason.to_string())));
    is_current().then_some(())
}

/// Plans a program for all of its ranks.
fn plan(program: &Program, lines: &LineIndex) -> Result<World, Vec<Diagnostic>> {
    hir_plan::build_with_limits(program, lines, hir_plan::smallest_world(program), &LIMITS)
}

/// The editor has no flags: those that a help names are flags of `hir check`.
fn with_tool_of_flags(mut fault: Diagnostic) -> Diagnostic {
    fault.help = fault.help.map(|it| it.replace("`--m", "`hir check --m").into());
    fault
}

/// Plans the program at an offset, as the check does.
///
/// # Errors
/// Why there are no plans.
pub(crate) fn planned(snapshot: &Snapshot, offset: u32) -> Result<(Program, World), Refusal> {
    if snapshot.is_rejected() {
        return Err(Refusal::Rejected);
    }
    let mut program = snapshot.program_at(offset).ok_or(Refusal::NoProgram)?.clone();
    assume_scalars(&mut program, &snapshot.source, None, &LIMITS);
    let world = plan(&program, &snapshot.source.lines).map_err(Refusal::Plans)?;
    Ok((program, world))
}

/// Estimates the times of a program that has these plans, and what each communication costs, as long as `most` instructions are estimated; `None`
/// if it has too many streams. What a program costs that is not lowered is not of its lines.
pub(crate) fn estimated(
    estimator: Estimator<'_>,
    world: &World,
    program: &Program,
    source: &Source,
    most: usize,
) -> Option<(Timeline, Vec<Gain>)> {
    let text = Planned { program, lines: &source.lines, limits: &LIMITS };
    let mut budget = Budget::new(if world.iter().any(Plan::reshards) { 0 } else { most });
    estimator.gains(world, Some(text), &mut |it| budget.admits(it)).ok()
}

/// Extends the labels of a finding to whole lines. In a report, labels are short, because their texts are below their middles.
fn whole_lines(mut finding: Diagnostic, source: &Source) -> Diagnostic {
    for (span, _) in &mut finding.labels {
        let line = source.line_span(source.lines.line(span.start));
        if let Some(line) = line.filter(|it| it.start == span.start) {
            *span = Span { start: line.start, end: line.end };
        }
    }
    finding
}

/// Returns the text with the edits that remove the races of its programs, and a line about each edit.
pub(crate) fn fix_races(text: &str) -> (String, Vec<String>) {
    let plan = |program: &mut Program, lines: &LineIndex| {
        let bindings =
            hir_plan::proposed_bindings(program, lines, hir_plan::smallest_world(program), &LIMITS);
        apply_bindings(program, &bindings).ok()?;
        plan(program, lines).ok()
    };
    let mut text = text.to_owned();
    let mut edits = Vec::new();
    for number in 0..grammar::read(&text).0.len() {
        let fixed = hir_check::fix(&text, number, Checks::DEFAULT, &plan);
        edits.extend(fixed.edits.into_iter().map(|it| format!("line {}: {}", it.line, it.description)));
        text = fixed.text;
    }
    (text, edits)
}
