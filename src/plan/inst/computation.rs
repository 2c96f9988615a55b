//! What an instruction that computes from memory of its own rank states about itself, in its own file. All else that asks for it
//! goes through `InstKind::computation`, so that a new one needs its file, its variant, and what executes it.

use grammar::DType;

use super::InstKind;
use crate::{Buffer, View};

/// What an instruction spends its time on, on the stream that executes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CostClass {
    /// Nothing of its own: the instruction orders others, allocates, or posts a communication, which runs on a
    /// queue.
    Ordering,
    /// Writes the memory of one rank, without arithmetic. A copy may read from or write to a peer.
    DataMovement,
    /// Reduces the data of peers, sets a signal of a peer or waits for one.
    PeerAccess,
    /// Computes.
    Compute,
}

/// The cost of an instruction, for reports and estimates.
#[derive(Clone, Copy, Debug)]
pub struct CostInfo {
    /// What the instruction spends its time on.
    pub class: CostClass,
    /// The name in timing reports; `None` if the instruction takes no time on a stream.
    pub label: Option<&'static str>,
    /// The number of products or elements that are summed into one element.
    pub reduction_len: usize,
}

/// What a computation states about itself.
pub trait Computation {
    /// Returns the name in reports.
    fn name(&self) -> &'static str;

    /// Returns the notation of a plan; `view` is that of a view.
    fn text(&self, view: &dyn Fn(&View) -> String) -> String;

    /// Calls `visit` for each view, with whether it is written: operands before results.
    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool));

    /// Calls `change` for each view.
    fn change_views(&mut self, change: &mut dyn FnMut(&mut View));

    /// Returns how many terms the longest sum has.
    fn longest_sum(&self) -> usize {
        1
    }

    /// Returns the number of multiplications. It saturates instead of overflowing.
    fn multiplications(&self) -> usize {
        0
    }

    /// Returns the part of the multiplications that a kernel does not leave out.
    fn part_of_multiplications(&self) -> f64 {
        1.0
    }

    /// Returns the operand that is multiplied by tensor cores if its elements have 16 bits.
    fn tensor_core_operand(&self) -> Option<&View> {
        None
    }

    /// Returns the bytes that a kernel reads and writes; `bytes` are those of a view.
    fn moved_bytes(&self, bytes: &dyn Fn(&View) -> f64) -> f64 {
        let mut all = 0.0;
        self.visit_views(&mut |it, _| all += bytes(it));
        all
    }

    /// Returns the bytes that it owns besides views.
    fn own_bytes(&self) -> usize {
        0
    }
}

impl dyn Computation + '_ {
    /// Returns the cost.
    pub fn cost_info(&self) -> CostInfo {
        let (class, label) = (CostClass::Compute, Some(self.name()));
        CostInfo { class, label, reduction_len: self.longest_sum() }
    }

    /// Returns whether tensor cores multiply its operands, which are in these buffers.
    pub fn uses_tensor_cores(&self, buffers: &[Buffer]) -> bool {
        let dtype = |it: &View| -> DType { buffers[it.buffer as usize].dtype };
        self.tensor_core_operand().is_some_and(|it| dtype(it).size() <= 2)
    }
}

/// Returns the notation of several views.
pub(super) fn list<'p>(views: impl IntoIterator<Item = &'p View>, view: &dyn Fn(&View) -> String) -> String {
    views.into_iter().map(view).collect::<Vec<_>>().join(", ")
}

/// The instructions that have `InstKind::computation`, as a pattern for matches that name all instructions.
#[macro_export]
macro_rules! computation_insts {
    () => {
        $crate::InstKind::Gemm(_)
            | $crate::InstKind::Attention(_)
            | $crate::InstKind::AttentionGradient(_)
            | $crate::InstKind::Routine(_)
            | $crate::InstKind::Reduce(_)
            | $crate::InstKind::OpaqueCall(_)
    };
}

macro_rules! computation {
    ($kind:expr, $deref:ident) => {
        match $kind {
            InstKind::Gemm(it) => Some(it.$deref()),
            InstKind::Attention(it) => Some(it.$deref()),
            InstKind::AttentionGradient(it) => Some(it.$deref()),
            InstKind::Routine(it) => Some(it.$deref()),
            InstKind::Reduce(it) => Some(it.$deref()),
            InstKind::OpaqueCall(it) => Some(it.$deref()),
            InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Constant { .. }
            | InstKind::Map { .. }
            | InstKind::PeerReduce { .. }
            | InstKind::Collective(_)
            | InstKind::P2pGroup(_)
            | InstKind::Reshard(_)
            | $crate::ordering_insts!() => None,
        }
    };
}

impl InstKind {
    /// Returns what an instruction that computes states about itself.
    pub fn computation(&self) -> Option<&dyn Computation> {
        computation!(self, as_ref)
    }

    /// As `computation`, to change it.
    pub fn computation_mut(&mut self) -> Option<&mut dyn Computation> {
        computation!(self, as_mut)
    }
}
