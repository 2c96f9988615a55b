//! Tensors that updates of slices put together, as a `scan` stacks its results: pieces along a dimension, which one `cat` joins where an
//! operation reads the whole tensor. Otherwise each iteration would copy it.

use grammar::{Op, OpStmt, Operand, Span, TensorId};
use hir_ir::build::apply;

use super::Importer;
use crate::value::{AxisSet, Tensor, Value};

/// How many pieces a tensor has at most before the program stores it.
const MAX_PIECES: usize = 4096;

/// A tensor of pieces.
#[derive(Clone)]
pub(super) struct Pieces {
    dim: usize,
    /// How many pieces it has at most.
    count: usize,
    content: Content,
    /// The update, until the program stores the tensor.
    pending: Option<Span>,
}

#[derive(Clone)]
enum Content {
    /// Values behind one another, each with where it ends.
    Row(Vec<(Value, i64)>),
    /// Another tensor of pieces with a value in a range. So an update takes the same time whatever it keeps.
    Update(TensorId, Value, [i64; 2]),
}

impl Importer<'_, '_> {
    /// Returns values behind one another along a dimension, which the program stores when an operation reads all of them.
    pub(super) fn joined_later(&mut self, values: Vec<Value>, dim: usize) -> Value {
        // Complex numbers have their own parts.
        if self.has_parts || values.len() > MAX_PIECES || values.iter().all(|it| it.shape()[dim] == 0) {
            return self.joined(values, dim);
        }
        self.row(values.into_iter().filter(|it| it.shape()[dim] > 0).collect(), dim)
    }

    /// Returns a tensor of pieces with another value at a range of their dimension; `None` for another tensor or dimension.
    pub(super) fn with_piece(
        &mut self,
        value: &Value,
        update: &Value,
        dim: usize,
        start: i64,
    ) -> Option<Value> {
        let Value::Tensor(tensor) = value else { return None };
        let size = update.shape()[dim];
        let count =
            self.pending_count(value, dim)?.saturating_add(2 + self.pending_count(update, dim).unwrap_or(0));
        if count > MAX_PIECES || size == 0 {
            return None;
        }
        let content = Content::Update(tensor.id, update.clone(), [start, start + size]);
        Some(self.of_pieces(tensor.axes | update.axes(), value, dim, count, content))
    }

    /// Returns values behind one another, or the only one.
    fn row(&mut self, mut values: Vec<Value>, dim: usize) -> Value {
        if values.len() == 1 {
            return values.remove(0);
        }
        let axes = values.iter().fold(0, |axes, it| axes | it.axes());
        let count =
            values.iter().map(|it| self.pending_count(it, dim).unwrap_or(1)).fold(0, usize::saturating_add);
        let mut end = 0;
        let mut ending = |it: Value| {
            end += it.shape()[dim];
            (it, end)
        };
        let row: Vec<(Value, i64)> = values.into_iter().map(&mut ending).collect();
        let like = row[0].0.clone();
        self.of_pieces(axes, &like, dim, count, Content::Row(row))
    }

    /// Declares a tensor of pieces, which is like another one in its other dimensions.
    fn of_pieces(
        &mut self,
        axes: AxisSet,
        like: &Value,
        dim: usize,
        count: usize,
        content: Content,
    ) -> Value {
        let mut shape = like.shape().to_vec();
        if let Content::Row(all) = &content {
            shape[dim] = all.last().map_or(0, |it| it.1);
        }
        let tensor = self.tensor(axes, &shape, like.dtype());
        self.joins.insert(tensor.id, Pieces { dim, count, content, pending: Some(self.out.span) });
        Value::Tensor(tensor)
    }

    /// Returns what is in a range of a tensor of pieces, in its order.
    fn pieces_in(&mut self, tensor: TensorId, dim: usize, range: [i64; 2]) -> Vec<Value> {
        // The ranges that no later update has written, and what is written in the others: where it begins, and its own range.
        let (mut open, mut found) = (vec![range], Vec::new());
        let mut next = Some(tensor);
        while let Some(own) = next.and_then(|it| self.joins.get(&it)) {
            let mut rest = Vec::new();
            let mut write = |[from, to]: [i64; 2], value: &Value, [start, end]: [i64; 2]| {
                let (low, high) = (from.max(start), to.min(end));
                if low < high {
                    found.push((low, value.clone(), [low - start, high - start]));
                }
            };
            next = match &own.content {
                Content::Update(base, value, range) => {
                    for it @ [from, to] in open {
                        write(it, value, *range);
                        let both = [[from, to.min(range[0])], [from.max(range[1]), to]];
                        rest.extend(both.into_iter().filter(|it| it[0] < it[1]));
                    }
                    Some(*base)
                }
                Content::Row(all) => {
                    for it in open {
                        let first = all.partition_point(|piece| piece.1 <= it[0]);
                        let mut start = first.checked_sub(1).map_or(0, |at| all[at].1);
                        for (value, end) in &all[first..] {
                            if start >= it[1] {
                                break;
                            }
                            write(it, value, [start, *end]);
                            start = *end;
                        }
                    }
                    None
                }
            };
            open = rest;
        }
        found.sort_by_key(|it| it.0);
        let mut all = Vec::with_capacity(found.len());
        for (_, value, [from, to]) in found {
            match &value {
                Value::Tensor(it) if self.pending_count(&value, dim).is_some() => {
                    all.extend(self.pieces_in(it.id, dim, [from, to]));
                }
                _ => {
                    let mut ranges: Vec<[i64; 3]> = value.shape().iter().map(|it| [0, *it, 1]).collect();
                    ranges[dim] = [from, to, 1];
                    all.push(self.sliced(value, &ranges));
                }
            }
        }
        all
    }

    /// Returns how many pieces along a dimension a value has at most, if it is not yet stored.
    fn pending_count(&self, value: &Value, dim: usize) -> Option<usize> {
        let Value::Tensor(it) = value else { return None };
        self.joins.get(&it.id).filter(|own| own.dim == dim && own.pending.is_some()).map(|own| own.count)
    }

    /// Returns the range from `from` to `to` of a tensor of pieces, whole in its other dimensions; `None` for another tensor or dimension.
    pub(super) fn range_of_pieces(&mut self, tensor: &Tensor, ranges: &[[i64; 3]]) -> Option<Value> {
        let dim = self.joins.get(&tensor.id).filter(|it| it.pending.is_some())?.dim;
        let is_whole = |(at, it): (usize, &[i64; 3])| at == dim || *it == [0, tensor.shape[at], 1];
        let [from, to, 1] = ranges[dim] else { return None };
        if from >= to || !ranges.iter().enumerate().all(is_whole) {
            return None;
        }
        let all = self.pieces_in(tensor.id, dim, [from, to]);
        (!all.is_empty()).then(|| self.row(all, dim))
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
        let dim = own.dim;
        let span = std::mem::replace(&mut self.out.span, span);
        let values = self.pieces_in(tensor.id, dim, [0, tensor.shape[dim]]);
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
