//! Which options exclude each other.

use std::path::Path;

use super::{Device, Expect, Options};
use crate::run::{
    failure::{JobFailure, Result},
    option_files::{OptionFile, check_option_files},
};
use hir_sim::ScheduleSet;

impl Options {
    /// Checks that the options are compatible.
    ///
    /// # Errors
    /// A message that says what to change.
    pub fn validate(&self) -> Result<()> {
        let on_gpus = self.device == Some(Device::Cuda);
        if let Some(ranks) = self.world.ranks.filter(|it| *it > self.world.max_ranks) {
            let limit = self.world.max_ranks;
            let message = format!(
                "`--ranks {ranks}` exceeds the limit of {limit}: raise it with `--max-ranks={ranks}`"
            );
            return Err(JobFailure::Usage(message));
        }
        let given = self.expect.iter().filter_map(|it| match it {
            Expect::Given(it) => Some(format!("{}{}", it.name, if it.local { "@local" } else { "" })),
            Expect::Sim | Expect::Unsharded => None,
        });
        let mut given: Vec<String> = given.collect();
        given.sort_unstable();
        if let Some(name) = given.windows(2).find(|it| it[0] == it[1]).map(|it| &it[0]) {
            let message = format!("`--expect {name}` is given twice: remove one of the two");
            return Err(JobFailure::Usage(message));
        }
        let wrong = if self.json.is_some() && self.memory {
            "`-J` writes the verdict on a run, but `--memory` runs nothing: remove one of the two options"
        } else if !on_gpus && self.stress.is_some() {
            "`--stress` delays streams of GPUs: add `--device=cuda`; on the simulator, use `--schedule=seed:0..N` to try \
             other orders"
        } else if !on_gpus && self.profile_host {
            "`--profile-host` measures the host of a GPU: add `--device=cuda`"
        } else if !on_gpus && self.tune.is_some() {
            "`--tune` measures algorithms on GPUs: add `--device=cuda`"
        } else if !on_gpus && !self.tune_passes.is_empty() {
            "`--tune-passes` measures pipelines on GPUs: add `--device=cuda`"
        } else if self.tune.iter().chain(&self.tuning).any(|it| it == Path::new("-")) {
            "a table of `--tune` is a file that later runs read and extend, so `-` cannot stand for standard input or output: \
             give the name of a file"
        } else if self.tune.is_some() && self.memory {
            "`--tune` measures runs, but `--memory` runs nothing: remove one of the two options"
        } else if on_gpus && !self.schedule.is_program() {
            "`--schedule` applies only to the simulator; on GPUs, use `--stress 100` to delay streams at \
             random"
        } else if self.witness.is_some() && !matches!(self.schedule, ScheduleSet::Explore(_)) {
            "`--witness` writes an order that `--schedule=explore:N` finds: add `--schedule=explore:N`"
        } else {
            let (programs, reference) = (self.texts(), self.reference.as_deref());
            let programs =
                programs.paths().iter().map(|it| OptionFile { option: "the program", path: Path::new(it) });
            let reference = reference.map(|it| OptionFile { option: "the reference", path: Path::new(it) });
            let fusions = self.text.fusions.iter();
            let fusions = fusions.map(|it| OptionFile { option: "the fusions", path: Path::new(it) });
            let inputs: Vec<OptionFile<'_>> = programs.chain(reference).chain(fusions).collect();
            return Ok(check_option_files(&self.option_files(), &inputs)?);
        };
        Err(JobFailure::Usage(wrong.to_owned()))
    }
}
