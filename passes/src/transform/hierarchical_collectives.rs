//! hierarchical-collectives: does a collective whose team spans hosts in steps within hosts and across them.
//!
//! Before (`per-host=2`: ranks 0 and 1 are on one host, and ranks 2 and 3 on another one):
//! ```text
//! Communication 0 (type=Allreduce, team=(0 1 2 3), red_op=SUM, input=T0, output=T1, backend=NCCL)
//! Wait(Communication 0)
//! ```
//! After, with tensors T2 and T3 of which each rank of a host holds one part:
//! ```text
//! T2 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 1 (type=ReduceScatter, team=(0 1), red_op=SUM, input=T0, output=T2, backend=NCCL)
//! Communication 2 (type=ReduceScatter, team=(2 3), red_op=SUM, input=T0, output=T2, backend=NCCL)
//! Wait(Communication 1)
//! Wait(Communication 2)
//! T3 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 3 (type=Allreduce, team=(0 2), red_op=SUM, input=T2, output=T3, backend=NCCL)
//! Communication 4 (type=Allreduce, team=(1 3), red_op=SUM, input=T2, output=T3, backend=NCCL)
//! Wait(Communication 3)
//! Wait(Communication 4)
//! Communication 0 (type=Allgather, team=(0 1), input=T3, output=T1, backend=NCCL)
//! Communication 5 (type=Allgather, team=(2 3), input=T3, output=T1, backend=NCCL)
//! Wait(Communication 0)
//! Wait(Communication 5)
//! ```
//!
//! The network between hosts is slower than the links of a host. With `n` ranks on each of `m` hosts, a rank sends
//! `2 (m-1)/m` of a part, one n-th of the tensor, to other hosts.
//!
//! | collective | steps |
//! |---|---|
//! | all-reduce | reduce-scatter within each host, all-reduce of the parts across hosts, all-gather within each host |
//! | all-gather | all-gather across hosts, all-gather within each host |
//! | reduce-scatter | reduce-scatter within each host, reduce-scatter across hosts |
//!
//! The parts of an all-gather arrive in the order of the steps, and are permuted into that of the team; those of a
//! reduce-scatter are permuted before. A sum is that of the same elements in another order.
//!
//! Rank `r` is on host `r / per-host`. A team with several ranks on some host that is not the product of hosts and ranks within a host stays
//! as it is, with a remark, and so does a collective whose elements the ranks of a host do not divide. The steps are on other communicators, so
//! a collective also stays if a post of it has no Wait of its own behind it in its block, if its result is used before the last Wait, or if the order
//! of its communicator may take the place of a Wait. Without `per-host`, the pass does nothing.

mod stages;
mod teams;
mod waits;

use grammar::{
    Algorithm, BlockId, CommunicationType, Diagnostic, Op, OpClass, OpStmt, Program, Stmt, StmtId, TensorId,
    attr,
};
use hir_ir::{
    blocks::{nested_blocks, stmts_in_divergent_branches},
    build::{self, IrBuilder},
};
use rustc_hash::FxHashMap;

use crate::pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks};
use stages::Stages;
use teams::HostTeams;
use waits::Waits;

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("hierarchical-collectives", include_str!("hierarchical_collectives.rs"), run)
        .for_conditions()
        .about("do collectives that span hosts in steps within hosts and across them")
        .with_options(&[OptionSpec::new("per-host", OptionKind::Count, Some("0")).about(
            "number of ranks on each host: rank r is on host r / per-host; 0: leave collectives as they are",
        )]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let per_host = arguments.count("per-host").and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
    if per_host < 2 {
        return Ok(Change::Unchanged);
    }
    let divergent = stmts_in_divergent_branches(program);
    let waits = Waits::of(program, body, &|block| collectives(program, block, &|_, _| true));
    let mut fresh = IrBuilder::of(program);
    let mut edits = Edits::default();
    for block in nested_blocks(program, body) {
        // All ranks execute it.
        let is_meant = |stmt: StmtId, it: &OpStmt| has_steps(it) && !divergent.contains(&stmt);
        for posted in collectives(program, block, &is_meant) {
            let Some(teams) = HostTeams::of(&posted.teams, per_host).transpose() else { continue };
            let span = program.stmt_span(posted.stmts[0]);
            let kind = posted.kind.text();
            let stages = teams.and_then(|teams| Stages::of(program, (block, &waits), &posted, teams));
            match stages {
                Ok(stages) => {
                    let message = format!("this {kind} is done in steps {}", stages.text());
                    remarks.note(span, message, "replaced");
                    stages.write(program, &mut fresh, &mut edits);
                }
                Err(reason) => {
                    let message =
                        format!("this {kind} is not done in steps within and across hosts: {reason}");
                    remarks.note(span, message, "stays");
                }
            }
        }
    }
    let is_changed = !edits.replaced.is_empty();
    if is_changed {
        for block in nested_blocks(program, body) {
            let old = std::mem::take(&mut program.blocks[block]);
            program.blocks[block] = edits.apply(program, old);
        }
    }
    Ok(Change::from_flag(is_changed))
}

/// A collective: the statements of all its teams.
struct Posted {
    kind: CommunicationType,
    stmts: Vec<StmtId>,
    numbers: Vec<u32>,
    teams: Vec<Vec<usize>>,
    input: TensorId,
    output: TensorId,
}

/// The statements that replace others.
#[derive(Default)]
struct Edits {
    replaced: FxHashMap<StmtId, Vec<StmtId>>,
    /// The numbers to wait for behind each Wait.
    also_awaited: FxHashMap<StmtId, Vec<u32>>,
    /// What follows a Wait.
    behind: FxHashMap<StmtId, Vec<StmtId>>,
}

impl Edits {
    fn apply(&mut self, program: &mut Program, stmts: Vec<StmtId>) -> Vec<StmtId> {
        let mut new = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match self.replaced.remove(&stmt) {
                Some(mut stmts) => new.append(&mut stmts),
                None => new.push(stmt),
            }
            let also = self.also_awaited.get(&stmt);
            let span = program.stmt_span(stmt);
            for number in also.into_iter().flatten() {
                new.push(build::add(program, build::wait(*number), span));
            }
            new.append(&mut self.behind.remove(&stmt).unwrap_or_default());
        }
        new
    }
}

/// Returns the collectives of a block for whose statements `is_meant` holds. Those of several teams stand one behind the other.
fn collectives(program: &Program, block: BlockId, is_meant: &dyn Fn(StmtId, &OpStmt) -> bool) -> Vec<Posted> {
    let mut found: Vec<Posted> = Vec::new();
    let (mut is_in_group, mut last) = (false, None);
    for stmt in program.block(block) {
        let previous = last.take();
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        if it.op.def().class == OpClass::Coalescing {
            is_in_group = it.op == Op::StartCoalescing;
        }
        if is_in_group || !is_meant(*stmt, it) {
            continue;
        }
        let Some((key, number, team)) = collective(it) else { continue };
        last = Some(key);
        match found.last_mut().filter(|_| previous == Some(key)) {
            Some(posted) if !posted.teams.iter().flatten().any(|it| team.contains(it)) => {
                posted.stmts.push(*stmt);
                posted.numbers.push(number);
                posted.teams.push(team);
            }
            _ => {
                let (kind, input, output) = (key.0, key.1, key.2);
                let (stmts, numbers, teams) = (vec![*stmt], vec![number], vec![team]);
                found.push(Posted { kind, stmts, numbers, teams, input, output });
            }
        }
    }
    found
}

/// What the statements of one collective have in common.
type Key = (CommunicationType, TensorId, TensorId);

fn collective(it: &OpStmt) -> Option<(Key, u32, Vec<usize>)> {
    let kind = it.get(attr::TYPE).filter(|_| it.op == Op::Communication)?;
    let key = (kind, it.get(attr::INPUT)?, it.get(attr::OUTPUT)?);
    Some((key, it.number?, it.get(attr::TEAM)?.to_vec()))
}

/// Returns whether a collective has steps: no statement selects its algorithm.
fn has_steps(it: &OpStmt) -> bool {
    let is_free = matches!(it.get(attr::ALGO), Some(Algorithm::Nccl) | None);
    is_free
        && it.get(attr::TYPE).is_some_and(|kind| match kind {
            CommunicationType::Allreduce
            | CommunicationType::Allgather
            | CommunicationType::ReduceScatter => true,
            CommunicationType::Gather
            | CommunicationType::Scatter
            | CommunicationType::Reduce
            | CommunicationType::Broadcast
            | CommunicationType::SendRecv
            | CommunicationType::AllToAll
            | CommunicationType::CollectivePermute => false,
        })
}
