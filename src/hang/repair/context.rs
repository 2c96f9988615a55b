//! How likely a place of a log is: which runs of calls its rank has elsewhere, or other ranks have.

use rustc_hash::FxHashMap;

use super::Item;

/// The number of calls in which a place of the program is compared with others.
pub(super) const CONTEXT: usize = 16;

/// A run of calls: how many ranks have it, and the last of them that was counted.
#[derive(Clone, Copy, Default)]
struct Run {
    ranks: u32,
    last: usize,
}

/// The runs of calls of all ranks.
pub(super) struct Corpus {
    runs: FxHashMap<u64, Run>,
    /// How often each rank has them.
    own: FxHashMap<(u64, usize), u32>,
    /// What follows two calls: the lane and position of each.
    pub(super) after: FxHashMap<[u32; 2], FxHashMap<u32, (usize, usize)>>,
}

impl Corpus {
    /// `before` returns the two calls before a position of a lane.
    pub(super) fn new(lanes: &[Vec<Item>], before: impl Fn(usize, usize) -> Option<[u32; 2]>) -> Self {
        let mut corpus =
            Self { runs: FxHashMap::default(), own: FxHashMap::default(), after: FxHashMap::default() };
        for (lane, items) in lanes.iter().enumerate() {
            for at in 0..items.len() {
                let mut hash = 0;
                for it in items[at.saturating_sub(CONTEXT - 1)..=at].iter().rev() {
                    hash = extended(hash, it.token);
                    let run = corpus.runs.entry(hash).or_default();
                    if run.ranks == 0 || run.last != lane {
                        *run = Run { ranks: run.ranks + 1, last: lane };
                    }
                    *corpus.own.entry((hash, lane)).or_default() += 1;
                }
                if let Some(key) = before(lane, at) {
                    corpus.after.entry(key).or_default().entry(items[at].token).or_insert((lane, at));
                }
            }
        }
        corpus
    }

    /// Whether several ranks make a call.
    pub(super) fn is_shared(&self, token: u32) -> bool {
        self.runs.get(&extended(0, token)).is_some_and(|it| it.ranks > 1)
    }

    /// Returns the runs of a lane that overlap one of their length with the call at a place, each with how often.
    pub(super) fn around(tokens: &[u32], place: usize) -> FxHashMap<u64, u32> {
        let mut found: FxHashMap<u64, u32> = FxHashMap::default();
        for end in place.saturating_sub(CONTEXT)..tokens.len() {
            let mut hash = 0;
            for start in ((end + 1).saturating_sub(CONTEXT)..=end).rev() {
                hash = extended(hash, tokens[start]);
                let length = end + 1 - start;
                if end + length > place && start < place + length {
                    *found.entry(hash).or_default() += 1;
                }
            }
        }
        found
    }

    /// Returns the mean length of the runs that end with each of the last calls, from a place on, and that the same rank has elsewhere than `around` it, or others.
    /// The calls before `changed` are not those of the log: the rank has to have a run with one of these twice, or two others once, since one of them may be wrong.
    pub(super) fn likeness(
        &self,
        lane: usize,
        tokens: &[u32],
        place: usize,
        (changed, around): (usize, &FxHashMap<u64, u32>),
    ) -> f64 {
        let length = |at: usize| {
            let mut hash = 0;
            let first = (at + 1).saturating_sub(CONTEXT);
            let runs = (first..=at).rev().take_while(|start| {
                hash = extended(hash, tokens[*start]);
                let own = self.own.get(&(hash, lane)).copied().unwrap_or(0);
                let others = self.runs.get(&hash).map_or(0, |it| it.ranks) - u32::from(own > 0);
                let is_changed = *start < changed;
                // One that is behind is one of its own.
                let least =
                    if is_changed || *start <= place { around.get(&hash).copied().unwrap_or(0) } else { 1 };
                own > least + u32::from(is_changed) || others > u32::from(is_changed)
            });
            runs.count()
        };
        let count = tokens.len() - place;
        let sum: usize = (place..tokens.len()).map(length).sum();
        if count > 0 { sum as f64 / count as f64 } else { 0.0 }
    }
}

fn extended(hash: u64, token: u32) -> u64 {
    (hash ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}
