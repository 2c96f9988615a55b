//! Splits the communications of a large program together.
//!
//! An attempt for one communication examines the whole program, so that attempts one after the other take time that grows
//! like the square of the number of layers. Communications that share no axis do not influence each other: the axes of
//! all of them are split in one copy of the program. Those for which a loop is not possible are left out of the next round.

use std::rc::Rc;

use grammar::{Program, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    attempts::{NO_SLICES, chunks_text, divisibility_condition, most_chunks, or_no_dimension, with_loops},
    check_requested, largest_first,
    overlap_check::NO_MATMUL,
    size, within_steps,
};
use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, EquivalentDims, Reach},
        sharding::Sharding,
    },
    pass::{Arguments, Obstacle},
    second_thread::both,
    transform::{
        chunk::{self, Chunking, CommCandidate},
        stream_parallel::{self, LoopOptions},
    },
};

/// The number of communications from which on they are split together. Below it, attempts one after the other are fast.
const FEWEST: usize = 24;

/// The maximum number of rounds of a way to make loops. Layers that are alike fail in the same rounds.
const MOST_ROUNDS: usize = 12;

/// Communications, with the ways to split each.
type Candidates = Vec<(StmtId, Vec<CommCandidate>)>;

/// The communications of a program after all have been attempted.
pub(super) struct Together {
    pub(super) program: Program,
    /// The number of chunks of those that are split, in words.
    pub(super) chunks: FxHashMap<StmtId, String>,
    /// Why the others are not.
    pub(super) reasons: FxHashMap<StmtId, Obstacle>,
    /// Those for which the program, as it is, has no axis within any reach of the first way to make loops.
    without_axis: FxHashSet<StmtId>,
    /// Its equivalent dimensions, and the tensors of its products; `None` after a change.
    known: Option<(DimEquivalence, FxHashSet<TensorId>)>,
}

/// Returns the program with loops for all communications for which there are loops. Returns `None` if the program has few
/// communications, or none that can be split together. Those of `whole` stay so.
pub(super) fn attempt_together(
    program: &Program,
    arguments: &Arguments,
    (loops, whole): (LoopOptions, &FxHashSet<StmtId>),
) -> Option<Together> {
    if arguments.flag("swizzle") || arguments.counts("ratio").is_some() {
        return None;
    }
    let mut candidates: Candidates = program
        .body()
        .iter()
        .filter(|it| !whole.contains(*it))
        .map(|stmt| (*stmt, within_steps(arguments, chunk::comm_candidates(program, *stmt))))
        .filter(|(_, ways)| {
            let is_selected = |it: &CommCandidate| {
                arguments.selects(program, &[it.subject]) && check_requested(arguments, it).is_ok()
            };
            ways.first().is_some_and(is_selected)
        })
        .collect();
    if candidates.len() < FEWEST {
        return None;
    }
    largest_first(program, &mut candidates);
    let (chunks, reasons) = (FxHashMap::default(), FxHashMap::default());
    let without_axis = FxHashSet::default();
    let mut found = Together { program: program.clone(), chunks, reasons, without_axis, known: None };
    // As for one communication: loops of slices, of chunks, and of the statements up to the next products.
    let everywhere = if arguments.flag("share") {
        &[Reach::Everywhere, Reach::NextProduct][..]
    } else {
        &[Reach::BehindProduct, Reach::Everywhere][..]
    };
    let ways = [
        Some((everywhere, loops)),
        loops.with_chunks().map(|loops| (everywhere, loops)),
        Some((&[Reach::NextProduct][..], loops)),
    ];
    let ways: Vec<(&[Reach], LoopOptions)> = ways.into_iter().flatten().collect();
    // The large ones in all ways first, since a loop for a small one may exclude them.
    let half = candidates.first().map_or(0, |it| size(program, it) / 2);
    let small = candidates.split_off(candidates.partition_point(|it| size(program, it) > half));
    for mut candidates in [candidates, small] {
        found.without_axis.clear();
        for (reaches, loops) in &ways {
            let mut failed: FxHashSet<StmtId> = FxHashSet::default();
            if reaches.iter().all(|it| everywhere.contains(it)) {
                failed.extend(&found.without_axis);
            }
            for _ in 0..MOST_ROUNDS {
                let body: FxHashSet<StmtId> = found.program.body().iter().copied().collect();
                candidates.retain(|(stmt, _)| body.contains(stmt) && !found.chunks.contains_key(stmt));
                if !found.round(arguments, &candidates, (reaches, *loops), &mut failed) {
                    break;
                }
            }
        }
    }
    (!found.chunks.is_empty()).then_some(found)
}

impl Together {
    /// Makes loops for communications that share no axis, or adds those for which there is none to `failed`. Returns whether
    /// another round may find more.
    fn round(
        &mut self,
        arguments: &Arguments,
        candidates: &[(StmtId, Vec<CommCandidate>)],
        (reaches, loops): (&[Reach], LoopOptions),
        failed: &mut FxHashSet<StmtId>,
    ) -> bool {
        if candidates.iter().all(|(stmt, _)| failed.contains(stmt)) {
            return false;
        }
        let program = &self.program;
        let (shared, in_products) = self.known.get_or_insert_with(|| {
            (DimEquivalence::for_many_searches(program), tensors_of_products(program))
        });
        let search = Search { program, shared, in_products, arguments, reaches };
        let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        // The tensors whose axes are split, and inputs, which several communications may share, as they stay whole.
        let (mut split, mut whole) = (FxHashSet::default(), FxHashSet::default());
        let mut chunks: Vec<(StmtId, String)> = Vec::new();
        // The axes to split, each with the communication that it is split for.
        let (mut chunkings, mut chunked) = (Vec::new(), Vec::new());
        let choose = || {
            for (stmt, ways) in candidates {
                if failed.contains(stmt) || ways.iter().any(|it| split.contains(&it.tensor)) {
                    continue;
                }
                match search.choose(ways) {
                    Ok((exchange, it)) => {
                        let tensors = it.component.dims.iter().map(|(tensor, _)| *tensor);
                        if tensors.clone().any(|it| split.contains(&it)) {
                            continue;
                        }
                        let (of_inputs, others): (Vec<TensorId>, Vec<TensorId>) =
                            tensors.partition(|it| inputs.contains(it));
                        split.extend(others);
                        whole.extend(of_inputs);
                        let condition = divisibility_condition(program, arguments, exchange);
                        chunks.push((*stmt, chunks_text(it.count, condition)));
                        if let (Some(count), true) = (it.count, it.is_new) {
                            chunkings.push(Chunking { component: it.component, count });
                            chunked.push(*stmt);
                        }
                    }
                    Err(reason) => {
                        failed.insert(*stmt);
                        self.without_axis.insert(*stmt);
                        self.reasons.entry(*stmt).or_insert(reason);
                    }
                }
            }
        };
        let (mut cut, ()) = both(program, || program.clone(), choose);
        if chunks.is_empty() {
            return false;
        }
        let required: Vec<StmtId> = chunks.iter().map(|(stmt, _)| *stmt).collect();
        let rewritten = match chunk::chunk_equally(&mut cut, &chunkings) {
            Ok(_) => {
                split.extend(whole);
                with_loops_over(&cut, loops, &split, &required)
            }
            Err((at, fault)) => Err(vec![(chunked[at], Obstacle::from(fault))]),
        };
        match rewritten {
            Ok(rewritten) => {
                (self.program, self.known) = (rewritten, None);
                self.chunks.extend(chunks);
                self.without_axis.clear();
            }
            Err(reasons) => {
                for (stmt, reason) in reasons {
                    failed.insert(stmt);
                    self.reasons.entry(stmt).or_insert(reason);
                }
            }
        }
        true
    }
}

/// Returns the program with loops of the statements on these tensors, or the communications for which there is no loop, each with
/// the reason.
fn with_loops_over(
    cut: &Program,
    loops: LoopOptions,
    tensors: &FxHashSet<TensorId>,
    required: &[StmtId],
) -> Result<Program, Vec<(StmtId, Obstacle)>> {
    // It costs much less to see that a statement cannot be sliced than to make loops without it.
    let is_whole = |stmt: &&StmtId| !stream_parallel::can_slice(cut, loops, **stmt);
    let whole: Vec<(StmtId, Obstacle)> =
        required.iter().filter(is_whole).map(|stmt| (*stmt, NO_SLICES.into())).collect();
    if !whole.is_empty() {
        return Err(whole);
    }
    let only = cut.body().iter().copied().filter(|it| mentions(cut, *it, tensors)).collect();
    with_loops(cut, loops, only, required, 2)
}

/// The axis to split for a communication.
struct Choice {
    /// The tensors that share it, with its position in each.
    component: Rc<EquivalentDims>,
    /// The number of chunks, if it is a constant.
    count: Option<i64>,
    /// Whether no loop for another communication has split it already.
    is_new: bool,
}

/// Searches for the axes to split.
struct Search<'p> {
    program: &'p Program,
    shared: &'p DimEquivalence,
    /// The operands and results of matrix products.
    in_products: &'p FxHashSet<TensorId>,
    arguments: &'p Arguments,
    reaches: &'p [Reach],
}

impl Search<'_> {
    /// Chooses one of the ways to split a communication.
    fn choose<'w>(&self, ways: &'w [CommCandidate]) -> Result<(&'w CommCandidate, Choice), Obstacle> {
        let mut first = None;
        for exchange in ways {
            for reach in self.reaches {
                match self.choice(exchange, *reach) {
                    Ok(found) => return Ok((exchange, found)),
                    Err(reason) => _ = first.get_or_insert(reason),
                }
                if *reach == Reach::Everywhere && self.lacks_products(exchange) {
                    break;
                }
            }
        }
        Err(or_no_dimension(first))
    }

    /// Returns whether no product reads or writes a tensor that shares a dimension to split, so that there is none within a smaller
    /// reach either.
    fn lacks_products(&self, exchange: &CommCandidate) -> bool {
        let lacks = |dim: &usize| {
            let found = self.shared.dims_within(Reach::Everywhere, exchange.tensor, *dim);
            found.is_ok_and(|it| !self.is_in_product(&it))
        };
        let sharding = Sharding::of(self.program, exchange.tensor);
        match sharding.and_then(|it| it.dims.iter().position(|dim| dim.stream().is_some())) {
            Some(dim) => lacks(&dim),
            None => exchange.dims.iter().all(lacks),
        }
    }

    fn is_in_product(&self, component: &EquivalentDims) -> bool {
        let is_operand = |(tensor, _): &(TensorId, usize)| self.in_products.contains(tensor);
        *component.in_product.get_or_init(|| component.dims.iter().any(is_operand))
    }

    /// Returns the axis to split within a reach: the one that has been split already, if there is one.
    fn choice(&self, exchange: &CommCandidate, reach: Reach) -> Result<Choice, Obstacle> {
        let program = self.program;
        let name = |tensor| program.tensor_name(tensor);
        let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).ok_or_else(|| {
            format!("`{}` is sharded over the inner part of a split axis", name(exchange.tensor))
        })?;
        let stream = dims.iter().enumerate().find_map(|(at, dim)| Some((at, dim.stream()?)));
        let found = match stream {
            Some((at, stream)) => {
                let component = self.shared.dims_within(reach, exchange.tensor, at);
                let twice = |twice| format!("`{}` has the stream axis in two dimensions", name(twice));
                let count = program.constant(stream.count);
                Choice { component: component.map_err(twice)?, count, is_new: false }
            }
            None => {
                let most = most_chunks(self.arguments);
                let it = chunk::choose_chunking(program, self.shared, exchange, most, reach)?;
                Choice { component: it.component, count: Some(it.count), is_new: true }
            }
        };
        if self.is_in_product(&found.component) { Ok(found) } else { Err(NO_MATMUL.into()) }
    }
}

/// Returns the tensors that matrix products read and write.
fn tensors_of_products(program: &Program) -> FxHashSet<TensorId> {
    let ops = program.body().iter().filter_map(|stmt| program.op(*stmt));
    ops.filter(|it| it.rule().is_matrix_product()).flat_map(|it| it.mentions(program)).collect()
}

fn mentions(program: &Program, stmt: StmtId, tensors: &FxHashSet<TensorId>) -> bool {
    program.op(stmt).is_some_and(|it| it.mentions(program).any(|it| tensors.contains(&it)))
}
