//! fastest: runs several pipelines on the program, and keeps the result that is fastest by the estimates of a machine.
//!
//! `of` lists the pipelines in braces, separated by semicolons. Of equal times, the first one is kept. Of the others, those that fail are
//! left out, and so is what the hosts of the machine cannot run, or what cannot be planned; if all are, the first one is kept.
//!
//! A pipeline in `of` may have options: `fastest{of={@overlap{overlap.count=4};@lower}}`. `@overlap` without braces is
//! `fastest{of={@overlap{};@lower}}`: no program is slower than with `@lower`.
//!
//! The remarks are those of the pipeline that is kept. If this is not the first one, a further remark has both times.
//! Programs of more than 4,000 statements on all ranks together, and those without known extents, are not estimated: the first pipeline
//! runs.

use std::str::FromStr;

use grammar::{Code, Diagnostic, Program};
use hir_plan::timeline::shipped;
use passes::{Arguments, Change, OptionKind, OptionSpec, Pass, PassCall, PassEvent, Remarks};

use super::{catalog, communications::run_calls, machine::MachineFlag, planned, time_of};

macro_rules! ways {
    ($first:literal, $second:literal) => {
        /// The pipelines among which `@overlap` decides, which `@auto` takes as ways of their own, too.
        pub(super) const WAYS: [&str; 2] = [$first, $second];
        /// What `@overlap` is.
        pub(super) const OVERLAP: (&str, &str) =
            ("@overlap", concat!("fastest{of={", $first, ";", $second, "}}"));
        const OF: &str = concat!("{", $first, ";", $second, "}");
    };
}
ways!("@overlap{}", "@lower");

/// The pass.
pub static PASS: Pass = Pass::new("fastest", include_str!("fastest.rs"), run)
    .about("keep the fastest of several pipelines by the estimated times of a machine")
    .with_options(&[
        OptionSpec::new("of", OptionKind::Text, Some(OF)).about("pipelines, separated by `;`"),
        OptionSpec::new("machine", OptionKind::Text, Some(shipped::DEFAULT))
            .about("the machine, as in `--machine`"),
    ]);

/// Largest number of statements on all ranks of an estimated program, which takes some seconds.
const MAX_STATEMENTS: usize = 4_000;

/// What a pipeline makes of a program.
struct Rewritten<'p> {
    name: &'p str,
    program: Program,
    remarks: Vec<Diagnostic>,
    /// The estimated microseconds.
    time: f64,
}

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let machine = arguments.text("machine").unwrap_or(shipped::DEFAULT);
    let machine = MachineFlag::from_str(machine)
        .map_err(|why| arguments.error("machine", why.to_string(), "no table of a machine"))?;
    let all = catalog();
    let mut pipelines = Vec::new();
    let of = arguments.text("of").unwrap_or_default();
    let of = of.strip_prefix('{').and_then(|it| it.strip_suffix('}')).unwrap_or(of);
    // Options of the pipelines may have semicolons, too.
    let mut depth = 0;
    let separates = |letter: char| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ';' && depth == 0
    };
    for name in of.split(separates).map(str::trim) {
        let calls = all.parse(name).map_err(|fault| {
            arguments.error(
                "of",
                format!("`{name}`: {}", fault.message),
                "expected pipelines, separated by `;`",
            )
        })?;
        pipelines.push((name, calls));
    }
    // `split` returns at least one part.
    let Some((first, others)) = pipelines.split_first() else { return Ok(Change::Unchanged) };
    let mut best = rewritten(program, first)?;
    let mut slower = None;
    let ranks = hir_plan::smallest_world(program);
    if program.ops().count().saturating_mul(ranks) <= MAX_STATEMENTS {
        best.time = time(&best.program, &machine);
        for it in others {
            let Ok(mut it) = rewritten(program, it) else { continue };
            it.time = time(&it.program, &machine);
            if it.time < best.time {
                slower = slower.or(Some(std::mem::replace(&mut best, it)));
            }
        }
    }
    if let Some(slower) = slower {
        let of_slower = if slower.time.is_finite() {
            format!("{:.1} µs after `{}` (estimated)", slower.time, slower.name)
        } else {
            format!("the machine cannot run what `{}` makes", slower.name)
        };
        let message = format!("`{}` is kept: the run takes {:.1} µs, and {of_slower}", best.name, best.time);
        let label = format!("the machine is `{}`", machine.name);
        remarks.note_of(Diagnostic::new(Code::OtherKept, program.spans.header, message, label));
    }
    Ok(kept(program, remarks, best))
}

/// Replaces the program by the result of a pipeline, with its remarks.
fn kept(program: &mut Program, remarks: &mut Remarks, it: Rewritten<'_>) -> Change {
    it.remarks.into_iter().for_each(|remark| remarks.note_of(remark));
    let change = Change::from_flag(*program != it.program);
    *program = it.program;
    change
}

/// Runs a pipeline on a copy of a program.
///
/// # Errors
/// The first diagnostic of the pass that fails.
fn rewritten<'p>(
    program: &Program,
    (name, calls): &'p (&str, Vec<PassCall>),
) -> Result<Rewritten<'p>, Diagnostic> {
    let (mut copy, mut remarks) = (program.clone(), Vec::new());
    run_calls(&mut copy, calls, &mut |event| {
        if let PassEvent::After { remarks: of_pass, .. } = event {
            remarks.extend_from_slice(of_pass);
        }
    })?;
    Ok(Rewritten { name, program: copy, remarks, time: f64::INFINITY })
}

/// Returns the estimated microseconds of a program; infinity for one that cannot be planned, or that the machine cannot run.
fn time(program: &Program, machine: &MachineFlag) -> f64 {
    let world = planned(program).ok().filter(|it| machine.can_run(it));
    world.and_then(|it| time_of(&it, machine)).unwrap_or(f64::INFINITY)
}
