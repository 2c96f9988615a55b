//! The thin syntax tree: what was written, with nothing looked up.
//!
//! The statement syntax of Host IR is regular (`outs = name(args)`, `name(args)`, `name # (args)`), so the tree
//! has one `Call` shape for it and knows no operator. `resolve` gives the calls their meaning.
//!
//! Invariant: every text slice borrows from the source, and every node that can be wrong has a span.

use crate::span::Span;

/// Everything found in one input.
#[derive(Debug, Default)]
pub struct File<'s> {
    /// The containers, in order.
    pub containers: Vec<Container<'s>>,
}

/// One `%HostIrContainer`.
#[derive(Debug, Default)]
pub struct Container<'s> {
    /// The header line.
    pub span: Span,
    /// `%options` entries.
    pub options: Vec<Arg<'s>>,
    /// Inputs in the header.
    pub inputs: Vec<Expr<'s>>,
    /// Outputs in the header.
    pub outputs: Vec<Expr<'s>>,
    /// Statements of the body.
    pub body: Vec<Stmt<'s>>,
    /// HostUnit sections.
    pub units: Vec<Unit<'s>>,
    /// The sections after the closer.
    pub trailers: Vec<Trailer<'s>>,
}

/// A section after the container's closer.
#[derive(Debug)]
pub enum Trailer<'s> {
    /// `Index definitions:` with its scalar statements.
    Definitions(Vec<Stmt<'s>>),
    /// `Domains:` with one line a tensor.
    Domains(Vec<Domain<'s>>),
}

/// One line of `Domains:`: `T3: logical(...), outer_split(iS0{8}, 2) -> (iS1{2}, iS2{4}), allocation(...)`.
#[derive(Debug)]
pub struct Domain<'s> {
    /// The tensor's short name, `T3`.
    pub tensor: Name<'s>,
    /// The calls, each with what stands behind its arrow.
    pub clauses: Vec<(Expr<'s>, Vec<Expr<'s>>)>,
}

/// A `HostUnit` section.
#[derive(Debug)]
pub struct Unit<'s> {
    /// `HostUnit5`.
    pub name: Name<'s>,
    /// `Inputs={…}`.
    pub inputs: Vec<Expr<'s>>,
    /// `Outputs={…}`.
    pub outputs: Vec<Expr<'s>>,
    /// Statements of `%kernel { … }`; `None` when the source elided them (`[...]`).
    pub body: Option<Vec<Stmt<'s>>>,
    /// Where its lists would stand, when it has none.
    pub missing_lists_at: Option<u32>,
}

/// A word with its place.
#[derive(Clone, Copy, Debug)]
pub struct Name<'s> {
    /// The word.
    pub text: &'s str,
    /// Its place.
    pub span: Span,
}

/// One statement.
#[derive(Debug)]
pub struct Stmt<'s> {
    /// The whole statement; for loops and branches the header line only.
    pub span: Span,
    /// What it is.
    pub kind: StmtKind<'s>,
}

/// The forms a statement can take.
#[derive(Debug)]
pub enum StmtKind<'s> {
    /// `FOR index in axis:` or `FOR index from a to b:`.
    For(Box<For<'s>>),
    /// `IF Manual cond:` with an optional `ELSE:`.
    If(Box<If<'s>>),
    /// `outs = value`, with the operator of a tensor expression inside `value`.
    Assign {
        /// Left-hand side.
        outs: Vec<Expr<'s>>,
        /// Right-hand side.
        value: Expr<'s>,
    },
    /// `GroupedReductionOp( … )`: operators that run as one, and the attribute that they share.
    Group {
        /// `GroupedReductionOp`.
        name: Name<'s>,
        /// Results and calls.
        members: Vec<(Expr<'s>, Expr<'s>)>,
        /// `allreduce = false`.
        shared: Arg<'s>,
    },
    /// May 2024: an operation with its operands, spelled out in words.
    Post(Box<Post<'s>>),
    /// May 2024: waits for the communication whose text it repeats.
    Wait(Box<Operation<'s>>),
    /// A statement without a result: a call, or one of the keyword forms brought into call form.
    Call(Expr<'s>),
}

/// A loop.
#[derive(Debug)]
pub struct For<'s> {
    /// The bound name.
    pub index: Name<'s>,
    /// What it runs over.
    pub range: Range<'s>,
    /// The loop body.
    pub body: Vec<Stmt<'s>>,
}

/// A branch.
#[derive(Debug)]
pub struct If<'s> {
    /// The predicate kind, `Manual` in host programs.
    pub kind: Name<'s>,
    /// The predicate.
    pub cond: Expr<'s>,
    /// Statements of the first branch, possibly none.
    pub then: Vec<Stmt<'s>>,
    /// Statements after `ELSE:`; empty without one.
    pub other: Vec<Stmt<'s>>,
}

/// A posted operation of May 2024.
#[derive(Debug)]
pub struct Post<'s> {
    /// Operands that it reads.
    pub inputs: Vec<Expr<'s>>,
    /// Operands that it writes.
    pub outputs: Vec<Expr<'s>>,
    /// The operation.
    pub op: Operation<'s>,
}

/// An operation in the words of May 2024.
#[derive(Debug)]
pub enum Operation<'s> {
    /// `%kernel { … }`: a fusion in its own namespace.
    Kernel(Vec<Stmt<'s>>),
    /// `Communication Allgather: { team: 0 1, }`.
    Communication {
        /// `Communication`.
        name: Name<'s>,
        /// `Allgather`.
        kind: Name<'s>,
        /// `team: 0 1`, `root: 0`, `mesh: …`; a list's further members follow without a key.
        args: Vec<Arg<'s>>,
    },
    /// `Communication 3 (type=…)`.
    Call(Expr<'s>),
}

/// What a loop runs over.
#[derive(Debug)]
pub enum Range<'s> {
    /// `in istreamIdx10{8}`.
    Axis(Expr<'s>),
    /// `from a to b`, half open.
    Bounds(Expr<'s>, Expr<'s>),
}

/// An argument of a call.
#[derive(Debug)]
pub struct Arg<'s> {
    /// `key` of `key = value`, `key=value` or `key: value`; blanks inside belong to it (`initial value`).
    pub key: Option<Name<'s>>,
    /// The value.
    pub value: Expr<'s>,
}

/// Anything that can stand for a value.
#[derive(Debug)]
pub struct Expr<'s> {
    /// Its place.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind<'s>,
}

/// The forms of a value.
#[derive(Debug)]
pub enum ExprKind<'s> {
    /// An integer literal, sign included.
    Int(i64),
    /// A floating-point literal as written.
    Float(&'s str),
    /// A word: symbol, named scalar, type name, `true`, `NCCL`, `HostUnit0` …
    Word(&'s str),
    /// A whole tensor's text, `T0_g_float[iS0{i0}] (DeviceMesh{0 1})`; `tensor` parses it once per spelling.
    Tensor(&'s str),
    /// A whole iteration domain's text, `istreamIdx10{8}`.
    Axis(&'s str),
    /// `Stream x`; an address is a `Word` starting with `0x`.
    Stream(Box<Expr<'s>>),
    /// `op x`.
    Prefix(&'s str, Box<Expr<'s>>),
    /// `x op y`.
    Infix(&'s str, Box<Expr<'s>>, Box<Expr<'s>>),
    /// `name(args)`, `name # (args)`, `name #`, and the keyword forms.
    Call {
        /// What is called.
        name: Name<'s>,
        /// The expression number after the name.
        number: Option<i64>,
        /// Arguments in order.
        args: Vec<Arg<'s>>,
    },
    /// `( x )`.
    Paren(Box<Expr<'s>>),
    /// `(0 1 2)`: a team of two or more.
    Team(Vec<i64>),
    /// `{a, b}`, `{a b}`, `{{…} {…}}`.
    Braces(Vec<Expr<'s>>),
}
