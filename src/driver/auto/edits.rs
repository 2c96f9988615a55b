//! What would shorten the waits of a lowered program: passes that move its communications, with the estimated gain.
//!
//! An edit is offered only if the checker finds no fault in its result, and the hosts of the machine can run it.

use grammar::{LineIndex, Program};
use hir_check::Checks;
use hir_plan::{
    CostClass, World,
    limits::Limits,
    timeline::{
        Timeline,
        estimator::Planned,
        overlap::{Overlap, WaitSummary},
    },
};
use passes::{Settings, Verify};

use super::{first_fault, machine::MachineFlag};

/// The passes that are tried, those that change least first. The algorithms matter only to the times of a machine: the nominal
/// GPU has one time for all of them.
const EDITS: &[(&str, bool)] = &[
    ("schedule-communication{posts=early,waits=keep}", false),
    ("schedule-communication{posts=keep,waits=late}", false),
    ("schedule-communication", false),
    ("double-buffer", false),
    ("select-algorithms", true),
    ("schedule-communication,select-algorithms", true),
];
/// The smallest gain that is worth an edit, as a part of the time of the program.
const LEAST_GAIN: f64 = 0.01;

/// The smallest gain that the report shows as one, in microseconds.
pub(super) const SMALLEST_GAIN: f64 = 0.1;
/// Maximum number of instructions of a program whose edits are tried: each is planned and checked.
pub(super) const MAX_INSTRUCTIONS: usize = 50_000;

/// A program has too many instructions to try edits: this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no edits are tried: {0} instructions exceed {MAX_INSTRUCTIONS}")]
pub struct TooManyInstructions(pub usize);

/// How programs are planned and timed.
#[derive(Clone, Copy)]
pub struct Estimates<'a> {
    /// The lines of the text of the program.
    pub lines: &'a LineIndex,
    /// The number of ranks.
    pub ranks: usize,
    /// Limits on plans.
    pub limits: &'a Limits,
    /// The machine.
    pub machine: &'a MachineFlag,
}

/// A program that is faster than another one.
pub struct Edit {
    /// The passes that make it.
    pub passes: String,
    /// The program.
    pub program: Program,
    /// Its estimated microseconds.
    pub time: f64,
    /// The waits of the rank with the most exposed communication.
    waits: Vec<WaitSummary>,
    /// Where communications are posted.
    posts: Vec<Post>,
}

/// Where a communication is posted.
#[derive(Clone, Copy, PartialEq)]
struct Post {
    /// Its line.
    line: u32,
    /// The line of the kernel that the host issues last before it; 0 for none.
    behind: u32,
}

/// Returns where the first rank posts communications, each line once.
fn posts(world: &World) -> Vec<Post> {
    let (mut found, mut behind): (Vec<Post>, u32) = (Vec::new(), 0);
    let Some(plan) = world.first() else { return found };
    for inst in &plan.code {
        let line = plan.origins[inst.origin as usize].line;
        if inst.kind.cost_info().class == CostClass::Compute {
            behind = line;
        } else if inst.kind.communication().is_some() && found.iter().all(|it| it.line != line) {
            found.push(Post { line, behind });
        }
    }
    found
}

impl Estimates<'_> {
    fn plan(&self, program: &Program) -> Option<World> {
        hir_plan::build_with_limits(program, self.lines, self.ranks, self.limits).ok()
    }

    fn timeline(&self, program: &Program, world: &World) -> Option<Timeline> {
        let text = Planned { program, lines: self.lines, limits: self.limits };
        self.machine.estimator().timeline(world, Some(text)).ok()
    }

    /// Returns the edits that make a program faster, the fastest result first. None if the program has a fault: what orders it
    /// has to be corrected first.
    ///
    /// # Errors
    /// The program has too many instructions.
    pub fn edits(&self, program: &Program, world: &World) -> Result<Vec<Edit>, TooManyInstructions> {
        let before = self.timeline(program, world).map(|it| it.end());
        before.map_or(Ok(Vec::new()), |it| self.edits_of(program, world, it))
    }

    /// As `edits`, of a program that takes so many microseconds.
    fn edits_of(
        &self,
        program: &Program,
        world: &World,
        before: f64,
    ) -> Result<Vec<Edit>, TooManyInstructions> {
        let instructions: usize = world.iter().map(|it| it.code.len()).sum();
        if instructions > MAX_INSTRUCTIONS {
            return Err(TooManyInstructions(instructions));
        }
        if first_fault(world, Checks::ALL_FAULTS).is_some() {
            return Ok(Vec::new());
        }
        let mut found: Vec<Edit> = Vec::new();
        for (passes, needs_machine) in EDITS {
            if *needs_machine && self.machine.machine.is_nominal() {
                continue;
            }
            let Some((edit, world)) = self.edit(program, (*passes).to_owned()) else { continue };
            // An edit that changes more is not worth it if it gains no more.
            let is_known = found.iter().any(|it| it.time <= edit.time * (1.0 + LEAST_GAIN));
            let is_worth = before - edit.time > SMALLEST_GAIN && edit.time <= before * (1.0 - LEAST_GAIN);
            // The check takes longest.
            if is_worth && !is_known && first_fault(&world, Checks::ALL_FAULTS).is_none() {
                found.push(edit);
            }
        }
        found.sort_by(|a, b| a.time.total_cmp(&b.time));
        Ok(found)
    }

    /// Returns the program after some passes, with its plans.
    pub(super) fn edit(&self, program: &Program, passes: String) -> Option<(Edit, World)> {
        let mut program = program.clone();
        let calls = passes::parse(&passes).ok()?;
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        passes::run(&mut program, &calls, settings, &mut |_| {}).ok()?;
        let world = self.plan(&program)?;
        if !self.machine.can_run(&world) {
            return None;
        }
        let timeline = self.timeline(&program, &world)?;
        let Overlap { total: time, waits, .. } = Overlap::of(&timeline);
        let posts = posts(&world);
        Some((Edit { passes, program, time, waits, posts }, world))
    }

    /// Returns what `--overlap` says about edits of a program with these times: for each, the whole run and the waits that it shortens most.
    pub fn report(&self, program: &Program, world: &World, times: &Timeline) -> Vec<String> {
        let before = Overlap::of(times);
        let edits = match self.edits_of(program, world, before.total) {
            Ok(edits) => edits,
            Err(why) => return vec![format!("  {why}")],
        };
        let posts = posts(world);
        let line = |edit: &Edit| {
            let gain = before.total - edit.time;
            let waits = |all: &[WaitSummary], line: u32| -> f64 {
                // An empty sum of floats is -0.0.
                all.iter().filter(|it| it.line == line).map(|it| it.microseconds).sum::<f64>() + 0.0
            };
            let mut lines: Vec<u32> = before.waits.iter().map(|it| it.line).collect();
            lines.dedup();
            let shorter = |line: &u32| {
                let [old, new] = [&before.waits, &edit.waits].map(|it| waits(it, *line));
                (old - new, *line, new)
            };
            let best = lines.iter().map(shorter).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
            let wait = best.filter(|it| it.0 > 0.05).map(|(_, line, new)| {
                let place =
                    if line == 0 { "the end of the program".to_owned() } else { format!("line {line}") };
                format!(", and {place} waits {new:.1} µs")
            });
            // The communication for which that line waits, if it is posted somewhere else.
            let waited =
                best.and_then(|(_, line, _)| before.waits.iter().find(|it| it.line == line)?.cause_line);
            let post = |all: &[Post]| all.iter().find(|it| Some(it.line) == waited).copied();
            let moved = post(&posts).zip(post(&edit.posts)).filter(|(old, new)| old != new);
            let place = |line: u32| if line == 0 { "no kernel".to_owned() } else { format!("line {line}") };
            let moved = moved.map(|(old, new)| {
                format!(
                    ", posts line {} behind {} instead of {}",
                    old.line,
                    place(new.behind),
                    place(old.behind)
                )
            });
            format!(
                "  with `{}` the run takes {:.1} µs, {gain:.1} µs less{}{}; the check finds no fault",
                edit.passes,
                edit.time,
                moved.unwrap_or_default(),
                wait.unwrap_or_default()
            )
        };
        edits.iter().map(line).collect()
    }
}
