//! Emits the communications of a loop: broadcasts and reductions of slices, and peer-to-peer transfers.
//!
//! In a ring over `d` devices with `offset-by-rank`, rank `r` works on the slice of `(r + s) % d` in
//! iteration `i`, where `s` is `i`, or `i + 1` if the rank's own slice comes last. An all-gather receives the
//! slice from this device, and sends its own shard to `(d + r - s) % d`, which works on slice `r`. A
//! reduce-scatter sends the slice to this device, and receives a partial sum of its own slice from
//! `(d + r - s) % d`. Without the offset, both peers are `i`, so that all pairs communicate. If the peer is
//! the rank itself, it copies.
//!
//! Sends and receives of NCCL are on the communicator of all ranks, which no rank may create without the others (E0705). So a ring of only
//! some ranks has the offset in any case, and permutes the slices on the communicators of its teams.

use grammar::{
    AxisKind, Backend, CommunicationType, DeviceDim, Domains, ExprId, If, InfixOp, Memory, Op, OpStmt,
    Operand, P2pProtocol, P2pType, ParallelType, Stmt, StmtId, TensorId, attr, words::CacheOp,
};
use hir_ir::build::{self, infix};

use super::{
    StreamParallel,
    body::LoopWriter,
    group::LoopStmt,
    options::{Allgather, ReduceScatter},
};
use crate::{
    analysis::sharding::{Dim, Sharding},
    rewrite::{
        collective::{Collective, is_whole_world},
        contiguity,
        mesh::{self, teams_along},
        sharded_tensors::allocate_per_stream,
    },
    transform::decompose_resharding::collective_red_op,
};

/// Emits the all-gather of the current slice.
pub(super) fn allgather(it: &mut LoopWriter<'_, '_>, member: &LoopStmt, device: DeviceDim) {
    let input = member.slicing.operands[0].tensor;
    let members = it.pass.program.tensors[member.slicing.out].mesh.clone();
    let output = it.result_slice(member);
    match it.pass.settings.allgather {
        Allgather::Broadcast | Allgather::Whole => {
            let root = it.iteration;
            for team in teams_along(&members, &[device]) {
                let (kind, team, root, red_op) = (CommunicationType::Broadcast, &team[..], Some(root), None);
                post(it, Collective { kind, team, root, red_op, input, output });
            }
            emit_waits(it);
        }
        Allgather::Permute => {
            let peers = RingPeers::of(it, member, device);
            // nvFuser writes the index first here.
            let program = &mut *it.pass.program;
            let me = mesh::coordinate(program, &members, device);
            let sum = infix(program, InfixOp::Add, it.iteration, me);
            let ahead = infix(program, InfixOp::Rem, sum, it.group.count);
            for team in teams_along(&members, &[device]) {
                permute(it, team, [peers.back, ahead], (input, output));
            }
            emit_waits(it);
        }
        Allgather::Ring => {
            let peers = RingPeers::of(it, member, device);
            let (to, from) = (peers.back, peers.ahead);
            emit_transfer(it, member, device, (input, to), (output, from), to);
        }
    }
}

/// Emits the reduction of the partial sums of the current slice to its device.
pub(super) fn reduce_scatter(it: &mut LoopWriter<'_, '_>, member: &LoopStmt, device: DeviceDim) {
    let out = member.slicing.out;
    let input = it.operand_slice(member.slicing.operands[0]);
    let Stmt::Op(sum) = it.pass.program.stmts[member.stmt].clone() else { return };
    let members = it.pass.program.tensors[out].mesh.clone();
    match it.pass.settings.reduce_scatter {
        ReduceScatter::Reduce | ReduceScatter::Whole => {
            it.allocate_before(out, member.stmt);
            let root = it.iteration;
            for team in teams_along(&members, &[device]) {
                let red_op = collective_red_op(it.pass.program, &sum);
                let (kind, team, root, output) = (CommunicationType::Reduce, &team[..], Some(root), out);
                post(it, Collective { kind, team, root, red_op, input, output });
            }
            emit_waits(it);
        }
        ReduceScatter::Ring => {
            let peers = RingPeers::of(it, member, device);
            let (to, from) = (peers.ahead, peers.back);
            let slots = receive_slots(it, input);
            let allocate = build::allocate(it.pass.program, slots);
            it.emit_before(allocate);
            let Some(axis) = it.pass.program.dimensions(slots).next() else { return };
            let slot = it.name_like(slots, Some(0));
            it.emit(build::select(slot, slots, axis, from));
            emit_transfer(it, member, device, (input, to), (slot, from), to);
            reduce_slots(it, &sum, slots, out);
        }
    }
}

/// The coordinates of the two devices that a rank communicates with.
struct RingPeers {
    /// `(r + s) % d`.
    ahead: ExprId,
    /// `(d + r - s) % d`.
    back: ExprId,
}

impl RingPeers {
    fn of(it: &mut LoopWriter<'_, '_>, member: &LoopStmt, device: DeviceDim) -> Self {
        let (step, count) = (it.step, it.group.count);
        if !member.slicing.rotated && !member.slicing.swizzled {
            return Self { ahead: step, back: step };
        }
        let program = &mut *it.pass.program;
        let members = program.tensors[member.slicing.out].mesh.clone();
        let me = mesh::coordinate(program, &members, device);
        let sum = infix(program, InfixOp::Add, me, step);
        let difference = infix(program, InfixOp::Sub, me, step);
        let positive = infix(program, InfixOp::Add, count, difference);
        Self {
            ahead: infix(program, InfixOp::Rem, sum, count),
            back: infix(program, InfixOp::Rem, positive, count),
        }
    }
}

/// Emits a send to one device and a receive from one device, or a copy if `own`, one of the two coordinates,
/// is the rank's own.
fn emit_transfer(
    it: &mut LoopWriter<'_, '_>,
    member: &LoopStmt,
    device: DeviceDim,
    (input, to): (TensorId, ExprId),
    (output, from): (TensorId, ExprId),
    own: ExprId,
) {
    let settings = it.pass.settings;
    let members = it.pass.program.tensors[member.slicing.out].mesh.clone();
    let is_whole = is_whole_world(&members.devices, it.pass.facts.world);
    // All ranks exchange handles, so a ring of only some of the ranks uses NCCL.
    let cuda = settings.cuda && is_whole;
    let program = &mut *it.pass.program;
    let me = mesh::coordinate(program, &members, device);
    let cond = infix(program, InfixOp::Eq, own, me);
    let (sender, receiver) =
        (mesh::rank_at(program, &members, device, from), mesh::rank_at(program, &members, device, to));
    let outer = std::mem::take(&mut it.body);
    let mut aliases = Vec::new();
    let is_alike = Sharding::of(it.pass.program, input) == Sharding::of(it.pass.program, output);
    let (source, target) = if is_alike {
        (input, output)
    } else {
        (it.unsharded(input, &mut aliases), it.unsharded(output, &mut aliases))
    };
    it.emit(OpStmt {
        attrs: vec![attr::CACHE_OP.with(CacheOp::Streaming)],
        ..contiguity::unary_op(Op::Set, source, target)
    });
    aliases.into_iter().for_each(|alias| it.emit(build::deallocate(alias)));
    let then = std::mem::take(&mut it.body);
    if !is_whole {
        for team in teams_along(&members, &[device]) {
            permute(it, team, [to, from], (input, output));
        }
        emit_waits(it);
        let other = std::mem::replace(&mut it.body, outer);
        let branch = branch(it, cond, then, other);
        it.body.push(branch);
        return;
    }
    let recv = p2p_op(it, cuda, P2pType::Recv, output, sender);
    let send = p2p_op(it, cuda, P2pType::Send, input, receiver);
    let works = [&recv, &send].map(|side| side.number.unwrap_or_default());
    let mut deferred = None;
    if cuda {
        let listed = vec![it.add(recv.clone()), it.add(send.clone())];
        it.emit(OpStmt { attrs: vec![attr::TRANSFERS.with(listed)], ..build::op(Op::ShareMemHandles) });
        if settings.put {
            [recv, send].into_iter().for_each(|side| it.emit(side))
        } else {
            [send, recv].into_iter().for_each(|side| it.emit(side))
        }
        if settings.deferred {
            deferred = Some(works[1])
        } else {
            it.emit(build::wait(works[1]))
        }
        it.emit(build::wait(works[0]));
    } else {
        it.emit(build::op(Op::StartCoalescing));
        it.emit(recv);
        it.emit(send);
        let number = it.pass.fresh.work();
        it.emit(OpStmt { number: Some(number), ..build::op(Op::EndCoalescing) });
        it.emit(build::wait(number));
    }
    let other = std::mem::replace(&mut it.body, outer);
    let branch = branch(it, cond, then, other);
    it.body.push(branch);
    if let Some(work) = deferred {
        let wait = it.add(build::wait(work));
        let branch = self::branch(it, cond, Vec::new(), vec![wait]);
        it.tail.push(branch);
    }
}

/// Emits a permutation of the buffers of a team: each member sends to the first of the peers, and receives from the second.
fn permute(
    it: &mut LoopWriter<'_, '_>,
    team: Vec<usize>,
    peers: [ExprId; 2],
    (input, output): (TensorId, TensorId),
) {
    let work = it.pass.fresh.work();
    it.emit(build::collective_permute(work, team, peers, (input, output)));
    it.waits.push(work);
}

fn branch(it: &mut LoopWriter<'_, '_>, cond: ExprId, then: Vec<StmtId>, other: Vec<StmtId>) -> StmtId {
    let program = &mut *it.pass.program;
    let (then, other) = (build::block(program, then), build::block(program, other));
    program.add_stmt(
        Stmt::If(If { kind: If::MANUAL.to_owned(), cond, then_block: then, else_block: Some(other) }),
        it.span,
    )
}

/// Returns one side of a transfer. `peer` is a rank of the world.
fn p2p_op(it: &mut LoopWriter<'_, '_>, cuda: bool, kind: P2pType, buffer: TensorId, peer: ExprId) -> OpStmt {
    let mut attrs = vec![
        attr::P2P_TYPE.with(kind),
        attr::BUFFER.with(buffer),
        attr::PEER.with(peer),
        attr::BACKEND.with(backend(cuda)),
    ];
    // The order of the two sides fits one protocol, so the statement states it where the program's option says
    // otherwise.
    let protocol = if it.pass.settings.put { P2pProtocol::Put } else { P2pProtocol::Get };
    let is_other = it.pass.program.p2p_protocol().is_some_and(|program| program != protocol);
    if cuda && (protocol == P2pProtocol::Put || is_other) {
        attrs.push(attr::PROTOCOL.with(protocol));
    }
    OpStmt { number: Some(it.pass.fresh.work()), attrs, ..build::op(Op::P2PCommunication) }
}

fn post(it: &mut LoopWriter<'_, '_>, collective: Collective<'_>) {
    let work = it.pass.fresh.work();
    let stmt = collective.stmt(work, backend(it.pass.settings.cuda), it.pass.facts.world);
    it.emit(stmt);
    it.waits.push(work);
}

fn backend(cuda: bool) -> Backend {
    if cuda { Backend::Cuda } else { Backend::Nccl }
}

/// Emits Waits for the pending communications.
fn emit_waits(it: &mut LoopWriter<'_, '_>) {
    for work in std::mem::take(&mut it.waits) {
        it.emit(build::wait(work));
    }
}

/// Returns a new tensor for the partial sums that the devices send: a dimension over the senders, then the
/// dimensions of `slice`, the partial sums that one device sends.
fn receive_slots(it: &mut LoopWriter<'_, '_>, slice: TensorId) -> TensorId {
    let count = it.group.count;
    let StreamParallel { program, fresh, .. } = &mut *it.pass;
    let Some(mut sharding) = Sharding::of(program, slice) else { return slice };
    sharding.dims.insert(0, Dim::whole(count));
    let slots = sharding.new_tensor(program, fresh, slice, Memory::Global);
    if program.is_split_by_stream(slice) {
        allocate_per_stream(program, slots);
    }
    slots
}

/// Emits the reduction of all received partial sums, after the loop. A slot holds partial sums of `out`; the
/// reduction reads the slots as shards of the dimensions of `out`, under another name of the same storage.
fn reduce_slots(it: &mut LoopWriter<'_, '_>, like: &OpStmt, slots: TensorId, out: TensorId) {
    let count = it.group.count;
    let StreamParallel { program, fresh, .. } = &mut *it.pass;
    let Some(sharding) = Sharding::of(program, out) else { return };
    let mut axes = contiguity::sub_axes(program, &sharding, false);
    axes.insert(0, contiguity::SubAxis { dim: 0, extent: count, parallel: ParallelType::Serial });
    let shards = contiguity::tensor(program, fresh, out, &axes);
    let alias = build::allocate_alias(program, shards, slots);
    let Some(mut sharding) = Sharding::of(program, shards) else { return };
    let slot = sharding.dims.remove(0);
    let sum = sharding.new_tensor(program, fresh, shards, Memory::Global);
    let (mut loops, mut domains) = (Vec::new(), Domains::default());
    Dim { kind: AxisKind::Reduction, ..slot }.append_axes(program, fresh, &mut loops, &mut domains);
    let tensor = &mut program.tensors[sum];
    tensor.loop_domain.splice(0..0, loops);
    tensor.domains.logical.splice(0..0, domains.logical);
    it.emit_after(alias);
    it.emit_after(OpStmt {
        outs: vec![Operand::Tensor(sum)],
        args: vec![Operand::Tensor(shards)],
        ..like.clone()
    });
    it.emit_after(contiguity::unary_op(Op::Reshape, sum, out));
}
