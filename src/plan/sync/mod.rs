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
mod crossing;
mod deadlock;
mod explain;
mod lint;
mod matching;
pub mod order;
mod progress;
mod skipped;
mod step;
mod stuck;
mod wait_graph;
mod words;

pub(super) use agreement::agreement;
pub use crossing::{Before, Crossing, TooMany, crossing};
pub use deadlock::{Cause, Deadlock, Facing, NeverPosted, Wait, lines_by_rank, names};
pub use explain::explain;
pub use lint::lint;
pub use matching::{Comm, CommNo, Group, GroupNo, InstRef, Key, Matched, Part, Role};
pub use progress::{Job, Progress};
use skipped::Alignment;
pub use step::{Step, StepAccess, ends, give_back, halves, pass, take, team};
pub use stuck::stuck;
pub use wait_graph::{Actor, Need, Position, State, WaitGraph};

use crate::plan::Plan;

/// The deadlock of plans, if they do not come to their ends.
pub fn deadlock(plans: &[Plan]) -> Option<Deadlock> {
    let matched = Matched::of(plans);
    stuck(plans, &matched).map(|state| explain(plans, &matched, &state))
}
