//! Random command lines of the tools.

use passes::{PASSES, PIPELINES};

use crate::{pass_mutations::PASSES_WITH_OPTIONS, rng::Rng};

/// A command line of a tool, without the program file that follows the name of the tool.
pub struct CommandLine {
    pub tool: &'static str,
    pub arguments: Vec<String>,
}

/// How long a tool may compute that does not simulate, and how much longer if it does: twice what `--max-work` states for
/// a billion elements, because two threads that share a core each need up to twice as long.
const SECONDS: u64 = 10;
const SIMULATION_SECONDS: u64 = 60;

impl CommandLine {
    /// Returns how long the tool may compute.
    pub fn seconds(&self) -> u64 {
        let simulates =
            |it: &String| matches!(it.as_str(), "--verify-each=semantic" | "--bisect" | "--device=sim");
        if self.tool == "hir reduce" || self.arguments.iter().any(simulates) {
            SECONDS + SIMULATION_SECONDS
        } else {
            SECONDS
        }
    }
}

const REPORTS: [&str; 12] = [
    "--timing",
    "--statistics",
    "--remarks=all",
    "--verify-roundtrip",
    "--print-plan",
    "--print-hb",
    "--overlap",
    "--print=short",
    "--print=2025",
    "--print-changed",
    "--bisect",
    "--error-format=sarif",
];
const VERIFY: [&str; 4] = ["off", "structural", "semantic", "check"];
const INPUTS: [&str; 4] = ["rank", "exact", "random", "zeros"];
const SCHEDULES: [&str; 4] = ["program", "adversarial", "seed:0..3", "explore:4"];
const ORACLES: [&str; 4] = ["race", "deadlock", "wrong-result", "crash"];
const BINDINGS: [&str; 4] = ["i0=12", "numberOfStreams=3", "i84=(rank+streamIdx)%8", "i1=0"];

/// Returns a list of one to four passes.
fn pipeline(rng: &mut Rng) -> String {
    let names: Vec<&str> = (0..=rng.below(4))
        .map(|_| match rng.below(3) {
            0 => PASSES[rng.below(PASSES.len())].name,
            1 => PIPELINES[rng.below(PIPELINES.len())].name,
            _ => PASSES_WITH_OPTIONS[rng.below(PASSES_WITH_OPTIONS.len())],
        })
        .collect();
    names.join(",")
}

/// Returns a command that rewrites or checks a program.
pub fn hir_opt(rng: &mut Rng) -> CommandLine {
    let mut arguments = vec!["--max-ranks=64".to_owned()];
    if rng.chance(80) {
        arguments.push(format!("--passes={}", pipeline(rng)));
        arguments.push(format!("--verify-each={}", rng.choose(&VERIFY).unwrap_or_default()));
    } else {
        arguments.push(if rng.chance(50) { "--check" } else { "--fix=check" }.to_owned());
    }
    if rng.chance(50) {
        arguments.extend(rng.choose(&REPORTS).map(str::to_owned));
    }
    if rng.chance(15) {
        arguments.extend(rng.choose(&BINDINGS).map(|it| format!("--set={it}")));
    }
    CommandLine { tool: "hir-opt", arguments }
}

/// The limit on the work of a simulation, in billions of elements: the default of hir-opt and hir reduce. That of hir-run
/// is larger.
const MAX_WORK: &str = "--max-work=1";

/// Returns a command that simulates a program and prints each number that it computes.
pub fn hir_run(rng: &mut Rng) -> CommandLine {
    let mut arguments: Vec<String> =
        ["--device=sim", "--max-ranks=64", "--memory-limit=1", "--timeout=10", MAX_WORK]
            .map(str::to_owned)
            .into();
    arguments.push(format!("--inputs={}", rng.choose(&INPUTS).unwrap_or_default()));
    arguments.push(format!("--check={}", rng.choose(&["error", "warn", "off"]).unwrap_or_default()));
    if rng.chance(50) {
        arguments.push(format!("--schedule={}", rng.choose(&SCHEDULES).unwrap_or_default()));
    }
    if rng.chance(15) {
        arguments.push(format!("--passes={}", pipeline(rng)));
    }
    CommandLine { tool: "hir-run", arguments }
}

/// Returns a command that shrinks a program.
pub fn hir_reduce(rng: &mut Rng) -> CommandLine {
    let oracle = rng.choose(&ORACLES).unwrap_or_default();
    let mut arguments: Vec<String> =
        ["--max-tests=60", "--max-ranks=64", "--memory-limit=1"].map(str::to_owned).into();
    arguments.push(format!("--oracle={oracle}"));
    if oracle == "crash" || rng.chance(20) {
        arguments.push(format!("--passes={}", pipeline(rng)));
    }
    CommandLine { tool: "hir reduce", arguments }
}
