//! Splits the communications of a large program together.
//!
//! An attempt for one communication examines the whole program, so that attempts one after the other take time that grows
//! like the square of the number of layers. Communications that share no axis do not influence each other: the axes of
//! all of them are split in one copy of the program. Those for which a loop is not possible are left to attempts of their own.

use grammar::{
    for_each_tensor_use,
    ir::{Program, Stmt, StmtId, TensorId},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    attempts::{chunks_text, divisibility_condition, most_chunks, with_loops},
    check_requested,
};
use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, Reach},
        sharding::{Dim, Sharding},
    },
    pass::Arguments,
    transform::{
        chunk::{self, CommCandidate},
        stream_parallel::LoopOptions,
    },
};

/// The number of communications from which on they are split together. Below it, attempts one after the other are fast.
const FEWEST: usize = 24;

/// The number of rounds. Each leaves out the communications that failed in the one before.
const MOST_ROUNDS: usize = 3;

/// Returns the program with loops for all communications that share no axis with an earlier one, and the number of chunks
/// of each in words. Returns `None` if the program has few communications, or none that can be split together.
pub(super) fn attempt_together(
    program: &Program,
    arguments: &Arguments,
    loops: LoopOptions,
) -> Option<(Program, FxHashMap<StmtId, String>)> {
    if arguments.flag("swizzle") || arguments.counts("ratio").is_some() {
        return None;
    }
    let candidates: Vec<(StmtId, Vec<CommCandidate>)> = program
        .body()
        .iter()
        .map(|stmt| (*stmt, chunk::comm_candidates(program, *stmt)))
        .filter(|(_, ways)| ways.first().is_some_and(|it| check_requested(arguments, it).is_ok()))
        .collect();
    if candidates.len() < FEWEST {
        return None;
    }
    let shared = DimEquivalence::of(program);
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let mut failed: FxHashSet<StmtId> = FxHashSet::default();
    for _ in 0..MOST_ROUNDS {
        // The tensors whose axes are split, and inputs, which several communications may share, as they stay whole.
        let (mut split, mut whole) = (FxHashSet::default(), FxHashSet::default());
        let mut chunks: Vec<(StmtId, String)> = Vec::new();
        let mut chunkings = Vec::new();
        for (stmt, ways) in candidates.iter().filter(|(stmt, _)| !failed.contains(stmt)) {
            let has_stream = |it: &CommCandidate| {
                Sharding::of(program, it.tensor)
                    .is_none_or(|it| it.dims.iter().any(|dim: &Dim| dim.stream().is_some()))
            };
            if ways.iter().any(|it| has_stream(it) || split.contains(&it.tensor)) {
                continue;
            }
            let chosen = ways.iter().find_map(|exchange| {
                let choose =
                    |reach| chunk::choose_chunking(program, &shared, exchange, most_chunks(arguments), reach);
                let chunking = choose(Reach::Everywhere).or_else(|_| choose(Reach::NextProduct));
                Some((exchange, chunking.ok()?))
            });
            let Some((exchange, chunking)) = chosen else { continue };
            let tensors = chunking.component.dims.iter().map(|(tensor, _)| *tensor);
            if tensors.clone().any(|it| split.contains(&it)) {
                continue;
            }
            let (of_inputs, others): (Vec<TensorId>, Vec<TensorId>) =
                tensors.partition(|it| inputs.contains(it));
            split.extend(others);
            whole.extend(of_inputs);
            let condition = divisibility_condition(program, arguments, exchange);
            chunks.push((*stmt, chunks_text(Some(chunking.count), condition)));
            chunkings.push(chunking);
        }
        if chunks.is_empty() {
            return None;
        }
        let mut cut = program.clone();
        chunk::chunk_equally(&mut cut, &chunkings).ok()?;
        split.extend(whole);
        let only = cut.body().iter().copied().filter(|stmt| mentions(&cut, *stmt, &split)).collect();
        let required: Vec<StmtId> = chunks.iter().map(|(stmt, _)| *stmt).collect();
        match with_loops(&cut, loops, only, &required, 2) {
            Ok(rewritten) => return Some((rewritten, chunks.into_iter().collect())),
            Err(reasons) => failed.extend(reasons.into_iter().map(|(stmt, _)| stmt)),
        }
    }
    None
}

fn mentions(program: &Program, stmt: StmtId, tensors: &FxHashSet<TensorId>) -> bool {
    let Stmt::Op(it) = &program.stmts[stmt] else { return false };
    let mut found = false;
    for_each_tensor_use(program, it, &mut |tensor, _| found |= tensors.contains(&tensor));
    found
}
