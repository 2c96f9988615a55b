//! The command line.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use grammar::render::Format;
use hir::{
    check::OrderingModel,
    exit::Exit,
    io::generate::InputKind,
    plan::limits::{self, Limits},
    run::{
        compare::RtolAtol,
        inputs::InputFlag,
        output::OutputFlag,
        precheck::CheckMode,
        prepare::{JobFailure, ProgramFiles},
        verdict::Criteria,
    },
    sim::ScheduleSet,
    source::Binding,
    tool::{self, Color, remarks::RemarkFlags},
};

/// Runs a Host IR program on GPUs or on simulated ranks and checks its results.
///
/// Lines with `#` are commentary; the last line is the verdict.
#[derive(Clone, Parser)]
#[command(name = "hir-run", version)]
pub struct Options {
    /// The program; `-` for standard input.
    #[arg(required_unless_present_any = ["program", "batch"])]
    pub file: Option<String>,
    /// A program for each rank, where a framework prints one a rank: `0=a.hir,1=b.hir`.
    #[arg(long, conflicts_with = "file", value_name = "RANK=FILE,...")]
    pub program: Option<ProgramFiles>,
    /// Programs to run one after the other in one job, which starts its GPUs and communicators once: a file whose lines are
    /// command lines of hir-run, without its name. Options beside this one are for all of them.
    #[arg(long, conflicts_with_all = ["file", "program"], value_name = "FILE")]
    pub batch: Option<std::path::PathBuf>,
    /// Which container of a text that holds several, from 0.
    #[arg(long, value_name = "N")]
    pub container: Option<usize>,
    /// Passes to run first, as `hir-opt --passes`; not on the reference.
    #[arg(long, alias = "pass-pipeline", value_name = "a,b{opt=val}")]
    pub passes: Option<String>,
    #[command(flatten)]
    pub remarks: RemarkFlags,
    /// What executes the plans; default: auto.
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Number of ranks; default: the smallest world that holds every mesh.
    #[arg(long, value_parser = tool::parse_ranks)]
    pub ranks: Option<usize>,
    /// Whether the program is checked before it runs: no race, and every output written.
    #[arg(long, value_enum, default_value = "error", num_args = 0..=1, require_equals = true, default_missing_value = "error", overrides_with = "check")]
    pub check: CheckMode,
    /// Whose rules give an order: `nccl`, what CUDA, NCCL and PyTorch document; `hir`, what hir-run's own executors give besides.
    #[arg(long, value_enum, default_value = "nccl")]
    pub check_model: OrderingModel,
    /// Order of what the synchronisation leaves open: `program`, `adversarial`, `seed:N`, `seed:A..B` for many
    /// runs, `explore:N` for at most N orders of the accesses that conflict, `@FILE` for the order that `hir-opt --witness` writes.
    #[arg(long, default_value = "program")]
    pub schedule: ScheduleSet,
    /// Write to FILE the order for which `--schedule=explore:N` gives another result; `--schedule=@FILE` runs it again.
    #[arg(long, value_name = "FILE")]
    pub witness: Option<std::path::PathBuf>,
    /// Values of inputs that are not given.
    #[arg(long, default_value = "exact", value_name = "exact|random|rank|zeros")]
    pub inputs: InputKind,
    /// Seed of those values.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// An input: `T0=@x.npy`, `T0=@w.safetensors#key`, `T0=2x2xf32=1 2 3 4`, `T0@local=@x.%r.npy`. A value has the
    /// logical or the printed shape of the tensor, or of the rank's part.
    #[arg(long, value_name = "NAME=VALUE")]
    pub input: Vec<InputFlag>,
    /// A symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<Binding>,
    /// Where a tensor goes: `T3=@y.npy`, `T3=-`, `T3@local=@y.%r.npy`.
    #[arg(long, value_name = "NAME=FILE")]
    pub output: Vec<OutputFlag>,
    /// What an output has to be: `T3=@ref.npy`, `T3@local=@y.%r.npy` (each rank's part by itself; rank 0 reads all); `sim`: what the
    /// simulator finds for all of them; `unsharded`: what the program before `--passes` computes on one rank, on whole tensors,
    /// with every sharding erased.
    #[arg(long, value_name = "NAME=FILE|sim|unsharded")]
    pub expect: Vec<Expect>,
    /// A program whose outputs are expected, by position, on the same inputs.
    #[arg(long, value_name = "SPEC.hir")]
    pub reference: Option<String>,
    /// Relative tolerance, in place of the default: results that are exact are equal; inexact results of two programs agree
    /// within 1e-9, computed in f64; values that are given, and GPUs, agree within the rounding error of the program, times 8,
    /// and the defaults of `torch.testing.assert_close` (rtol, atol: f16 1e-3, 1e-5; bf16 1.6e-2, 1e-5; f32 1.3e-6, 1e-5;
    /// f64 1e-7, 1e-7).
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    pub rtol: Option<f64>,
    /// Absolute tolerance, as `--rtol`. With one of the two given, the other is 0.
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    pub atol: Option<f64>,
    /// Most ranks of a world.
    #[arg(long, value_name = "N", default_value_t = limits::DEFAULT_MAX_RANKS, value_parser = tool::parse_ranks)]
    pub max_ranks: usize,
    /// Most memory that the plans of all ranks may take, and that the simulated ranks may take together, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = 16)]
    pub memory_limit: u32,
    /// Print where every buffer lies on a GPU and how much memory that takes, and run nothing.
    #[arg(long)]
    pub memory: bool,
    /// Timed runs on GPUs; 0: none.
    #[arg(short = 'n', long, default_value_t = 0, value_name = "N")]
    pub iters: usize,
    /// Runs before those that are timed.
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N")]
    pub warmup: usize,
    /// Time the plan as one captured graph.
    #[arg(short = 'G', long)]
    pub cudagraph: bool,
    /// Run the plan N more times on GPUs, with streams held back at random: all outputs have to be equal bit by bit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stress: Option<u32>,
    /// Tell what issuing the plan costs the host of a GPU, beside the bare calls that it is made of.
    #[arg(long)]
    pub profile_host: bool,
    /// Where the times go, as JSON.
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<std::path::PathBuf>,
    /// How long ranks wait for one of them, and for a run on GPUs, in seconds, before the job is given up.
    #[arg(short = 'T', long, value_name = "SEC", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,
    /// How diagnostics are drawn. `sarif`: standard error is one SARIF log, of everything that is reported.
    #[arg(long, default_value = "human", value_name = "human|short|json|sarif")]
    pub error_format: Format,
    /// When to colour them.
    #[arg(long, value_enum, default_value = "auto")]
    pub color: Color,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The GPUs when there are enough, and one process a rank, else the simulator.
    Auto,
    /// The simulator.
    Sim,
    /// The GPUs.
    Cuda,
}

/// `--expect`.
#[derive(Clone)]
pub enum Expect {
    /// The simulator's outputs.
    Sim,
    /// The outputs of the program before passes, without shardings.
    Unsharded,
    /// A given output.
    Given(InputFlag),
}

impl std::str::FromStr for Expect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sim" => Ok(Self::Sim),
            "unsharded" => Ok(Self::Unsharded),
            given => given.parse().map(Self::Given),
        }
    }
}

impl Options {
    /// That options do not ask for what others leave out.
    ///
    /// # Errors
    /// What to ask for instead.
    pub fn validate(&self) -> Result<(), JobFailure> {
        let on_gpus = self.device == Some(Device::Cuda);
        if let Some(ranks) = self.ranks.filter(|it| *it > self.max_ranks) {
            let limit = self.max_ranks;
            let message =
                format!("`--ranks {ranks}` is more than {limit}: allow it by `--max-ranks={ranks}`");
            return Err(JobFailure::Other(Exit::Usage, message));
        }
        let wrong = if self.json.is_some() && self.memory {
            "`-J` writes times, and `--memory` runs nothing: leave out one of the two"
        } else if !on_gpus && self.stress.is_some() {
            "`--stress` holds back streams of GPUs: add `--device=cuda`; on the simulator `--schedule=seed:0..N` tries other \
             orders"
        } else if !on_gpus && self.profile_host {
            "`--profile-host` times the calls of a GPU's host: add `--device=cuda`"
        } else if on_gpus && !self.schedule.is_program() {
            "`--schedule` is for the simulator: GPUs take the order that comes; `--stress 100` holds back their streams at \
             random"
        } else if self.witness.is_some() && !matches!(self.schedule, ScheduleSet::Explore(_)) {
            "`--witness` writes an order that `--schedule=explore:N` finds: add that"
        } else if self.json.is_some() && self.iters == 0 && !self.profile_host {
            "`-J` writes times: ask for some by `-n 20` or `--profile-host`"
        } else {
            return Ok(());
        };
        Err(JobFailure::Other(Exit::Usage, wrong.to_owned()))
    }

    /// What executes the plans.
    pub fn device(&self) -> Device {
        self.device.unwrap_or(Device::Auto)
    }

    /// What the world of a program may take.
    pub fn limits(&self) -> Limits {
        Limits { ranks: self.max_ranks, memory: self.memory_limit(), ..Limits::default() }
    }

    /// Bytes that simulated ranks may take.
    pub fn memory_limit(&self) -> usize {
        (self.memory_limit as usize) << 30
    }

    /// The programs.
    pub fn texts(&self) -> ProgramFiles {
        self.program.clone().unwrap_or_else(|| ProgramFiles::One(self.file.clone().unwrap_or_default()))
    }

    /// How long ranks wait.
    pub fn timeout_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout))
    }

    /// What all ranks of a job have to be given alike, an option a line.
    pub fn canonical_options(&self) -> String {
        let device = self.device().to_possible_value();
        let device = device.map_or(String::new(), |it| it.get_name().to_owned());
        let mut text = format!("--device {device}\n--inputs {}\n--seed {}\n", self.inputs, self.seed);
        let mut add = |name: &str, value: Option<String>| {
            text += &value.map_or(String::new(), |it| format!("--{name} {it}\n"));
        };
        let check = self.check.to_possible_value();
        add("check", check.map(|it| it.get_name().to_owned()));
        let model = Some(self.check_model).filter(|it| *it != OrderingModel::default());
        add("check-model", model.map(|it| it.to_string()));
        add("passes", self.passes.clone());
        add("remarks", self.remarks.level_name());
        add("container", self.container.map(|it| it.to_string()));
        add("schedule", Some(self.schedule.to_string()));
        add("witness", self.witness.as_ref().map(|_| "yes".to_owned()));
        add("rtol", self.rtol.map(|it| it.to_string()));
        add("atol", self.atol.map(|it| it.to_string()));
        self.set.iter().for_each(|it| add("set", Some(format!("{}={}", it.name, it.value))));
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
        add("stress", self.stress.map(|it| it.to_string()));
        add("profile-host", self.profile_host.then(|| "yes".to_owned()));
        add("json", self.json.as_ref().map(|_| "yes".to_owned()));
        add("memory", self.memory.then(|| "yes".to_owned()));
        add("max-ranks", Some(self.max_ranks.to_string()));
        add("memory-limit", Some(self.memory_limit.to_string()));
        let output = |it: &OutputFlag| Some(format!("{}{}={}", it.name, local(it.local), it.value));
        self.output.iter().for_each(|it| add("output", output(it)));
        text
    }

    /// The command line, for who has the texts of the programs in one file.
    pub fn reproducer_command(&self) -> String {
        let texts = match self.texts() {
            ProgramFiles::One(path) => vec![path],
            ProgramFiles::PerRank(paths) => paths,
        };
        let words =
            tool::arguments().into_iter().map(|it| if texts.contains(&it) { "%s".to_owned() } else { it });
        words.fold("RUN: hir-run".to_owned(), |line, word| line + " " + &word)
    }

    /// Tensors of `--expect NAME@local` and `--output NAME@local`.
    pub fn local_names(&self) -> Vec<&str> {
        let expected = self.expect.iter().filter_map(|it| match it {
            Expect::Given(it) => it.local.then_some(it.name.as_str()),
            Expect::Sim | Expect::Unsharded => None,
        });
        let written = self.output.iter().filter(|it| it.local).map(|it| it.name.as_str());
        let mut names: Vec<&str> = expected.chain(written).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Tensors of `--expect NAME`.
    pub fn whole_names(&self) -> Vec<&str> {
        let names = self.expect.iter().filter_map(|it| match it {
            Expect::Given(it) => (!it.local).then_some(it.name.as_str()),
            Expect::Sim | Expect::Unsharded => None,
        });
        names.collect()
    }

    /// What decides how near results have to be. `exact` says whether the run rounded nothing, if that is known.
    pub fn criteria(&self, exact: Option<bool>, on_gpus: bool) -> Criteria {
        let reads_files = self.input.iter().any(|it| it.value.starts_with('@'));
        Criteria { user_tolerance: self.tolerance(), exact, reads_files, on_gpus }
    }

    /// The tolerance that was given.
    fn tolerance(&self) -> Option<RtolAtol> {
        (self.rtol.is_some() || self.atol.is_some())
            .then(|| RtolAtol { rtol: self.rtol.unwrap_or(0.0), atol: self.atol.unwrap_or(0.0) })
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".to_owned()),
    }
}
