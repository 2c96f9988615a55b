//! specialize-rank: specializes a program that all ranks run for one rank.
//!
//! Before:
//! ```text
//! T2 = linear(T0, T1)                   (DeviceMesh{0 1})
//! IF Manual ( rank == 2 ):
//!   P2PCommunication 1 (type=recv, buffer=T3, peer=( rank - 2 ))
//! Communication 4 (type=Broadcast, team=(0 1), …)
//! Wait(Communication 4)
//! ```
//! After, with `rank=2`:
//! ```text
//! P2PCommunication 1 (type=recv, buffer=T3, peer=0)
//! ```
//!
//! The pass inlines definitions, replaces `rank` by a constant, canonicalizes the program, and removes what
//! the rank does not take part in: statements whose tensors are all on meshes without the rank,
//! communications of other teams, and Waits for them. The option `rank` in the text marks the program as that of
//! one rank. Passes that rewrite all ranks in the same way refuse it, so this pass comes last.
//! `hir-run --program 0=a.hir,1=b.hir` runs one program per rank.

use grammar::{
    BlockId, Code, Diagnostic, Expr, Op, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, attr,
    ranks_in_meshes,
};
use hir_ir::edit::{StmtEdit, number_streams, rewrite};
use rustc_hash::FxHashSet;

use crate::{
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::{empty_blocks::remove_empty_blocks, scalars, substitute::Substitution},
    transform::{canonicalize, inline_definitions},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("specialize-rank", include_str!("specialize_rank.rs"), run)
    .about("specialize the program for one rank")
    .for_one_rank()
    .with_options(&[
        OptionSpec::new("rank", OptionKind::Count, Some("0")).about("the rank to specialize for")
    ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let rank = arguments.count("rank").and_then(|it| i64::try_from(it).ok()).unwrap_or(0);
    let last = ranks_in_meshes(program).map(|(rank, _)| rank).max();
    if let Some(last) = last.filter(|last| rank > *last as i64) {
        let message = format!("no mesh of the program contains rank {rank}");
        return Err(arguments.error("rank", message, format!("expected 0 to {last}")));
    }
    if let Some(other) = program.own_rank().filter(|it| *it != rank) {
        let message =
            format!("this is the program of rank {other} only, and cannot become that of rank {rank}");
        let it =
            Diagnostic::new(Code::NotRewritten, program.spans.header, message, "`%options rank=` says so");
        return Err(it.help("specialize the program of all ranks for each rank"));
    }
    let mut changed =
        (inline_definitions::PASS.run)(program, &Arguments::default(), remarks)? == Change::Changed;
    changed |= substitute_rank(program, rank);
    // Removing untaken branches makes further statements unused, and removing statements makes further
    // branches empty.
    loop {
        changed |= (canonicalize::PASS.run)(program, &Arguments::default(), remarks)? == Change::Changed;
        if !remove_other_ranks(program, rank as usize) {
            break;
        }
        changed = true;
    }
    if changed {
        number_streams(program);
    }
    Change::verified(program, changed)
}

/// Removes the statements that a rank does not take part in.
fn remove_other_ranks(program: &mut Program, rank: usize) -> bool {
    let Some(body) = program.body else { return false };
    let kept = stmts_of_rank(program, body, rank);
    let mut changed = rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(_) if !kept.contains(&stmt) => StmtEdit::Remove,
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    });
    changed |= drop_waits(program, body);
    changed |= remove_empty_blocks(program, body);
    changed
}

/// Replaces `rank` and `deviceIdx.x` by the rank's number.
fn substitute_rank(program: &mut Program, rank: i64) -> bool {
    let value = program.intern_expr(Expr::Int(rank));
    let mut constant = Substitution::default();
    for name in ["rank", "deviceIdx.x"] {
        let Some(symbol) = program.find_symbol(name) else { continue };
        constant.symbols.insert(symbol, value);
    }
    // The option `rank` records the rank that the program belongs to, for comparisons with other programs.
    let is_new = program.options.insert("rank".to_owned(), value) != Some(value);
    let mut rewrite = |program: &mut Program, expr| constant.expr(program, expr);
    let outside = scalars::rewrite_outside_stmts(program, &mut rewrite);
    scalars::rewrite_in_stmts(program, &mut rewrite) || outside || is_new
}

/// Returns the operators that do something on a rank, and those that bind the names that these use: an
/// operand of a resharding statement that is not lowered to a communication may be on another mesh.
fn stmts_of_rank(program: &Program, body: BlockId, rank: usize) -> FxHashSet<StmtId> {
    let ops: Vec<(StmtId, &OpStmt)> = program.ops_in(body).collect();
    let mut kept: FxHashSet<StmtId> = FxHashSet::default();
    let mut named: FxHashSet<TensorId> = FxHashSet::default();
    loop {
        let before = kept.len();
        // Users follow the statements that they use, so one round suffices without loops.
        for (stmt, it) in ops.iter().rev() {
            let gives = Program::tensors_of(&it.outs).any(|out| named.contains(&out));
            if (gives || takes_part(program, it, rank)) && kept.insert(*stmt) {
                // The operands that another rank contributes to a communication are not needed.
                if it.op.def().class != OpClass::Communicate {
                    named.extend(it.mentions(program));
                }
            }
        }
        if kept.len() == before {
            return kept;
        }
    }
}

/// Returns whether a statement does anything on a rank.
fn takes_part(program: &Program, it: &OpStmt, rank: usize) -> bool {
    match it.op.def().class {
        grammar::local_classes!() | OpClass::HostUnit => {
            let all: Vec<TensorId> = it.mentions(program).collect();
            all.is_empty() || all.iter().any(|it| program.tensors[*it].mesh.contains(rank))
        }
        OpClass::Communicate => it.get(attr::TEAM).is_none_or(|team| team.contains(&rank)),
        OpClass::Wait
        | OpClass::Stream
        | OpClass::Condition
        | OpClass::Coalescing
        | OpClass::ShareHandles
        | OpClass::Opaque => true,
    }
}

/// Removes Waits for communications that no statement posts any more.
fn drop_waits(program: &mut Program, body: BlockId) -> bool {
    let posted: FxHashSet<u32> =
        program.stmts_in(body).filter_map(|stmt| program.posted_work(stmt)).collect();
    rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(it) if it.op == Op::Wait => match it.get(attr::WORK) {
            Some(number) if !posted.contains(&number) => StmtEdit::Remove,
            _ => StmtEdit::Keep,
        },
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    })
}
