//! Finds what can go wrong with the semaphores of transfers over peer memory, as nvFuser implements them.
//!
//! One side posts: it writes "in progress" to a word of both ranks. The other side waits for this value, copies, and
//! writes "ready" to both. The first side waits for it where the program waits. There is one word for each peer, buffer and
//! P2PCommunication (nvFuser, `csrc/multidevice/ipc_handle.cpp` and `cuda_p2p.cpp`). If the same transfer is posted again
//! before the first one has ended, both posts write one value, and one of them is lost: a rank waits forever, or copies
//! too early. hir's executors count instead (`SignalId`), so this is checked with `OrderingModel::Nccl` only.
//!
//! A stream that waits for a word blocks the hardware queue that it shares with other streams. If a GPU has fewer queues
//! than such streams, a stream may wait for work behind it in its own queue, which other ranks wait for. Source: CUDA C++ Programming Guide,
//! Environment variables, `CUDA_DEVICE_MAX_CONNECTIONS`.

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::execution_fault::{ExecutionFault, ExecutionFaultKind, HARDWARE_QUEUES, PostedAgain};
use hir_plan::{
    InstKind, Plan, PlanStream, SignalId, SignalKind, ViewKey, World,
    sync::happens_before::{Clock, Occurrence},
};

/// A transfer: the rank that posts, the rank that copies, whether the sender copies, and its index between the two.
type Transfer = (usize, usize, bool, u32);

/// Follows the semaphores that several transfers use.
#[derive(Clone)]
pub(super) struct SemaphoreWatch<'p> {
    plans: &'p [Plan],
    /// By transfer: its semaphore, if others use this, too.
    words: FxHashMap<Transfer, usize>,
    /// By semaphore: the last transfer that was posted, and the last for which the copying side has waited, each with its instruction.
    posted: Vec<Option<(Transfer, usize)>>,
    awaited: Vec<Option<(Transfer, usize)>>,
    /// By transfer: the actor and the number of the instruction that ends it.
    ended: FxHashMap<Transfer, (u32, u32)>,
    /// By actor: the clock of its last instruction.
    clocks: FxHashMap<u32, Clock>,
    /// The posts that come too early.
    pub found: Vec<PostedAgain>,
}

/// Returns the semaphores that several transfers use: for each signal of such a transfer, which says that it is posted or has ended, the number
/// of its semaphore, and whether it says that the transfer is posted.
pub fn semaphores(plans: &[Plan]) -> FxHashMap<SignalId, (usize, bool)> {
    let words = SemaphoreWatch::new(plans).words;
    let signals = plans.iter().flat_map(|it| &it.code).filter_map(|it| match it.kind {
        InstKind::Signal { signal } => Some(signal),
        _ => None,
    });
    let word = |signal: SignalId| {
        let (transfer, is_post) = transfer_of(signal)?;
        Some((signal, (*words.get(&transfer)?, is_post)))
    };
    signals.filter_map(word).collect()
}

/// Returns whether a signal says that a transfer over peer memory is posted.
pub(super) fn is_post(it: SignalId) -> bool {
    transfer_of(it).is_some_and(|it| it.1)
}

impl<'p> SemaphoreWatch<'p> {
    /// Finds the semaphores.
    pub fn new(plans: &'p [Plan]) -> Self {
        let mut by_key: FxHashMap<_, Vec<Transfer>> = FxHashMap::default();
        let views = copied_views(plans);
        // By transfer without what it copies: what the last one copies. A post that the other side does not meet has the semaphore of the last.
        let mut last: FxHashMap<_, [ViewKey; 2]> = FxHashMap::default();
        for plan in plans {
            for inst in &plan.code {
                let InstKind::Signal { signal } = inst.kind else { continue };
                let Some((transfer, true)) = transfer_of(signal) else { continue };
                // Statements with one number are one P2PCommunication.
                let stmt: Option<StmtId> = plan.origins[inst.origin as usize].stmt;
                let number = stmt.and_then(|it| plan.comm_names.number(it)).ok_or(stmt);
                let key = (transfer.0, transfer.1, transfer.2, number);
                let views = views.get(&transfer).or_else(|| last.get(&key)).cloned();
                last.extend(views.clone().map(|it| (key, it)));
                by_key.entry((key, views)).or_default().push(transfer);
            }
        }
        let mut words = FxHashMap::default();
        let mut count = 0;
        for transfers in by_key.into_values().filter(|it| it.len() > 1) {
            words.extend(transfers.into_iter().map(|it| (it, count)));
            count += 1;
        }
        Self {
            plans,
            words,
            posted: vec![None; count],
            awaited: vec![None; count],
            ended: FxHashMap::default(),
            clocks: FxHashMap::default(),
            found: Vec::new(),
        }
    }

    /// Returns true if no two transfers use one semaphore, so that `visit` finds nothing.
    pub fn is_idle(&self) -> bool {
        self.words.is_empty()
    }

    /// Visits an instruction after all that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        if self.is_idle() {
            return;
        }
        let kind = &self.plans[it.rank].code[it.inst].kind;
        let (InstKind::Signal { signal } | InstKind::WaitSignal { signal }) = kind else {
            self.clocks.insert(it.actor, it.clock.clone());
            return;
        };
        let waits = matches!(kind, InstKind::WaitSignal { .. });
        if let Some((transfer, is_post)) = transfer_of(*signal)
            && let Some(word) = self.words.get(&transfer).copied()
        {
            let last = match (is_post, waits) {
                (true, false) => self.posted[word].replace((transfer, it.inst)),
                (true, true) => self.awaited[word].replace((transfer, it.inst)),
                (false, false) => {
                    self.ended.insert(transfer, (it.actor, it.number));
                    None
                }
                (false, true) => None,
            };
            // What the copying side knows before this wait: the post itself orders it after the end.
            let before = if waits { self.clocks.get(&it.actor) } else { Some(&it.clock) };
            let follows = |(actor, number): (u32, u32)| {
                actor == it.actor || before.is_some_and(|clock| clock.ended(actor) >= number)
            };
            if let Some((last, earlier)) = last
                && !self.ended.get(&last).is_some_and(|it| follows(*it))
            {
                self.found.push(PostedAgain { rank: it.rank, earlier, inst: it.inst });
            }
        }
        self.clocks.insert(it.actor, it.clock.clone());
    }
}

/// Returns the transfer of a signal, and whether the signal says that it is posted; otherwise it has ended.
fn transfer_of(it: SignalId) -> Option<(Transfer, bool)> {
    Some(match it.kind {
        SignalKind::Ready => ((it.from, it.to, false, it.index), true),
        SignalKind::PutReady => ((it.from, it.to, true, it.index), true),
        SignalKind::Done => ((it.to, it.from, false, it.index), false),
        SignalKind::PutDone => ((it.to, it.from, true, it.index), false),
        SignalKind::TeamReady(_)
        | SignalKind::TeamDone(_)
        | SignalKind::TeamData(_)
        | SignalKind::TeamResult(_) => return None,
    })
}

/// Returns what each transfer copies: the copy stands between the two signals of its rank.
fn copied_views(plans: &[Plan]) -> FxHashMap<Transfer, [ViewKey; 2]> {
    let mut found = FxHashMap::default();
    for plan in plans {
        for pair in plan.code.windows(2) {
            if let (InstKind::WaitSignal { signal }, InstKind::Copy { from, to }) =
                (&pair[0].kind, &pair[1].kind)
                && let Some((transfer, true)) = transfer_of(*signal)
            {
                found.insert(transfer, [from.view.key(), to.view.key()]);
            }
        }
    }
    found
}

/// Returns the fault of each rank of which more streams wait for other ranks than there are hardware queues, if the ranks may then wait for
/// each other. A stream that shares a queue follows at most what is issued before it. So nothing can go wrong if these ranks execute all of
/// their streams in issue order and end.
pub(super) fn too_few_queues(world: &World) -> Vec<ExecutionFault> {
    let faults: Vec<ExecutionFault> = world.iter().filter_map(many_waiting_streams).collect();
    if faults.is_empty() {
        return faults;
    }
    let mut plans = world.plans().to_vec();
    for fault in &faults {
        let plan = &mut plans[fault.rank];
        let is_in_program: Vec<bool> = plan.streams.iter().map(PlanStream::is_in_program).collect();
        for inst in plan.code.iter_mut().filter(|it| is_in_program.get(it.stream as usize) == Some(&true)) {
            inst.stream = 0;
        }
    }
    if World::new(plans).deadlock().is_some() { faults } else { Vec::new() }
}

/// Returns the fault of a rank of which more streams wait for other ranks than there are hardware queues.
fn many_waiting_streams(plan: &Plan) -> Option<ExecutionFault> {
    let mut streams = FxHashSet::default();
    let mut last = None;
    for inst in &plan.code {
        if let InstKind::WaitSignal { signal } = inst.kind
            && transfer_of(signal).is_some()
            && streams.insert(inst.stream)
            && streams.len() == HARDWARE_QUEUES + 1
        {
            last = Some(inst.origin);
        }
    }
    let kind = ExecutionFaultKind::TooFewQueues(streams.len());
    last.map(|origin| ExecutionFault { rank: plan.rank, origin, kind, again: None })
}
