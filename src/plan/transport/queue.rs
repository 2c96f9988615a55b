//! Inserts the instructions of transports into a plan: for the CUDA backend at the post, for other backends
//! on the communicator's queue.
//!
//! If a communicator has collectives that a transport executes, its queue becomes a stream of the plan. A
//! post makes the queue wait for the posting stream, and `Wait` makes a stream wait for an event that the
//! queue records. Collectives that the library still executes are posted from the queue's stream, so that all
//! collectives of the communicator run in posting order. If one stream posts all of them and waits for each
//! immediately, that stream serves as the queue, and no events are needed.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{LoweredComm, Steps, staging::StagedViews};
use crate::{
    Backend, BufferNo, CommunicatorNo, EventNo, Inst, InstKind, PeerCollective, Plan, PlanStream, StreamNo,
    WaitForPeers, WorkNo, queue_streams,
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
    /// An event recorded after the posted instructions, if another stream copies a staged output.
    completion_event: Option<EventNo>,
    steps: Vec<InstKind>,
    /// Whether the instructions move data, and do not only wait for signals.
    has_copies: bool,
    origin: u32,
    /// The stream that executes the posted instructions.
    post_stream: StreamNo,
}

/// The queue of a communicator.
struct CommQueue {
    stream: StreamNo,
    /// Whether a stream of the program serves as the queue.
    is_program_stream: bool,
    /// The library's last work, if no instructions of a transport follow it on the queue. Behind it those that gather views: executors that map
    /// the shards have none.
    last_library_works: Vec<WorkNo>,
}

/// Rewrites a plan. `lowered` has the communications with a transport, by instruction.
pub(super) fn rewrite_plan(plan: &mut Plan, mut lowered: FxHashMap<usize, LoweredComm>) {
    let mut queues = queues(plan, &lowered);
    let code = std::mem::take(&mut plan.code);
    let wait_streams = first_wait_streams(&code, plan.work_count);
    let mut waits: Vec<Option<LoweredWait>> = (0..plan.work_count).map(|_| None).collect();
    let mut renumbered: Vec<Option<WorkNo>> = vec![None; plan.work_count];
    plan.work_count = 0;
    let mut rewriter =
        PlanRewriter { plan, code: Vec::with_capacity(code.len()), allocated: FxHashSet::default() };
    for (at, inst) in code.into_iter().enumerate() {
        let Inst { kind, stream, origin } = inst;
        let Some((communicator, work)) = kind.communication().map(|it| (it.communicator(), it.work())) else {
            rewriter.rewrite_without_post(kind, stream, origin, &mut waits);
            continue;
        };
        let queue = queues.get_mut(&communicator);
        let post_stream = queue.as_ref().map_or(stream, |it| it.stream);
        if post_stream != stream {
            let event = rewriter.record_event(stream, origin);
            rewriter.emit(InstKind::WaitEvent { event }, post_stream, origin);
        }
        let wait = match (lowered.remove(&at), queue) {
            (None, queue) => rewriter.keep_library_call(kind, post_stream, origin, queue),
            (Some(comm), None) => {
                let wait_stream = wait_streams[work as usize];
                LoweredWait::Steps(rewriter.inline_on_post_stream(comm, post_stream, origin, wait_stream))
            }
            (Some(comm), Some(queue)) => rewriter.inline_on_queue(comm, queue, origin),
        };
        if let LoweredWait::Work(number) = wait {
            renumbered[work as usize] = Some(number);
        }
        waits[work as usize] = Some(wait);
    }
    plan.code = rewriter.code;
    for it in &mut plan.gathered_views {
        it.work = renumbered[it.work as usize].unwrap_or(it.work);
    }
    for it in &mut plan.early_releases {
        it.works = it.works.iter().filter_map(|work| renumbered[*work as usize]).collect();
    }
    drop_unused_communicators(plan);
}

/// Returns, for each work, the stream of its first `Wait`.
fn first_wait_streams(code: &[Inst], work_count: usize) -> Vec<Option<StreamNo>> {
    let mut streams = vec![None; work_count];
    for inst in code {
        if let InstKind::Wait { work } = inst.kind {
            streams[work as usize].get_or_insert(inst.stream);
        }
    }
    streams
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
        let communicator = &plan.communicators[number as usize];
        if communicator.backend == Backend::Cuda || queues.contains_key(&number) {
            continue;
        }
        let program_stream = queue_streams[number as usize];
        let stream = program_stream.unwrap_or(plan.streams.len() as StreamNo);
        if program_stream.is_none() {
            plan.streams.push(PlanStream::Queue(communicator.clone()));
        }
        queues.insert(
            number,
            CommQueue { stream, is_program_stream: program_stream.is_some(), last_library_works: Vec::new() },
        );
    }
    queues
}

struct PlanRewriter<'a> {
    plan: &'a mut Plan,
    code: Vec<Inst>,
    /// The staging buffers that are allocated so far.
    allocated: FxHashSet<BufferNo>,
}

impl PlanRewriter<'_> {
    fn emit(&mut self, kind: InstKind, stream: StreamNo, origin: u32) {
        self.code.push(Inst { kind, stream, origin });
    }

    fn emit_all(&mut self, steps: Vec<InstKind>, stream: StreamNo, origin: u32) {
        steps.into_iter().for_each(|it| self.emit(it, stream, origin));
    }

    /// Emits what precedes a collective, and returns the copy of its output that follows it.
    fn emit_prologue(&mut self, comm: &mut LoweredComm, stream: StreamNo, origin: u32) -> Option<InstKind> {
        let StagedViews { input, output } = std::mem::take(&mut comm.staged);
        if comm.begins_with_barrier {
            self.emit(InstKind::Barrier, stream, origin);
        }
        if let Some(it) = input {
            self.allocate(it.buffer, stream, origin);
            self.emit(it.copy, stream, origin);
        }
        output.map(|it| {
            self.allocate(it.buffer, stream, origin);
            it.copy
        })
    }

    /// Allocates a staging buffer, unless an earlier collective has done so.
    fn allocate(&mut self, buffer: BufferNo, stream: StreamNo, origin: u32) {
        if self.allocated.insert(buffer) {
            self.emit(InstKind::Alloc { buffer, zeroed: None }, stream, origin);
        }
    }

    /// Emits the instructions of a communication, and adds their phases to the plan if one kernel may execute them.
    fn emit_steps(&mut self, comm: LoweredComm, stream: StreamNo, origin: u32) {
        let LoweredComm { steps, epilogue, pads, .. } = comm;
        match steps {
            Steps::Separate { at_post, at_wait } => {
                self.emit_all(at_post, stream, origin);
                self.emit_all(at_wait, stream, origin);
            }
            Steps::Kernel(phases) => {
                let mut code = Vec::new();
                phases.all().iter().for_each(|it| it.append_to(&mut code));
                let range = self.code.len()..self.code.len() + code.len();
                self.emit_all(code, stream, origin);
                if !range.is_empty() {
                    self.plan.peer_collectives.push(PeerCollective { range, phases, epilogue, pads });
                }
            }
        }
    }

    /// Records a new event on a stream.
    fn record_event(&mut self, stream: StreamNo, origin: u32) -> EventNo {
        let event = self.plan.event_count as EventNo;
        self.plan.event_count += 1;
        self.emit(InstKind::RecordEvent { event }, stream, origin);
        event
    }

    /// Emits an instruction that posts no communication. A `Wait` becomes the lowered wait of its work.
    fn rewrite_without_post(
        &mut self,
        kind: InstKind,
        stream: StreamNo,
        origin: u32,
        waits: &mut [Option<LoweredWait>],
    ) {
        if let InstKind::Wait { work } = kind {
            match waits.get_mut(work as usize).and_then(Option::take) {
                Some(LoweredWait::Work(work)) => self.emit(InstKind::Wait { work }, stream, origin),
                Some(LoweredWait::Event(event)) => self.emit(InstKind::WaitEvent { event }, stream, origin),
                Some(LoweredWait::Steps(wait)) => {
                    if wait.completion_event.is_none() && wait.post_stream != stream {
                        self.plan.waits_for_peers.push(WaitForPeers {
                            post: wait.origin,
                            wait: origin,
                            stream,
                        });
                    }
                    self.emit_wait_steps(wait, stream, origin);
                }
                None => (),
            }
            return;
        }
        if kind == InstKind::ReadOutputs {
            self.emit_never_waited(waits);
        }
        self.emit(kind, stream, origin);
    }

    /// Emits a communication that a library executes, with its new work number.
    fn keep_library_call(
        &mut self,
        mut kind: InstKind,
        stream: StreamNo,
        origin: u32,
        queue: Option<&mut CommQueue>,
    ) -> LoweredWait {
        let renumbered = self.plan.work_count as WorkNo;
        self.plan.work_count += 1;
        if let Some((_, work)) = kind.communication_numbers_mut() {
            let gathers = self.plan.gathered_views.iter().any(|it| it.work == *work);
            *work = renumbered;
            if let Some(queue) = queue {
                queue.last_library_works.retain(|_| gathers);
                queue.last_library_works.push(renumbered);
            }
        }
        self.emit(kind, stream, origin);
        LoweredWait::Work(renumbered)
    }

    /// Emits the posted instructions of a transport on the posting stream. `wait_stream` is the stream that
    /// waits for the communication, and executes the other instructions.
    fn inline_on_post_stream(
        &mut self,
        mut comm: LoweredComm,
        stream: StreamNo,
        origin: u32,
        wait_stream: Option<StreamNo>,
    ) -> WaitSteps {
        let epilogue = self.emit_prologue(&mut comm, stream, origin);
        let mut steps = comm.steps.split_off_waits();
        let is_complete_when_posted = comm.is_complete_when_posted;
        self.emit_steps(comm, stream, origin);
        let mut has_copies = false;
        if is_complete_when_posted {
            epilogue.into_iter().for_each(|it| self.emit(it, stream, origin));
        } else {
            has_copies = epilogue.is_some();
            steps.extend(epilogue);
        }
        // nvFuser's wait for a transfer or collective is one for values that peers write: what this rank executed itself, on the stream
        // of the post, has no other order (`csrc/multidevice/cuda_p2p.cpp`, `waitWithCudaBackend` and `sendWait`). The copy of a
        // staged output is ours.
        let copies_elsewhere = has_copies && wait_stream != Some(stream);
        let completion_event = copies_elsewhere.then(|| self.record_event(stream, origin));
        WaitSteps { completion_event, steps, has_copies, origin, post_stream: stream }
    }

    /// Emits all instructions of a transport on the queue of its communicator.
    fn inline_on_queue(&mut self, mut comm: LoweredComm, queue: &mut CommQueue, origin: u32) -> LoweredWait {
        let stream = queue.stream;
        for work in queue.last_library_works.drain(..).filter(|_| !queue.is_program_stream) {
            self.emit(InstKind::Wait { work }, stream, origin);
        }
        let epilogue = self.emit_prologue(&mut comm, stream, origin);
        self.emit_steps(comm, stream, origin);
        epilogue.into_iter().for_each(|it| self.emit(it, stream, origin));
        if queue.is_program_stream {
            // The stream that waits is this one.
            let steps = Vec::new();
            return LoweredWait::Steps(WaitSteps {
                completion_event: None,
                steps,
                has_copies: false,
                origin,
                post_stream: stream,
            });
        }
        LoweredWait::Event(self.record_event(stream, origin))
    }

    /// Emits the end of a collective on the stream that waits for it.
    fn emit_wait_steps(&mut self, wait: WaitSteps, stream: StreamNo, origin: u32) {
        if let Some(event) = wait.completion_event {
            self.emit(InstKind::WaitEvent { event }, stream, origin);
        }
        self.emit_all(wait.steps, stream, origin);
    }

    /// Emits the end of collectives that nothing waits for, each on its own stream: their transfers
    /// complete even if nothing waits for them.
    fn emit_never_waited(&mut self, waits: &mut [Option<LoweredWait>]) {
        for wait in waits {
            if matches!(wait, Some(LoweredWait::Steps(it)) if it.has_copies)
                && let Some(LoweredWait::Steps(wait)) = wait.take()
            {
                let (stream, origin) = (self.plan.streams.len() as StreamNo, wait.origin);
                self.plan.streams.push(PlanStream::Unwaited);
                self.emit_wait_steps(wait, stream, origin);
            }
        }
    }
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
        if let Some((communicator, _)) = inst.kind.communication_numbers_mut() {
            *communicator = numbers[*communicator as usize];
        }
    }
}
