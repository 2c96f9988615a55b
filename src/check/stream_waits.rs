//! Which streams of a rank wait for an instruction, directly or through other streams and queues: by the clocks of the order of the
//! rank alone.

use rustc_hash::FxHashMap;

use hir_plan::{
    Plan, StreamNo, World,
    sync::happens_before::{Occurrence, walk_rank},
};

/// What the streams of a rank know of each other's progress.
#[derive(Debug, Default)]
pub struct StreamWaits {
    /// By instruction: the actor that executes it, and its position among the actor's instructions, from 1. Instructions of the
    /// host have none.
    places: FxHashMap<usize, (u32, u32)>,
    /// By waiting stream and awaited actor, in order: an instruction of the stream, and the number of instructions of the actor that
    /// have ended when it begins.
    ended: FxHashMap<(StreamNo, u32), Vec<(usize, u32)>>,
    /// By stream: its instructions in order, each with its position.
    executed: FxHashMap<StreamNo, Vec<(usize, u32)>>,
}

impl StreamWaits {
    /// Executes the streams and queues of a rank. Nothing is known of a rank with too many of them.
    pub fn new(world: &World, rank: usize) -> Self {
        let mut found = Self::default();
        let streams = world[rank].streams.len() as u32;
        let mut visit = |it: Occurrence| {
            found.places.insert(it.inst, (it.actor, it.number));
            if it.actor >= streams {
                return;
            }
            found.executed.entry(it.actor).or_default().push((it.inst, it.number));
            for other in (0..it.clock.actors() as u32).filter(|other| *other != it.actor) {
                let ended = it.clock.ended(other);
                if ended == 0 {
                    continue;
                }
                let known = found.ended.entry((it.actor, other)).or_default();
                if known.last().is_none_or(|last| last.1 < ended) {
                    known.push((it.inst, ended));
                }
            }
        };
        match walk_rank(world, rank, &mut visit) {
            Ok(()) => found,
            Err(_) => Self::default(),
        }
    }

    /// Returns the first instruction after which the stream `waiting` has waited for the instruction `at`, or for the
    /// communication that `at` posts.
    pub fn first(&self, plan: &Plan, at: usize, waiting: StreamNo) -> Option<usize> {
        let (actor, number) = *self.places.get(&at)?;
        if actor == waiting {
            return (at + 1 < plan.code.len()).then_some(at);
        }
        self.first_ended(waiting, actor, number)
    }

    /// Returns the first instruction after which `waiting` has waited for what another stream executes up to the instruction `at`, which
    /// may be a post.
    pub fn first_for(&self, (stream, at): (StreamNo, usize), waiting: StreamNo) -> Option<usize> {
        let executed = self.executed.get(&stream)?;
        let (_, number) = executed.get(executed.partition_point(|it| it.0 <= at))?;
        self.first_ended(waiting, stream, *number)
    }

    /// Returns the first instruction of a stream that begins when so many instructions of an actor have ended.
    fn first_ended(&self, waiting: StreamNo, actor: u32, number: u32) -> Option<usize> {
        let known = self.ended.get(&(waiting, actor))?;
        known.get(known.partition_point(|it| it.1 < number)).map(|it| it.0)
    }
}
