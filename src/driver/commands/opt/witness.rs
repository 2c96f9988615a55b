//! Writes the file of `--witness`.

use std::path::Path;

use crate::run::schedules;
use grammar::{codes::Code, diagnostic::Diagnostic, source::Source};
use hir_check::{ExecutionFaultKind, Finding, Race, Report, StepOrder};
use hir_plan::{World, sync::P2pQueues};
use hir_process::exit::Exit;

use super::{pass_pipeline::pipeline_text, processor::Processor};

impl Processor<'_> {
    /// Writes the steps that exhibit the first race for which such steps exist. `found` are the races with other programs.
    ///
    /// # Errors
    /// Returns the exit code, after the message, if the file cannot be written.
    pub fn write_witness(
        &mut self,
        path: &Path,
        world: &World,
        report: &Report,
        sources: &[Source],
        found: &[Diagnostic],
    ) -> Result<(), Exit> {
        if self.has_witness {
            return Ok(());
        }
        let none = |reason: &str| {
            self.screen.message(&match self.container {
                Some(number) => format!("no witness of container {number}: {reason}"),
                None => format!("no witness: {reason}"),
            });
            Ok(())
        };
        if report.has_deadlock() {
            return none("the program deadlocks");
        }
        let steps = match StepOrder::of(world) {
            Ok(steps) => steps,
            Err(fault) => return none(&fault.to_string()),
        };
        // In the simulator each buffer has its own memory, so storage races do not show.
        let is_shown = |it: &Finding| it.diagnostic(world, sources).1.code != Code::StorageRace;
        let shown = report.findings.iter().find_map(|it| {
            let (race, _) = it.race().filter(|(race, _)| is_executed(race) && is_shown(it))?;
            Some((it, steps.witness(race)?))
        });
        let Some((finding, steps)) = shown else {
            let between_programs = "a race between two programs needs both, but hir-run executes only one";
            // A race is what the option asks for.
            let races = report.findings.iter().filter(|it| it.race().is_some());
            let reason = races.chain(&report.findings).find_map(why_not_shown);
            let reason = reason.or((!found.is_empty()).then_some(between_programs));
            return none(reason.unwrap_or("the check found no fault"));
        };
        let found = finding.diagnostic(world, sources).1;
        let path_text = path.display();
        let flags = [
            self.container.map(|it| format!(" --container={it}")),
            (!self.calls.is_empty()).then(|| format!(" --passes='{}'", pipeline_text(&self.calls))),
            self.options.world.ranks.map(|it| format!(" --ranks={it}")),
        ];
        let set = self.options.set.iter().map(|it| format!(" --set={it}"));
        let flags: String = flags.into_iter().flatten().chain(set).collect();
        let title = format!(
            "[{}] {}\nhir-run {}{flags} --check=warn --schedule=@{path_text} runs these steps in this order, then all \
             others.\nrank, instruction, step of the instruction",
            found.code.text(),
            found.message,
            self.options.file
        );
        match self.screen.write_result(&schedules::format_steps(world, &steps, &title), Some(path)) {
            Exit::Success => (),
            exit => return Err(exit),
        }
        self.has_witness = true;
        self.screen.message(format!("wrote an order in which this happens: {}", found.message));
        Ok(())
    }
}

/// Returns whether hir-run executes a race: it has the communicators with which it was found, and both accesses are in one run.
fn is_executed(it: &Race) -> bool {
    it.p2p == P2pQueues::Communicator && !it.between_runs
}

/// Returns why no order of steps of hir-run shows a fault; `None` for a remark or a warning.
fn why_not_shown(it: &Finding) -> Option<&'static str> {
    Some(match it {
        Finding::Race { race, .. } if race.between_runs => {
            "a race between two runs needs two runs, but hir-run executes only one"
        }
        Finding::Race { race, .. } if !is_executed(race) => {
            "hir-run executes the transfers of all pairs of ranks on one communicator"
        }
        Finding::Race { .. } => {
            "no order of the program's own steps shows a race with the caller or over storage"
        }
        Finding::Execution { fault, .. } => match fault.kind {
            ExecutionFaultKind::PostedAgain { .. } => {
                "hir-run counts transfers, so that no order shows a semaphore that is used too early"
            }
            ExecutionFaultKind::TooFewQueues(_) => return None,
            ExecutionFaultKind::NotRecorded(_)
            | ExecutionFaultKind::Isolation
            | ExecutionFaultKind::HostWait
            | ExecutionFaultKind::SymmetricMemory { .. }
            | ExecutionFaultKind::Unjoined => "no order of steps shows what a capture leaves out",
        },
        Finding::CommunicatorOrder(_) => "hir-run starts the kernels of several communicators in issue order",
        Finding::Unwritten { read, .. } if read.output.is_some() || read.reaches.is_some() => {
            "elements that nothing writes are unwritten in every order"
        }
        Finding::Deadlock(_) => "the program deadlocks",
        Finding::Unwritten { .. } | Finding::OverwrittenView { .. } | Finding::Excess(_) => return None,
    })
}
