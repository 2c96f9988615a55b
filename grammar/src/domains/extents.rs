//! Finds the inner results of splits by extents, where those that the numbers of the axes suggest violate the rule of a statement.
//!
//! In `T2[ideviceIdx.x5{2}, iS6{6}, iS7{3}] = linear( T0[iS0{6}, iS1{4}], T1[ideviceIdx.x2{2}, iS3{3}, iS4{4}] )`, where T2 has two
//! logical axes, the numbers pair `ideviceIdx.x5{2}` with `iS6{6}`. But the columns of T2 are the rows of T1, of which each device
//! has three.

use rustc_hash::FxHashMap;

use super::{DomainFacts, InferredDomains, build_domains, splits::ceil_div_operands};
use crate::{
    diagnostic::has_errors,
    ir::{Axis, OpStmt, ParallelType, Program, Stmt, StmtId, TensorId},
    rules::check::check,
};

/// Replaces the domains of tensors that violate the rule of a statement by the only ones that do not.
pub(super) fn settle(
    program: &mut Program,
    facts: &DomainFacts,
    all_inferred: &[(TensorId, InferredDomains)],
    next: &mut u32,
) {
    let open: FxHashMap<TensorId, Vec<InferredDomains>> = all_inferred
        .iter()
        .map(|(tensor, inferred)| (*tensor, alternatives(program, *tensor, inferred)))
        .filter(|(_, others)| !others.is_empty())
        .collect();
    let Some(body) = program.body.filter(|_| !open.is_empty()) else { return };
    for id in program.stmts_in(body).collect::<Vec<_>>() {
        let Stmt::Op(stmt) = &program.stmts[id] else { continue };
        let tensors = Program::tensors_of(&stmt.outs).chain(Program::tensors_of(&stmt.args));
        let mut tensors: Vec<TensorId> = tensors.filter(|it| open.contains_key(it)).collect();
        if tensors.is_empty() || is_right(program, stmt, id) {
            continue;
        }
        tensors.sort_unstable();
        tensors.dedup();
        let stmt = stmt.clone();
        let mut right = Vec::new();
        for tensor in tensors {
            let before = program.tensors[tensor].domains.clone();
            for other in open.get(&tensor).into_iter().flatten() {
                let domains = build_domains(program, tensor, other, facts, next);
                program.tensors[tensor].domains = domains.clone();
                right.extend(is_right(program, &stmt, id).then_some((tensor, domains)));
            }
            program.tensors[tensor].domains = before;
        }
        if let [(tensor, domains)] = &mut right[..] {
            program.tensors[*tensor].domains = std::mem::take(domains);
        }
    }
}

fn is_right(program: &Program, stmt: &OpStmt, id: StmtId) -> bool {
    let mut found = Vec::new();
    check(program, stmt, id, &mut found);
    !has_errors(&found)
}

/// Returns the domains of a tensor with another inner result of one split. A symbolic extent says of which split it is a result.
fn alternatives(program: &Program, tensor: TensorId, inferred: &InferredDomains) -> Vec<InferredDomains> {
    let axes: Vec<&Axis> = program.tensors[tensor].loop_domain.iter().map(|it| &program.axes[*it]).collect();
    let mut found = Vec::new();
    for (at, (outer, inner, swizzled)) in inferred.splits.iter().enumerate() {
        if *swizzled || ceil_div_operands(program, axes[*inner].extent).is_some() {
            continue;
        }
        let is_free = |other: &usize| {
            let axis = axes[*other];
            axis.parallel == ParallelType::Serial
                && axis.kind == axes[*outer].kind
                && !axis.is_rfactor()
                && inferred.splits.iter().all(|split| split.1 != *other)
        };
        found.extend((0..axes.len()).filter(is_free).map(|other| {
            let mut with = inferred.clone();
            with.splits[at].1 = other;
            with
        }));
    }
    found
}
