//! specialize-rank: makes a program that one rank runs of one that all ranks run.
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
//! Definitions are written out, `rank` becomes a constant, the program is canonicalized, and what this rank has no part in goes: statements whose
//! tensors are all on other devices' meshes, communications of other teams, and Waits for them. The language has no mark
//! for such a program; `hir-run --program 0=a.hir,1=b.hir` runs one for each rank.

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{BlockId, Expr, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::{Op, OpClass},
};
use rustc_hash::FxHashSet;

use crate::{
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::{
        blocks::{StmtEdit, first_verifier_error, remove_empty_blocks, rewrite},
        scalars,
        substitute::Substitution,
    },
    transform::{canonicalize, inline_definitions},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "specialize-rank",
    description: "make the program of one rank",
    options: &[OptionSpec {
        name: "rank",
        description: "the rank",
        kind: OptionKind::Count,
        default: Some("0"),
    }],
    run,
};

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let rank = arguments.count("rank").and_then(|it| i64::try_from(it).ok()).unwrap_or(0);
    let named: Vec<usize> =
        program.tensors.iter().flat_map(|(_, it)| it.mesh.devices.iter().copied()).collect();
    if let Some(last) = named.iter().max().filter(|last| rank > **last as i64) {
        let message = format!("no mesh of the program holds rank {rank}: the last one is {last}");
        let it =
            Diagnostic::new(Code::NotRewritten, program.spans.header, message, "the program of other ranks");
        return Err(it.help("name one of its ranks"));
    }
    let mut changed =
        (inline_definitions::PASS.run)(program, &Arguments::default(), remarks)? == Change::Changed;
    changed |= substitute_rank(program, rank)?;
    // Branches that are not taken name what nobody else does, and the other way round.
    loop {
        changed |= (canonicalize::PASS.run)(program, &Arguments::default(), remarks)? == Change::Changed;
        if !remove_other_ranks(program, rank as usize) {
            break;
        }
        changed = true;
    }
    match first_verifier_error(program) {
        Some(fault) => Err(fault),
        None => Ok(Change::from_flag(changed)),
    }
}

/// Drops what a rank has no part in.
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

/// Writes the rank's number for its names.
fn substitute_rank(program: &mut Program, rank: i64) -> Result<bool, Diagnostic> {
    let bound = scalars::assigned_symbols(program);
    let value = program.intern_expr(Expr::Int(rank));
    let mut constant = Substitution::default();
    for name in ["rank", "deviceIdx.x"] {
        let Some(symbol) = program.find_symbol(name) else { continue };
        if bound.contains(&symbol) || program.definitions.contains_key(&symbol) {
            let message = format!("`{name}` is given a value by the program");
            let it =
                Diagnostic::new(Code::Unsupported, program.symbol_span(symbol), message, "first named here");
            return Err(it.help("call that scalar by another name"));
        }
        constant.symbols.insert(symbol, value);
    }
    // Says whose program it is from now on: whoever compares it with others has to know.
    let is_new = program.options.insert("rank".to_owned(), value) != Some(value);
    let mut rewrite = |program: &mut Program, expr| constant.expr(program, expr);
    let outside = scalars::rewrite_outside_stmts(program, &mut rewrite);
    Ok(scalars::rewrite_in_stmts(program, &mut rewrite) || outside || is_new)
}

/// The operators that do something on a rank, and those that give them names: an operand of a resharding that is not
/// lowered to a communication may be on another mesh.
fn stmts_of_rank(program: &Program, body: BlockId, rank: usize) -> FxHashSet<StmtId> {
    let mut stmts = Vec::new();
    program.walk(body, &mut |stmt| stmts.push(stmt));
    let mut kept: FxHashSet<StmtId> = FxHashSet::default();
    let mut named: FxHashSet<TensorId> = FxHashSet::default();
    loop {
        let before = kept.len();
        // Users stand behind what they use: one round does, but for loops.
        for stmt in stmts.iter().rev() {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let gives = Program::tensors_of(&it.outs).any(|out| named.contains(&out));
            if (gives || takes_part(program, it, rank)) && kept.insert(*stmt) {
                // What another rank gives to a communication is its own affair.
                if it.op.def().class != OpClass::Communicate {
                    for_each_tensor_use(program, it, &mut |tensor, _| _ = named.insert(tensor));
                }
            }
        }
        if kept.len() == before {
            return kept;
        }
    }
}

/// Whether a statement does anything on a rank.
fn takes_part(program: &Program, it: &OpStmt, rank: usize) -> bool {
    match it.op.def().class {
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::View
        | OpClass::Allocate
        | OpClass::Deallocate
        | OpClass::HostUnit => {
            let (mut any, mut here) = (false, false);
            for_each_tensor_use(program, it, &mut |tensor, _| {
                any = true;
                here |= program.tensors[tensor].mesh.contains(rank);
            });
            here || !any
        }
        OpClass::Communicate => it.get(attr::TEAM).is_none_or(|team| team.contains(&rank)),
        OpClass::Wait | OpClass::Stream | OpClass::Coalescing | OpClass::ShareHandles | OpClass::Opaque => {
            true
        }
    }
}

/// Drops Waits for what nothing posts any more.
fn drop_waits(program: &mut Program, body: BlockId) -> bool {
    let mut posted = FxHashSet::default();
    program.walk(body, &mut |stmt| posted.extend(program.posted_work(stmt)));
    rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(it) if it.op == Op::Wait => match it.get(attr::WORK) {
            Some(number) if !posted.contains(&number) => StmtEdit::Remove,
            _ => StmtEdit::Keep,
        },
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    })
}
