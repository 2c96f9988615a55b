//! The repairs by which another stream waits than the current one: they select it, and then the current one again.

use hir_ir::{
    edit::{Edit, NewStatement, NewStream, Place, StreamRef},
    streams::StreamValue,
};
use hir_plan::PlanStream;

use super::insert;
use crate::{
    editable_text::EditableText,
    repair::{InsertionPoint, WaitedStream},
};

impl EditableText {
    /// Makes edits, the first of which inserts a statement or moves it, with the selection of a stream before that, and that of the current
    /// stream behind it, or without both if it is the current stream. If another stream is current in each iteration or on each rank, a
    /// GetCurrentStream before them names it.
    pub(super) fn select_around(
        &self,
        blocked: &PlanStream,
        edits: Vec<Edit>,
        point: &InsertionPoint,
    ) -> Option<Vec<Edit>> {
        let at = self.place(point)?;
        let stream = self.waited_stream(&WaitedStream::from_stream(blocked, None), at, Some(point))?;
        let selected = NewStatement::SetCurrentStream(stream);
        let (first, back) = if self.has_one_current_stream(point) {
            (None, self.selection_at(point, at)?)
        } else {
            let back = NewStatement::SetCurrentStream(StreamRef::New(NewStream::Current));
            (Some(insert(NewStatement::GetCurrentStream(NewStream::Current), at)), back)
        };
        if first.is_none() && self.new_statement(selected, &[]) == self.new_statement(back, &[]) {
            return Some(edits);
        }
        let mut edits = edits.into_iter();
        let placed = [Some(insert(selected, at)), edits.next(), Some(insert(back, at))];
        Some(first.into_iter().chain(placed.into_iter().flatten()).chain(edits).collect())
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
