//! The parts of a container, in the order in which the parser completes them.

use crate::{
    ast::{Arg, Container, Expr, Stmt, Trailer, Unit},
    span::Span,
};

/// Receives the parts of a container in text order, as the parser completes them.
pub trait ParseEvents<'s> {
    /// Receives the entries of `%options`.
    fn options(&mut self, options: Vec<Arg<'s>>);
    /// Receives the tensor of a `%tensor` line.
    fn declaration(&mut self, tensor: Expr<'s>);
    /// Receives the header line.
    fn header(&mut self, span: Span, inputs: Vec<Expr<'s>>, outputs: Vec<Expr<'s>>);
    /// Receives one statement of the body, including nested statements.
    fn stmt(&mut self, stmt: Stmt<'s>);
    /// Receives a HostUnit section.
    fn unit(&mut self, unit: Unit<'s>);
    /// Receives a section after the closing brace.
    fn trailer(&mut self, trailer: Trailer<'s>);
}

/// Builds a tree of the whole container.
impl<'s> ParseEvents<'s> for Container<'s> {
    fn options(&mut self, options: Vec<Arg<'s>>) {
        self.options.extend(options);
    }

    fn declaration(&mut self, tensor: Expr<'s>) {
        self.declarations.push(tensor);
    }

    fn header(&mut self, span: Span, inputs: Vec<Expr<'s>>, outputs: Vec<Expr<'s>>) {
        (self.span, self.inputs, self.outputs) = (span, inputs, outputs);
    }

    fn stmt(&mut self, stmt: Stmt<'s>) {
        self.body.push(stmt);
    }

    fn unit(&mut self, unit: Unit<'s>) {
        self.units.push(unit);
    }

    fn trailer(&mut self, trailer: Trailer<'s>) {
        self.trailers.push(trailer);
    }
}
