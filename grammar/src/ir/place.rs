//! What the text states at an offset. Tools that show a program in its text, such as editors, use it.

use super::{AxisId, Operand, Part, Program, SectionPart, Stmt, StmtId, SymbolId, TensorId, UnitId};
use crate::span::Span;

/// What the text states at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The header of the container.
    Header,
    /// An entry of `%options`, by index in `Program::options`.
    Option(usize),
    /// The tensor of a `%tensor` line.
    Declaration(TensorId),
    /// An input in the header, by index.
    Input(usize),
    /// An output in the header, by index.
    Output(usize),
    /// A statement.
    Stmt(StmtId),
    /// A part of a statement.
    Part(StmtId, Part),
    /// An axis of a tensor, where the tensor is first mentioned.
    Axis(TensorId, AxisId),
    /// The mesh of a tensor, where the tensor is first mentioned.
    Mesh(TensorId),
    /// The name of a HostUnit at the beginning of its section.
    Unit(UnitId),
    /// An input in the section of a HostUnit, by index.
    UnitInput(UnitId, usize),
    /// An output in the section of a HostUnit, by index.
    UnitOutput(UnitId, usize),
    /// The definition of a scalar in `Index definitions:`.
    Definition(SymbolId),
    /// The line of a tensor in `Domains:`.
    Domain(TensorId),
    /// An axis in the line of a tensor in `Domains:`.
    DomainAxis(TensorId, AxisId),
    /// A comment, by index in `Spans::comments`.
    Comment(usize),
}

impl Program {
    /// Returns what the text states at a byte offset, with its position: the innermost of the places that contain the offset.
    /// Takes time linear in the number of places.
    pub fn at(&self, offset: u32) -> Option<(Place, Span)> {
        let contains = |(_, span): &(Place, Span)| span.start <= offset && offset < span.end;
        self.places().filter(contains).min_by_key(|(_, span)| span.end - span.start)
    }

    /// Returns everything that the text states, with its position; what contains another place precedes it.
    pub fn places(&self) -> impl Iterator<Item = (Place, Span)> {
        let stmts = self.stmts.ids().flat_map(|stmt| {
            let parts = self.parts(stmt).map(move |(part, span)| (Place::Part(stmt, part), span));
            std::iter::once((Place::Stmt(stmt), self.stmt_span(stmt))).chain(parts)
        });
        let tensors = self.tensors.ids().flat_map(|tensor| {
            let axes = self.axis_spans(tensor).map(move |(axis, span)| (Place::Axis(tensor, axis), span));
            axes.chain(self.mesh_span(tensor).map(|span| (Place::Mesh(tensor), span)))
        });
        let comments = self.spans.comments.iter().enumerate().map(|(at, it)| (Place::Comment(at), it.span));
        std::iter::once((Place::Header, self.spans.header))
            .chain(self.section_places())
            .chain(stmts)
            .chain(tensors)
            .chain(comments)
    }

    /// Returns what the text states outside of statements.
    fn section_places(&self) -> impl Iterator<Item = (Place, Span)> {
        let (mut unit, mut tensor) = (None, None);
        self.spans.sections.iter().filter_map(move |(span, part)| {
            let place = match *part {
                SectionPart::Option(at) => Place::Option(at as usize),
                SectionPart::Declaration(tensor) => Place::Declaration(tensor),
                SectionPart::Input(at) => Place::Input(at as usize),
                SectionPart::Output(at) => Place::Output(at as usize),
                SectionPart::Unit(it) => Place::Unit(*unit.insert(it)),
                SectionPart::UnitInput(at) => Place::UnitInput(unit?, at as usize),
                SectionPart::UnitOutput(at) => Place::UnitOutput(unit?, at as usize),
                SectionPart::Definition(symbol) => Place::Definition(symbol),
                SectionPart::Domain(it) => Place::Domain(*tensor.insert(it)),
                SectionPart::DomainAxis(axis) => Place::DomainAxis(tensor?, axis),
            };
            Some((place, *span))
        })
    }

    /// Returns the tensor, scalar or stream that the text names at a place. A tensor is defined where `tensor_span` says.
    pub fn operand(&self, place: Place) -> Option<Operand> {
        match place {
            Place::Declaration(tensor) | Place::Domain(tensor) => Some(Operand::Tensor(tensor)),
            Place::Input(at) => self.inputs.get(at).copied(),
            Place::Output(at) => self.outputs.get(at).copied(),
            Place::UnitInput(unit, at) => self.units[unit].inputs.get(at).copied(),
            Place::UnitOutput(unit, at) => self.units[unit].outputs.get(at).copied(),
            Place::Part(stmt, part) => match &self.stmts[stmt] {
                Stmt::Op(it) => it.value(part),
                Stmt::Let(_, value) => (part == Part::Operand(0)).then_some(Operand::Scalar(*value)),
                Stmt::If(it) => (part == Part::Operand(0)).then_some(Operand::Scalar(it.cond)),
                Stmt::For(_) => None,
            },
            Place::Option(at) => self.options.get_index(at).map(|(_, value)| Operand::Scalar(*value)),
            Place::Definition(symbol) => self.definitions.get(&symbol).map(|it| Operand::Scalar(*it)),
            Place::Header
            | Place::Stmt(_)
            | Place::Axis(..)
            | Place::Mesh(_)
            | Place::Unit(_)
            | Place::DomainAxis(..)
            | Place::Comment(_) => None,
        }
    }

    /// Returns the statement that a comment is about: the one before it if the comment ends a line, otherwise the next one.
    /// `None` if there is none, as for a comment behind the last statement.
    pub fn commented(&self, comment: usize) -> Option<StmtId> {
        let it = self.spans.comments.get(comment)?;
        let start = |stmt: &StmtId| self.stmt_span(*stmt).start;
        if it.is_alone {
            self.stmts.ids().filter(|stmt| start(stmt) >= it.span.end).min_by_key(start)
        } else {
            self.stmts.ids().filter(|stmt| start(stmt) < it.span.start).max_by_key(start)
        }
    }
}
