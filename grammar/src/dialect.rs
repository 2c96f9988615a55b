//! Prints text for tools that expect an older dialect, and reports what that dialect cannot express.
//!
//! The program is converted to the constructs of the older dialect, printed, and read back. Every difference
//! after reading back is a loss, so the warnings follow the behavior of the reader. A table adds the
//! constructs that the reader accepts but the tools of that time did not know.
//!
//! Invariant: if no loss is reported, the text reads back as the same program.

use std::{collections::HashMap, fmt::Display};

use crate::{
    attr::{self, AttrName},
    canonical::{print, write_short},
    codes::Code,
    diagnostic::Diagnostic,
    ir::{AxisKind, Expr, InfixOp, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::Op,
    print::{Dialect, attr_text, print_2025, summary},
    read::read,
    span::Span,
    text::{domain_clauses, expr_text, tensor_text},
    words::{Backend, CommunicationType},
};

/// Returns the text of a container in a dialect, and a warning for each construct that the dialect cannot
/// express.
pub fn print_as(program: &Program, dialect: Dialect) -> (String, Vec<Diagnostic>) {
    match dialect {
        Dialect::Canonical => (print(program), Vec::new()),
        Dialect::Short => {
            let mut text = Vec::new();
            // Writing to memory does not fail, and the printer writes valid UTF-8.
            let _ = write_short(program, &mut text);
            (String::from_utf8(text).unwrap_or_default(), Vec::new())
        }
        Dialect::Y2025 => {
            let text = print_2025(&to_2025_program(program));
            let losses = losses(program, &text);
            (text, losses)
        }
    }
}

/// Attributes that nvFuser did not print in 2025, and attributes that only this project defines.
const UNKNOWN_KEYS: [AttrName; 8] = [
    attr::RED_OP.name(),
    attr::ALGO.name(),
    attr::EPILOGUE.name(),
    attr::PROTOCOL.name(),
    attr::KERNEL.name(),
    attr::EXTENTS.name(),
    attr::DIMS.name(),
    attr::POOL.name(),
];

/// Returns the program with device numbers as roots, the only ALLOCATE of 2025, and without the attributes
/// that 2025 does not have.
fn to_2025_program(program: &Program) -> Program {
    let mut res = program.clone();
    let ids: Vec<StmtId> = res.stmts.ids().collect();
    for id in ids {
        let Stmt::Op(stmt) = &program.stmts[id] else { continue };
        let mut older = stmt.clone();
        older.attrs.retain(|(key, _)| !UNKNOWN_KEYS.contains(key));
        if let Some(device) = root_device(program, stmt) {
            older.set(attr::ROOT, res.intern_int(device));
        }
        if stmt.op == Op::Allocate
            && let Some(tensor) = stmt.out_tensor()
        {
            let size = element_count(&mut res, tensor);
            older.op = Op::AllocateOnce;
            older.set(attr::BUFFER, tensor);
            older.set(attr::SIZE, size);
            older.set(attr::RESETS_TO_ZERO, false);
        }
        res.stmts[id] = Stmt::Op(older);
    }
    res
}

/// Returns the world rank of a collective's root.
fn root_device(program: &Program, stmt: &OpStmt) -> Option<i64> {
    let (Some(root), Some(team)) = (stmt.get(attr::ROOT), stmt.get(attr::TEAM)) else {
        return None;
    };
    let place = usize::try_from(program.constant(root)?).ok()?;
    i64::try_from(*team.get(place)?).ok()
}

/// Returns the number of elements in memory.
fn element_count(program: &mut Program, tensor: TensorId) -> crate::ir::ExprId {
    let kept = |it: &&crate::ir::AxisId| program.axes[**it].kind != AxisKind::Reduction;
    let extents: Vec<_> =
        program.tensors[tensor].loop_domain.iter().filter(kept).map(|it| program.axes[*it].extent).collect();
    let product =
        extents.into_iter().reduce(|lhs, rhs| match (program.constant(lhs), program.constant(rhs)) {
            (Some(lhs), Some(rhs)) => program.intern_int(lhs.wrapping_mul(rhs)),
            _ => program.intern_expr(Expr::Infix(InfixOp::Mul, lhs, rhs)),
        });
    product.unwrap_or_else(|| program.intern_int(1))
}

/// Returns a warning for each fact that the 2025 text of a program does not express.
fn losses(program: &Program, text: &str) -> Vec<Diagnostic> {
    let header = program.spans.header;
    let (again, _) = read(text);
    let [again] = again.as_slice() else {
        return vec![loss(header, "this program", "the text does not read back")];
    };
    let mut res = option_losses(program, again);
    let (ours, theirs) = (statements(program), statements(again));
    for (id, back) in ours.iter().zip(&theirs) {
        res.extend(newer_constructs(program, *id));
        if !matches!(&program.stmts[*id], Stmt::Op(it) if it.op == Op::Allocate) {
            res.extend(stmt_losses(program, *id, again, *back));
        }
    }
    for (symbol, value) in &program.definitions {
        let name = &program.symbols[*symbol];
        let back = again.find_symbol(name).and_then(|it| again.definitions.get(&it));
        let said = expr_text(program, *value);
        if back.is_none_or(|it| expr_text(again, *it) != said) {
            let back = back.map(|it| format!("{name} = {}", expr_text(again, *it)));
            res.push(loss(
                program.symbol_span(*symbol),
                &in_backticks(format_args!("{name} = {said}")),
                &read_back_label(back),
            ));
        }
    }
    res.extend(domain_losses(program, again));
    if res.is_empty() && (ours.len() != theirs.len() || print(program) != print(again)) {
        res.push(loss(header, "this program", "the text reads back as another program"));
    }
    res
}

fn loss(span: Span, what: &str, label: &str) -> Diagnostic {
    Diagnostic::new(Code::LossyDialect, span, format!("the 2025 dialect cannot express {what}"), label)
}

fn in_backticks(text: impl Display) -> String {
    format!("`{text}`")
}

fn read_back_label(back: Option<String>) -> String {
    back.map_or_else(|| "reads back without it".to_owned(), |it| format!("reads back as `{it}`"))
}

fn option_losses(program: &Program, again: &Program) -> Vec<Diagnostic> {
    let mut res = Vec::new();
    for (key, value) in &program.options {
        let said = expr_text(program, *value);
        let back = again.options.get(key).map(|it| expr_text(again, *it));
        if back.as_ref() != Some(&said) {
            let back = back.map(|it| format!("{key}={it}"));
            res.push(loss(
                program.spans.header,
                &in_backticks(format_args!("%options {key}={said}")),
                &read_back_label(back),
            ));
        }
    }
    res
}

/// Returns all statements, including those of HostUnits, in text order.
fn statements(program: &Program) -> Vec<StmtId> {
    program.bodies().flat_map(|it| program.stmts_in(it)).collect()
}

/// Returns warnings for constructs of a statement that the reader accepts but tools of 2025 did not know.
fn newer_constructs(program: &Program, id: StmtId) -> Vec<Diagnostic> {
    let Stmt::Op(stmt) = &program.stmts[id] else { return Vec::new() };
    let span = program.stmt_span(id);
    let name = stmt.op.name();
    let what = match (stmt.op, stmt.get(attr::TYPE), stmt.get(attr::BACKEND)) {
        (Op::SymmetricContiguousView, ..) => Some((name.to_owned(), "added in December 2025")),
        (Op::Dispatch | Op::Combine, ..) => Some((name.to_owned(), "added in February 2026")),
        (Op::CollectivePermute, ..) => Some((name.to_owned(), "added in March 2026")),
        (Op::RecordStream | Op::While, ..) => Some((name.to_owned(), "nvFuser does not have it")),
        (Op::Allocate, ..) => Some((
            summary(program, id),
            "added in March 2026 and always allocates; the ALLOCATE of 2025, printed instead, skips a bound tensor",
        )),
        (_, Some(it @ CommunicationType::AllToAll), _) => {
            Some((format!("type={it}"), "added in January 2026"))
        }
        (_, Some(it @ CommunicationType::CollectivePermute), _) => {
            Some((format!("type={it}"), "added in March 2026"))
        }
        (_, _, Some(it @ Backend::Gloo)) => Some((format!("backend={it}"), "removed in April 2025")),
        _ => None,
    };
    let mut res: Vec<Diagnostic> =
        what.iter().map(|(what, label)| loss(span, &in_backticks(what), label)).collect();
    if let (Op::Communication, Some(root)) = (stmt.op, stmt.get(attr::ROOT))
        && program.constant(root).is_none()
    {
        let what = in_backticks(format_args!("root={}", expr_text(program, root)));
        res.push(loss(span, &what, "in 2025, a root is a constant device number"));
    }
    res
}

/// Returns warnings for the parts of a statement that do not read back.
fn stmt_losses(program: &Program, id: StmtId, again: &Program, back: StmtId) -> Vec<Diagnostic> {
    let (said, read) = (summary(program, id), summary(again, back));
    if said == read {
        return Vec::new();
    }
    let span = program.stmt_span(id);
    let mut res = Vec::new();
    if let (Stmt::Op(ours), Stmt::Op(theirs)) = (&program.stmts[id], &again.stmts[back])
        && ours.op == theirs.op
    {
        for (key, attr) in &ours.attrs {
            let (said, back) = (attr_text(program, attr), theirs.attr(*key).map(|it| attr_text(again, it)));
            if back.as_ref() != Some(&said) {
                let back = back.map(|it| format!("{key}={it}"));
                res.push(loss(span, &in_backticks(format_args!("{key}={said}")), &read_back_label(back)));
            }
        }
    }
    if res.is_empty() {
        res.push(loss(span, &in_backticks(&said), &read_back_label(Some(read))));
    }
    res
}

/// Returns warnings for tensors whose logical or allocation domain does not read back.
fn domain_losses(program: &Program, again: &Program) -> Vec<Diagnostic> {
    // Tensors of different HostUnits may have the same text.
    let key = |program: &Program, id: TensorId| (program.qualified_name(id), tensor_text(program, id));
    let theirs: HashMap<(String, String), TensorId> =
        again.tensors.ids().map(|id| (key(again, id), id)).collect();
    let mut res = Vec::new();
    for id in program.tensors.ids() {
        let Some(back) = theirs.get(&key(program, id)) else { continue };
        let said = domain_clauses(program, id);
        let read = domain_clauses(again, *back);
        if said != read {
            let what = in_backticks(format_args!("{}: {said}", program.qualified_name(id)));
            res.push(loss(program.tensor_span(id), &what, &read_back_label(Some(read))));
        }
    }
    res.sort_by_key(|it: &Diagnostic| it.span().start);
    res
}
