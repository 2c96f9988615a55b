//! The words of signals, at the start of a symmetric segment.
//!
//! A signal is one word, except for those with which the members of a collective report that they are done
//! (`SignalKind::TeamDone`). If one kernel executes the collective on every member, from its first signal to its last wait,
//! these have several words: each block of the kernel sets some of them when its own accesses are done, instead of waiting
//! for the other blocks first (`kernels::peer_memory`). Such a signal is set when all its words are.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::peer_kernel::element_count;
use hir_plan::{InstKind, PeerPhases, Plan, SignalId, SignalKind};

/// Maximum number of words of a signal, and so of the blocks that set them.
const MAX_WORDS: usize = 128;
/// Elements of each view for which a signal has a word: a block of the kernel has as many threads. The number of words
/// limits the number of blocks, and is correct for any number of them.
const ELEMENTS_OF_WORD: usize = 256;
/// Distance between two signals in bytes, unless one has more words.
const SIGNAL_STRIDE: usize = 32;

/// The words of a signal in the symmetric segment of the rank that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalSlice {
    /// Byte offset of the first word.
    pub offset: usize,
    /// Number of words, one after another.
    pub words: usize,
    /// Whether the blocks of a kernel set them.
    pub is_set_by_blocks: bool,
}

/// The words of all signals.
#[derive(Clone, Debug)]
pub(super) struct SignalOffsets {
    slices: FxHashMap<SignalId, SignalSlice>,
    /// By rank: the end of its signals in bytes.
    ends: Vec<usize>,
    /// The signals that blocks of kernels set, without their ranks, and their numbers of words.
    set_by_blocks: FxHashMap<(SignalKind, u32), usize>,
}

impl SignalOffsets {
    /// Assigns the first signals, those of the barrier between runs: one for each rank.
    pub fn new(plans: &[Plan]) -> Self {
        Self {
            slices: FxHashMap::default(),
            ends: vec![plans.len() * SIGNAL_STRIDE; plans.len()],
            set_by_blocks: signals_set_by_blocks(plans),
        }
    }

    /// Assigns words to a signal, unless it has some.
    pub fn add(&mut self, signal: &SignalId) {
        let words = self.set_by_blocks.get(&(signal.kind, signal.index)).copied();
        if let (Some(end), false) = (self.ends.get_mut(signal.to), self.slices.contains_key(signal)) {
            let slice =
                SignalSlice { offset: *end, words: words.unwrap_or(1), is_set_by_blocks: words.is_some() };
            *end += (slice.words * size_of::<u32>()).next_multiple_of(SIGNAL_STRIDE);
            self.slices.insert(*signal, slice);
        }
    }

    /// Returns the words of a signal.
    pub fn get(&self, signal: &SignalId) -> Option<SignalSlice> {
        self.slices.get(signal).copied()
    }

    /// Returns the number of bytes that the signals of any rank take.
    pub fn bytes(&self) -> usize {
        self.ends.iter().copied().max().unwrap_or(0)
    }
}

/// Returns the byte offset of the signal that rank `from` writes at the barrier between runs.
pub(super) fn barrier_offset(from: usize) -> usize {
    from * SIGNAL_STRIDE
}

/// Returns the signals that every member of a collective sets and awaits inside a kernel, with a word for each block that
/// has something to do on some member.
fn signals_set_by_blocks(plans: &[Plan]) -> FxHashMap<(SignalKind, u32), usize> {
    let (mut inside, mut outside) = (FxHashMap::default(), FxHashSet::default());
    for plan in plans {
        let mut in_kernels = FxHashSet::default();
        for it in &plan.peer_collectives {
            let phases = match &it.phases {
                PeerPhases::Memory(phases) => phases,
                PeerPhases::Packets { .. } => continue,
            };
            let Some(len) = element_count(phases) else { continue };
            let [_, access] = phases;
            for signal in access.signals.iter().chain(&access.waits) {
                let words = inside.entry((signal.kind, signal.index)).or_insert(1);
                *words = len.div_ceil(ELEMENTS_OF_WORD).clamp(*words, MAX_WORDS);
                in_kernels.insert(signal);
            }
        }
        for inst in &plan.code {
            let (InstKind::Signal { signal } | InstKind::WaitSignal { signal }) = &inst.kind else {
                continue;
            };
            if matches!(signal.kind, SignalKind::TeamDone(_)) && !in_kernels.contains(signal) {
                outside.insert((signal.kind, signal.index));
            }
        }
    }
    inside.retain(|it, _| !outside.contains(it));
    inside
}
