//! Finds the statements that can compute one part of an axis at a time, and those that need the whole axis.
//!
//! A statement is *chunked* if a range of its result along the axis depends on the same range of some
//! operands and on the whole of the others. For example, rows of a linear depend on the same rows of its
//! input and on the whole weight. Every other statement is *whole*: it moves elements along the axis,
//! combines them, or moves them between devices. A statement is whole, too, if its result is stored where another operand
//! of it is, so that one part would overwrite what another part reads, or if it has storage on some paths to the statement only. In a
//! program that sets streams, a statement that makes a view is whole. A
//! statement that makes a view through which others write is whole if the whole view is needed.

use std::collections::VecDeque;

use grammar::{
    Attr, DimMap, ExprId, Op, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId, attr,
    rules::PartOperands,
};
use hir_ir::streams::block_sets_stream;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel, may_alias_operands},
    bindings::{BindingAnalysis, analyze_bindings},
    dim_map,
    sharding::{Sharding, same_extent},
    written_views::written_views,
};

/// An axis, with the tensors and statements that are split along it.
pub(super) struct ChunkedAxis {
    /// The tensors that have the axis.
    pub(super) tensors: FxHashMap<TensorId, ChunkedTensor>,
    /// The top-level statements that are repeated for every part.
    pub(super) stmts: FxHashMap<StmtId, ChunkedStmt>,
}

/// A tensor that has the axis.
pub(super) struct ChunkedTensor {
    /// The dimension of the tensor that is the axis.
    pub(super) dim: usize,
    pub(super) sharding: Sharding,
}

/// How a statement computes one part of its result.
pub(super) struct ChunkedStmt {
    pub(super) out: TensorId,
    /// The operands in the order of `OpStmt::tensor_operands`, each with the dimension that is split; `None`:
    /// every part reads the whole operand.
    pub(super) operands: Vec<(TensorId, Option<usize>)>,
}

impl ChunkedAxis {
    /// Follows the axis from dimension `dim` of `tensor` through the top-level statements that can be
    /// chunked. A program input has the axis, but the axis is not followed through the input from one reader
    /// to another. A statement that needs a tensor along two dimensions is whole.
    pub(super) fn of(program: &Program, tensor: TensorId, dim: usize) -> Option<Self> {
        let mut this = Self { tensors: FxHashMap::default(), stmts: FxHashMap::default() };
        let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let mentions = stmts_by_tensor(program);
        let mut next = VecDeque::from([(tensor, dim)]);
        while let Some((tensor, dim)) = next.pop_front() {
            if this.tensors.contains_key(&tensor) {
                continue;
            }
            let is_first = this.tensors.is_empty();
            this.tensors.insert(tensor, ChunkedTensor { dim, sharding: Sharding::of(program, tensor)? });
            if inputs.contains(&tensor) && !is_first {
                continue;
            }
            for stmt in mentions.get(&tensor).into_iter().flatten() {
                let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
                for goal in mapped_result_dims(program, it, tensor, dim) {
                    let Ok(cut) = ChunkedStmt::of(program, it, goal) else { continue };
                    next.push_back((cut.out, goal));
                    next.extend(cut.operands.into_iter().filter_map(|(arg, dim)| Some((arg, dim?))));
                }
            }
        }
        for stmt in program.body() {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let Some(out) = it.out_tensor().and_then(|out| this.tensors.get(&out)) else { continue };
            let Ok(cut) = ChunkedStmt::of(program, it, out.dim) else { continue };
            let agrees = |arg: &TensorId, dim: usize| this.tensors.get(arg).is_some_and(|it| it.dim == dim);
            if cut.operands.iter().all(|(arg, dim)| dim.is_none_or(|dim| agrees(arg, dim))) {
                this.stmts.insert(*stmt, cut);
            }
        }
        let storage = StorageObstacles::of(program);
        let stays_whole = |stmt: StmtId, cut: &ChunkedStmt| {
            storage.has_uncertain_storage(stmt)
                || storage.is_between(stmt, cut)
                || storage.is_view_on_streams(program, stmt)
        };
        this.stmts.retain(|stmt, cut| !stays_whole(*stmt, cut));
        // A view that stays whole next to its parts stays a view. Its operand may then have to stay whole, too.
        let written = written_views(program, &storage.bindings);
        while !written.is_empty() {
            let (whole, before) = (this.whole_tensors(program), this.stmts.len());
            this.stmts.retain(|stmt, cut| !written.contains_key(stmt) || !whole.contains(&cut.out));
            if this.stmts.len() == before {
                break;
            }
        }
        Some(this)
    }

    /// Returns the tensors that exist as a whole besides their parts, because a statement outside the chunked
    /// ones mentions them or a chunked statement reads the whole tensor.
    pub(super) fn whole_tensors(&self, program: &Program) -> FxHashSet<TensorId> {
        let mut whole: FxHashSet<TensorId> =
            Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs)).collect();
        for (stmt, it) in program.ops() {
            match self.stmts.get(&stmt) {
                Some(cut) => {
                    let needed = cut.operands.iter().filter(|(_, dim)| dim.is_none());
                    whole.extend(needed.map(|(arg, _)| *arg));
                }
                None => whole.extend(it.mentions(program)),
            }
        }
        whole
    }
}

/// Finds statements whose storage does not allow them to be done in parts.
struct StorageObstacles {
    /// Which results have storage already.
    bindings: BindingAnalysis,
    sharing: AliasClasses,
    /// Whether the program sets streams.
    sets_stream: bool,
}

impl StorageObstacles {
    fn of(program: &Program) -> Self {
        let bindings = analyze_bindings(program);
        let body =
            program.body.map(|body| AliasClasses::of(program, body, &bindings, OpaqueCallModel::MayAlias));
        Self {
            sharing: body.unwrap_or_default(),
            bindings,
            sets_stream: program.body.is_some_and(|body| block_sets_stream(program, body)),
        }
    }

    /// Returns true if the statement makes a view in a program that sets streams. A view does not wait for the stream that
    /// writes its elements, but copies of its parts would have to.
    fn is_view_on_streams(&self, program: &Program, stmt: StmtId) -> bool {
        let is_view = |it| {
            may_alias_operands(it, self.bindings.already_bound.contains(&stmt), OpaqueCallModel::MayAlias)
        };
        self.sets_stream && matches!(&program.stmts[stmt], Stmt::Op(it) if is_view(it))
    }

    /// Returns true if the result has storage on some paths only: then neither an ALLOCATE before its parts would be right
    /// nor none.
    fn has_uncertain_storage(&self, stmt: StmtId) -> bool {
        self.bindings.maybe_bound.contains(&stmt) && !self.bindings.already_bound.contains(&stmt)
    }

    /// Returns true if a part of the result may overwrite what a later part reads: elements of an operand under another
    /// name of the same storage, or any element of it.
    fn is_between(&self, stmt: StmtId, cut: &ChunkedStmt) -> bool {
        let class = |tensor| self.sharing.alias_class(tensor);
        let meets = |arg: TensorId, dim: Option<usize>| {
            class(arg) == class(cut.out) && (arg != cut.out || dim.is_none())
        };
        self.bindings.maybe_bound.contains(&stmt) && cut.operands.iter().any(|(arg, dim)| meets(*arg, *dim))
    }
}

/// The reason why a statement cannot be chunked.
pub(super) struct Obstacle {
    /// A sentence about the statement, which calls the axis "it".
    pub(super) reason: String,
    /// The help text.
    pub(super) help: &'static str,
}

impl Obstacle {
    fn new(reason: String) -> Self {
        Self { reason, help: "split it into equal chunks with `count=…`, or split another axis" }
    }

    fn resharding(reason: String) -> Self {
        let help =
            "run `decompose-resharding` first, or split another axis: a copy between devices is not chunked";
        Self { reason, help }
    }
}

/// Returns a statement that uses dimension `dim` of `tensor` and cannot be chunked along it, and the reason: the first
/// one that could be chunked if it stored its result elsewhere, else the first one that cannot be chunked, else the first
/// view through which a statement writes the tensor.
pub(super) fn first_obstacle(program: &Program, tensor: TensorId, dim: usize) -> Option<(StmtId, Obstacle)> {
    // Storage is allocated as a whole in any case.
    let uses = |it: &OpStmt| {
        it.op.def().class != OpClass::Allocate
            && (it.out_tensor() == Some(tensor) || it.tensor_operands().contains(&tensor))
    };
    let stmts = || program.body().iter().filter(|it| program.op(**it).is_some_and(uses));
    let storage = StorageObstacles::of(program);
    let shared =
        stmts().find_map(|stmt| Some((*stmt, storage_obstacle(program, &storage, *stmt, (tensor, dim))?)));
    let first =
        shared.or_else(|| stmts().find_map(|stmt| Some((*stmt, obstacle_of(program, *stmt, tensor, dim)?))));
    first.or_else(|| {
        let written = written_views(program, &storage.bindings);
        stmts().find_map(|stmt| {
            let view = written.get(stmt).filter(|view| **view != tensor)?;
            let (name, of) = (program.tensor_name(*view), program.tensor_name(tensor));
            let reason = format!("`{name}` is a view of `{of}`, through which a statement writes `{of}`");
            Some((*stmt, Obstacle { reason, help: "split another axis" }))
        })
    })
}

/// Returns the reason why a statement that uses dimension `dim` of `tensor` cannot be chunked along it; `None` if it can.
fn obstacle_of(program: &Program, stmt: StmtId, tensor: TensorId, dim: usize) -> Option<Obstacle> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    if let Some(goal) = mapped_result_dims(program, it, tensor, dim).first() {
        return ChunkedStmt::of(program, it, *goal).err();
    }
    let name = it.op.name();
    let position = it.tensor_operands().iter().position(|arg| *arg == tensor)?;
    let maps = dim_map::dim_map(program, it, position);
    let reason = match maps.and_then(|maps| maps.get(dim).copied()) {
        Some(DimMap::Reduction) => format!("`{name}` reduces over it"),
        Some(
            DimMap::Parallel(_) | DimMap::InGroups { .. } | DimMap::Broadcast(_) | DimMap::RequiresWhole,
        )
        | None => {
            format!("`{name}` needs all of its elements")
        }
    };
    Some(Obstacle { reason, help: "split another axis" })
}

/// Returns the reason why a statement whose operands can be split stays whole: it stores its result where it reads, or may
/// not have to allocate it.
fn storage_obstacle(
    program: &Program,
    storage: &StorageObstacles,
    stmt: StmtId,
    (tensor, dim): (TensorId, usize),
) -> Option<Obstacle> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    let goal = *mapped_result_dims(program, it, tensor, dim).first()?;
    let cut = ChunkedStmt::of(program, it, goal).ok()?;
    let (name, out) = (it.op.name(), program.tensor_name(cut.out));
    if storage.has_uncertain_storage(stmt) {
        let reason = format!("a branch or loop before `{name}` may give `{out}` storage, or may not");
        return Some(Obstacle { reason, help: "allocate the result on every path" });
    }
    if storage.is_view_on_streams(program, stmt) {
        let reason = format!(
            "`{out}` is a view, whose parts would be copies, and `{name}` does not wait for the stream that writes the elements"
        );
        return Some(Obstacle {
            reason,
            help: "run `chunk` before the passes that assign streams, or allocate the result",
        });
    }
    let reason = format!(
        "`{name}` stores `{out}` where it reads an operand, and one part would overwrite what another reads"
    );
    storage
        .is_between(stmt, &cut)
        .then_some(Obstacle { reason, help: "store the result in a tensor of its own" })
}

impl ChunkedStmt {
    /// Returns how a statement computes a range of dimension `dim` of its result, or the reason why it
    /// cannot.
    fn of(program: &Program, it: &OpStmt, dim: usize) -> Result<Self, Obstacle> {
        let name = it.op.name();
        let tensor_name = |tensor| program.tensor_name(tensor);
        let refused = |reason: String| Err(Obstacle::new(reason));
        let [Operand::Tensor(out)] = it.outs[..] else {
            return refused(format!("`{name}` has several results"));
        };
        if !it.computes() {
            return refused(format!("`{name}` works on all of `{}`", tensor_name(out)));
        }
        let args = it.tensor_operands();
        if args.is_empty() {
            let out = tensor_name(out);
            return refused(format!(
                "`{name}` computes each element of `{out}` from its index in the whole tensor"
            ));
        }
        let moves = || Obstacle::new(format!("`{name}` moves elements along it"));
        let sharding = |tensor| {
            let reason =
                || format!("`{}` is sharded over the inner part of a split axis", tensor_name(tensor));
            Sharding::of(program, tensor).ok_or_else(|| Obstacle::new(reason()))
        };
        let goal = sharding(out)?;
        let to = goal.dims.get(dim).ok_or_else(moves)?;
        let mut operands = Vec::new();
        for (position, arg) in args.iter().enumerate() {
            let from = sharding(*arg)?;
            let maps = dim_map::dim_map(program, it, position).ok_or_else(moves)?;
            let at = maps.iter().position(|map| *map == DimMap::Parallel(dim));
            if let Some(from) = at.and_then(|at| from.dims.get(at)) {
                if !from.devices().eq(to.devices()) {
                    let reason = format!("`{name}` moves `{}` between devices along it", tensor_name(*arg));
                    return Err(Obstacle::resharding(reason));
                }
                if !same_extent(program, from.extent, to.extent) {
                    return Err(moves());
                }
            }
            operands.push((*arg, at));
        }
        if reads_whole_operands(it, &operands) { Ok(Self { out, operands }) } else { Err(moves()) }
    }

    /// Sets the extent of dimension `dim` in a copy of the statement to the extent of its part, for operators
    /// that have the extent as an attribute.
    pub(super) fn resize(it: &mut OpStmt, dim: usize, range: [ExprId; 3]) {
        for (key, attr) in &mut it.attrs {
            match attr {
                Attr::Ranges(ranges) if it.op == Op::Slice => {
                    ranges.get_mut(dim).into_iter().for_each(|it| *it = range);
                }
                Attr::Scalars(extents) if it.op == Op::Expand && *key == attr::EXTENTS => {
                    extents.get_mut(dim).into_iter().for_each(|it| *it = range[1]);
                }
                _ => (),
            }
        }
    }
}

/// Returns whether the operator computes a part of its result from the whole of each operand that lacks the
/// dimension.
fn reads_whole_operands(it: &OpStmt, operands: &[(TensorId, Option<usize>)]) -> bool {
    let is_cut = |(_, dim): &(TensorId, Option<usize>)| dim.is_some();
    match it.rule().part_operands(it) {
        PartOperands::Any => true,
        PartOperands::AtLeastOne => operands.iter().any(is_cut),
        PartOperands::All => operands.iter().all(is_cut),
        PartOperands::Impossible => false,
    }
}

/// Returns the dimensions of a statement's result that correspond to dimension `dim` of `tensor`.
fn mapped_result_dims(program: &Program, it: &OpStmt, tensor: TensorId, dim: usize) -> Vec<usize> {
    let mut goals = Vec::new();
    if it.out_tensor() == Some(tensor) {
        goals.push(dim);
    }
    let args = it.tensor_operands();
    for position in (0..args.len()).filter(|at| args[*at] == tensor) {
        let maps = dim_map::dim_map(program, it, position);
        if let Some(DimMap::Parallel(goal)) = maps.and_then(|maps| maps.get(dim).copied()) {
            goals.push(goal);
        }
    }
    goals
}

/// Returns the top-level statements that mention each tensor.
fn stmts_by_tensor(program: &Program) -> FxHashMap<TensorId, Vec<StmtId>> {
    let mut mentions: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        for tensor in it.tensor_operands().into_iter().chain(it.out_tensor()) {
            mentions.entry(tensor).or_default().push(*stmt);
        }
    }
    mentions
}
