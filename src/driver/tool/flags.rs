//! Options that have the same meaning in several tools.

use grammar::InvalidOption;
use std::sync::Arc;

use clap::{Arg, Args};
use grammar::render::Format;

use crate::{
    session::Session,
    tool::{Color, Reporter},
};
use hir_plan::limits::{DEFAULT_MAX_RANKS, DEFAULT_MEMORY_GIB, Limits, MAX_RANKS};

/// The options that select how a tool reports. Each tool sets the help of `--quiet` to what it omits.
#[derive(Clone, Copy, Debug, Default, Args)]
#[command(next_help_heading = "Diagnostics")]
pub struct DiagnosticFlags {
    /// The format of diagnostics. With `json`, standard error has one JSON object a line; with `sarif`, it is one
    /// SARIF log of everything that is reported; `github` makes annotations in GitHub Actions.
    #[arg(long, default_value = "human", value_name = "human|short|json|sarif|github")]
    pub error_format: Format,
    /// Print no progress.
    #[arg(short, long)]
    pub quiet: bool,
    /// When to color diagnostics.
    #[arg(long, value_enum, default_value = "auto")]
    pub color: Color,
}

impl DiagnosticFlags {
    /// Creates the reporter of a session that the options select.
    pub fn reporter(&self, session: &Arc<Session>) -> Reporter {
        let screen = Reporter::new(session, self.error_format, self.color);
        // Options that are not on the command line are said.
        if let Some(defaults) = session.defaults().filter(|_| !self.quiet) {
            screen.message(format!("`{}` sets {}", defaults.file, defaults.arguments.join(" ")));
        }
        screen
    }
}

/// The options on the text of a program.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Input")]
pub struct TextFlags {
    /// A log of nvFuser with `NVFUSER_DUMP=segmented_fusion`. Of the fusion that fits the program, LaunchKernels execute the statements, tensors
    /// have the domains, and communications the reduction operators. May be repeated. Without one that fits, the fusions in the program
    /// file are used.
    #[arg(long, value_name = "FILE")]
    pub fusions: Vec<String>,
}

/// The options on the size of the world, of tools that plan all ranks.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Ranks and symbols")]
pub struct WorldFlags {
    /// Number of ranks. Default: the smallest world that contains all meshes.
    #[arg(long, value_parser = parse_ranks)]
    pub ranks: Option<usize>,
    /// Give the scalars that the text does not define the values that the report about them proposes.
    #[arg(long)]
    pub assume: bool,
    /// The maximum number of ranks.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_RANKS, value_parser = parse_ranks)]
    pub max_ranks: usize,
    /// Memory limit for the plans of all ranks, and for all simulated ranks together, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = DEFAULT_MEMORY_GIB, value_parser = parse_memory_limit)]
    pub memory_limit: u32,
    /// Limit for the elements that all simulated runs together compute or communicate, in billions. The simulator
    /// needs up to 30 seconds of one core for a billion. Default: 4 for hir-run, 1 for the trials of the other tools. N also allows N million
    /// instructions of all ranks, and at least 6 million.
    #[arg(long, value_name = "N")]
    max_work: Option<u32>,
}

impl Default for WorldFlags {
    fn default() -> Self {
        let (max_ranks, memory_limit) = (DEFAULT_MAX_RANKS, DEFAULT_MEMORY_GIB);
        Self { ranks: None, assume: false, max_ranks, memory_limit, max_work: None }
    }
}

impl WorldFlags {
    /// Returns the limit for the work of simulated runs, in billions of elements.
    pub fn max_work(&self, default: u32) -> u32 {
        self.max_work.unwrap_or(default)
    }

    /// Returns the memory limit in bytes.
    pub fn memory_bytes(&self) -> usize {
        (self.memory_limit as usize) << 30
    }

    /// Returns the limits on the plans of all ranks.
    pub fn limits(&self) -> Limits {
        Limits {
            ranks: self.max_ranks,
            memory: self.memory_bytes(),
            instructions: Limits::instructions(self.max_work.unwrap_or(0)),
        }
    }
}

/// Returns an edit, for `mut_args`, that replaces the help of the option `id`.
pub fn with_help(id: &'static str, help: &'static str) -> impl Fn(Arg) -> Arg {
    move |it| if it.get_id() == id { it.help(help) } else { it }
}

/// Parses the value of `--ranks`.
///
/// # Errors
/// Rejects values that are not a valid number of ranks.
fn parse_ranks(text: &str) -> Result<usize, InvalidOption> {
    let number = text.parse().ok().filter(|it| (1..=MAX_RANKS).contains(it));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_RANKS}").into())
}

/// Parses the value of `--memory-limit`.
///
/// # Errors
/// Rejects values that are not a whole number of GiB.
fn parse_memory_limit(text: &str) -> Result<u32, InvalidOption> {
    let parsed = text.parse();
    parsed.map_err(|_| "expected a whole number of GiB, such as 4".into())
}
