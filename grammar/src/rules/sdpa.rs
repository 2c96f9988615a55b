//! `sdpa`: scaled dot-product attention, its logarithms of sums, and the state of random numbers.
//! The shape of the first result is inferred; the shapes and types of all results are checked.

use super::*;

/// `softmax(q[…, l, k] · k[…, s, k]ᵀ) · v[…, s, e]`.
pub(super) struct Sdpa;

impl Rule for Sdpa {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.attention(args);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (mut found, value) = (operands.dims(0)?, operands.dims(2)?);
        *found.last_mut()? = value.last()?.clone();
        Some(found)
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        // The result is `out[…, l, e]`. Each batch element is independent of the others, and without a causal mask, which
        // depends on the index of the row, so is each row of the query.
        let (count, dims) = (operand.operand_extents.len(), operand.result_extents.len());
        let Some(rows) = dims.checked_sub(2) else {
            return Some(OperandMap::Dims(vec![DimMap::RequiresWhole; count]));
        };
        let has_free_rows = !operand.stmt.may_be_causal(operand.program);
        // One head of keys and values is broadcast.
        let groups = shared_heads(operand, [0, 1]).filter(|it| *it > 1);
        // A bias or mask `[…, l, s]` has the dimensions of the scores, aligned at the end.
        let is_score = operand.position >= 3;
        let has_rows = has_free_rows && (operand.position == 0 || is_score);
        // `logsum_exp` has no columns; the state of random numbers has fewer dimensions.
        let skipped = if is_score { dims.saturating_sub(count) } else { 0 };
        let dims = (0..count)
            .map(|at| match at + skipped {
                to if to < rows && count + skipped > rows => batch_dim(to, rows, groups),
                to if to == rows && has_rows => DimMap::Parallel(to),
                _ => DimMap::RequiresWhole,
            })
            .collect();
        Some(OperandMap::Dims(dims))
    }

    fn has_dims_of_first_result(&self, position: usize, _: bool) -> bool {
        // `out[…, l, e]`, `logsumexp[…, l]`, and the state of random numbers.
        position < 2
    }
}

/// Returns the number of heads of keys and values, if those of the query share them. `query` and `key` are the positions of
/// operands.
pub(super) fn shared_heads(operand: &MappedOperand<'_>, [query, key]: [usize; 2]) -> Option<i64> {
    let heads = |at: usize| {
        let tensor = *operand.stmt.tensor_operands().get(at)?;
        let heads = extents(operand.program, tensor).into_iter().rev().nth(2)?;
        (operand.value)(heads)
    };
    heads(key).filter(|it| heads(query).is_some_and(|all| all != *it))
}

/// Returns the map of a dimension before the rows; the last one of them has the heads.
pub(super) fn batch_dim(to: usize, rows: usize, shared_heads: Option<i64>) -> DimMap {
    match shared_heads {
        Some(count) if to + 1 == rows => DimMap::InGroups { to, count },
        _ => DimMap::Parallel(to),
    }
}

impl Check<'_, '_> {
    /// Checks `out[…, l, e], logsumexp[…, l] = sdpa(q[…, l, k], k[…, s, k], v[…, s, e])`.
    fn attention(&mut self, args: &[TensorId]) {
        let outs: Vec<TensorId> = Program::tensors_of(&self.stmt.outs).collect();
        let (&[query, key, value], &[out, ref rest @ ..]) = (args, &outs[..]) else {
            return self.attention_operands(args);
        };
        if self.stmt.args.len() != args.len() || self.stmt.outs.len() != outs.len() || rest.len() > 3 {
            return self.attention_operands(args);
        }
        let rank = self.dims(query).len();
        let Some(rows) = rank.checked_sub(2) else { return self.attention_rank(query, rank) };
        for it in [key, value, out] {
            let have = self.dims(it).len();
            if have != rank {
                return self.rank_error(it, have, rank);
            }
        }
        let [q, k, v, o] = [query, key, value, out].map(|it| self.dims(it));
        // Consecutive heads of the query may share keys and values.
        let shares_heads = rows > 0
            && !self.unequal(k[rows - 1], v[rows - 1])
            && match (self.constant(q[rows - 1]), self.constant(k[rows - 1])) {
                (Some(all), Some(own)) => own > 0 && own < all && all % own == 0,
                _ => false,
            };
        for at in 0..rows {
            for (tensor, dims) in [(key, &k), (value, &v), (out, &o)] {
                if at + 1 == rows && shares_heads && tensor != out {
                    continue;
                }
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
        self.attention_types(query, rest);
        for (key, what) in [(attr::BIAS, "bias"), (attr::MASK, "mask")] {
            if let Some(added) = self.stmt.get(key) {
                self.fits_scores(added, what, &[&q[..=rows], &k[rows..=rows]].concat());
            }
        }
    }

    /// Checks the element types of the query, of the results behind the first one, of the bias and of the mask.
    fn attention_types(&mut self, query: TensorId, rest: &[TensorId]) {
        let dtype = |it: TensorId| self.program.tensors[it].dtype;
        let is_real =
            |it: TensorId| dtype(it).is_none_or(|it| matches!(it.class(), Class::Float | Class::SmallFloat));
        let is_bool = |it: TensorId| dtype(it) == Some(DType::Bool);
        if !is_real(query) {
            return self.attention_type(query, "a real floating-point type");
        }
        // The scores of binary64 operands are binary64; nvFuser declares their logarithms of sums as float all the same.
        let takes = |it: DType| it == DType::Float || it == DType::Double && dtype(query) == Some(it);
        if let Some(logsumexp) = rest.first()
            && dtype(*logsumexp).is_some_and(|it| !takes(it))
        {
            return self.attention_type(*logsumexp, "float, the type of the scores");
        }
        let is_state = |it: TensorId| dtype(it).is_none_or(|it| it.class() == Class::Int);
        for state in rest.iter().skip(1) {
            if !is_state(*state) {
                let expected = "an integer type, as the state of random numbers has";
                return self.attention_type(*state, expected);
            }
            if self.dims(*state).len() > 1 {
                let (name, have) = (self.program.tensor_name(*state), self.dims(*state).len());
                let message = format!("`sdpa`: `{name}` has {have} dimensions");
                let label = "expected at most 1: it is the state of random numbers, `{2}` or a scalar";
                let it = Diagnostic::new(Code::ShapeMismatch, self.place(*state), message, label);
                return self.acc.push(it);
            }
        }
        if let Some(bias) = self.stmt.get(attr::BIAS).filter(|it| !is_real(*it)) {
            let expected = if is_bool(bias) {
                "a real floating-point type, since a bias is added to the scores; write a mask as `mask=`"
            } else {
                "a real floating-point type, since a bias is added to the scores"
            };
            return self.attention_type(bias, expected);
        }
        if let Some(mask) = self.stmt.get(attr::MASK).filter(|it| !is_real(*it) && !is_bool(*it)) {
            self.attention_type(mask, "bool, or a real floating-point type, which is added to the scores");
        }
    }

    /// Reports other positional operands than three tensors, or other results than one to four tensors.
    fn attention_operands(&mut self, args: &[TensorId]) {
        let (results, tensors) = (self.stmt.outs.len(), Program::tensors_of(&self.stmt.outs).count());
        let scalars = self.stmt.args.len() - args.len();
        let (message, label, help) = if results == 0 {
            ("`sdpa` has no result".to_owned(), "expected a tensor and `=` before it", "write the result")
        } else if tensors < results {
            (
                "a result of `sdpa` is not a tensor".to_owned(),
                "every result is a tensor, and has its position",
                "write a tensor in its place, or leave out this result and all behind it",
            )
        } else if results > 4 {
            (
                format!("`sdpa` has {results} results; it has at most four"),
                "expected a result, its logarithms of sums, and two tensors of the state of random numbers",
                "remove the other results",
            )
        } else if scalars > 0 {
            (
                format!("`sdpa` has {} without a key", count_text(scalars, "scalar")),
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

    /// Reports a query without rows or columns.
    fn attention_rank(&mut self, query: TensorId, have: usize) {
        let name = self.program.tensor_name(query);
        let dimensions = if have == 1 { "dimension" } else { "dimensions" };
        let message = format!("`sdpa`: `{name}` has {have} {dimensions}; expected at least 2");
        let label = "expected rows and columns, behind any number of batch dimensions";
        self.acc.push(Diagnostic::new(Code::ShapeMismatch, self.place(query), message, label));
    }

    /// Reports a tensor of a type that an attention does not have.
    fn attention_type(&mut self, tensor: TensorId, expected: &str) {
        let name = self.program.tensor_name(tensor);
        let dtype = self.program.tensors[tensor].dtype.map_or(String::new(), |it| it.to_string());
        let message = format!("`sdpa`: the elements of `{name}` are {dtype}");
        let label = format!("expected {expected}");
        self.acc.push(Diagnostic::new(Code::TypeMismatch, self.place(tensor), message, label));
    }

    /// Checks that a bias or a mask can be repeated to the shape `[…, l, s]` of the scores.
    fn fits_scores(&mut self, tensor: TensorId, what: &str, scores: &[AxisId]) {
        let dims = self.dims(tensor);
        let name = self.program.tensor_name(tensor);
        if dims.len() > scores.len() {
            let message = format!("`sdpa`: the {what} `{name}` has {} dimensions", dims.len());
            let label = format!("expected at most {}, those of the scores", scores.len());
            self.acc.push(Diagnostic::new(Code::ShapeMismatch, self.place(tensor), message, label));
            return;
        }
        // Dimensions are aligned at the end; the first one that differs is reported.
        let mut pairs = dims.iter().zip(&scores[scores.len() - dims.len()..]);
        let unlike = |(a, b): &(&AxisId, &AxisId)| self.unequal(**a, **b) && self.constant(**a) != Some(1);
        if let Some((axis, score)) = pairs.find(unlike) {
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
