//! Makes edits in a program.

use grammar::{BlockId, Op, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, attr};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Edit, NewStatement, NewStream, Place, StreamRef, number_streams::number_streams};
use crate::build;

/// What is inserted, by place, and what leaves its place.
#[derive(Default)]
struct Changes {
    inserted: FxHashMap<Place, Vec<StmtId>>,
    gone: FxHashSet<StmtId>,
}

/// Makes edits in a program. Each inserted statement gets the next free id, in the order of the edits. What captures a stream is numbered
/// anew, as the reader does it.
pub fn apply(program: &mut Program, edits: &[Edit]) {
    let captured = |(_, it): (StreamId, &Stream)| match it {
        Stream::Named(number) => Some(number + 1),
        Stream::Index(_) => None,
    };
    let free = program.streams.iter().filter_map(captured).max().unwrap_or(0);
    let mut changes = Changes::default();
    for edit in edits {
        let (stmt, place) = match edit {
            Edit::Insert { statement, at } => (insert(program, free, *statement, *at), *at),
            Edit::Move { stmt, to } => {
                changes.gone.insert(*stmt);
                (*stmt, *to)
            }
            Edit::Remove(stmt) => {
                changes.gone.insert(*stmt);
                continue;
            }
            Edit::Shorten(stmt) => {
                if let Stmt::Op(it) = &mut program.stmts[*stmt] {
                    it.op = Op::Allocate;
                    it.attrs.retain(|it| it.0 == attr::MEM_TYPE.name());
                    it.attrs.push(attr::ZERO_INIT.with(false));
                }
                continue;
            }
        };
        changes.inserted.entry(place).or_default().push(stmt);
    }
    for block in program.blocks.ids() {
        if let Some(stmts) = changes.of_block(program, block) {
            program.blocks[block] = stmts;
        }
    }
    number_streams(program);
}

impl Changes {
    /// Returns the new statements of a block; `None` if it has no edits.
    fn of_block(&self, program: &Program, block: BlockId) -> Option<Vec<StmtId>> {
        let at = |place: Place| self.inserted.get(&place).into_iter().flatten().copied();
        let own = program.block(block);
        let is_edited = |it: &StmtId| {
            self.gone.contains(it)
                || [Place::Before(*it), Place::After(*it)].iter().any(|it| self.inserted.contains_key(it))
        };
        if !own.iter().any(is_edited) && !self.inserted.contains_key(&Place::End(block)) {
            return None;
        }
        let mut stmts = Vec::with_capacity(own.len() + 1);
        for stmt in own {
            stmts.extend(at(Place::Before(*stmt)));
            stmts.extend(Some(*stmt).filter(|it| !self.gone.contains(it)));
            stmts.extend(at(Place::After(*stmt)));
        }
        stmts.extend(at(Place::End(block)));
        Some(stmts)
    }
}

/// Adds a statement to the arena. `free` is the number of the first name under which it may capture a stream.
fn insert(program: &mut Program, free: u32, statement: NewStatement, at: Place) -> StmtId {
    let mut stream = |of: StreamRef| match of {
        StreamRef::Same(it) => it,
        StreamRef::Index(index) => {
            let index = program.intern_int(index);
            build::indexed_stream(program, index)
        }
        StreamRef::Captured(number) => program.streams.push(Stream::Named(number)),
        StreamRef::New(NewStream::Entry) => program.streams.push(Stream::Named(free)),
        StreamRef::New(NewStream::Current) => program.streams.push(Stream::Named(free + 1)),
    };
    let stmt = match statement {
        NewStatement::Wait(number) => Stmt::Op(build::wait(number)),
        NewStatement::Synchronize(of) => Stmt::Op(build::synchronize(stream(of))),
        NewStatement::SetCurrentStream(of) => Stmt::Op(build::set_current_stream(stream(of))),
        NewStatement::GetCurrentStream(of) => {
            let outs = vec![Operand::Stream(stream(StreamRef::New(of)))];
            Stmt::Op(OpStmt { outs, ..build::op(Op::GetCurrentStream) })
        }
        NewStatement::StartCoalescing => Stmt::Op(build::op(Op::StartCoalescing)),
        NewStatement::EndCoalescing(number) => {
            Stmt::Op(OpStmt { number: Some(number), ..build::op(Op::EndCoalescing) })
        }
        NewStatement::CopyOf(stmt) => program.stmts[stmt].clone(),
    };
    let span = match at {
        Place::Before(stmt) | Place::After(stmt) => program.stmt_span(stmt),
        Place::End(_) => program.spans.header,
    };
    program.add_stmt(stmt, span)
}

/// Returns the statements of two programs that are equal, each of the first one with that of the second one. Returns `None` if the programs
/// differ.
pub fn corresponding(one: &Program, other: &Program) -> Option<Vec<(StmtId, StmtId)>> {
    let stmts =
        |program: &Program| -> Vec<StmtId> { program.bodies().flat_map(|it| program.stmts_in(it)).collect() };
    let (ones, others) = (stmts(one), stmts(other));
    let is_equal = ones.len() == others.len() && grammar::print(one) == grammar::print(other);
    is_equal.then(|| ones.into_iter().zip(others).collect())
}
