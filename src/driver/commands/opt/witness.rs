//! Writes the file of `--witness`.

use std::path::Path;

use crate::run::{
    schedule_file::{NextProgram, format_schedule, setting_lines},
    witness_runs::{WitnessResult, WitnessRun, WitnessRuns},
};
use grammar::{Diagnostic, Source, shell_word};
use hir_check::{Finding, NotShown, Report, Witness, witnesses};
use hir_plan::World;
use hir_process::exit::Exit;

use super::{pass_pipeline::pipeline_text, processor::Processor};

/// The witness of a race between two programs.
pub struct SequenceWitness {
    /// The order.
    pub witness: Witness,
    /// The race.
    pub found: Diagnostic,
    /// The file of the program that runs first.
    pub first: String,
    /// The program that runs next.
    pub next: NextProgram,
    /// A run in the order.
    pub run: WitnessRun,
}

/// The witness of a finding of one program.
struct FoundWitness<'a> {
    finding: &'a Finding,
    witness: Witness,
    run: WitnessRun,
}

impl Processor<'_> {
    /// Writes the steps that exhibit the first finding for which such steps exist. `between_programs` are the races with other programs.
    ///
    /// # Errors
    /// Returns the exit code, after the message, if the file cannot be written.
    pub fn write_witness(
        &mut self,
        path: &Path,
        world: &World,
        report: &Report,
        sources: &[Source],
        between_programs: &[Diagnostic],
    ) -> Result<(), Exit> {
        if self.has_witness {
            return Ok(());
        }
        let shown = if report.has_deadlock() {
            Err(NotShown::Deadlock)
        } else {
            self.best_witness(world, &report.findings)
        };
        let (found, witness, first, next, WitnessRun { result, by_rank }) =
            match (shown, self.sequence_witness.take()) {
                (Ok(FoundWitness { finding, witness, run }), _) => {
                    let found = finding.diagnostic(world, sources).1;
                    (found, witness, self.program_file(), None, run)
                }
                (Err(_), Some(it)) => (it.found, it.witness, it.first, Some(it.next), it.run),
                (Err(reason), None) => {
                    let reason = match (reason, between_programs) {
                        (NotShown::NoFault, [_, ..]) => {
                            "no order of steps of the two programs shows their races".to_owned()
                        }
                        (reason, _) => reason.to_string(),
                    };
                    self.screen.message(match self.container {
                        Some(number) => format!("no witness of container {number}: {reason}"),
                        None => format!("no witness: {reason}"),
                    });
                    return Ok(());
                }
            };
        let flags = [
            self.container.map(|it| format!(" --container={it}")),
            (!self.calls.is_empty())
                .then(|| format!(" --passes={}", shell_word(&pipeline_text(&self.calls)))),
            self.options.world.ranks.map(|it| format!(" --ranks={it}")),
        ];
        let set = self.options.set.iter().map(|it| {
            let optional = if it.is_optional { "\\?" } else { "" };
            format!(" --set={}{optional}={}", it.name, shell_word(&it.value))
        });
        let is_printed = self.options.output.as_deref().is_none_or(|it| it == Path::new("-"));
        let printed = self.edited.as_deref().filter(|_| is_printed);
        let printed = printed.map_or(String::new(), |it| format!(" `{it}` is the text that hir-opt prints."));
        let output = |it: &String| format!(" --output={}", shell_word(&format!("{it}@local=@{it}.%r.npy")));
        let outputs = by_rank.iter().map(output);
        let flags: String = flags.into_iter().flatten().chain(set).chain(outputs).collect();
        let title = format!(
            "[{}] {}\nhir-run {}{flags} --check=warn --schedule=@{} runs these steps in this order, then all \
             others.{printed}\nrank, instruction, step of the instruction",
            found.code.text(),
            found.message,
            shell_word(&first),
            shell_word(&path.to_string_lossy()),
        );
        let plans = witness.replay.as_ref().map_or(world, |it| &it.world);
        let lines = setting_lines(&witness.setting, next.as_ref());
        let text = format_schedule(plans, &witness.steps, &title, &lines);
        match self.screen.write_result(&text, Some(path)) {
            Exit::Success => (),
            exit => return Err(exit),
        }
        self.has_witness = true;
        self.screen.message(match result {
            WitnessResult::Right => format!(
                "wrote an order in which this happens, but no output of generated inputs changes: {}",
                found.message
            ),
            WitnessResult::Wrong | WitnessResult::NotRun | WitnessResult::Unknown => {
                format!("wrote an order in which this happens: {}", found.message)
            }
        });
        Ok(())
    }

    /// Returns the first order that shows a finding and changes a result, or the first order if none is found that does; with its result.
    ///
    /// # Errors
    /// Why the first of the findings is not shown; `NoFault` if there is nothing to show.
    fn best_witness<'a>(
        &self,
        world: &'a World,
        findings: &'a [Finding],
    ) -> Result<FoundWitness<'a>, NotShown> {
        if findings.is_empty() {
            return Err(NotShown::NoFault);
        }
        let runs = WitnessRuns::new(world, self.options.world.memory_bytes());
        let (mut reason, mut best) = (NotShown::NoFault, None);
        for it in witnesses(world, findings) {
            match it {
                Ok((finding, witness)) => {
                    let run = runs.run(&witness, None);
                    let result = run.result;
                    let found = FoundWitness { finding, witness, run };
                    match result {
                        WitnessResult::Wrong => return Ok(found),
                        WitnessResult::NotRun => (),
                        WitnessResult::Right => _ = best.get_or_insert(found),
                        WitnessResult::Unknown => {
                            best.get_or_insert(found);
                            break;
                        }
                    }
                }
                Err(why) if reason == NotShown::NoFault => reason = why,
                Err(_) => (),
            }
        }
        best.ok_or(reason)
    }
}
