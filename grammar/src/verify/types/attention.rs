//! The type rule of `sdpa`.

use super::Ctx;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{AxisId, Program, TensorId},
    ops::Op,
    text::axis_text,
};

impl Ctx<'_, '_> {
    /// Checks `out[…, l, e], logsumexp[…, l] = sdpa(q[…, l, k], k[…, s, k], v[…, s, e])`. The gradient,
    /// which nothing runs, is not checked.
    pub(super) fn attention(&mut self, args: &[TensorId]) {
        let outs: Vec<TensorId> = Program::tensors_of(&self.stmt.outs).collect();
        if self.stmt.op != Op::Sdpa {
            return;
        }
        let (&[query, key, value], &[out, ref rest @ ..]) = (args, &outs[..]) else {
            return self.attention_operands(args);
        };
        if self.stmt.args.len() != args.len() || rest.len() > 3 {
            return self.attention_operands(args);
        }
        let rank = self.dims(query).len();
        for it in [key, value, out] {
            let have = self.dims(it).len();
            if have != rank {
                return self.rank_error(it, have, rank);
            }
        }
        let [q, k, v, o] = [query, key, value, out].map(|it| self.dims(it));
        let Some(rows) = rank.checked_sub(2) else { return self.rank_error(query, rank, 2) };
        for at in 0..rows {
            for (tensor, dims) in [(key, &k), (value, &v), (out, &o)] {
                self.equal_axes(tensor, dims[at], query, q[at]);
            }
        }
        self.equal_axes(key, k[rows + 1], query, q[rows + 1]);
        self.equal_axes(value, v[rows], key, k[rows]);
        self.equal_axes(query, q[rows], out, o[rows]);
        self.equal_axes(value, v[rows + 1], out, o[rows + 1]);
        if let Some(logsumexp) = rest.first() {
            let dims = self.dims(*logsumexp);
            if dims.len() != rank - 1 {
                return self.rank_error(*logsumexp, dims.len(), rank - 1);
            }
            for (axis, its) in dims.into_iter().zip(o) {
                self.equal_axes(*logsumexp, axis, out, its);
            }
        }
        self.equal_types(&[query, key, value, out]);
        let dtype = |it: TensorId| self.program.tensors[it].dtype;
        let Some(operand_dtype) = dtype(query) else { return };
        if operand_dtype.is_integral() {
            return self.attention_type(query, "a floating-point type");
        }
        let scores = if operand_dtype == DType::Double { DType::Double } else { DType::Float };
        if let Some(logsumexp) = rest.first()
            && dtype(*logsumexp).is_some_and(|it| it != scores)
        {
            return self.attention_type(*logsumexp, &format!("{scores}, the type of the scores"));
        }
        let is_state = |it: &TensorId| dtype(*it).is_none_or(DType::is_integral);
        if let Some(state) = rest.iter().skip(1).find(|it| !is_state(it)) {
            return self.attention_type(*state, "an integer type: it is the state of random numbers");
        }
        for (key, what) in [(attr::BIAS, "bias"), (attr::MASK, "mask")] {
            if let Some(added) = self.stmt.get(key) {
                self.fits_scores(added, what, &[&q[..=rows], &k[rows..=rows]].concat());
            }
        }
    }

    /// Reports positional operands other than three tensors, or more than four results.
    fn attention_operands(&mut self, args: &[TensorId]) {
        let results = Program::tensors_of(&self.stmt.outs).count();
        let scalars = self.stmt.args.len() - args.len();
        let (message, label, help) = if !(1..=4).contains(&results) {
            (
                format!("`sdpa` has {results} results; it has at most four"),
                "expected a result, its logarithms of sums, and two tensors of the state of random numbers",
                "remove the other results",
            )
        } else if scalars > 0 {
            (
                format!("`sdpa` has {scalars} scalar{} without a key", if scalars == 1 { "" } else { "s" }),
                "only the query, the keys and the values have no key",
                "write the key before each scalar: `dropout_p=`, `is_causal=` or `scale=`",
            )
        } else {
            (
                format!("`sdpa` has {} tensors without a key; expected three", args.len()),
                "expected a query, keys and values",
                "write a bias as `bias=T0`, and a mask as `mask=T0`",
            )
        };
        self.acc.push(Diagnostic::new(Code::BadOperands, self.span, message, label).help(help));
    }

    /// Reports a tensor of a type that an attention does not have.
    fn attention_type(&mut self, tensor: TensorId, expected: &str) {
        let name = self.program.tensor_name(tensor);
        let dtype = self.program.tensors[tensor].dtype.map_or(String::new(), |it| it.to_string());
        let message = format!("`sdpa`: `{name}` is {dtype}; expected {expected}");
        self.acc.push(Diagnostic::new(
            Code::TypeMismatch,
            self.place(tensor),
            message,
            format!("`{name}` is {dtype}"),
        ));
    }

    /// Checks that a bias or a mask can be repeated to the shape `[…, l, s]` of the scores.
    fn fits_scores(&mut self, tensor: TensorId, what: &str, scores: &[AxisId]) {
        let dims = self.dims(tensor);
        let name = self.program.tensor_name(tensor);
        if dims.len() > scores.len() {
            let message = format!("`sdpa`: the {what} `{name}` has {} dimensions", dims.len());
            let label = format!("the scores have {}", scores.len());
            self.acc.push(Diagnostic::new(Code::ShapeMismatch, self.place(tensor), message, label));
            return;
        }
        let pairs = dims.iter().rev().zip(scores.iter().rev());
        let unlike = pairs.filter(|(a, b)| self.unequal(**a, **b) && self.constant(**a) != Some(1)).last();
        if let Some((axis, score)) = unlike {
            let (axis, score) = (axis_text(self.program, *axis), axis_text(self.program, *score));
            let message = format!("`sdpa`: the {what} `{name}` does not have the shape of the scores");
            let label = format!("axis `{axis}`; that of the scores is `{score}`");
            let it = Diagnostic::new(Code::ShapeMismatch, self.place(tensor), message, label);
            self.acc.push(it.help(
                "the scores have a row for each row of the query, and a column for each key; an axis of extent 1 is repeated",
            ));
        }
    }
}
