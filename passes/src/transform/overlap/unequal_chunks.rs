//! Splits a communication, and the matmul before it, into chunks of different sizes.
//!
//! For example, `ratio=8,5,2,1` makes four chunks, of 8, 5, 2 and 1 sixteenths of the rows. Nothing hides the all-reduce of
//! the last chunk, so this chunk is small. The all-reduce of every other chunk runs beside the product of the next chunk.
//! So the next chunk can be smaller, as long as its product takes as long as that all-reduce.
//!
//! If no number of equal chunks divides the rows, such as 7 rows, the last chunk is shorter than the others.

use crate::pass::Obstacle;
use grammar::{Program, StmtId, TensorId};
use hir_ir::search;
use rustc_hash::FxHashSet;

use super::attempts::{or_no_dimension, with_loops};
use crate::{
    analysis::sharding::Sharding,
    pass::Change,
    transform::{
        chunk::{self, CommCandidate, MAX_COUNT, known_extent},
        stream_parallel::LoopOptions,
    },
};

/// The sizes of the chunks.
#[derive(Clone, Copy)]
pub(super) enum Sizes<'r> {
    /// In this ratio.
    Ratio(&'r [u64]),
    /// Up to this number of chunks of equal size, and a shorter one, if no number of equal chunks divides the dimension.
    Shorter(i64),
}

/// Returns the program with loops over the chunks, one loop for each run of chunks of equal size, and the number of
/// chunks.
///
/// # Errors
/// Returns the reason why no dimension can be split.
pub(super) fn attempt(
    program: &Program,
    sizes: Sizes<'_>,
    loops: LoopOptions,
    exchange: &CommCandidate,
) -> Result<(Program, usize), Obstacle> {
    let judge = |dim: &usize| split(program, sizes, loops, exchange, *dim);
    search::first_kept(&exchange.dims, judge).map_err(or_no_dimension)
}

fn split(
    program: &Program,
    sizes: Sizes<'_>,
    loops: LoopOptions,
    exchange: &CommCandidate,
    dim: usize,
) -> Result<(Program, usize), Obstacle> {
    let tensor = exchange.tensor;
    let sizes = sizes.of(program, (tensor, dim))?;
    let name = format!("{}.{dim}", program.tensor_name(tensor));
    let mut cut = program.clone();
    let change = chunk::chunk_by_sizes(&mut cut, &name, &sizes, (tensor, dim))?;
    let old: FxHashSet<StmtId> = program.body().iter().copied().collect();
    let new: FxHashSet<StmtId> = cut.body().iter().copied().filter(|stmt| !old.contains(stmt)).collect();
    let communicates =
        |stmt: &StmtId| chunk::comm_candidates(&cut, *stmt).iter().any(|it| it.kind == exchange.kind);
    let required: Vec<StmtId> = new.iter().copied().filter(communicates).collect();
    if change == Change::Unchanged || required.is_empty() {
        return Err(format!("no statement computes axis `{name}` in chunks").into());
    }
    let rewritten = with_loops(&cut, loops, new, &required, 1);
    rewritten.map(|it| (it, sizes.len())).map_err(|mut reasons| reasons.swap_remove(0).1)
}

impl Sizes<'_> {
    /// Returns the number of elements of each chunk.
    ///
    /// # Errors
    /// Returns a reason if the dimension has no such chunks.
    fn of(self, program: &Program, (tensor, dim): (TensorId, usize)) -> Result<Vec<i64>, Obstacle> {
        let name = program.tensor_name(tensor);
        let sharding = Sharding::of(program, tensor)
            .ok_or_else(|| format!("`{name}` is sharded over the inner part of a split axis"))?;
        let extent = known_extent(program, sharding.dims[dim].extent);
        let ratio = match self {
            Self::Ratio(ratio) => ratio,
            Self::Shorter(most) => return shorter_last(extent, most),
        };
        let extent = extent.ok_or_else(|| {
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
}

/// Returns the sizes of up to `most` chunks, the last of which is shorter.
fn shorter_last(extent: Option<i64>, most: i64) -> Result<Vec<i64>, Obstacle> {
    let most = most.min(MAX_COUNT);
    let extent = extent.filter(|it| most > 1 && *it > 2 && (2..=most).all(|count| it % count != 0));
    let extent = extent.ok_or("its chunks are of equal size")?;
    let size = extent / most + 1;
    let mut sizes = vec![size; usize::try_from(extent / size).unwrap_or_default()];
    sizes.push(extent % size);
    Ok(sizes)
}
