//! How ranks synchronise: which instructions communicate, in what order everything happens, and where it gets stuck.
//!
//! | module | question |
//! |---|---|
//! | `matching` | Which instructions of the ranks are parts of one communication? |
//! | `agreement` | Do the parts of a communication agree on kind, root, element count and dtype? |
//! | `order` | What happens before what, whatever executor runs the plans? (guaranteed order: races) |
//! | `step` | In which steps does an instruction touch memory? |
//! | `crossing` | Do all ranks use their NCCL communicators in one order? |
//! | `wait_graph` | In a given state, who may wait for whom? (blocking order: deadlocks) |
//! | `stuck` | Do the plans come to their ends? |
//! | `explain`, `deadlock`, `words` | Why does nobody go on? |
//! | `skipped` | Which statement does a rank go past that others wait for? |
//! | `lint` | What does a tool warn about that does not run the program? |
//! | `progress` | How far are the ranks of a job that got stuck? |
//!
//! Guaranteed and blocking order are never mixed: a broadcast's root waits for no one for certain, and may wait for all.

mod agreement;
mod comm_order;
mod deadlock;
mod deadlock_detection;
mod explain;
pub mod happens_before;
mod lint;
mod matching;
mod progress;
mod report_text;
mod skipped;
mod step;
mod wait_graph;

pub(super) use agreement::agreement;
pub use comm_order::{CommOrderCycle, CommOrderEdge, TooManyComms, comm_order_cycle};
pub use deadlock::{BlockedWait, Cause, Deadlock, HeadToHead, MissingPost, lines_by_rank, ranks_text};
pub use deadlock_detection::deadlocked_state;
pub use explain::explain;
pub use lint::lint;
pub use matching::{
    CommGroup, CommKey, CommMatching, CommNo, CommPart, CommRole, GroupNo, InstRef, MatchedComm,
};
pub use progress::{JobState, RankProgress};
use skipped::Alignment;
pub use step::{
    Step, StepAccess, acquire_step, begin_end_steps, collective_members, copy_halves, deliver_step,
    release_step,
};
pub use wait_graph::{Actor, Blocker, Position, WaitGraph, WorldState};

use crate::plan::Plan;

/// The deadlock of plans, if they do not come to their ends.
pub fn deadlock(plans: &[Plan]) -> Option<Deadlock> {
    let matched = CommMatching::from_plans(plans);
    deadlocked_state(plans, &matched).map(|state| explain(plans, &matched, &state))
}
