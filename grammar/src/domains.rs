//! Infers logical and allocation domains from a dump, which prints only loop domains.
//!
//! nvFuser numbers iteration domains in order of creation: first the logical axes of a tensor, consecutively,
//! then the outer and the inner result of each split. A split for devices or streams is an outer split: its
//! outer result moves to the front, and the inner results keep the logical order. The evidence, strongest
//! first:
//!
//! 1. An axis of extent `ceilDiv(x, d)` is numbered directly after a parallel axis of extent `d`: both are
//!    the results of a split of an axis of extent `x`.
//! 2. In a tensor with such a split, all axes with later numbers are also results of splits.
//! 3. Serial axes are out of numeric order, or the numbers have a gap: the axes after that are results of
//!    splits.
//! 4. Operators whose operands and results have the same number of logical axes. If the extents that this gives violate the rule
//!    of an operator, the inner result of a split is another axis, with which they do not (`extents`).
//! 5. A stream axis is numbered directly after a serial one, in a tensor that a CollectivePermute writes or that is computed from
//!    one: the outer result of the split was swizzled.
//!
//! A stream axis is not split in the allocation domain unless the tensor holds one stream's chunk: a result
//! of ShardByStream, a tensor whose ALLOCATE has a `size=` that is the product of its loop extents, or a
//! tensor that is first defined inside a loop and never partitioned.
//!
//! Invariant: the result of `infer` depends only on the printed program, so that `needs_domains_section` can
//! determine whether the text needs a `Domains:` section to read back as the same program.

mod ambiguous;
mod extents;
mod splits;

pub(crate) use ambiguous::AmbiguousTensor;
use splits::{ceil_div_operands, is_spread, sorted_product, split_candidates};

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use crate::{
    arena::Id,
    attr,
    ir::{
        Axis, AxisId, AxisKind, BlockId, Domains, Expr, ExprId, InfixOp, OpStmt, ParallelType, Program, Stmt,
        Tensor, TensorId, Transform, UnitId,
    },
    numbering::free_number,
    ops::{Op, OpClass, TypeRule},
    rules::{AxesState, RankCount, RankFacts},
    tensor_uses::tensors_in_text_order,
};

/// The domains of one tensor that the text implies.
#[derive(Clone, Debug, Default, PartialEq)]
struct InferredDomains {
    /// The splits: positions of the outer and the inner result in the loop domain, and whether the outer
    /// result is swizzled.
    splits: Vec<(usize, usize, bool)>,
    /// Whether a rank holds the slice of only one stream at a time.
    is_stream_split: bool,
}

/// Sets the domains of all tensors of the container and of `units` to the inferred ones, and returns the tensors of the container
/// whose domains are ambiguous. The domains of the tensors in `stated` are known.
pub fn infer(program: &mut Program, stated: &HashSet<TensorId>, units: &[UnitId]) -> Vec<AmbiguousTensor> {
    let mut facts = DomainFacts { stated: stated.clone(), ..DomainFacts::default() };
    facts.collect(program, units);
    let mut next = free_number(program.axes.iter().map(|(_, axis)| axis.number));
    let all_inferred = facts.inferred_domains(program);
    let mut ambiguous = ambiguous::ambiguous_tensors(program, &facts, &all_inferred);
    // What only a `%tensor` line mentions is not part of the program, so its domains do not matter.
    let mentioned: HashSet<TensorId> = tensors_in_text_order(program).into_iter().collect();
    ambiguous.retain(|it| mentioned.contains(&it.tensor));
    for (tensor, inferred) in &all_inferred {
        let domains = build_domains(program, *tensor, inferred, &facts, &mut next);
        program.tensors[*tensor].domains = domains;
    }
    extents::settle(program, &facts, &all_inferred, &mut next);
    ambiguous
}

/// Returns whether the text needs a `Domains:` section even for tensors with plain domains: without it, the
/// reader would infer other domains for such a tensor or report an ambiguity.
pub fn needs_domains_section(program: &Program) -> bool {
    let mut facts = DomainFacts::default();
    facts.collect(program, &[]);
    let mut all_inferred = facts.inferred_domains(program);
    let mentioned: HashSet<TensorId> = tensors_in_text_order(program).into_iter().collect();
    all_inferred.retain(|(tensor, _)| mentioned.contains(tensor));
    let is_ambiguous = !ambiguous::ambiguous_tensors(program, &facts, &all_inferred).is_empty();
    is_ambiguous
        || all_inferred.into_iter().any(|(tensor, inferred)| {
            let it = &program.tensors[tensor];
            let plain = program.has_plain_domains(tensor);
            // A tensor with other domains gets a line in the section; for a plain tensor, the inferred
            // domains must be plain too.
            plain
                && (inferred != InferredDomains::default()
                    || facts.logical_order(program, tensor, &inferred) != it.loop_domain)
        })
}

/// Facts about tensors that the statements of a program imply.
#[derive(Default)]
struct DomainFacts {
    /// Inputs and outputs of the header; these are not split by stream in memory.
    container_io: HashSet<TensorId>,
    ranks: RankFacts,
    /// Results of ShardByStream, with its operand.
    shard_sources: HashMap<TensorId, TensorId>,
    /// Operands of ShardByStream, HirAliasSelect and select.
    partitioned: HashSet<TensorId>,
    /// Tensors that a CollectivePermute writes, those that are computed from them, and the tensors that these are chunks of.
    permuted: HashSet<TensorId>,
    /// Tensors whose first definition is inside a loop.
    first_defined_in_loop: HashSet<TensorId>,
    defined: HashSet<TensorId>,
    /// The `size=` of long-form ALLOCATEs.
    allocated_sizes: HashMap<TensorId, ExprId>,
    /// Logical axes that statements name with `axis =`.
    named_axes: HashMap<TensorId, Vec<AxisId>>,
    /// Tensors that a HostUnit writes with a permutation. Their axes are numbered in the order of the
    /// operand, which says nothing about device axes.
    permuted_by_unit: HashSet<TensorId>,
    /// Results of permutations.
    permutations: HashSet<TensorId>,
    /// Tensors whose domains are known.
    stated: HashSet<TensorId>,
    /// The HostUnits whose domains are inferred, too: those that a log defines without domains.
    units: HashSet<UnitId>,
}

impl DomainFacts {
    fn collect(&mut self, program: &Program, units: &[UnitId]) {
        self.units.extend(units);
        let operands = program.inputs.iter().chain(&program.outputs);
        self.container_io.extend(operands.filter_map(|operand| operand.tensor()));
        let bodies = units.iter().filter_map(|unit| program.units[*unit].body);
        program.body.into_iter().chain(bodies).for_each(|body| self.block(program, body, false));
        let shards = self.shard_sources.iter().filter(|(out, _)| self.permuted.contains(*out));
        let sources: Vec<TensorId> = shards.map(|(_, source)| *source).collect();
        self.permuted.extend(sources);
    }

    fn block(&mut self, program: &Program, block: BlockId, in_loop: bool) {
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(program, it, in_loop),
                Stmt::Let(..) => (),
                Stmt::For(it) => self.block(program, it.body, true),
                Stmt::If(it) => {
                    self.block(program, it.then_block, in_loop);
                    it.else_block.iter().for_each(|other| self.block(program, *other, in_loop));
                }
            }
        }
    }

    fn op(&mut self, program: &Program, stmt: &OpStmt, in_loop: bool) {
        let row = stmt.op.def();
        self.unit(program, stmt);
        for out in stmt.outs.iter().filter_map(|out| out.tensor()) {
            if self.defined.insert(out) && in_loop {
                self.first_defined_in_loop.insert(out);
            }
        }
        let tensors: Vec<TensorId> = stmt.args.iter().filter_map(|arg| arg.tensor()).collect();
        let (out, first) = (stmt.out_tensor(), tensors.first().copied());
        if row.class == OpClass::View || stmt.op == Op::Select {
            self.partitioned.extend(first);
        }
        if let (Some(first), Some(axis)) = (first, stmt.get(attr::AXIS)) {
            self.named_axes.entry(first).or_default().push(axis);
        }
        if let (Some(out), Some(size)) = (out, stmt.get(attr::SIZE)) {
            self.allocated_sizes.insert(out, size);
        }
        if stmt.op == Op::CollectivePermute {
            self.permuted.extend(stmt.get(attr::OUTPUT));
            if let (Some(input), Some(output)) = (stmt.get(attr::INPUT), stmt.get(attr::OUTPUT)) {
                self.ranks.equal(input, output);
            }
        }
        if let (Some(out), Some(shape)) = (out, stmt.generated_shape()) {
            self.ranks.known.push((out, shape.len()));
        }
        let (Some(out), Some(first)) = (out, first) else { return };
        if stmt.computes() && tensors.iter().any(|it| self.permuted.contains(it)) {
            self.permuted.insert(out);
        }
        if let Some(flags) = stmt.get(attr::FLAGS) {
            let rest = flags.iter().filter(|it| !**it).count();
            let (wide, narrow) =
                if row.type_rule == TypeRule::Broadcast { (out, first) } else { (first, out) };
            self.ranks.known.extend([(wide, flags.len()), (narrow, rest)]);
        }
        if row.type_rule == TypeRule::Permute {
            self.permutations.insert(out);
        }
        if row.type_rule == TypeRule::Shard {
            self.shard_sources.insert(out, first);
        }
        stmt.rule().add_ranks(program, &tensors, out, &mut self.ranks);
    }

    fn unit(&mut self, program: &Program, stmt: &OpStmt) {
        let (Some(unit), Some(outer)) = (stmt.get(attr::UNIT), stmt.get(attr::OUTPUTS)) else {
            return;
        };
        let is_inferred = self.units.contains(&unit);
        let unit = &program.units[unit];
        let Some(body) = unit.body else { return };
        let inputs = Program::tensors_of(&unit.inputs)
            .zip(Program::tensors_of(stmt.get(attr::INPUTS).unwrap_or_default()));
        let outputs = Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outer));
        inputs.chain(outputs).filter(|_| is_inferred).for_each(|(a, b)| self.ranks.equal(a, b));
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outer)) {
            let permutes =
                |it: &OpStmt| it.rule().axes_state() == AxesState::Order && it.out_tensor() == Some(inner);
            if program.block(body).iter().filter_map(|it| program.op(*it)).any(permutes) {
                self.permuted_by_unit.insert(outer);
            }
        }
    }

    /// Returns the inferred domains of each tensor whose domains are not known.
    fn inferred_domains(&self, program: &Program) -> Vec<(TensorId, InferredDomains)> {
        let mut all_inferred: Vec<InferredDomains> = program
            .tensors
            .ids()
            .map(|id| InferredDomains { splits: self.proven_splits(program, id), is_stream_split: false })
            .collect();
        let rank = |all_inferred: &[InferredDomains], id: TensorId, count: RankCount| {
            if self.stated.contains(&id) {
                let logical = program.tensors[id].domains.logical.iter();
                let kept = logical.filter(|it| {
                    count == RankCount::WithReductions || program.axes[**it].kind != AxisKind::Reduction
                });
                return kept.count() as i32;
            }
            let loops = &program.tensors[id].loop_domain;
            let counts = |at: usize| {
                count == RankCount::WithReductions || program.axes[loops[at]].kind != AxisKind::Reduction
            };
            let splits =
                all_inferred[id.index()].splits.iter().filter(|(_, inner, _)| counts(*inner)).count();
            (0..loops.len()).filter(|at| counts(*at)).count() as i32 - splits as i32
        };
        // Each round resolves at least one tensor, or is the last. If no axis is distributed, there is
        // nothing to infer.
        let mut changed = program.axes.iter().any(|(_, axis)| is_spread(axis));
        while changed {
            changed = false;
            let mut want =
                |all_inferred: &mut Vec<InferredDomains>, id: TensorId, wanted: i32, count: RankCount| {
                    if self.stated.contains(&id) {
                        return;
                    }
                    let surplus = rank(all_inferred, id, count) - wanted;
                    let candidates = split_candidates(program, id, &all_inferred[id.index()].splits);
                    if surplus > 0 && candidates.len() as i32 == surplus {
                        all_inferred[id.index()].splits.extend(candidates);
                        changed = true;
                    }
                };
            for (id, wanted) in &self.ranks.known {
                want(&mut all_inferred, *id, *wanted as i32, RankCount::WithoutReductions);
            }
            for (a, b, more, count) in &self.ranks.equations {
                let (at_a, at_b) =
                    (rank(&all_inferred, *a, RankCount::WithoutReductions), rank(&all_inferred, *b, *count));
                want(&mut all_inferred, *a, at_b - more, RankCount::WithoutReductions);
                want(&mut all_inferred, *b, at_a + more, *count);
            }
            for (a, b, out, more) in &self.ranks.products {
                let of = |all_inferred: &[InferredDomains], tensor: &TensorId| {
                    rank(all_inferred, *tensor, RankCount::WithoutReductions)
                };
                let [at_a, at_b, at_out] = [a, b, out].map(|it| of(&all_inferred, it));
                want(&mut all_inferred, *out, at_a.max(at_b) + more, RankCount::WithoutReductions);
                // An operand has at most the axes of the result, unless one of them is a vector.
                let are_matrices = at_a.min(at_b).min(at_out - more) >= 2;
                for operand in [a, b].into_iter().filter(|_| are_matrices) {
                    want(&mut all_inferred, *operand, at_out - more, RankCount::WithoutReductions);
                }
            }
        }
        let is_inferred = |it: &Tensor| it.unit.is_none_or(|unit| self.units.contains(&unit));
        let tensors = program.tensors.iter().filter(|(_, it)| is_inferred(it)).map(|(id, _)| id);
        tensors
            .filter(|id| !self.stated.contains(id))
            .map(|id| {
                let mut inferred = std::mem::take(&mut all_inferred[id.index()]);
                inferred.splits.sort();
                inferred.is_stream_split = self.is_stream_split(program, id, &inferred);
                (id, inferred)
            })
            .collect()
    }

    /// Returns the logical axes in order. The loop axis of its inner result represents a split axis.
    fn logical_order(&self, program: &Program, tensor: TensorId, inferred: &InferredDomains) -> Vec<AxisId> {
        let loops = &program.tensors[tensor].loop_domain;
        let outer = |at: usize| inferred.splits.iter().any(|split| split.0 == at);
        let split_inner = |at: usize| inferred.splits.iter().any(|split| split.1 == at);
        let spread = |at: usize| {
            matches!(program.axes[loops[at]].parallel, ParallelType::Device(_) | ParallelType::Stream)
        };
        if self.permuted_by_unit.contains(&tensor) {
            return (0..loops.len()).filter(|at| !outer(*at)).map(|at| loops[at]).collect();
        }
        // Serial axes keep their order. A parallel axis that is not a result of a split is inserted by its
        // number.
        let mut order: Vec<usize> = (0..loops.len()).filter(|at| !outer(*at) && !spread(*at)).collect();
        let mut moved: Vec<usize> = (0..loops.len()).filter(|at| !outer(*at) && spread(*at)).collect();
        moved.sort_by_key(|at| program.axes[loops[*at]].number);
        for at in moved {
            let number = program.axes[loops[at]].number;
            let before = |other: &usize| !split_inner(*other) && program.axes[loops[*other]].number > number;
            let place = order.iter().position(before).unwrap_or(order.len());
            order.insert(place, at);
        }
        order.into_iter().map(|at| loops[at]).collect()
    }

    fn is_stream_split(&self, program: &Program, tensor: TensorId, inferred: &InferredDomains) -> bool {
        let loops = &program.tensors[tensor].loop_domain;
        let stream = loops.iter().position(|id| program.axes[*id].parallel == ParallelType::Stream);
        let Some(stream) = stream else { return false };
        if self.container_io.contains(&tensor) {
            return false;
        }
        if self.shard_sources.contains_key(&tensor) {
            return true;
        }
        if let Some(size) = self.allocated_sizes.get(&tensor) {
            let split = inferred.splits.iter().find(|(outer, ..)| *outer == stream);
            let kept = |id: &&AxisId| program.axes[**id].kind != AxisKind::Reduction;
            let chunked =
                sorted_product(program, loops.iter().filter(kept).map(|id| program.axes[*id].extent));
            let size = sorted_product(program, std::iter::once(*size));
            // If the extents are constant, both interpretations give the same size; then the location of the
            // definition decides.
            if split.is_some() && chunked.1 != vec![] {
                return size == chunked;
            }
        }
        self.first_defined_in_loop.contains(&tensor) && !self.partitioned.contains(&tensor)
    }
}

/// Builds the domains that `inferred` describes. Creates the axes that were split, because the text does not
/// contain them.
fn build_domains(
    program: &mut Program,
    tensor: TensorId,
    inferred: &InferredDomains,
    facts: &DomainFacts,
    next: &mut u32,
) -> Domains {
    let loops = program.tensors[tensor].loop_domain.clone();
    let mut logical = facts.logical_order(program, tensor, inferred);
    let mut transforms = Vec::new();
    for (outer, inner, swizzled) in &inferred.splits {
        let (outer, inner) = (loops[*outer], loops[*inner]);
        let factor = program.axes[outer].extent;
        let extent = match ceil_div_operands(program, program.axes[inner].extent) {
            Some((whole, by)) if by == factor => whole,
            _ => {
                let extent = program.axes[inner].extent;
                match (program.constant(factor), program.constant(extent)) {
                    (Some(a), Some(b)) => program.intern_int(a.wrapping_mul(b)),
                    _ => program.intern_expr(Expr::Infix(InfixOp::Mul, factor, extent)),
                }
            }
        };
        let mut named = facts.named_axes.get(&tensor).into_iter().flatten().copied();
        let known = named.find(|id| program.axes[*id].extent == extent && !loops.contains(id));
        let fresh = |program: &mut Program, next: &mut u32, like: AxisId, parallel, extent| {
            let kind = program.axes[like].kind;
            *next += 1;
            program.axes.push(Axis::new(kind, parallel, *next - 1, extent))
        };
        let input = known.unwrap_or_else(|| fresh(program, next, inner, ParallelType::Serial, extent));
        let split_outer =
            if *swizzled { fresh(program, next, outer, ParallelType::Serial, factor) } else { outer };
        transforms.push(Transform::Split { input, factor, outer_split: true, outer: split_outer, inner });
        if *swizzled {
            transforms.push(Transform::Swizzle1D { input: split_outer, output: outer });
        }
        logical.iter_mut().filter(|it| **it == inner).for_each(|it| *it = input);
    }
    let allocation = inferred.is_stream_split.then_some(loops);
    Domains { logical, transforms, allocation }
}
