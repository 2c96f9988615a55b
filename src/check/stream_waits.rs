//! Which streams of a rank wait for an instruction, directly or through other streams.

use rustc_hash::FxHashMap;

use hir_plan::{EventNo, InstKind, Plan, StreamNo, WorkNo};

/// The instructions by which streams of a rank wait for each other. The waits for each stream are collected when they are
/// needed.
#[derive(Debug)]
pub struct StreamWaits {
    /// The instructions that wait for each communication, in order.
    waits: FxHashMap<WorkNo, Vec<usize>>,
    /// By the stream that is waited for.
    for_stream: FxHashMap<StreamNo, Waits>,
}

/// By waiting stream, in order: a wait, and the number of the first instruction for which the stream has not waited then.
type Waits = FxHashMap<StreamNo, Vec<(usize, usize)>>;

impl StreamWaits {
    /// Collects the waits of a plan.
    pub fn new(plan: &Plan) -> Self {
        let mut waits: FxHashMap<WorkNo, Vec<usize>> = FxHashMap::default();
        for (at, inst) in plan.code.iter().enumerate() {
            if let InstKind::Wait { work } = inst.kind {
                waits.entry(work).or_default().push(at);
            }
        }
        Self { waits, for_stream: FxHashMap::default() }
    }

    /// Returns the first instruction after which the stream `waiting` has waited for the instruction `at`, or for the
    /// communication that `at` posts.
    pub fn first(&mut self, plan: &Plan, at: usize, waiting: StreamNo) -> Option<usize> {
        let inst = plan.code.get(at)?;
        let Some(work) = inst.kind.communication().map(|it| it.work()) else {
            return if inst.stream == waiting {
                (at + 1 < plan.code.len()).then_some(at)
            } else {
                self.first_for_stream(plan, at, waiting)
            };
        };
        let waits = self.waits.get(&work).cloned().unwrap_or_default();
        let found = waits.into_iter().filter(|it| *it > at).filter_map(|wait| {
            if plan.code[wait].stream == waiting {
                Some(wait)
            } else {
                self.first_for_stream(plan, wait, waiting)
            }
        });
        found.min()
    }

    /// Returns the first instruction after which `waiting` has waited for the instruction `at` of another stream.
    fn first_for_stream(&mut self, plan: &Plan, at: usize, waiting: StreamNo) -> Option<usize> {
        let stream = plan.code[at].stream;
        let waits = self.for_stream.entry(stream).or_insert_with(|| waits_for(plan, stream));
        let waits = waits.get(&waiting)?;
        waits.get(waits.partition_point(|it| it.1 <= at)).map(|it| it.0)
    }
}

/// Returns the waits of all streams for `awaited`.
fn waits_for(plan: &Plan, awaited: StreamNo) -> Waits {
    let mut found = Waits::default();
    // For each event: the number of the first instruction of `awaited` that is not known to have ended with it.
    let mut recorded: FxHashMap<EventNo, usize> = FxHashMap::default();
    for (at, inst) in plan.code.iter().enumerate() {
        match inst.kind {
            InstKind::RecordEvent { event } => {
                let waited = || found.get(&inst.stream)?.last().map(|it| it.1);
                let known = if inst.stream == awaited { Some(at) } else { waited() };
                if let Some(known) = known {
                    let it = recorded.entry(event).or_default();
                    *it = known.max(*it);
                }
            }
            InstKind::WaitEvent { event } => {
                if let Some(known) = recorded.get(&event) {
                    let waits = found.entry(inst.stream).or_default();
                    if waits.last().is_none_or(|it| it.1 < *known) {
                        waits.push((at, *known));
                    }
                }
            }
            _ => (),
        }
    }
    found
}
