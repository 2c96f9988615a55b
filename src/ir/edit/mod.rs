//! Edits of statements. A pass makes them in the program, and who edits a text finds the lines that they change.
//!
//! * `Edit` is an edit. `apply` makes edits in a program.
//! * `ProgramText` is a program with the text from which it was read. `ProgramText::line_changes` returns what edits change in the text:
//!   untouched lines stay byte for byte.
//! * `rewrite` decides about each statement while it walks a program, and `expand` replaces statements by others.
//! * `StmtPlaces` tells where statements are.
//!
//! The places of several edits are those of the program before all of them, so that one edit does not invalidate another one.

mod apply;
mod lines;
mod number_streams;
mod places;
mod rewrite;
mod statement_text;
mod text;

use grammar::{BlockId, StmtId, StreamId};
use rustc_hash::FxHashSet;

pub use apply::{apply, corresponding};
pub use lines::LineChanges;
pub use number_streams::number_streams;
pub use places::{StmtPlace, StmtPlaces};
pub use rewrite::{Expander, StmtEdit, expand, rewrite};
pub use text::ProgramText;

/// An edit of the statements of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edit {
    /// Inserts a statement. Of several at one place, the first one comes first.
    Insert {
        /// The statement.
        statement: NewStatement,
        /// The place.
        at: Place,
    },
    /// Removes a statement with what is in it.
    Remove(StmtId),
    /// Moves a statement.
    Move {
        /// The statement.
        stmt: StmtId,
        /// The place.
        to: Place,
    },
    /// Turns a long-form ALLOCATE, which is skipped if its name is bound, into the short form, which allocates in every iteration.
    Shorten(StmtId),
}

/// A place in the blocks of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Before a statement. In a text, it is also before the comments above the statement.
    Before(StmtId),
    /// Directly behind a statement and what is in it.
    After(StmtId),
    /// At the end of a block. In a text, the end of the program is where the line is that closes it.
    End(BlockId),
}

/// A statement that an edit inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NewStatement {
    /// `Wait(Communication number)`.
    Wait(u32),
    /// `Synchronize(stream)`.
    Synchronize(StreamRef),
    /// `SetCurrentStream(stream)`.
    SetCurrentStream(StreamRef),
    /// `stream = GetCurrentStream()`, under a new name.
    GetCurrentStream(NewStream),
    /// `StartCoalescing`.
    StartCoalescing,
    /// `EndCoalescing number`.
    EndCoalescing(u32),
    /// A copy of a statement, spelled as that one.
    CopyOf(StmtId),
}

/// How an inserted statement names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamRef {
    /// By its index.
    Index(i64),
    /// As another statement names it.
    Same(StreamId),
    /// By the number of the name under which the program has captured it.
    Captured(u32),
    /// By the name of an inserted GetCurrentStream.
    New(NewStream),
}

/// The name of a stream that an edit captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NewStream {
    /// The stream that is current at the entry of the program. All edits of a program capture it once, before all statements.
    Entry,
    /// The stream that is current at a place.
    Current,
}

/// Edits that are made together, in order. No two of them move, remove or change one statement.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    list: Vec<Edit>,
    /// The statements that the edits move, remove or change.
    touched: FxHashSet<StmtId>,
    /// The insertions that do not depend on others beside them.
    independent: FxHashSet<Edit>,
}

impl Edit {
    /// Returns the statement that the edit moves, removes or changes.
    pub fn touched(&self) -> Option<StmtId> {
        match self {
            Self::Insert { .. } => None,
            Self::Remove(stmt) | Self::Move { stmt, .. } | Self::Shorten(stmt) => Some(*stmt),
        }
    }

    /// Returns the operand of a statement that the edit inserts, if that is a stream.
    pub fn stream(&self) -> Option<StreamRef> {
        match self {
            Self::Insert {
                statement: NewStatement::Synchronize(of) | NewStatement::SetCurrentStream(of),
                ..
            } => Some(*of),
            _ => None,
        }
    }

    /// Returns whether the edit captures the stream that is current at entry.
    pub fn captures_entry(&self) -> bool {
        matches!(self, Self::Insert { statement: NewStatement::GetCurrentStream(NewStream::Entry), .. })
    }

    /// Returns whether the edit only adds an ordering, so that the program is valid without it.
    pub fn only_orders(&self) -> bool {
        match self {
            Self::Insert { statement, .. } => match statement {
                NewStatement::Wait(_) | NewStatement::Synchronize(_) => true,
                NewStatement::GetCurrentStream(of) => *of == NewStream::Entry,
                NewStatement::SetCurrentStream(_)
                | NewStatement::StartCoalescing
                | NewStatement::EndCoalescing(_)
                | NewStatement::CopyOf(_) => false,
            },
            Self::Remove(_) | Self::Move { .. } | Self::Shorten(_) => false,
        }
    }
}

impl Edits {
    /// Returns the edits.
    pub fn list(&self) -> &[Edit] {
        &self.list
    }

    /// Adds edits that belong together. What only adds an ordering, and is one of these edits already, is not added again. Returns false,
    /// and adds nothing, if an edit and one of these move, remove or change the same statement.
    pub fn add(&mut self, others: &[Edit]) -> bool {
        let touched: FxHashSet<StmtId> = others.iter().filter_map(Edit::touched).collect();
        if !self.touched.is_disjoint(&touched) {
            return false;
        }
        self.touched.extend(touched);
        // What is between the selection of another stream and that of the current one is for that stream.
        let are_independent =
            others.iter().all(|it| it.only_orders() || matches!(it, Edit::Move { .. } | Edit::Remove(_)));
        for it in others {
            let is_shared = it.captures_entry() || are_independent && it.only_orders();
            if is_shared && !self.independent.insert(it.clone()) {
                continue;
            }
            if it.captures_entry() {
                self.list.insert(0, it.clone());
            } else {
                self.list.push(it.clone());
            }
        }
        true
    }

    /// Returns the statements that the edits move, remove or change, in order.
    pub fn touched(&self) -> impl Iterator<Item = StmtId> {
        let mut seen = FxHashSet::default();
        self.list.iter().filter_map(Edit::touched).filter(move |it| seen.insert(*it))
    }
}

impl From<Vec<Edit>> for Edits {
    fn from(list: Vec<Edit>) -> Self {
        let mut all = Self::default();
        all.add(&list);
        all
    }
}
