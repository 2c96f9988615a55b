//! The options that all ranks of a job must have in common.

use super::{Expect, Options};
use crate::{
    run::{inputs::InputFlag, output::OutputFlag},
    tool,
};
use hir_check::OrderingModel;

impl Options {
    /// Returns the options that must be equal on all ranks of a job, one per line.
    pub fn canonical_options(&self) -> String {
        let device = tool::value_name(self.device());
        let mut text = format!("--device {device}\n--inputs {}\n--seed {}\n", self.inputs(), self.seed);
        let mut add = |name: &str, value: Option<String>| {
            text += &value.map_or(String::new(), |it| format!("--{name} {it}\n"));
        };
        add("check", Some(tool::value_name(self.check)));
        let model = Some(self.check_model).filter(|it| *it != OrderingModel::default());
        add("check-model", model.map(|it| it.to_string()));
        add("passes", self.passes());
        add("remarks", self.remarks.level_name());
        add("container", self.container.map(|it| it.to_string()));
        add("schedule", Some(self.schedule.to_string()));
        add("witness", self.witness.as_ref().map(|_| "yes".to_owned()));
        add("timeline", (!self.timelines.timeline.is_empty()).then(|| "yes".to_owned()));
        add("overlap", self.timelines.overlap.then(|| "yes".to_owned()));
        add("machine", self.timelines.machine.as_ref().map(|it| it.name.clone()));
        add("rtol", self.rtol.map(|it| it.to_string()));
        add("atol", self.atol.map(|it| it.to_string()));
        add("assume", self.world.assume.then(|| "yes".to_owned()));
        self.set.iter().for_each(|it| add("set", Some(it.to_string())));
        let local = |is: bool| if is { "@local" } else { "" };
        let tensor = |it: &InputFlag| Some(format!("{}{}={}", it.name, local(it.local), it.value));
        self.input.iter().for_each(|it| add("input", tensor(it)));
        self.expect.iter().for_each(|it| match it {
            Expect::Sim => add("expect", Some("sim".to_owned())),
            Expect::Unsharded => add("expect", Some("unsharded".to_owned())),
            Expect::Given(it) => add("expect", tensor(it)),
        });
        add("iters", (self.iters > 0).then(|| format!("{} after {}", self.iters, self.warmup)));
        add("cudagraph", self.cudagraph.then(|| "yes".to_owned()));
        add("step-by-step", self.step_by_step.then(|| "yes".to_owned()));
        add("stress", self.stress.map(|it| it.to_string()));
        add("tune", self.tune.as_ref().map(|_| "yes".to_owned()));
        add("tune-passes", (!self.tune_passes.is_empty()).then(|| self.tune_passes.join(" ")));
        add("tuning", self.tuning.as_ref().map(|_| "yes".to_owned()));
        add("profile-host", self.profile_host.then(|| "yes".to_owned()));
        add("json", self.json.as_ref().map(|_| "yes".to_owned()));
        add("memory", self.memory.then(|| "yes".to_owned()));
        add("max-ranks", Some(self.world.max_ranks.to_string()));
        add("memory-limit", Some(self.world.memory_limit.to_string()));
        add("max-work", Some(self.max_work().to_string()));
        let output = |it: &OutputFlag| Some(format!("{}{}={}", it.name, local(it.local), it.value));
        self.output.iter().for_each(|it| add("output", output(it)));
        text
    }
}
