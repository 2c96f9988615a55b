//! Where the text states the parts of a program: tables beside the arenas, so that programs compare equal regardless of their
//! formatting.
//!
//! Positions are those of the text that was read. A pass changes statements and leaves their positions. A statement or tensor
//! that a pass creates has one position, and no parts.

use super::{AxisId, OpStmt, Operand, Program, StmtId, SymbolId, TensorId, UnitId};
use crate::{
    arena::Id,
    attr::AttrName,
    ir::{Attr, Comment, Stmt},
    ops::Op,
    span::Span,
};

/// Positions in the source text.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The header line.
    pub header: Span,
    /// Whether the text states no domains, so that those of all tensors are inferred.
    pub are_domains_inferred: bool,
    /// The comments in the text of the container and before it, in the order of the text; those behind the last
    /// container belong to it.
    pub comments: Vec<Comment>,
    stmts: Vec<StmtSpans>,
    /// The parts of all statements, those of one statement together.
    parts: Vec<PartSpan>,
    tensors: Vec<TensorSpans>,
    /// The axes of all tensors where they are first mentioned, those of one tensor together.
    axes: Vec<Span>,
    symbols: Vec<Span>,
    /// What the text states outside of statements, in its order.
    pub(super) sections: Vec<(Span, SectionPart)>,
    /// The names that the text gives to captured streams, by number.
    pub(crate) stream_names: Vec<String>,
}

/// The positions of a statement.
#[derive(Clone, Copy, Debug)]
struct StmtSpans {
    /// For a loop or branch, its header line.
    whole: Span,
    /// The index of its first part. Its parts end where those of the next statement begin.
    first_part: u32,
    /// The operator that the text has; its definition numbers the attributes.
    op: Option<Op>,
}

/// The positions of a tensor where it is first mentioned.
#[derive(Clone, Copy, Debug)]
struct TensorSpans {
    whole: Span,
    /// The index of its first axis. Its axes end where those of the next tensor begin.
    first_axis: u32,
    /// Where `DeviceMesh` begins; the end of the tensor if it has no mesh.
    mesh: u32,
}

/// The position of a part of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartSpan {
    pub(crate) span: Span,
    pub(crate) role: PartRole,
}

/// A part, in the 4 bytes that the many parts of a long text allow. What has a larger number has no position of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PartRole {
    Result(u16),
    Operand(u16),
    /// The number of the attribute in the operator's definition, positional ones first.
    Attr(u8),
    Element(u8, u16),
}

/// A part of the program that is not in a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SectionPart {
    /// An entry of `%options`, by index in `Program::options`.
    Option(u32),
    /// The tensor of a `%tensor` line.
    Declaration(TensorId),
    /// An input in the header.
    Input(u32),
    /// An output in the header.
    Output(u32),
    /// The name of a HostUnit at the beginning of its section.
    Unit(UnitId),
    /// An input of the HostUnit before it.
    UnitInput(u32),
    /// An output of the HostUnit before it.
    UnitOutput(u32),
    /// The definition of a scalar in `Index definitions:`.
    Definition(SymbolId),
    /// A line of `Domains:`.
    Domain(TensorId),
    /// An axis in the line of `Domains:` before it.
    DomainAxis(AxisId),
}

/// A part of a statement. An operator can have all kinds of parts. A loop has its index as a result, and its axis, or its
/// first index and its end, as operands. A branch has its condition as operand 0. A scalar definition has its symbol as a
/// result and its value as operand 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A result, by index.
    Result(usize),
    /// A positional operand, by index.
    Operand(usize),
    /// An attribute, with its key.
    Attr(AttrName),
    /// A tensor of an attribute without its key: the only one, or that with an index if the attribute is a list of values.
    Element(AttrName, usize),
}

impl Spans {
    /// Adds a tensor that is first mentioned at `whole`, with its axes and the offset of its mesh.
    pub(super) fn add_tensor(&mut self, whole: Span, axes: &[Span], mesh: u32) {
        self.tensors.push(TensorSpans { whole, first_axis: self.axes.len() as u32, mesh });
        self.axes.extend_from_slice(axes);
    }

    pub(super) fn add_stmt(&mut self, stmt: &Stmt, whole: Span, parts: impl Iterator<Item = PartSpan>) {
        let op = if let Stmt::Op(it) = stmt { Some(it.op) } else { None };
        self.stmts.push(StmtSpans { whole, first_part: self.parts.len() as u32, op });
        self.parts.extend(parts);
    }

    /// Adds a part that is not in a statement: a line of `Domains:` before its axes, and a HostUnit before its inputs and
    /// outputs.
    pub(crate) fn add_section_part(&mut self, span: Span, part: SectionPart) {
        self.sections.push((span, part));
    }

    pub(super) fn add_symbol(&mut self, span: Span) {
        self.symbols.push(span);
    }

    /// Replaces each position.
    pub(crate) fn map(&mut self, to: impl Fn(Span) -> Span) {
        for it in &mut self.tensors {
            it.mesh = to(Span { start: it.mesh, end: it.whole.end }).start;
        }
        let all = [&mut self.header].into_iter().chain(&mut self.axes).chain(&mut self.symbols);
        let all = all.chain(self.stmts.iter_mut().map(|it| &mut it.whole));
        let all = all.chain(self.tensors.iter_mut().map(|it| &mut it.whole));
        let all = all.chain(self.comments.iter_mut().map(|it| &mut it.span));
        let all = all.chain(self.sections.iter_mut().map(|it| &mut it.0));
        all.chain(self.parts.iter_mut().map(|it| &mut it.span)).for_each(|span| *span = to(*span));
    }

    /// Returns the elements of a table that begin at index `first` and end before those of the next row.
    fn rows<T>(table: &[T], first: u32, next: Option<u32>) -> &[T] {
        table.get(first as usize..next.map_or(table.len(), |it| it as usize)).unwrap_or_default()
    }
}

impl Program {
    /// Returns the position of a statement.
    pub fn stmt_span(&self, stmt: StmtId) -> Span {
        self.spans.stmts.get(stmt.index()).map(|it| it.whole).unwrap_or_default()
    }

    /// Returns the position where a tensor is first mentioned.
    pub fn tensor_span(&self, tensor: TensorId) -> Span {
        self.spans.tensors.get(tensor.index()).map(|it| it.whole).unwrap_or_default()
    }

    /// Returns the position where a symbol is first mentioned.
    pub fn symbol_span(&self, symbol: SymbolId) -> Span {
        self.spans.symbols.get(symbol.index()).copied().unwrap_or_default()
    }

    /// Returns the axes of a tensor, each with its position where the text first mentions the tensor.
    pub fn axis_spans(&self, tensor: TensorId) -> impl Iterator<Item = (AxisId, Span)> {
        let rows = &self.spans.tensors;
        let next = rows.get(tensor.index() + 1).map(|it| it.first_axis);
        let own = rows.get(tensor.index()).map(|it| Spans::rows(&self.spans.axes, it.first_axis, next));
        self.tensors[tensor].loop_domain.iter().copied().zip(own.unwrap_or_default().iter().copied())
    }

    /// Returns the position of a tensor's mesh where the text first mentions the tensor, from `DeviceMesh` on.
    pub fn mesh_span(&self, tensor: TensorId) -> Option<Span> {
        let it = self.spans.tensors.get(tensor.index())?;
        (it.mesh < it.whole.end).then_some(Span { start: it.mesh, end: it.whole.end })
    }

    /// Returns the position of an output in the header.
    pub fn output_span(&self, output: usize) -> Option<Span> {
        let part = SectionPart::Output(output as u32);
        Some(self.spans.sections.iter().find(|it| it.1 == part)?.0)
    }

    /// Returns the position of an axis in a tensor's line of `Domains:`, of the line if it does not have the axis, or `None` if
    /// the text has no such line.
    pub(crate) fn domain_span(&self, tensor: TensorId, axis: AxisId) -> Option<Span> {
        let line = |(_, part): &(Span, SectionPart)| *part == SectionPart::Domain(tensor);
        let at = self.spans.sections.iter().position(line)?;
        let is_of_line = |(_, part): &&(Span, SectionPart)| matches!(part, SectionPart::DomainAxis(_));
        let mut axes = self.spans.sections[at + 1..].iter().take_while(is_of_line);
        let own = axes.find(|(_, part)| *part == SectionPart::DomainAxis(axis));
        Some(own.unwrap_or(&self.spans.sections[at]).0)
    }

    /// Returns the parts of a statement that the text states, with their positions.
    pub fn parts(&self, stmt: StmtId) -> impl Iterator<Item = (Part, Span)> {
        let rows = &self.spans.stmts;
        let next = rows.get(stmt.index() + 1).map(|it| it.first_part);
        let row = rows.get(stmt.index());
        let own = row.map(|it| Spans::rows(&self.spans.parts, it.first_part, next)).unwrap_or_default();
        let name = move |at: u8| {
            let row = row?.op?.def();
            Some(row.args.iter().chain(row.attrs).nth(usize::from(at))?.key())
        };
        own.iter().filter_map(move |it| {
            let part = match it.role {
                PartRole::Result(at) => Part::Result(usize::from(at)),
                PartRole::Operand(at) => Part::Operand(usize::from(at)),
                PartRole::Attr(attr) => Part::Attr(name(attr)?),
                PartRole::Element(attr, at) => Part::Element(name(attr)?, usize::from(at)),
            };
            Some((part, it.span))
        })
    }

    /// Returns the names that the text gives to captured streams, by number. `Stream NAME` is the captured stream, also if the name
    /// is a number.
    pub fn captured_stream_names(&self) -> &[String] {
        &self.spans.stream_names
    }

    /// Returns the position of a part; if the text does not state it, that of the statement.
    pub fn part_span(&self, stmt: StmtId, part: Part) -> Span {
        let found = self.parts(stmt).find(|it| it.0 == part);
        found.map_or_else(|| self.stmt_span(stmt), |it| it.1)
    }

    /// Returns the position of an attribute; if the text does not state it, that of the statement.
    pub fn attr_span(&self, stmt: StmtId, name: AttrName) -> Span {
        self.part_span(stmt, Part::Attr(name))
    }

    /// Returns the positions of a tensor in a statement and in those that it lists.
    pub(crate) fn use_spans(&self, stmt: StmtId, tensor: TensorId) -> Vec<Span> {
        let mut uses = Vec::new();
        self.collect_uses(stmt, tensor, &mut uses);
        uses
    }

    fn collect_uses(&self, stmt: StmtId, tensor: TensorId, acc: &mut Vec<Span>) {
        let Stmt::Op(it) = &self.stmts[stmt] else { return };
        let uses = self.parts(stmt).filter(|(part, _)| it.value(*part) == Some(Operand::Tensor(tensor)));
        acc.extend(uses.map(|it| it.1));
        for (_, attr) in &it.attrs {
            if let Attr::Stmts(listed) = attr {
                listed.iter().for_each(|it| self.collect_uses(*it, tensor, acc));
            }
        }
    }
}

impl OpStmt {
    /// Returns the tensor, scalar or stream that is a part of the statement, or `None` for other attributes. The tensor of an
    /// attribute is its element.
    pub fn value(&self, part: Part) -> Option<Operand> {
        match part {
            Part::Result(at) => self.outs.get(at).copied(),
            Part::Operand(at) => self.args.get(at).copied(),
            Part::Attr(name) => match self.attr(name)? {
                Attr::Scalar(scalar) => Some(Operand::Scalar(*scalar)),
                _ => None,
            },
            Part::Element(name, at) => match self.attr(name)? {
                Attr::Tensor(tensor) => (at == 0).then_some(Operand::Tensor(*tensor)),
                Attr::Values(values) => values.get(at).copied(),
                _ => None,
            },
        }
    }
}
