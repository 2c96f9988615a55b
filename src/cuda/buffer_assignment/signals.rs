//! The words of signals, at the start of a symmetric segment.
//!
//! A signal is one word, except for those that tell the peers that a member of a collective is done. If all members set
//! and await these inside a kernel over peer memory (`kernels::peer_memory`), they have `BLOCK_WORDS` words each: every
//! block of the kernel sets its part of the words when its own accesses are done, instead of waiting for the other
//! blocks first. The signal is set when all its words are.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{InstKind, KernelKind, Plan, SignalId, SignalKind};

/// Number of words of a signal that the blocks of a kernel set, and so the maximum number of these blocks.
pub(in crate::cuda) const BLOCK_WORDS: usize = 128;
/// Distance between two signals in bytes, unless one has more words.
const SIGNAL_STRIDE: usize = 32;

/// The place of a signal in the symmetric segment of the rank that awaits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct SignalSlice {
    /// Byte offset of the first word.
    pub offset: usize,
    /// Number of words, one after another.
    pub words: usize,
}

/// The places of all signals.
#[derive(Clone, Debug)]
pub(super) struct SignalOffsets {
    slices: FxHashMap<SignalId, SignalSlice>,
    /// By rank: the end of its signals in bytes.
    ends: Vec<usize>,
    /// The signals of collectives that have a word for each block, without their ranks.
    set_by_blocks: FxHashSet<(SignalKind, u32)>,
}

impl SignalOffsets {
    /// Assigns the first signals, those of the barrier between runs: one for each rank.
    pub fn new(plans: &[Plan]) -> Self {
        Self {
            slices: FxHashMap::default(),
            ends: vec![plans.len() * SIGNAL_STRIDE; plans.len()],
            set_by_blocks: set_by_blocks(plans),
        }
    }

    /// Assigns a place to a signal, unless it has one.
    pub fn add(&mut self, signal: &SignalId) {
        let words = if self.set_by_blocks.contains(&(signal.kind, signal.index)) { BLOCK_WORDS } else { 1 };
        if let (Some(end), false) = (self.ends.get_mut(signal.to), self.slices.contains_key(signal)) {
            self.slices.insert(*signal, SignalSlice { offset: *end, words });
            *end += (words * size_of::<u32>()).next_multiple_of(SIGNAL_STRIDE);
        }
    }

    /// Returns the place of a signal.
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

/// Returns the signals of collectives that every member sets, and awaits, inside a kernel over peer memory.
fn set_by_blocks(plans: &[Plan]) -> FxHashSet<(SignalKind, u32)> {
    let (mut inside, mut outside) = (FxHashSet::default(), FxHashSet::default());
    for plan in plans {
        for (at, inst) in plan.code.iter().enumerate() {
            let (InstKind::Signal { signal } | InstKind::WaitSignal { signal }) = &inst.kind else {
                continue;
            };
            if let SignalKind::TeamDone(_) = signal.kind {
                let kernel = plan.kernel_range(at).map(|it| it.kind);
                let found = if kernel == Some(KernelKind::PeerMemory) { &mut inside } else { &mut outside };
                found.insert((signal.kind, signal.index));
            }
        }
    }
    inside.retain(|it| !outside.contains(it));
    inside
}
