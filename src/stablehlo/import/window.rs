//! Reductions of windows: prefix scans, and pooling.

use grammar::{attr, dtype::DType, ops::Op};
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
        let [value, initial] = self.operands(op, operands)?;
        let (windows, padding) = self.windows(op, value.shape().len())?;
        let Some(region) = op.regions.first().filter(|it| it.arguments.len() == 2) else {
            return Err(self.unsupported_form(op, NO_REDUCER));
        };
        let reducer = Reducer::of_region(region, value.dtype());
        let is_neutral = initial
            .constant()
            .is_some_and(|it| reducer.is_some_and(|reducer| reducer.is_neutral(it, value.dtype())));
        let is_plain = is_neutral
            && windows.iter().all(|it| it.stride == 1 && it.dilation == 1)
            && padding.iter().all(|it| it.interior == 0);
        if let Some((dim, is_reversed)) = prefix(value.shape(), &windows, &padding).filter(|_| is_plain)
            && let Some(reducer) = reducer
        {
            return Ok(vec![self.scanned(op, value, reducer, dim, is_reversed)?]);
        }
        let positions = self.positions(op, &windows)?;
        // XLA does not count the padding, other than the specification of StableHLO.
        let is_element = if is_neutral { None } else { self.elements_in(&value, &padding)? };
        let value = self.padded(value, &initial, &padding)?;
        let mut result: Option<Value> = None;
        for position in 0..positions {
            let own = self.window_elements(op, value.clone(), &windows, position)?;
            let before = match result {
                None if is_neutral => {
                    result = Some(own);
                    continue;
                }
                None => self.broadcast_value(initial.clone(), &[], own.shape())?,
                Some(it) => it,
            };
            let mut after = match reducer {
                Some(reducer) => self.binary_values(reducer.name(), before.clone(), own)?,
                None => {
                    let combined = self.combined(Combiner::Region(region), vec![before.clone(), own])?;
                    let [it] = self.operands(op, combined)?;
                    it
                }
            };
            if let Some(it) = &is_element {
                let own = self.window_elements(op, it.clone(), &windows, position)?;
                after = self.select_values(own, after, before)?;
            }
            result = Some(after);
        }
        result.map(|it| vec![it]).ok_or_else(|| self.missing(op, "window_dimensions"))
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
