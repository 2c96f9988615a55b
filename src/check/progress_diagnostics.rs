//! Formats findings that are about the order of statements, and not about memory: deadlocks, the order of communicators,
//! captures.

use grammar::{Code, CommunicationType, Diagnostic, Fix, Span};

use super::{
    deadlock_edits,
    diagnostics::{DiagnosticBuilder, MAX_LISTED},
    execution_fault::{ExecutionFault, ExecutionFaultKind, HARDWARE_QUEUES, MAX_HARDWARE_QUEUES},
    finding::Occurrences,
    order_edits, repair_help,
};
use hir_plan::{
    InstKind, P2pOp,
    sync::{Cause, CommOrderCycle, CommOrderEdge, Deadlock, HeadToHead, InstRef, P2pQueues, SwappedCalls},
};

/// Who starts kernels of several communicators in issue order.
const IN_ISSUE_ORDER: &str = "hir-run and NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26) start them in issue order: check with \
                              `--nccl=launch-order-implicit`";

/// Who starts kernels of several runs in issue order.
pub(super) const RUNS_IN_ISSUE_ORDER: &str = "NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26) starts the kernels of all runs in issue order: check with \
                                              `--nccl=launch-order-implicit`";

/// The help for communications of several runs that no edit of one text orders.
pub(super) const FOLLOW_ACROSS_RUNS: &str = "on all ranks, let the stream of the communication of the later run wait for that of the earlier run (Wait, \
                                             Synchronize), or separate the runs by a barrier of all ranks";

impl DiagnosticBuilder<'_> {
    /// Returns the index of the source text and the diagnostic of communicators in contradictory orders.
    pub fn communicator_order(&self, crossing: &CommOrderCycle) -> (usize, Diagnostic) {
        let origin = |at: InstRef| self.plans[at.rank].code[at.inst].origin;
        let run_count = crossing.run_count();
        let name = |at: InstRef, run: u32| {
            let name = self.plans[at.rank].describe_origin(origin(at));
            if run_count > 1 { format!("{name} of run {}", run + 1) } else { name }
        };
        let verb = |it: &CommOrderEdge| if it.is_unordered { "may start" } else { "starts" };
        let orders: Vec<String> = crossing
            .edges
            .iter()
            .map(|it| {
                let (rank, verb, [first, second]) = (it.first.rank, verb(it), it.runs);
                format!("rank {rank} {verb} {} before {}", name(it.first, first), name(it.second, second))
            })
            .collect();
        let text = self.text_of(crossing.edges.first().map_or(0, |it| it.first.rank));
        let mut labels: Vec<(Span, String)> = Vec::new();
        for it in crossing.edges.iter().filter(|it| self.text_of(it.first.rank) == text) {
            let line = self.plans[it.first.rank].origins[origin(it.first) as usize].line;
            let [first, second] = it.runs;
            let this = if run_count > 1 { format!("this of run {}", first + 1) } else { "this".to_owned() };
            let label =
                format!("rank {} {} {this} before {}", it.first.rank, verb(it), name(it.second, second));
            let span = self.span(text, line);
            match labels.iter_mut().find(|it| it.0 == span) {
                Some(it) => it.1 = format!("{}; {label}", it.1),
                None => labels.push((span, label)),
            }
        }
        labels.truncate(MAX_LISTED);
        let mut labels = labels.into_iter();
        let (span, label) = labels.next().unwrap_or_else(|| (self.span(text, 0), String::new()));
        let is_unordered = crossing.edges.iter().any(|it| it.is_unordered);
        let message = if crossing.shares_pads {
            "two collectives of one team over peer memory may run at the same time: nothing orders them, and they share signal pads"
        } else if run_count > 1 {
            "ranks may use communicators of consecutive runs in contradictory orders: nothing orders them"
        } else if is_unordered {
            "ranks may use communicators in contradictory orders: nothing orders them"
        } else {
            "ranks use communicators in contradictory orders"
        };
        let why = if crossing.shares_pads {
            "PyTorch's kernels have one signal pad for each group and channel (`torch.distributed._symmetric_memory`): a kernel may take the signal for \
             the other one, and then hang or read too early"
        } else {
            "a GPU may be unable to run the kernels of two communicators at the same time: each rank then waits in one kernel for the other rank"
        };
        let mut it =
            Diagnostic::new(Code::CommunicatorOrder, span, message, label).note(orders.join("\n")).note(why);
        let is_send_recv = |at: InstRef| match &self.plans[at.rank].code[at.inst].kind {
            InstKind::Collective(it) => it.kind.of == CommunicationType::SendRecv,
            _ => false,
        };
        let of_pairs = crossing.p2p == P2pQueues::Pair;
        // A group runs on the communicator of all ranks, and a SendRecv is in none.
        let can_be_grouped =
            of_pairs && !crossing.edges.iter().any(|it| is_send_recv(it.first) || is_send_recv(it.second));
        let edit = self.kernels_in_issue_order(crossing);
        it = if let Some((edit, fixes)) = edit {
            it.fixes = fixes;
            it = it.help(edit);
            if can_be_grouped {
                it.note("sends and receives between StartCoalescing and EndCoalescing are one kernel")
            } else if of_pairs || crossing.shares_pads {
                it
            } else if run_count > 1 {
                it.note(RUNS_IN_ISSUE_ORDER)
            } else {
                it.note(format!("the pass `order-communicators` moves Waits up, too. {IN_ISSUE_ORDER}"))
            }
        } else if can_be_grouped {
            it.help("put the sends and receives between StartCoalescing and EndCoalescing, or let the stream of the later one wait for the earlier one (Wait, Synchronize), on all ranks")
        } else if run_count > 1 {
            it.help(FOLLOW_ACROSS_RUNS).note(RUNS_IN_ISSUE_ORDER)
        } else if of_pairs {
            it.help("let the stream of the later communication wait for the earlier one (Wait, Synchronize), on all ranks")
        } else if crossing.shares_pads {
            it.help("on all ranks, let the stream of the later collective wait for the earlier one (Wait, Synchronize), or use a group of its own")
        } else if is_unordered {
            it.help(format!("on all ranks, let the stream of the later communication wait for the earlier one (Wait, Synchronize; the pass `order-communicators` moves Waits up), or use one team. {IN_ISSUE_ORDER}"))
        } else {
            it.help("post these communications in the same order on all ranks, or with one team")
        };
        it.labels.extend(labels);
        it = crossing.p2p.note().into_iter().fold(it, Diagnostic::note);
        (text, it)
    }

    /// Returns the edit by which a rank starts two kernels of a cycle in the order in which it issues them, if all ranks execute one text.
    fn kernels_in_issue_order(&self, crossing: &CommOrderCycle) -> Option<(String, Vec<Fix>)> {
        let is_shared =
            |it: &CommOrderEdge| self.text_of(it.first.rank) == self.text_of(crossing.edges[0].first.rank);
        crossing.edges.iter().filter(|_| crossing.edges.iter().all(is_shared)).find_map(|it| {
            let edit = order_edits::edit_of_kernels(it, self.indexes.of(it.first.rank))?;
            Some(repair_help::help_of_edit(&edit, &self.edit_context(it.first.rank)?))
        })
    }

    /// Returns the index of the source text and the diagnostic of a fault of how an executor runs a statement.
    pub fn execution_fault(&self, fault: &ExecutionFault, more: &Occurrences) -> (usize, Diagnostic) {
        let (plan, text) = (&self.plans[fault.rank], self.text_of(fault.rank));
        let (message, help) = match fault.kind {
            ExecutionFaultKind::NotRecorded(stream) => (
                format!("a CUDA graph does not contain the work of {}", plan.streams[stream as usize]),
                "let the stream wait for the stream that is current at entry before it has work".to_owned(),
            ),
            ExecutionFaultKind::Isolation => (
                "a capture into a CUDA graph ends here with an error".to_owned(),
                "let that stream wait for the stream that is current at entry before its first work, or remove this".to_owned(),
            ),
            ExecutionFaultKind::HostWait => (
                "a capture into a CUDA graph ends here with an error".to_owned(),
                "capture the parts before and behind it into graphs of their own, or remove it".to_owned(),
            ),
            ExecutionFaultKind::SymmetricMemory { .. } => (
                "a capture into a CUDA graph ends here with an error: the host would wait for all streams"
                    .to_owned(),
                "allocate it before the capture and free it behind it: let the tensor be an input of the program".to_owned(),
            ),
            ExecutionFaultKind::NotFreed => (
                "a CUDA graph of this program cannot be launched twice: it allocates memory that it does not free".to_owned(),
                "let the tensor be an input of the program, or instantiate the graph with `cudaGraphInstantiateFlagAutoFreeOnLaunch`".to_owned(),
            ),
            ExecutionFaultKind::PostedAgain { between_runs } => (
                format!(
                    "rank {} uses the semaphore of a transfer again{}, before the first one has ended",
                    fault.rank,
                    if between_runs { " in the next run" } else { "" }
                ),
                format!(
                    "the transfer has to follow the Wait for the first one{}: nvFuser has one semaphore for each peer, buffer and P2PCommunication. \
                     hir-run counts transfers instead (`--check-model=hir`)",
                    if between_runs {
                        ", also at the end of a run"
                    } else {
                        ", on the rank that posts, and on the stream of the other rank"
                    }
                ),
            ),
            ExecutionFaultKind::TooFewQueues(streams) => (
                format!(
                    "{streams} streams of rank {} wait for other ranks: if two share a hardware queue, the ranks may wait for each other forever",
                    fault.rank
                ),
                match streams {
                    ..=MAX_HARDWARE_QUEUES => format!(
                        "set `CUDA_DEVICE_MAX_CONNECTIONS={streams}`: the default is {HARDWARE_QUEUES} hardware queues, and a stream that \
                         waits blocks the others in its queue. hir-run sets {MAX_HARDWARE_QUEUES}, the maximum"
                    ),
                    _ => format!(
                        "let at most {MAX_HARDWARE_QUEUES} streams wait for other ranks, with \
                         `CUDA_DEVICE_MAX_CONNECTIONS={MAX_HARDWARE_QUEUES}`: a GPU has no more hardware queues, and a stream that waits \
                         blocks the others in its queue"
                    ),
                },
            ),
            ExecutionFaultKind::Swapped(it) => {
                let name = |at: InstRef| {
                    self.plans[at.rank].describe_origin(self.plans[at.rank].code[at.inst].origin)
                };
                let order = |side: usize| {
                    let (first, later) = (it.first[side], it.later[side]);
                    format!("rank {} calls {} before {}", first.rank, name(first), name(later))
                };
                (
                    format!("the calls of a team are swapped: {}, and {}", order(0), order(1)),
                    "make these calls in the same order on all ranks: calls of a team match in order, so each of them gets the data of the other one"
                        .to_owned(),
                )
            }
            ExecutionFaultKind::Unjoined => (
                "a capture into a CUDA graph ends with an error: a stream is not joined".to_owned(),
                "let the stream that is current at entry wait for it at the end (Synchronize, Wait)".to_owned(),
            ),
        };
        let span = self.span(text, plan.origins[fault.origin as usize].line);
        let mut it = Diagnostic::new(fault.kind.code(), span, message, fault.kind.label());
        let context = self.edit_context(fault.rank);
        let edit = order_edits::edit_of_semaphore(fault, self.indexes.of(fault.rank)).zip(context.as_ref());
        it = match edit
            .map(|(edit, context)| repair_help::help_of_edit(&context.text.in_order(edit), context))
        {
            Some((edit, fixes)) => {
                it.fixes = fixes;
                it.help(edit).note(help)
            }
            None => it.help(help),
        };
        if let ExecutionFaultKind::Swapped(calls) = &fault.kind {
            it.fixes = self.swap(calls);
        }
        (text, more.note(&[]).into_iter().fold(it, Diagnostic::note))
    }

    /// Returns the index of the source text and the diagnostic of a deadlock.
    pub fn deadlock(&self, deadlock: &Deadlock) -> (usize, Diagnostic) {
        let (rank, line) = deadlock.line(self.plans).unwrap_or((0, 0));
        let text = self.text_of(rank);
        let span = self.span(text, line);
        let mut it = deadlock.diagnostic(Code::CheckedDeadlock, span, self.plans, deadlock.message());
        if let [skip] = &deadlock.skips[..]
            && let Some(context) = skip.ranks.first().and_then(|rank| self.edit_context(*rank))
        {
            let edits = deadlock_edits::move_before_branch(context.text, skip.stmt);
            it.fixes = edits.and_then(|it| context.text.fixes(&it)).unwrap_or_default();
        }
        it.fixes.extend(self.turn(deadlock).or_else(|| self.group(deadlock)).into_iter().flatten());
        (text, it)
    }

    /// Returns the changes of the text by which the second of two ranks that both send first, or receive first, does the other one first. The
    /// two use different memory.
    fn turn(&self, deadlock: &Deadlock) -> Option<Vec<Fix>> {
        let Cause::Cycle { steps, head_to_head: Some(HeadToHead::Sends | HeadToHead::Receives), .. } =
            &deadlock.cause
        else {
            return None;
        };
        let [(other, one), (rank, two)] = &steps[..] else { return None };
        let wait = deadlock.waits.iter().find(|it| it.inst_ref.rank == *rank && it.place == *two)?;
        let plan = &deadlock.plans.as_deref().unwrap_or(self.plans)[*rank];
        // The sides in no group, by instruction.
        let sides: Vec<(usize, &P2pOp)> = (plan.code.iter().enumerate())
            .filter_map(|(at, it)| match &it.kind {
                InstKind::P2pGroup(it) if !it.is_coalesced => Some((at, it.ops.first()?)),
                _ => None,
            })
            .collect();
        let stmt = |it: &P2pOp| plan.origins[it.origin as usize].stmt;
        let own = sides.iter().find(|it| it.0 == wait.inst_ref.inst && one != two)?.1;
        let is_partner = |it: &P2pOp| {
            it.peer == *other && it.direction != own.direction && it.view.buffer != own.view.buffer
        };
        let is_next = |later| sides.iter().any(|it| stmt(it.1) == Some(later) && is_partner(it.1));
        let context = self.edit_context(*rank)?;
        context.text.fixes(&deadlock_edits::turn(context.text, stmt(own)?, is_next)?)
    }

    /// Returns the changes of the text by which what all ranks of a cycle send first, or receive first, is a group with what follows.
    fn group(&self, deadlock: &Deadlock) -> Option<Vec<Fix>> {
        let Cause::Cycle { steps, head_to_head: Some(HeadToHead::Sends | HeadToHead::Receives), .. } =
            &deadlock.cause
        else {
            return None;
        };
        let plans = deadlock.plans.as_deref().unwrap_or(self.plans);
        let stmt = |(rank, place): &(usize, String)| {
            let wait = deadlock.waits.iter().find(|it| it.inst_ref.rank == *rank && it.place == *place)?;
            match &plans[*rank].code[wait.inst_ref.inst].kind {
                InstKind::P2pGroup(it) if !it.is_coalesced => {
                    plans[*rank].origins[it.ops.first()?.origin as usize].stmt
                }
                _ => None,
            }
        };
        let (rank, _) = steps.first()?;
        let first = stmt(steps.first()?)?;
        let is_shared =
            steps.iter().all(|it| stmt(it) == Some(first) && self.text_of(it.0) == self.text_of(*rank));
        let context = self.edit_context(*rank).filter(|_| is_shared)?;
        context.text.fixes(&deadlock_edits::group(context.text, first)?)
    }

    /// Returns the changes of the text by which the second rank of swapped calls makes them in the order of the first one.
    fn swap(&self, calls: &SwappedCalls) -> Vec<Fix> {
        let stmt = |at: InstRef| {
            let plan = &self.plans[at.rank];
            plan.origins[plan.code[at.inst].origin as usize].stmt
        };
        let second = stmt(calls.first[1]).zip(stmt(calls.later[1]));
        let context = self.edit_context(calls.first[1].rank);
        let edits = second.zip(context.as_ref()).and_then(|((first, later), context)| {
            let is_own = [calls.first[0], calls.later[0]]
                .map(stmt)
                .iter()
                .all(|it| ![Some(first), Some(later)].contains(it));
            let edits = deadlock_edits::swap(context.text, [first, later]).filter(|_| is_own)?;
            context.text.fixes(&edits)
        });
        edits.unwrap_or_default()
    }
}
