//! The help of a race: describes the changes that `--fix=check` makes in the text, by making them.

use std::{cell::Cell, collections::BTreeSet};

use grammar::{Fix, StmtId, list_text};
use hir_ir::edit::{Edit, Edits, NewStatement, StreamRef};

use super::{
    apply::{Change, ChangeKind},
    editable_text::EditableText,
    explanation::RaceExplanation,
    plan_index::{PlanIndex, PlanIndexes},
    race_side::stream_of,
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
    wait_cycle::deadlocks,
};
use hir_plan::{Plan, PlanStream, StreamNo};

/// The text of a program and the plan of a rank that executes it.
pub struct EditContext<'a> {
    /// The text, with the program that it contains.
    pub text: &'a EditableText,
    /// The plan.
    pub plan: &'a Plan,
    /// The index of the plan.
    pub index: PlanIndex<'a>,
    /// The plans of all ranks.
    pub plans: &'a [Plan],
    /// The indexes of these plans.
    pub indexes: &'a PlanIndexes<'a>,
    /// The number of instructions that were executed with the edits of helps.
    pub executed: &'a Cell<usize>,
}

/// Formats an edit that is the only one. Also returns the changes of the text.
pub fn help_of_edit(edit: &Repair, context: &EditContext<'_>) -> (String, Vec<Fix>) {
    let Some((edit, applied)) = context.text.applications(edit).into_iter().next() else {
        return (outline(edit, Some(context)), Vec::new());
    };
    (describe(context, &edit, &applied), fixes(context, &edit, &applied))
}

/// Returns the changes of the text that the description of an applied edit names: also those for the other streams.
fn fixes(context: &EditContext<'_>, repair: &Repair, applied: &Edits) -> Vec<Fix> {
    let text = context.text;
    let mut all = applied.clone();
    for index in other_streams(context, repair, applied) {
        if let Some(more) = repair.with_stream(index).and_then(|it| text.apply_here(&it)) {
            all.add(more.list());
        }
    }
    text.fixes(all.list()).unwrap_or_default()
}

/// Formats the alternative edits of a race, or the advice if there are none. Without a context the edits are
/// described only by their statements. Also returns the changes of the text, if the help has one edit.
pub fn help(race: &RaceExplanation, context: Option<&EditContext<'_>>) -> (Option<String>, Vec<Fix>) {
    if race.edits.is_empty() {
        return (race.advice.clone(), Vec::new());
    }
    let mut circular = None;
    let mut of_edit = |edit: &Repair| {
        let context = context?;
        let (edit, applied) = context.text.applications(edit).into_iter().next()?;
        let help = describe(context, &edit, &applied);
        if deadlocks(context.plans, &edit, context.indexes, context.executed) {
            circular.get_or_insert(help);
            return None;
        }
        Some((help, fixes(context, &edit, &applied)))
    };
    let free = race.edits.iter().filter(|it| it.is_preferred()).find_map(&mut of_edit);
    let edits = match free {
        Some(only) => vec![only],
        None => race.edits.iter().filter_map(&mut of_edit).collect(),
    };
    if let Some(help) = circular.filter(|_| edits.is_empty()) {
        let advice =
            "let the later access use other storage, or let ranks post these communications in another order";
        return (Some(format!("{advice}; to {help} makes ranks wait for each other (E0705)")), Vec::new());
    }
    match <[_; 1]>::try_from(edits) {
        Ok([(help, fixes)]) => (Some(help), fixes),
        Err(edits) if edits.is_empty() => (race.edits.last().map(|edit| outline(edit, context)), Vec::new()),
        Err(edits) => {
            let texts: Vec<String> = edits.into_iter().map(|it| it.0).collect();
            (Some(texts.join(", or ")), Vec::new())
        }
    }
}

/// Describes the changes of an applied edit as an imperative.
fn describe(context: &EditContext<'_>, repair: &Repair, applied: &Edits) -> String {
    let text = context.text;
    let (changes, lines) =
        (text.changes(applied.list()), text.line_changes(applied.list()).unwrap_or_default());
    let touched: Vec<StmtId> = applied.touched().collect();
    let old_line = || touched.first().map_or(String::new(), |it| format!("line {}", text.line_number(*it)));
    let before_line = |change: &Change| {
        let line = lines.next_line_of(change.edit, text.index.count());
        line.map_or(String::new(), |it| format!("before line {it}"))
    };
    let previous_line = |change: &Change| lines.previous_line_of(change.edit);
    let mut parts: Vec<String> = Vec::new();
    let mut is_moved = false;
    let mut selected: Vec<String> = Vec::new();
    let (moved, stmt) = (touched.first(), repair.insertion().and_then(InsertionPoint::statement));
    let is_on_stream = matches!(repair, Repair::OnStream { .. });
    // The statements that select streams, and the one between them.
    let grouped = 1 + changes.iter().filter(|it| it.kind == ChangeKind::Selected).count();
    for change in &changes {
        let statement = &change.statement;
        let is_capture = parts.is_empty() && applied.list()[change.edit].captures_entry();
        let place = match (is_capture, is_moved, repair.insertion()) {
            (true, ..) => before_line(change),
            // The line of a Wait that is replaced is gone.
            _ if is_on_stream && moved.is_some() && moved == stmt.as_ref() => {
                format!("before {}", old_line())
            }
            (false, true, _) => "in its place".to_owned(),
            (false, false, Some(InsertionPoint::BlockEnd { .. })) => {
                let line = previous_line(change);
                line.map_or(String::new(), |it| format!("after line {it}, in the same block"))
            }
            (false, false, Some(InsertionPoint::End { .. })) => {
                format!("as the last statement, {}", before_line(change))
            }
            (false, false, Some(InsertionPoint::Before { .. } | InsertionPoint::After { .. }) | None) => {
                before_line(change)
            }
        };
        parts.push(match change.kind {
            _ if !is_capture && is_on_stream && selected.len() < grouped => {
                selected.push(format!("`{statement}`"));
                if selected.len() < grouped {
                    continue;
                }
                format!("insert {} {place}", list_text(selected.iter().map(String::as_str), grouped, "and"))
            }
            ChangeKind::Inserted if is_on_stream && !is_capture => {
                format!("replace the Wait on {} by `{statement}`", old_line())
            }
            ChangeKind::Inserted | ChangeKind::Selected => format!("insert `{statement}` {place}"),
            ChangeKind::Moved | ChangeKind::Delayed if matches!(repair, Repair::MoveWait { .. }) => {
                is_moved = true;
                let place = match repair.insertion() {
                    Some(InsertionPoint::End { .. }) => {
                        format!("end of the program, {}", before_line(change))
                    }
                    _ => format!("line {place}"),
                };
                format!("move `{statement}` from {} to the {place}", old_line())
            }
            ChangeKind::Moved | ChangeKind::Delayed => {
                let line = previous_line(change);
                let place = line.map_or(String::new(), |it| format!(" to the line after line {it}"));
                let is_allocate = matches!(repair, Repair::MoveAllocate { .. });
                let why = if is_allocate { ", which gives every iteration its own storage" } else { "" };
                format!("move `{statement}` from {}{place}{why}", old_line())
            }
            ChangeKind::Shortened => format!(
                "write `{statement}` on {}, which gives every iteration its own storage, if no iteration reads what an earlier one wrote",
                old_line()
            ),
        });
    }
    // A Wait that nothing replaces.
    let replaces = |it: &Change| it.kind == ChangeKind::Inserted && !applied.list()[it.edit].captures_entry();
    if is_on_stream && moved.is_some() && !changes.iter().any(replaces) {
        parts.push(format!("remove the Wait on {}", old_line()));
    }
    if let [_, emptied @ ..] = touched.as_slice()
        && !emptied.is_empty()
    {
        let lines: Vec<String> = emptied.iter().map(|it| text.line_number(*it).to_string()).collect();
        parts.push(format!("remove the empty block on line {}", lines.join(" and line ")));
    }
    parts.join(", and ") + &other_streams_text(context, repair, applied)
}

/// Names the other streams that need the same `Synchronize`.
fn other_streams_text(context: &EditContext<'_>, repair: &Repair, applied: &Edits) -> String {
    let others = other_streams(context, repair, applied);
    let name = |it: &i64| context.text.stream_name(StreamRef::Index(*it), &[]);
    let others: Vec<String> = others.iter().map(name).collect();
    match others.as_slice() {
        [] => String::new(),
        [only] => format!(", and the same for stream {only}"),
        all => format!(", and the same for streams {}", list_text(all.iter().map(String::as_str), 16, "and")),
    }
}

/// Returns the other streams that need the same `Synchronize`, if the inserted operand names one of them.
fn other_streams(context: &EditContext<'_>, repair: &Repair, applied: &Edits) -> BTreeSet<i64> {
    let Some(WaitedStream::Index { index, .. }) = repair.awaited_stream() else { return BTreeSet::new() };
    let text = |it| context.text.new_statement(it, applied.list());
    let synchronize = text(NewStatement::Synchronize(StreamRef::Index(*index)));
    let names_index =
        |it: &Edit| matches!(it, Edit::Insert { statement, .. } if text(*statement) == synchronize);
    if !applied.list().iter().any(names_index) {
        return BTreeSet::new();
    }
    other_awaited_streams(context.plan, context.index, repair)
}

/// Returns the other streams that need the same `Synchronize` as an edit inserts: several streams execute the awaited statement, and the waiting
/// stream has not waited for the others yet, and neither has the stream that the edit names.
pub(super) fn other_awaited_streams(plan: &Plan, of: PlanIndex<'_>, edit: &Repair) -> BTreeSet<i64> {
    let (Some(WaitedStream::Index { index, stmt: Some(stmt) }), Some(before)) =
        (edit.awaited_stream(), edit.insertion())
    else {
        return BTreeSet::new();
    };
    let awaited = plan.streams.iter().position(|it| *it == PlanStream::Indexed(*index));
    let is_needed = |at: &usize| {
        let stream = stream_of(plan, *at);
        match before {
            InsertionPoint::End { current } => {
                let waiting = plan.streams.iter().position(|it| it == current);
                let is_joined = |it: usize| of.first_stream_wait(*at, it as u32).is_some();
                stream != current && !waiting.is_some_and(is_joined)
            }
            InsertionPoint::Before { statement, .. } => {
                statement.stmt.is_some_and(|it| has_unordered_stream(plan, of, (it, awaited), *at))
            }
            InsertionPoint::After { .. } | InsertionPoint::BlockEnd { .. } => false,
        }
    };
    let other_index = |at: usize| match stream_of(plan, at) {
        PlanStream::Indexed(other) if other != index => Some(*other),
        PlanStream::Indexed(_) | PlanStream::Entry | PlanStream::Queue(_) | PlanStream::Unwaited => None,
    };
    of.of_stmt(*stmt).iter().copied().filter(is_needed).filter_map(other_index).collect()
}

/// Returns whether a statement has an instruction after `at` on another stream than that of `at`, before which neither this stream nor the
/// stream `awaited` has waited for `at`.
fn has_unordered_stream(
    plan: &Plan,
    index: PlanIndex<'_>,
    (stmt, awaited): (StmtId, Option<usize>),
    at: usize,
) -> bool {
    let all = index.of_stmt(stmt);
    let joined = awaited.and_then(|it| index.first_stream_wait(at, it as StreamNo));
    all[all.partition_point(|it| *it <= at)..].iter().any(|it| {
        let waited = || index.first_stream_wait(at, plan.code[*it].stream);
        let is_after = |wait: usize| wait > *it;
        stream_of(plan, *it) != stream_of(plan, at)
            && joined.is_none_or(is_after)
            && waited().is_none_or(is_after)
    })
}

/// Describes an edit of a program whose text is not known, or is formatted in a way that `apply` does not
/// support.
fn outline(edit: &Repair, context: Option<&EditContext<'_>>) -> String {
    // A group of transfers may have no number, and then no `Wait` can name it.
    let has_no_number = |it: &NamedStmt| {
        let names = context.map(|it| &it.plan.comm_names);
        names.zip(it.stmt).is_some_and(|(names, stmt)| names.wait_text(stmt).is_none())
    };
    let mut other = String::new();
    let what = match edit {
        Repair::InsertSynchronize { stream: WaitedStream::Index { index, .. }, .. } => {
            let statement = match context {
                Some(EditContext { text, .. }) => {
                    text.new_statement(NewStatement::Synchronize(StreamRef::Index(*index)), &[])
                }
                None => format!("Synchronize(Stream {index})"),
            };
            format!("insert `{statement}`")
        }
        Repair::InsertSynchronize { stream: WaitedStream::Entry { .. }, .. } => {
            "insert a Synchronize with the stream that is current at entry".to_owned()
        }
        Repair::OnStream { repair, .. } if repair.awaited_stream().is_some() => {
            "let the stream of the ALLOCATE wait for the stream that uses the storage".to_owned()
        }
        Repair::OnStream { .. } => "let the stream of the later statement execute the Wait".to_owned(),
        Repair::InsertWait { communication, .. } if has_no_number(communication) => format!(
            "give {} a number, as in `EndCoalescing 9`, and insert `Wait(Communication 9)`",
            communication.name
        ),
        Repair::InsertWait { communication, before } => {
            let lines = context.zip(communication.stmt).map(|(it, post)| it.text.lines_of_other_waits(post, before));
            let lines: Vec<String> = lines.unwrap_or_default().iter().map(u32::to_string).collect();
            if lines.len() > 1 {
                let lines = list_text(lines.iter().map(String::as_str), 16, "and");
                other = format!(", and remove those on lines {lines}: a second one is an error");
            }
            format!("insert one Wait for {}", communication.name)
        }
        Repair::MoveWait { .. } => {
            "move the Wait so that each rank that posts the communication executes it once,".to_owned()
        }
        Repair::MoveDeallocate { .. } => "move the Deallocate behind the next wait for this access".to_owned(),
        Repair::MoveAllocate { .. } => {
            "move the ALLOCATE into the loop, which gives every iteration its own storage".to_owned()
        }
        Repair::ShortenAllocate { .. } => {
            "use the short ALLOCATE, which gives every iteration its own storage, if no iteration reads what an earlier one wrote".to_owned()
        }
    };
    let place = match edit.insertion() {
        Some(InsertionPoint::Before { statement, .. }) => format!(" before {}", statement.name),
        Some(InsertionPoint::After { statement, .. }) => format!(" behind {}", statement.name),
        Some(InsertionPoint::BlockEnd { of }) => format!(" at the end of the block of {}", of.name),
        Some(InsertionPoint::End { .. }) => " at the end of the program".to_owned(),
        None => String::new(),
    };
    what + &place + &other
}
