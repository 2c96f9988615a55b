//! coalesce-reductions: reduces several tensors over the same devices with one all-reduce.
//!
//! Before (two gradients, of which each of two devices has partial sums):
//! ```text
//! T4[rdeviceIdx.x10{2}rf, iS1{4}] = reduction( T2[ideviceIdx.x5{2}rf, iS6{4}], op = add )
//! T5[rdeviceIdx.x11{2}rf, iS2{8}] = reduction( T3[ideviceIdx.x7{2}rf, iS8{8}], op = add )
//! ```
//! After:
//! ```text
//! T6[ideviceIdx.x12{2}, iS13{12}] = cat( T2[ideviceIdx.x5{2}rf, iS6{4}], T3[ideviceIdx.x7{2}rf, iS8{8}], 1 )
//! T7[rdeviceIdx.x14{2}, iS15{12}] = reduction( T6[ideviceIdx.x12{2}, iS13{12}], op = add )
//! T4[iS1{4}] = slice( T7[rdeviceIdx.x14{2}, iS15{12}], { {0, 4, 1} } )
//! T5[iS2{8}] = slice( T7[rdeviceIdx.x14{2}, iS15{12}], { {4, 12, 1} } )
//! ```
//! A small all-reduce takes as long as its latency, however few bytes it has, so that one for all gradient norms, or for
//! all gradients of biases, takes the time of one of them. The pass takes reductions of the top level whose results are
//! whole on every device, up to `bytes` together: those with the same operator, element type and devices. The all-reduce
//! is where the last of them was, so that none joins it behind the first reader of one of their results. With a limit of
//! several MiB, `bytes` is the size of the buckets of gradients.

use std::sync::Arc;

use grammar::{
    AccessMode, DType, Diagnostic, DimMap, Memory, Mesh, Op, OpStmt, Operand, Program, RedOp, Stmt, StmtId,
    TensorId, TypeRule, attr,
};
use hir_ir::{
    build::{self, IrBuilder},
    streams::block_sets_stream,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        bindings::{BindingAnalysis, analyze_bindings},
        dim_map,
        name_uses::NameUses,
        sharding::{Dim, Sharding},
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::contiguity,
    transform::decompose_resharding::{
        collective_red_op, reduces_in_one_step, reduction_stmt, set_reduction_axes,
    },
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("coalesce-reductions", include_str!("coalesce_reductions.rs"), run)
    .for_conditions()
    .about("reduce several tensors over the same devices with one all-reduce")
    .with_options(&[OptionSpec::new("bytes", OptionKind::Count, Some("65536")).about(
        "largest size of an all-reduce that the pass makes, in bytes of each rank; several MiB make buckets \
         of gradients",
    )]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    // A reduction that moves to another place would move to another stream.
    if block_sets_stream(program, body) {
        return Ok(Change::Unchanged);
    }
    let most = arguments.count("bytes").map_or(i64::MAX, |it| i64::try_from(it).unwrap_or(i64::MAX));
    let facts = Facts { uses: NameUses::of(program, body), bindings: analyze_bindings(program) };
    let mut open: Vec<Bucket> = Vec::new();
    let mut full: Vec<Bucket> = Vec::new();
    for stmt in program.blocks[body].clone() {
        for at in (0..open.len()).rev() {
            if open[at].ends_before(program, stmt) {
                full.push(open.swap_remove(at));
            }
        }
        let Some((key, member)) = member(program, &facts, stmt).filter(|it| it.1.bytes <= most) else {
            continue;
        };
        let of_key = open.iter().position(|it| it.key == key);
        match of_key {
            Some(at) if open[at].bytes() + member.bytes <= most => open[at].add(member),
            at => {
                full.extend(at.map(|at| open.swap_remove(at)));
                let mut bucket = Bucket::new(key);
                bucket.add(member);
                open.push(bucket);
            }
        }
    }
    full.append(&mut open);
    full.retain(|it| it.members.len() > 1);
    let mut fresh = IrBuilder::of(program);
    let mut replaced: FxHashMap<StmtId, Vec<StmtId>> = FxHashMap::default();
    let is_changed = !full.is_empty();
    for bucket in full {
        let Some(last) = bucket.members.last().map(|it| it.stmt) else { continue };
        let message =
            format!("{} all-reduces are one, of {} bytes on each rank", bucket.members.len(), bucket.bytes());
        remarks.note(program.stmt_span(last), message, "the last of them");
        replaced.extend(bucket.members.iter().map(|it| (it.stmt, Vec::new())));
        replaced.insert(last, bucket.write(program, &mut fresh));
    }
    if is_changed {
        let old = std::mem::take(&mut program.blocks[body]);
        program.blocks[body] =
            old.into_iter().flat_map(|stmt| replaced.remove(&stmt).unwrap_or_else(|| vec![stmt])).collect();
    }
    Ok(Change::from_flag(is_changed))
}

/// What the pass knows about the names of the program.
struct Facts {
    uses: NameUses,
    bindings: BindingAnalysis,
}

/// Reductions that one all-reduce can compute.
struct Bucket {
    key: Key,
    members: Vec<Member>,
    results: FxHashSet<TensorId>,
    operands: FxHashSet<TensorId>,
}

/// What the reductions of a bucket have in common.
#[derive(PartialEq)]
struct Key {
    op: RedOp,
    dtype: Option<DType>,
    mesh: Arc<Mesh>,
    /// The device axes.
    devices: Vec<Dim>,
}

/// A reduction over device axes, whose result is whole on every device.
struct Member {
    stmt: StmtId,
    partial: TensorId,
    out: TensorId,
    from: Sharding,
    /// The dimensions of `partial` that are reduced.
    dims: Vec<usize>,
    /// The number of elements of the result.
    count: i64,
    bytes: i64,
}

/// Returns the reduction of a statement, if another place of the block may compute it, too.
fn member(program: &Program, facts: &Facts, stmt: StmtId) -> Option<(Key, Member)> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    if it.op.def().type_rule != TypeRule::Reduce || facts.bindings.maybe_bound.contains(&stmt) {
        return None;
    }
    let (op, out, partial) =
        (collective_red_op(program, it)?, it.out_tensor()?, *it.tensor_operands().first()?);
    // Elements that are written again would be others where the last reduction is.
    if [out, partial].iter().any(|it| facts.uses.writers(*it).count() > 1) {
        return None;
    }
    let (from, to) = (Sharding::of(program, partial)?, Sharding::of(program, out)?);
    let maps = dim_map::dim_map(program, it, 0)?;
    let dims: Vec<usize> = (0..maps.len()).filter(|at| maps[*at] == DimMap::Reduction).collect();
    let kept = from.without_dims(&dims);
    let is_whole = kept.dims.iter().chain(&to.dims).all(|dim| dim.pieces.is_empty());
    if !is_whole || from.mesh != to.mesh || !reduces_in_one_step(program, &from, &dims, &to) {
        return None;
    }
    let extents = kept.dims.iter().map(|dim| program.constant(dim.extent));
    let count = extents.into_iter().try_fold(1_i64, |count, extent| count.checked_mul(extent?))?;
    let dtype = program.tensors[partial].dtype;
    let bytes = count.checked_mul(i64::try_from(dtype?.size()).ok()?)?;
    // The order of the devices is that of a sum of the same elements.
    let devices = dims.iter().map(|dim| Dim { partial: false, ..from.dims[*dim].clone() }).collect();
    let key = Key { op, dtype, mesh: from.mesh.clone(), devices };
    (bytes > 0).then_some((key, Member { stmt, partial, out, from, dims, count, bytes }))
}

impl Bucket {
    fn new(key: Key) -> Self {
        Self { key, members: Vec::new(), results: FxHashSet::default(), operands: FxHashSet::default() }
    }

    fn add(&mut self, member: Member) {
        self.results.insert(member.out);
        self.operands.insert(member.partial);
        self.members.push(member);
    }

    fn bytes(&self) -> i64 {
        self.members.iter().map(|it| it.bytes).sum()
    }

    /// Returns whether a statement reads a result of the bucket, or changes what a name of an operand is bound to.
    fn ends_before(&self, program: &Program, stmt: StmtId) -> bool {
        program.ops_at(stmt).flat_map(|(_, it)| it.tensor_uses(program)).any(|(tensor, mode)| {
            self.results.contains(&tensor) || mode != AccessMode::Read && self.operands.contains(&tensor)
        })
    }

    /// Returns the statements that compute all results.
    fn write(&self, program: &mut Program, fresh: &mut IrBuilder) -> Vec<StmtId> {
        let Some(last) = self.members.last() else { return Vec::new() };
        let (span, mut stmts) = (program.stmt_span(last.stmt), Vec::new());
        let table = |program: &mut Program, count: i64| {
            let row = Dim::whole(program.intern_int(count));
            let dims = self.key.devices.iter().cloned().chain([row]).collect();
            Sharding { mesh: self.key.mesh.clone(), dims }
        };
        let of_devices: Vec<usize> = (0..self.key.devices.len()).collect();
        let rows: Vec<Operand> = self
            .members
            .iter()
            .map(|it| {
                let goal = table(program, it.count);
                Operand::Tensor(it.row(program, fresh, &goal, &mut stmts))
            })
            .collect();
        let all = table(program, self.members.iter().map(|it| it.count).sum());
        let joined = all.new_tensor(program, fresh, last.partial, Memory::Global);
        let along = program.intern_int(of_devices.len() as i64);
        let args = rows.into_iter().chain([Operand::Scalar(along)]).collect();
        stmts.push(OpStmt { outs: vec![Operand::Tensor(joined)], args, ..build::op(Op::Cat) });
        let sums = all.without_dims(&of_devices);
        let sum = sums.new_tensor(program, fresh, last.partial, Memory::Global);
        set_reduction_axes(program, fresh, sum, &all, &of_devices);
        if let Stmt::Op(like) = program.stmts[last.stmt].clone() {
            stmts.push(reduction_stmt(program, &like, joined, sum));
        }
        let mut start = 0;
        for it in &self.members {
            it.take(program, fresh, sum, start, &mut stmts);
            start += it.count;
        }
        stmts.into_iter().map(|stmt| build::add(program, stmt, span)).collect()
    }
}

impl Member {
    /// Returns the partial results with the devices first and the elements of a device in one dimension, as `goal` states.
    fn row(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        goal: &Sharding,
        stmts: &mut Vec<OpStmt>,
    ) -> TensorId {
        let mut now = self.partial;
        let others = (0..self.from.dims.len()).filter(|at| !self.dims.contains(at));
        let order: Vec<usize> = self.dims.iter().copied().chain(others).collect();
        if !order.is_sorted() {
            // The numbers of the axes state their order in the operand.
            let dims = order.iter().map(|at| self.from.dims[*at].clone()).collect();
            let sharding = Sharding { dims, ..self.from.clone() };
            let moved = sharding.new_tensor(program, fresh, now, Memory::Global);
            let axes: Vec<_> = program.dimensions(moved).collect();
            let numbers: Vec<u32> = axes.iter().map(|axis| program.axes[*axis].number).collect();
            for (axis, from) in axes.into_iter().zip(&order) {
                program.axes[axis].number = numbers[*from];
            }
            stmts.push(contiguity::permute_op(program, now, moved, &order));
            now = moved;
        }
        if self.from.dims.len() != goal.dims.len() {
            let row = goal.new_tensor(program, fresh, now, Memory::Global);
            stmts.push(contiguity::unary_op(Op::Reshape, now, row));
            now = row;
        }
        now
    }

    /// Appends the statements that make the result of the elements of `sum` from `start` on.
    fn take(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        sum: TensorId,
        start: i64,
        stmts: &mut Vec<OpStmt>,
    ) {
        let Some(to) = Sharding::of(program, self.out) else { return };
        // The result is no reduction any more.
        set_reduction_axes(program, fresh, self.out, &to, &[]);
        let slice = match to.dims.len() {
            1 => self.out,
            _ => {
                let row = Dim::whole(program.intern_int(self.count));
                let slice = Sharding { mesh: self.from.mesh.clone(), dims: vec![row] };
                slice.new_tensor(program, fresh, self.out, Memory::Global)
            }
        };
        let range = [start, start + self.count, 1].map(|it| program.intern_int(it));
        stmts.push(OpStmt {
            attrs: vec![attr::RANGES.with(vec![range])],
            ..contiguity::unary_op(Op::Slice, sum, slice)
        });
        if slice != self.out {
            stmts.push(contiguity::unary_op(Op::Reshape, slice, self.out));
        }
    }
}
