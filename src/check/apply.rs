//! The edits of statements that make a repair in the text of a program. Comments, formatting and all other lines are preserved.

mod allocate;
mod moves;
mod on_stream;

use grammar::{Op, Stmt, StmtId};
use hir_ir::edit::{Edit, Edits, LineChanges, NewStatement, NewStream, Place, StreamRef};

use super::{
    editable_text::EditableText,
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
};

/// What an edit does to a statement.
#[derive(Clone, Debug)]
pub struct Change {
    /// The number of the edit.
    pub edit: usize,
    /// What the edit does.
    pub kind: ChangeKind,
    /// The statement as it is in the edited text.
    pub statement: String,
}

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Inserts the statement. It only adds an ordering constraint, so that the text is still a valid
    /// program without it.
    Inserted,
    /// Inserts a SetCurrentStream around another insertion, or a GetCurrentStream before it.
    Selected,
    /// Moves the statement up.
    Moved,
    /// Moves the statement down.
    Delayed,
    /// Turns a long-form ALLOCATE into the short form.
    Shortened,
}

impl Change {
    /// Returns the change as a past-tense phrase: "inserted `Wait(Communication 3)`".
    pub fn description(&self) -> String {
        let statement = &self.statement;
        match self.kind {
            ChangeKind::Inserted | ChangeKind::Selected => format!("inserted `{statement}`"),
            ChangeKind::Moved => format!("moved `{statement}` up to here"),
            ChangeKind::Delayed => format!("moved `{statement}` down to here"),
            ChangeKind::Shortened => "turned the long ALLOCATE into the short one".to_owned(),
        }
    }
}

impl EditableText {
    /// Returns the edits that make a repair in its best place. Returns `None` if it has none, or if the text is formatted in a way that the
    /// repair does not support.
    pub fn apply(&self, repair: &Repair) -> Option<Edits> {
        self.apply_here(self.placements(repair).first()?)
    }

    /// Returns the repair in the places where it may help, the best one first, and the edits that make it there.
    pub fn applications(&self, repair: &Repair) -> Vec<(Repair, Edits)> {
        let all = self.placements(repair).into_iter();
        all.filter_map(|it| Some((it.clone(), self.apply_here(&it)?))).collect()
    }

    /// Returns the edits that make a repair exactly where it says.
    pub(super) fn apply_here(&self, repair: &Repair) -> Option<Edits> {
        let mut edits = self.edits_of(repair)?;
        if edits.iter().any(|it| it.stream() == Some(StreamRef::New(NewStream::Entry))) {
            let at = Place::Before(*self.program.body().first()?);
            edits.insert(0, insert(NewStatement::GetCurrentStream(NewStream::Entry), at));
        }
        self.line_changes(&edits).map(|_| edits.into())
    }

    fn edits_of(&self, repair: &Repair) -> Option<Vec<Edit>> {
        match repair {
            Repair::InsertSynchronize { stream, before } => {
                let stream = self.waited_stream(stream, self.place(before)?, Some(before))?;
                Some(vec![insert(NewStatement::Synchronize(stream), self.place(before)?)])
            }
            Repair::InsertWait { communication, before } => {
                let number = self.program.posted_work(communication.stmt?)?;
                Some(vec![insert(NewStatement::Wait(number), self.place(before)?)])
            }
            Repair::MoveWait { wait, before, synchronize } => {
                self.move_wait((*wait)?, before, synchronize.as_ref())
            }
            Repair::OnStream { blocked, repair } => {
                self.select_around(blocked, self.edits_of(repair)?, repair.insertion()?)
            }
            Repair::MoveDeallocate { deallocate, after } => self.move_deallocate((*deallocate)?, (*after)?),
            Repair::ShortenAllocate { allocate } => self.shorten_allocate((*allocate)?),
            Repair::MoveAllocate { allocate, user } => self.move_allocate((*allocate)?, (*user)?),
        }
    }

    /// Returns what edits do to the statements of the text, in their order.
    pub fn changes(&self, edits: &[Edit]) -> Vec<Change> {
        let lines = self.line_changes(edits).unwrap_or_default();
        let change = |(edit, it)| {
            let (kind, statement) = self.change(it, edits, (&lines, edit))?;
            Some(Change { edit, kind, statement })
        };
        edits.iter().enumerate().filter_map(change).collect()
    }

    fn change(&self, edit: &Edit, all: &[Edit], at: (&LineChanges, usize)) -> Option<(ChangeKind, String)> {
        let short = |stmt: StmtId| Some(self.short_allocate(stmt)?.1);
        match edit {
            Edit::Insert { statement, .. } => {
                let kind = if edit.only_orders() { ChangeKind::Inserted } else { ChangeKind::Selected };
                Some((kind, self.new_statement(*statement, all)))
            }
            Edit::Move { stmt, .. } => {
                let (lines, number) = at;
                let is_up = lines.moves_up(number, self.line_of(*stmt)?);
                let kind = if is_up { ChangeKind::Moved } else { ChangeKind::Delayed };
                let statement = self.statement(*stmt);
                let is_deallocate = self.program.stmts[*stmt].op().is_some_and(|it| it.op == Op::Deallocate);
                Some((
                    kind,
                    match statement.split_once(" = ") {
                        _ if is_deallocate => grammar::summary(&self.program, *stmt),
                        Some((name, _)) if all.contains(&Edit::Shorten(*stmt)) => {
                            format!("{name} = {}", short(*stmt)?)
                        }
                        _ => statement.to_owned(),
                    },
                ))
            }
            Edit::Shorten(stmt) => {
                let is_moved = |it: &Edit| matches!(it, Edit::Move { stmt: moved, .. } if moved == stmt);
                let statement = short(*stmt).filter(|_| !all.iter().any(is_moved))?;
                Some((ChangeKind::Shortened, statement))
            }
            Edit::Remove(_) => None,
        }
    }

    /// Returns the repair in the places where it may help, the best one first. A Synchronize is before the loops that it need not be
    /// in, in the loop whose iterations it waits for, or in the loop that selects the streams of a later one. Those of a Wait are in
    /// `wait_edits`.
    fn placements(&self, repair: &Repair) -> Vec<Repair> {
        match repair {
            Repair::InsertWait { communication, before } => self.wait_placements(communication, before),
            Repair::MoveWait { wait: Some(wait), before, synchronize } => {
                self.moved_up(*wait, before, synchronize.as_ref()).into_iter().collect()
            }
            Repair::InsertSynchronize { .. } => {
                let fork = self.fork_before_loop(repair);
                let here = fork.is_some().then(|| repair.clone());
                let other = self.before_loops(repair).or_else(|| self.join_in_loop(repair)).or(fork);
                let placed = Some(other.unwrap_or_else(|| repair.clone()));
                [placed, here, self.join_iterations(repair)].into_iter().flatten().collect()
            }
            Repair::MoveWait { wait: None, .. }
            | Repair::OnStream { .. }
            | Repair::MoveDeallocate { .. }
            | Repair::ShortenAllocate { .. }
            | Repair::MoveAllocate { .. } => vec![repair.clone()],
        }
    }

    /// Returns true if the repair is inside a loop and therefore affects every iteration.
    pub fn is_in_loop(&self, repair: &Repair) -> bool {
        let Some(point) = repair.insertion() else { return true };
        let is_loop = |(_, outer): (_, StmtId)| matches!(self.program.stmts[outer], Stmt::For(_));
        point.statement().is_some_and(|stmt| self.places().around(stmt).any(is_loop))
    }

    /// Returns the place of an insertion point. Nothing is inserted into a group.
    fn place(&self, point: &InsertionPoint) -> Option<Place> {
        let group = |it: StmtId| self.places().of_stmt(it).and_then(|it| it.group_start);
        match point {
            InsertionPoint::Before { statement: NamedStmt { stmt, .. }, .. } => {
                Some(Place::Before(group((*stmt)?).or(*stmt)?))
            }
            InsertionPoint::After { statement, .. } => {
                let place = self.places().of_stmt(statement.stmt?)?;
                let later = self.program.block(place.block).get(place.position + 1..)?;
                let next = later.iter().copied().find(|it| group(*it).is_none());
                next.map(Place::Before)
                    .or_else(|| self.place(&InsertionPoint::BlockEnd { of: statement.clone() }))
            }
            InsertionPoint::BlockEnd { of } => {
                let block = self.places().of_stmt(of.stmt?)?.block;
                Some(Place::After(*self.program.block(block).last()?))
            }
            InsertionPoint::End { .. } => Some(Place::End(self.program.body?)),
        }
    }

    /// Returns how a Synchronize names a stream at a place, which is that of the insertion point if there is one.
    fn waited_stream(
        &self,
        stream: &WaitedStream,
        at: Place,
        point: Option<&InsertionPoint>,
    ) -> Option<StreamRef> {
        match stream {
            WaitedStream::Index { index, stmt } => Some(self.stream_operand(*index, *stmt, point)),
            WaitedStream::Entry { .. } => {
                let line = self.position(at)?.0;
                let known = self.captured_entry_stream().filter(|it| it.line < line);
                Some(known.map_or(StreamRef::New(NewStream::Entry), |it| StreamRef::Captured(it.stream)))
            }
        }
    }
}

fn insert(statement: NewStatement, at: Place) -> Edit {
    Edit::Insert { statement, at }
}
