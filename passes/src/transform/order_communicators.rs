//! order-communicators: waits for a communication before one of another communicator is posted, if ranks could start the two
//! in different orders.
//!
//! Before:
//! ```text
//! Communication 0 (type=Allgather, team=(0 1 2), input=T0, output=T1)
//! Communication 1 (type=Allgather, team=(0 1), input=T2, output=T3)
//! T5 = neg( T4 )
//! Wait(Communication 0)
//! Wait(Communication 1)
//! ```
//! After:
//! ```text
//! Communication 0 (type=Allgather, team=(0 1 2), input=T0, output=T1)
//! Wait(Communication 0)
//! Communication 1 (type=Allgather, team=(0 1), input=T2, output=T3)
//! T5 = neg( T4 )
//! Wait(Communication 1)
//! ```
//!
//! Kernels of NCCL wait for other ranks while they occupy a GPU, which may be unable to run those of two communicators at
//! the same time. If two ranks start two of them in different orders, each may wait for the other one (E0707). Posting
//! them in one order does not prevent this, unless the launch order is implicit (NCCL User Guide, "Using multiple NCCL
//! communicators concurrently").
//!
//! A deadlock needs a cycle of ranks, each of which shares a communicator with the next one. So a communication is
//! ordered if the other communicators of the program connect two of its ranks. The pass moves the Waits of those that share such a rank
//! with it and may still run up, directly before
//! it. A Wait that moves up only makes its stream wait earlier, so results stay. A Wait stays where it is if it is in
//! another block, or if the current stream changes in between.

use grammar::{
    attr,
    diagnostic::Diagnostic,
    ir::{OpStmt, Program, Stmt, StmtId},
    ops::{Op, OpClass},
    words::{Algorithm, Backend},
};
use rustc_hash::FxHashMap;

use crate::{
    analysis::{
        blocks::{any_stmt, nested_blocks, walk},
        wait_order::awaited_work,
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
};

/// The largest rank that is looked at: a text may name any.
const MAX_RANK: usize = 1 << 16;

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "order-communicators",
    description: "wait for a communication before one of another communicator, if ranks could start them in different orders",
    docs: module_docs(include_str!("order_communicators.rs")),
    options: &[],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let world = world_team(program);
    let mut teams = Vec::new();
    let mut is_in_group = false;
    for stmt in program.block(body) {
        teams.extend(posts(program, *stmt, &world, &mut is_in_group).into_iter().map(|it| it.team));
    }
    teams.sort_unstable();
    teams.dedup();
    if teams.len() < 2 || teams.iter().flatten().any(|it| *it >= world.len()) {
        return Ok(Change::Unchanged);
    }
    let cycles = ranks_on_cycles(&teams, &world);
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let ordered = order_block(program, program.block(block), &world, &cycles);
        changed |= ordered != program.blocks[block];
        program.blocks[block] = ordered;
    }
    Ok(Change::from_flag(changed))
}

/// A communication of NCCL, or the beginning or the end of a group of sends and receives.
struct Post {
    number: Option<u32>,
    /// Its communicator, by its team in order.
    team: Vec<usize>,
    /// Whether it begins here: not the end of a group.
    begins: bool,
    /// Whether it may run from here on: not the beginning of a group.
    runs: bool,
}

/// Returns the statements of a block in their new order.
fn order_block(
    program: &Program,
    stmts: &[StmtId],
    world: &[usize],
    cycles: &FxHashMap<Vec<usize>, Vec<usize>>,
) -> Vec<StmtId> {
    let mut rest: Vec<StmtId> = stmts.iter().rev().copied().collect();
    let mut ordered: Vec<StmtId> = Vec::with_capacity(stmts.len());
    let mut pending: Vec<Post> = Vec::new();
    let mut is_in_group = false;
    while let Some(stmt) = rest.pop() {
        let posts = posts(program, stmt, world, &mut is_in_group);
        for post in posts.iter().filter(|it| it.begins) {
            let ranks = cycles.get(&post.team).map_or(&[][..], Vec::as_slice);
            for number in numbers_to_await(&pending, &post.team, ranks) {
                let is_wait = |it: &StmtId| awaited_work(program, *it) == Some(number);
                let Some(at) = rest.iter().rposition(is_wait) else { continue };
                let between = rest[at..].iter().chain([&stmt]);
                if !between.into_iter().any(|it| any_stmt(program, *it, &|it| sets_stream(program, it))) {
                    ordered.push(rest.remove(at));
                    pending.retain(|it| it.number != Some(number));
                }
            }
        }
        pending.extend(posts.into_iter().filter(|it| it.runs));
        if let Some(number) = awaited_work(program, stmt) {
            pending.retain(|it| it.number != Some(number));
        }
        ordered.push(stmt);
    }
    ordered
}

fn sets_stream(program: &Program, stmt: StmtId) -> bool {
    matches!(&program.stmts[stmt], Stmt::Op(it) if it.op == Op::SetCurrentStream)
}

/// Returns the numbers of the pending communications that have to end before one of `team` begins. `ranks` are those of its
/// ranks that are on a cycle.
fn numbers_to_await(pending: &[Post], team: &[usize], ranks: &[usize]) -> Vec<u32> {
    let is_meant = |it: &&Post| it.team != team && it.team.iter().any(|rank| ranks.contains(rank));
    pending.iter().filter(is_meant).filter_map(|it| it.number).collect()
}

/// Returns, by communicator, those of its ranks that other communicators connect with another of its ranks.
fn ranks_on_cycles(teams: &[Vec<usize>], world: &[usize]) -> FxHashMap<Vec<usize>, Vec<usize>> {
    let of = |team: &Vec<usize>| {
        let mut parent: Vec<usize> = (0..world.len()).collect();
        for other in teams.iter().filter(|it| *it != team) {
            for pair in other.windows(2) {
                let (one, two) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
                parent[two] = one;
            }
        }
        let mut count: FxHashMap<usize, usize> = FxHashMap::default();
        let roots: Vec<usize> = team.iter().map(|it| root(&mut parent, *it)).collect();
        roots.iter().for_each(|it| *count.entry(*it).or_default() += 1);
        team.iter().zip(roots).filter(|(_, root)| count[root] > 1).map(|(rank, _)| *rank).collect()
    };
    teams.iter().map(|it| (it.clone(), of(it))).collect()
}

/// Returns the representative of the set that contains a rank, in a forest of parents.
fn root(parent: &mut [usize], mut it: usize) -> usize {
    while parent[it] != it {
        parent[it] = parent[parent[it]];
        it = parent[it];
    }
    it
}

/// Returns the communications of NCCL at a statement, and for a loop or a branch those that it contains.
fn posts(program: &Program, stmt: StmtId, world: &[usize], is_in_group: &mut bool) -> Vec<Post> {
    let mut found = Vec::new();
    walk(program, stmt, &mut |it| {
        let Stmt::Op(it) = &program.stmts[it] else { return };
        let team = || it.get(attr::TEAM).unwrap_or(world).to_vec();
        let post = |begins, runs| Post { number: it.number, team: team(), begins, runs };
        match it.op.def().class {
            OpClass::Coalescing => {
                *is_in_group = it.op == Op::StartCoalescing;
                found.push(post(*is_in_group, !*is_in_group));
            }
            OpClass::Communicate if !*is_in_group && is_of_nccl(it) => found.push(post(true, true)),
            _ => (),
        }
    });
    found
}

fn is_of_nccl(it: &OpStmt) -> bool {
    matches!(it.get(attr::BACKEND), Some(Backend::Nccl) | None)
        && matches!(it.get(attr::ALGO), Some(Algorithm::Nccl) | None)
}

/// Returns the ranks of all teams and meshes: the communicator of sends and receives.
fn world_team(program: &Program) -> Vec<usize> {
    let teams = program.stmts.iter().filter_map(|(_, it)| match it {
        Stmt::Op(it) => it.get(attr::TEAM),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    });
    let in_teams = teams.flat_map(<[usize]>::iter);
    let in_meshes = program.tensors.iter().flat_map(|(_, it)| &it.mesh.devices);
    let largest = in_teams.chain(in_meshes).max().copied().unwrap_or(0);
    (0..=largest.min(MAX_RANK)).collect()
}
