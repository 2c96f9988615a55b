//! Resolves tensors, iteration domains and streams: each is looked up, or created at its first use.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Resolver;
use crate::{
    ast,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Axis, AxisId, Domains, Expr, ExprId, Mesh, Operand, PartRole, Stream, StreamId, Tensor, TensorId},
    numbering::free_number,
    span::Span,
    suggest::list_text,
    tensor::{parse_axis_text, parse_tensor_text},
    text::{axis_text, axis_text_with_number},
};

/// Returns the number in a short name such as `T3`, or `None` if the text spells the tensor in full. The inner
/// `None` is a number that is too large.
fn short_tensor_number(text: &str) -> Option<Option<u32>> {
    let digits = text.strip_prefix('T').filter(|it| it.bytes().all(|it| it.is_ascii_digit()))?;
    Some(digits.parse().ok())
}

/// Returns whether a word is the beginning of a tensor's text, `T0_g_float`.
fn is_tensor_name(text: &str) -> bool {
    let number = text.strip_prefix('T').and_then(|it| it.split_once('_')).map_or("", |(number, _)| number);
    !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit())
}

impl<'s> Resolver<'s> {
    pub(super) fn values(&mut self, items: &[ast::Expr<'s>]) -> Vec<Operand> {
        items.iter().filter_map(|item| self.value(item)).collect()
    }

    /// Resolves the operands of a statement, and records their positions.
    pub(super) fn stated_values<'e>(
        &mut self,
        items: impl IntoIterator<Item = &'e ast::Expr<'s>>,
        role: impl Fn(u16) -> PartRole,
    ) -> Option<Vec<Operand>>
    where
        's: 'e,
    {
        let items = items.into_iter().enumerate();
        items.map(|(at, item)| self.stated_value(item, at, &role)).collect()
    }

    /// Resolves the operand with index `at` of a statement, and records its position.
    pub(super) fn stated_value(
        &mut self,
        item: &ast::Expr<'s>,
        at: usize,
        role: impl Fn(u16) -> PartRole,
    ) -> Option<Operand> {
        let value = self.value(item)?;
        if let Ok(at) = u16::try_from(at) {
            let span = if let ast::ExprKind::Stream(name) = &item.kind { name.span } else { item.span };
            self.add_part(span, role(at));
        }
        Some(value)
    }

    pub(super) fn value(&mut self, value: &ast::Expr<'s>) -> Option<Operand> {
        match &value.kind {
            // `T0_g_float(iS0{4})`.
            ast::ExprKind::Call { name, number: None, .. } if is_tensor_name(name.text) => {
                if self.unreadable_texts.insert((self.current_unit, name.text)) {
                    let place = Span { start: name.span.end, end: name.span.end + 1 };
                    let message = "write the axes of a tensor in brackets";
                    let label = format!("expected `{}[…]`", name.text);
                    self.error(Code::BadTensor, place, message, label);
                }
                None
            }
            ast::ExprKind::Tensor(text) => self.tensor(text, value.span).map(Operand::Tensor),
            ast::ExprKind::Stream(name) => self.stream(name).map(Operand::Stream),
            ast::ExprKind::Int(_)
            | ast::ExprKind::Float(_)
            | ast::ExprKind::Word(_)
            | ast::ExprKind::Axis(_)
            | ast::ExprKind::Prefix(..)
            | ast::ExprKind::Infix(..)
            | ast::ExprKind::Call { .. }
            | ast::ExprKind::Paren(_)
            | ast::ExprKind::Team(_)
            | ast::ExprKind::Braces(_) => self.scalar(value).map(Operand::Scalar),
        }
    }

    fn tensor(&mut self, text: &'s str, span: Span) -> Option<TensorId> {
        if let Some(id) = self.tensors_by_text.get(&(self.current_unit, text)) {
            return Some(*id);
        }
        // A text that cannot be read, or a name without a declaration, is reported once.
        if self.unreadable_texts.contains(&(self.current_unit, text)) {
            let number = short_tensor_number(text)??;
            return self.undeclared.find(self.current_unit, number);
        }
        if let Some(number) = short_tensor_number(text) {
            return self.declared_tensor(number, text, span).or_else(|| self.add_undeclared(number?, span));
        }
        let parsed = match parse_tensor_text(text, span.start) {
            Ok(parsed) => parsed,
            Err(diagnostic) => {
                // Comma errors have an edit at each occurrence.
                if diagnostic.fixes.is_empty() {
                    self.unreadable_texts.insert((self.current_unit, text));
                }
                if !self.is_repeated(&diagnostic) {
                    self.diagnostics.push(diagnostic);
                }
                return None;
            }
        };
        let is_fine = parsed.comma_errors.is_empty();
        self.diagnostics.extend(parsed.comma_errors);
        let mut loops = Vec::with_capacity(parsed.axes.len());
        for axis in &parsed.axes {
            let Some(axis) = self.axis_text(axis.text, axis.span.start) else {
                self.unreadable_texts.insert((self.current_unit, text));
                return None;
            };
            loops.push(axis);
        }
        let places: Vec<Span> = parsed.axes.iter().map(|it| it.span).collect();
        if self.has_repeated_number(parsed.number, &loops, &places) {
            self.unreadable_texts.insert((self.current_unit, text));
            return None;
        }
        let tensor = Tensor {
            number: parsed.number,
            memory: parsed.memory,
            dtype: parsed.dtype,
            positions: parsed.positions.trim().to_owned(),
            mesh: self.mesh(parsed.mesh),
            unit: self.current_unit,
            domains: Domains { logical: loops.clone(), ..Domains::default() },
            loop_domain: loops,
        };
        // Older dumps print one tensor with different spacing: the texts differ, but the tensor is the same.
        let number = tensor.number;
        let known = self
            .tensors_by_number
            .all(self.current_unit, number)
            .find(|id| self.program.tensors[*id] == tensor);
        let id = known.unwrap_or_else(|| {
            let id = self.program.add_stated_tensor(tensor, span, &places, parsed.mesh_start);
            self.tensors_by_number.add(self.current_unit, number, id);
            id
        });
        // A text with errors is not cached, so that each occurrence reports its errors.
        if is_fine {
            self.tensors_by_text.insert((self.current_unit, text), id);
        }
        Some(id)
    }

    /// Reports the first axis of a tensor that has the number of an earlier one. Returns whether there is one.
    fn has_repeated_number(&mut self, tensor: u32, axes: &[AxisId], places: &[Span]) -> bool {
        let number = |at: usize| self.program.axes[axes[at]].number;
        // Nearly all tensors have few axes, for which a map costs more than comparing all.
        let found = if axes.len() <= 8 {
            (1..axes.len()).find_map(|at| Some(((0..at).find(|it| number(*it) == number(at))?, at)))
        } else {
            let mut seen = FxHashMap::default();
            (0..axes.len()).find_map(|at| Some((seen.insert(number(at), at)?, at)))
        };
        let Some((first, second)) = found else { return false };
        let repeated = number(second);
        let free = free_number(self.program.axes.iter().map(|(_, it)| it.number));
        let texts = [first, second].map(|at| axis_text(&self.program, axes[at]));
        let other = axis_text_with_number(&self.program, axes[second], free);
        let message = format!("two axes of `T{tensor}` have the number {repeated}");
        let place = |at: usize| places.get(at).copied().unwrap_or_default();
        let it = Diagnostic::new(
            Code::DefinedTwice,
            place(second),
            message,
            format!("`{}` has it, too", texts[1]),
        )
        .label(place(first), format!("`{}` has it first", texts[0]))
        .help(format!("the axes of a tensor have different numbers: write `{other}`"));
        self.diagnostics.push(it);
        true
    }

    /// Returns the tensor that a short name refers to: the only one of the current namespace with this number.
    fn declared_tensor(&mut self, number: Option<u32>, text: &'s str, span: Span) -> Option<TensorId> {
        let all: Vec<TensorId> = number
            .into_iter()
            .flat_map(|number| self.tensors_by_number.all(self.current_unit, number))
            .take(2)
            .collect();
        match all[..] {
            [only] => return Some(only),
            [] => {
                self.unreadable_texts.insert((self.current_unit, text));
                let message = format!("`{text}` is not declared");
                let label = match self.tensor_names("and").as_str() {
                    "" => "no tensor before this is declared".to_owned(),
                    known => format!("the tensors that are declared before this: {known}"),
                };
                let it = Diagnostic::new(Code::UnknownTensor, span, message, label).help(format!(
                    "declare it before the container, as in `%tensor {text}_g_float[iS0{{i0}}]`, or write it in full at its first use"
                ));
                self.unknown_tensor(number, it);
            }
            [last, first, ..] => {
                self.unreadable_texts.insert((self.current_unit, text));
                let message = format!("`{text}` is ambiguous: several tensors have this number");
                let it = Diagnostic::new(Code::UnknownTensor, span, message, "write the tensor in full here")
                    .label(self.program.tensor_span(first), "one of them")
                    .label(self.program.tensor_span(last), "another one");
                self.diagnostics.push(it);
            }
        }
        None
    }

    /// Reports that no tensor has a number. If the text before spells one in full, that has an error, which is the
    /// only one to report.
    pub(super) fn unknown_tensor(&mut self, number: Option<u32>, error: Diagnostic) {
        let before = self.spelled_from..error.span().start;
        if number.is_some_and(|it| self.spelled_tensors.has(self.source, it, before)) {
            self.consequences.push(error)
        } else {
            self.diagnostics.push(error)
        }
    }

    /// Returns whether the last diagnostics report the same of the same word, as for a misspelled element type of
    /// several tensors.
    fn is_repeated(&self, diagnostic: &Diagnostic) -> bool {
        let word = |it: &Diagnostic| it.span().text(self.source);
        let same = |it: &Diagnostic| {
            it.code == diagnostic.code && it.message == diagnostic.message && word(it) == word(diagnostic)
        };
        word(diagnostic).len() > 1 && self.diagnostics.iter().rev().take(16).any(same)
    }

    /// Returns a list of the declared tensors of the current namespace, by number: `T0, T1 and T2`.
    pub(super) fn tensor_names(&mut self, word: &str) -> String {
        let numbers = self.tensors_by_number.numbers(self.current_unit);
        list_text(numbers.iter().map(|it| format!("T{it}")), 8, word)
    }

    pub(super) fn axis(&mut self, value: &ast::Expr<'s>) -> Option<AxisId> {
        let ast::ExprKind::Axis(text) = &value.kind else {
            let message = format!("`{}` is not an axis", value.span.text(self.source));
            self.error(Code::Syntax, value.span, message, "expected one such as `iS0{i0}`");
            return None;
        };
        self.axis_text(text, value.span.start)
    }

    /// Resolves the axis whose text begins at offset `at`.
    pub(super) fn axis_text(&mut self, text: &'s str, at: u32) -> Option<AxisId> {
        let text = match parse_axis_text(text, at) {
            Ok(text) => text,
            Err(diagnostic) => {
                self.diagnostics.push(diagnostic);
                return None;
            }
        };
        let optional = |this: &mut Self, it: &Option<ast::Expr<'s>>| match it {
            Some(it) => this.scalar(it).map(Some),
            None => Some(None),
        };
        let axis = Axis {
            kind: text.kind,
            parallel: text.parallel,
            number: text.number,
            start: optional(self, &text.start)?,
            stop: optional(self, &text.stop)?,
            extent: match text.extent.kind {
                ast::ExprKind::Tensor(extents) if text.ragged => {
                    self.tensor_as_scalar(extents, text.extent.span)?
                }
                _ => self.scalar(&text.extent)?,
            },
            expanded: optional(self, &text.expanded)?,
            is_ragged: text.ragged,
            suffix: text.suffix,
        };
        let number = axis.number;
        if let Some(known) =
            self.axes_by_number.all(self.current_unit, number).find(|id| self.program.axes[*id] == axis)
        {
            return Some(known);
        }
        let id = self.program.axes.push(axis);
        self.axes_by_number.add(self.current_unit, number, id);
        Some(id)
    }

    /// Returns the tensor that contains the extents of a ragged axis as a symbol without a value.
    fn tensor_as_scalar(&mut self, text: &'s str, span: Span) -> Option<ExprId> {
        let tensor = self.tensor(text, span)?;
        let name = crate::text::tensor_text(&self.program, tensor);
        let symbol = self.program.intern_symbol(self.current_unit, &name, span);
        Some(self.program.intern_expr(Expr::Symbol(symbol)))
    }

    /// Returns the mesh of an earlier tensor if one of the last eight meshes is equal; otherwise adds the
    /// mesh.
    pub(super) fn mesh(&mut self, mesh: Mesh) -> Arc<Mesh> {
        match self.meshes.iter().rev().take(8).find(|it| ***it == mesh) {
            Some(known) => Arc::clone(known),
            None => {
                let mesh = Arc::new(mesh);
                self.meshes.push(Arc::clone(&mesh));
                mesh
            }
        }
    }

    fn stream(&mut self, name: &ast::Expr<'s>) -> Option<StreamId> {
        let text = name.span.text(self.source);
        let stream = match self.captured_streams.iter().position(|it| *it == text) {
            Some(number) => Stream::Named(number as u32),
            // An address or a canonical name (`s0`) denotes a stream object even if nothing captures it; the
            // verifier reports the missing capture.
            None if text.starts_with("0x") || is_captured_name(text) => {
                self.captured_streams.push(text);
                Stream::Named(self.captured_streams.len() as u32 - 1)
            }
            None => Stream::Index(self.scalar(name)?),
        };
        if let Some(id) = self.stream_ids.get(&stream) {
            return Some(*id);
        }
        let id = self.program.streams.push(stream.clone());
        self.stream_ids.insert(stream, id);
        Some(id)
    }
}

/// Returns whether `text` is a name of captured streams in canonical text, such as `s0`.
fn is_captured_name(text: &str) -> bool {
    let digits = text.strip_prefix('s').unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}
