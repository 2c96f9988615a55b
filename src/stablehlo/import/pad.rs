//! Padding and reversal.

use grammar::{DType, Op, attr};
use hir_ir::build::apply;

use super::{Imported, Importer, Results};
use crate::{
    tree::Operation,
    value::{Tensor, Value},
};

/// The padding of one dimension: the elements in front, behind, and between each two. Negative edges remove elements.
#[derive(Clone, Copy)]
pub(super) struct Padding {
    pub(super) low: i64,
    pub(super) high: i64,
    pub(super) interior: i64,
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn pad(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value, padding] = self.operands(op, operands)?;
        let rank = value.shape().len();
        let low = op.ints(&["low", "edge_padding_low"]);
        let high = op.ints(&["high", "edge_padding_high"]);
        let interior = op.ints(&["interior", "interior_padding"]).unwrap_or_else(|| vec![0; rank]);
        let (Some(low), Some(high)) = (low, high) else { return Err(self.missing(op, "low")) };
        if low.len() != rank || high.len() != rank || interior.len() != rank {
            return Err(self.bad_module(
                "the padding does not match the operand",
                "expected a number for each dimension",
            ));
        }
        let all = low.into_iter().zip(high).zip(interior);
        let all: Vec<_> = all.map(|((low, high), interior)| Padding { low, high, interior }).collect();
        Ok(vec![self.padded(value, &padding, &all)?])
    }

    /// Returns a value with `padding`, which has no dimensions, around and between its elements.
    pub(super) fn padded(&mut self, value: Value, padding: &Value, all: &[Padding]) -> Imported<Value> {
        let mut value = value;
        for (dim, it) in all.iter().enumerate() {
            value = self.spread(value, padding, dim, it.interior)?;
        }
        let cut: Vec<[i64; 3]> = (value.shape().iter().zip(all))
            .map(|(extent, it)| [it.low.min(0).saturating_neg(), extent.saturating_add(it.high.min(0)), 1])
            .collect();
        if cut.iter().any(|[start, limit, _]| start > limit) {
            return Err(self.bad_module("negative padding removes more than all elements", "expected less"));
        }
        value = self.sliced(value, &cut);
        for (dim, it) in all.iter().enumerate() {
            let before = self.padding_part(padding, value.shape(), dim, it.low)?;
            let after = self.padding_part(padding, value.shape(), dim, it.high)?;
            value = self.joined(before.into_iter().chain([value]).chain(after).collect(), dim);
        }
        Ok(value)
    }

    /// Returns the elements that padding adds along a dimension.
    fn padding_part(
        &mut self,
        padding: &Value,
        shape: &[i64],
        dim: usize,
        extent: i64,
    ) -> Imported<Option<Value>> {
        if extent <= 0 {
            return Ok(None);
        }
        let mut shape = shape.to_vec();
        shape[dim] = extent;
        self.broadcast_value(padding.clone(), &[], &shape).map(Some)
    }

    /// Puts `interior` elements between each two along a dimension: a new dimension has an element and those behind it.
    fn spread(&mut self, value: Value, padding: &Value, dim: usize, interior: i64) -> Imported<Value> {
        let extent = value.shape()[dim];
        if interior < 0 {
            return Err(self.bad_module("the padding between elements is negative", "expected 0 or more"));
        }
        if interior == 0 || extent < 2 {
            return Ok(value);
        }
        let (Some(step), false) = (interior.checked_add(1), interior > super::MAX_SIZE as i64) else {
            return Err(self.bad_module("the padding between elements is too large", "expected less"));
        };
        let mut shape = value.shape().to_vec();
        shape.insert(dim + 1, 1);
        let it = self.materialized(value);
        let alone = Value::Tensor(self.reshaped(it, &shape));
        let behind = self.padding_part(padding, &shape, dim + 1, interior)?;
        let pairs = self.joined([alone].into_iter().chain(behind).collect(), dim + 1);
        shape.remove(dim + 1);
        shape[dim] = extent.saturating_mul(step);
        let it = self.materialized(pairs);
        let all = Value::Tensor(self.reshaped(it, &shape));
        let mut ranges: Vec<[i64; 3]> = shape.iter().map(|extent| [0, *extent, 1]).collect();
        ranges[dim][1] -= interior;
        Ok(self.sliced(all, &ranges))
    }

    pub(crate) fn reverse(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let dims = op.ints(&["dims", "dimensions"]).ok_or_else(|| self.missing(op, "dims"))?;
        let rank = value.shape().len();
        let dims: Option<Vec<usize>> =
            dims.into_iter().map(|it| usize::try_from(it).ok().filter(|it| *it < rank)).collect();
        let is_once = |dims: &Vec<usize>| dims.iter().enumerate().all(|(at, it)| !dims[..at].contains(it));
        let Some(dims) = dims.filter(is_once) else {
            return Err(
                self.bad_module("`dims` are not those of the operand", "expected its dimensions, each once")
            );
        };
        Ok(vec![dims.into_iter().fold(value, |value, dim| self.reversed(value, dim))])
    }

    /// Returns the elements along a dimension, the last one first.
    pub(super) fn reversed(&mut self, value: Value, dim: usize) -> Value {
        match value {
            Value::Tensor(it) if it.shape[dim] > 1 => Value::Tensor(self.reversed_tensor(it, dim)),
            it => it,
        }
    }

    fn reversed_tensor(&mut self, tensor: Tensor, dim: usize) -> Tensor {
        let extent = tensor.shape[dim];
        let index = self.progression(extent, extent - 1, -1, DType::Int64);
        let at = self.dim_of(tensor.axes, dim);
        let stmt = apply(Op::IndexSelect, [tensor.id, index.id]).with(attr::DIM, at);
        self.emit(tensor.axes, &tensor.shape, tensor.dtype, stmt)
    }
}
