//! Infers the protocol of CUDA transfers, which dumps show only by the order of their statements.
//!
//! With get, nvFuser posts the send of an exchange before its receive; with put, it posts the receive first.
//! A text in which every exchange begins with the receive uses put.

use super::Resolver;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{BlockId, Expr, OpStmt, P2P_PROTOCOL, Program, Stmt},
    span::Span,
    words::{Backend, P2pType},
};

impl Resolver<'_> {
    /// Adds the option `p2p_protocol=put` if the order of the statements implies it, and reports a warning.
    pub(super) fn infer_protocol(&mut self) {
        if let Some(span) = first_of_put(&self.program) {
            state(&mut self.program, "put", span);
            let it = Diagnostic::new(
                Code::LossyProtocol,
                span,
                "the receives are posted before the sends, so the put protocol is assumed",
                "with get, the send is posted first",
            );
            let mut it = it.help("write `%options p2p_protocol=put` before the container");
            it.fixes.push(self.options_fix("p2p_protocol=put"));
            self.diagnostics.push(it);
        }
    }
}

/// States the get protocol in a program without a stated one if the order of its statements implies put. A pass may have
/// removed the exchanges from which the reader inferred get.
pub fn keep_get_protocol(program: &mut Program) {
    if let Some(span) = first_of_put(program) {
        state(program, "get", span);
    }
}

fn state(program: &mut Program, protocol: &str, span: Span) {
    let protocol = program.intern_symbol(None, protocol, span);
    let protocol = program.intern_expr(Expr::Symbol(protocol));
    program.options.insert(P2P_PROTOCOL.to_owned(), protocol);
}

/// Returns the first receive of a program that states no protocol and whose statements imply put.
fn first_of_put(program: &Program) -> Option<Span> {
    let body = program.body.filter(|_| !program.options.contains_key(P2P_PROTOCOL))?;
    let mut orders = Vec::new();
    exchange_orders(program, body, &mut orders);
    let (_, span) = *orders.first()?;
    orders.iter().all(|(recv_first, _)| *recv_first).then_some(span)
}

/// Appends, for each block with CUDA transfers in both directions, whether the first one is a receive.
fn exchange_orders(program: &Program, block: BlockId, acc: &mut Vec<(bool, Span)>) {
    let mut first: Option<(P2pType, Span)> = None;
    let mut both = false;
    for id in program.block(block) {
        match &program.stmts[*id] {
            Stmt::Op(it) => {
                let Some(direction) = cuda_direction(it) else { continue };
                match first {
                    None => first = Some((direction, program.stmt_span(*id))),
                    Some((known, _)) => both |= known != direction,
                }
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => exchange_orders(program, it.body, acc),
            Stmt::If(it) => {
                exchange_orders(program, it.then_block, acc);
                it.else_block.iter().for_each(|other| exchange_orders(program, *other, acc));
            }
        }
    }
    acc.extend(first.filter(|_| both).map(|(direction, span)| (direction == P2pType::Recv, span)));
}

fn cuda_direction(stmt: &OpStmt) -> Option<P2pType> {
    let cuda = stmt.get(attr::BACKEND) == Some(Backend::Cuda);
    stmt.get(attr::P2P_TYPE).filter(|_| cuda && stmt.get(attr::PROTOCOL).is_none())
}
