//! Splits an all-reduce, and the matmul before it, into chunks of different sizes (`ratio`).
//!
//! For example, `ratio=8,5,2,1` makes four chunks, of 8, 5, 2 and 1 sixteenths of the rows. Nothing hides the all-reduce of
//! the last chunk, so this chunk is small. The all-reduce of every other chunk runs beside the product of the next chunk.
//! So the next chunk can be smaller, as long as its product takes as long as that all-reduce.

use crate::pass::Obstacle;
use grammar::ir::{Program, StmtId, TensorId};
use rustc_hash::FxHashSet;

use super::with_loops;
use crate::{
    analysis::sharding::Sharding,
    pass::Change,
    transform::{
        chunk::{self, CommCandidate, CommKind, known_extent},
        stream_parallel::LoopOptions,
    },
};

/// Returns the program with loops over the chunks, one loop for each run of chunks of equal size, and the number of
/// chunks.
///
/// # Errors
/// Returns the reason why the first dimension cannot be split.
pub(super) fn attempt(
    program: &Program,
    ratio: &[u64],
    loops: LoopOptions,
    exchange: &CommCandidate,
) -> Result<(Program, Option<i64>), Obstacle> {
    let mut first = None;
    for dim in &exchange.dims {
        match split(program, ratio, loops, (exchange.tensor, *dim)) {
            Ok(rewritten) => return Ok((rewritten, i64::try_from(ratio.len()).ok())),
            Err(reason) => _ = first.get_or_insert(reason),
        }
    }
    Err(first.unwrap_or_else(|| "it has no dimension that can be split into chunks".into()))
}

fn split(
    program: &Program,
    ratio: &[u64],
    loops: LoopOptions,
    (tensor, dim): (TensorId, usize),
) -> Result<Program, Obstacle> {
    let sizes = sizes(program, ratio, (tensor, dim))?;
    let name = format!("{}.{dim}", program.tensor_name(tensor));
    let mut cut = program.clone();
    let change = chunk::chunk_by_sizes(&mut cut, &name, &sizes, (tensor, dim))?;
    let old: FxHashSet<StmtId> = program.body().iter().copied().collect();
    let new: FxHashSet<StmtId> = cut.body().iter().copied().filter(|stmt| !old.contains(stmt)).collect();
    let reduces =
        |stmt: &StmtId| chunk::comm_candidate(&cut, *stmt).is_some_and(|it| it.kind == CommKind::Allreduce);
    let required: Vec<StmtId> = new.iter().copied().filter(reduces).collect();
    if change == Change::Unchanged || required.is_empty() {
        return Err(format!("no statement computes axis `{name}` in chunks").into());
    }
    with_loops(&cut, loops, new, &required, 1).map_err(|mut reasons| reasons.swap_remove(0).1)
}

/// Returns the number of elements of each chunk.
///
/// # Errors
/// Returns a reason if the dimension has no such chunks.
fn sizes(program: &Program, ratio: &[u64], (tensor, dim): (TensorId, usize)) -> Result<Vec<i64>, Obstacle> {
    let name = program.tensor_name(tensor);
    let sharding = Sharding::of(program, tensor)
        .ok_or_else(|| format!("`{name}` is sharded over the inner part of a split axis"))?;
    let extent = known_extent(program, sharding.dims[dim].extent).ok_or_else(|| {
        format!("the extent of dimension {dim} of `{name}` is not a constant, which `ratio` requires")
    })?;
    // Each is a positive number of 32 bits (`OptionKind::Counts`).
    let ratio: Vec<i64> = ratio.iter().map(|it| *it as i64).collect();
    let sum: i64 = ratio.iter().sum();
    if extent % sum != 0 {
        let words: Vec<String> = ratio.iter().map(i64::to_string).collect();
        let words = words.join(":");
        return Err(format!(
            "dimension {dim} of `{name}` has extent {extent}, and {sum}, the sum of the ratio {words}, does not divide it: use numbers whose sum divides {extent}"
        ).into());
    }
    Ok(ratio.iter().map(|it| it * (extent / sum)).collect())
}
