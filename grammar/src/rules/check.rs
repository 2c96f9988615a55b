//! The check of a statement by the rule of its operator: ranks, constant extents and element types. `Check` has the
//! comparisons that rules share.
//!
//! Extents are compared if both are constants; symbolic extents are compared when the planner evaluates them.

use crate::{
    attr,
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    dtype::{Class, DType},
    ir::{AxisId, OpStmt, ParallelType, Program, StmtId, TensorId},
    ops::Op,
    rules::dims::{DimMap, OperandMap, operand_map},
    span::Span,
    suggest::count_text,
    text::axis_text,
};

mod missing_line;

/// What the check of one statement found.
#[derive(Default)]
pub(crate) struct TypeCheck {
    /// True if the statement violates its operator's rule.
    pub is_wrong: bool,
    /// A tensor whose declaration is the cause of the error.
    pub cause: Option<TensorId>,
}

/// Checks one statement against its operator's rule.
pub(crate) fn check(program: &Program, stmt: &OpStmt, id: StmtId, acc: &mut Vec<Diagnostic>) -> TypeCheck {
    let first = acc.len();
    let mut ctx = Check { program, stmt, id, span: program.stmt_span(id), acc, faulty: None };
    let args: Vec<TensorId> = Program::tensors_of(&stmt.args).collect();
    // The text of a scheduled fusion shows the loops of its kernel, not the shapes of its tensors.
    if Program::tensors_of(&stmt.outs).chain(args.iter().copied()).any(|it| is_scheduled(program, it)) {
        return TypeCheck::default();
    }
    stmt.rule().check(&mut ctx, &args);
    let faulty = ctx.faulty;
    // The first error often implies the others.
    acc.truncate(first + 1);
    TypeCheck { is_wrong: has_errors(&acc[first..]), cause: faulty }
}

fn is_scheduled(program: &Program, tensor: TensorId) -> bool {
    let it = &program.tensors[tensor];
    let kernel = |axis: &AxisId| matches!(program.axes[*axis].parallel, ParallelType::Kernel(_));
    it.unit.is_some() && (!it.positions.is_empty() || it.loop_domain.iter().any(kernel))
}

/// The check of one statement. A rule reports errors in it; the first one counts, since it often implies the others.
pub struct Check<'p, 'd> {
    pub(super) program: &'p Program,
    pub(super) stmt: &'p OpStmt,
    pub(super) id: StmtId,
    pub(super) span: Span,
    pub(super) acc: &'d mut Vec<Diagnostic>,
    /// The tensor whose declaration is the cause of the error.
    faulty: Option<TensorId>,
}

impl Check<'_, '_> {
    pub(super) fn dims(&self, tensor: TensorId) -> Vec<AxisId> {
        self.program.dimensions(tensor).collect()
    }

    /// Returns the number of elements along an axis: `n` for an expanded broadcast `bS{1 ex n}`.
    pub(super) fn constant(&self, axis: AxisId) -> Option<i64> {
        let axis = &self.program.axes[axis];
        self.program.constant(axis.expanded.unwrap_or(axis.extent))
    }

    pub(super) fn error(&mut self, code: Code, message: String, label: &str) {
        self.acc.push(Diagnostic::new(code, self.span, message, label));
    }

    /// Returns whether both axes have constant extents that differ.
    pub(super) fn unequal(&self, a: AxisId, b: AxisId) -> bool {
        matches!((self.constant(a), self.constant(b)), (Some(a), Some(b)) if a != b)
    }

    pub(super) fn equal_axes(&mut self, a: TensorId, a_axis: AxisId, b: TensorId, b_axis: AxisId) {
        if self.unequal(a_axis, b_axis) {
            let (p, name) = (self.program, self.stmt.op.name());
            let message = format!(
                "`{name}`: axis `{}` of `{}` and axis `{}` of `{}` differ in extent",
                axis_text(p, a_axis),
                p.tensor_name(a),
                axis_text(p, b_axis),
                p.tensor_name(b)
            );
            // The operand differs, and not the result, if one of the two is the result.
            let (other, axis, b, b_axis) =
                if self.is_out(b) { (b, b_axis, a, a_axis) } else { (a, a_axis, b, b_axis) };
            let label = |axis: AxisId| {
                format!("`{}` has extent {}", axis_text(p, axis), self.constant(axis).unwrap_or_default())
            };
            let it = Diagnostic::new(Code::ShapeMismatch, self.place(b), message, label(b_axis));
            let it = if other == b { it } else { it.label(self.place(other), label(axis)) };
            self.acc.push(it.help("the two extents have to be equal"));
        }
    }

    pub(super) fn is_out(&self, tensor: TensorId) -> bool {
        self.stmt.out_tensor() == Some(tensor)
    }

    /// Returns the position of a tensor in the statement.
    pub(super) fn place(&self, tensor: TensorId) -> Span {
        let uses = self.program.use_spans(self.id, tensor).into_iter();
        let found = if self.is_out(tensor) { uses.min() } else { uses.max() };
        found.unwrap_or(self.span)
    }

    /// Checks that `whole` is complex, and that `part` has the type of its parts.
    pub(super) fn complex(&mut self, whole: TensorId, part: TensorId) {
        let [Some(complex), Some(real)] = [whole, part].map(|it| self.program.tensors[it].dtype) else {
            return;
        };
        let name = self.stmt.op.name();
        let (place, message, label) = match complex.part() {
            Some(own) if own == real => return,
            Some(own) => {
                let it = self.program.tensor_name(part);
                (part, format!("`{name}`: `{it}` is {real}"), format!("expected {own}"))
            }
            None => {
                let it = self.program.tensor_name(whole);
                let label = "expected std::complex<float> or std::complex<double>".to_owned();
                (whole, format!("`{name}`: `{it}` is {complex}"), label)
            }
        };
        self.acc.push(Diagnostic::new(Code::TypeMismatch, self.place(place), message, label));
    }

    pub(super) fn equal_types(&mut self, tensors: &[TensorId]) {
        let typed = |id: &TensorId| self.program.tensors[*id].dtype.map(|dtype| (*id, dtype));
        let typed: Vec<(TensorId, DType)> = tensors.iter().filter_map(typed).collect();
        // The type that most of the tensors have; of several, the first one.
        let count = |dtype: DType| typed.iter().filter(|(_, it)| *it == dtype).count();
        let Some((first, dtype)) = typed.iter().rev().copied().max_by_key(|(_, it)| count(*it)) else {
            return;
        };
        if let Some((other, wrong)) = typed.iter().rev().copied().find(|(_, it)| *it != dtype) {
            let (a, b) = (self.program.tensor_name(first), self.program.tensor_name(other));
            let message = format!("`{}`: `{b}` is {wrong}, and `{a}` is {dtype}", self.stmt.op.name());
            let it =
                Diagnostic::new(Code::TypeMismatch, self.place(other), message, format!("`{b}` is {wrong}"))
                    .label(self.place(first), format!("`{a}` is {dtype}"));
            let name = self.stmt.op.name();
            let is_result = self.is_out(other) || self.stmt.get(attr::OUTPUT) == Some(other);
            let help = if is_result {
                format!("`{name}` does not convert elements: declare `{b}` as {dtype}")
            } else {
                let word = dtype.to_string();
                let free = self.program.tensors.iter().map(|(_, it)| it.number + 1).max().unwrap_or(0);
                format!(
                    "`{name}` does not convert elements: convert `{b}` before this, as in `T{free} = __to_{}({b});`, and \
                     use `T{free}`",
                    word.trim_start_matches('_')
                )
            };
            self.acc.push(it.help(help));
        }
    }

    /// Checks the types of a matrix product: one type, or two bytes for each element of the operands and binary32 for those of the result,
    /// to which its sums are rounded.
    pub(super) fn types_of_product(&mut self, operands: &[TensorId], out: TensorId) {
        let dtype = |it: &TensorId| self.program.tensors[*it].dtype;
        let is_narrow = |it: &TensorId| matches!(dtype(it), Some(DType::BFloat | DType::Half));
        if dtype(&out) == Some(DType::Float) && operands.iter().all(is_narrow) {
            self.equal_types(operands);
        } else {
            self.equal_types(&[operands, &[out]].concat());
        }
    }

    /// Checks that the result of an operator that copies elements has the type of its first operand.
    pub(super) fn equal_types_of_result(&mut self, args: &[TensorId]) {
        if let (Some(first), Some(out)) = (args.first(), self.stmt.out_tensor()) {
            self.equal_types(&[*first, out]);
        }
    }

    /// Checks that a tensor of indices has an integer type.
    pub(super) fn integers(&mut self, tensor: TensorId, what: &str) {
        let Some(dtype) = self.program.tensors[tensor].dtype.filter(|it| it.class() != Class::Int) else {
            return;
        };
        let (op, name) = (self.stmt.op.name(), self.program.tensor_name(tensor));
        let message = format!("`{op}`: {what} `{name}` are {dtype}");
        self.acc.push(Diagnostic::new(
            Code::TypeMismatch,
            self.place(tensor),
            message,
            "expected an integer type",
        ));
    }

    /// Checks that the first operand has the shape of the result.
    pub(super) fn same_shape(&mut self, args: &[TensorId]) {
        let (Some(first), Some(out)) = (args.first().copied(), self.stmt.out_tensor()) else { return };
        let (a, b) = (self.dims(first), self.dims(out));
        if a.len() != b.len() {
            return self.rank_error(first, a.len(), b.len());
        }
        for (x, y) in self.mapped(0) {
            self.equal_axes(first, x, out, y);
        }
    }

    /// Checks that the first operand has `more` dimensions more than the result.
    pub(super) fn ranks(&mut self, args: &[TensorId], more: usize) {
        let (Some(first), Some(out)) = (args.first().copied(), self.stmt.out_tensor()) else { return };
        let (have, want) = (self.dims(first).len(), self.dims(out).len() + more);
        if have != want {
            self.rank_error(first, have, want);
        }
    }

    pub(super) fn rank_error(&mut self, tensor: TensorId, have: usize, want: usize) {
        let name = self.program.tensor_name(tensor);
        let dimensions = |count: usize| match count {
            1 => "1 dimension".to_owned(),
            _ => format!("{count} dimensions"),
        };
        let message =
            format!("`{}`: `{name}` has {}; expected {want}", self.stmt.op.name(), dimensions(have));
        let label = format!("{}, not counting reduction axes", dimensions(have));
        let it = Diagnostic::new(Code::ShapeMismatch, self.place(tensor), message, label);
        // The weight of a linear layer is not compared with the result.
        let out = self.stmt.out_tensor().filter(|_| self.stmt.op != Op::Linear);
        let out = out.filter(|it| *it != tensor && self.dims(*it).len() == want);
        let it = match out {
            Some(out) => it.label(self.place(out), dimensions(want)),
            None => it,
        };
        // The tensor with more dimensions may lack a line of `Domains:`.
        let (wide, fewer) = match (self.stmt.out_tensor(), have < want) {
            (Some(out), true) => (out, have),
            _ => (tensor, want),
        };
        let help = self.missing_domain_line(wide, fewer).map(|it| (wide, it));
        // A product has the rank of its wider operand, which may be the one that lacks the line.
        let help = help.or_else(|| {
            let operands = self.stmt.tensor_operands().into_iter().filter(|_| have < want);
            operands.filter(|it| self.dims(*it).len() == want).find_map(|it| {
                Some((it, self.missing_domain_line(it, have).or_else(|| self.missing_splits(it, have))?))
            })
        });
        self.faulty = help.as_ref().map(|(tensor, _)| *tensor);
        self.acc.push(match help {
            Some((_, help)) => it.help(help),
            None => it,
        });
    }

    /// Returns the pairs of corresponding dimensions of an operand and the result.
    pub(super) fn mapped(&self, position: usize) -> Vec<(AxisId, AxisId)> {
        let args = self.stmt.tensor_operands();
        let (Some(arg), Some(out)) = (args.get(position), self.stmt.out_tensor()) else { return Vec::new() };
        let map = operand_map(self.program, self.stmt, position, &|it| self.program.constant(it));
        let dims = match map {
            Some(OperandMap::Dims(dims)) => dims,
            Some(OperandMap::Groups(_)) | None => Vec::new(),
        };
        let theirs = self.dims(out);
        let pair = |(axis, map)| match map {
            DimMap::Parallel(to) | DimMap::Broadcast(to) => Some((axis, *theirs.get(to)?)),
            DimMap::InGroups { .. } | DimMap::Reduction | DimMap::RequiresWhole => None,
        };
        self.dims(*arg).into_iter().zip(dims).filter_map(pair).collect()
    }

    /// Checks that each operand broadcasts to the shape of the result.
    pub(super) fn broadcasts(&mut self, args: &[TensorId]) {
        let Some(out) = self.stmt.out_tensor() else { return };
        for (position, arg) in args.iter().enumerate() {
            let (a, b) = (self.dims(*arg), self.dims(out));
            if a.len() != b.len() {
                return self.rank_error(*arg, a.len(), b.len());
            }
            for (x, y) in self.mapped(position) {
                if self.constant(x) != Some(1) {
                    self.equal_axes(*arg, x, out, y);
                }
            }
        }
    }

    /// Reports a right operand whose two axes fit in the other order.
    pub(super) fn transposed_weight(&mut self, weight: TensorId, dims: &[AxisId], rule: &str) {
        let (op, name) = (self.stmt.op.name(), self.program.tensor_name(weight));
        let message = format!("`{op}`: the axes of `{name}` are in the wrong order");
        let texts: Vec<String> = dims.iter().rev().map(|it| axis_text(self.program, *it)).collect();
        let label = format!("expected `[{}]`", texts.join(", "));
        let it = Diagnostic::new(Code::ShapeMismatch, self.place(weight), message, label);
        self.acc.push(it.help(rule));
    }

    /// Checks that paired axes have equal extents. Tensors of HostUnits are skipped: there, numbers and
    /// extents are the kernel's.
    pub(super) fn equal_pairs(&mut self, a: TensorId, b: TensorId, pairs: Vec<(AxisId, AxisId)>) {
        let is_unit = |tensor: TensorId| self.program.tensors[tensor].unit.is_some();
        let is_expanded = |axis: AxisId| self.program.axes[axis].expanded.is_some();
        if is_unit(a) || is_unit(b) {
            return;
        }
        let comparable = pairs.into_iter().filter(|(x, y)| !is_expanded(*x) && !is_expanded(*y));
        for (x, y) in comparable.collect::<Vec<_>>() {
            self.equal_axes(a, x, b, y);
        }
    }

    /// Checks a broadcast or squeeze: one flag for each dimension of the wider side; the unflagged dimensions
    /// are those of the narrower side. `pairs` are the corresponding axes of the two.
    pub(super) fn flags(
        &mut self,
        args: &[TensorId],
        wide: TensorId,
        narrow: TensorId,
        pairs: Vec<(AxisId, AxisId)>,
    ) {
        let Some(flags) = self.stmt.get(attr::FLAGS) else { return };
        let (flags, kept) = (flags.len(), flags.iter().filter(|flag| !**flag).count());
        let (have, rest) = (self.dims(wide).len(), self.dims(narrow).len());
        if have != flags {
            let (op, name) = (self.stmt.op.name(), self.program.tensor_name(wide));
            let message =
                format!("`{op}`: {} for the {have} dimensions of `{name}`", count_text(flags, "flag"));
            let label = format!("expected {have} flags, one for each dimension of `{name}`");
            let place = self.program.attr_span(self.id, attr::FLAGS.name());
            self.acc.push(Diagnostic::new(Code::ShapeMismatch, place, message, label));
        } else if rest != kept {
            self.rank_error(narrow, rest, kept);
        } else {
            self.equal_pairs(wide, narrow, pairs);
        }
        self.equal_types_of_result(args);
    }
}
