//! Shifts of a sharded axis: each device exchanges the rows at the border of its part with its neighbour.
//!
//! ```text
//! T1[iS2{7}] = slice( T0[ideviceIdx.x0{4}, iS1{2}], { {1, 8, 1} } )
//! T2[iS3{1}] = slice( T0[ideviceIdx.x0{4}, iS1{2}], { {0, 1, 1} } )
//! T3[ideviceIdx.x4{4}, iS5{2}] = cat( T1, T2, 0 )
//! ```
//! becomes:
//! ```text
//! T4[ideviceIdx.x6{4}, iS7{2}] = reshape( T0[ideviceIdx.x0{4}, iS1{2}] )
//! T5[ideviceIdx.x8{4}, iS9{1}] = slice( T4[ideviceIdx.x6{4}, iS7{2}], { {0, 4, 1} {0, 1, 1} } )
//! CollectivePermute 0 (team=(0 1 2 3), send_peer=…, recv_peer=…, input=T5, output=T6, backend=NCCL)
//! Wait(Communication 0)
//! T7[ideviceIdx.x10{4}, iS11{1}] = slice( T4[ideviceIdx.x6{4}, iS7{2}], { {0, 4, 1} {1, 2, 1} } )
//! T8[ideviceIdx.x12{4}, iS13{2}] = cat( T7, T6, 1 )
//! T3[ideviceIdx.x4{4}, iS5{2}] = reshape( T8 )
//! ```
//! A halo, as of a convolution, is two such shifts. Rows from outside of the axis can be zeros (`pad`).

use grammar::{
    attr, count_text, for_each_tensor_use,
    ir::{BlockId, DeviceDim, ExprId, If, InfixOp, Memory, OpStmt, Operand, Program, Stmt, StmtId, TensorId},
    ops::Op,
    span::Span,
    words::Backend,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        name_uses::write_counts,
        sharding::{Dim, Sharding},
    },
    pass::Remarks,
    rewrite::{
        builder::{self, IrBuilder, infix},
        contiguity,
        mesh::{coordinate, teams_along},
    },
};

/// Replaces the shifts of sharded axes by exchanges of rows. Returns whether there are any.
pub(super) fn exchange_rows(
    program: &mut Program,
    fresh: &mut IrBuilder,
    body: BlockId,
    remarks: &mut Remarks,
) -> bool {
    let mut rows = Rows::of(program, body);
    let mut changed = false;
    for stmt in program.block(body).to_vec() {
        let Some(shift) = rows.shift(program, stmt) else { continue };
        let (name, source) = (program.tensor_name(shift.out), program.tensor_name(shift.source));
        let rows = count_text(shift.by.unsigned_abs() as usize, "row");
        let message = format!("neighbours exchange {rows} of `{source}` for `{name}`");
        remarks.note(program.stmt_span(stmt), message, "shifts a sharded axis");
        let new = shift.emit(program, fresh, stmt);
        let stmts = &mut program.blocks[body];
        if let Some(at) = stmts.iter().position(|it| *it == stmt) {
            stmts.splice(at..=at, new);
        }
        changed = true;
    }
    if changed {
        remove_unread(program, body, &rows.visited);
    }
    changed
}

/// Where the rows of tensors come from.
struct Rows {
    /// The only statement that writes each tensor.
    definitions: FxHashMap<TensorId, (StmtId, OpStmt)>,
    /// Tensors that keep their elements.
    constant: FxHashSet<TensorId>,
    /// The statements that move the rows of shifts.
    visited: FxHashSet<StmtId>,
}

/// Adjacent rows of a tensor, or of zeros.
#[derive(Clone, Copy, PartialEq)]
struct Segment {
    of: Option<TensorId>,
    start: i64,
    count: i64,
}

/// A tensor whose row `i` is row `i + by` of another one.
struct Shift {
    out: TensorId,
    source: TensorId,
    sharding: Sharding,
    dim: usize,
    device: DeviceDim,
    /// The number of rows of each device.
    part: i64,
    by: i64,
    /// Whether rows from outside are zeros, and not those of the other end.
    is_padded: bool,
}

impl Rows {
    fn of(program: &Program, body: BlockId) -> Self {
        let counts = write_counts(program, &|_| true);
        let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
        let is_constant =
            |it: &TensorId| counts.get(it).copied().unwrap_or(0) == usize::from(!inputs.contains(it));
        let constant: FxHashSet<TensorId> = program.tensors.ids().filter(is_constant).collect();
        let mut definitions = FxHashMap::default();
        for stmt in program.block(body) {
            if let Stmt::Op(it) = &program.stmts[*stmt]
                && let Some(out) = it.out_tensor().filter(|out| constant.contains(out))
            {
                definitions.insert(out, (*stmt, it.clone()));
            }
        }
        Self { definitions, constant, visited: FxHashSet::default() }
    }

    /// Returns the shift that a statement computes.
    fn shift(&mut self, program: &Program, stmt: StmtId) -> Option<Shift> {
        let Stmt::Op(it) = &program.stmts[stmt] else { return None };
        let out = it.out_tensor().filter(|out| self.definitions.get(out).is_some_and(|it| it.0 == stmt))?;
        if !matches!(it.op, Op::Slice | Op::Cat | Op::Pad) {
            return None;
        }
        let sharding = Sharding::of(program, out)?;
        let dim = sharding.dims.iter().position(|dim| dim.devices().next().is_some())?;
        let [piece] = sharding.dims[dim].pieces[..] else { return None };
        let (device, devices) = (piece.device()?, program.constant(piece.count)?);
        let extent = program.constant(sharding.dims[dim].extent)?;
        if devices < 2 || extent % devices != 0 {
            return None;
        }
        let part = extent / devices;
        let mut visited = Vec::new();
        let segments = self.segments(program, &sharding, (out, dim), &mut visited)?;
        let (by, is_padded, source) = match segments[..] {
            [a, b] if a.of == b.of && b.start == 0 && a.start == b.count => (a.start, false, a.of?),
            [a, b] if b.of.is_none() && a.start == b.count => (a.start, true, a.of?),
            [a, b] if a.of.is_none() && b.start == 0 => (-a.count, true, b.of?),
            _ => return None,
        };
        // The shorter way around.
        let by = if !is_padded && by > part { by - extent } else { by };
        if by.abs() > part
            || program.constant(Sharding::of(program, source)?.dims[dim].extent) != Some(extent)
        {
            return None;
        }
        self.visited.extend(visited);
        Some(Shift { out, source, sharding, dim, device, part, by, is_padded })
    }

    /// Returns the rows of a tensor along a dimension as rows of tensors that are sharded as `goal`, and the statements that
    /// move them.
    fn segments(
        &self,
        program: &Program,
        goal: &Sharding,
        (tensor, dim): (TensorId, usize),
        visited: &mut Vec<StmtId>,
    ) -> Option<Vec<Segment>> {
        let (sharding, extents) = (Sharding::of(program, tensor)?, |tensor| extents(program, tensor));
        let all = extents(tensor)?;
        let is_alike = sharding.mesh == goal.mesh
            && sharding.dims.len() == goal.dims.len()
            && sharding.dims.iter().zip(&goal.dims).all(|(a, b)| Sharding::are_aligned(program, a, b));
        if !visited.is_empty() && is_alike && self.constant.contains(&tensor) {
            return Some(vec![Segment { of: Some(tensor), start: 0, count: *all.get(dim)? }]);
        }
        let (stmt, it) = self.definitions.get(&tensor)?;
        visited.push(*stmt);
        let args: Vec<TensorId> = Program::tensors_of(&it.args).collect();
        let others_stay = |arg: &TensorId| {
            extents(*arg).is_some_and(|theirs| {
                theirs.len() == all.len() && (0..all.len()).all(|at| at == dim || theirs[at] == all[at])
            })
        };
        if !args.iter().all(others_stay) {
            return None;
        }
        let mut found: Vec<Segment> = Vec::new();
        let zeros = |count| Segment { of: None, start: 0, count };
        let (from, to) = match it.op {
            Op::Cat => {
                let Some(Operand::Scalar(along)) = it.args.last() else { return None };
                let along = program.constant(*along)?;
                if along.rem_euclid(all.len() as i64) != dim as i64 {
                    return None;
                }
                for arg in args {
                    found.extend(self.segments(program, goal, (arg, dim), visited)?);
                }
                (0, all[dim])
            }
            Op::Slice => {
                found = self.segments(program, goal, (args[0], dim), visited)?;
                let range = it.get(attr::RANGES)?.get(dim)?.map(|it| program.constant(it));
                (range[0]?, if range[2]? == 1 { range[1]? } else { return None })
            }
            Op::Pad => {
                let widths = it.get(attr::WIDTHS)?;
                let width = |at: usize| program.constant(*widths.get(at)?);
                let (before, behind) = (width(2 * dim)?, width(2 * dim + 1)?);
                found.push(zeros(before.max(0)));
                found.extend(self.segments(program, goal, (args[0], dim), visited)?);
                found.push(zeros(behind.max(0)));
                let start = (-before).max(0);
                (start, start + all[dim])
            }
            Op::Set => {
                found = self.segments(program, goal, (args[0], dim), visited)?;
                (0, all[dim])
            }
            _ => return None,
        };
        Some(rows_between(found, from, to))
    }
}

/// Returns the rows of a list of segments from `from` to `to`, with adjacent ones joined.
fn rows_between(segments: Vec<Segment>, from: i64, to: i64) -> Vec<Segment> {
    let mut at = 0;
    let mut kept: Vec<Segment> = Vec::new();
    for it in segments {
        let (first, last) = (from.max(at), to.min(at + it.count));
        let it_starts = it.start + first - at;
        at += it.count;
        if first >= last {
            continue;
        }
        let new = Segment { start: if it.of.is_some() { it_starts } else { 0 }, count: last - first, ..it };
        match kept.last_mut() {
            Some(last) if last.of == new.of && (new.of.is_none() || last.start + last.count == new.start) => {
                last.count += new.count;
            }
            _ => kept.push(new),
        }
    }
    kept
}

fn extents(program: &Program, tensor: TensorId) -> Option<Vec<i64>> {
    program.dimensions(tensor).map(|axis| program.constant(program.axes[axis].extent)).collect()
}

impl Shift {
    /// Returns the statements that replace `stmt`.
    fn emit(&self, program: &mut Program, fresh: &mut IrBuilder, stmt: StmtId) -> Vec<StmtId> {
        let span = program.stmt_span(stmt);
        let (count, part) = (self.by.abs(), self.part);
        let (sent, kept) = if self.by > 0 { (0, count) } else { (part - count, 0) };
        let mut stmts = Vec::new();
        let parts = self.rows(program, fresh, part);
        stmts.push(contiguity::unary_op(Op::Reshape, self.source, parts));
        let border = self.slice(program, fresh, parts, (sent, count), &mut stmts);
        let received = self.rows(program, fresh, count);
        stmts.push(builder::allocate(program, received));
        self.exchange(program, fresh, (border, received), &mut stmts);
        let mut stmts: Vec<StmtId> = stmts.into_iter().map(|it| builder::add(program, it, span)).collect();
        if self.is_padded {
            stmts.extend(self.zeros_at_end(program, fresh, received, span));
        }
        let mut rest = Vec::new();
        let mut shifted = received;
        if count < part {
            let own = self.slice(program, fresh, parts, (kept, part - count), &mut rest);
            shifted = self.rows(program, fresh, part);
            let both = if self.by > 0 { [own, received] } else { [received, own] };
            let along = program.intern_int(self.dim as i64 + 1);
            let args = both.map(Operand::Tensor).into_iter().chain([Operand::Scalar(along)]).collect();
            rest.push(OpStmt { outs: vec![Operand::Tensor(shifted)], args, ..builder::op(Op::Cat) });
        }
        rest.push(contiguity::unary_op(Op::Reshape, shifted, self.out));
        stmts.extend(rest.into_iter().map(|it| builder::add(program, it, span)));
        stmts
    }

    /// Returns a new tensor with `count` rows of each device: a dimension over the devices, and one over their rows.
    fn rows(&self, program: &mut Program, fresh: &mut IrBuilder, count: i64) -> TensorId {
        let mut sharding = self.sharding.clone();
        let pieces = sharding.dims[self.dim].pieces.clone();
        let rows = Dim::whole(program.intern_int(count));
        let devices = Dim { pieces: pieces.clone(), ..Dim::whole(pieces[0].count) };
        sharding.dims.splice(self.dim..=self.dim, [devices, rows]);
        sharding.new_tensor(program, fresh, self.out, Memory::Global)
    }

    /// Returns some of the rows of each device.
    fn slice(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        parts: TensorId,
        (start, count): (i64, i64),
        stmts: &mut Vec<OpStmt>,
    ) -> TensorId {
        if count == self.part {
            return parts;
        }
        let slice = self.rows(program, fresh, count);
        let extents: Vec<ExprId> = program.dimensions(parts).map(|axis| program.axes[axis].extent).collect();
        let [zero, one] = [0, 1].map(|it| program.intern_int(it));
        let mut ranges: Vec<[ExprId; 3]> = extents.into_iter().map(|extent| [zero, extent, one]).collect();
        ranges[self.dim + 1] = [start, start + count, 1].map(|it| program.intern_int(it));
        stmts.push(OpStmt {
            attrs: vec![attr::RANGES.with(ranges)],
            ..contiguity::unary_op(Op::Slice, parts, slice)
        });
        slice
    }

    /// Appends the statements with which each device sends rows to one neighbour and receives those of the other.
    fn exchange(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        (input, output): (TensorId, TensorId),
        stmts: &mut Vec<OpStmt>,
    ) {
        let mesh = self.sharding.mesh.clone();
        let me = coordinate(program, &mesh, self.device);
        let devices = mesh.extent(self.device) as i64;
        let count = program.intern_int(devices);
        let mut peer = |by: i64| {
            let by = program.intern_int(by);
            let sum = infix(program, InfixOp::Add, me, by);
            infix(program, InfixOp::Rem, sum, count)
        };
        let (next, last) = (peer(1), peer(devices - 1));
        let (send, recv) = if self.by > 0 { (last, next) } else { (next, last) };
        for team in teams_along(&mesh, &[self.device]) {
            let work = fresh.work();
            stmts.push(OpStmt {
                number: Some(work),
                attrs: vec![
                    attr::TEAM.with(team),
                    attr::SEND_PEER.with(send),
                    attr::RECV_PEER.with(recv),
                    attr::INPUT.with(input),
                    attr::OUTPUT.with(output),
                    attr::BACKEND.with(Backend::Nccl),
                ],
                ..builder::op(Op::CollectivePermute)
            });
            stmts.push(builder::wait(work));
        }
    }

    /// Returns the statements that overwrite with zeros what the device at the end of the axis has received.
    fn zeros_at_end(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        received: TensorId,
        span: Span,
    ) -> [StmtId; 2] {
        let mesh = self.sharding.mesh.clone();
        let end = if self.by > 0 { mesh.extent(self.device) as i64 - 1 } else { 0 };
        let (me, end) = (coordinate(program, &mesh, self.device), program.intern_int(end));
        let cond = infix(program, InfixOp::Eq, me, end);
        let zeros = self.rows(program, fresh, self.by.abs());
        let mut allocate = builder::allocate(program, zeros);
        allocate.set(attr::ZERO_INIT, true);
        let copy = builder::add(program, contiguity::unary_op(Op::Set, zeros, received), span);
        let then_block = builder::block(program, vec![copy]);
        let branch = If { kind: If::MANUAL.to_owned(), cond, then_block, else_block: None };
        [builder::add(program, allocate, span), program.add_stmt(Stmt::If(branch), span)]
    }
}

/// Removes those of the statements whose results nothing reads any more.
fn remove_unread(program: &mut Program, body: BlockId, stmts: &FxHashSet<StmtId>) {
    let mut used: FxHashSet<TensorId> = Program::tensors_of(&program.outputs).collect();
    let all = program.block(body).to_vec();
    let mut kept: Vec<StmtId> = Vec::new();
    for stmt in all.into_iter().rev() {
        let unread = |it: &OpStmt| it.out_tensor().is_some_and(|out| !used.contains(&out));
        if stmts.contains(&stmt) && matches!(&program.stmts[stmt], Stmt::Op(it) if unread(it)) {
            continue;
        }
        kept.push(stmt);
        let block = builder::block(program, vec![stmt]);
        program.walk(block, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                for_each_tensor_use(program, it, &mut |tensor, _| _ = used.insert(tensor));
            }
        });
    }
    kept.reverse();
    program.blocks[body] = kept;
}
