//! `indexSelect`, `takeAlongAxis`, `torchGather`, `embedding`, `scatter` and `indexPutAccumulate`.

use grammar::{attr, attr::TensorOrScalar};

use super::{OperatorCall, OperatorFault, Result, expect_shape, misfit, sum_dtype};
use crate::{RoutineKind, View, inst_builder::InstBuilder};

impl OperatorCall<'_> {
    /// `out[…, j, …] = in[…, index[j], …]`.
    pub(super) fn index_select(&self, code: &mut InstBuilder) -> Result<()> {
        let (source, index, out) = (self.operand(0)?, self.operand(1)?, self.result(0)?);
        let dim = self.dim(source.shape.len())?;
        // A single index is a vector of length 1.
        let index = if index.shape.is_empty() { index.unsqueeze(0) } else { index.clone() };
        let [count] = index.shape[..] else { return Err(misfit(&index, &[out.shape[dim]])) };
        let mut wanted = source.shape.clone();
        wanted[dim] = count;
        expect_shape(out, &wanted)?;
        let index = along(&index, dim, &out.shape).ok_or_else(|| misfit(&index, &out.shape))?;
        code.routine(
            RoutineKind::Gather { dim, first: None },
            vec![source.clone(), index],
            vec![out.clone()],
        );
        Ok(())
    }

    /// `out[i] = in[i with i[dim] replaced by index[i]]`. `takeAlongAxis` broadcasts the other dimensions; `torchGather` uses
    /// the first elements of longer ones.
    pub(super) fn take(&self, code: &mut InstBuilder) -> Result<()> {
        let (source, index, out) = (self.operand(0)?, self.operand(1)?, self.result(0)?);
        let dim = self.dim(source.shape.len())?;
        let index = index.expand(&out.shape).ok_or_else(|| misfit(index, &out.shape))?;
        let mut source = source.clone();
        for (at, wanted) in out.shape.iter().enumerate().filter(|(at, _)| *at != dim) {
            match source.shape.get(at) {
                Some(have) if have == wanted => (),
                Some(1) => (source.shape[at], source.strides[at]) = (*wanted, 0),
                Some(have) if have > wanted && self.stmt.op == grammar::ops::Op::TorchGather => {
                    source.shape[at] = *wanted;
                }
                _ => return Err(misfit(&source, &out.shape)),
            }
        }
        code.routine(RoutineKind::Gather { dim, first: None }, vec![source, index], vec![out.clone()]);
        Ok(())
    }

    /// `out[…, h] = weight[in[…], h]`. A device axis of partial sums in the result splits the rows of the table: each of its
    /// indices has 0 where the row is not in its own part.
    pub(super) fn embedding(&self, code: &mut InstBuilder) -> Result<()> {
        let (index, weight, out) = (self.operand(0)?, self.operand(1)?, self.result(0)?);
        if self.stmt.get(attr::MAX_NORM).is_some() {
            return Err(self.unsupported("`max_norm` changes the table"));
        }
        if self.stmt.args.len() > 2 {
            return Err(self.unsupported("its options have no key"));
        }
        let [rows, width] = weight.shape[..] else { return Err(misfit(weight, &[0, 0])) };
        let shape = [&index.shape[..], &[width]].concat();
        let gather = |code: &mut InstBuilder, weight: &View, first: Option<usize>, out: &View| {
            expect_shape(out, &shape)?;
            let dim = index.shape.len();
            let out = out.unsqueeze(dim);
            let index = index.unsqueeze(dim).unsqueeze(dim + 1);
            let index = index.expand(&out.shape).ok_or_else(|| misfit(&index, &out.shape))?;
            let mut table = weight.clone();
            for (at, extent) in index.shape[..dim].iter().enumerate() {
                table.shape.insert(at, *extent);
                table.strides.insert(at, 0);
            }
            code.routine(RoutineKind::Gather { dim, first }, vec![table, index], vec![out.clone()]);
            Ok(())
        };
        let Some(dim) = self.partial_dim() else { return gather(code, weight, None, out) };
        let numbers = self.layout.range(dim).unwrap_or(0..out.shape[dim]);
        let count = numbers.len();
        if count == 0 || rows % count != 0 {
            return Err(misfit(weight, &[count, width]));
        }
        let part = rows / count;
        for (at, number) in numbers.enumerate() {
            let weight = weight.narrow(0, at * part, part);
            gather(code, &weight, Some(number * part), &out.select(dim, at))?;
        }
        Ok(())
    }

    /// Returns the dimension of the first result that counts partial sums.
    pub(super) fn partial_dim(&self) -> Option<usize> {
        let out = self.stmt.out_tensor()?;
        self.program.dimensions(out).position(|axis| self.program.is_partial(out, axis))
    }

    /// `out = in`, with `src` written to, or added at, the places that `idx` names along `dim`.
    pub(super) fn scatter(&self, code: &mut InstBuilder) -> Result<()> {
        let (stmt, out) = (self.stmt, self.result(0)?);
        let needs = || self.unsupported("it needs `in=`, `src=` and `idx=`");
        let base = self.keyed(stmt.get(attr::IN)).ok_or_else(needs)?;
        let index = self.keyed(stmt.get(attr::IDX)).ok_or_else(needs)?;
        let value = match stmt.get(attr::SRC).ok_or_else(needs)? {
            TensorOrScalar::Tensor(tensor) => self.keyed(Some(tensor)).ok_or_else(needs)?.clone(),
            TensorOrScalar::Scalar(expr) => {
                let one = code.temporary("value", self.result_dtype(0), vec![1]);
                code.fill(&one, self.number(expr)?);
                View { shape: index.shape.clone(), strides: vec![0; index.shape.len()], ..one }
            }
        };
        let accumulates = match stmt.get(attr::ACCUMULATE) {
            None => false,
            Some(grammar::words::ReductionOp::Add) => true,
            Some(other) => {
                return Err(OperatorFault::Unsupported(format!("it accumulates with `{other}`, not `add`")));
            }
        };
        self.scattered(code, self.dim(base.shape.len())?, accumulates, [base, index, &value], out)
    }

    /// `out = in`, with row `i` of `value` added to row `index[i]`.
    pub(super) fn index_put(&self, code: &mut InstBuilder) -> Result<()> {
        let (base, index, value, out) =
            (self.operand(0)?, self.operand(1)?, self.operand(2)?, self.result(0)?);
        // nvFuser's index is a column.
        let index = match index.shape[..] {
            [_, 1] => index.select(1, 0),
            _ => index.clone(),
        };
        let index = along(&index, 0, &value.shape).ok_or_else(|| misfit(&index, &value.shape))?;
        self.scattered(code, 0, true, [base, &index, value], out)
    }

    fn scattered(
        &self,
        code: &mut InstBuilder,
        dim: usize,
        accumulates: bool,
        [base, index, value]: [&View; 3],
        out: &View,
    ) -> Result<()> {
        expect_shape(base, &out.shape)?;
        let mut base = base.clone();
        let (mut out, mut rest) = (out.clone(), None);
        let dtype = self.result_dtype(0);
        if accumulates && sum_dtype(dtype) != dtype {
            let sums = code.temporary("sums", sum_dtype(dtype), out.shape.clone());
            rest = Some((sums.clone(), out));
            out = sums;
        }
        // Only a part of `value` is used if the index is smaller, and `base` keeps what is beyond the index.
        let mut value = value.clone();
        let mut touched = out.clone();
        let is_shorter = index.shape.len() == base.shape.len()
            && (0..index.shape.len()).any(|at| at != dim && index.shape[at] < base.shape[at]);
        if index.shape.len() != base.shape.len() || value.shape.len() != base.shape.len() {
            return Err(misfit(index, &base.shape));
        }
        for at in 0..index.shape.len() {
            let (have, wanted) = (value.shape[at], index.shape[at]);
            if have < wanted || at != dim && base.shape[at] < wanted {
                return Err(misfit(&value, &index.shape));
            }
            value.shape[at] = wanted;
        }
        if is_shorter {
            code.copy(&base, &out);
            let narrowed = |it: &View| {
                let mut it = it.clone();
                (0..it.shape.len()).filter(|at| *at != dim).for_each(|at| it.shape[at] = index.shape[at]);
                it
            };
            (base, touched) = (narrowed(&base), narrowed(&touched));
        }
        code.routine(
            RoutineKind::Scatter { dim, accumulates },
            vec![base, index.clone(), value],
            vec![touched.clone()],
        );
        if let Some((sums, out)) = rest {
            code.copy(&sums, &out);
        }
        Ok(())
    }
}

/// Returns a vector along one dimension of a shape, repeated along the others.
fn along(vector: &View, dim: usize, shape: &[usize]) -> Option<View> {
    let ([count], [stride]) = (&vector.shape[..], &vector.strides[..]) else { return None };
    if shape.get(dim) != Some(count) {
        return None;
    }
    let mut strides = vec![0; shape.len()];
    strides[dim] = *stride;
    Some(View { buffer: vector.buffer, offset: vector.offset, shape: shape.to_vec(), strides })
}
