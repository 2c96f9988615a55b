//! Attention and its gradient.

use grammar::{attr, dtype::DType, ir::TensorId};

use super::{Call, Computed, misfit};
use crate::{field::Element, view::Values};

impl Call<'_> {
    /// Returns the shape of an attention: the number of heads, the heads that share keys and values, rows, keys, columns, width.
    pub(super) fn heads(&self, query: &Values, key: &Values, value: &Values) -> Computed<[usize; 6]> {
        let ([outer @ .., rows, columns], [others @ .., keys, its], [more @ .., _, width]) =
            (&query.shape[..], &key.shape[..], &value.shape[..])
        else {
            return misfit();
        };
        let (heads, shared): (usize, usize) = (outer.iter().product(), others.iter().product());
        let split = outer.len().saturating_sub(1);
        if its != columns
            || others != more
            || outer.len() != others.len()
            || shared == 0
            || heads % shared != 0
            || outer[..split] != others[..split]
        {
            return misfit();
        }
        let dropout = self.stmt.get(attr::DROPOUT_P).map(|it| self.scalar(it)).transpose()?;
        if dropout.is_some_and(|it| it.real() != 0.0) {
            return Err("hir-certify does not know attentions with a dropout".to_owned());
        }
        Ok([heads, heads / shared, *rows, *keys, *columns, *width])
    }

    pub(super) fn scale(&self, columns: usize) -> Computed<Element> {
        let root = (columns.max(1) as f64).sqrt().recip();
        self.stmt.get(attr::SCALE).map_or_else(|| Ok(self.algebra.real(root)), |it| self.element(it))
    }

    pub(super) fn is_causal(&self) -> Computed<bool> {
        let value = self.stmt.get(attr::IS_CAUSAL).map(|it| self.scalar(it)).transpose()?;
        Ok(value.is_some_and(|it| it.real() != 0.0))
    }

    pub(super) fn attention(&self) -> Computed<Vec<Vec<Element>>> {
        let (query, key, value) = (self.arg(0)?, self.arg(1)?, self.arg(2)?);
        let [heads, group, rows, keys, columns, width] = self.heads(query, key, value)?;
        let scores: Vec<usize> = [&query.shape[..query.shape.len() - 1], &[keys]].concat();
        let added = |tensor: Option<TensorId>| {
            let Some(at) =
                tensor.and_then(|it| self.stmt.tensor_operands().iter().rposition(|arg| *arg == it))
            else {
                return Ok(None);
            };
            self.repeated(self.arg(at)?, &scores).map(Some)
        };
        let mask = self.stmt.get(attr::MASK);
        let is_truth = mask.is_some_and(|it| self.dtype(it) == DType::Bool);
        let (bias, mask) = (added(self.stmt.get(attr::BIAS))?, added(mask)?);
        let (scale, is_causal) = (self.scale(columns)?, self.is_causal()?);
        let (mut out, mut logarithms) = (Vec::new(), Vec::new());
        for row in 0..heads * rows {
            let (first, own) = (row / rows / group * keys, &query.data[row * columns..(row + 1) * columns]);
            let (mut sum, mut weighted) = (Element::default(), vec![Element::default(); width]);
            for at in (0..keys).filter(|at| !is_causal || *at <= row % rows) {
                let its = &key.data[(first + at) * columns..(first + at + 1) * columns];
                let mut score = Element::dot(own, its) * scale;
                score = bias.as_ref().map_or(score, |it| score + it.data[row * keys + at]);
                let masked = mask.as_ref().map(|it| it.data[row * keys + at]);
                score = masked.filter(|_| !is_truth).map_or(score, |it| score + it);
                let weight = self.algebra.apply("weight", [score])
                    * masked.filter(|_| is_truth).unwrap_or(Element::ONE);
                sum = sum + weight;
                let values = &value.data[(first + at) * width..(first + at + 1) * width];
                weighted.iter_mut().zip(values).for_each(|(all, it)| *all = *all + weight * *it);
            }
            let share = self.algebra.reciprocal(sum);
            out.extend(weighted.into_iter().map(|it| it * share));
            logarithms.push(self.algebra.apply("logarithm of a sum", [sum]));
        }
        // The state of random numbers is the seed 0 and the offset.
        let offset = self.stmt.get(attr::RNG_OFFSET).map_or(Ok(Element::default()), |it| self.element(it))?;
        let state = [Element::default(), offset].map(|it| vec![it]);
        let mut found = [out, logarithms].into_iter().chain(state);
        let sized = |shape: &Vec<usize>| match found.next() {
            Some(it) if it.len() == shape.iter().product::<usize>() => Ok(it),
            Some(it) if it.len() == 1 => Ok(vec![it[0]; shape.iter().product()]),
            _ => misfit(),
        };
        self.shapes.iter().map(sized).collect()
    }

    /// The gradients of the query, the keys and the values, for weights that are an unknown function of the score and of the
    /// logarithm of their sum.
    pub(super) fn attention_gradient(&self) -> Computed<Vec<Vec<Element>>> {
        let [gradient, query, key, value, out, sums, ..] = self.args else {
            return Err("hir-certify does not know this form of `sdpa_bwd`".to_owned());
        };
        let [heads, group, rows, keys, columns, width] = self.heads(query, key, value)?;
        if gradient.shape != out.shape
            || out.data.len() != heads * rows * width
            || sums.data.len() != heads * rows
        {
            return misfit();
        }
        let (scale, is_causal) = (self.scale(columns)?, self.is_causal()?);
        let [mut dq, mut dk, mut dv] = [query, key, value].map(|it| vec![Element::default(); it.data.len()]);
        let add = |to: &mut [Element], by: Element, from: &[Element]| {
            to.iter_mut().zip(from).for_each(|(sum, it)| *sum = *sum + by * *it);
        };
        for row in 0..heads * rows {
            let (first, q, o) = (
                row / rows / group * keys,
                row * columns..(row + 1) * columns,
                row * width..(row + 1) * width,
            );
            let given = &gradient.data[o.clone()];
            let dot = Element::dot(given, &out.data[o]);
            for at in (0..keys).filter(|at| !is_causal || *at <= row % rows) {
                let (k, v) = (
                    (first + at) * columns..(first + at + 1) * columns,
                    (first + at) * width..(first + at + 1) * width,
                );
                let score = Element::dot(&query.data[q.clone()], &key.data[k.clone()]) * scale;
                let weight = self.algebra.apply("weight of a sum", [score, sums.data[row]]);
                let slope = (Element::dot(given, &value.data[v.clone()]) - dot) * weight * scale;
                add(&mut dv[v], weight, given);
                add(&mut dq[q.clone()], slope, &key.data[k.clone()]);
                add(&mut dk[k], slope, &query.data[q.clone()]);
            }
        }
        Ok(vec![dq, dk, dv])
    }
}
