//! The edits by which another stream waits than the current one: they select it, and then the current one again.

use hir_ir::streams::StreamValue;
use hir_plan::PlanStream;

use super::{Change, ChangeKind, EditedText};
use crate::{
    edit::{InsertionPoint, PlacedWait, WaitedStream},
    editable_text::EditableText,
};

/// The names of streams at a point of a text.
struct StreamNames {
    entry: String,
    /// The statement that captures the entry stream, if the text has none.
    capture: Option<String>,
}

/// What selects the stream again that is current at a point.
enum Current<'a> {
    Stream(&'a PlanStream),
    /// A SetCurrentStream of the text.
    SetBy(&'a str),
}

impl EditableText {
    /// Selects a stream, inserts a Synchronize, and selects the stream again that is current.
    pub(super) fn synchronize_on_stream(
        &self,
        blocked: &PlanStream,
        stream: &WaitedStream,
        before: &InsertionPoint,
    ) -> Option<EditedText> {
        let names = self.names_at(blocked, Some(stream), before)?;
        let wait = self.synchronize(&names.of(self, stream, before));
        self.select_around(blocked, ChangeKind::Inserted(wait), before, &names)
    }

    /// Selects a stream, inserts a Wait or moves it there, and selects the stream again that is current.
    pub(super) fn wait_on_stream(
        &self,
        blocked: &PlanStream,
        wait: &PlacedWait,
        before: &InsertionPoint,
    ) -> Option<EditedText> {
        let names = self.names_at(blocked, None, before)?;
        match wait {
            PlacedWait::Inserted { communication } => {
                let number = self.program.posted_work(communication.stmt?)?;
                let wait = self.format_statement("Wait", &format!("Communication {number}"));
                self.select_around(blocked, ChangeKind::Inserted(wait), before, &names)
            }
            PlacedWait::Moved { wait, is_replaced } => {
                let (from, statement) = self.statement_of_line(*wait)?;
                let mut it =
                    self.select_around(blocked, ChangeKind::Moved(statement.to_owned()), before, &names)?;
                if *is_replaced {
                    let here = InsertionPoint::Before { statement: self.named(*wait), current: None };
                    let stream = names.of(self, &WaitedStream::from_stream(blocked, None), &here);
                    let synchronize = self.synchronize(&stream);
                    let line = format!("{}{synchronize}", self.indentation(from));
                    let line = it.lines.insert(&self.lines, from, &line);
                    it.changes.push(Change::inserted(line, &synchronize));
                }
                it.replaced.push(*wait);
                self.remove_statement(&mut it, *wait, from, !*is_replaced);
                Some(it)
            }
        }
    }

    /// Inserts a statement with the selection of a stream before it, and that of the current stream behind it, or without both if it is the
    /// current stream. If another stream is current in each iteration or on each rank, a GetCurrentStream before them names it.
    fn select_around(
        &self,
        blocked: &PlanStream,
        statement: ChangeKind,
        before: &InsertionPoint,
        names: &StreamNames,
    ) -> Option<EditedText> {
        let (at, indentation) = self.position(before)?;
        let set = if self.is_keyword_style() { "SetCurrentStream to" } else { "SetCurrentStream" };
        let select = |stream: &PlanStream| {
            let stream = names.of(self, &WaitedStream::from_stream(stream, None), before);
            ChangeKind::Selected(self.format_statement(set, &format!("Stream {stream}")))
        };
        let mut it = EditedText::default();
        let all = if self.has_one_current_stream(before) {
            let back = match self.current_at(before)? {
                Current::Stream(stream) => select(stream),
                Current::SetBy(setter) => ChangeKind::Selected(setter.to_owned()),
            };
            let selected = select(blocked);
            if selected == back { vec![statement] } else { vec![selected, statement, back] }
        } else {
            let name = &self.new_stream_names()[usize::from(names.capture.is_some())];
            let capture = ChangeKind::Selected(self.capture(name));
            let back = self.format_statement(set, &format!("Stream {name}"));
            vec![capture, select(blocked), statement, ChangeKind::Selected(back)]
        };
        for kind in all {
            let mut change = Change { line_id: 0, kind };
            let line = format!("{indentation}{}", change.statement());
            change.line_id = it.lines.insert(&self.lines, at, &line);
            it.changes.push(change);
        }
        self.with_capture(it, names.capture.as_deref(), at)
    }

    /// Returns whether the same stream is current at a point on all ranks and in all iterations.
    fn has_one_current_stream(&self, point: &InsertionPoint) -> bool {
        let (program, streams) = (&self.program, &self.places().streams);
        let current = match (point.statement(), program.body) {
            (Some(stmt), _) => streams.current(stmt),
            (None, Some(body)) => streams.current_behind(body),
            (None, None) => Some(StreamValue::Entry),
        };
        current.is_some_and(|it| it.is_constant(program))
    }

    /// Returns what selects the stream that is current at a point on all ranks and in all iterations.
    fn current_at<'a>(&'a self, point: &'a InsertionPoint) -> Option<Current<'a>> {
        let streams = &self.places().streams;
        match (point.current(), point.statement()) {
            (Some(stream), _) => Some(Current::Stream(stream)),
            (None, Some(stmt)) if streams.current(stmt) == Some(StreamValue::Entry) => {
                Some(Current::Stream(&PlanStream::Entry))
            }
            (None, Some(stmt)) => {
                Some(Current::SetBy(self.program.stmt_span(streams.setter(stmt)?).text(&self.text)))
            }
            (None, None) => None,
        }
    }

    /// Returns the names of streams at a point.
    fn names_at(
        &self,
        blocked: &PlanStream,
        awaited: Option<&WaitedStream>,
        before: &InsertionPoint,
    ) -> Option<StreamNames> {
        let is_entry = |it: &WaitedStream| matches!(it, WaitedStream::Entry { .. });
        let of_stream = |it: &PlanStream| is_entry(&WaitedStream::from_stream(it, None));
        let is_current = matches!(self.current_at(before), Some(Current::Stream(it)) if of_stream(it));
        let has_entry = awaited.is_some_and(is_entry) || of_stream(blocked) || is_current;
        let at = self.position(before)?.0;
        let (entry, capture) = if has_entry { self.entry_stream_name(at)? } else { Default::default() };
        Some(StreamNames { entry, capture })
    }
}

impl StreamNames {
    /// Returns the operand that names a stream.
    fn of(&self, text: &EditableText, stream: &WaitedStream, before: &InsertionPoint) -> String {
        match stream {
            WaitedStream::Entry { .. } => self.entry.clone(),
            WaitedStream::Index { index, stmt } => text.stream_operand(*index, *stmt, Some(before)),
        }
    }
}
