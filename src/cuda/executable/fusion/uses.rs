//! Finds the instructions that read the result of another, if they are all on one stream.

use super::MAX_OPS;
use hir_plan::{Inst, InstKind, StreamNo, View};

/// Maximum number of accesses examined for one result: bounds the time, which would otherwise be quadratic.
const LOOKS: usize = 1024;

/// The uses of one buffer by one stream.
#[derive(Default)]
struct UseList<'a> {
    stream: Option<StreamNo>,
    /// Whether others can see the buffer: another stream, a communication, a peer, or a reader after the run.
    escapes: bool,
    /// In the order of issue: the instruction, the view, and whether it is written.
    list: Vec<(u32, &'a View, bool)>,
}

/// The uses of all buffers of a rank.
pub(super) struct UseAnalysis<'a>(Vec<UseList<'a>>);

impl<'a> UseAnalysis<'a> {
    /// Lists the uses by the instructions of a rank. `escapes` says, by buffer, whether others than these instructions
    /// access it.
    pub fn of(rank: usize, code: &'a [Inst], escapes: &[bool]) -> Self {
        let open = |escapes: &bool| UseList { escapes: *escapes, ..UseList::default() };
        let mut all: Vec<UseList> = escapes.iter().map(open).collect();
        for (at, inst) in (0..).zip(code) {
            // Communications run asynchronously to the stream that posts them.
            let posts =
                matches!(inst.kind, InstKind::Collective(_) | InstKind::P2pGroup(_) | InstKind::Reshard(_));
            for it in inst.kind.accesses(rank).iter().filter(|it| it.rank == rank) {
                let uses = &mut all[it.view.buffer as usize];
                uses.escapes |= posts || uses.stream.is_some_and(|known| known != inst.stream);
                uses.stream = Some(inst.stream);
                uses.list.push((at, it.view, it.is_write));
            }
        }
        Self(all)
    }

    /// Returns the instructions that read what instruction `at` has written to a view, up to the next write
    /// of the whole view; `None` if others may read it, or if there are more than can be fused.
    pub fn readers_of(&self, at: u32, view: &View) -> Option<Vec<u32>> {
        let uses = self.0.get(view.buffer as usize).filter(|it| !it.escapes)?;
        let from = uses.list.partition_point(|it| it.0 <= at);
        let mut readers = Vec::new();
        for (look, (other, seen, written)) in uses.list[from..].iter().enumerate() {
            // The list has an instruction's reads before its writes.
            if *written && *seen == view {
                break;
            }
            if !written && seen.bounds().zip(view.bounds()).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1) {
                readers.push(*other);
            }
            if look == LOOKS || readers.len() > MAX_OPS {
                return None;
            }
        }
        Some(readers)
    }
}
