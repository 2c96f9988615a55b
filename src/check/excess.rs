//! Statements that a program does not need: waits that add no order, writes that nothing reads, and storage
//! that is never freed.
//!
//! None of these is a fault. Each finding is about one statement, in all iterations and on all ranks, and
//! about removing that statement alone. If two waits imply each other, both are reported, and one of them
//! must stay.
//!
//! * `candidates`: Which statements only make a stream wait, so that the plans without them are known?
//! * `work_order`: Which work has ended when other work begins, with all waits and without those of one
//!   statement?
//! * `waits`: Does the program need a wait?
//! * `unread`: Does anything read what a statement writes?
//! * `lifetimes`: Which ALLOCATE has no effect, and which buffers are never deallocated?
//!
//! `excess_diagnostics` formats the findings.
//!
//! Waits and writes are judged only if the program has no race, because the order of accesses in a racy
//! program is undefined.

mod candidates;
mod lifetimes;
mod unread;
mod waits;
mod work_order;

pub(super) use unread::UnreadWrites;

use std::{collections::BTreeSet, fmt};

use super::{conflict::Race, ordering_model::AccessRules};
use hir_plan::{World, sync::InstRef};

/// A statement on one rank: the rank, and an index into its `Plan::origins`.
pub type StmtOnRank = (usize, u32);

/// A statement that the program does not need.
#[derive(Clone, Debug, PartialEq)]
pub struct Excess {
    /// The first execution of the statement.
    pub stmt: StmtOnRank,
    /// Why the statement is not needed.
    pub kind: ExcessKind,
    /// The ranks that execute the statement.
    pub ranks: BTreeSet<usize>,
    /// Number of executions on all ranks.
    pub count: usize,
}

/// Why a statement is not needed.
#[derive(Clone, Debug, PartialEq)]
pub enum ExcessKind {
    /// A wait whose order follows from other statements.
    ImpliedWait,
    /// A wait whose order no pair of accesses to the same elements depends on.
    UnneededWait {
        /// The first pair of instructions that only this wait orders.
        pair: [InstRef; 2],
    },
    /// A write that nothing reads.
    UnreadWrite {
        /// The written buffer: its name and the rank that owns it; `None` if the program has no name for it.
        target: Option<(String, usize)>,
        /// The statement that overwrites it, if any.
        overwritten_by: Option<StmtOnRank>,
        /// True if the statement is an ALLOCATE and only writes zeros.
        is_allocation: bool,
        /// True if the statement takes part in a communication.
        communicates: bool,
    },
    /// A long-form ALLOCATE in a loop that is skipped in later iterations because its name is bound.
    AllocatesOnce {
        /// The name of the buffer.
        name: String,
        /// Number of executions that are skipped.
        skipped: usize,
        /// True if the first execution zeroes the buffer.
        is_zeroed: bool,
    },
    /// A buffer that is never deallocated although the program deallocates others.
    NotDeallocated {
        /// The name of the buffer.
        name: String,
        /// The tensors bound to the buffer at the end of the program.
        bound_names: Vec<String>,
        /// The last statement that uses the buffer.
        last_use: Option<StmtOnRank>,
    },
}

/// A search for excess that was not done, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcessNotSearched {
    /// Waits and writes were not searched: the program has races.
    Races,
    /// Waits and writes were not searched: some views have too many pieces to compare, so races are unknown.
    Views,
    /// Waits and writes were not searched: ranks were checked in groups, and orders between groups are needed.
    Groups,
    /// Some waits of a large program were not searched.
    Waits {
        /// Number of waiting statements that were not searched.
        left: usize,
        /// Number of all waiting statements.
        all: usize,
    },
    /// Statements that write after the first `unread::MAX_WRITES` writes were not searched.
    Writes,
}

impl fmt::Display for ExcessNotSearched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Races => f.write_str("waits and writes: the program has races"),
            Self::Views => f.write_str("waits and writes: some views have too many pieces to compare"),
            Self::Groups => {
                f.write_str("waits and writes: the program is too large for orders between all ranks")
            }
            Self::Waits { left, all } => {
                write!(f, "{left} of {all} statements that wait: the program is too large")
            }
            Self::Writes => {
                write!(f, "statements that write after the first {} writes", unread::MAX_WRITES)
            }
        }
    }
}

/// Finds all excess, in program order, and lists the searches that were not done. `unread` has visited all
/// instructions; `None` means that the program has, or may have, races, unless it is known to have none. An ALLOCATE of
/// a buffer with a race is not reported, because the race is the more important finding.
pub(super) fn find_excess(
    world: &World,
    (unread, is_free_of_races): (Option<UnreadWrites<'_>>, bool),
    races: &[Race],
    rules: AccessRules,
) -> (Vec<Excess>, Vec<ExcessNotSearched>) {
    let mut not_searched = Vec::new();
    let mut found = lifetimes::storage_excess(world, &races.iter().map(|it| (it.rank, it.buffer)).collect());
    match unread {
        None if is_free_of_races => not_searched.push(ExcessNotSearched::Groups),
        Some(unread) => {
            let (waits, left) = waits::unneeded_waits(world, rules);
            found.extend(waits);
            not_searched.extend(left);
            let (writes, left) = unread.finish(world.matching());
            found.extend(writes);
            not_searched.extend(left);
        }
        None if races.is_empty() => not_searched.push(ExcessNotSearched::Views),
        None => not_searched.push(ExcessNotSearched::Races),
    }
    let line = |it: &Excess| (world[it.stmt.0].program_id, world[it.stmt.0].origins[it.stmt.1 as usize].line);
    found.sort_by_key(line);
    (found, not_searched)
}
