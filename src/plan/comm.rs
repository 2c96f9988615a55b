//! Communications of one rank.
//!
//! NCCL and UCC work is posted to a communicator's queue. The CUDA backend has no queue: a transfer is flags and a copy on
//! the current stream (format survey, section 8), lowered here so that the simulator and the checker see the protocol:
//!
//! | | send | recv | wait for the send | wait for the recv |
//! |---|---|---|---|---|
//! | get | raise Ready | await Ready, copy from the peer, raise Done | await Done | – |
//! | put | await Ready, copy to the peer, raise Done | raise Ready | – | await Done |
//!
//! `team` has the CUDA backend's collectives.

use std::sync::Arc;

use grammar::{
    attr,
    codes::Code,
    ir::{OpStmt, Stmt, TensorId},
    ops::Op,
    words::CommunicationType,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Backend, Collective, CollectiveKind, Communicator, CommunicatorNo, Direction, Handle, InstKind, Meaning,
    Place, ReduceOp, Side, Slot, Transfer, View, WorkNo,
    build::{Builder, Result},
};

/// What `Wait` does for a number.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// Waits for queued work.
    Work(WorkNo),
    /// Waits for flags.
    Slots(Vec<Slot>),
}

/// What a rank's communications leave for `link`.
pub(super) struct Links {
    /// Sides of CUDA transfers, ascending by `channel`.
    pub(super) messages: Vec<MessageSide>,
    /// CUDA collectives in order: this rank's views.
    pub(super) collectives: Vec<TeamViews>,
}

/// What is known of a rank's communications so far.
#[derive(Default)]
pub(super) struct State {
    /// By backend and by where the shared team is.
    communicators: FxHashMap<(Backend, *const [usize]), CommunicatorNo>,
    /// Sides of CUDA transfers.
    messages: Vec<MessageSide>,
    /// Number of messages sent to and received from each rank.
    sent: FxHashMap<usize, u32>,
    received: FxHashMap<usize, u32>,
    /// Handles shared so far: number, peer and view.
    shared: FxHashSet<(u32, usize, ViewKey)>,
    exchanged: FxHashMap<(usize, usize), u32>,
    /// CUDA collectives in order: this rank's views.
    pub(super) collectives: Vec<TeamViews>,
    pub(super) met: FxHashSet<(u32, ViewKey)>,
}

/// A view as a key.
pub(super) type ViewKey = (u32, usize, Vec<usize>, Vec<usize>);

pub(super) fn key(view: &View) -> ViewKey {
    (view.buffer, view.offset, view.shape.clone(), view.strides.clone())
}

/// This rank's side of a CUDA transfer.
pub(super) struct MessageSide {
    pub(super) direction: Direction,
    pub(super) peer: usize,
    /// Which message between the two, in this direction.
    pub(super) index: u32,
    pub(super) view: View,
    /// The instruction whose peer view is still to be filled in.
    pub(super) copy: Option<u32>,
    pub(super) put: bool,
    /// An instruction that shows the place of the posting statement.
    pub(super) posted_at: u32,
}

impl MessageSide {
    /// Sender, receiver, which message between the two, and which side this is, `rank` being whose it is.
    pub(super) fn channel(&self, rank: usize) -> (usize, usize, u32, bool) {
        match self.direction {
            Direction::Send => (rank, self.peer, self.index, false),
            Direction::Recv => (self.peer, rank, self.index, true),
        }
    }
}

impl State {
    /// What is left of it when the rank is planned.
    pub(super) fn into_links(mut self, rank: usize) -> Links {
        self.messages.sort_unstable_by_key(|it| it.channel(rank));
        self.messages.shrink_to_fit();
        Links { messages: self.messages, collectives: self.collectives }
    }
}

impl Links {
    /// The bytes of the sides of transfers.
    pub(super) fn bytes(&self) -> usize {
        let dims: usize =
            self.messages.iter().map(|it| 2 * (16 + it.view.shape.len() * size_of::<usize>())).sum();
        self.messages.len() * size_of::<MessageSide>() + dims
    }

    /// The side of a transfer that a peer has the mirrored one of.
    pub(super) fn mirrored(&self, rank: usize, peer: usize, other: &MessageSide) -> Option<&MessageSide> {
        let (from, to, index, recv) = other.channel(peer);
        let at = self.messages.binary_search_by_key(&(from, to, index, !recv), |it| it.channel(rank));
        self.messages.get(at.ok()?)
    }
}

/// One rank's views in a CUDA collective.
pub(super) struct TeamViews {
    pub(super) kind: CollectiveKind,
    /// World ranks in team order.
    pub(super) team: Vec<usize>,
    /// An instruction that shows the place of the posting statement.
    pub(super) posted_at: usize,
    pub(super) input: Option<View>,
    pub(super) output: Option<View>,
    /// Instructions that read or write peers: index, which peer, whether the peer's output is meant.
    pub(super) open: Vec<(usize, usize, PeerView)>,
}

/// Which of a peer's views an open copy or combination needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerView {
    /// The peer's whole output.
    Output,
    /// Part `i` of `n` of the peer's output.
    OutputPart(usize, usize),
    /// The peer's input, as operand `i` of a Combine.
    Operand(usize),
}

impl Builder<'_> {
    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op {
            Op::P2PCommunication => self.p2p(stmt),
            Op::CollectivePermute => self.permute(stmt),
            Op::Communication => self.collective(stmt),
            _ => Err(self.unsupported(stmt.op, "no executor has it")),
        }
    }

    pub(super) fn number(&self, stmt: &OpStmt) -> u32 {
        stmt.number.unwrap_or(u32::MAX)
    }

    /// `team` is of `Teams`, so equal teams are at one place.
    fn communicator(&mut self, backend: Backend, team: Arc<[usize]>) -> CommunicatorNo {
        let next = self.plan.communicators.len() as CommunicatorNo;
        let number = *self.comm.communicators.entry((backend, Arc::as_ptr(&team))).or_insert(next);
        if number == next {
            self.plan.communicators.push(Communicator { backend, team });
        }
        number
    }

    fn work(&mut self, number: Option<u32>) -> WorkNo {
        let work = self.plan.works as WorkNo;
        self.plan.works += 1;
        if let Some(number) = number {
            self.posted.insert(number, Pending::Work(work));
        }
        work
    }

    // ---- waiting

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(number) = stmt.get(attr::WORK) else { return Ok(()) };
        // A rank outside the team, or in the other branch, posted nothing under this number: nothing to wait for.
        match self.posted.remove(&number) {
            Some(Pending::Work(work)) => self.emit(InstKind::Wait { work }),
            Some(Pending::Slots(slots)) => {
                slots.into_iter().for_each(|slot| self.emit(InstKind::Await { slot }))
            }
            None => (),
        }
        Ok(())
    }

    // ---- collectives

    fn team(&self, stmt: &OpStmt) -> Result<Arc<[usize]>> {
        let Some(team) = stmt.get(attr::TEAM) else { return Ok(Arc::default()) };
        if let Some(outside) = team.iter().find(|rank| **rank >= self.plan.world) {
            let message = format!("the team holds rank {outside} of a world of {}", self.plan.world);
            return Err(self.fault(Code::WorldTooSmall, message, "expected ranks of the world"));
        }
        Ok(self.teams.team(stmt, || team.to_vec()))
    }

    /// The view of an operand that this rank needs, given storage where the dialect prints no ALLOCATE.
    fn received(&mut self, tensor: Option<TensorId>, needed: bool) -> Result<Option<View>> {
        match tensor.filter(|it| needed && self.is_here(*it)) {
            Some(tensor) => self.target(tensor).map(Some),
            None => Ok(None),
        }
    }

    fn given(&self, tensor: Option<TensorId>, needed: bool) -> Result<Option<View>> {
        tensor.filter(|_| needed).map(|tensor| self.view(tensor)).transpose()
    }

    fn collective(&mut self, stmt: &OpStmt) -> Result<()> {
        let team = self.team(stmt)?;
        let Some(me) = team.iter().position(|rank| *rank == self.rank()) else { return Ok(()) };
        let root = match stmt.get(attr::ROOT) {
            Some(root) => self.index(root, team.len(), "the root")?,
            None => 0,
        };
        let op = stmt.get(attr::RED_OP).map_or(ReduceOp::Sum, ReduceOp::from);
        let lone = team.len() == 1;
        let (kind, gives, gets) = match stmt.get(attr::TYPE) {
            Some(CommunicationType::Broadcast) => (CollectiveKind::Broadcast { root }, me == root, true),
            Some(CommunicationType::Gather) => (CollectiveKind::Gather { root }, true, me == root),
            Some(CommunicationType::Allgather) => (CollectiveKind::Allgather, true, true),
            Some(CommunicationType::Scatter) => (CollectiveKind::Scatter { root }, me == root, true),
            Some(CommunicationType::Reduce) => (CollectiveKind::Reduce { root, op }, true, me == root),
            Some(CommunicationType::Allreduce) => (CollectiveKind::Allreduce { op }, true, true),
            Some(CommunicationType::ReduceScatter) => (CollectiveKind::ReduceScatter { op }, true, true),
            Some(CommunicationType::AllToAll) => (CollectiveKind::AllToAll, true, true),
            Some(CommunicationType::SendRecv) => {
                (CollectiveKind::SendRecv { root }, me == root, me != root || lone)
            }
            Some(CommunicationType::CollectivePermute) | None => {
                return Err(self.unsupported(stmt.op, "its type is not a collective"));
            }
        };
        let backend = self.backend(stmt)?;
        let algo = self.algorithm(stmt, backend)?;
        self.multicast(stmt, backend)?;
        let input = self.given(stmt.get(attr::INPUT), gives)?;
        let output = self.received(stmt.get(attr::OUTPUT), gets)?;
        match backend {
            Some(backend) => {
                let communicator = self.communicator(backend, team);
                let work = self.work(stmt.number);
                self.emit(InstKind::Collective(Box::new(Collective {
                    communicator,
                    kind,
                    algo,
                    input,
                    output,
                    work,
                })));
                Ok(())
            }
            None => self.team_copies(stmt, &team, me, kind, input, output),
        }
    }

    fn permute(&mut self, stmt: &OpStmt) -> Result<()> {
        let team = self.team(stmt)?;
        if !team.contains(&self.rank()) {
            return Ok(());
        }
        let peer = |this: &Self, key| match stmt.get(key) {
            Some(peer) => this.index(peer, team.len(), "the peer"),
            None => Ok(0),
        };
        let kind = CollectiveKind::Permute {
            send_peer: peer(self, attr::SEND_PEER)?,
            recv_peer: peer(self, attr::RECV_PEER)?,
        };
        let Some(backend) = self.backend(stmt)? else {
            return Err(self.unsupported(stmt.op, "the CUDA backend has no CollectivePermute"));
        };
        let input = self.given(stmt.get(attr::INPUT), true)?;
        let output = self.received(stmt.get(attr::OUTPUT), true)?;
        let communicator = self.communicator(backend, team);
        let work = self.work(stmt.number);
        self.emit(InstKind::Collective(Box::new(Collective {
            communicator,
            kind,
            algo: None,
            input,
            output,
            work,
        })));
        Ok(())
    }

    // ---- transfers

    fn p2p(&mut self, stmt: &OpStmt) -> Result<()> {
        // As every statement on another mesh's tensors, it does nothing here.
        if stmt.get(attr::BUFFER).is_some_and(|buffer| !self.is_here(buffer)) {
            self.skip_elsewhere(stmt);
            return Ok(());
        }
        let (direction, peer, view) = self.side(stmt)?;
        let origin = self.origin_no();
        let Some(backend) = self.backend(stmt)? else {
            return self.cuda_p2p(stmt, direction, peer, view);
        };
        if let Some(protocol) = stmt.get(attr::PROTOCOL) {
            return Err(self.refused(attr::PROTOCOL, protocol, "only the CUDA backend has protocols", &[]));
        }
        let side = Side { direction, peer, view, origin };
        if let Some(bracket) = &mut self.bracket {
            bracket.push(side);
            return Ok(());
        }
        self.transfer(backend, vec![side], stmt.number);
        Ok(())
    }

    fn side(&self, stmt: &OpStmt) -> Result<(Direction, usize, View)> {
        let direction = stmt.get(attr::P2P_TYPE).map_or(Direction::Send, Direction::from);
        let (Some(buffer), Some(peer)) = (stmt.get(attr::BUFFER), stmt.get(attr::PEER)) else {
            return Err(self.unsupported(stmt.op, "it lacks its buffer or peer"));
        };
        Ok((direction, self.index(peer, self.plan.world, "the peer")?, self.view(buffer)?))
    }

    fn transfer(&mut self, backend: Backend, sides: Vec<Side>, number: Option<u32>) {
        let communicator = self.communicator(backend, Arc::clone(self.teams.world()));
        let work = self.work(number);
        self.emit(InstKind::Transfer(Transfer { communicator, sides, work }));
    }

    pub(super) fn coalesce(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op {
            Op::StartCoalescing => self.bracket = Some(Vec::new()),
            _ => {
                let sides = self.bracket.take().unwrap_or_default();
                self.transfer(Backend::Nccl, sides, stmt.number);
            }
        }
        Ok(())
    }

    fn cuda_p2p(&mut self, stmt: &OpStmt, direction: Direction, peer: usize, view: View) -> Result<()> {
        if self.bracket.is_some() {
            return Err(self.unsupported(stmt.op, "the CUDA backend does not coalesce"));
        }
        if !self.comm.shared.contains(&(self.number(stmt), peer, key(&view))) {
            let message = format!("P2PCommunication {} with rank {peer} is not shared", self.number(stmt));
            let it =
                self.fault(Code::NotShared, message, "no ShareMemHandles lists this buffer and peer before");
            return Err(Box::new(it.help("list it in a ShareMemHandles that comes before")));
        }
        let (me, put) = (self.rank(), self.is_put(stmt));
        let counts = match direction {
            Direction::Send => &mut self.comm.sent,
            Direction::Recv => &mut self.comm.received,
        };
        let count = counts.entry(peer).or_insert(0);
        let index = *count;
        *count += 1;
        let (ready, done) =
            if put { (Meaning::PutReady, Meaning::PutDone) } else { (Meaning::Ready, Meaning::Done) };
        let posted_at = self.plan.code.len() as u32;
        let mut copy = None;
        let raise = |meaning| Slot { from: me, to: peer, meaning, index };
        let expect = |meaning| Slot { from: peer, to: me, meaning, index };
        let local = Box::new(Place { rank: me, view: view.clone() });
        // The peer's view is not known before all ranks are planned: `link` fills it in.
        let remote = Box::new(Place { rank: peer, view: view.clone() });
        let moves = matches!((direction, put), (Direction::Recv, false) | (Direction::Send, true));
        let pending = match moves {
            false => {
                self.emit(InstKind::Signal { slot: raise(ready) });
                Pending::Slots(vec![expect(done)])
            }
            true => {
                self.emit(InstKind::Await { slot: expect(ready) });
                copy = Some(self.plan.code.len() as u32);
                self.emit(match direction {
                    Direction::Recv => InstKind::Copy { from: remote, to: local },
                    Direction::Send => InstKind::Copy { from: local, to: remote },
                });
                self.emit(InstKind::Signal { slot: raise(done) });
                Pending::Slots(Vec::new())
            }
        };
        self.posted.extend(stmt.number.map(|number| (number, pending)));
        self.comm.messages.push(MessageSide { direction, peer, index, view, copy, put, posted_at });
        Ok(())
    }

    /// Blocks the host only for handles that are new; then all ranks of the world have to come (format survey, section 8).
    pub(super) fn share(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(listed) = stmt.get(attr::TRANSFERS) else { return Ok(()) };
        let mut handles = Vec::new();
        for id in listed {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            if it.get(attr::BUFFER).is_some_and(|buffer| !self.is_here(buffer)) {
                continue;
            }
            let (direction, peer, view) = self.side(it)?;
            if peer == self.rank() {
                let message =
                    format!("P2PCommunication {} shares handles with its own rank", self.number(it));
                return Err(self.fault(Code::BadIndex, message, "expected another rank as peer"));
            }
            if !self.comm.shared.insert((self.number(it), peer, key(&view))) {
                continue;
            }
            let channel = match direction {
                Direction::Send => (self.rank(), peer),
                Direction::Recv => (peer, self.rank()),
            };
            let index = self.comm.exchanged.entry(channel).or_insert(0);
            handles.push(Handle { direction, peer, index: *index, number: it.number.unwrap_or(0) });
            *index += 1;
        }
        if !handles.is_empty() {
            self.emit(InstKind::Exchange { handles });
            self.emit(InstKind::Barrier);
        }
        Ok(())
    }
}
