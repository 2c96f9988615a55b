//! Compares the statements of a group with those of the complete fusion in the same dump.
//!
//! Fusions define each tensor and each scalar once, and each statement of a group stands in the complete fusion, too. A text that
//! says otherwise mixes two fusions, and nothing says which one is that of the container.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::Resolver;
use crate::{
    ast::{self, ExprKind, StmtKind},
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    dtype::DType,
    fusion_dump::{CompleteText, FusionDump, Group, Lists, Value},
    indentation,
    ir::{Program, UnitId},
    parse::parse_container,
    scan::scan,
    span::Span,
    tensor::parse_tensor_text,
    token::{ScanLimit, Source, TokenKind},
};

/// The statements of a complete fusion.
pub(super) struct CompleteFusion<'s> {
    /// The statement that defines a tensor or a scalar, by the name of that.
    definitions: FxHashMap<&'s str, Span>,
    /// Whether the text has all statements, and hir can read them.
    is_whole: bool,
    heading: Span,
}

impl<'s> Resolver<'s> {
    /// Returns the complete fusions that have to have the statements of a dump: its own or, if the lines of several ranks tore it from
    /// that, all with the inputs and outputs of the container. Reports what one defines twice.
    pub(super) fn complete_fusions(
        &mut self,
        dump: &FusionDump<'s>,
        dumps: &[FusionDump<'s>],
    ) -> Vec<CompleteFusion<'s>> {
        let texts: Vec<CompleteText<'s>> = match dump.complete {
            Some(own) => vec![own],
            None => dumps.iter().filter(|it| self.has_io(it)).filter_map(|it| it.complete).collect(),
        };
        texts.into_iter().map(|it| self.complete_fusion(it)).collect()
    }

    fn complete_fusion(&mut self, complete: CompleteText<'s>) -> CompleteFusion<'s> {
        let mut container = ast::Container::default();
        // Errors in the statements of groups are reported there.
        let mut ignored = Vec::new();
        let tokens = indentation::fusion_tokens(complete.body, &mut ignored);
        parse_container(tokens, &mut container, &mut ignored);
        let definitions = self.definitions(&container.body);
        let is_whole = complete.is_whole && !has_errors(&ignored);
        CompleteFusion { definitions, is_whole, heading: complete.heading }
    }

    /// Reports statements of a group that contradict each other, the lists of the group or the complete fusion.
    pub(super) fn compare_statements(
        &mut self,
        group: &Group<'s>,
        body: &[ast::Stmt<'s>],
        complete: &[CompleteFusion<'s>],
        io: Option<&Lists<'s>>,
    ) {
        let own = self.definitions(body);
        for input in &group.lists.inputs {
            if let Some(statement) = own.get(input.name()) {
                let message = format!("a statement of a group defines its input `{}`", input.name());
                self.report_contradicting_lines(message, [*statement, input.span]);
            }
        }
        for value in group.lists.inputs.iter().chain(&group.lists.outputs) {
            self.compare_type(value);
        }
        let mut own: Vec<_> = own.into_iter().collect();
        own.sort_unstable_by_key(|it| it.1.start);
        for (name, statement) in own {
            if let Some(input) = io.and_then(|it| it.inputs.iter().find(|it| binds_scalar(it, name))) {
                let message =
                    format!("a statement of a group defines `{name}`, which the inputs of the fusion bind");
                self.report_contradicting_lines(message, [statement, input.span]);
            }
            for complete in complete {
                self.compare_definition(name, statement, complete);
            }
        }
    }

    /// Reports a statement that defines something else in the complete fusion.
    fn compare_definition(&mut self, name: &str, statement: Span, complete: &CompleteFusion<'s>) {
        match complete.definitions.get(name) {
            Some(other) if !self.is_same_statement(statement, *other) => {
                let message =
                    format!("a group and the complete fusion of the log define `{name}` differently");
                self.report_contradicting_lines(message, [statement, *other]);
            }
            // The complete fusion need not print scalars.
            None if complete.is_whole && name.starts_with('T') => {
                let message =
                    format!("a group defines `{name}`, and the complete fusion of the log does not");
                self.report_contradicting_lines(message, [statement, complete.heading]);
            }
            Some(_) | None => (),
        }
    }

    /// Returns the statements that define tensors and scalars. Reports what is defined twice.
    fn definitions(&mut self, body: &[ast::Stmt<'s>]) -> FxHashMap<&'s str, Span> {
        let mut definitions = FxHashMap::default();
        for stmt in body {
            let results: Vec<&ast::Expr<'s>> = match &stmt.kind {
                StmtKind::Assign { outs, .. } => outs.iter().collect(),
                StmtKind::Group { members, .. } => members.iter().map(|it| &it.0).collect(),
                StmtKind::For(_)
                | StmtKind::If(_)
                | StmtKind::Post(_)
                | StmtKind::Wait(_)
                | StmtKind::Call(_) => continue,
            };
            for name in results.into_iter().filter_map(name_of) {
                match definitions.entry(name) {
                    Entry::Vacant(it) => _ = it.insert(stmt.span),
                    Entry::Occupied(it) => {
                        let message = format!("a fusion of the log defines `{name}` twice");
                        self.report_contradicting_lines(message, [stmt.span, *it.get()]);
                    }
                }
            }
        }
        definitions
    }

    /// Reports a type behind a tensor that is not the one in its name.
    fn compare_type(&mut self, value: &Value<'_>) {
        let Ok(tensor) = parse_tensor_text(value.text, value.span.start) else { return };
        let stated = value.dtype.and_then(DType::from_name);
        if let (Some(own), Some(stated)) = (tensor.dtype, stated)
            && own != stated
        {
            let message = format!("the log states two element types of `{}`", value.name());
            let label = format!("its name says `{}`, the text behind it `{}`", own.name(), stated.name());
            let it = Diagnostic::new(Code::FusionMismatch, value.span, message, label);
            self.diagnostics.push(it.help(HELP));
        }
    }

    /// Reports tensors of the container, or of a HostUnit, that the complete fusion has with other axes in its lists or its
    /// transforms.
    pub(super) fn compare_tensors(&mut self, dump: &FusionDump<'s>, unit: Option<UnitId>) {
        let io = dump.io.iter().flat_map(|it| it.inputs.iter().chain(&it.outputs));
        let transforms = dump.domains.values().map(|it| &it.tensor).filter(|_| unit.is_some());
        let mut stated: FxHashMap<&str, Vec<&Value<'_>>> = FxHashMap::default();
        for value in io.chain(transforms).filter(|it| it.is_tensor()) {
            stated.entry(value.name()).or_default().push(value);
        }
        let program: &Program = &self.program;
        let mut differing = Vec::new();
        for (tensor, it) in program.tensors.iter().filter(|(_, it)| it.unit == unit) {
            let values = stated.get(format!("T{}", it.number).as_str()).into_iter().flatten();
            let other = values.filter(|it| !self.is_same_tensor(tensor, it)).map(|it| it.span).min();
            differing.extend(other.map(|other| (tensor, program.tensor_span(tensor), other)));
        }
        for (tensor, place, other) in differing {
            match unit {
                None => self.report_different_tensor(tensor, place, other),
                Some(_) => {
                    let name = self.program.tensor_name(tensor);
                    let message =
                        format!("a group and the complete fusion of the log have a different `{name}`");
                    self.report_contradicting_lines(message, [place, other]);
                }
            }
        }
    }

    /// Returns whether two statements are the same, apart from blanks, the semicolon and the memory of tensors, which nvFuser may
    /// print differently in a group.
    fn is_same_statement(&self, a: Span, b: Span) -> bool {
        let tokens = |span: Span| {
            let source = Source { text: span.text(self.source), base: span.start };
            let (tokens, _) = scan(source, ScanLimit::TextEnd, &mut Vec::new(), &mut Vec::new());
            let kept = tokens.into_iter().filter(|it| it.kind != TokenKind::Semicolon);
            kept.map(move |it| visible(source.slice(it.start, it.end), it.kind)).collect::<Vec<_>>()
        };
        tokens(a) == tokens(b)
    }

    fn report_contradicting_lines(&mut self, message: String, [place, other]: [Span; 2]) {
        let it = Diagnostic::new(Code::FusionMismatch, place, message, "one says this")
            .label(other, "the other one this");
        self.diagnostics.push(it.help(HELP));
    }
}

/// The help for a fusion that contradicts itself.
const HELP: &str = "the text mixes two fusions, as when several ranks print at the same time: take the log of one rank, or print a tag \
                    before each line (`mpirun --tag-output`, `torchrun --tee 3`)";

/// Returns the name of a result: `T3`, `i5`.
fn name_of<'s>(result: &ast::Expr<'s>) -> Option<&'s str> {
    match result.kind {
        ExprKind::Tensor(text) => text.split(['_', '[', ' ']).next(),
        ExprKind::Word(word) => Some(word),
        _ => None,
    }
}

/// Returns whether an input of a fusion is a scalar, or has it as an extent.
fn binds_scalar(input: &Value<'_>, name: &str) -> bool {
    input.text == name || input.is_tensor() && input.text.contains(&format!("{{{name}}}"))
}

/// Returns the text of a token without blanks and, for a tensor, without its memory.
fn visible(text: &str, kind: TokenKind) -> String {
    let is_memory = |it: &str| ["g", "l", "s", "t", "sym"].contains(&it);
    let mut parts = vec![text];
    if kind == TokenKind::Tensor
        && let Some((name, rest)) = text.split_once('_')
    {
        let memory = rest.split(['_', '[', ' ']).next().unwrap_or("");
        if is_memory(memory) {
            parts = vec![name, rest.get(memory.len()..).unwrap_or("")];
        }
    }
    parts.concat().chars().filter(|it| !it.is_whitespace()).collect()
}
