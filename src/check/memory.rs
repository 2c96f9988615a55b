//! Finds elements that are read, or returned as an output, before anything has written them, and the outputs
//! that values computed from them reach.

use grammar::Op;
use rustc_hash::FxHashMap;

use super::{
    deliveries::visit_deliveries,
    overlap::ElementRange,
    written::{UnwrittenPart, WrittenElements},
};
use hir_plan::{BufferNo, InstKind, View, World, sync::InstRef, sync::happens_before::Occurrence};

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
    /// The first output that values computed from these elements reach: its rank, and its index in
    /// `Plan::outputs`.
    pub reaches: Option<(usize, usize)>,
}

/// Tracks the written elements of all buffers while `happens_before::walk` visits the instructions.
pub struct WriteTracker<'p> {
    world: &'p World,
    written: FxHashMap<(usize, BufferNo), WrittenElements>,
    /// The reads found so far, as indices into `found`: by rank and statement, and by rank and buffer.
    reported: FxHashMap<(usize, u32, usize, BufferNo), usize>,
    /// The elements whose values depend on unwritten ones, with the index of the first read of those.
    undefined: FxHashMap<(usize, BufferNo), (WrittenElements, usize)>,
    /// By rank and instruction: whether a communication has been visited.
    visited: Vec<Vec<bool>>,
    /// Elements that a communication will receive from members visited before it, and the first read of unwritten elements
    /// on which they depend.
    arriving: FxHashMap<InstRef, Vec<(View, usize)>>,
    /// The `ReadOutputs` instructions of the ranks.
    ends: Vec<InstRef>,
    /// The unwritten reads found so far.
    found: Vec<UnwrittenRead>,
    /// Number of reads and writes with too many pieces to track.
    not_checked: usize,
}

impl<'p> WriteTracker<'p> {
    /// Creates the state at program entry: the inputs are written.
    pub fn new(world: &'p World) -> Self {
        let mut it = Self {
            world,
            written: FxHashMap::default(),
            reported: FxHashMap::default(),
            undefined: FxHashMap::default(),
            visited: world.iter().map(|it| vec![false; it.code.len()]).collect(),
            arriving: FxHashMap::default(),
            ends: Vec::new(),
            found: Vec::new(),
            not_checked: 0,
        };
        for plan in world.iter() {
            for view in plan.inputs.iter().filter_map(|port| port.shard.view.as_ref()) {
                it.write(plan.rank, view);
            }
        }
        it
    }

    /// Visits an instruction after all instructions that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.world[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        match &plan.code[it.inst].kind {
            // A write that comes too late for `ReadOutputs` is a race. Outputs are checked after the walk and
            // reported only if nothing writes them.
            InstKind::ReadOutputs => self.ends.push(at),
            kind if kind.communication().is_some() || matches!(kind, InstKind::Reshard(_)) => {
                self.visit_communication(at, kind);
            }
            kind => {
                let mut source = None;
                kind.visit_accesses(it.rank, &mut |access| {
                    if !access.is_write {
                        let unwritten = self.read(at, access.rank, access.view, None);
                        let read = unwritten.or_else(|| self.undefined_by(access.rank, access.view));
                        source = source.or(read);
                    }
                });
                let source = source.filter(|_| uses_all_operands(kind));
                kind.visit_accesses(it.rank, &mut |access| {
                    if access.is_write {
                        self.write(access.rank, access.view);
                        self.define(access.rank, access.view, source);
                    }
                });
            }
        }
    }

    /// Visits a communication. Each member is visited by itself, in any order; what is computed from the elements that one
    /// receives is visited after all members that give them.
    fn visit_communication(&mut self, at: InstRef, kind: &InstKind) {
        let mut gives_undefined = false;
        kind.visit_accesses(at.rank, &mut |access| {
            if !access.is_write {
                let unwritten = self.read(at, access.rank, access.view, None);
                gives_undefined |=
                    unwritten.or_else(|| self.undefined_by(access.rank, access.view)).is_some();
            }
        });
        let mut given = Vec::new();
        if gives_undefined {
            visit_deliveries(self.world, at, &mut |to, received, view| {
                let unwritten = self.read(at, at.rank, view, None);
                let source = unwritten.or_else(|| self.undefined_by(at.rank, view));
                given.extend(source.map(|source| (to, received, source)));
            });
        }
        kind.visit_accesses(at.rank, &mut |access| {
            if access.is_write {
                self.write(access.rank, access.view);
                self.define(access.rank, access.view, None);
            }
        });
        self.visited[at.rank][at.inst] = true;
        for (to, received, source) in given {
            if self.visited[to.rank][to.inst] {
                self.define(to.rank, &received, Some(source));
            } else {
                self.arriving.entry(to).or_default().push((received, source));
            }
        }
        for (view, source) in self.arriving.remove(&at).unwrap_or_default() {
            self.define(at.rank, &view, Some(source));
        }
    }

    /// Checks the outputs after all instructions have been visited, of the world or of a group of ranks. Returns the unwritten reads and the
    /// number of reads and writes with too many pieces to track. What one group gives to another one is forgotten: that it is read is
    /// reported, and not which outputs of the other group it reaches.
    pub fn finish(&mut self) -> (Vec<UnwrittenRead>, usize) {
        for at in std::mem::take(&mut self.ends) {
            for (output, port) in self.world[at.rank].outputs.iter().enumerate() {
                if let Some(view) = &port.shard.view {
                    self.read(at, at.rank, view, Some(output));
                    if let Some(read) = self.undefined_by(at.rank, view) {
                        self.found[read].reaches.get_or_insert((at.rank, output));
                    }
                }
            }
        }
        // These hold indices of what was found.
        self.reported.clear();
        self.undefined.clear();
        self.arriving.clear();
        (std::mem::take(&mut self.found), std::mem::take(&mut self.not_checked))
    }

    fn write(&mut self, rank: usize, view: &View) {
        let is_known = self.written.entry((rank, view.buffer)).or_default().write(view);
        self.not_checked += usize::from(!is_known);
    }

    /// Records whether the values that are written to a view depend on unwritten elements, and on which read of
    /// them.
    fn define(&mut self, rank: usize, view: &View, source: Option<usize>) {
        if let Some(source) = source {
            let (elements, _) = self.undefined.entry((rank, view.buffer)).or_insert((<_>::default(), source));
            elements.write(view);
        } else if let Some((elements, _)) = self.undefined.get_mut(&(rank, view.buffer)) {
            elements.remove(view);
        }
    }

    /// Returns the read of unwritten elements on which some elements of a view depend.
    fn undefined_by(&self, rank: usize, view: &View) -> Option<usize> {
        let (elements, source) = self.undefined.get(&(rank, view.buffer))?;
        elements.contains_some(view).then_some(*source)
    }

    /// Returns the index in `found` of the read if some elements of the view are unwritten.
    fn read(&mut self, at: InstRef, rank: usize, view: &View, output: Option<usize>) -> Option<usize> {
        let (elements, missing) = match self.written.entry((rank, view.buffer)).or_default().missing(view) {
            UnwrittenPart::Nothing => return None,
            UnwrittenPart::Some { first, count, all } => (first, (count, all)),
            UnwrittenPart::Unknown => {
                self.not_checked += 1;
                return None;
            }
        };
        let origin = self.world[at.rank].code[at.inst].origin;
        let number = *self.reported.entry((at.rank, origin, rank, view.buffer)).or_insert(self.found.len());
        if number == self.found.len() {
            let (buffer, reaches) = (view.buffer, None);
            self.found.push(UnwrittenRead { inst_ref: at, rank, buffer, output, elements, missing, reaches });
        }
        Some(number)
    }
}

/// Returns whether the results of an instruction depend on all elements that it reads. A selection and a
/// masked attention may ignore some.
fn uses_all_operands(kind: &InstKind) -> bool {
    !matches!(
        kind,
        InstKind::Map { op: Op::Where, .. }
            | InstKind::Attention(_)
            | InstKind::AttentionGradient(_)
            | InstKind::OpaqueCall(_)
    )
}
