//! What statements imply for the numbers of logical axes of their tensors. `domains` infers domains from it.

use crate::ir::{AxisId, ParallelType, Program, TensorId};

/// The axes that count toward a tensor's rank in an equation between ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RankCount {
    /// All axes but reductions.
    WithoutReductions,
    /// All axes, including reductions.
    WithReductions,
}

/// Facts about the ranks of tensors.
#[derive(Default)]
pub struct RankFacts {
    /// Tensors of known logical rank.
    pub(crate) known: Vec<(TensorId, usize)>,
    /// Equations between ranks: the second tensor has `i32` more logical axes than the first; `RankCount`
    /// states whether reductions of the second count.
    pub(crate) equations: Vec<(TensorId, TensorId, i32, RankCount)>,
    /// Matrix products: both operands, the result, and the number of axes that the result has besides: its rank is
    /// the larger of those of the operands.
    pub(crate) products: Vec<(TensorId, TensorId, TensorId, i32)>,
}

impl RankFacts {
    /// Adds that two tensors have the same number of logical axes, without reductions.
    pub(crate) fn equal(&mut self, a: TensorId, b: TensorId) {
        self.equations.push((a, b, 0, RankCount::WithoutReductions));
    }
}

/// Returns the number of device axes of the partial sums that a matrix product leaves.
pub(super) fn partial_sums(program: &Program, out: TensorId) -> i32 {
    let partial = |axis: &&AxisId| {
        let axis = &program.axes[**axis];
        matches!(axis.parallel, ParallelType::Device(_)) && axis.is_rfactor()
    };
    program.tensors[out].loop_domain.iter().filter(partial).count() as i32
}
