//! The gradient of pooling: each window selects one of its elements, which gets what belongs to the window.

use grammar::{DType, Op};

use super::{
    Importer, Results,
    lift::Combiner,
    pad::Padding,
    reduce::{NO_REDUCER, Reducer},
};
use crate::{
    tree::Operation,
    value::{Scalar, Splat, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn select_and_scatter(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value, source, initial] = self.operands(op, operands)?;
        let (shape, dtype) = (value.shape().to_vec(), value.dtype());
        let (windows, padding) = self.windows(op, shape.len())?;
        let positions = self.positions(op, &windows)?;
        let [select, scatter] = &op.regions[..] else { return Err(self.missing(op, "regions")) };
        let Some(reducer) = Reducer::of_region(scatter, dtype) else {
            return Err(self.unsupported_form(op, NO_REDUCER));
        };
        let number = |at: i64| {
            let shape = source.shape().to_vec();
            Value::Splat(Splat { scalar: Scalar::Int(at), shape, dtype: DType::Int32 })
        };
        // The element that each window has selected: its value, its position, and whether there is one.
        let is_element = self.elements_in(&value, &padding)?;
        let padded = self.padded(value, &initial, &padding)?;
        let mut selected: Option<(Value, Value, Option<Value>)> = None;
        for at in 0..positions {
            let own = self.window_elements(op, padded.clone(), &windows, at)?;
            if own.shape() != source.shape() {
                let message =
                    format!("the windows of `{}` are not as many as the elements of its source", op.name);
                return Err(self.bad_module(message, "expected an element for each window"));
            }
            let is_own = match &is_element {
                Some(it) => Some(self.window_elements(op, it.clone(), &windows, at)?),
                None => None,
            };
            let Some((best, place, has_one)) = selected else {
                selected = Some((own, number(at), is_own));
                continue;
            };
            let keeps = self.combined(Combiner::Region(select), vec![best.clone(), own.clone()])?;
            let [mut keeps] = self.operands(op, keeps)?;
            let mut has_any = has_one.clone();
            if let (Some(has_one), Some(is_own)) = (has_one, is_own) {
                let is_padding = self.map(Op::LogicalNot, vec![is_own.clone()], DType::Bool)?;
                keeps = self.binary_values("and", keeps, has_one.clone())?;
                keeps = self.binary_values("or", keeps, is_padding)?;
                has_any = Some(self.binary_values("or", has_one, is_own)?);
            }
            let best = self.select_values(keeps.clone(), best, own)?;
            selected = Some((best, self.select_values(keeps, place, number(at))?, has_any));
        }
        let Some((_, place, _)) = selected else { return Err(self.missing(op, "window_dimensions")) };
        // What each position gets, on the places of the padded operand.
        let none = Value::Splat(Splat { scalar: reducer.with_initial(dtype).1, shape: Vec::new(), dtype });
        let mut result = self.broadcast_value(initial, &[], padded.shape())?;
        for at in 0..positions {
            let is_selected = self.folded_or_mapped(Op::Eq, place.clone(), number(at), DType::Bool)?;
            let others = self.broadcast_value(none.clone(), &[], source.shape())?;
            let own = self.select_values(is_selected, source.clone(), others)?;
            let mut rest = at;
            let mut spread = vec![Padding { low: 0, high: 0, interior: 0 }; windows.len()];
            for (dim, it) in windows.iter().enumerate().rev() {
                let low = rest % it.size;
                rest /= it.size;
                let last = (source.shape()[dim] - 1).saturating_mul(it.stride).saturating_add(low);
                let high = padded.shape()[dim].saturating_sub(1).saturating_sub(last);
                spread[dim] = Padding { low, high, interior: it.stride - 1 };
            }
            let own = self.padded(own, &none, &spread)?;
            result = self.binary_values(reducer.name(), result, own)?;
        }
        let back: Vec<[i64; 3]> = shape
            .iter()
            .zip(&padding)
            .map(|(extent, it)| [it.low, it.low.saturating_add(*extent), 1])
            .collect();
        Ok(vec![self.sliced(result, &back)])
    }
}
