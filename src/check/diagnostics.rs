//! Formats findings as diagnostics: both source lines, the missing order, and the edit that adds it.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeSet,
};

use grammar::{Code, Diagnostic, Operand, Program, Source, Span, StmtId, TensorId, count_text};
use rustc_hash::FxHashMap;

use super::{
    conflict::{Party, Race, ReusedStorage},
    editable_text::EditableText,
    explanation::RaceExplanation,
    finding::{Finding, Occurrences},
    memory::UnwrittenRead,
    missing_write::{MissingWrite, missing_write},
    overlap::ElementRange,
    plan_index::PlanIndexes,
    race_side::RaceSide,
    repair_help::{self, EditContext},
};
use hir_plan::{EARLY_EXITS, InstKind, OverwrittenView, Plan, WaitForPeers, World, iteration_text};

/// The maximum number of bytes of a line that a label underlines. Lines are long, and the label text is
/// placed under the middle.
const MAX_LABEL: u32 = 48;

/// Help for a read of unwritten elements.
pub const UNWRITTEN_HELP: &str = "write these elements first, or wait for the statement that writes them (Synchronize, Wait); \
                                  `zero_init=true` in ALLOCATE writes zeros";

/// What a read of a view of the shards of all ranks is.
const MAPPED_VIEW: &str = "`SymmetricContiguousView` maps the memory of all ranks in nvFuser, so each read of the view reads their shards then";

/// Help for a race with such a read.
const MAPPED_VIEW_HELP: &str = "let a collective of all ranks, with its Wait, be between the two, on all ranks. hir-run copies the shards where \
                                the view is made (`--check-model=hir`)";

/// The maximum number of ranks or lines that a note lists.
pub(super) const MAX_LISTED: usize = 16;

impl Finding {
    /// Formats the finding as a diagnostic, and returns it with the index of its source text. Rank `r` runs
    /// text `r`, or the last text if there are fewer texts than ranks.
    pub fn diagnostic(&self, world: &World, sources: &[Source]) -> (usize, Diagnostic) {
        let (plans, finding) = self.resolved(world);
        let (text, it) = DiagnosticBuilder::new(plans, sources, &PlanIndexes::new(plans)).finding(finding);
        match self {
            Self::EarlyExit { world, .. } => (text, it.note(early_exit_note(*world))),
            _ => (text, it),
        }
    }
}

/// Returns the note of a finding in a world of `World::early_exits`.
pub(super) fn early_exit_note(world: usize) -> String {
    let count = EARLY_EXITS.get(world).copied().unwrap_or_default();
    format!("this happens where conditions end loops (WHILE) after {}", count_text(count, "iteration"))
}

/// Formats diagnostics from the plans of all ranks and their source texts.
pub(super) struct DiagnosticBuilder<'a> {
    pub(super) plans: &'a [Plan],
    sources: &'a [Source],
    pub(super) indexes: &'a PlanIndexes<'a>,
    /// Each text with the program that the plans execute of it, once a help needs it.
    texts: Vec<OnceCell<Option<EditableText>>>,
    /// The number of instructions that were executed with the edits of helps.
    executed: Cell<usize>,
}

impl<'a> DiagnosticBuilder<'a> {
    /// Creates a builder. Rank `r` runs text `r`, or the last text if there are fewer texts than ranks.
    pub(super) fn new(plans: &'a [Plan], sources: &'a [Source], indexes: &'a PlanIndexes<'a>) -> Self {
        let texts = sources.iter().map(|_| OnceCell::new()).collect();
        Self { plans, sources, indexes, texts, executed: Cell::new(0) }
    }

    /// Formats a finding, and returns it with the index of its source text.
    pub(super) fn finding(&self, finding: &Finding) -> (usize, Diagnostic) {
        match finding {
            Finding::Race { race, more } => self.race(race, more),
            Finding::Unwritten { read, more } => self.unwritten(read, more),
            Finding::OverwrittenView { copy, rank, more } => self.overwritten_view(copy, *rank, more),
            Finding::Deadlock(it) => self.deadlock(it),
            Finding::CommunicatorOrder(it) => self.communicator_order(it),
            Finding::Execution { fault, more } => self.execution_fault(fault, more),
            Finding::Excess(it) => self.excess(it),
            Finding::EarlyExit { finding, .. } => self.finding(finding),
        }
    }

    /// Returns the text and the program that a rank executes. Returns `None` if a pass has changed the
    /// statements of the text.
    pub(super) fn edit_context(&self, rank: usize) -> Option<EditContext<'_>> {
        let (plan, text) = (self.plans.get(rank)?, self.text_of(rank));
        let source = self.sources.get(text)?;
        let text = self.texts[text]
            .get_or_init(|| Some(EditableText::new(source.text.clone(), program_of(source, plan)?)));
        let (plans, indexes, index) = (self.plans, self.indexes, self.indexes.of(rank));
        Some(EditContext { text: text.as_ref()?, plan, index, plans, indexes, executed: &self.executed })
    }

    pub(super) fn text_of(&self, rank: usize) -> usize {
        self.plans[rank].program_id.min(self.sources.len().saturating_sub(1))
    }

    /// Returns the span of a line of a text. An instruction without a line has the span of the header.
    pub(super) fn span(&self, text: usize, line: u32) -> Span {
        let Some(source) = self.sources.get(text) else { return Span::default() };
        let it = source.line_or_header(line);
        let most = it.end.min(it.start + MAX_LABEL) as usize;
        let end = (it.start as usize..=most).rev().find(|at| source.text.is_char_boundary(*at));
        Span::new(it.start as usize, end.unwrap_or(most))
    }

    /// Returns the span of the header of the program in a text, up to the `:` after its outputs.
    fn header_span(&self, text: usize) -> Span {
        let marker = self.span(text, 0);
        let Some(source) = self.sources.get(text) else { return marker };
        let end = source.text.get(marker.start as usize..).and_then(|it| it.find(":\n"));
        end.map_or(marker, |it| Span { start: marker.start, end: marker.start + it as u32 })
    }

    /// Returns the position of an output, an index into `Plan::outputs`, in the header of a rank's program.
    fn output_span(&self, rank: usize, output: usize) -> Option<Span> {
        let (context, source) = (self.edit_context(rank), self.sources.get(self.text_of(rank))?);
        // A pass does not change the outputs.
        let read = if context.is_none() { source.programs().0.into_iter().next() } else { None };
        let program = context.as_ref().map(|it| &it.text.program).or(read.as_ref())?;
        let is_tensor = |it: &(usize, &Operand)| it.1.tensor().is_some();
        program.output_span(program.outputs.iter().enumerate().filter(is_tensor).nth(output)?.0)
    }

    /// Returns the first mention of a tensor in the text of a rank: `T3_g_float[iS3{4}] (DeviceMesh{0 1})`. `None` if a pass has
    /// changed the statements of the text.
    pub(super) fn tensor_text(&self, rank: usize, name: &str) -> Option<&str> {
        let EditContext { text, .. } = self.edit_context(rank)?;
        let program = &text.program;
        let is_it = |it: &TensorId| program.tensors[*it].unit.is_none() && program.tensor_name(*it) == name;
        Some(program.tensor_span(program.tensors.ids().find(is_it)?).text(&text.text))
    }

    fn race(&self, race: &Race, more: &Occurrences) -> (usize, Diagnostic) {
        let sides = RaceSide::in_issue_order(self.plans, race);
        let [first, second] = &sides;
        let code = RaceSide::code(race, &sides);
        let message = self.race_message(code, race, (first, second), "this access");
        let shown: Vec<&RaceSide<'_>> = sides.iter().filter(|it| it.is_in_program()).collect();
        let text = self.text_of(shown.first().map_or(race.rank, |it| it.plan.rank));
        let mut labels: Vec<(Span, String)> = Vec::new();
        let mut notes = Vec::new();
        for side in shown {
            let (rank, line) = (side.plan.rank, side.line());
            let label = match (race.between_runs, std::ptr::eq(side, first)) {
                (false, _) => side.label(),
                (true, true) => format!("{}, first run", side.label()),
                (true, false) => format!("{}, next run", side.label()),
            };
            if self.text_of(rank) != text {
                let file = &self.sources[self.text_of(rank)].name;
                notes.push(format!("{file}, line {line}: {label}"));
                continue;
            }
            let span = self.span(text, line);
            // A statement that races with itself in another iteration gets a single label.
            match labels.iter_mut().find(|it| it.0 == span) {
                Some(it) => it.1 = format!("{}; {label}", it.1),
                None => labels.push((span, label)),
            }
        }
        if let Some(it) = race.reused.filter(|_| !race.is_stream_ordered) {
            notes.push(self.reuse_note(race.rank, &it, race.between_runs));
        }
        // The message is about the access of the first run, so its label stays first.
        if !race.between_runs {
            labels.sort_by_key(|it| it.0.start);
        }
        let reason = RaceExplanation::of(race, first, second, self.indexes);
        let rank = if reason.is_in_second { second.plan.rank } else { first.plan.rank };
        let indexes = self.indexes.with_queues(race.p2p);
        let context = self.edit_context(rank).map(|it| EditContext { index: indexes.of(rank), ..it });
        let (help, fixes) = repair_help::help(&reason, context.as_ref());
        notes.extend(reason.why);
        let is_mapped = sides.iter().any(|it| it.reads_mapped_view(&self.plans[race.rank], race.buffer));
        let help = help.or(is_mapped.then(|| MAPPED_VIEW_HELP.to_owned()));
        notes.extend(is_mapped.then(|| MAPPED_VIEW.to_owned()));
        let wait = Self::wait_for_peers(first, second).filter(|_| self.text_of(first.plan.rank) == text);
        notes.extend(wait.map(|_| {
            format!(
                "a Wait for a communication of the CUDA backend waits until peers have accessed the memory of this rank. What this rank itself \
                 copies or reduces is work of {} (docs/checker.md)",
                first.stream()
            )
        }));
        notes.extend(more.note(&sides.each_ref().map(RaceSide::line)));
        notes.extend(race.p2p.note().map(str::to_owned));
        let mut labels = labels.into_iter();
        let (span, label) = labels.next().unwrap_or_else(|| (self.span(text, 0), String::new()));
        let mut it = Diagnostic::new(code, span, message, label);
        it.labels.extend(labels);
        it.labels.extend(wait.map(|wait| {
            let (plan, line) = (first.plan, first.plan.origins[wait.wait as usize].line);
            let on = &plan.streams[wait.stream as usize];
            (
                self.span(text, line),
                format!("this Wait, on {on}, does not order what this rank itself copies"),
            )
        }));
        it.notes = notes;
        // A fix is a change of the text that the positions refer to.
        it.fixes = if self.text_of(rank) == text { fixes } else { Vec::new() };
        (text, if let Some(help) = help { it.help(help) } else { it })
    }

    /// Returns a Wait between two accesses of a rank, the first one by the rank's own part of a communication of the CUDA backend, that does
    /// not order them.
    fn wait_for_peers(first: &RaceSide<'_>, second: &RaceSide<'_>) -> Option<WaitForPeers> {
        let is_own = second.plan.rank == first.plan.rank;
        let is_before = |it: &WaitForPeers| !second.is_in_program() || it.wait < second.origin;
        let all = first.plan.waits_for_peers.iter().copied().filter(|it| it.post == first.origin);
        all.filter(|_| is_own).find(is_before)
    }

    /// Returns the note that says who frees the storage and who gets it next.
    fn reuse_note(&self, rank: usize, it: &ReusedStorage, between_runs: bool) -> String {
        let plan = &self.plans[rank];
        if let (true, false, Some(later)) = (between_runs, it.by_next_run, it.later) {
            let [one, other] = [it.earlier, later].map(|it| &plan.buffers[it as usize].name);
            return format!(
                "with `--storage=pytorch`, `{one}` and `{other}` may share storage: one is freed before the other is allocated"
            );
        }
        let freed = it.freed_by.map_or("the end of the program".to_owned(), |origin| {
            let at = plan.origins[origin as usize];
            match iteration_text(&plan.enclosing_loops(at.iteration)).as_str() {
                "" => format!("line {}", at.line),
                iteration => format!("line {} ({iteration})", at.line),
            }
        });
        let next = it
            .later
            .map_or("the caller".to_owned(), |buffer| format!("`{}`", plan.buffers[buffer as usize].name));
        if it.in_capture {
            return format!(
                "in a capture, PyTorch frees the operands of a communication that nothing waits for where the program drops them, on {freed}, and \
                 {next} may get the storage"
            );
        }
        if it.by_next_call {
            return format!(
                "PyTorch frees the operands of a communication that has ended without a Wait where the program calls the next one, on \
                 {freed}, and {next} may get the storage"
            );
        }
        let run = if it.by_next_run { " of the next run, if it is issued and not replayed," } else { "" };
        // Within a run, the reason names the model.
        let model = if between_runs { "with `--storage=pytorch`, " } else { "" };
        format!("{model}{freed} frees the storage, and {next}{run} may get it")
    }

    /// Returns the code and the message of a finding for a list, which shows no lines of the text.
    pub(super) fn summary(&self, finding: &Finding) -> (Code, String) {
        let Finding::Race { race, .. } = finding else {
            let it = self.finding(finding).1;
            return (it.code, it.message);
        };
        let sides = RaceSide::in_issue_order(self.plans, race);
        let [first, second] = &sides;
        let code = RaceSide::code(race, &sides);
        let access = format!("the access on line {}", first.line());
        (code, self.race_message(code, race, (first, second), &access))
    }

    /// Returns the message of a race. `access` names the first access.
    fn race_message(
        &self,
        code: Code,
        race: &Race,
        (first, second): (&RaceSide<'_>, &RaceSide<'_>),
        access: &str,
    ) -> String {
        let name = &self.plans[race.rank].buffers[race.buffer as usize].name;
        let on = format!("`{name}` of rank {}", race.rank);
        match (code, first.party) {
            (Code::RaceWithCaller, Party::CallerBefore) => {
                let verb = if second.writes { "write" } else { "read" };
                let stream = if second.plan.rank == race.rank {
                    second.stream().to_string()
                } else {
                    format!("{} of rank {}", second.stream(), second.plan.rank)
                };
                format!(
                    "race with the caller on {on}: {stream} may {verb} it before the caller has written it"
                )
            }
            (Code::RaceWithCaller, _) => {
                format!("race with the caller on {on}: the program can return before this access ends")
            }
            (Code::RaceBetweenRuns, _) => {
                let verb = if second.writes { "writes" } else { "reads" };
                let later = race.reused.and_then(|it| it.later);
                let (storage, what) = match later.map(|it| &self.plans[race.rank].buffers[it as usize].name) {
                    Some(later) => ("the storage of ", format!("`{later}` there")),
                    None => ("", "the same elements".to_owned()),
                };
                format!(
                    "race on {storage}{on} between two runs of the program: {access} may still run when the next run {verb} {what}"
                )
            }
            (Code::StorageRace, _) if race.reused.is_some() && race.is_stream_ordered => {
                format!("race on the storage of {on}: it may be freed before {access} ends")
            }
            (Code::StorageRace, _) if race.reused.is_some() => {
                format!(
                    "race on the storage of {on}: it is freed, and may be used again before {access} ends"
                )
            }
            (Code::StorageRace, _) if race.is_stream_ordered => {
                format!("race on the storage of {on}: {} may use it before it is allocated", second.stream())
            }
            (Code::StorageRace, _) => {
                let (owner, user) = (first.stream(), second.stream());
                format!(
                    "race on the storage of {on}: {user} uses it while {owner} may still use what it held before"
                )
            }
            _ => {
                let verbs = if first.writes && second.writes { "two writes" } else { "a write and a read" };
                format!("race on {on}: nothing orders {verbs} of {}", format_elements(race.elements))
            }
        }
    }

    fn unwritten(&self, read: &UnwrittenRead, more: &Occurrences) -> (usize, Diagnostic) {
        let plan = &self.plans[read.inst_ref.rank];
        let inst = &plan.code[read.inst_ref.inst];
        let name = match read.output {
            Some(output) => &plan.outputs[output].name,
            None => &self.plans[read.rank].buffers[read.buffer as usize].name,
        };
        let (missing, all) = read.missing;
        let text = self.text_of(read.inst_ref.rank);
        let span = self.span(text, plan.origins[inst.origin as usize].line);
        let first = format_elements(read.elements);
        let some = format!("{missing} of the {all} elements of ");
        let it = if let InstKind::ReadOutputs = inst.kind {
            let what = if missing == all { String::new() } else { some };
            let message = format!("nothing writes {what}output `{name}` on rank {}", read.rank);
            let place = read.output.and_then(|it| self.output_span(read.inst_ref.rank, it));
            let place = place.unwrap_or_else(|| self.header_span(text));
            let label = format!("first: {first}");
            Diagnostic::new(Code::UnwrittenOutput, place, message, label)
                .help("write these elements, or allocate the output with zero_init=true")
        } else {
            let what = if missing == all { "all elements of ".to_owned() } else { some };
            let message =
                format!("{what}`{name}` of rank {} are read before anything writes them", read.rank);
            let label = format!("reads {first}");
            match read.reaches {
                None => Diagnostic::new(Code::UnwrittenRead, span, message, label).help(UNWRITTEN_HELP),
                Some((rank, output)) => {
                    let output = &self.plans[rank].outputs[output].name;
                    Diagnostic::new(Code::UnwrittenOutput, span, message, label)
                        .help(UNWRITTEN_HELP)
                        .note(format!("output `{output}` of rank {rank} is computed from these elements"))
                }
            }
        };
        let mut it = more.note(&[]).into_iter().fold(it, Diagnostic::note);
        let context = self.edit_context(read.rank);
        let written = missing_write(self.plans, self.indexes, read, context.as_ref().map(|it| it.text));
        if let Some(MissingWrite { rank, origin, label }) = written {
            let span = self.span(text, self.plans[rank].origins[origin as usize].line);
            let is_new = self.text_of(rank) == text && it.labels.iter().all(|known| known.0 != span);
            it.labels.extend(is_new.then_some((span, label)));
        }
        (text, it)
    }

    fn overwritten_view(
        &self,
        copy: &OverwrittenView,
        rank: usize,
        more: &Occurrences,
    ) -> (usize, Diagnostic) {
        let OverwrittenView { origin, is_copy, name, base } = copy;
        let text = self.text_of(rank);
        let span = self.span(text, self.plans[rank].origins[*origin as usize].line);
        let (message, label, before) = if *is_copy {
            (
                format!("from its second iteration on, a copy in a loop changes `{base}`"),
                format!(
                    "the first iteration makes `{name}` a view of `{base}`, later iterations copy into it"
                ),
                "the loop",
            )
        } else {
            (
                format!("a write to the copy `{name}` changes the input `{base}`"),
                format!("`{name}` has no storage of its own: its copy made it a view of `{base}`"),
                "its copy",
            )
        };
        let it = Diagnostic::new(Code::OverwrittenView, span, message, label)
            .help(format!("to keep the elements of `{base}`, allocate `{name}` before {before}"));
        let it = more.note(&[]).into_iter().fold(it, Diagnostic::note);
        (text, it)
    }
}

/// Returns the program of a text whose statements are those of a plan.
fn program_of(source: &Source, plan: &Plan) -> Option<Program> {
    source.programs().0.into_iter().find(|program| {
        let line = |stmt| (stmt, source.lines.line(program.stmt_span(stmt).start));
        let lines: FxHashMap<StmtId, u32> = program.stmts.ids().map(line).collect();
        plan.origins.iter().all(|it| it.stmt.is_none_or(|stmt| lines.get(&stmt) == Some(&it.line)))
    })
}

/// Formats a range: `element 3`, `elements 0 to 7`.
fn format_elements(it: ElementRange) -> String {
    match it.end - it.start {
        1 => format!("element {}", it.start),
        _ => format!("elements {} to {}", it.start, it.end - 1),
    }
}

impl Occurrences {
    pub(super) fn note(&self, shown: &[u32]) -> Option<String> {
        let others: Vec<u32> = self.lines.iter().copied().filter(|it| !shown.contains(it)).collect();
        let mut parts = format_occurrences(self.count, &self.ranks);
        let (ends, others): (Vec<u32>, Vec<u32>) = others.into_iter().partition(|it| *it == 0);
        parts.extend((!others.is_empty()).then(|| format!("also at {}", format_lines(&others))));
        parts.extend((!ends.is_empty()).then(|| "also at the end of the program".to_owned()));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Formats the number of occurrences and the ranks, each only if there is more than one.
pub(super) fn format_occurrences(count: usize, ranks: &BTreeSet<usize>) -> Vec<String> {
    let ranks = (ranks.len() > 1).then(|| format!("on ranks {}", format_list(ranks.iter())));
    let count = (count > 1).then(|| format!("{count} occurrences"));
    count.into_iter().chain(ranks).collect()
}

/// Formats line numbers: `line 3`, `lines 3 5`.
pub(super) fn format_lines(lines: &[u32]) -> String {
    format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, format_list(lines.iter()))
}

/// Formats at most `MAX_LISTED` items and the number of the remaining ones.
fn format_list<T: ToString>(all: impl ExactSizeIterator<Item = T>) -> String {
    let more = all.len().saturating_sub(MAX_LISTED);
    let numbers: Vec<String> = all.take(MAX_LISTED).map(|it| it.to_string()).collect();
    if more == 0 { numbers.join(" ") } else { format!("{} and {more} more", numbers.join(" ")) }
}
