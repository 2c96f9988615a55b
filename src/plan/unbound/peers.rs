//! Pairs sends with receives, and derives the peer of one side from that of the other.

use std::collections::HashSet;

use grammar::{BlockId, Expr, ExprId, InfixOp, OpStmt, P2pType, PrefixOp, Program, Stmt, SymbolId, attr};
use rustc_hash::FxHashMap;

/// Returns, for each scalar that is the peer of a send or a receive, the peer of the other side.
pub(super) fn partners(program: &Program, unknown: &HashSet<SymbolId>) -> FxHashMap<SymbolId, ExprId> {
    let mut partners = FxHashMap::default();
    let mut blocks: Vec<BlockId> = program.body.into_iter().collect();
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    while let Some(block) = blocks.pop() {
        // Sends and receives of one block are paired first, and the remaining ones over the whole program.
        let (mut own_sends, mut own_recvs) = (Vec::new(), Vec::new());
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => sides(it, &mut own_sends, &mut own_recvs),
                Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => blocks.extend(program.inner_blocks(*stmt)),
            }
        }
        let paired = own_sends.len().min(own_recvs.len());
        sends.extend(own_sends.drain(paired..));
        recvs.extend(own_recvs.drain(paired..));
        own_sends
            .iter()
            .zip(&own_recvs)
            .for_each(|(send, recv)| pair(program, *send, *recv, unknown, &mut partners));
    }
    sends.iter().zip(&recvs).for_each(|(send, recv)| pair(program, *send, *recv, unknown, &mut partners));
    partners
}

fn sides(stmt: &OpStmt, sends: &mut Vec<ExprId>, recvs: &mut Vec<ExprId>) {
    match stmt.get(attr::P2P_TYPE) {
        Some(P2pType::Send) => sends.extend(stmt.get(attr::PEER)),
        Some(P2pType::Recv) => recvs.extend(stmt.get(attr::PEER)),
        None => {
            sends.extend(stmt.get(attr::SEND_PEER));
            recvs.extend(stmt.get(attr::RECV_PEER));
        }
    }
}

fn pair(
    program: &Program,
    send: ExprId,
    recv: ExprId,
    unknown: &HashSet<SymbolId>,
    partners: &mut FxHashMap<SymbolId, ExprId>,
) {
    for (one, other) in [(send, recv), (recv, send)] {
        if let Expr::Symbol(symbol) = program.exprs[one]
            && unknown.contains(&symbol)
        {
            partners.entry(symbol).or_insert(other);
        }
    }
}

/// Returns the peer of the other side: the function that maps the peer of rank `r` back to `r`. It is known
/// for sums of the rank and terms that are equal on all ranks, modulo a constant; otherwise the result is
/// `None`. A scalar among the terms has to have a value from 0 to the modulus.
pub(crate) fn mirror(program: &Program, peer: ExprId) -> Option<String> {
    let peer = defined(program, peer);
    let Expr::Infix(InfixOp::Rem, sum, modulus) = &program.exprs[peer] else {
        // `1 - rank` and `rank ^ 1` are their own inverses.
        let terms = terms(program, peer, 1)?;
        let rank: i64 = terms.iter().filter(|(_, it)| is_rank(program, *it)).map(|(sign, _)| sign).sum();
        let xor = matches!(&program.exprs[peer], Expr::Infix(InfixOp::BitXor, a, b) if is_rank(program, *a) || is_rank(program, *b));
        return (xor || rank == -1).then(|| grammar::expr_text(program, peer));
    };
    let modulus = program.constant(defined(program, *modulus)).filter(|it| *it > 0)?;
    let mut rank = 0;
    let (mut constant, mut rest, mut is_named) = (0, Vec::new(), true);
    for (sign, term) in terms(program, *sum, 1)? {
        match program.constant(term) {
            Some(value) => constant += sign * value,
            None if is_rank(program, term) => rank += sign,
            None if program.depends_on(term, &|it| program.symbols[it] == "rank") => return None,
            None => {
                is_named &= matches!(program.exprs[term], Expr::Symbol(_));
                rest.push((sign, grammar::expr_text(program, term)));
            }
        }
    }
    match rank {
        -1 => return Some(grammar::expr_text(program, peer)),
        1 => (),
        _ => return None,
    }
    // The peer is `rank + constant + rest`; its inverse is `rank - constant - rest`.
    let constant = (-constant).rem_euclid(modulus);
    Some(match rest.as_slice() {
        [] => format!("( rank + {constant} ) % {modulus}"),
        [(-1, term)] if constant == 0 && is_named => format!("( rank + {term} ) % {modulus}"),
        [(1, term)] if constant == 0 && is_named => {
            format!("( {modulus} + ( rank - {term} ) ) % {modulus}")
        }
        all => {
            // The remainder of a negative number is negative, and the number of moduli that the terms
            // subtract is not known. Each term is therefore reduced by the modulus first.
            let mut text = match constant {
                0 => "rank".to_owned(),
                _ => format!("( rank + {constant} )"),
            };
            for (sign, term) in all {
                text = match sign {
                    -1 if is_named => format!("( {text} + ( {term} % {modulus} ) )"),
                    -1 => format!("( {text} + ( {modulus} + ( {term} % {modulus} ) ) )"),
                    _ => format!("( {text} + ( {modulus} - ( {term} % {modulus} ) ) )"),
                };
            }
            format!("{text} % {modulus}")
        }
    })
}

/// Resolves a symbol to its definition, through other symbols.
fn defined(program: &Program, expr: ExprId) -> ExprId {
    let mut at = expr;
    // Definitions of a program that was read without errors are not cyclic. The bound is a safeguard.
    for _ in 0..64 {
        match &program.exprs[at] {
            Expr::Symbol(symbol) => match program.definitions.get(symbol) {
                Some(next) => at = *next,
                None => break,
            },
            _ => break,
        }
    }
    at
}

fn is_rank(program: &Program, expr: ExprId) -> bool {
    matches!(&program.exprs[expr], Expr::Symbol(it) if program.symbols[*it] == "rank")
}

/// Returns the terms of a sum with their signs; `None` if the expression is too large.
fn terms(program: &Program, expr: ExprId, sign: i64) -> Option<Vec<(i64, ExprId)>> {
    let mut stack = vec![(sign, expr)];
    let mut found = Vec::new();
    while let Some((sign, expr)) = stack.pop() {
        let expr = defined(program, expr);
        match &program.exprs[expr] {
            Expr::Infix(InfixOp::Add, a, b) => stack.extend([(sign, *b), (sign, *a)]),
            Expr::Infix(InfixOp::Sub, a, b) => stack.extend([(-sign, *b), (sign, *a)]),
            Expr::Prefix(PrefixOp::Neg, a) => stack.push((-sign, *a)),
            _ => found.push((sign, expr)),
        }
        if stack.len() + found.len() > 64 {
            return None;
        }
    }
    Some(found)
}
