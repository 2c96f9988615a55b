//! Finds elements that are read, or returned as an output, before anything has written them.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    overlap::ElementRange,
    written::{UnwrittenPart, WrittenElements},
};
use hir_plan::{BufferNo, InstKind, Plan, View, sync::InstRef, sync::happens_before::Occurrence};

/// A read of elements that nothing has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenRead {
    /// The reading instruction; `ReadOutputs` stands for the caller, which reads an output.
    pub inst_ref: InstRef,
    /// The rank that owns the memory.
    pub rank: usize,
    /// The buffer.
    pub buffer: BufferNo,
    /// The output that is read, as an index into `Plan::outputs`; `None` for an operand.
    pub output: Option<usize>,
    /// The first contiguous range of unwritten elements that are read.
    pub elements: ElementRange,
    /// Number of unwritten elements that are read, and number of all elements that are read.
    pub missing: (usize, usize),
}

/// Tracks the written elements of all buffers while `happens_before::walk` visits the instructions.
pub struct WriteTracker<'p> {
    plans: &'p [Plan],
    written: FxHashMap<(usize, BufferNo), WrittenElements>,
    /// Statements already reported, by rank and buffer.
    reported: FxHashSet<(usize, u32, usize, BufferNo)>,
    /// The `ReadOutputs` instructions of the ranks.
    ends: Vec<InstRef>,
    /// The unwritten reads found so far.
    pub found: Vec<UnwrittenRead>,
    /// Number of reads and writes with too many pieces to track.
    pub not_checked: usize,
}

impl<'p> WriteTracker<'p> {
    /// Creates the state at program entry: the inputs are written.
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

    /// Visits an instruction after all instructions that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        match &plan.code[it.inst].kind {
            // A write that comes too late for `ReadOutputs` is a race. Outputs are checked after the walk and
            // reported only if nothing writes them.
            InstKind::ReadOutputs => self.ends.push(at),
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

    /// Checks the outputs after all instructions have been visited.
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
