//! The syntax tree: the constructs of the text, with no names resolved.
//!
//! The statement syntax of Host IR is regular (`outs = name(args)`, `name(args)`, `name # (args)`), so the
//! tree has one `Call` node for it and contains no list of operators. `resolve` maps the calls to operators.
//!
//! Invariant: every text slice borrows from the source, and every node that can be erroneous has a span.

use crate::span::Span;

/// The syntax tree of one input.
#[derive(Debug, Default)]
pub struct File<'s> {
    /// The containers, in text order.
    pub containers: Vec<Container<'s>>,
}

/// One `%HostIrContainer`.
#[derive(Debug, Default)]
pub struct Container<'s> {
    /// Span of the header line.
    pub span: Span,
    /// Entries of `%options`.
    pub options: Vec<Arg<'s>>,
    /// The tensors of `%tensor` lines.
    pub declarations: Vec<Expr<'s>>,
    /// Inputs that the header lists.
    pub inputs: Vec<Expr<'s>>,
    /// Outputs that the header lists.
    pub outputs: Vec<Expr<'s>>,
    /// Statements of the body.
    pub body: Vec<Stmt<'s>>,
    /// HostUnit sections.
    pub units: Vec<Unit<'s>>,
    /// Sections after the closing brace of the container.
    pub trailers: Vec<Trailer<'s>>,
}

/// A section after the closing brace of the container.
#[derive(Debug)]
pub enum Trailer<'s> {
    /// `Index definitions:` with its scalar statements.
    Definitions(Vec<Stmt<'s>>),
    /// `Domains:` with one line per tensor.
    Domains(Vec<Domain<'s>>),
}

/// One line of `Domains:`: `T3: logical(...), outer_split(iS0{8}, 2) -> (iS1{2}, iS2{4}), allocation(...)`.
#[derive(Debug)]
pub struct Domain<'s> {
    /// The short name of the tensor, `T3`.
    pub tensor: Name<'s>,
    /// The clauses: each is a call and the list after its `->`, which is empty if the clause has no arrow.
    pub clauses: Vec<(Expr<'s>, Vec<Expr<'s>>)>,
}

/// A `HostUnit` section.
#[derive(Debug)]
pub struct Unit<'s> {
    /// The name, `HostUnit5`.
    pub name: Name<'s>,
    /// `Inputs={…}` and `Outputs={…}`, and the second lists of some dialects.
    pub lists: Vec<UnitList<'s>>,
    /// Statements of `%kernel { … }`; `None` if the source omits them (`[...]`).
    pub body: Option<Vec<Stmt<'s>>>,
    /// Byte offset at which the input and output lists belong; `None` unless the section omits them.
    pub missing_lists_at: Option<u32>,
}

/// A list of a `HostUnit` section.
#[derive(Debug)]
pub struct UnitList<'s> {
    /// The word before it.
    pub key: Name<'s>,
    /// Its values.
    pub values: Vec<Expr<'s>>,
}

/// A word and its span.
#[derive(Clone, Copy, Debug)]
pub struct Name<'s> {
    /// The word.
    pub text: &'s str,
    /// The span in the source.
    pub span: Span,
}

/// A statement.
#[derive(Debug)]
pub struct Stmt<'s> {
    /// Span of the statement; for a loop or a branch, span of the header line only.
    pub span: Span,
    /// The form of the statement.
    pub kind: StmtKind<'s>,
}

/// The forms of a statement.
#[derive(Debug)]
pub enum StmtKind<'s> {
    /// `FOR index in axis:` or `FOR index from a to b:`.
    For(Box<For<'s>>),
    /// `IF Manual cond:` with an optional `ELSE:`.
    If(Box<If<'s>>),
    /// `outs = value`; the operator of a tensor expression is in `value`.
    Assign {
        /// Left-hand side.
        outs: Vec<Expr<'s>>,
        /// Right-hand side.
        value: Expr<'s>,
    },
    /// `GroupedReductionOp( … )`: reductions that run as one operator, and the attribute that they share.
    Group {
        /// The name, `GroupedReductionOp`.
        name: Name<'s>,
        /// The result and the call of each reduction.
        members: Vec<(Expr<'s>, Expr<'s>)>,
        /// The shared attribute, `allreduce = false`.
        shared: Arg<'s>,
    },
    /// May 2024: posts an operation that is described in words, with its operands.
    Post(Box<Post<'s>>),
    /// May 2024: waits for the communication whose description it repeats.
    Wait(Box<Operation<'s>>),
    /// A statement without a result: a call, or a keyword form that the parser converted to a call.
    Call(Expr<'s>),
}

/// A loop.
#[derive(Debug)]
pub struct For<'s> {
    /// The loop index.
    pub index: Name<'s>,
    /// The iteration range.
    pub range: Range<'s>,
    /// The loop body.
    pub body: Vec<Stmt<'s>>,
}

/// A branch.
#[derive(Debug)]
pub struct If<'s> {
    /// The kind of the predicate, `Manual` in host programs.
    pub kind: Name<'s>,
    /// The predicate.
    pub cond: Expr<'s>,
    /// Statements of the first branch; may be empty.
    pub then: Vec<Stmt<'s>>,
    /// Statements after `ELSE:`; empty if there is no `ELSE:`.
    pub other: Vec<Stmt<'s>>,
}

/// A posted operation in the syntax of May 2024.
#[derive(Debug)]
pub struct Post<'s> {
    /// Operands that the operation reads.
    pub inputs: Vec<Expr<'s>>,
    /// Operands that the operation writes.
    pub outputs: Vec<Expr<'s>>,
    /// The operation.
    pub op: Operation<'s>,
}

/// An operation in the syntax of May 2024.
#[derive(Debug)]
pub enum Operation<'s> {
    /// `%kernel { … }`: a fusion with its own namespace.
    Kernel(Vec<Stmt<'s>>),
    /// `Communication Allgather: { team: 0 1, }`.
    Communication {
        /// The word `Communication`.
        name: Name<'s>,
        /// The kind of the communication, `Allgather`.
        kind: Name<'s>,
        /// `team: 0 1`, `root: 0`, `mesh: …`; the second and later elements of a list follow as arguments
        /// without a key.
        args: Vec<Arg<'s>>,
    },
    /// `Communication 3 (type=…)`.
    Call(Expr<'s>),
}

/// The iteration range of a loop.
#[derive(Debug)]
pub enum Range<'s> {
    /// `in istreamIdx10{8}`.
    Axis(Expr<'s>),
    /// `from a to b`; `b` is excluded.
    Bounds(Expr<'s>, Expr<'s>),
}

/// An argument of a call.
#[derive(Debug)]
pub struct Arg<'s> {
    /// The key of `key = value`, `key=value` or `key: value`; it can contain blanks (`initial value`).
    pub key: Option<Name<'s>>,
    /// The value.
    pub value: Expr<'s>,
}

/// An expression.
#[derive(Debug)]
pub struct Expr<'s> {
    /// The span in the source.
    pub span: Span,
    /// The form of the expression.
    pub kind: ExprKind<'s>,
}

/// The forms of an expression.
#[derive(Debug)]
pub enum ExprKind<'s> {
    /// An integer literal, including its sign.
    Int(i64),
    /// A floating-point literal, as written.
    Float(&'s str),
    /// A word: a symbol, a named scalar, a type name, `true`, `NCCL`, `HostUnit0` …
    Word(&'s str),
    /// The complete text of a tensor, `T0_g_float[iS0{i0}] (DeviceMesh{0 1})`; `tensor` parses each distinct
    /// spelling once.
    Tensor(&'s str),
    /// The complete text of an iteration domain, `istreamIdx10{8}`.
    Axis(&'s str),
    /// `Stream x`; if `x` is an address, it is a `Word` that begins with `0x`.
    Stream(Box<Expr<'s>>),
    /// `op x`.
    Prefix(&'s str, Box<Expr<'s>>),
    /// `x op y`.
    Infix(&'s str, Box<Expr<'s>>, Box<Expr<'s>>),
    /// `name(args)`, `name # (args)`, `name #`, and the keyword forms.
    Call {
        /// The name of the callee.
        name: Name<'s>,
        /// The number after the name, if any.
        number: Option<i64>,
        /// The arguments, in order.
        args: Vec<Arg<'s>>,
    },
    /// `( x )`.
    Paren(Box<Expr<'s>>),
    /// `(0 1 2)`: a team of two or more ranks.
    Team(Vec<i64>),
    /// `{a, b}`, `{a b}`, `{{…} {…}}`.
    Braces(Vec<Expr<'s>>),
}
