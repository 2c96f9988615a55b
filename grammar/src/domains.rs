//! What a dump tells about logical and allocation domains, although it prints loop domains only.
//!
//! nvFuser numbers iteration domains in order of creation: a tensor's logical axes first and next to each other, then,
//! for every split, the outer and the inner result. A split for devices or streams is an outer split whose outer result
//! is moved to the front, and the inner results stay in logical order. The evidence, strongest first:
//!
//! 1. an extent `ceilDiv(x, d)` numbered right after a parallel axis of extent `d`: a split of an axis of extent `x`;
//! 2. in a tensor that has such a split, every later number is a split result too;
//! 3. serial axes out of numeric order, or a gap in the numbers: those after it are split results;
//! 4. operators whose operands and results have equally many logical axes;
//! 5. a stream axis numbered right after a serial one, in what a CollectivePermute writes: the split's outer result was
//!    swizzled.
//!
//! A stream axis is whole in memory unless the tensor is one stream's chunk: what ShardByStream returns, what an
//! ALLOCATE's `size=` says is smaller, what is defined inside a loop and never taken apart.
//!
//! Invariant: `infer` is a function of the printed program alone, so that `differ_from_text` can say whether the text needs
//! a `Domains:` section to be read back as it is.

mod ambiguous;

pub(crate) use ambiguous::AmbiguousTensor;

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use crate::{
    arena::Id,
    attr,
    ir::{
        Axis, AxisId, AxisKind, BlockId, Domains, Expr, ExprId, OpStmt, ParallelType, Program, Stmt, StmtId,
        TensorId, Transform,
    },
    numbering::free_number,
    ops::{Op, OpClass, TypeRule},
    tensor_uses::tensors_in_text_order,
};

/// What the text says about one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
struct InferredDomains {
    /// Loop positions of outer and inner results of splits, and whether the outer one is swizzled.
    splits: Vec<(usize, usize, bool)>,
    /// Whether a rank holds one stream's slice at a time.
    is_stream_split: bool,
}

/// Sets every tensor's domains to what the text tells, and returns the tensors of which it leaves something open.
pub fn infer(program: &mut Program) -> Vec<AmbiguousTensor> {
    let evidence = DomainFacts::collect(program);
    let mut next = free_number(program.axes.iter().map(|(_, axis)| axis.number));
    let guesses = evidence.inferred_domains(program);
    let ambiguous = ambiguous::ambiguous_tensors(program, &evidence, &guesses);
    for (tensor, guess) in guesses {
        let domains = build_domains(program, tensor, &guess, &evidence, &mut next);
        program.tensors[tensor].domains = domains;
    }
    ambiguous
}

/// Whether the printed text alone would give some tensor other domains than it has.
pub fn needs_domains_section(program: &Program) -> bool {
    let evidence = DomainFacts::collect(program);
    let mut guesses = evidence.inferred_domains(program);
    let mentioned: HashSet<TensorId> = tensors_in_text_order(program).into_iter().collect();
    guesses.retain(|(tensor, _)| mentioned.contains(tensor));
    let is_ambiguous = !ambiguous::ambiguous_tensors(program, &evidence, &guesses).is_empty();
    is_ambiguous
        || guesses.into_iter().any(|(tensor, guess)| {
            let it = &program.tensors[tensor];
            let plain = program.has_plain_domains(tensor);
            // A tensor that is not plain gets its line; a plain one must not be guessed to be something else.
            plain
                && (guess != InferredDomains::default()
                    || evidence.logical_order(program, tensor, &guess) != it.loop_domain)
        })
}

/// Which axes of an operator's result correspond to its operand's dimensions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RankCount {
    /// Those in memory.
    WithoutReductions,
    /// Reductions too.
    WithReductions,
}

/// What the statements say about tensors.
#[derive(Default)]
struct DomainFacts {
    /// Header inputs and outputs: whole.
    container_io: HashSet<TensorId>,
    /// Pairs with equally many dimensions, the second having `i32` more, reductions counted as `Count` says.
    rank_equations: Vec<(TensorId, TensorId, i32, RankCount)>,
    /// Tensors of known logical rank.
    known_ranks: Vec<(TensorId, usize)>,
    /// Results of ShardByStream, with its operand.
    shard_sources: HashMap<TensorId, TensorId>,
    /// Tensors that are taken apart by ShardByStream, HirAliasSelect or select.
    partitioned: HashSet<TensorId>,
    /// What CollectivePermute writes, and what that is a chunk of.
    permuted: HashSet<TensorId>,
    /// Tensors whose first definition stands in a loop.
    first_defined_in_loop: HashSet<TensorId>,
    defined: HashSet<TensorId>,
    /// `size=` of long ALLOCATEs.
    allocated_sizes: HashMap<TensorId, ExprId>,
    /// Logical axes that statements name with `axis =`.
    named_axes: HashMap<TensorId, Vec<AxisId>>,
    /// What HostUnits write by a permutation: the order of numbers is the operand's, and says nothing about devices.
    permuted_by_unit: HashSet<TensorId>,
}

impl DomainFacts {
    fn collect(program: &Program) -> Self {
        let mut this = Self::default();
        let ports = program.inputs.iter().chain(&program.outputs);
        this.container_io.extend(ports.filter_map(|port| port.tensor()));
        if let Some(body) = program.body {
            this.block(program, body, false);
        }
        let shards = this.shard_sources.iter().filter(|(out, _)| this.permuted.contains(*out));
        let sources: Vec<TensorId> = shards.map(|(_, source)| *source).collect();
        this.permuted.extend(sources);
        this
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
                self.rank_equations.push((input, output, 0, RankCount::WithoutReductions));
            }
        }
        if let (Some(out), Some(shape)) = (out, stmt.generated_shape()) {
            self.known_ranks.push((out, shape.len()));
        }
        let (Some(out), Some(first)) = (out, first) else { return };
        match row.type_rule {
            TypeRule::Same | TypeRule::Cast | TypeRule::Slice | TypeRule::Permute => {
                self.rank_equations.push((first, out, 0, RankCount::WithoutReductions));
            }
            TypeRule::Reduce => self.rank_equations.push((first, out, 0, RankCount::WithReductions)),
            TypeRule::Pointwise => self
                .rank_equations
                .extend(tensors.iter().map(|it| (*it, out, 0, RankCount::WithoutReductions))),
            TypeRule::Shard => {
                self.shard_sources.insert(out, first);
                self.rank_equations.push((first, out, 0, RankCount::WithoutReductions));
            }
            TypeRule::Linear => {
                let partial = |axis: &&AxisId| {
                    let axis = &program.axes[**axis];
                    matches!(axis.parallel, ParallelType::Device(_)) && axis.suffix.contains("rf")
                };
                let extra = program.tensors[out].loop_domain.iter().filter(partial).count() as i32;
                let weight = tensors.get(1).copied();
                self.known_ranks.extend(weight.map(|it| (it, 2)));
                self.known_ranks.extend(tensors.get(2).map(|it| (*it, 1)));
                self.rank_equations.push((first, out, extra, RankCount::WithoutReductions));
            }
            TypeRule::Unchecked
            | TypeRule::Generate
            | TypeRule::Matmul
            | TypeRule::Broadcast
            | TypeRule::Squeeze
            | TypeRule::Reshape
            | TypeRule::Select
            | TypeRule::Communicate => (),
        }
    }

    fn unit(&mut self, program: &Program, stmt: &OpStmt) {
        let (Some(unit), Some(outer)) = (stmt.get(attr::UNIT), stmt.get(attr::OUTPUTS)) else {
            return;
        };
        let unit = &program.units[unit];
        let Some(body) = unit.body else { return };
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outer)) {
            let permutes = |stmt: &StmtId| match &program.stmts[*stmt] {
                Stmt::Op(it) => it.op.def().type_rule == TypeRule::Permute && it.out_tensor() == Some(inner),
                Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
            };
            if program.block(body).iter().any(permutes) {
                self.permuted_by_unit.insert(outer);
            }
        }
    }

    /// One guess for every tensor of the container.
    fn inferred_domains(&self, program: &Program) -> Vec<(TensorId, InferredDomains)> {
        let mut guesses: Vec<InferredDomains> = program
            .tensors
            .ids()
            .map(|id| InferredDomains { splits: self.proven_splits(program, id), is_stream_split: false })
            .collect();
        let rank = |guesses: &[InferredDomains], id: TensorId, count: RankCount| {
            let loops = &program.tensors[id].loop_domain;
            let counts = |at: usize| {
                count == RankCount::WithReductions || program.axes[loops[at]].kind != AxisKind::Reduction
            };
            let splits = guesses[id.index()].splits.iter().filter(|(_, inner, _)| counts(*inner)).count();
            (0..loops.len()).filter(|at| counts(*at)).count() as i32 - splits as i32
        };
        // Every round settles a tensor or is the last one; without anything spread there is nothing to settle.
        let mut changed = program.axes.iter().any(|(_, axis)| is_spread(axis));
        while changed {
            changed = false;
            let mut want =
                |guesses: &mut Vec<InferredDomains>, id: TensorId, wanted: i32, count: RankCount| {
                    let surplus = rank(guesses, id, count) - wanted;
                    let candidates = split_candidates(program, id, &guesses[id.index()].splits);
                    if surplus > 0 && candidates.len() as i32 == surplus {
                        guesses[id.index()].splits.extend(candidates);
                        changed = true;
                    }
                };
            for (id, wanted) in &self.known_ranks {
                want(&mut guesses, *id, *wanted as i32, RankCount::WithoutReductions);
            }
            for (a, b, more, count) in &self.rank_equations {
                let (at_a, at_b) =
                    (rank(&guesses, *a, RankCount::WithoutReductions), rank(&guesses, *b, *count));
                want(&mut guesses, *a, at_b - more, RankCount::WithoutReductions);
                want(&mut guesses, *b, at_a + more, *count);
            }
        }
        let container = program.tensors.iter().filter(|(_, it)| it.unit.is_none()).map(|(id, _)| id);
        container
            .map(|id| {
                let mut guess = std::mem::take(&mut guesses[id.index()]);
                guess.splits.sort();
                guess.is_stream_split = self.is_stream_split(program, id, &guess);
                (id, guess)
            })
            .collect()
    }

    /// Splits that the tensor's own text proves.
    fn proven_splits(&self, program: &Program, tensor: TensorId) -> Vec<(usize, usize, bool)> {
        // Only what is spread over devices or streams was split for it.
        if !program.tensors[tensor].loop_domain.iter().any(|id| is_spread(&program.axes[*id])) {
            return Vec::new();
        }
        let axes: Vec<&Axis> =
            program.tensors[tensor].loop_domain.iter().map(|id| &program.axes[*id]).collect();
        let pairs = split_candidates(program, tensor, &[]);
        let proven = |(outer, inner, _): &(usize, usize, bool)| {
            ceil_div_operands(program, axes[*inner].extent).is_some_and(|(_, by)| by == axes[*outer].extent)
        };
        let rf = |axis: &&Axis| axis.suffix.contains("rf");
        let mut plain: Vec<u32> = axes.iter().filter(|it| !rf(it)).map(|it| it.number).collect();
        let serial = axes.iter().filter(|it| it.parallel == ParallelType::Serial && !rf(it));
        let out_of_order = serial.clone().zip(serial.skip(1)).filter(|(a, b)| a.number > b.number);
        let mut first_result = out_of_order.map(|(a, _)| a.number - 1).min();
        plain.sort_unstable();
        let gap = plain.windows(2).find(|pair| pair[1] != pair[0] + 1).map(|pair| pair[1]);
        let sure = pairs.iter().filter(|it| proven(it)).map(|(outer, ..)| axes[*outer].number).min();
        first_result = [first_result, gap, sure].into_iter().flatten().min();
        let swizzled = self.permuted.contains(&tensor);
        let mut splits: Vec<_> = pairs
            .into_iter()
            .filter(|(outer, ..)| first_result.is_some_and(|it| axes[*outer].number >= it))
            .collect();
        if swizzled {
            let free = |it: &(usize, usize, bool)| splits.iter().all(|one| one.0 != it.0 && one.1 != it.1);
            let swizzle = swizzled_split(&axes).filter(free);
            splits.extend(swizzle);
        }
        splits
    }

    /// The logical axes in order, a split axis standing for its inner result's loop axis.
    fn logical_order(&self, program: &Program, tensor: TensorId, guess: &InferredDomains) -> Vec<AxisId> {
        let loops = &program.tensors[tensor].loop_domain;
        let outer = |at: usize| guess.splits.iter().any(|split| split.0 == at);
        let split_inner = |at: usize| guess.splits.iter().any(|split| split.1 == at);
        let spread = |at: usize| {
            matches!(program.axes[loops[at]].parallel, ParallelType::Device(_) | ParallelType::Stream)
        };
        if self.permuted_by_unit.contains(&tensor) {
            return (0..loops.len()).filter(|at| !outer(*at)).map(|at| loops[at]).collect();
        }
        // Serial axes keep their order; a parallel axis that is not a split result goes where its number belongs.
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

    fn is_stream_split(&self, program: &Program, tensor: TensorId, guess: &InferredDomains) -> bool {
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
            let split = guess.splits.iter().find(|(outer, ..)| *outer == stream);
            let kept = |id: &&AxisId| program.axes[**id].kind != AxisKind::Reduction;
            let chunked =
                sorted_product(program, loops.iter().filter(kept).map(|id| program.axes[*id].extent));
            let size = sorted_product(program, std::iter::once(*size));
            // With constant extents both readings have the same size; then the place of the definition decides.
            if split.is_some() && chunked.1 != vec![] {
                return size == chunked;
            }
        }
        self.first_defined_in_loop.contains(&tensor) && !self.partitioned.contains(&tensor)
    }
}

/// Whether an axis is spread over devices or streams.
fn is_spread(axis: &Axis) -> bool {
    matches!(axis.parallel, ParallelType::Device(_) | ParallelType::Stream)
}

/// Parallel axes followed, in number, by a serial one: what an outer split leaves. Those taken already are left out.
fn split_candidates(
    program: &Program,
    tensor: TensorId,
    taken: &[(usize, usize, bool)],
) -> Vec<(usize, usize, bool)> {
    let axes: Vec<&Axis> = program.tensors[tensor].loop_domain.iter().map(|id| &program.axes[*id]).collect();
    let mut pairs = Vec::new();
    for (outer, axis) in axes.iter().enumerate() {
        if !is_spread(axis) || axis.suffix.contains("rf") || taken.iter().any(|it| it.0 == outer) {
            continue;
        }
        let inner =
            axes.iter().position(|it| it.number == axis.number + 1 && it.parallel == ParallelType::Serial);
        // Where numbers are used twice, the first of two outer axes has the inner one.
        let free = |at: &usize| pairs.iter().chain(taken).all(|it| it.1 != *at);
        let inner = inner.filter(|at| free(at) && !axes[*at].suffix.contains("rf"));
        pairs.extend(inner.map(|inner| (outer, inner, false)));
    }
    pairs
}

/// The stream axis that a swizzle of a split's outer result left: its number follows the inner result's.
fn swizzled_split(axes: &[&Axis]) -> Option<(usize, usize, bool)> {
    let stream = axes.iter().position(|it| it.parallel == ParallelType::Stream)?;
    let inner = axes
        .iter()
        .position(|it| it.number + 1 == axes[stream].number && it.parallel == ParallelType::Serial)?;
    Some((stream, inner, true))
}

/// `x` and `d` of `ceilDiv(x, d)`.
fn ceil_div_operands(program: &Program, expr: ExprId) -> Option<(ExprId, ExprId)> {
    match &program.exprs[expr] {
        Expr::Call(name, args) if name == "ceilDiv" && args.len() == 2 => Some((args[0], args[1])),
        Expr::Call(..)
        | Expr::Int(_)
        | Expr::Bool(_)
        | Expr::Float(..)
        | Expr::Symbol(_)
        | Expr::Prefix(..)
        | Expr::Infix(..) => None,
    }
}

/// A product's constant and its other factors, sorted.
fn sorted_product(program: &Program, factors: impl Iterator<Item = ExprId>) -> (i64, Vec<ExprId>) {
    let mut stack: Vec<ExprId> = factors.collect();
    let (mut constant, mut others) = (1i64, Vec::new());
    while let Some(factor) = stack.pop() {
        match &program.exprs[factor] {
            Expr::Int(value) => constant = constant.wrapping_mul(*value),
            Expr::Infix("*", lhs, rhs) => stack.extend([*lhs, *rhs]),
            Expr::Infix(..)
            | Expr::Bool(_)
            | Expr::Float(..)
            | Expr::Symbol(_)
            | Expr::Prefix(..)
            | Expr::Call(..) => others.push(factor),
        }
    }
    others.sort();
    (constant, others)
}

/// The domains that a guess means; makes the axes that were split, which the text does not show.
fn build_domains(
    program: &mut Program,
    tensor: TensorId,
    guess: &InferredDomains,
    evidence: &DomainFacts,
    next: &mut u32,
) -> Domains {
    let loops = program.tensors[tensor].loop_domain.clone();
    let mut logical = evidence.logical_order(program, tensor, guess);
    let mut transforms = Vec::new();
    for (outer, inner, swizzled) in &guess.splits {
        let (outer, inner) = (loops[*outer], loops[*inner]);
        let factor = program.axes[outer].extent;
        let extent = match ceil_div_operands(program, program.axes[inner].extent) {
            Some((whole, by)) if by == factor => whole,
            _ => {
                let extent = program.axes[inner].extent;
                match (program.constant(factor), program.constant(extent)) {
                    (Some(a), Some(b)) => program.intern_int(a.wrapping_mul(b)),
                    _ => program.intern_expr(Expr::Infix("*", factor, extent)),
                }
            }
        };
        let mut named = evidence.named_axes.get(&tensor).into_iter().flatten().copied();
        let known = named.find(|id| program.axes[*id].extent == extent && !loops.contains(id));
        let fresh = |program: &mut Program, next: &mut u32, like: AxisId, parallel, extent| {
            let kind = program.axes[like].kind;
            *next += 1;
            program.axes.push(Axis {
                kind,
                parallel,
                number: *next - 1,
                start: None,
                stop: None,
                extent,
                expanded: None,
                is_ragged: false,
                suffix: "",
            })
        };
        let input = known.unwrap_or_else(|| fresh(program, next, inner, ParallelType::Serial, extent));
        let split_outer = match swizzled {
            true => fresh(program, next, outer, ParallelType::Serial, factor),
            false => outer,
        };
        transforms.push(Transform::Split { input, factor, outer_split: true, outer: split_outer, inner });
        if *swizzled {
            transforms.push(Transform::Swizzle1D { input: split_outer, output: outer });
        }
        logical.iter_mut().filter(|it| **it == inner).for_each(|it| *it = input);
    }
    let allocation = guess.is_stream_split.then_some(loops);
    Domains { logical, transforms, allocation }
}
