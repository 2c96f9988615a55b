//! Tensors with their domains and memory spaces, and the methods of `Program` that return facts about one
//! tensor.

use std::sync::Arc;

use super::{AxisId, AxisKind, ExprId, Mesh, ParallelType, Program, TensorId, UnitId};
use crate::{arena::Id, dtype::DType};

/// A tensor, identified by its printed text; the number alone is unique only within one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The number in `T3`.
    pub number: u32,
    /// Memory space.
    pub memory: Memory,
    /// Element type; `None` if the dialect does not print it.
    pub dtype: Option<DType>,
    /// The loop domain, the only domain that dumps print.
    pub loop_domain: Vec<AxisId>,
    /// Compute positions such as ` ca_pos( 1 )`, verbatim.
    pub positions: String,
    /// The devices that hold the tensor; empty: all ranks. Shared, because a program has few distinct meshes.
    pub mesh: Arc<Mesh>,
    /// The HostUnit whose namespace contains the tensor; `None`: the container.
    pub unit: Option<UnitId>,
    /// Logical and allocation domain.
    pub domains: Domains,
}

/// The domains of a tensor that dumps do not print.
///
/// The default is a logical domain equal to the loop domain, no transforms, and allocation of the logical
/// domain.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Domains {
    /// The logical domain, including reduction axes.
    pub logical: Vec<AxisId>,
    /// The transforms from the logical to the loop domain, in order.
    pub transforms: Vec<Transform>,
    /// The allocation domain, slowest axis first; `None`: the logical domain. A stream axis is fully
    /// allocated unless it is in the allocation domain; then a rank holds one stream's slice at a time.
    pub allocation: Option<Vec<AxisId>>,
}

/// One transform between the logical and the loop domain.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Splits `input` into `outer` × `inner`; `factor` is the extent of `outer` if `outer_split`, else of
    /// `inner`.
    Split {
        /// The axis that is split.
        input: AxisId,
        /// The extent of one of the results.
        factor: ExprId,
        /// Whether `factor` is the extent of `outer`.
        outer_split: bool,
        /// The slower result.
        outer: AxisId,
        /// The faster result.
        inner: AxisId,
    },
    /// Merges `outer` × `inner` into one axis.
    Merge {
        /// The slower operand.
        outer: AxisId,
        /// The faster operand.
        inner: AxisId,
        /// The result.
        output: AxisId,
    },
    /// Rotates `input` by the rank's coordinate: index `i` of `output` is index `(i + coordinate) % extent`
    /// of `input`.
    Swizzle1D {
        /// The axis in its original order.
        input: AxisId,
        /// The rotated axis.
        output: AxisId,
    },
}

impl Transform {
    /// Returns the axes that the transform replaces, and those that it makes, slower ones first.
    pub fn axes(&self) -> (Vec<AxisId>, Vec<AxisId>) {
        match *self {
            Self::Split { input, outer, inner, .. } => (vec![input], vec![outer, inner]),
            Self::Merge { outer, inner, output } => (vec![outer, inner], vec![output]),
            Self::Swizzle1D { input, output } => (vec![input], vec![output]),
        }
    }
}

crate::named_enum! {
    /// The memory space of a tensor.
    /// The names are the letters in the names of tensors.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Memory {
        /// `g`.
        Global = "g",
        /// `l`: nvFuser's default for intermediate tensors; does not determine the memory space.
        Local = "l",
        /// `s`.
        Shared = "s",
        /// `t`.
        Tensor = "t",
        /// `sym`: symmetric memory, which peers can address.
        Symmetric = "sym",
    }
}

impl Program {
    /// Returns the short name of a tensor, such as `T3`, which reports use.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        format!("T{}", self.tensors[tensor].number)
    }

    /// Returns the name of a tensor in the `Domains:` section: `T3`, or `HostUnit0.T3` for one of a HostUnit.
    pub fn qualified_name(&self, tensor: TensorId) -> String {
        let name = self.tensor_name(tensor);
        // A unit may have been removed from the program.
        let unit = self.tensors[tensor].unit.filter(|it| it.index() < self.units.len());
        match unit {
            Some(unit) => format!("HostUnit{}.{name}", self.units[unit].number),
            None => name,
        }
    }

    /// Returns whether the tensor has default domains: a logical domain equal to the loop domain, no
    /// transforms, and no explicit allocation domain.
    pub fn has_plain_domains(&self, tensor: TensorId) -> bool {
        let Tensor { loop_domain: loops, domains: Domains { logical, transforms, allocation }, .. } =
            &self.tensors[tensor];
        logical == loops && transforms.is_empty() && allocation.is_none()
    }

    /// Returns the dimensions of the tensor in memory: its logical axes without reduction axes.
    pub fn dimensions(&self, tensor: TensorId) -> impl Iterator<Item = AxisId> {
        let logical = &self.tensors[tensor].domains.logical;
        logical.iter().copied().filter(|axis| self.axes[*axis].kind != AxisKind::Reduction)
    }

    /// Returns the loop axes that splits and swizzles derive from a logical axis of the tensor, slowest
    /// first.
    pub fn loop_axes_of(&self, tensor: TensorId, axis: AxisId) -> Vec<AxisId> {
        let mut leaves = vec![axis];
        for transform in &self.tensors[tensor].domains.transforms {
            let (input, outputs) = match transform {
                Transform::Split { input, outer, inner, .. } => (input, vec![*outer, *inner]),
                Transform::Swizzle1D { input, output } => (input, vec![*output]),
                Transform::Merge { .. } => continue,
            };
            if let Some(at) = leaves.iter().position(|leaf| leaf == input) {
                leaves.splice(at..=at, outputs);
            }
        }
        leaves
    }

    /// Returns whether a dimension counts partial sums over devices (`ideviceIdx.x22{2}rf`).
    pub fn is_partial(&self, tensor: TensorId, axis: AxisId) -> bool {
        let leaves = self.loop_axes_of(tensor, axis);
        let is_device = |leaf: &AxisId| matches!(self.axes[*leaf].parallel, ParallelType::Device(_));
        leaves.iter().all(is_device) && leaves.iter().any(|leaf| self.axes[*leaf].is_rfactor())
    }

    /// Returns whether a rank holds one stream's slice of the tensor at a time.
    pub fn is_split_by_stream(&self, tensor: TensorId) -> bool {
        let allocation = self.tensors[tensor].domains.allocation.iter().flatten();
        allocation.into_iter().any(|axis| self.axes[*axis].parallel == ParallelType::Stream)
    }
}
