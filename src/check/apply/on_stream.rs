//! The repairs by which another stream waits than the current one: they select it, and then the current one again.

use hir_ir::{
    edit::{Edit, NewStatement, NewStream, Place, StreamRef},
    streams::StreamValue,
};
use hir_plan::PlanStream;

use super::insert;
use crate::{
    editable_text::EditableText,
    repair::{InsertionPoint, PlacedWait, WaitedStream},
};

impl EditableText {
    /// Selects a stream, inserts a Synchronize, and selects the stream again that is current.
    pub(super) fn synchronize_on_stream(
        &self,
        blocked: &PlanStream,
        stream: &WaitedStream,
        before: &InsertionPoint,
    ) -> Option<Vec<Edit>> {
        let at = self.place(before)?;
        let stream = self.waited_stream(stream, at, Some(before))?;
        self.select_around(blocked, insert(NewStatement::Synchronize(stream), at), (before, at))
    }

    /// Selects a stream, inserts a Wait or moves it there, and selects the stream again that is current.
    pub(super) fn wait_on_stream(
        &self,
        blocked: &PlanStream,
        wait: &PlacedWait,
        before: &InsertionPoint,
    ) -> Option<Vec<Edit>> {
        let at = self.place(before)?;
        match wait {
            PlacedWait::Inserted { communication } => {
                let number = self.program.posted_work(communication.stmt?)?;
                self.select_around(blocked, insert(NewStatement::Wait(number), at), (before, at))
            }
            PlacedWait::Moved { wait, is_replaced } => {
                let moved = Edit::Move { stmt: *wait, to: at };
                let mut edits = self.select_around(blocked, moved, (before, at))?;
                if *is_replaced {
                    let here = InsertionPoint::Before { statement: self.named(*wait), current: None };
                    let stream = WaitedStream::from_stream(blocked, None);
                    let stream = self.waited_stream(&stream, at, Some(&here))?;
                    edits.push(insert(NewStatement::Synchronize(stream), Place::After(*wait)));
                } else {
                    self.remove_emptied(&mut edits, *wait);
                }
                Some(edits)
            }
        }
    }

    /// Makes an edit with the selection of a stream before it, and that of the current stream behind it, or without both if it is the
    /// current stream. If another stream is current in each iteration or on each rank, a GetCurrentStream before them names it.
    fn select_around(
        &self,
        blocked: &PlanStream,
        edit: Edit,
        (point, at): (&InsertionPoint, Place),
    ) -> Option<Vec<Edit>> {
        let stream = self.waited_stream(&WaitedStream::from_stream(blocked, None), at, Some(point))?;
        let selected = NewStatement::SetCurrentStream(stream);
        if !self.has_one_current_stream(point) {
            let capture = NewStatement::GetCurrentStream(NewStream::Current);
            let back = NewStatement::SetCurrentStream(StreamRef::New(NewStream::Current));
            return Some(vec![insert(capture, at), insert(selected, at), edit, insert(back, at)]);
        }
        let back = self.selection_at(point, at)?;
        let is_current = self.new_statement(selected, &[]) == self.new_statement(back, &[]);
        Some(if is_current { vec![edit] } else { vec![insert(selected, at), edit, insert(back, at)] })
    }

    /// Returns whether the same stream is current at a point on all ranks and in all iterations.
    fn has_one_current_stream(&self, point: &InsertionPoint) -> bool {
        let (program, streams) = (&self.program, self.streams());
        let current = match (point.statement(), program.body) {
            (Some(stmt), _) => streams.current(stmt),
            (None, Some(body)) => streams.current_behind(body),
            (None, None) => Some(StreamValue::Entry),
        };
        current.is_some_and(|it| it.is_constant(program))
    }

    /// Returns what selects the stream that is current at a point on all ranks and in all iterations.
    fn selection_at(&self, point: &InsertionPoint, at: Place) -> Option<NewStatement> {
        let streams = self.streams();
        let select = |stream: &PlanStream| {
            let stream = WaitedStream::from_stream(stream, None);
            Some(NewStatement::SetCurrentStream(self.waited_stream(&stream, at, Some(point))?))
        };
        match (point.current(), point.statement()) {
            (Some(stream), _) => select(stream),
            (None, Some(stmt)) if streams.current(stmt) == Some(StreamValue::Entry) => {
                select(&PlanStream::Entry)
            }
            (None, Some(stmt)) => Some(NewStatement::CopyOf(streams.setter(stmt)?)),
            (None, None) => None,
        }
    }
}
