//! The phases of a collective over peer memory on one rank: signals that its memory is ready, accesses, signals that they
//! are done. `plan::transport` lowers a collective to these instructions, and one kernel may execute them
//! (`kernels::peer_memory`).

use std::ops::Range;

use hir_plan::{InstKind, Plan, ReduceOp, SignalId, SignalKind, View, ViewOnRank};

/// Maximum number of signals and views of a kernel: their addresses are parameters, of which CUDA allows 4 KiB.
pub(super) const MAX_ADDRESSES: usize = 500;

/// What one rank does in a collective, in the order of the fields.
#[derive(Default)]
pub(super) struct PeerPhases<'a> {
    /// Signals to the ranks that access this rank's memory.
    pub ready: Vec<&'a SignalId>,
    /// Signals of the ranks whose memory this rank accesses.
    pub ready_waits: Vec<&'a SignalId>,
    /// The reduction of results with several inputs; `None` if all results are copies.
    pub op: Option<ReduceOp>,
    /// What this rank computes or copies; all views have the same number of elements. A rank without a share of the result
    /// has none.
    pub results: Vec<ResultViews<'a>>,
    /// Signals to the ranks whose memory this rank has accessed.
    pub done: Vec<&'a SignalId>,
    /// Signals of the ranks that access this rank's memory. None if another stream waits for them.
    pub done_waits: Vec<&'a SignalId>,
    /// The instruction that hang reports name: the first one that waits, or else the first one.
    pub first_wait: usize,
}

/// A copy or a reduction, by the rank of each view.
pub(super) struct ResultViews<'a> {
    /// The operands in the order of the reduction; a copy has one.
    pub inputs: Vec<(usize, &'a View)>,
    /// The destinations; all receive the same elements.
    pub outputs: Vec<(usize, &'a View)>,
}

impl<'a> PeerPhases<'a> {
    /// Returns the phases of a range of `Plan::kernels`; `None` if no kernel executes them, because views are not
    /// contiguous or the team is too large.
    pub fn of(plan: &'a Plan, range: &Range<usize>) -> Option<Self> {
        let mut it = Self { first_wait: range.start, ..Self::default() };
        for (at, inst) in plan.code.iter().enumerate().take(range.end).skip(range.start) {
            match &inst.kind {
                InstKind::Signal { signal } => match signal.kind {
                    SignalKind::TeamReady(_) => it.ready.push(signal),
                    SignalKind::TeamDone(_) => it.done.push(signal),
                    _ => return None,
                },
                InstKind::WaitSignal { signal } => match signal.kind {
                    SignalKind::TeamReady(_) => {
                        if it.ready_waits.is_empty() {
                            it.first_wait = at;
                        }
                        it.ready_waits.push(signal);
                    }
                    SignalKind::TeamDone(_) => it.done_waits.push(signal),
                    _ => return None,
                },
                InstKind::PeerReduce { op, parts, out } if it.results.is_empty() => {
                    it.op = Some(*op);
                    let inputs = parts.iter().map(|part| (part.rank, &part.view)).collect();
                    it.results.push(ResultViews { inputs, outputs: vec![(plan.rank, &**out)] });
                }
                InstKind::Copy { from, to } if from.rank == plan.rank => it.add_copy(from, to)?,
                _ => return None,
            }
        }
        let lists = [&it.ready, &it.ready_waits, &it.done, &it.done_waits];
        let peers = lists.iter().map(|list| list.len()).max().unwrap_or(0);
        let fits = lists.len() * peers + it.views().count() <= MAX_ADDRESSES;
        let is_uniform = it.results.windows(2).all(|pair| {
            let [a, b] = pair else { return true };
            (a.inputs.len(), a.outputs.len()) == (b.inputs.len(), b.outputs.len())
        });
        let len = it.len();
        let are_alike = it.views().all(|view| view.is_contiguous() && view.len() == len);
        (fits && is_uniform && are_alike).then_some(it)
    }

    /// Adds a copy of a result to another rank, or of elements of this rank's memory.
    fn add_copy(&mut self, from: &'a ViewOnRank, to: &'a ViewOnRank) -> Option<()> {
        let output = (to.rank, &to.view);
        let is_reduction = self.op.is_some();
        // A copy of the result of the reduction, or another copy of the same elements.
        let source = |it: &ResultViews<'a>| if is_reduction { it.outputs[0].1 } else { it.inputs[0].1 };
        match self.results.iter_mut().find(|it| *source(it) == from.view) {
            Some(result) => result.outputs.push(output),
            None if !is_reduction => {
                let inputs = vec![(from.rank, &from.view)];
                self.results.push(ResultViews { inputs, outputs: vec![output] });
            }
            None => return None,
        }
        Some(())
    }

    fn views(&self) -> impl Iterator<Item = &'a View> {
        self.results.iter().flat_map(|it| it.inputs.iter().chain(&it.outputs)).map(|it| it.1)
    }

    /// Returns the number of elements of each view.
    pub fn len(&self) -> usize {
        self.views().next().map_or(0, View::len)
    }
}
