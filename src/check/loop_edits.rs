//! The places of a `Synchronize` that concern loops: before a loop instead of in each iteration, at the end of the
//! iterations whose work is awaited, and in a loop that forks the streams of a later one.

use grammar::{Stmt, StmtId, Stream, StreamId};
use hir_ir::streams::{stream_set_by, synchronized};

use super::{
    editable_text::EditableText,
    repair::{InsertionPoint, Repair, WaitedStream},
};
use hir_plan::PlanStream;

impl EditableText {
    /// Returns the edit before the loops around its place in which the awaited statement is not, and in which the current
    /// stream does not change; `None` if there are no such loops. One iteration has to wait, and the others follow it.
    pub(super) fn before_loops(&self, edit: &Repair) -> Option<Repair> {
        let Repair::InsertSynchronize { stream, before: InsertionPoint::Before { statement, current } } =
            edit
        else {
            return None;
        };
        let WaitedStream::Index { stmt: Some(awaited), .. } = stream else { return None };
        let places = self.places();
        let is_shared = |outer: StmtId| places.around(*awaited).any(|it| it.1 == outer);
        let inner = places.around(statement.stmt?);
        let outer = inner
            .take_while(|(block, outer)| !is_shared(*outer) && !self.streams().are_set_in(*block))
            .filter(|(_, outer)| matches!(self.program.stmts[*outer], Stmt::For(_)))
            .last()?
            .1;
        let mut statement = statement.clone();
        statement.stmt = Some(outer);
        let before = InsertionPoint::Before { statement, current: current.clone() };
        Some(Repair::InsertSynchronize { stream: stream.clone(), before })
    }

    /// Returns the edit that waits, at the end of each iteration of a loop, for the stream of the iteration, instead of for one of
    /// these streams in each iteration of a later loop. Returns `None` if the iterations do not end on a stream that the program
    /// captured, or if one waits for this stream, since they would then wait for each other.
    pub(super) fn join_in_loop(&self, edit: &Repair) -> Option<Repair> {
        self.join_at_end(edit, false)
    }

    /// Returns the edit that waits, at the end of each iteration of a loop, for the stream of the iteration, if each iteration has to
    /// follow the one before: the stream that is current at the end is the one that has to wait, or one for which each iteration waits at
    /// its start.
    pub(super) fn join_iterations(&self, edit: &Repair) -> Option<Repair> {
        self.join_at_end(edit, true)
    }

    /// Returns the edit that orders all iterations of a loop, if there is one, and otherwise the edit.
    pub(super) fn in_order(&self, edit: Repair) -> Repair {
        self.join_iterations(&edit).unwrap_or(edit)
    }

    fn join_at_end(&self, edit: &Repair, is_in_order: bool) -> Option<Repair> {
        let Repair::InsertSynchronize { stream, before } = edit else { return None };
        let WaitedStream::Index { stmt: Some(awaited), .. } = stream else { return None };
        let (program, places) = (&self.program, self.places());
        let setter = self.streams().setter(*awaited)?;
        let (body, looped) =
            places.around(setter).find(|(_, outer)| matches!(program.stmts[*outer], Stmt::For(_)))?;
        let later = before.statement()?;
        let is_around_later = |it: StmtId| places.around(later).any(|(_, outer)| outer == it);
        if !self.sets_other_stream_in(setter, looped)
            || !self.is_in_loop(edit)
            || is_around_later(looped) != is_in_order
        {
            return None;
        }
        let stmts = program.block(body);
        let last = stmts.iter().rposition(|it| self.selected_name(*it).is_some())?;
        let joining = self.selected_name(stmts[last]);
        let is_current_at_end = self.streams().setter_behind(body) == Some(stmts[last]);
        let is_before = |it: StmtId| {
            program.stmt_span(it).start < program.stmt_span(later).start
                && self.streams().setter(it) == self.streams().setter(later)
        };
        let forks = |it: &StmtId| self.awaited_name(*it) == joining && (!is_in_order || is_before(*it));
        let is_own =
            is_in_order && before.current() == Some(&PlanStream::Entry) && self.selects_entry(stmts[last]);
        let is_joined = is_own || self.statements_in(looped).iter().any(forks) == is_in_order;
        if !is_current_at_end || !is_joined {
            return None;
        }
        let before = match stmts.get(last + 1) {
            Some(next) => InsertionPoint::Before { statement: self.named(*next), current: None },
            None => InsertionPoint::BlockEnd { of: self.named(stmts[last]) },
        };
        Some(Repair::InsertSynchronize { stream: stream.clone(), before })
    }

    /// Returns the edit by which the streams of the iterations of a loop wait for the stream that is current at entry before this
    /// loop, in an earlier loop that selects the same streams, or where an earlier statement selects the stream of all iterations. In
    /// the iterations they would also wait for what this stream executes there, so for each other if the iterations are joined. Returns
    /// `None` if the awaited work is in the loop or behind the earlier statement, or if no iteration uses the awaited stream.
    pub(super) fn fork_before_loop(&self, edit: &Repair) -> Option<Repair> {
        let Some(WaitedStream::Entry { stmt: awaited }) = edit.awaited_stream() else { return None };
        let InsertionPoint::Before { statement, .. } = edit.insertion()? else { return None };
        let setter = self.streams().setter(statement.stmt?)?;
        let awaited_setter = || self.awaited_setter(setter, statement.stmt?);
        let fork = |it: StmtId| self.fork_of_setter(edit, *awaited, it);
        fork(setter).or_else(|| fork(awaited_setter()?))
    }

    /// Returns the SetCurrentStream in the block of `setter` that selects the stream for which the stream of `setter` waits before
    /// `stmt`: what this one waits for, the stream of `setter` follows.
    fn awaited_setter(&self, setter: StmtId, stmt: StmtId) -> Option<StmtId> {
        let (program, place) = (&self.program, self.places().of_stmt(setter)?);
        let end = self.places().of_stmt(stmt).filter(|it| it.block == place.block)?.position;
        let stmts = program.block(place.block);
        let awaited = stmts[place.position..end].iter().find_map(|it| synchronized(program, *it))?;
        let selects = |it: &StmtId| stream_set_by(program, *it) == Some(awaited);
        stmts[..place.position].iter().rev().copied().find(selects)
    }

    /// Returns the edit by which the stream that `setter` selects in a loop waits for the entry stream before this loop.
    fn fork_of_setter(&self, edit: &Repair, awaited: Option<StmtId>, setter: StmtId) -> Option<Repair> {
        let (program, places) = (&self.program, self.places());
        let looped = places.around(setter).next()?.1;
        let returns = |it: &StmtId| self.selected_name(*it).is_some();
        if !matches!(program.stmts[looped], Stmt::For(_)) || !self.statements_in(looped).iter().any(returns) {
            return None;
        }
        let place = places.of_stmt(looped)?;
        // The position of the awaited statement, or of the loop or branch that contains it, in the block of the loop.
        let outer = |it: StmtId| std::iter::once(it).chain(places.around(it).map(|it| it.1));
        let in_block = |it: &StmtId| places.of_stmt(*it).filter(|it| it.block == place.block);
        let after = awaited.and_then(|it| outer(it).find_map(|it| in_block(&it))).map(|it| it.position);
        if after == Some(place.position) {
            return None;
        }
        // What is behind the loop has been issued in an earlier iteration of an outer one.
        let after = after.filter(|it| *it < place.position);
        let stmts = program.block(place.block);
        let earlier = stmts[after.map_or(0, |it| it + 1)..place.position].iter().rev();
        if self.sets_other_stream_in(setter, looped) {
            let of = earlier.copied().find_map(|it| self.same_streams_at_end(it, looped, setter))?;
            return edit.synchronize_before(InsertionPoint::BlockEnd { of: self.named(of) });
        }
        let is_same = |it: StmtId| self.statement(it) == self.statement(setter);
        let selected = earlier.copied().find(|it| is_same(*it))?;
        let next = stmts[places.of_stmt(selected)?.position + 1];
        edit.synchronize_before(InsertionPoint::Before { statement: self.named(next), current: None })
    }

    /// Returns the SetCurrentStream whose stream is current at the end of the iterations of `earlier`, if this is a loop like `looped`
    /// and selects its streams as `setter` does.
    fn same_streams_at_end(&self, earlier: StmtId, looped: StmtId, setter: StmtId) -> Option<StmtId> {
        let (program, places) = (&self.program, self.places());
        let Stmt::For(it) = &program.stmts[earlier] else { return None };
        let first_line = |it: StmtId| Some(self.line(self.line_of(it)?).trim());
        let of_stmt = |it: StmtId| self.statement(it);
        let last = *program.block(it.body).last()?;
        let found = if of_stmt(last) == of_stmt(setter) { last } else { self.streams().setter(last)? };
        let is_same = of_stmt(found) == of_stmt(setter)
            && places.of_stmt(found)?.block == it.body
            && first_line(earlier) == first_line(looped);
        is_same.then_some(found)
    }

    /// Returns whether a SetCurrentStream selects another stream in each iteration of a loop.
    fn sets_other_stream_in(&self, setter: StmtId, looped: StmtId) -> bool {
        let (Some(stream), Stmt::For(it)) =
            (stream_set_by(&self.program, setter), &self.program.stmts[looped])
        else {
            return false;
        };
        match self.program.streams[stream] {
            Stream::Index(operand) => self.program.depends_on(operand, &|symbol| symbol == it.index),
            Stream::Named(_) => false,
        }
    }

    /// Returns the number of the captured stream that a statement makes current.
    fn selected_name(&self, stmt: StmtId) -> Option<u32> {
        self.name_of(stream_set_by(&self.program, stmt)?)
    }

    /// Returns the number of the captured stream for which a statement waits.
    fn awaited_name(&self, stmt: StmtId) -> Option<u32> {
        self.name_of(synchronized(&self.program, stmt)?)
    }

    fn name_of(&self, stream: StreamId) -> Option<u32> {
        match self.program.streams[stream] {
            Stream::Named(number) => Some(number),
            Stream::Index(_) => None,
        }
    }

    /// Returns whether a SetCurrentStream selects the stream that is current at entry.
    fn selects_entry(&self, setter: StmtId) -> bool {
        let selected = self.selected_name(setter);
        selected.is_some() && selected == self.captured_entry_stream().map(|it| it.stream)
    }

    /// Returns all statements in a loop.
    fn statements_in(&self, looped: StmtId) -> Vec<StmtId> {
        let is_inside = |it: &StmtId| self.places().around(*it).any(|(_, outer)| outer == looped);
        self.program.stmts.ids().filter(is_inside).collect()
    }
}
