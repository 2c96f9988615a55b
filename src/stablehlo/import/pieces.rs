//! Tensors that updates of slices put together, as a `scan` stacks its results: pieces along a dimension, which one `cat` joins where an
//! operation reads the whole tensor. Otherwise each iteration would copy it.

use grammar::{
    ir::{OpStmt, Operand},
    ops::Op,
    span::Span,
};
use hir_ir::build::apply;

use super::Importer;
use crate::value::{AxisSet, Tensor, Value};

/// How many pieces a tensor has at most before the program stores it: each update lists those that it keeps.
const MAX_PIECES: usize = 4096;

/// A number in `Importer::pieces`, and where the piece ends in the tensor.
type Piece = (u32, u32);

/// A tensor of pieces.
pub(super) struct Pieces {
    dim: usize,
    /// The pieces, and where each ends in the dimension.
    all: Vec<Piece>,
    /// The update, until the program stores the tensor.
    pending: Option<Span>,
}

impl Importer<'_, '_> {
    /// Returns values behind one another along a dimension, which the program stores when an operation reads all of them.
    pub(super) fn joined_later(&mut self, values: Vec<Value>, dim: usize) -> Value {
        let extent = values.iter().fold(0i64, |sum, it| sum.saturating_add(it.shape()[dim]));
        // Complex numbers have their own parts.
        if self.has_parts || u32::try_from(extent).is_err() {
            return self.joined(values, dim);
        }
        let mut all = Vec::new();
        values.iter().for_each(|it| self.extend(&mut all, it, dim));
        if all.len() > MAX_PIECES || all.is_empty() {
            return self.joined(values, dim);
        }
        self.of_pieces(all, dim)
    }

    /// Returns a tensor of pieces with another value at a range of their dimension; `None` for another tensor or dimension.
    pub(super) fn with_piece(
        &mut self,
        value: &Value,
        update: &Value,
        dim: usize,
        start: i64,
    ) -> Option<Value> {
        let (end, extent) = (start + update.shape()[dim], value.shape()[dim]);
        let Value::Tensor(tensor) = value else { return None };
        self.pieces_of(value, dim)?;
        let mut all = self.pieces_in(tensor, dim, [0, start]);
        self.extend(&mut all, update, dim);
        let rest = self.pieces_in(tensor, dim, [end, extent]);
        all.extend(rest.into_iter().map(|(piece, it)| (piece, it + end as u32)));
        (all.len() <= MAX_PIECES).then(|| self.of_pieces(all, dim))
    }

    /// Adds the pieces of a value behind others.
    fn extend(&mut self, all: &mut Vec<Piece>, value: &Value, dim: usize) {
        let start = all.last().map_or(0, |it| it.1);
        let extent = value.shape()[dim];
        match self.pieces_of(value, dim) {
            Some(own) => all.extend(own.iter().map(|(piece, end)| (*piece, start + end))),
            None if extent > 0 => {
                all.push((self.pieces.len() as u32, start + extent as u32));
                self.pieces.push(value.clone());
            }
            None => {}
        }
    }

    /// Returns a tensor of pieces, or the only piece.
    fn of_pieces(&mut self, all: Vec<Piece>, dim: usize) -> Value {
        let first = &self.pieces[all[0].0 as usize];
        if all.len() == 1 {
            return first.clone();
        }
        let (mut shape, dtype) = (first.shape().to_vec(), first.dtype());
        shape[dim] = all.last().map_or(0, |it| it.1.into());
        let axes = all.iter().fold(0, |axes, it| axes | self.pieces[it.0 as usize].axes());
        let tensor = self.tensor(axes, &shape, dtype);
        self.joins.insert(tensor.id, Pieces { dim, all, pending: Some(self.out.span) });
        Value::Tensor(tensor)
    }

    /// Returns the pieces in a range of a tensor, of which the first and the last one are cut.
    fn pieces_in(&mut self, tensor: &Tensor, dim: usize, [from, to]: [i64; 2]) -> Vec<Piece> {
        let Some(own) = self.joins.get(&tensor.id).filter(|_| from < to) else { return Vec::new() };
        let (from, to) = (from as u32, to as u32);
        let first = own.all.partition_point(|it| it.1 <= from);
        let last = own.all.partition_point(|it| it.1 < to);
        let start = if first == 0 { 0 } else { own.all[first - 1].1 };
        let mut found = own.all[first..=last].to_vec();
        let ends = [0, found.len() - 1];
        for at in &ends[usize::from(ends[1] == 0)..] {
            let before = if *at == 0 { start } else { found[at - 1].1 };
            let (piece, end) = found[*at];
            let (low, high) = (before.max(from), end.min(to));
            if high - low < end - before {
                let value = self.pieces[piece as usize].clone();
                let mut ranges: Vec<[i64; 3]> = value.shape().iter().map(|it| [0, *it, 1]).collect();
                ranges[dim] = [i64::from(low - before), i64::from(high - before), 1];
                let cut = self.sliced(value, &ranges);
                found[*at].0 = self.pieces.len() as u32;
                self.pieces.push(cut);
            }
        }
        found.iter_mut().for_each(|it| it.1 = it.1.min(to) - from);
        found
    }

    /// Returns the pieces of a value along a dimension, if it is not yet stored.
    fn pieces_of(&self, value: &Value, dim: usize) -> Option<&[Piece]> {
        let Value::Tensor(it) = value else { return None };
        self.joins.get(&it.id).filter(|own| own.dim == dim && own.pending.is_some()).map(|own| &own.all[..])
    }

    /// Returns the range from `from` to `to` of a tensor of pieces, whole in its other dimensions; `None` for another tensor or dimension.
    pub(super) fn range_of_pieces(&mut self, tensor: &Tensor, ranges: &[[i64; 3]]) -> Option<Value> {
        let dim = self.joins.get(&tensor.id)?.dim;
        let is_whole = |(at, it): (usize, &[i64; 3])| at == dim || *it == [0, tensor.shape[at], 1];
        let [from, to, 1] = ranges[dim] else { return None };
        if from >= to || !ranges.iter().enumerate().all(is_whole) {
            return None;
        }
        self.pieces_of(&Value::Tensor(tensor.clone()), dim)?;
        let all = self.pieces_in(tensor, dim, [from, to]);
        Some(self.of_pieces(all, dim))
    }

    /// Stores a value that an operation reads, if it has pieces.
    pub(super) fn store(&mut self, value: &Value) {
        if let Value::Tensor(it) = value {
            self.store_pieces(it);
        }
    }

    /// Stores a tensor of pieces that an operation reads.
    pub(super) fn store_pieces(&mut self, tensor: &Tensor) {
        let Some(own) = self.joins.get_mut(&tensor.id) else { return };
        let Some(span) = own.pending.take() else { return };
        let (dim, all) = (own.dim, std::mem::take(&mut own.all));
        let span = std::mem::replace(&mut self.out.span, span);
        let values = all.into_iter().map(|it| self.pieces[it.0 as usize].clone()).collect();
        let stmt = self.cat(values, dim, tensor.axes);
        self.out.assign(tensor.id, stmt);
        self.out.span = span;
    }

    /// Returns the statement that joins values, on these devices.
    pub(super) fn cat(&mut self, values: Vec<Value>, dim: usize, axes: AxisSet) -> OpStmt {
        let mut operands: Vec<Operand> = Vec::with_capacity(values.len() + 1);
        for it in values {
            let it = self.materialized(it);
            operands.push(self.on_axes(it, axes).id.into());
        }
        operands.push(self.dim_of(axes, dim).into());
        apply(Op::Cat, operands)
    }
}
