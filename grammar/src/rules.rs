//! The type rules of operators: how an operator's results follow from its operands. One file for each rule.
//!
//! `check` verifies a statement, `infer` determines the type of a first result that the text does not declare, and `dims`
//! maps dimensions of operands to dimensions of results. The files of rules use the names of this module (`use super::*`), since they all need
//! about the same ones.

mod along_axis;
mod broadcast;
mod cast;
pub(crate) mod check;
mod communicate;
mod dims;
mod embedding;
mod expand;
mod generate;
pub(crate) mod infer;
mod linear;
mod matmul;
mod parts;
mod permute;
mod pointwise;
mod ranks;
mod reduce;
mod reshape;
mod same;
mod scaled;
mod sdpa;
mod sdpa_bwd;
mod select;
mod shard;
mod slice;
mod squeeze;
mod statement;
mod unchecked;
mod views;
mod welford;

use self::{
    check::Check,
    dims::{MappedOperand, are_equal, extents, number_unmapped, parallel_or_whole, partial_or_broadcast},
    infer::Operands,
    ranks::partial_sums,
};

pub use self::{
    broadcast::flagged_dims,
    dims::{
        DimGroup, DimMap, OperandMap, ResultDim, ScalarEvaluator, dims_of_first_result, operand_map,
        result_dims,
    },
    parts::{AxesState, LostDim, PartOperands},
    permute::permutation,
    ranks::RankFacts,
    select::selected_dim,
    slice::slice_takes_all,
    views::{Aliasing, OperandView},
};
pub(crate) use self::{permute::state_permutations, ranks::RankCount};
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::{Class, DType},
    ir::{Axis, AxisId, AxisKind, ExprId, OpStmt, Operand, ParallelType, Program, Stmt, TensorId},
    ops::{Op, TypeRule},
    suggest::{count_text, list_text},
    text::axis_text,
};

/// A type rule. The functions answer what the verifier, the passes and the planner ask about a statement.
pub trait Rule: Sync {
    /// Checks the operands and results of a statement. `args` are its positional tensors.
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]);

    /// Returns the axes of the first result, or `None` if the operands do not determine them, which is the default: then
    /// only the declared result says its sizes, which axes are reduced, or their order.
    fn result_axes(&self, _: &mut Operands<'_>) -> Option<Vec<Axis>> {
        None
    }

    /// Returns the element type of the first result; by default that of the operands.
    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        operands.dtype(0)
    }

    /// Returns whether each dimension of the first result is the same one of each operand, or a broadcast
    /// one. The defaults of the functions below follow from that.
    fn keeps_each_dim(&self) -> bool {
        false
    }

    /// Returns the map of an operand to the first result, or `None` if the operator moves elements in a way that a map of
    /// dimensions cannot describe.
    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        self.keeps_each_dim().then(|| OperandMap::Dims(operand.each_dim()))
    }

    /// Returns what a dimension of the first result is that no operand has.
    fn unmapped_dim(&self, _program: &Program, _stmt: &OpStmt, _axis: AxisId) -> ResultDim {
        if self.keeps_each_dim() { ResultDim::Broadcast } else { ResultDim::RequiresWhole }
    }

    /// Returns whether the operator sums products over a dimension of its first two operands. If that dimension is sharded,
    /// the result has a dimension of partial sums.
    fn is_matrix_product(&self) -> bool {
        false
    }

    /// Returns whether the dimensions of the result at `position` are, from the first one on, those of the first result. By
    /// default, results of the same shape correspond.
    fn has_dims_of_first_result(&self, _position: usize, is_same_shape: bool) -> bool {
        is_same_shape
    }

    /// Returns whether an operator without maps runs on the parts of each rank if all its tensors are sharded in the same way
    /// along the first dimension, and along no other one.
    fn runs_on_outermost_parts(&self, _stmt: &OpStmt) -> bool {
        false
    }

    /// Adds what a statement implies for the numbers of logical axes of its tensors. A dump shows only loop domains, so
    /// `domains` infers logical domains from these facts. `args` are the positional tensors, of which there is at least one.
    fn add_ranks(&self, _program: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        if self.keeps_each_dim() {
            ranks.equal(args[0], out);
        }
    }

    /// Returns whether the first result may be a view of the first positional operand.
    fn aliasing(&self) -> Aliasing {
        Aliasing::Never
    }

    /// Returns which operands must have a dimension of the first result if a statement is to compute a part of it along
    /// that dimension.
    fn part_operands(&self, _stmt: &OpStmt) -> PartOperands {
        PartOperands::Impossible
    }

    /// Returns whether the operator, applied to one index of a dimension at a time, computes the same elements.
    fn keeps_meaning_without(&self, _lost: &LostDim<'_>) -> bool {
        self.keeps_each_dim()
    }

    /// Returns what the axes of the first result state. A pass that gives a statement another result must keep that.
    fn axes_state(&self) -> AxesState {
        AxesState::Extents
    }
}

impl TypeRule {
    /// Returns the implementation of the rule.
    pub fn rule(self) -> &'static dyn Rule {
        match self {
            Self::Statement => &statement::Statement,
            Self::Unchecked => &unchecked::Unchecked,
            Self::Same => &same::Same,
            Self::Cast => &cast::Cast,
            Self::Pointwise => &pointwise::Pointwise,
            Self::Expand => &expand::Expand,
            Self::Linear => &linear::Linear,
            Self::Matmul => &matmul::Matmul,
            Self::Scaled => &scaled::Scaled,
            Self::Sdpa => &sdpa::Sdpa,
            Self::SdpaBwd => &sdpa_bwd::SdpaBwd,
            Self::Reduce => &reduce::Reduce,
            Self::Welford => &welford::Welford,
            Self::Broadcast => &broadcast::Broadcast,
            Self::Squeeze => &squeeze::Squeeze,
            Self::Permute => &permute::Permute,
            Self::Reshape => &reshape::Reshape,
            Self::Select => &select::Select,
            Self::Slice => &slice::Slice,
            Self::Shard => &shard::Shard,
            Self::AlongAxis => &along_axis::AlongAxis,
            Self::Embedding => &embedding::Embedding,
            Self::Communicate => &communicate::Communicate,
            Self::Generate => &generate::Generate,
        }
    }
}

impl OpStmt {
    /// Returns the type rule of the statement's operator.
    pub fn rule(&self) -> &'static dyn Rule {
        self.op.def().type_rule.rule()
    }
}
