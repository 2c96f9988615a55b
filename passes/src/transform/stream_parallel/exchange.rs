//! Communications inside a loop: broadcasts and reductions of slices, and peer-to-peer transfers.
//!
//! A ring over `d` devices, rank `r` in iteration `i` (`offset-by-rank`): the slice at hand is that of `(r + i) % d`. An
//! all-gather receives it from there, and sends its own shard to `(d + r - i) % d`, which has `r` at hand; a
//! reduce-scatter sends the slice there, and receives a part of its own from `(d + r - i) % d`. Without the offset both
//! peers are `i`: all pairs meet. Where the peer is the rank itself, a copy does.

use grammar::{
    attr,
    ir::{
        AxisKind, DeviceDim, Domains, ExprId, If, Memory, OpStmt, Operand, Parallel, Stmt, StmtId, TensorId,
    },
    ops::Op,
    words::{Backend, CacheOp, CommunicationType, P2pProtocol, P2pType},
};

use super::{Allgather, Member, ReduceScatter, StreamParallel, body::Loop};
use crate::{
    analysis::sharding::{Dim, Sharding},
    rewrite::{
        collective::{Collective, is_everybody},
        create::{self, infix},
        mesh::{self, teams},
        pack,
    },
    transform::decompose_resharding::red_op,
};

/// Brings every device's shard to all: the slice at hand.
pub(super) fn allgather(it: &mut Loop<'_, '_>, member: &Member, device: DeviceDim) {
    let input = member.slicing.operands[0].tensor;
    let members = it.pass.program.tensors[member.slicing.out].mesh.clone();
    let output = it.result(member);
    match it.pass.settings.allgather {
        Allgather::Broadcast | Allgather::Whole => {
            let root = it.iteration;
            for team in teams(&members, device) {
                let (kind, team, root, red_op) = (CommunicationType::Broadcast, &team[..], Some(root), None);
                post(it, Collective { kind, team, root, red_op, input, output });
            }
            wait(it);
        }
        Allgather::Permute => {
            let peers = Peers::of(it, member, device);
            // nvFuser writes the index first here.
            let program = &mut *it.pass.program;
            let me = mesh::coordinate(program, &members, device);
            let sum = infix(program, "+", it.iteration, me);
            let ahead = infix(program, "%", sum, it.group.count);
            for team in teams(&members, device) {
                let work = it.pass.fresh.work();
                it.emit(OpStmt {
                    number: Some(work),
                    attrs: vec![
                        attr::TEAM.with(team),
                        attr::SEND_PEER.with(peers.back),
                        attr::RECV_PEER.with(ahead),
                        attr::INPUT.with(input),
                        attr::OUTPUT.with(output),
                        attr::BACKEND.with(Backend::Nccl),
                    ],
                    ..create::op(Op::CollectivePermute)
                });
                it.waits.push(work);
            }
            wait(it);
        }
        Allgather::Ring => {
            let peers = Peers::of(it, member, device);
            let (to, from) = (peers.back, peers.ahead);
            transfer(it, member, device, (input, to), (output, from), to);
        }
    }
}

/// Brings the partial sums of the slice at hand to its device.
pub(super) fn reduce_scatter(it: &mut Loop<'_, '_>, member: &Member, device: DeviceDim) {
    let out = member.slicing.out;
    let input = it.operand(member.slicing.operands[0]);
    let Stmt::Op(sum) = it.pass.program.stmts[member.stmt].clone() else { return };
    let members = it.pass.program.tensors[out].mesh.clone();
    match it.pass.settings.reduce_scatter {
        ReduceScatter::Reduce | ReduceScatter::Whole => {
            it.allocate_before(out, member.stmt);
            let root = it.iteration;
            for team in teams(&members, device) {
                let red_op = red_op(it.pass.program, &sum);
                let (kind, team, root, output) = (CommunicationType::Reduce, &team[..], Some(root), out);
                post(it, Collective { kind, team, root, red_op, input, output });
            }
            wait(it);
        }
        ReduceScatter::Ring => {
            let peers = Peers::of(it, member, device);
            let (to, from) = (peers.ahead, peers.back);
            let slots = slots(it, out);
            let allocate = create::allocate(it.pass.program, slots);
            it.emit_before(allocate);
            let Some(axis) = it.pass.program.dimensions(slots).next() else { return };
            let slot = it.like(slots, Some(0));
            it.emit(create::select(slot, slots, axis, from));
            transfer(it, member, device, (input, to), (slot, from), to);
            sum_slots(it, &sum, slots, out);
        }
    }
}

/// Coordinates of the two devices that a rank talks to.
struct Peers {
    /// `(r + i) % d`.
    ahead: ExprId,
    /// `(d + r - i) % d`.
    back: ExprId,
}

impl Peers {
    fn of(it: &mut Loop<'_, '_>, member: &Member, device: DeviceDim) -> Self {
        let (iteration, count) = (it.iteration, it.group.count);
        if !member.slicing.rotated && !member.slicing.swizzled {
            return Self { ahead: iteration, back: iteration };
        }
        let program = &mut *it.pass.program;
        let members = program.tensors[member.slicing.out].mesh.clone();
        let me = mesh::coordinate(program, &members, device);
        let sum = infix(program, "+", me, iteration);
        let difference = infix(program, "-", me, iteration);
        let positive = infix(program, "+", count, difference);
        Self { ahead: infix(program, "%", sum, count), back: infix(program, "%", positive, count) }
    }
}

/// Sends a tensor to one device and receives another from one; copies where `own`, one of the two coordinates, is the
/// rank's.
fn transfer(
    it: &mut Loop<'_, '_>,
    member: &Member,
    device: DeviceDim,
    (input, to): (TensorId, ExprId),
    (output, from): (TensorId, ExprId),
    own: ExprId,
) {
    let settings = it.pass.settings;
    let members = it.pass.program.tensors[member.slicing.out].mesh.clone();
    // Handles are exchanged by all ranks: a ring of some of them is left to NCCL.
    let cuda = settings.cuda && is_everybody(&members.devices, it.pass.world);
    let program = &mut *it.pass.program;
    let me = mesh::coordinate(program, &members, device);
    let cond = infix(program, "==", own, me);
    let (sender, receiver) =
        (mesh::member(program, &members, device, from), mesh::member(program, &members, device, to));
    let outer = std::mem::take(&mut it.body);
    let mut aliases = Vec::new();
    let (source, target) = (it.bare(input, &mut aliases), it.bare(output, &mut aliases));
    it.emit(OpStmt {
        attrs: vec![attr::CACHE_OP.with(CacheOp::Streaming)],
        ..pack::copying(Op::Set, source, target)
    });
    aliases.into_iter().for_each(|alias| it.emit(create::deallocate(alias)));
    let then = std::mem::take(&mut it.body);
    let recv = side(it, cuda, P2pType::Recv, output, sender);
    let send = side(it, cuda, P2pType::Send, input, receiver);
    let works = [&recv, &send].map(|side| side.number.unwrap_or_default());
    let mut deferred = None;
    if cuda {
        let listed = vec![it.add(recv.clone()), it.add(send.clone())];
        it.emit(OpStmt { attrs: vec![attr::TRANSFERS.with(listed)], ..create::op(Op::ShareMemHandles) });
        match settings.put {
            true => [recv, send].into_iter().for_each(|side| it.emit(side)),
            false => [send, recv].into_iter().for_each(|side| it.emit(side)),
        }
        match settings.deferred {
            true => deferred = Some(works[1]),
            false => it.emit(create::wait(works[1])),
        }
        it.emit(create::wait(works[0]));
    } else {
        it.emit(create::op(Op::StartCoalescing));
        it.emit(recv);
        it.emit(send);
        let number = it.pass.fresh.work();
        it.emit(OpStmt { number: Some(number), ..create::op(Op::EndCoalescing) });
        it.emit(create::wait(number));
    }
    let other = std::mem::replace(&mut it.body, outer);
    let branch = branch(it, cond, then, other);
    it.body.push(branch);
    if let Some(work) = deferred {
        let wait = it.add(create::wait(work));
        let branch = self::branch(it, cond, Vec::new(), vec![wait]);
        it.tail.push(branch);
    }
}

fn branch(it: &mut Loop<'_, '_>, cond: ExprId, then: Vec<StmtId>, other: Vec<StmtId>) -> StmtId {
    let program = &mut *it.pass.program;
    let (then, other) = (create::block(program, then), create::block(program, other));
    program.stmt(Stmt::If(If { kind: "Manual".to_owned(), cond, then, other: Some(other) }), it.span)
}

/// One side of a transfer; `peer` is a rank of the world.
fn side(it: &mut Loop<'_, '_>, cuda: bool, kind: P2pType, buffer: TensorId, peer: ExprId) -> OpStmt {
    let mut attrs = vec![
        attr::P2P_TYPE.with(kind),
        attr::BUFFER.with(buffer),
        attr::PEER.with(peer),
        attr::BACKEND.with(backend(cuda)),
    ];
    if cuda && it.pass.settings.put {
        attrs.push(attr::PROTOCOL.with(P2pProtocol::Put));
    }
    OpStmt { number: Some(it.pass.fresh.work()), attrs, ..create::op(Op::P2PCommunication) }
}

fn post(it: &mut Loop<'_, '_>, collective: Collective<'_>) {
    let work = it.pass.fresh.work();
    let stmt = collective.stmt(work, backend(it.pass.settings.cuda), it.pass.world);
    it.emit(stmt);
    it.waits.push(work);
}

fn backend(cuda: bool) -> Backend {
    if cuda { Backend::Cuda } else { Backend::Nccl }
}

/// Waits for what is posted.
fn wait(it: &mut Loop<'_, '_>) {
    for work in std::mem::take(&mut it.waits) {
        it.emit(create::wait(work));
    }
}

/// A tensor for what each device sends: a dimension over senders, then the leaves of `out`.
fn slots(it: &mut Loop<'_, '_>, out: TensorId) -> TensorId {
    let count = it.group.count;
    let StreamParallel { program, fresh, .. } = &mut *it.pass;
    let Some(sharding) = Sharding::of(program, out) else { return out };
    let mut leaves = pack::leaves(program, &sharding, false);
    leaves.insert(0, pack::Leaf { dim: 0, extent: count, parallel: Parallel::Serial });
    pack::tensor(program, fresh, out, &leaves)
}

/// Combines what has arrived in all slots, behind the loop.
fn sum_slots(it: &mut Loop<'_, '_>, like: &OpStmt, slots: TensorId, out: TensorId) {
    let StreamParallel { program, fresh, .. } = &mut *it.pass;
    let Some(mut sharding) = Sharding::of(program, slots) else { return };
    let slot = sharding.dims.remove(0);
    let sum = sharding.tensor(program, fresh, slots, Memory::Global);
    let (mut loops, mut domains) = (Vec::new(), Domains::default());
    Dim { kind: AxisKind::Reduction, ..slot }.build(program, fresh, &mut loops, &mut domains);
    let tensor = &mut program.tensors[sum];
    tensor.loops.splice(0..0, loops);
    tensor.domains.logical.splice(0..0, domains.logical);
    it.emit_behind(OpStmt {
        outs: vec![Operand::Tensor(sum)],
        args: vec![Operand::Tensor(slots)],
        ..like.clone()
    });
    it.emit_behind(pack::copying(Op::Reshape, sum, out));
}
