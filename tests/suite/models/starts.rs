//! A search of all orders in which ranks may start kernels of NCCL. A GPU runs one kernel at a time, which ends once the kernels of its partners have
//! begun.

use std::collections::BTreeSet;

use hir_plan::sync::LaunchOrder;

use super::sends::RANKS;

/// What a statement does. Kernels are numbers of the rank, in the order in which it posts them.
#[derive(Clone, Copy)]
pub enum Step {
    Post(usize),
    Wait(usize),
    /// Waits for the stream with a number.
    Synchronize(usize),
    Compute,
}

/// The ranks and kernels that have to begin before a kernel ends, by rank and kernel. `None` never begins.
pub type Partners = [Vec<Vec<Option<(usize, usize)>>>; RANKS];

/// A work of a stream: how much of the other streams it needs, and the kernel that it posts or waits for.
#[derive(Clone, Copy)]
struct Work<const STREAMS: usize> {
    needs: [usize; STREAMS],
    posts: Option<usize>,
    awaits: Option<usize>,
}

type Works<const STREAMS: usize> = [[Vec<Work<STREAMS>>; STREAMS]; RANKS];

/// The state of a rank: the works that each stream has executed, the kernels that have begun, and those that have ended, as bits.
type RankState<const STREAMS: usize> = ([usize; STREAMS], u32, u32);

fn works_of<const STREAMS: usize>(steps: &[(usize, Step)]) -> [Vec<Work<STREAMS>>; STREAMS] {
    let mut queues: [Vec<Work<STREAMS>>; STREAMS] = std::array::from_fn(|_| Vec::new());
    for (stream, step) in steps {
        let mut work = Work { needs: [0; STREAMS], posts: None, awaits: None };
        match *step {
            Step::Post(kernel) => work.posts = Some(kernel),
            Step::Wait(kernel) => work.awaits = Some(kernel),
            Step::Synchronize(awaited) => work.needs[awaited] = queues[awaited].len(),
            Step::Compute => (),
        }
        queues[*stream].push(work);
    }
    queues
}

/// Returns a state in which some rank does not finish and none proceeds, if there is one. The steps of a rank each have the stream on which they run.
/// Of two kernels of a rank for which `is_one_queue` holds, the second begins after the first has ended.
pub fn stuck<const STREAMS: usize>(
    steps: &[Vec<(usize, Step)>; RANKS],
    partners: &Partners,
    order: LaunchOrder,
    is_one_queue: impl Fn(usize, usize, usize) -> bool,
) -> Option<String> {
    let works: Works<STREAMS> = steps.each_ref().map(|it| works_of(it));
    let mut start: [RankState<STREAMS>; RANKS] = [([0; STREAMS], 0, 0); RANKS];
    settle(&works, partners, &mut start);
    let (mut open, mut known) = (vec![start], BTreeSet::from([start]));
    while let Some(state) = open.pop() {
        let mut is_last = true;
        for rank in 0..RANKS {
            let (done, begun, ended) = state[rank];
            for number in 0..partners[rank].len() {
                let is_posted = (0..STREAMS)
                    .any(|it| works[rank][it][..done[it]].iter().any(|it| it.posts == Some(number)));
                let follows = (0..number).all(|it| !is_one_queue(rank, it, number) || ended >> it & 1 == 1);
                let is_first = (0..number).all(|it| begun >> it & 1 == 1);
                let may_start = is_posted && follows && (order == LaunchOrder::Explicit || is_first);
                if may_start && begun == ended && begun >> number & 1 == 0 {
                    is_last = false;
                    let mut next = state;
                    next[rank].1 |= 1 << number;
                    settle(&works, partners, &mut next);
                    if known.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        let is_finished = (0..RANKS).all(|rank| {
            (0..STREAMS).all(|it| state[rank].0[it] == works[rank][it].len())
                && state[rank].2.count_ones() as usize == partners[rank].len()
        });
        if is_last && !is_finished {
            return Some(format!("executed works, begun and ended kernels by rank: {state:?}"));
        }
    }
    None
}

/// Executes the works of all streams, and ends kernels, as far as possible. This prevents nothing, so that only the starts of kernels
/// have alternatives.
fn settle<const STREAMS: usize>(
    works: &Works<STREAMS>,
    partners: &Partners,
    state: &mut [RankState<STREAMS>; RANKS],
) {
    let mut proceeds = true;
    while std::mem::take(&mut proceeds) {
        for rank in 0..RANKS {
            for stream in 0..STREAMS {
                let (done, _, ended) = state[rank];
                let Some(work) = works[rank][stream].get(done[stream]) else { continue };
                let is_awaited = work.awaits.is_none_or(|it| ended >> it & 1 == 1);
                if is_awaited && (0..STREAMS).all(|it| done[it] >= work.needs[it]) {
                    state[rank].0[stream] += 1;
                    proceeds = true;
                }
            }
            for (number, others) in partners[rank].iter().enumerate() {
                let is_running = (state[rank].1 & !state[rank].2) >> number & 1 == 1;
                let has_begun =
                    |it: &Option<(usize, usize)>| it.is_some_and(|(peer, of)| state[peer].1 >> of & 1 == 1);
                if is_running && others.iter().all(has_begun) {
                    state[rank].2 |= 1 << number;
                    proceeds = true;
                }
            }
        }
    }
}
