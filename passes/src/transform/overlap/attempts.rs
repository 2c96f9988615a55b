//! The attempts to make a loop for one communication.

use grammar::{CommunicationType, Program, StmtId};
use hir_ir::search::{self, Budget};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    overlap_check,
    unequal_chunks::{self, Sizes},
};
use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, Reach},
        sharding::{Dim, Sharding},
    },
    pass::{Arguments, Obstacle},
    transform::{
        chunk::{self, Chunking, CommCandidate, DEFAULT_COUNT, known_extent},
        stream_parallel::{self, LoopFacts, LoopOptions, LoopPlan, StmtGroup},
        swizzle_stream,
    },
};

/// What all attempts have in common.
pub(super) struct Attempts<'p> {
    pub(super) program: &'p Program,
    pub(super) shared: &'p DimEquivalence,
    /// The number of statements that attempts have examined.
    pub(super) examined: &'p mut Budget,
    pub(super) arguments: &'p Arguments,
    pub(super) loops: LoopOptions,
}

impl Attempts<'_> {
    /// Returns the program with a loop that overlaps a communication with matmuls, and the number of chunks in words. `ways` are
    /// the ways to split it.
    ///
    /// # Errors
    /// Returns the reason why no such loop is possible.
    pub(super) fn make(
        mut self,
        stmt: StmtId,
        ways: &[CommCandidate],
    ) -> Result<(Program, String), Obstacle> {
        let judge = |exchange: &CommCandidate| match unequal_sizes(self.arguments, exchange) {
            Some(ratio) => self.unequal(Sizes::Ratio(&ratio), exchange),
            None => self.equal(stmt, exchange).or_else(|reason| match exchange.count {
                Some(_) => Err(reason),
                None => {
                    let sizes = Sizes::Shorter(most_chunks(self.arguments));
                    let (rewritten, chunks) = self.unequal(sizes, exchange).map_err(|_| reason)?;
                    Ok((rewritten, format!("{chunks}, of which the last is shorter")))
                }
            }),
        };
        search::first_kept(ways, judge).map_err(or_no_dimension)
    }

    /// Attempts chunks of equal size.
    fn equal(&mut self, stmt: StmtId, exchange: &CommCandidate) -> Result<(Program, String), Obstacle> {
        let loops = self.loops;
        let is_alone = exchange.kind == CommunicationType::Allgather && !self.arguments.flag("share");
        let mut within = |reach, loops| self.attempt(reach, loops, (stmt, exchange));
        let alone = is_alone.then(|| within(Reach::BehindProduct, loops)).and_then(Result::ok);
        let found = alone.map_or_else(|| within(Reach::Everywhere, loops), Ok).or_else(|reason| {
            let chunks = loops.with_chunks().map(|loops| within(Reach::Everywhere, loops));
            match chunks.and_then(Result::ok) {
                Some(found) => Ok(found),
                None => within(Reach::NextProduct, loops).map_err(|_| reason),
            }
        });
        let (rewritten, count) = found?;
        let condition = divisibility_condition(self.program, self.arguments, exchange);
        Ok((rewritten, chunks_text(count, condition)))
    }

    /// Attempts chunks of different sizes.
    fn unequal(&mut self, sizes: Sizes<'_>, exchange: &CommCandidate) -> Result<(Program, String), Obstacle> {
        self.examined.spend(self.program.stmts.len());
        let (rewritten, count) = unequal_chunks::attempt(self.program, sizes, self.loops, exchange)?;
        Ok((rewritten, format!("{count} chunks")))
    }

    /// Returns the program with a loop that overlaps a communication with matmuls, and the number of chunks if it is a
    /// constant.
    ///
    /// # Errors
    /// Returns the reason why no such loop is possible.
    fn attempt(
        &mut self,
        reach: Reach,
        loops: LoopOptions,
        (stmt, exchange): (StmtId, &CommCandidate),
    ) -> Result<(Program, Option<i64>), Obstacle> {
        let (program, shared, arguments) = (self.program, self.shared, self.arguments);
        let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
        let (component, chunking) = match dims.iter().position(|dim| dim.stream().is_some()) {
            Some(dim) => {
                let twice = |twice| {
                    let name = program.tensor_name(twice);
                    Obstacle::from(format!("`{name}` has the stream axis in two dimensions"))
                };
                (shared.dims_within(reach, exchange.tensor, dim).map_err(twice)?, None)
            }
            None => {
                let it = chunk::choose_chunking(program, shared, exchange, most_chunks(arguments), reach)?;
                (it.component, Some(it.count))
            }
        };
        self.examined.spend(program.stmts.len());
        let mut cut = program.clone();
        let component = match chunking {
            Some(count) => {
                let chunking = Chunking { component, count };
                chunk::chunk_equally(&mut cut, std::slice::from_ref(&chunking)).map_err(|it| it.1)?;
                chunking.component
            }
            None => component,
        };
        let dims = Sharding::of(&cut, exchange.tensor).map(|it| it.dims).unwrap_or_default();
        let count = dims.iter().find_map(Dim::stream).and_then(|it| cut.constant(it.count));
        if arguments.flag("swizzle") {
            swizzle_stream::rotate(&mut cut, Some(&component));
        }
        let only = cut.body().iter().copied().filter(|stmt| component.is_mentioned_by(&cut, *stmt)).collect();
        let rewritten = with_loops(&cut, loops, only, &[stmt], 2);
        rewritten.map(|it| (it, count)).map_err(|mut reasons| reasons.swap_remove(0).1)
    }
}

/// Returns the reason why a communication is not split; without one, it has no dimension to split.
pub(super) fn or_no_dimension(reason: Option<Obstacle>) -> Obstacle {
    reason.unwrap_or_else(|| "it has no dimension that can be split into chunks".into())
}

/// Why a statement is in no loop.
pub(super) const NO_SLICES: &str = "its chunks are not slices of the local part of each device";

/// Returns the number of chunks in words; without a number if it is no constant.
pub(super) fn chunks_text(count: Option<i64>, condition: &str) -> String {
    format!("{}chunks{condition}", count.map_or(String::new(), |it| format!("{it} ")))
}

/// Returns the ratio of the sizes of the chunks, if the options state one for this kind of communication.
fn unequal_sizes(arguments: &Arguments, exchange: &CommCandidate) -> Option<Vec<u64>> {
    arguments.counts("ratio").filter(|_| exchange.kind == CommunicationType::Allreduce)
}

/// Returns what a remark adds if the pass chooses the number of chunks of an axis whose extent is not a constant.
pub(super) fn divisibility_condition(
    program: &Program,
    arguments: &Arguments,
    exchange: &CommCandidate,
) -> &'static str {
    let is_chosen = exchange.count.is_none()
        && arguments.count("count").is_none()
        && unequal_sizes(arguments, exchange).is_none();
    let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    let is_symbolic = |dim: &usize| {
        dims.get(*dim)
            .is_some_and(|dim| dim.stream().is_none() && known_extent(program, dim.extent).is_none())
    };
    if is_chosen && exchange.dims.first().is_some_and(is_symbolic) {
        ", whose number has to divide an extent that is not a constant; set `count` if it does not"
    } else {
        ""
    }
}

/// Returns the largest number of chunks that the options allow where the number of devices does not determine it.
pub(super) fn most_chunks(arguments: &Arguments) -> i64 {
    arguments.count("count").map_or(DEFAULT_COUNT, |it| i64::try_from(it).unwrap_or(i64::MAX))
}

/// Returns the program with loops of the statements in `only`, each of at least `least_trips` iterations. The statements in
/// `required`, of which there is at least one, are in loops that overlap communication with matmuls.
///
/// # Errors
/// Returns the statements for which there are no such loops, each with the reason.
pub(super) fn with_loops(
    cut: &Program,
    loops: LoopOptions,
    mut only: FxHashSet<StmtId>,
    required: &[StmtId],
    least_trips: i64,
) -> Result<Program, Vec<(StmtId, Obstacle)>> {
    // The next round leaves out the loops that do not overlap. Many loops need more rounds.
    let mut rounds = if required.len() > 1 { 6 } else { 2 };
    let facts = LoopFacts::of(cut, loops);
    while rounds > 0 {
        let plan = LoopPlan::of(cut, &facts, Some(&only));
        let planned: Vec<&StmtGroup> = plan.loops().collect();
        let loop_of: FxHashMap<StmtId, usize> =
            planned.iter().enumerate().flat_map(|(at, it)| it.stmts().map(move |stmt| (stmt, at))).collect();
        // To lower the program would say nothing about statements in no loop, or about loops that compute no product.
        let without_product = |it: &&StmtGroup| !it.has_product(cut);
        let reason_before = |stmt: &StmtId| {
            let Some(own) = loop_of.get(stmt).map(|at| planned[*at]) else {
                return Some((*stmt, NO_SLICES.into()));
            };
            let has_trips = own.trips(cut).is_none_or(|trips| trips >= least_trips);
            // For one communication, a reason why the program cannot be lowered comes first.
            let is_first = required.len() > 1 && has_trips;
            let is_certain = is_first && own.communicates() && without_product(&own);
            is_certain.then(|| (*stmt, overlap_check::NO_MATMUL.into()))
        };
        let failed: Vec<(StmtId, Obstacle)> = required.iter().filter_map(reason_before).collect();
        if !failed.is_empty() {
            return Err(failed);
        }
        let is_clear = |stmt: &StmtId| loop_of.get(stmt).is_none_or(|at| !without_product(&planned[*at]));
        if planned.iter().any(without_product) && required.iter().all(is_clear) {
            let others = planned.iter().filter(|it| !without_product(it));
            only = others.flat_map(|it| it.stmts()).collect();
            continue;
        }
        rounds -= 1;
        let mut trial = cut.clone();
        let written = stream_parallel::write_loops(&mut trial, &facts, &plan);
        let reasons = overlap_check::obstacles(&trial, &written, least_trips);
        let obstacle = |stmt: &StmtId| Some((*stmt, reasons[*loop_of.get(stmt)?].clone()?));
        let failed: Vec<(StmtId, Obstacle)> = required.iter().filter_map(obstacle).collect();
        if !failed.is_empty() {
            return Err(failed);
        }
        if reasons.iter().all(Option::is_none) {
            return Ok(trial);
        }
        let good = planned.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        only = good.flat_map(|(it, _)| it.stmts()).collect();
    }
    let reason = "other statements on the same axis cannot be split into chunks";
    Err(required.iter().map(|stmt| (*stmt, reason.into())).collect())
}
