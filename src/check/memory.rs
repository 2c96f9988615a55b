//! Lifetimes: elements that are read, or returned as an output, and that nothing has written.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    overlap::ElementRange,
    written::{UnwrittenPart, WrittenElements},
};
use crate::plan::{BufferNo, InstKind, Plan, View, sync::InstRef, sync::happens_before::Occurrence};

/// Elements that nothing has written when they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenRead {
    /// The instruction that reads them; `Finish`: the caller reads an output.
    pub inst_ref: InstRef,
    /// The rank whose memory it is.
    pub rank: usize,
    /// The buffer.
    pub buffer: BufferNo,
    /// The output that it is, an index into `Plan::outputs`; `None`: an operand.
    pub output: Option<usize>,
    /// The first unwritten elements of the buffer that it reads.
    pub elements: ElementRange,
    /// How many it reads that are unwritten, and how many it reads.
    pub missing: (usize, usize),
}

/// Follows what has been written while `order::walk` visits the instructions.
pub struct WriteTracker<'p> {
    plans: &'p [Plan],
    written: FxHashMap<(usize, BufferNo), WrittenElements>,
    /// Statements that have been reported, by rank and buffer.
    reported: FxHashSet<(usize, u32, usize, BufferNo)>,
    /// The ends of the ranks.
    ends: Vec<InstRef>,
    /// What was found.
    pub found: Vec<UnwrittenRead>,
    /// Reads and writes of too many pieces to follow.
    pub not_checked: usize,
}

impl<'p> WriteTracker<'p> {
    /// What is written before the first instruction: the inputs.
    pub fn new(plans: &'p [Plan]) -> Self {
        let mut it = Self {
            plans,
            written: FxHashMap::default(),
            reported: FxHashSet::default(),
            ends: Vec::new(),
            found: Vec::new(),
            not_checked: 0,
        };
        for plan in plans {
            for view in plan.inputs.iter().filter_map(|port| port.shard.view.as_ref()) {
                it.write(plan.rank, view);
            }
        }
        it
    }

    /// An instruction, after all that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        match &plan.code[it.inst].kind {
            // Elements of an output that a write comes too late for are a race; those are looked at that nothing writes.
            InstKind::ReadOutputs => self.ends.push(at),
            InstKind::Alloc { buffer, zero: true } => {
                let whole = View::contiguous(*buffer, vec![plan.buffers[*buffer as usize].len]);
                self.write(it.rank, &whole);
            }
            kind => {
                kind.visit_accesses(it.rank, &mut |access| {
                    if !access.is_write {
                        self.read(at, access.rank, access.view, None);
                    }
                });
                kind.visit_accesses(it.rank, &mut |access| {
                    if access.is_write {
                        self.write(access.rank, access.view);
                    }
                });
            }
        }
    }

    /// Everything has been visited: looks at the outputs.
    pub fn finish(&mut self) {
        for at in std::mem::take(&mut self.ends) {
            for (output, port) in self.plans[at.rank].outputs.iter().enumerate() {
                port.shard.view.iter().for_each(|view| self.read(at, at.rank, view, Some(output)));
            }
        }
    }

    fn write(&mut self, rank: usize, view: &View) {
        let is_known = self.written.entry((rank, view.buffer)).or_default().write(view);
        self.not_checked += usize::from(!is_known);
    }

    fn read(&mut self, at: InstRef, rank: usize, view: &View, output: Option<usize>) {
        let (elements, missing) = match self.written.entry((rank, view.buffer)).or_default().missing(view) {
            UnwrittenPart::Nothing => return,
            UnwrittenPart::Some { first, count, all } => (first, (count, all)),
            UnwrittenPart::Unknown => {
                self.not_checked += 1;
                return;
            }
        };
        let origin = self.plans[at.rank].code[at.inst].origin;
        if self.reported.insert((at.rank, origin, rank, view.buffer)) {
            self.found.push(UnwrittenRead {
                inst_ref: at,
                rank,
                buffer: view.buffer,
                output,
                elements,
                missing,
            });
        }
    }
}
