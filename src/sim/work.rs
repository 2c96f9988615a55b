//! Estimates how long a run takes before it starts, and limits all runs of a tool together.
//!
//! Extents and loop bounds are numbers, so a small program can compute for days. Plans are static, so their work is a
//! sum over their instructions. The unit is one element that an instruction computes or communicates. It takes the
//! simulator 5 to 40 ns, more if values are rounded, because their f64 shadows are computed as well. Copied elements and
//! the multiplications of a matrix product count less, as measured.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grammar::{Code, Diagnostic, Span};

use hir_plan::{CostClass, InstKind, Plan};

/// The work of an instruction that touches no element: scheduling it.
const INSTRUCTION: u64 = 16;

/// How many multiplications of a matrix product take as long as one element that is computed.
const PRODUCTS: u64 = 64;

/// How many elements that are copied take as long as one that is computed.
const COPIES: u64 = 16;

/// How many seconds of one core the simulator needs for a billion elements, if their values are rounded.
const SECONDS: u64 = 30;

/// The unit of `--max-work`.
const BILLION: u64 = 1_000_000_000;

/// Returns the work of `runs` runs of all ranks, in elements. Sums saturate instead of overflowing.
pub fn work(plans: &[Plan], runs: usize) -> u64 {
    let insts = plans.iter().flat_map(|plan| plan.code.iter().map(|inst| (plan.rank, &inst.kind)));
    let one = insts.fold(0, |sum: u64, (rank, kind)| sum.saturating_add(inst_work(rank, kind)));
    one.saturating_mul(runs as u64)
}

fn inst_work(rank: usize, kind: &InstKind) -> u64 {
    let mut elements: u64 = 0;
    kind.visit_accesses(rank, &mut |it| elements = elements.saturating_add(it.view.len() as u64));
    let work = match kind {
        // The first member of the team computes the whole result, for all of them.
        InstKind::Reshard(it) if it.team.first() == Some(&rank) => {
            let whole = it.buffers.iter().map(|it| it.len as u64);
            let body = it.body.iter().map(|it| inst_work(rank, it));
            whole.chain(body).fold(elements, u64::saturating_add)
        }
        _ if kind.cost_info().class == CostClass::DataMovement => elements / COPIES,
        _ => {
            let multiplications = kind.computation().map_or(0, |it| it.multiplications());
            elements.saturating_add(multiplications as u64 / PRODUCTS)
        }
    };
    work.saturating_add(INSTRUCTION)
}

/// The work that all runs of a tool may do together.
#[derive(Debug)]
pub struct WorkBudget {
    allowed: u64,
    used: AtomicU64,
}

/// What the simulated runs of a tool may use.
#[derive(Clone, Copy, Debug)]
pub struct SimLimits<'a> {
    /// The memory of a run, in bytes.
    pub memory: usize,
    /// The work of all runs.
    pub work: &'a WorkBudget,
}

/// The error of work that exceeds a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// The work of the runs that are asked for, and of those before.
    pub needed: u64,
    /// The budget.
    pub allowed: u64,
}

/// A budget that nothing exceeds.
impl Default for WorkBudget {
    fn default() -> Self {
        Self { allowed: u64::MAX, used: AtomicU64::new(0) }
    }
}

impl WorkBudget {
    /// Creates a budget of so many elements.
    pub fn of(elements: u64) -> Self {
        Self { allowed: elements, used: AtomicU64::new(0) }
    }

    /// Creates a budget of `billions` times 10^9 elements.
    pub fn of_billions(billions: u32) -> Self {
        Self::of(u64::from(billions).saturating_mul(BILLION))
    }

    /// Takes `work` elements, before the runs that need them start.
    ///
    /// # Errors
    /// The budget has less. Nothing is taken then.
    pub fn take(&self, work: u64) -> Result<(), OverBudget> {
        // The runs of a tool follow one another, so nothing is taken in between.
        self.check(work)?;
        self.used.fetch_add(work, Relaxed);
        Ok(())
    }

    /// Checks that the budget has `work` elements, and takes nothing.
    ///
    /// # Errors
    /// The budget has less.
    pub fn check(&self, work: u64) -> Result<(), OverBudget> {
        let Self { allowed, used } = self;
        let needed = used.load(Relaxed).saturating_add(work);
        if needed <= *allowed { Ok(()) } else { Err(OverBudget { needed, allowed: *allowed }) }
    }
}

impl OverBudget {
    /// Returns the report at the header of the program.
    pub fn diagnostic(&self, header: Span) -> Diagnostic {
        Diagnostic::new(Code::OverBudget, header, self.to_string(), "this program").help(self.help())
    }

    /// Returns what makes the work less, and the limit that allows it.
    pub fn help(&self) -> String {
        let billions = self.needed.div_ceil(BILLION);
        let seconds = billions.saturating_mul(SECONDS);
        let time = match seconds {
            0..120 => format!("{seconds} seconds"),
            120..7_200 => format!("{} minutes", seconds / 60),
            _ => format!("{} hours", seconds / 3_600),
        };
        format!(
            "bind smaller extents and loop bounds with `--set`, or allow up to {time} of one core with `--max-work={billions}`"
        )
    }
}

impl std::error::Error for OverBudget {}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let billions = |it: u64| it as f64 / BILLION as f64;
        write!(
            f,
            "the simulated runs compute or communicate about {:.1} billion elements, but the limit is {} billion",
            billions(self.needed),
            billions(self.allowed)
        )
    }
}
