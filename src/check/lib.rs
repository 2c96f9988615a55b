//! Proves that the plans of all ranks are free of races, deadlocks and reads of unwritten memory, or reports
//! where they are not. Nothing is executed.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! The checker reads only the plans: `plan::sync` provides the matched communications and the happens-before
//! order, and `InstKind::visit_accesses` provides the accesses of each instruction. Loops are unrolled and
//! all ranks are present. A finding therefore names one iteration and one rank, and the absence of findings
//! is a proof for this program, this number of ranks and these values of `--set`.
//!
//! # Rules
//!
//! `RULES` has every rule, its source and the option that selects it. Only guarantees that CUDA, NCCL, PyTorch and nvFuser document count, not
//! what an executor happens to do; `OrderingModel::Hir` adds what hir's executors guarantee.
//!
//! # Checks
//!
//! * `race`: two accesses to an element, one of them a write, that nothing orders.
//! * `memory`: elements that are read, or returned, before anything has written them, and outputs that are
//!   computed from such elements.
//! * `repeat`: races between two consecutive runs, and kernels of several communicators that consecutive runs start in contradictory orders.
//! * `capture`: work that a capture into a CUDA graph does not record, or that ends it with an error.
//! * `comm`: communicators that ranks use in contradictory orders. Deadlocks are always reported, because no
//!   instruction after a deadlock executes.
//! * `excess`: statements that the program does not need, as remarks.
//!
//! ```
//! use hir_check::{Checks, Finding, check};
//!
//! // Nobody waits for the all-reduce, so its result may be read before it is written.
//! let plans = hir_plan::plans_of_text(
//!     "
//! %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
//!   Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
//! } // %HostIrContainer
//! ",
//!     2,
//! )
//! .map_err(|faults| faults[0].message.clone())?;
//! let report = check(&plans, Checks::ALL_FAULTS);
//! assert!(matches!(report.findings[..], [Finding::Race { .. }]));
//! # Ok::<(), String>(())
//! ```
//!
//! The package knows no executor, no file and no command line.

mod access_checks;
mod apply;
mod between_runs;
mod capture;
mod checker;
mod conflict;
mod deadlock_edits;
mod deliveries;
mod diagnostics;
mod early_releases;
mod editable_text;
mod excess;
mod excess_diagnostics;
mod exclusive_arms;
mod execution_fault;
mod explanation;
mod finding;
mod first_access;
mod fix;
mod fixable_race;
mod history;
mod iteration_storage;
mod joined_runs;
mod kernels_of_runs;
mod loop_edits;
mod memory;
mod merge;
mod missing_write;
mod not_checked;
mod not_compared;
mod not_shown;
mod order_edits;
mod ordering_model;
mod orders;
mod overlap;
mod plan_index;
mod profile;
mod progress;
mod progress_diagnostics;
mod race;
mod race_side;
mod reader_edits;
mod removal;
mod repair;
mod repair_help;
mod repeat;
mod replay;
mod rules;
mod semaphores;
mod sequence;
mod shared_buffers;
mod storage;
mod storage_explanation;
mod storage_sharing;
mod stream_operand;
mod stream_ordered_frees;
mod stream_waits;
mod stream_work;
mod trials;
mod two_runs;
mod wait_cycle;
mod wait_edits;
mod witness;
mod written;

pub use conflict::{Party, Race};
pub use diagnostics::UNWRITTEN_HELP;
pub use excess::{Excess, ExcessKind, ExcessNotSearched};
pub use execution_fault::{ExecutionFault, ExecutionFaultKind};
pub use finding::{Checks, Finding, Report};
pub use fix::{AppliedEdit, FixLimit, FixResult, Planner, fix};
pub use memory::UnwrittenRead;
pub use not_checked::NotChecked;
pub use not_compared::NotCompared;
pub use not_shown::NotShown;
pub use ordering_model::{OrderingModel, StorageModel};
pub use orders::{Orders, StepOrder, TooLarge, Truncation};
pub use overlap::ElementRange;
pub use profile::{PROFILES, Profile};
pub use repair::{InsertionPoint, NamedStmt, Repair, WaitedStream};
pub use replay::{NextRun, NoSuchStorage, NotReplayable, Replay, ReplayedStorage, name_in_program};
pub use rules::{RULES, Rule, assumptions, rules_as_markdown};
pub use semaphores::semaphores;
pub use storage_sharing::{NotShared, may_share};
pub use trials::{NOT_MODELLED, RuleTrial, trials};
pub use witness::{Witness, WitnessSetting, witnesses, witnesses_of_sequence};

use hir_plan::World;

/// Returns the races of the plans, one for each pair of statements and buffer, not merged over ranks and
/// iterations. If a later write covers an access, only the race with that write may be reported.
pub fn races(world: &World) -> Vec<Race> {
    checker::run_checks(world, Checks { memory: false, ..Checks::ALL_FAULTS }).races
}

/// As `races`, with each group of ranks that share no memory checked by itself first, whatever the size of the world. The races are the
/// same; `check` does so with large worlds. Returns `None` if the checks could not run.
pub fn races_in_groups(world: &World) -> Option<Vec<Race>> {
    let checks = Checks { memory: false, ..Checks::ALL_FAULTS };
    let found = checker::run_checks_in(world, checks, access_checks::Grouping::Always);
    found.not_checked.is_empty().then_some(found.races)
}

/// Checks the plans of all ranks as `check` does with those of a large world.
pub fn check_in_groups(world: &World, checks: Checks) -> Report {
    checker::run_checks_in(world, checks, access_checks::Grouping::Always).report(world)
}

pub use sequence::{
    Programs, Sequence, SequenceOrder, SequenceRace, SequencedProgram, order_of_sequence, races_of_sequence,
};

/// Checks the plans of all ranks.
pub fn check(world: &World, checks: Checks) -> Report {
    let has_exits = !world.early_exits().is_empty();
    // What a program does not need with all iterations, it may need with fewer.
    let checks = Checks { excess: checks.excess && !has_exits, ..checks };
    let mut report = checker::run_checks(world, checks).report(world);
    for (at, world) in world.early_exits().iter().enumerate() {
        if !report.findings.is_empty() {
            break;
        }
        let found = checker::run_checks(world, checks).report(world);
        let early = |it| Finding::EarlyExit { world: at, finding: Box::new(it) };
        report.findings.extend(found.findings.into_iter().map(early));
        report.not_checked.extend(found.not_checked);
    }
    report
}
