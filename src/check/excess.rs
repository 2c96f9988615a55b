//! What a program could do without: waits that order nothing new, writes that nothing reads, storage that is not given back.
//!
//! None of it is a fault. Each finding is about one statement, with all its iterations on all ranks, and about removing this statement
//! alone: of two waits that imply each other, both are reported, and one has to stay.
//!
//! | module | question |
//! |---|---|
//! | `candidates` | Which statements only make a stream wait, so that the plans without them are known? |
//! | `work_order` | Which work has ended when other work begins, with all waits and without those of a statement? |
//! | `waits` | Does the program need a wait? |
//! | `unread` | Does anything read what a statement writes? |
//! | `lifetimes` | Which ALLOCATE has no effect, and what does nothing deallocate? |
//!
//! `excess_text` puts the findings into words.
//!
//! Waits and writes are judged only where the program has no race: the order of accesses says nothing of a program with one.

mod candidates;
mod lifetimes;
mod unread;
mod waits;
mod work_order;

pub(super) use unread::UnreadWrites;

use std::{collections::BTreeSet, fmt};

use super::{conflict::Race, ordering_model::OrderingModel};
use crate::plan::{
    Plan,
    sync::{CommMatching, InstRef},
};

/// A statement of a rank: the rank, and an index into its `Plan::origins`.
pub type StmtOnRank = (usize, u32);

/// What the program could do without.
#[derive(Clone, Debug, PartialEq)]
pub struct Excess {
    /// The statement, where it is executed first.
    pub stmt: StmtOnRank,
    /// Why it is not needed.
    pub kind: ExcessKind,
    /// The ranks that execute it.
    pub ranks: BTreeSet<usize>,
    /// Instances on all ranks.
    pub count: usize,
}

/// Kinds of excess.
#[derive(Clone, Debug, PartialEq)]
pub enum ExcessKind {
    /// A wait: other statements give its order.
    ImpliedWait,
    /// A wait: no two accesses to the same elements depend on its order.
    UnneededWait {
        /// The first two instructions that it alone orders.
        pair: [InstRef; 2],
    },
    /// Nothing reads what it writes.
    UnreadWrite {
        /// What it writes: the name of the buffer, and the rank whose memory it is; `None`: the program has no name for it.
        target: Option<(String, usize)>,
        /// The statement that overwrites it; `None`: none does.
        overwritten_by: Option<StmtOnRank>,
        /// Whether it writes only the zeros of an ALLOCATE.
        is_allocation: bool,
        /// Whether it takes part in a communication.
        communicates: bool,
    },
    /// A long ALLOCATE of a loop that skips a bound name.
    AllocatesOnce {
        /// The name of the buffer.
        name: String,
        /// How many times it has no effect.
        skipped: usize,
        /// Whether it writes zeros, once.
        is_zeroed: bool,
    },
    /// Storage that is kept until the end of the program.
    NotDeallocated {
        /// The name of the buffer.
        name: String,
        /// The tensors that are bound to it when the program ends.
        bound_names: Vec<String>,
        /// The last statement that uses it.
        last_use: Option<StmtOnRank>,
    },
}

/// Excess that was not looked for, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcessNotSearched {
    /// Waits and writes: the program has races.
    Races,
    /// Waits and writes: views have too many pieces to compare, so that races are not known.
    Views,
    /// Waits of a large program.
    Waits {
        /// How many statements that wait were not judged.
        left: usize,
        /// How many there are.
        all: usize,
    },
    /// Statements that write after the first `unread::MAX_WRITES` writes.
    Writes,
}

impl fmt::Display for ExcessNotSearched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Races => f.write_str("waits and writes: the program has races"),
            Self::Views => f.write_str("waits and writes: some views have too many pieces to compare"),
            Self::Waits { left, all } => {
                write!(f, "{left} of {all} statements that wait: the program is too large")
            }
            Self::Writes => {
                write!(f, "statements that write after the first {} writes", unread::MAX_WRITES)
            }
        }
    }
}

/// Everything that is found of excess, in the order of the program, and where it was not looked for. `unread` has seen all
/// instructions; `None`: the program has races, or may have some. The ALLOCATE of a buffer that is raced for gets no remark: the race says more.
pub(super) fn find_excess(
    plans: &[Plan],
    matched: &CommMatching,
    unread: Option<UnreadWrites<'_>>,
    races: &[Race],
    model: OrderingModel,
) -> (Vec<Excess>, Vec<ExcessNotSearched>) {
    let mut not_searched = Vec::new();
    let mut found = lifetimes::storage_excess(plans, &races.iter().map(|it| (it.rank, it.buffer)).collect());
    match unread {
        Some(unread) => {
            let (waits, left) = waits::unneeded_waits(plans, matched, model);
            found.extend(waits);
            not_searched.extend(left);
            let (writes, left) = unread.finish(matched);
            found.extend(writes);
            not_searched.extend(left);
        }
        None if races.is_empty() => not_searched.push(ExcessNotSearched::Views),
        None => not_searched.push(ExcessNotSearched::Races),
    }
    let line = |it: &Excess| (plans[it.stmt.0].program_id, plans[it.stmt.0].origins[it.stmt.1 as usize].line);
    found.sort_by_key(line);
    (found, not_searched)
}
