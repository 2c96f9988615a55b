//! Inserts the instructions of transports into a plan: for the CUDA backend at the post, for other backends
//! on the communicator's queue.
//!
//! If a communicator has collectives that a transport executes, its queue becomes a stream of the plan. A
//! post makes the queue wait for the posting stream, and `Wait` makes a stream wait for an event that the
//! queue records. Collectives that the library still executes are posted from the queue's stream, so that all
//! collectives of the communicator run in posting order. If one stream posts all of them and waits for each
//! immediately, that stream serves as the queue, and no events are needed.

use rustc_hash::FxHashMap;

use super::LoweredComm;
use crate::plan::{
    Backend, Communicator, CommunicatorNo, EventNo, Inst, InstKind, KernelKind, KernelRange, Plan, StreamNo,
    WorkNo, queue_streams,
};

/// The replacement of a `Wait`.
enum LoweredWait {
    /// A work of the library.
    Work(WorkNo),
    /// The instructions of a transport at the wait.
    Steps(WaitSteps),
    /// An event that the queue's stream records.
    Event(EventNo),
}

/// The instructions of a transport where its collective is waited for.
struct WaitSteps {
    /// An event recorded after the posted instructions, if another stream waits.
    posted: Option<EventNo>,
    steps: Vec<InstKind>,
    /// Whether the instructions move data, and do not only wait for signals.
    has_copies: bool,
    origin: u32,
}

/// The queue of a communicator.
struct CommQueue {
    stream: StreamNo,
    /// Whether a stream of the program serves as the queue.
    is_program_stream: bool,
    /// The library's last work, if no instructions of a transport follow it on the queue.
    last_library_work: Option<WorkNo>,
}

/// Rewrites a plan. `lowered` has the communications with a transport, by instruction.
pub(super) fn rewrite_plan(plan: &mut Plan, mut lowered: FxHashMap<usize, LoweredComm>) {
    let mut queues = queues(plan, &lowered);
    let code = std::mem::take(&mut plan.code);
    let mut waits: Vec<Option<StreamNo>> = vec![None; plan.work_count];
    for inst in &code {
        if let InstKind::Wait { work } = inst.kind {
            waits[work as usize].get_or_insert(inst.stream);
        }
    }
    let mut works: Vec<Option<LoweredWait>> = (0..plan.work_count).map(|_| None).collect();
    plan.work_count = 0;
    let mut out = PlanRewriter { plan, code: Vec::with_capacity(code.len()) };
    for (at, inst) in code.into_iter().enumerate() {
        let Inst { kind, stream, origin } = inst;
        let Some((communicator, work)) = kind.communication().map(|it| (it.communicator(), it.work())) else {
            match kind {
                InstKind::Wait { work } => match works.get_mut(work as usize).and_then(Option::take) {
                    Some(LoweredWait::Work(work)) => out.emit(InstKind::Wait { work }, stream, origin),
                    Some(LoweredWait::Event(event)) => {
                        out.emit(InstKind::WaitEvent { event }, stream, origin)
                    }
                    Some(LoweredWait::Steps(rest)) => out.emit_wait_steps(rest, stream, origin),
                    None => (),
                },
                InstKind::ReadOutputs => {
                    out.emit_never_waited(&mut works);
                    out.emit(InstKind::ReadOutputs, stream, origin);
                }
                kind => out.emit(kind, stream, origin),
            }
            continue;
        };
        let queue = queues.get_mut(&communicator);
        let on = queue.as_ref().map_or(stream, |it| it.stream);
        if on != stream {
            let event = out.event();
            out.emit(InstKind::RecordEvent { event }, stream, origin);
            out.emit(InstKind::WaitEvent { event }, on, origin);
        }
        let waited = match (lowered.remove(&at), queue) {
            (None, queue) => {
                let renumbered = out.plan.work_count as WorkNo;
                out.plan.work_count += 1;
                if let Some(queue) = queue {
                    queue.last_library_work = Some(renumbered);
                }
                out.emit(with_work(kind, renumbered), on, origin);
                LoweredWait::Work(renumbered)
            }
            (Some(steps), None) => {
                let LoweredComm {
                    prologue: before,
                    at_post: posted,
                    at_wait: mut waited,
                    epilogue: after,
                    ..
                } = steps;
                before.into_iter().for_each(|it| out.emit(it, on, origin));
                out.emit_group(posted, steps.kernel, on, origin);
                let mut has_copies = false;
                match steps.is_complete_when_posted {
                    true => after.into_iter().for_each(|it| out.emit(it, on, origin)),
                    false => {
                        has_copies = !after.is_empty();
                        waited.extend(after);
                    }
                }
                let is_joined = match waits[work as usize] {
                    Some(waits) => waits != on,
                    None => has_copies,
                };
                let posted = is_joined.then(|| {
                    let event = out.event();
                    out.emit(InstKind::RecordEvent { event }, on, origin);
                    event
                });
                LoweredWait::Steps(WaitSteps { posted, steps: waited, has_copies, origin })
            }
            (
                Some(LoweredComm {
                    prologue: before,
                    at_post: posted,
                    at_wait: waited,
                    epilogue: after,
                    kernel,
                    ..
                }),
                Some(queue),
            ) => {
                if let Some(work) = queue.last_library_work.take().filter(|_| !queue.is_program_stream) {
                    out.emit(InstKind::Wait { work }, on, origin);
                }
                before.into_iter().for_each(|it| out.emit(it, on, origin));
                out.emit_group(posted.into_iter().chain(waited).collect(), kernel, on, origin);
                after.into_iter().for_each(|it| out.emit(it, on, origin));
                match queue.is_program_stream {
                    true => LoweredWait::Steps(WaitSteps {
                        posted: None,
                        steps: Vec::new(),
                        has_copies: false,
                        origin,
                    }),
                    false => {
                        let event = out.event();
                        out.emit(InstKind::RecordEvent { event }, on, origin);
                        LoweredWait::Event(event)
                    }
                }
            }
        };
        works[work as usize] = Some(waited);
    }
    plan.code = out.code;
    drop_unused_communicators(plan);
}

/// Returns the queues of the communicators with lowered collectives. The CUDA backend has no queues.
fn queues(plan: &mut Plan, lowered: &FxHashMap<usize, LoweredComm>) -> FxHashMap<CommunicatorNo, CommQueue> {
    let mut queues = FxHashMap::default();
    let queue_streams = queue_streams(plan);
    let mut posts: Vec<usize> = lowered.keys().copied().collect();
    posts.sort_unstable();
    for at in posts {
        let Some(it) = plan.code[at].kind.communication() else { continue };
        let number = it.communicator();
        let Communicator { backend, team } = &plan.communicators[number as usize];
        if *backend == Backend::Cuda || queues.contains_key(&number) {
            continue;
        }
        let program_stream = queue_streams[number as usize];
        let stream = program_stream.unwrap_or(plan.streams.len() as StreamNo);
        if program_stream.is_none() {
            let team = team.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            plan.streams.push(format!("{} queue of ({team})", backend.name()));
        }
        queues.insert(
            number,
            CommQueue { stream, is_program_stream: program_stream.is_some(), last_library_work: None },
        );
    }
    queues
}

struct PlanRewriter<'a> {
    plan: &'a mut Plan,
    code: Vec<Inst>,
}

impl PlanRewriter<'_> {
    fn emit(&mut self, kind: InstKind, stream: StreamNo, origin: u32) {
        self.code.push(Inst { kind, stream, origin });
    }

    /// Emits instructions, and marks them as one kernel if they may run as one.
    fn emit_group(
        &mut self,
        steps: Vec<InstKind>,
        kernel: Option<KernelKind>,
        stream: StreamNo,
        origin: u32,
    ) {
        let first = self.code.len();
        steps.into_iter().for_each(|it| self.emit(it, stream, origin));
        if let Some(kind) = kernel.filter(|_| first < self.code.len()) {
            self.plan.kernels.push(KernelRange { range: first..self.code.len(), kind });
        }
    }

    /// Emits the end of a collective on the stream that waits for it.
    fn emit_wait_steps(&mut self, rest: WaitSteps, stream: StreamNo, origin: u32) {
        let event = rest.posted.map(|event| InstKind::WaitEvent { event });
        event.into_iter().chain(rest.steps).for_each(|it| self.emit(it, stream, origin));
    }

    /// Emits the end of collectives that nothing waits for, each on its own stream: their data arrives at
    /// some time all the same.
    fn emit_never_waited(&mut self, works: &mut [Option<LoweredWait>]) {
        for work in works {
            if matches!(work, Some(LoweredWait::Steps(it)) if it.has_copies)
                && let Some(LoweredWait::Steps(rest)) = work.take()
            {
                let (stream, origin) = (self.plan.streams.len() as StreamNo, rest.origin);
                self.plan.streams.push("a stream for which nothing waits".to_owned());
                self.emit_wait_steps(rest, stream, origin);
            }
        }
    }

    fn event(&mut self) -> EventNo {
        self.plan.event_count += 1;
        self.plan.event_count as EventNo - 1
    }
}

/// Returns a communication with another work number.
fn with_work(mut kind: InstKind, renumbered: WorkNo) -> InstKind {
    match &mut kind {
        InstKind::Collective(it) => it.work = renumbered,
        InstKind::Transfer(it) => it.work = renumbered,
        _ => (),
    }
    kind
}

/// Removes communicators to which no instruction posts, and renumbers the others.
fn drop_unused_communicators(plan: &mut Plan) {
    let mut used = vec![false; plan.communicators.len()];
    plan.code
        .iter()
        .filter_map(|it| it.kind.communication())
        .for_each(|it| used[it.communicator() as usize] = true);
    let mut number = 0;
    let numbers: Vec<CommunicatorNo> = used
        .iter()
        .map(|used| {
            number += CommunicatorNo::from(*used);
            number.saturating_sub(1)
        })
        .collect();
    let mut used = used.into_iter();
    plan.communicators.retain(|_| used.next().unwrap_or(false));
    for inst in &mut plan.code {
        match &mut inst.kind {
            InstKind::Collective(it) => it.communicator = numbers[it.communicator as usize],
            InstKind::Transfer(it) => it.communicator = numbers[it.communicator as usize],
            _ => (),
        }
    }
}
