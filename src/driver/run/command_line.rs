//! The command line of hir-run: its options and what follows from them. `validate` knows which options exclude each other, and
//! `canonical` which ones all ranks of a job have in common.

mod canonical;
mod validate;

use grammar::{Binding, InvalidOption};
use std::{path::Path, sync::Arc, time::Duration};

use clap::{Parser, ValueEnum};

use super::{
    compare::RtolAtol,
    inputs::InputFlag,
    option_files::OptionFile,
    output::OutputFlag,
    pipeline_tuning::alternatives::Alternative,
    prepare::{PassRunner, PrepareOptions},
    program_files::ProgramFiles,
    timelines::TimelineFlags,
    verdict::Criteria,
};
use crate::{
    session::Session,
    tool::{
        self,
        flags::{DiagnosticFlags, TextFlags, WorldFlags, with_help},
        remarks::RemarkFlags,
    },
};
use hir_check::OrderingModel;
use hir_plan::limits::DEFAULT_MAX_WORK;
use hir_sim::ScheduleSet;
use hir_tensor::{
    data::{Data, shadow::number_to_f64},
    generate::InputKind,
};

/// The examples of `--help`.
pub const EXAMPLES: &str =
    "  hir-run program.hir                               run on simulated ranks, checked before
  hir-run lowered.hir --reference program.hir       compare with another program
  hir-run program.hir --passes @overlap --expect=unsharded
  hir-run dump.hir --set i0=8192 --check=off --schedule=seed:0..50
  mpirun -np 8 hir-run lowered.hir --expect=sim     run on 8 GPUs, compare with the simulator
  hir-run lowered.hir --ranks 8 -w 5 -n 20 -G       time it on 8 GPUs, as one CUDA graph";

/// Runs a Host IR program on GPUs or on simulated ranks and verifies its results.
///
/// Lines that begin with `#` are notes. The last line is the verdict: `[SUCCESS]`, `[FAILED]` or `[STOPPED]`.
#[derive(Clone, Parser)]
#[command(
    name = "hir-run",
    version = crate::tool::version(),
    mut_args(with_help(
        "quiet",
        "Print only outputs, diagnostics and the verdict: no notes and no progress"
    ))
)]
pub struct Options {
    /// The program file; `-`, the default, for standard input.
    pub file: Option<String>,
    /// One program per rank, for frameworks that print a program for each rank: `0=a.hir,1=b.hir`.
    #[arg(help_heading = "Program", long, conflicts_with = "file", value_name = "RANK=FILE,...")]
    pub program: Option<ProgramFiles>,
    /// Run several programs in one job, which initializes its GPUs and communicators only once. Each line of
    /// FILE is a command line of hir-run without the tool's name. Options next to this one apply to all of
    /// them.
    #[arg(help_heading = "Program", long, conflicts_with_all = ["file", "program"], value_name = "FILE")]
    pub batch: Option<std::path::PathBuf>,
    /// Index of the container in a file with several, from 0.
    #[arg(help_heading = "Program", long, value_name = "N")]
    pub container: Option<usize>,
    /// Files beside the program.
    #[command(flatten)]
    pub text: TextFlags,
    /// Passes to run first, as in `hir-opt --passes`; not applied to the reference. A repeated option appends.
    #[arg(
        help_heading = "Program",
        long,
        alias = "pass-pipeline",
        value_name = "a,b{opt=val},@p{a.opt=val}"
    )]
    pub passes: Vec<String>,
    /// Certify that the program computes after `--passes` what it computes before, and write both to FILE, which `hir certify FILE`
    /// certifies again. If they differ, nothing is run.
    #[arg(help_heading = "Checks", long, value_name = "FILE", requires = "passes", conflicts_with_all = ["program", "batch", "tune_passes"])]
    pub certificate: Option<std::path::PathBuf>,
    /// Which remarks of passes are printed.
    #[command(flatten)]
    pub remarks: RemarkFlags,
    /// The executor of the plans. Default: auto.
    #[arg(help_heading = "Execution", long, value_enum)]
    pub device: Option<Device>,
    /// Check before the run that the program has no race and that every output is written.
    #[arg(help_heading = "Checks", long, value_enum, default_value = "error", num_args = 0..=1, require_equals = true, default_missing_value = "error", overrides_with = "check")]
    pub check: CheckMode,
    /// The rules that order accesses: `nccl`, only what CUDA, NCCL and PyTorch document; `hir`, also what
    /// hir-run's own executors guarantee.
    #[arg(help_heading = "Checks", long, value_parser = tool::model_flags::check_model(), default_value = "nccl")]
    pub check_model: OrderingModel,
    /// The order of unsynchronized steps on the simulator: `program`, `adversarial`, `seed:N`, `seed:A..B`
    /// for several runs, `explore:N` for at most N orders of conflicting accesses, `@FILE` for the order
    /// written by `--witness`.
    #[arg(help_heading = "Execution", long, default_value = "program")]
    pub schedule: ScheduleSet,
    /// Write to FILE the order for which `--schedule=explore:N` gives a different result. `--schedule=@FILE`
    /// runs it again.
    #[arg(help_heading = "Execution", long, value_name = "FILE")]
    pub witness: Option<std::path::PathBuf>,
    /// The timelines to write.
    #[command(flatten)]
    pub timelines: TimelineFlags,
    /// Values of inputs that `--input` does not provide. By default `exact`; of results that another program computes, also
    /// those with `signs` and `random` are compared, and of extremes, those with `negative` and `positive`.
    #[arg(
        help_heading = "Inputs and results",
        long,
        value_name = "exact|random|signs|negative|positive|rank|zeros"
    )]
    pub inputs: Option<InputKind>,
    /// Seed of the generated values.
    #[arg(help_heading = "Inputs and results", long, default_value_t = 0)]
    pub seed: u64,
    /// Provide an input: `T0=@x.npy`, `T0=@w.safetensors#key`, `T0=2x2xf32=1 2 3 4`, `T0@local=@x.%r.npy`. A
    /// value has the logical or the printed shape of the tensor, or of the rank's part.
    #[arg(help_heading = "Inputs and results", long, value_name = "NAME=VALUE")]
    pub input: Vec<InputFlag>,
    /// Set a symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(help_heading = "Ranks and symbols", long, value_name = "NAME=VALUE")]
    pub set: Vec<Binding>,
    /// Write a tensor: `T3=@y.npy`, `T3=-`, `T3@local=@y.%r.npy`.
    #[arg(help_heading = "Inputs and results", long, value_name = "NAME=FILE")]
    pub output: Vec<OutputFlag>,
    /// The expected value of an output: `T3=@ref.npy`, or `T3@local=@y.%r.npy` for each rank's part
    /// separately (rank 0 reads all files). `sim`: the outputs of the simulator. `unsharded`: the outputs of
    /// the program before `--passes`, computed on one rank with whole tensors and all shardings erased.
    #[arg(help_heading = "Inputs and results", long, value_name = "NAME=FILE|sim|unsharded")]
    pub expect: Vec<Expect>,
    /// A program that computes the expected outputs, by position, from the same inputs.
    #[arg(help_heading = "Inputs and results", long, value_name = "SPEC.hir")]
    pub reference: Option<String>,
    /// Relative tolerance. By default, exact results must be equal. Of inexact results, two simulated ones
    /// must agree within 1e-9, computed in f64; GPUs and simulator, within 8 times the rounding error of the
    /// program; given values, and GPUs and `--reference`, within this plus the defaults of
    /// `torch.testing.assert_close` (rtol, atol: f16 1e-3, 1e-5; bf16 1.6e-2, 1e-5; f32 1.3e-6, 1e-5; f64
    /// 1e-7, 1e-7).
    #[arg(help_heading = "Inputs and results", long, value_parser = tolerance, allow_negative_numbers = true)]
    pub rtol: Option<f64>,
    /// Absolute tolerance; see `--rtol`. If only one of the two is given, the other is 0.
    #[arg(help_heading = "Inputs and results", long, value_parser = tolerance, allow_negative_numbers = true)]
    pub atol: Option<f64>,
    /// The size of the world and its limits.
    #[command(flatten)]
    pub world: WorldFlags,
    /// Print the location of every buffer in GPU memory and the total size, and run nothing.
    #[arg(help_heading = "GPUs", long, conflicts_with_all = ["expect", "reference", "timeline", "overlap", "witness"])]
    pub memory: bool,
    /// Compute nothing on simulated ranks: what `hir overlap` means.
    #[arg(long, hide = true)]
    pub no_values: bool,
    /// Number of timed runs on GPUs.
    #[arg(help_heading = "GPUs", short = 'n', long, default_value_t = 0, value_name = "N")]
    pub iters: usize,
    /// Number of runs before the timed ones.
    #[arg(help_heading = "GPUs", short = 'w', long, default_value_t = 5, value_name = "N")]
    pub warmup: usize,
    /// Require that the runs after the first one are replays of a single captured CUDA graph, which is the default where
    /// a plan can be captured: refuse any other plan.
    #[arg(help_heading = "GPUs", short = 'G', long)]
    pub cudagraph: bool,
    /// Issue all runs step by step: replay no CUDA graph.
    #[arg(help_heading = "GPUs", long, conflicts_with = "cudagraph")]
    pub step_by_step: bool,
    /// Run the plan N more times on GPUs with random delays on its streams, step by step, or as replays with `-G`.
    /// All outputs must be bitwise equal.
    #[arg(help_heading = "GPUs", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stress: Option<u32>,
    /// Measure the algorithms that cuBLASLt offers for the matrix products of the program, inside the whole
    /// program, use the fastest ones, and add them to FILE. With `--tune-passes`, add the fastest pipeline
    /// instead.
    #[arg(help_heading = "GPUs", long, value_name = "FILE", conflicts_with = "tuning")]
    pub tune: Option<std::path::PathBuf>,
    /// Measure the program with each of several pipelines, in turns, and print which of them is the fastest.
    /// `|` separates pipelines and, within braces, alternatives: `@lower|@overlap{overlap.count=2|4|8}` stands
    /// for four pipelines. A repeated option adds pipelines. The passes of `--passes` run before each of them.
    /// `-n` is 20 by default.
    #[arg(help_heading = "GPUs", long, value_name = "a,b|c{opt=v|w}", conflicts_with_all = ["batch", "memory", "stress", "profile_host", "timeline", "overlap", "output"])]
    pub tune_passes: Vec<String>,
    /// The pipeline of `--tune-passes` that is the last of `passes`.
    #[arg(skip)]
    pub pipeline: Option<Alternative>,
    /// True to report only a failure: for the second round of a pipeline, and with `--quiet`.
    #[arg(skip)]
    pub reports_failures_only: bool,
    /// Use the algorithms that `--tune` has written to FILE, on GPUs. Without `--passes`, also apply the pipeline
    /// that FILE has for the program.
    #[arg(help_heading = "GPUs", long, value_name = "FILE")]
    pub tuning: Option<std::path::PathBuf>,
    /// Print the host's cost of issuing the plan to a GPU, and the cost of the individual calls.
    #[arg(help_heading = "GPUs", long)]
    pub profile_host: bool,
    /// Write the verdict, the exit code, and what was measured or estimated, to FILE as JSON.
    #[arg(help_heading = "Execution", short = 'J', long, value_name = "FILE")]
    pub json: Option<std::path::PathBuf>,
    /// Seconds that ranks wait for each other and for a run on GPUs before they abort the job.
    #[arg(help_heading = "Execution", short = 'T', long, value_name = "SEC", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,
    /// How diagnostics are printed.
    #[command(flatten)]
    pub diagnostics: DiagnosticFlags,
}

/// The executor of a program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// GPUs if there are enough, with one process per rank; otherwise the simulator.
    Auto,
    /// The simulator.
    Sim,
    /// GPUs.
    Cuda,
}

/// How the measured runs of a plan are issued. The first run is always issued step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// As replays of a captured CUDA graph; step by step if the plan cannot be captured.
    Default,
    /// As replays of a captured CUDA graph; a plan that cannot be captured is refused.
    Graph,
    /// Step by step.
    StepByStep,
}

/// An operand of `--expect`.
#[derive(Clone, PartialEq)]
pub enum Expect {
    /// The outputs of the simulator.
    Sim,
    /// The outputs of the program before passes, without shardings.
    Unsharded,
    /// A file or a literal.
    Given(InputFlag),
}

impl std::str::FromStr for Expect {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        match text {
            "sim" => Ok(Self::Sim),
            "unsharded" => Ok(Self::Unsharded),
            given => given.parse().map(Self::Given),
        }
    }
}

/// The reaction to faults that the check finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckMode {
    /// Report faults and exit with code 7 before the program runs.
    Error,
    /// Report faults and run the program.
    Warn,
    /// Do not check.
    Off,
}

/// What to do with a table.
#[derive(Clone, Copy, Debug)]
pub enum TuningFlag<'a> {
    /// Use the algorithms of a file.
    Use(&'a Path),
    /// Measure the algorithms of the program, and add them to a file.
    Measure(&'a Path),
    /// Measure one of several pipelines. The file was checked before the first one.
    MeasurePipeline,
}

impl Options {
    /// Returns the files that options besides `--output` write, and the table that `--tuning` reads.
    pub fn option_files(&self) -> Vec<OptionFile<'_>> {
        let tables = [("--tune", &self.tune), ("--tuning", &self.tuning)];
        let reports =
            [("-J", &self.json), ("--witness", &self.witness), ("--certificate", &self.certificate)];
        let named = tables.into_iter().chain(reports);
        let named = named.filter_map(|(option, path)| Some(OptionFile { option, path: path.as_deref()? }));
        let timelines = &self.timelines.timeline;
        named.chain(timelines.iter().map(|it| OptionFile { option: "--timeline", path: &it.path })).collect()
    }

    /// Returns what to do with a table of algorithms.
    pub fn tuning_flag(&self) -> Option<TuningFlag<'_>> {
        let measured = |it| {
            if self.tune_passes.is_empty() { TuningFlag::Measure(it) } else { TuningFlag::MeasurePipeline }
        };
        self.tune.as_deref().map(measured).or(self.tuning.as_deref().map(TuningFlag::Use))
    }

    /// Returns how the runs after the first one are issued.
    pub fn issue(&self) -> Issue {
        match (self.cudagraph, self.step_by_step) {
            (true, _) => Issue::Graph,
            (false, true) => Issue::StepByStep,
            (false, false) => Issue::Default,
        }
    }

    /// Returns whether a run on GPUs has to capture its plan.
    pub fn requires_capture(&self) -> bool {
        self.cudagraph && (self.is_measured() || self.stress.is_some())
    }

    /// Returns whether runs are measured.
    pub fn is_measured(&self) -> bool {
        self.iters > 0 || self.profile_host || self.tune.is_some()
    }

    /// Returns the executor of the plans.
    pub fn device(&self) -> Device {
        self.device.unwrap_or(Device::Auto)
    }

    /// Returns the limit for the work of simulated runs, in billions of elements.
    pub fn max_work(&self) -> u32 {
        self.world.max_work(DEFAULT_MAX_WORK)
    }

    /// Returns how programs are prepared. `world` is the number of ranks of the job, if each has a process.
    pub fn preparation<'a>(
        &'a self,
        session: &'a Session,
        world: Option<usize>,
        passes: &'a PassRunner<'a>,
    ) -> PrepareOptions<'a> {
        PrepareOptions {
            session,
            limits: self.world.limits(),
            ranks: self.world.ranks.or(world),
            container: self.container,
            fusions: &self.text.fusions,
            bindings: &self.set,
            assume: self.world.assume,
            is_reference: false,
            inputs: &self.input,
            uses: hir_plan::CallerUses::default(),
            passes,
        }
    }

    /// Returns the program files.
    pub fn texts(&self) -> ProgramFiles {
        self.program
            .clone()
            .unwrap_or_else(|| ProgramFiles::One(self.file.clone().unwrap_or_else(|| "-".to_owned())))
    }

    /// Returns the pass pipeline, if one is given.
    pub fn passes(&self) -> Option<String> {
        (!self.passes.is_empty()).then(|| self.passes.join(","))
    }

    /// Returns how long ranks wait for each other.
    pub fn timeout_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout))
    }

    /// Returns the command line of a reproducer, with these arguments, in which `%s` stands for the program file.
    pub fn reproducer_command(&self, arguments: Vec<String>) -> String {
        let texts = self.texts();
        let words =
            arguments.into_iter().map(|it| if texts.paths().contains(&it) { "%s".to_owned() } else { it });
        words.fold("RUN: hir-run".to_owned(), |line, word| line + " " + &word)
    }

    /// Returns the tensors of `--expect NAME@local` and `--output NAME@local`.
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

    /// Returns the tensors of `--expect NAME`.
    pub fn whole_names(&self) -> Vec<&str> {
        let names = self.expect.iter().filter_map(|it| match it {
            Expect::Given(it) => (!it.local).then_some(it.name.as_str()),
            Expect::Sim | Expect::Unsharded => None,
        });
        names.collect()
    }

    /// Returns the criteria that select a tolerance. `exact` is set if it is known whether the run rounded
    /// nothing. `inputs` are those of the ranks that are known.
    pub fn criteria(&self, exact: Option<bool>, on_gpus: bool, inputs: &[Vec<Arc<Data>>]) -> Criteria {
        let reads_files = self.input.iter().any(|it| it.value.starts_with('@'));
        let mut elements = inputs
            .iter()
            .flatten()
            .flat_map(|it| (0..it.len()).map(|at| number_to_f64(it.get(at))))
            .peekable();
        Criteria {
            user_tolerance: self.tolerance(),
            exact,
            reads_files,
            on_gpus,
            compares: self.reference.is_some() || self.expect.iter().any(|it| *it != Expect::Sim),
            zero_inputs: elements.peek().is_some() && elements.all(|it| it == 0.0),
        }
    }

    /// Returns the values of inputs that `--input` does not provide.
    pub fn inputs(&self) -> InputKind {
        self.inputs.unwrap_or(InputKind::Exact)
    }

    /// Returns the tolerance of `--rtol` and `--atol`, if given.
    pub fn tolerance(&self) -> Option<RtolAtol> {
        (self.rtol.is_some() || self.atol.is_some())
            .then(|| RtolAtol { rtol: self.rtol.unwrap_or(0.0), atol: self.atol.unwrap_or(0.0) })
    }
}

fn tolerance(text: &str) -> Result<f64, InvalidOption> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".into()),
    }
}
