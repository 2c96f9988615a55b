//! fuse-collective-epilogue: lets the kernel of an all-reduce or reduce-scatter also compute what follows its Wait.
//!
//! Before:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL)
//! Wait(Communication 7)
//! T4 = T2 + T3
//! ```
//! After, if T2 has 64 KiB on each rank:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL, algo=one-shot-ll, epilogue=true)
//! Wait(Communication 7)
//! T4 = T2 + T3
//! ```
//!
//! On GPUs, one kernel then reduces the parts of a row and executes the elementwise operators and the reductions of rows that
//! follow on the stream, such as a bias, a residual, a norm and a cast. Without the attribute, they are kernels of their own.
//! Results do not change: each result is rounded as if it were stored, and sums have the same order. On all ranks, an
//! all-reduce with its epilogue has the same bits. Races and lifetimes do not change either, because the plan has the same
//! instructions.
//!
//! The pass does so if the first statement behind the Wait that computes is elementwise or a reduction and uses the result,
//! and if the algorithm has such a kernel: `one-shot-ll` or `one-shot`. An existing `algo=` decides, else the default rules of
//! `select-algorithms`. Both statements have to be in one block, with only allocations and views between them.

use grammar::{
    AccessMode, Algorithm, Backend, CommunicationType, Diagnostic, Op, OpClass, OpStmt, Program, Stmt,
    StmtId, TensorId,
    algorithm_table::{AlgorithmTable, DEFAULT_RULES, has_epilogue},
    attr,
};
use hir_ir::blocks;

use super::select_algorithms;
use crate::{
    analysis::name_uses::NameUses,
    pass::{Arguments, Change, Obstacle, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("fuse-collective-epilogue", include_str!("fuse_collective_epilogue.rs"), run)
        .about("compute what follows an all-reduce or reduce-scatter in its kernel");

fn run(program: &mut Program, _: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let names = NameUses::of(program, body);
    let divergent = blocks::stmts_in_divergent_branches(program);
    // The default rules parse.
    let Ok(table) = AlgorithmTable::parse(DEFAULT_RULES) else { return Ok(Change::Unchanged) };
    let mut changed = false;
    for block in program.blocks.ids().collect::<Vec<_>>() {
        let stmts = program.block(block).to_vec();
        for (at, id) in stmts.iter().enumerate().filter(|(_, it)| !divergent.contains(it)) {
            let Stmt::Op(it) = &program.stmts[*id] else { continue };
            let Some((kind, output)) = reduced_tensor(it) else { continue };
            let it = it.clone();
            let found = first_use(program, &names, &stmts[at + 1..], (it.number, output));
            let found = found.and_then(|()| algorithm(program, &it, (kind, &table)));
            match found {
                Ok(algorithm) => {
                    let Stmt::Op(it) = &mut program.stmts[*id] else { continue };
                    changed |= it.get(attr::EPILOGUE) != Some(true) || it.get(attr::ALGO) != Some(algorithm);
                    it.set(attr::ALGO, algorithm);
                    it.set(attr::EPILOGUE, true);
                }
                Err(reason) => {
                    let name =
                        it.number.map_or_else(|| kind.text().to_owned(), |it| format!("Communication {it}"));
                    let message = format!("`fuse-collective-epilogue` does not change {name}: {reason}");
                    remarks.no_effect(program.stmt_span(*id), message, "its kernel computes the result only");
                }
            }
        }
    }
    Ok(Change::from_flag(changed))
}

/// Returns the type and the output of a collective with a reduction whose kernel may have an epilogue.
fn reduced_tensor(it: &OpStmt) -> Option<(CommunicationType, TensorId)> {
    let kind = it.get(attr::TYPE).filter(|_| it.op == Op::Communication)?;
    has_epilogue(Algorithm::OneShotLl, kind).then_some((kind, it.get(attr::OUTPUT)?))
}

/// Examines whether the first statement behind the Wait that computes uses the output.
///
/// # Errors
/// Returns the reason why it does not.
fn first_use(
    program: &Program,
    names: &NameUses,
    behind: &[StmtId],
    (number, output): (Option<u32>, TensorId),
) -> Result<(), Obstacle> {
    let mut computing = behind.iter().filter_map(|it| match &program.stmts[*it] {
        Stmt::Op(it) => (!does_nothing(it)).then_some(Some(it)),
        Stmt::Let(..) => None,
        Stmt::For(_) | Stmt::If(_) => Some(None),
    });
    let is_wait = |it: &&OpStmt| it.op == Op::Wait && it.get(attr::WORK) == number;
    if number.is_none() || computing.next().flatten().filter(is_wait).is_none() {
        return Err("no Wait for it follows at once".into());
    }
    let fits = |it: &&OpStmt| it.op.def().class == OpClass::Elementwise || it.op == Op::Reduction;
    let Some(user) = computing.next().flatten().filter(fits) else {
        return Err("no elementwise operator or reduction follows its Wait".into());
    };
    let is_output = |it| names.alias_class(it) == names.alias_class(output);
    let reads = |it: &(TensorId, AccessMode)| it.1 == AccessMode::Read && is_output(it.0);
    let is_read = user.tensor_uses(program).iter().any(reads);
    if is_read { Ok(()) } else { Err("the first operator behind its Wait does not use its output".into()) }
}

/// Returns whether a statement does nothing on its stream.
fn does_nothing(it: &OpStmt) -> bool {
    match it.op.def().class {
        OpClass::View | OpClass::Allocate | OpClass::Deallocate => true,
        OpClass::Compute => it.op == Op::Broadcast,
        grammar::other_classes!() | OpClass::Elementwise => false,
    }
}

/// Returns the algorithm of a collective.
///
/// # Errors
/// Returns the reason why no kernel has an epilogue.
fn algorithm(
    program: &mut Program,
    it: &OpStmt,
    (kind, table): (CommunicationType, &AlgorithmTable),
) -> Result<Algorithm, Obstacle> {
    let own = it.get(attr::ALGO);
    let chosen = own.or_else(|| select_algorithms::choose(program, it, table));
    let Some(chosen) = chosen else {
        return Err("its size in bytes is not a constant, and it has no `algo=`".into());
    };
    // Over peer memory, the CUDA backend ends at the Wait.
    let is_whole = it.get(attr::BACKEND) != Some(Backend::Cuda) || chosen == Algorithm::OneShotLl;
    if has_epilogue(chosen, kind) && is_whole {
        Ok(chosen)
    } else {
        Err(format!("`algo={}` has no kernel that computes whole rows", chosen.text()).into())
    }
}
