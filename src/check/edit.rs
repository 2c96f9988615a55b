//! The edits that order two accesses: a closed list. A finding's help is their sentences, and `--fix=check` applies them (`apply`).

use std::fmt;

use grammar::ir::StmtId;

use super::race_side::{RaceSide, is_program_stream, stream_name_of};
use crate::plan::Plan;

/// An edit of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Insert `Synchronize(Stream …)`: the current stream waits for the work that another stream has by then.
    InsertSynchronize {
        /// The stream that is waited for.
        stream: WaitedStream,
        /// Where it is inserted.
        before: InsertionPoint,
    },
    /// Capture the stream that is current at entry, and insert a `Synchronize` with it.
    CaptureEntryStream {
        /// Where the `Synchronize` is inserted.
        before: InsertionPoint,
    },
    /// Insert `Wait(Communication …)`.
    InsertWait {
        /// The statement that posts the communication.
        communication: NamedStmt,
        /// Where it is inserted.
        before: InsertionPoint,
    },
    /// Move a `Wait` up. A second `Wait` for a communication has no effect, so only one stream can have it.
    MoveWait {
        /// The `Wait`.
        wait: Option<StmtId>,
        /// Where it is moved to.
        before: InsertionPoint,
        /// The stream that waits then, where it is not the one that waited before: that one waits for it by a `Synchronize`, which is
        /// inserted where the `Wait` was, and so keeps the order that the `Wait` gave it.
        synchronize: Option<WaitedStream>,
    },
    /// Turn a long ALLOCATE, which skips a name that is bound already, into the short one, which allocates every time.
    ShortenAllocate {
        /// The ALLOCATE.
        allocate: Option<StmtId>,
    },
}

/// A stream that `Synchronize` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitedStream {
    /// The one that is current at entry: a program names it by a GetCurrentStream.
    Entry,
    /// The one with this index.
    Index(String),
}

/// A statement, and what reports call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStmt {
    /// The statement.
    pub stmt: Option<StmtId>,
    /// `Communication 3 (Allreduce, line 5)`.
    pub name: String,
}

/// Where a statement is inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InsertionPoint {
    /// Before a statement; `current` is the stream that is current there.
    Before {
        /// The statement.
        statement: NamedStmt,
        /// The stream.
        current: Option<String>,
    },
    /// At the end of the block of a statement, which nothing behind the block can name.
    BlockEnd {
        /// The statement.
        of: NamedStmt,
    },
    /// Behind the last statement; `current` is the stream that is current there, where a report has not said so.
    End {
        /// The stream.
        current: Option<String>,
    },
}

impl WaitedStream {
    /// A stream of a plan, by its name.
    pub fn of(stream: &str) -> Self {
        stream.strip_prefix("stream ").map_or(Self::Entry, |index| Self::Index(index.to_owned()))
    }
}

impl NamedStmt {
    /// The statement of an origin, as `Plan::describe` calls it.
    pub fn from_origin(plan: &Plan, origin: u32) -> Self {
        Self { stmt: plan.origins[origin as usize].stmt, name: plan.describe_origin(origin) }
    }
}

impl InsertionPoint {
    /// Before a side of a race, or at the end where that is the caller.
    pub fn before(side: &RaceSide<'_>) -> Self {
        let current = Some(side.stream_name().to_owned());
        match side.is_in_program() {
            true => {
                let stmt = side.plan.origins[side.origin as usize].stmt;
                Self::Before { statement: NamedStmt { stmt, name: side.location() }, current }
            }
            false => Self::End { current },
        }
    }

    fn current(&self) -> Option<&str> {
        match self {
            Self::Before { current, .. } | Self::End { current } => current.as_deref(),
            Self::BlockEnd { .. } => None,
        }
    }
}

impl Edit {
    /// The Wait for the communication that an origin posts. One that is posted in a loop is waited for in that iteration: `frame` is the
    /// iteration of the place.
    pub fn insert_wait(plan: &Plan, origin: u32, before: InsertionPoint, frame: Option<u32>) -> Self {
        let communication = NamedStmt::from_origin(plan, origin);
        let posted = plan.origins[origin as usize].iteration;
        let is_around = |outer: u32| {
            std::iter::successors(frame, |it| plan.iterations[*it as usize].parent).any(|it| it == outer)
        };
        let before = match posted.is_none_or(is_around) {
            true => before,
            false => InsertionPoint::BlockEnd { of: communication.clone() },
        };
        Self::InsertWait { communication, before }
    }

    /// The Wait at an instruction, moved to `before`.
    pub fn move_wait(plan: &Plan, wait: usize, before: InsertionPoint) -> Self {
        let has_moved = |it: &&str| is_program_stream(it) && *it != stream_name_of(plan, wait);
        let synchronize = before.current().filter(has_moved).map(WaitedStream::of);
        Self::MoveWait { wait: plan.origins[plan.code[wait].origin as usize].stmt, before, synchronize }
    }

    /// The edit that makes the stream that is current at `before` wait for a side. `inst` is the instruction of the place, `None` for the
    /// end of the program, and `frame` its iteration.
    pub fn order_after(
        side: &RaceSide<'_>,
        before: InsertionPoint,
        inst: Option<usize>,
        frame: Option<u32>,
    ) -> Self {
        if !side.is_posted() {
            return Self::InsertSynchronize { stream: WaitedStream::of(side.stream_name()), before };
        }
        match side.first_wait() {
            None => Self::insert_wait(side.plan, side.origin, before, frame),
            // The stream that has waited for the communication already is the one to wait for.
            Some(wait) if inst.is_none_or(|it| wait < it) => {
                let stream = WaitedStream::of(stream_name_of(side.plan, wait));
                Self::InsertSynchronize { stream, before }
            }
            Some(wait) => Self::move_wait(side.plan, wait, before),
        }
    }
}

impl fmt::Display for InsertionPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = match self {
            Self::Before { statement, current } => {
                write!(f, "before {}", statement.name)?;
                current
            }
            Self::BlockEnd { .. } => return f.write_str("at the end of the loop's body"),
            Self::End { current: None } => return f.write_str("at the end of the program"),
            Self::End { current } => {
                f.write_str("before the end of the program")?;
                current
            }
        };
        current.as_ref().map_or(Ok(()), |it| write!(f, ", where {it} is current"))
    }
}

/// The sentence of a help.
impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InsertSynchronize { stream: WaitedStream::Index(index), before } => {
                write!(f, "put `Synchronize(Stream {index})` {before}")
            }
            Self::InsertSynchronize { stream: WaitedStream::Entry, before } => write!(
                f,
                "put `Synchronize(Stream s0)`, where s0 is the stream that is current at entry, {before}"
            ),
            Self::CaptureEntryStream { before } => write!(
                f,
                "capture that stream on top, `Stream s0 = GetCurrentStream()`, and put `Synchronize(Stream s0)` {before}"
            ),
            Self::InsertWait { communication, before } => {
                write!(f, "put a Wait for {} {before}", communication.name)
            }
            Self::MoveWait { before, synchronize, .. } => {
                write!(f, "put the Wait {before}")?;
                match synchronize {
                    None => Ok(()),
                    Some(WaitedStream::Index(index)) => {
                        write!(f, ", and `Synchronize(Stream {index})` in its old place")
                    }
                    Some(WaitedStream::Entry) => f.write_str(
                        ", and `Synchronize(Stream s0)`, where s0 is the stream that is current at entry, in its old place",
                    ),
                }
            }
            Self::ShortenAllocate { .. } => f.write_str(
                "use the short ALLOCATE, which gives every iteration storage of its own, if no iteration reads what an earlier one wrote",
            ),
        }
    }
}
