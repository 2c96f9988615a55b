//! Reductions of windows: prefix scans, and pooling.

use grammar::{DType, Op, attr};
use hir_ir::build::apply;

use super::{
    Imported, Importer, Results,
    lift::Combiner,
    pad::Padding,
    reduce::{NO_REDUCER, Reducer},
};
use crate::{
    tree::{Attribute, Operation},
    value::{Scalar, Splat, Tensor, Value},
};

/// A window along one dimension.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) size: i64,
    pub(super) stride: i64,
    /// The distance of its elements.
    pub(super) dilation: i64,
}

/// The greatest number of positions in a window that is not a prefix: each is a statement.
pub(super) const MAX_POSITIONS: i64 = 4096;

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn reduce_window(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let (values, initial) = operands.split_at(operands.len() / 2);
        let Some(first) = values.first().filter(|_| operands.len() == 2 * values.len()) else {
            return Err(self.missing(op, "operands"));
        };
        let (shape, dtype) = (first.shape().to_vec(), first.dtype());
        let (windows, padding) = self.windows(op, shape.len())?;
        let Some(region) = op.regions.first().filter(|it| it.arguments.len() == operands.len()) else {
            return Err(self.unsupported_form(op, NO_REDUCER));
        };
        if values.iter().any(|it| it.shape() != shape) {
            return Err(self.bad_module("the operands have different shapes", "expected equal shapes"));
        }
        let reducer = Reducer::of_region(region, dtype);
        let is_neutral = initial[0]
            .constant()
            .is_some_and(|it| reducer.is_some_and(|reducer| reducer.is_neutral(it, dtype)));
        let is_plain = is_neutral
            && windows.iter().all(|it| it.stride == 1 && it.dilation == 1)
            && padding.iter().all(|it| it.interior == 0);
        if let Some((dim, is_reversed)) = prefix(&shape, &windows, &padding).filter(|_| is_plain)
            && let Some(reducer) = reducer
        {
            return Ok(vec![self.scanned(op, values[0].clone(), reducer, dim, is_reversed)?]);
        }
        let positions = self.positions(op, &windows)?;
        // XLA does not count the padding, other than the specification of StableHLO.
        let is_element = if is_neutral { None } else { self.elements_in(&values[0], &padding)? };
        let padded =
            values.iter().zip(initial).map(|(it, initial)| self.padded(it.clone(), initial, &padding));
        let padded = padded.collect::<Imported<Vec<_>>>()?;
        let mut found: Vec<Value> = Vec::new();
        for position in 0..positions {
            let own = padded.iter().map(|it| self.window_elements(op, it.clone(), &windows, position));
            let own = own.collect::<Imported<Vec<_>>>()?;
            if found.is_empty() && is_neutral {
                found = own;
                continue;
            }
            if found.is_empty() {
                let start = initial.iter().map(|it| self.broadcast_value(it.clone(), &[], own[0].shape()));
                found = start.collect::<Imported<_>>()?;
            }
            let mut after = match reducer {
                Some(reducer) => {
                    vec![self.binary_values(reducer.name(), found[0].clone(), own[0].clone())?]
                }
                None => {
                    self.combined(Combiner::Region(region), found.iter().chain(&own).cloned().collect())?
                }
            };
            if let Some(it) = &is_element {
                let own = self.window_elements(op, it.clone(), &windows, position)?;
                let chosen = after.into_iter().zip(found);
                let chosen = chosen.map(|(after, before)| self.select_values(own.clone(), after, before));
                after = chosen.collect::<Imported<_>>()?;
            }
            found = after;
        }
        Ok(found)
    }

    /// Returns the windows of an operation, and the padding of its operand.
    pub(super) fn windows(&self, op: &Operation<'_>, rank: usize) -> Imported<(Vec<Window>, Vec<Padding>)> {
        let list = |name: &str| op.ints(&[name]).unwrap_or_else(|| vec![1; rank]);
        let sizes = list("window_dimensions");
        let (strides, dilations) = (list("window_strides"), list("window_dilations"));
        let spread = list("base_dilations");
        let edges = op.attribute(&["padding"]).map_or(Some(vec![[0, 0]; rank]), |it| padding_rows(it, rank));
        let lists = [&sizes, &strides, &dilations, &spread];
        let (true, Some(edges)) =
            (lists.iter().all(|it| it.len() == rank && it.iter().all(|it| *it > 0)), edges)
        else {
            return Err(self.bad_module(
                "the window does not match the operand",
                "expected positive numbers for each dimension",
            ));
        };
        let window = |at| Window { size: sizes[at], stride: strides[at], dilation: dilations[at] };
        let padding = |at: usize| {
            let [low, high] = edges[at];
            Padding { low, high, interior: spread[at] - 1 }
        };
        Ok(((0..rank).map(window).collect(), (0..rank).map(padding).collect()))
    }

    /// Returns the number of positions of a window, each of which is a statement.
    pub(super) fn positions(&self, op: &Operation<'_>, windows: &[Window]) -> Imported<i64> {
        let positions = windows.iter().fold(1i64, |count, it| count.saturating_mul(it.size));
        if positions > MAX_POSITIONS {
            return Err(self.unsupported_form(op, &format!("a window of more than {MAX_POSITIONS} elements")));
        }
        Ok(positions)
    }

    /// Returns which elements of a padded value are not padding; `None` if all are.
    pub(super) fn elements_in(&mut self, value: &Value, padding: &[Padding]) -> Imported<Option<Value>> {
        if padding.iter().all(|it| it.low <= 0 && it.high <= 0 && it.interior == 0) {
            return Ok(None);
        }
        let all = |shape: &[i64], is: bool| {
            Value::Splat(Splat { scalar: Scalar::Bool(is), shape: shape.to_vec(), dtype: DType::Bool })
        };
        self.padded(all(value.shape(), true), &all(&[], false), padding).map(Some)
    }

    /// Returns the elements at one position of all windows: a slice with the strides of the windows.
    pub(super) fn window_elements(
        &mut self,
        op: &Operation<'_>,
        value: Value,
        windows: &[Window],
        position: i64,
    ) -> Imported<Value> {
        let mut ranges = vec![[0, 0, 1]; windows.len()];
        let mut rest = position;
        for (at, it) in windows.iter().enumerate().rev() {
            let start = rest % it.size * it.dilation;
            rest /= it.size;
            // The last start of a window, behind which there is space for all of its elements.
            let free = (it.size - 1).checked_mul(it.dilation).map(|span| value.shape()[at] - 1 - span);
            let Some(free) = free.filter(|it| *it >= 0) else {
                return Err(self.unsupported_form(op, "a window larger than the operand"));
            };
            ranges[at] = [start, start + free + 1, it.stride];
        }
        Ok(self.sliced(value, &ranges))
    }

    /// Returns the combination of all elements up to each one, or from each one on.
    fn scanned(
        &mut self,
        op: &Operation<'_>,
        value: Value,
        reducer: Reducer,
        dim: usize,
        is_reversed: bool,
    ) -> Imported<Value> {
        let name = match reducer {
            Reducer::Add => None,
            Reducer::Mul => Some("mul"),
            Reducer::Max => Some("max"),
            Reducer::Min => Some("min"),
            Reducer::And | Reducer::Or => return Err(self.unsupported_form(op, "of booleans")),
        };
        let value = if is_reversed { self.reversed(value, dim) } else { value };
        let it: Tensor = self.materialized(value);
        let mut stmt = apply(Op::Scan, [it.id]).with(attr::DIM, self.dim_of(it.axes, dim));
        if let Some(name) = name {
            stmt.set(attr::SCAN_OP, name.to_owned());
        }
        let it = self.emit(it.axes, &it.shape, it.dtype, stmt);
        Ok(if is_reversed { self.reversed(Value::Tensor(it), dim) } else { Value::Tensor(it) })
    }
}

/// Returns the padding in front of and behind each dimension.
pub(super) fn padding_rows(stated: &Attribute<'_>, rank: usize) -> Option<Vec<[i64; 2]>> {
    let rows: Vec<Vec<i64>> = match stated {
        Attribute::Array(rows) => rows.iter().map(Attribute::ints).collect::<Option<_>>()?,
        Attribute::Dense(items, _) => match items[..] {
            // One number for all of them.
            [Attribute::Int(it)] => return Some(vec![[it, it]; rank]),
            _ => stated.rows()?,
        },
        _ => return None,
    };
    let rows = rows.into_iter().map(|it| it.try_into().ok()).collect::<Option<Vec<[i64; 2]>>>()?;
    Some(rows).filter(|it| it.len() == rank)
}

/// Returns the dimension along which each window has all elements up to its own one, or, with `true`, all from its own one on.
fn prefix(shape: &[i64], windows: &[Window], padding: &[Padding]) -> Option<(usize, bool)> {
    let edges: Vec<[i64; 2]> = padding.iter().map(|it| [it.low, it.high]).collect();
    let mut long = (0..windows.len()).filter(|it| windows[*it].size != 1);
    let dim = long.next().filter(|it| long.next().is_none() && windows[*it].size == shape[*it])?;
    let others = (0..edges.len()).all(|at| at == dim || edges[at] == [0, 0]);
    let before = shape[dim] - 1;
    match edges[dim] {
        [low, 0] if low == before && others => Some((dim, false)),
        [0, high] if high == before && others => Some((dim, true)),
        _ => None,
    }
}
