//! What a value of the module is in the program that is made.

use grammar::{DType, Expr, ExprId, TensorId};
use hir_ir::build::ProgramBuilder;

use crate::tree::TensorType;

/// Axes of the mesh of a manual region along which a value differs, one bit for each axis of the mesh.
pub(crate) type AxisSet = u8;

/// A value of the module.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Tensor(Tensor),
    Splat(Splat),
}

/// A tensor of the program. In a manual region it has one device axis for each axis of `axes`, before its own dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) id: TensorId,
    pub(crate) axes: AxisSet,
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: DType,
}

/// A tensor whose elements are all equal. It becomes a scalar operand where an operator has one, and `full` elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Splat {
    pub(crate) scalar: Scalar,
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: DType,
}

/// A number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Scalar {
    Bool(bool),
    /// An integer. An unsigned one of 64 bits has the bits of this one: -1 is 2^64-1, as in the literals of Host IR.
    Int(i64),
    Float(f64),
    /// A named scalar of the program, which differs between the devices along these axes.
    Named(ExprId, AxisSet),
}

impl Scalar {
    /// Returns the axes along which the number differs.
    pub(crate) fn axes(&self) -> AxisSet {
        match self {
            Self::Named(_, axes) => *axes,
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => 0,
        }
    }

    /// Returns it as an operand of a statement, for elements of type `dtype`.
    pub(crate) fn expr(&self, dtype: DType, out: &mut ProgramBuilder) -> ExprId {
        match self {
            Self::Bool(value) => out.expr(Expr::Bool(*value)),
            Self::Int(value) => out.int(*value),
            Self::Float(value) => {
                let text = match value {
                    it if it.is_nan() => "nan".to_owned(),
                    it if it.is_infinite() => (if *it < 0.0 { "-inf" } else { "inf" }).to_owned(),
                    it => format!("{it:?}"),
                };
                out.expr(Expr::Float(if dtype == DType::Float { dtype } else { DType::Double }, text))
            }
            Self::Named(it, _) => *it,
        }
    }
}

/// What stands for the type of tokens, which order effects: the order of the program does that.
pub(crate) static TOKEN: TensorType = TensorType { shape: Vec::new(), dtype: DType::Bool, bits: 0 };

impl Value {
    /// Returns the value of a token.
    pub(crate) fn token() -> Self {
        Self::Splat(Splat { scalar: Scalar::Bool(true), shape: Vec::new(), dtype: TOKEN.dtype })
    }

    pub(crate) fn shape(&self) -> &[i64] {
        match self {
            Self::Tensor(it) => &it.shape,
            Self::Splat(it) => &it.shape,
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Tensor(it) => it.dtype,
            Self::Splat(it) => it.dtype,
        }
    }

    /// Returns its shape and element type.
    pub(crate) fn ty(&self) -> (&[i64], DType) {
        (self.shape(), self.dtype())
    }

    pub(crate) fn axes(&self) -> AxisSet {
        match self {
            Self::Tensor(it) => it.axes,
            Self::Splat(it) => it.scalar.axes(),
        }
    }

    /// Returns the number that all elements are, if the module states it.
    pub(crate) fn constant(&self) -> Option<&Scalar> {
        match self {
            Self::Splat(Splat { scalar: Scalar::Named(..), .. }) | Self::Tensor(_) => None,
            Self::Splat(it) => Some(&it.scalar),
        }
    }
}
