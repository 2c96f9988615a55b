//! Writes the file of `--witness`.

use std::path::Path;

use crate::run::schedules;
use grammar::{codes::Code, source::Source};
use hir_check::{Finding, Race, Report, StepOrder};
use hir_plan::{World, sync::P2pQueues};
use hir_process::exit::Exit;

use super::{pass_pipeline::pipeline_text, processor::Processor};

impl Processor<'_> {
    /// Writes the steps that exhibit the first race for which such steps exist.
    ///
    /// # Errors
    /// Returns the exit code, after the message, if the file cannot be written.
    pub fn write_witness(
        &mut self,
        path: &Path,
        world: &World,
        report: &Report,
        sources: &[Source],
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
        let is_run = |it: &Race| it.p2p == P2pQueues::Communicator;
        let shown = report.findings.iter().find_map(|it| match it {
            Finding::Race { race, .. } if is_run(race) && is_shown(it) => Some((it, steps.witness(race)?)),
            Finding::Race { .. }
            | Finding::Unwritten { .. }
            | Finding::OverwrittenView { .. }
            | Finding::Deadlock(_)
            | Finding::CommunicatorOrder(_)
            | Finding::Execution { .. }
            | Finding::Excess(_) => None,
        });
        let Some((finding, steps)) = shown else {
            let mut races = report.findings.iter().filter_map(|it| match it {
                Finding::Race { race, .. } => Some(race),
                Finding::Unwritten { .. }
                | Finding::OverwrittenView { .. }
                | Finding::Deadlock(_)
                | Finding::CommunicatorOrder(_)
                | Finding::Execution { .. }
                | Finding::Excess(_) => None,
            });
            return none(match races.next() {
                Some(it) if it.between_runs => {
                    "a race between two runs needs two runs, but hir-run executes only one"
                }
                Some(it) if !is_run(it) => {
                    "hir-run executes the transfers of all pairs of ranks on one communicator"
                }
                Some(_) => "no order of the program's own steps shows a race with the caller or over storage",
                None => "the check found no race",
            });
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
