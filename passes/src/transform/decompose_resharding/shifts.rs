//! Shifts of a sharded axis: each device exchanges the rows at the border of its part with its neighbour. Of a shift by more rows
//! than a device has, it receives the rows from the one or two devices that have them.
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
//! The rows are sent where T0 is computed. A halo, as of a convolution, is two such shifts, and a ring of keys and values one for
//! each step. Rows from outside of the axis can be zeros (`pad`).

use grammar::{
    BlockId, DeviceDim, ExprId, If, InfixOp, Memory, Op, OpStmt, Operand, Program, Span, Stmt, StmtId,
    TensorId, attr, count_text,
};
use hir_ir::build::{self, IrBuilder, infix};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        row_shifts::{RowShift, RowSources},
        sharding::{Dim, Sharding},
    },
    pass::Remarks,
    rewrite::{
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
    let rows = RowSources::of(program, body);
    let mut moved = FxHashSet::default();
    // The statements that compute the results of the shifts.
    let mut defined: FxHashMap<TensorId, Option<StmtId>> = FxHashMap::default();
    // The last post behind each statement that computes a source; `None` for inputs.
    let mut posted: FxHashMap<Option<StmtId>, StmtId> = FxHashMap::default();
    for stmt in program.block(body).to_vec() {
        let Some((shift, stmts)) = Shift::of(program, &rows, stmt) else { continue };
        let (name, source) = (program.tensor_name(shift.out), program.tensor_name(shift.source));
        let count: i64 = shift.pieces(program).iter().filter(|it| it.distance != 0).map(|it| it.count).sum();
        let count = count_text(count.unsigned_abs() as usize, "row");
        let message = if shift.by.abs() <= shift.part {
            format!("neighbours exchange {count} of `{source}` for `{name}`")
        } else {
            format!("each device receives {count} of `{source}` for `{name}`")
        };
        remarks.note(program.stmt_span(stmt), message, "shifts a sharded axis");
        let (posts, rest) = shift.emit(program, fresh, stmt);
        defined.insert(shift.out, rest.last().copied());
        // The rows are sent as soon as there are any, so that what stands in between hides it.
        let source = defined.get(&shift.source).copied().unwrap_or_else(|| rows.definition(shift.source));
        let block = &mut program.blocks[body];
        if let Some(at) = block.iter().position(|it| *it == stmt) {
            block.splice(at..=at, rest);
            let behind = |last: &StmtId| block[..at].iter().position(|it| it == last).map_or(at, |it| it + 1);
            let at = posted.get(&source).or(source.as_ref()).map_or(0, behind);
            posted.extend(posts.last().map(|last| (source, *last)));
            block.splice(at..at, posts);
        }
        moved.extend(stmts);
    }
    if !moved.is_empty() {
        remove_unread(program, body, &moved);
    }
    !moved.is_empty()
}

/// Rows of the part of each device that another device needs.
#[derive(Clone, Copy)]
struct Piece {
    /// What is added to the number of a device for that of the device whose rows it needs.
    distance: i64,
    /// The first of the rows, and their number.
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

impl Shift {
    /// Returns the shift that a statement computes, and the statements that move the rows.
    fn of(program: &Program, rows: &RowSources, stmt: StmtId) -> Option<(Self, Vec<StmtId>)> {
        let Stmt::Op(it) = &program.stmts[stmt] else { return None };
        let out = it.out_tensor()?;
        let sharding = Sharding::of(program, out)?;
        let dim = sharding.dims.iter().position(|dim| dim.devices().next().is_some())?;
        let [piece] = sharding.dims[dim].pieces[..] else { return None };
        let (device, devices) = (piece.device()?, program.constant(piece.count)?);
        let extent = program.constant(sharding.dims[dim].extent)?;
        if devices < 2 || extent % devices != 0 {
            return None;
        }
        let part = extent / devices;
        let is_alike = |tensor| {
            Sharding::of(program, tensor).is_some_and(|it| {
                it.mesh == sharding.mesh
                    && it.dims.len() == sharding.dims.len()
                    && it.dims.iter().zip(&sharding.dims).all(|(a, b)| Sharding::are_aligned(program, a, b))
            })
        };
        let RowShift { source, by, is_padded, stmts } = rows.shift(program, stmt, dim, &is_alike)?;
        Some((Self { out, source, sharding, dim, device, part, by, is_padded }, stmts))
    }

    /// Returns the rows that each device needs, in order: those at the end of one device's part, and those at the beginning of the
    /// next one's.
    fn pieces(&self, program: &Program) -> Vec<Piece> {
        let (distance, start) = (self.by.div_euclid(self.part), self.by.rem_euclid(self.part));
        let mut pieces = vec![Piece { distance, start, count: self.part - start }];
        if start > 0 {
            pieces.push(Piece { distance: distance + 1, start: 0, count: start });
        }
        if !self.is_padded {
            let devices = self.devices(program);
            pieces.iter_mut().for_each(|it| it.distance = it.distance.rem_euclid(devices));
        }
        pieces
    }

    fn devices(&self, program: &Program) -> i64 {
        program.tensors[self.out].mesh.extent(self.device) as i64
    }

    /// Returns the statements that post the exchange, and those that replace `stmt`.
    fn emit(&self, program: &mut Program, fresh: &mut IrBuilder, stmt: StmtId) -> (Vec<StmtId>, Vec<StmtId>) {
        let span = program.stmt_span(stmt);
        let mut posts = Vec::new();
        let (mut waits, mut zeros, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let parts = self.rows(program, fresh, self.part);
        posts.push(contiguity::unary_op(Op::Reshape, self.source, parts));
        let mut found = Vec::new();
        for piece in self.pieces(program) {
            if piece.distance == 0 {
                found.push(self.slice(program, fresh, parts, piece, &mut own));
                continue;
            }
            if self.is_padded && piece.distance.abs() >= self.devices(program) {
                let (outside, allocate) = self.zeros(program, fresh, piece.count);
                own.push(allocate);
                found.push(outside);
                continue;
            }
            let border = self.slice(program, fresh, parts, piece, &mut posts);
            let received = self.rows(program, fresh, piece.count);
            posts.push(build::allocate(program, received));
            let exchange = self.exchange(program, fresh, piece.distance, (border, received));
            waits.extend(exchange.iter().filter_map(|it| Some(build::wait(it.number?))));
            posts.extend(exchange);
            if self.is_padded {
                zeros.extend(self.zeros_at_end(program, fresh, piece, received, span));
            }
            found.push(received);
        }
        let mut shifted = found[0];
        if let [first, second] = found[..] {
            shifted = self.rows(program, fresh, self.part);
            let along = program.intern_int(self.dim as i64 + 1);
            let args = [first, second].map(Operand::Tensor).into_iter().chain([Operand::Scalar(along)]);
            let args = args.collect();
            own.push(OpStmt { outs: vec![Operand::Tensor(shifted)], args, ..build::op(Op::Cat) });
        }
        own.push(contiguity::unary_op(Op::Reshape, shifted, self.out));
        let mut add = |stmts: Vec<OpStmt>| -> Vec<StmtId> {
            stmts.into_iter().map(|it| build::add(program, it, span)).collect()
        };
        let (posts, waits, own) = (add(posts), add(waits), add(own));
        (posts, waits.into_iter().chain(zeros).chain(own).collect())
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

    /// Returns a new tensor of zeros with `count` rows of each device, and its ALLOCATE.
    fn zeros(&self, program: &mut Program, fresh: &mut IrBuilder, count: i64) -> (TensorId, OpStmt) {
        let zeros = self.rows(program, fresh, count);
        let mut allocate = build::allocate(program, zeros);
        allocate.set(attr::ZERO_INIT, true);
        (zeros, allocate)
    }

    /// Returns some of the rows of each device.
    fn slice(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        parts: TensorId,
        Piece { start, count, .. }: Piece,
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

    /// Returns the statements with which each device receives rows of the device at a distance, and sends its own ones the other way.
    fn exchange(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        distance: i64,
        (input, output): (TensorId, TensorId),
    ) -> Vec<OpStmt> {
        let mesh = self.sharding.mesh.clone();
        let me = coordinate(program, &mesh, self.device);
        let devices = mesh.extent(self.device) as i64;
        let count = program.intern_int(devices);
        let mut peer = |by: i64| {
            let by = program.intern_int(by.rem_euclid(devices));
            let sum = infix(program, InfixOp::Add, me, by);
            infix(program, InfixOp::Rem, sum, count)
        };
        let (recv, send) = (peer(distance), peer(-distance));
        let post = |team| build::collective_permute(fresh.work(), team, [send, recv], (input, output));
        teams_along(&mesh, &[self.device]).into_iter().map(post).collect()
    }

    /// Returns the statements that overwrite with zeros what the devices at the end of the axis have received.
    fn zeros_at_end(
        &self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        Piece { distance, count, .. }: Piece,
        received: TensorId,
        span: Span,
    ) -> [StmtId; 2] {
        let mesh = self.sharding.mesh.clone();
        let me = coordinate(program, &mesh, self.device);
        let (first, last) =
            (program.intern_int(-distance), program.intern_int(self.devices(program) - distance));
        let cond = match distance {
            ..0 => infix(program, InfixOp::Lt, me, first),
            _ => infix(program, InfixOp::Ge, me, last),
        };
        let (zeros, allocate) = self.zeros(program, fresh, count);
        let copy = build::add(program, contiguity::unary_op(Op::Set, zeros, received), span);
        let then_block = build::block(program, vec![copy]);
        let branch = If { kind: If::MANUAL.to_owned(), cond, then_block, else_block: None };
        [build::add(program, allocate, span), program.add_stmt(Stmt::If(branch), span)]
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
        used.extend(program.ops_at(stmt).flat_map(|(_, it)| it.mentions(program)));
    }
    kept.reverse();
    program.blocks[body] = kept;
}
