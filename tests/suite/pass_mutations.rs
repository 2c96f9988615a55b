//! Applies seeded mutations to the programs (rather than the texts) of every sample and case, and of random
//! programs: to statements, axes, meshes, operands and roots. A mutant that still reads and verifies goes
//! through random passes and pipelines.
//!
//! A pass may refuse a program with a reason. It must not panic, produce a program that the verifier rejects
//! or that does not read back, or change the meaning. The last is tested for programs that are not lowered,
//! whose meaning no race can make ambiguous. `HIR_PASS_MUTATIONS=100` (mutants per program) and `HIR_SEED=7`
//! try others. A program that fails is written to the temporary folder, and the command line that reproduces
//! it is printed.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
};

use grammar::{
    diagnostic::has_errors,
    ir::{Attr, AxisId, BlockId, DeviceDim, OpStmt, Operand, ParallelType, Program, Stmt, StmtId, TensorId},
};
use libtest_mimic::{Failed, Trial};
use passes::{PASSES, PIPELINES};

use crate::{generator, invariants, part, programs, rng::Rng, setting::number_or};

/// Default number of mutants per program.
const MUTANTS: usize = 3;
/// Maximum number of attempts to generate a mutant that verifies.
const TRIES: usize = 12;
/// Number of random programs that are mutated besides the cases.
const PROGRAMS: u64 = 200;
/// Number of trials that share the programs.
const SHARDS: usize = part::PARTS;
/// Options of single passes that are tried besides the defaults.
pub const PASSES_WITH_OPTIONS: &[&str] = &[
    "decompose-resharding{reshard=result}",
    "stream-parallel{style=shard}",
    "stream-parallel{style=select}",
    "stream-parallel{allgather=p2p-ring,backend=cuda}",
    "stream-parallel{allgather=p2p-ring,backend=cuda,protocol=put,wait=deferred}",
    "stream-parallel{allgather=collective-permute}",
    "stream-parallel{reduce-scatter=p2p-ring}",
    "stream-parallel{reduce-scatter=p2p-ring,offset-by-rank=false}",
    "lower-to-communication{backend=cuda}",
    "decompose-resharding,chunk",
    "decompose-resharding,chunk,swizzle-stream",
    "chunk{axis=T0.0,count=2}",
    "chunk{axis=T2.0,count=2}",
    "assign-streams{count=2,dependent=keep}",
    "specialize-rank{rank=1}",
    "unroll{factor=2}",
    "double-buffer{count=3}",
];

/// Returns the trials of this file. `cases` are the programs to mutate.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let random = (0..PROGRAMS).map(|seed| programs::program(seed, 1 + seed as usize % 4));
    let texts: Arc<Vec<String>> = Arc::new(cases.iter().map(read).chain(random).collect());
    let (count, seed) = (number_or("HIR_PASS_MUTATIONS", MUTANTS), number_or("HIR_SEED", 0) as u64);
    let shard = |shard: usize| {
        let texts = Arc::clone(&texts);
        Trial::test(format!("passes_survive_mutants_{shard}"), move || {
            let mine = texts.iter().skip(shard).step_by(SHARDS);
            let faults: Vec<String> =
                mine.flat_map(|text| (0..count).filter_map(|at| attempt(text, seed + at as u64))).collect();
            if faults.is_empty() {
                Ok(())
            } else {
                Err(Failed::from(format!("{} programs fail:\n{}", faults.len(), faults.join("\n"))))
            }
        })
        .with_ignored_flag(!part::includes(shard))
    };
    (0..SHARDS).map(shard).collect()
}

/// Runs one mutant through one pipeline. Returns what is wrong, if anything.
fn attempt(text: &str, seed: u64) -> Option<String> {
    let hash = text.bytes().fold(0u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut rng = Rng(hash.wrapping_add(seed.wrapping_mul(0x1_0000_0001)));
    let (mut programs, diagnostics) = grammar::read(text);
    if has_errors(&diagnostics) || programs.is_empty() {
        return None;
    }
    let program = programs.swap_remove(rng.below(programs.len()));
    let mutant = (0..TRIES).find_map(|_| {
        let mut mutant = program.clone();
        for _ in 0..=rng.below(3) {
            mutate(&mut mutant, &mut rng);
        }
        let text = grammar::print(&mutant);
        is_valid(&text).then_some(text)
    })?;
    let pipeline = match rng.below(4) {
        0 => rng.choose_cloned(PASSES_WITH_OPTIONS).to_owned(),
        1 => PASSES[rng.below(PASSES.len())].name.to_owned(),
        2 => PIPELINES[rng.below(PIPELINES.len())].name.to_owned(),
        _ => generator::pipeline(&mut rng),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| invariants::lower(&mutant, &pipeline)));
    let fault = outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned())).err()?;
    let file = std::env::temp_dir().join(format!("hir-pass-mutant-{hash:016x}-{seed}.hir"));
    let _ = fs::write(&file, mutant);
    Some(format!("hir-opt {} --passes '{pipeline}' --verify-each=semantic: {fault}", file.display()))
}

/// Returns true if a text is one program without an error.
fn is_valid(text: &str) -> bool {
    let (programs, diagnostics) = grammar::read(text);
    !has_errors(&diagnostics) && programs.len() == 1 && !has_errors(&grammar::verify(&programs[0]))
}

// ---- Mutations

fn mutate(program: &mut Program, rng: &mut Rng) {
    match rng.below(10) {
        0..=2 => statements(program, rng),
        3..=5 => axis(program, rng),
        6 => mesh(program, rng),
        _ => operands(program, rng),
    }
}

/// Deletes, repeats or swaps statements of a block.
fn statements(program: &mut Program, rng: &mut Rng) {
    let blocks: Vec<BlockId> = program.blocks.ids().filter(|it| !program.blocks[*it].is_empty()).collect();
    if blocks.is_empty() {
        return;
    }
    let block = rng.choose_cloned(&blocks);
    let stmts = &mut program.blocks[block];
    let (here, there) = (rng.below(stmts.len()), rng.below(stmts.len()));
    match rng.below(3) {
        0 => drop(stmts.remove(here)),
        1 => stmts.insert(there, stmts[here]),
        _ => stmts.swap(here, there),
    }
}

/// Changes the number, extent or parallel type of an axis, or swaps axes of a tensor.
fn axis(program: &mut Program, rng: &mut Rng) {
    let tensors: Vec<TensorId> =
        program.tensors.iter().filter(|(_, it)| !it.loop_domain.is_empty()).map(|(id, _)| id).collect();
    let axes: Vec<AxisId> = program.axes.ids().collect();
    if tensors.is_empty() || axes.is_empty() {
        return;
    }
    let tensor = rng.choose_cloned(&tensors);
    let loops = program.tensors[tensor].loop_domain.clone();
    let axis = rng.choose_cloned(&loops);
    let other = rng.choose_cloned(&axes);
    match rng.below(6) {
        0 => program.axes[axis].number = program.axes[other].number,
        1 => {
            // Usually changes every mention of the extent, so that the program stays consistent.
            let extent = rng.choose_cloned(&[0, 1, 1, 2, 2, 2, 3, 4, 4, 6, 8, 8, 1000, 1 << 40, i64::MAX]);
            let (old, new) = (program.axes[axis].extent, program.intern_int(extent));
            if rng.chance(70) {
                axes.iter().for_each(|it| {
                    if program.axes[*it].extent == old {
                        program.axes[*it].extent = new;
                    }
                })
            } else {
                program.axes[axis].extent = new
            }
        }
        2 | 3 => {
            program.axes[axis].parallel = rng.choose_cloned(&[
                ParallelType::Serial,
                ParallelType::Stream,
                ParallelType::Device(DeviceDim::X),
                ParallelType::Device(DeviceDim::Y),
            ]);
        }
        4 => {
            let (here, there) = (rng.below(loops.len()), rng.below(loops.len()));
            program.tensors[tensor].loop_domain.swap(here, there);
        }
        _ => {
            let logical = &mut program.tensors[tensor].domains.logical;
            let (here, there) = (rng.below(logical.len()), rng.below(logical.len()));
            if here < logical.len() && there < logical.len() {
                logical.swap(here, there);
            }
        }
    }
}

/// Moves a tensor to the devices of another tensor, or to fewer of its own.
fn mesh(program: &mut Program, rng: &mut Rng) {
    let tensors: Vec<TensorId> = program.tensors.ids().collect();
    if tensors.is_empty() {
        return;
    }
    let (tensor, other) = (rng.choose_cloned(&tensors), rng.choose_cloned(&tensors));
    let mut mesh = (*program.tensors[other].mesh).clone();
    if rng.chance(30) && mesh.shape.len() == 1 && mesh.devices.len() > 1 {
        mesh.devices.rotate_left(1);
    } else if rng.chance(30) && mesh.shape.len() == 1 && mesh.devices.len() > 1 {
        mesh.devices.pop();
        mesh.shape[0] -= 1;
    }
    program.tensors[tensor].mesh = Arc::new(mesh);
}

/// Swaps or replaces operands, results, roots, peers, axes and members of teams.
fn operands(program: &mut Program, rng: &mut Rng) {
    let is_op = |(id, stmt): (StmtId, &Stmt)| matches!(stmt, Stmt::Op(_)).then_some(id);
    let ops: Vec<StmtId> = program.stmts.iter().filter_map(is_op).collect();
    let tensors: Vec<TensorId> = program.tensors.ids().collect();
    if ops.is_empty() || tensors.is_empty() {
        return;
    }
    let (stmt, other) = (rng.choose_cloned(&ops), rng.choose_cloned(&tensors));
    let number = program.intern_int(rng.below(4) as i64);
    let Stmt::Op(it) = &mut program.stmts[stmt] else { return };
    let OpStmt { outs, args, attrs, .. } = it;
    match rng.below(4) {
        0 if args.len() > 1 => {
            let (here, there) = (rng.below(args.len()), rng.below(args.len()));
            args.swap(here, there);
        }
        1 => {
            let at = rng.below(args.len() + outs.len());
            let operand = args.iter_mut().chain(outs).nth(at);
            if let Some(Operand::Tensor(tensor)) = operand {
                *tensor = other;
            }
        }
        _ => {
            let at = rng.below(attrs.len());
            match attrs.get_mut(at).map(|(_, attr)| attr) {
                Some(Attr::Tensor(tensor)) => *tensor = other,
                Some(Attr::Scalar(scalar)) => *scalar = number,
                Some(Attr::Team(team)) if team.len() > 1 && rng.chance(50) => team.swap(0, 1),
                Some(Attr::Team(team)) => drop(team.pop()),
                Some(Attr::Flags(flags)) => flags.reverse(),
                Some(Attr::Ranges(ranges)) => ranges.reverse(),
                Some(Attr::Work(work)) => *work = rng.below(4) as u32,
                _ => (),
            }
        }
    }
}
