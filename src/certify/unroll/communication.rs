//! Communications, their posts and Waits.

use std::rc::Rc;

use grammar::{
    arena::Id,
    attr,
    codes::Code,
    dtype::DType,
    ir::{OpStmt, Stmt},
    ops::Op,
    words::{Backend, CommunicationType, P2pType, RedOp},
};

use super::{Result, Unroller, is_integral};
use crate::{
    field::Combine,
    part::size,
    tape::{Action, Channel, Kind, Transfer},
    tensor::View,
};

impl Unroller<'_> {
    /// Posts transfers to the queue of their communicator, behind what the current stream has been issued.
    pub(super) fn post(&mut self, number: Option<u32>, transfers: Vec<Transfer>) -> Result<()> {
        // A group is empty on a rank that holds none of its buffers.
        let end = match transfers.first() {
            None => None,
            Some(first) => {
                // Transfers between two ranks share one communicator of all ranks. Those of the CUDA backend are copies of their own, of
                // which one number on one stream is not posted again before its Wait.
                let queue = match &first.channel {
                    Channel::Pair(Backend::Cuda, ..) => {
                        let stmt = self.stmt.map_or(0, |it| it.index());
                        Channel::Pair(Backend::Cuda, stmt, self.current)
                    }
                    Channel::Pair(backend, ..) => Channel::Pair(*backend, 0, 0),
                    other => other.clone(),
                };
                let queue = self.chain(queue);
                let issued = self.frontiers[self.current].clone();
                self.wait_for(queue, &issued);
                Some(self.run(queue, transfers)?)
            }
        };
        number.into_iter().for_each(|it| _ = self.posted.insert(it, end));
        Ok(())
    }

    /// Begins and ends transfers on a chain, and returns the step that ends them.
    pub(super) fn run(&mut self, chain: usize, transfers: Vec<Transfer>) -> Result<usize> {
        let reads = transfers.iter().filter_map(|it| it.input.clone()).collect();
        let writes = transfers.iter().filter_map(|it| it.output.clone()).collect();
        self.push(chain, Action::Begin(transfers), reads, writes)?;
        self.push(chain, Action::End, Vec::new(), Vec::new())
    }

    /// Returns the number of the next communication of a channel.
    pub(super) fn meeting(&mut self, channel: &Channel, me: usize, kind: Kind) -> Result<usize> {
        let count = self.counts.entry((channel.clone(), me)).or_insert(0);
        *count += 1;
        self.meetings.find(channel, *count, kind).ok_or_else(|| {
            let mut it = self.refuse("the members of the team post different collectives");
            it.code = Code::Disagreement;
            it
        })
    }

    /// Hosts exchange handles that are new, and then wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut is_new = false;
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let buffer = it.get(attr::BUFFER).filter(|it| self.holds(*it));
            let Some((buffer, peer)) = buffer.zip(it.get(attr::PEER)) else { continue };
            let peer = self.need(size(&self.scalars, peer), "the peer")?;
            let View { buffer, places } = self.view(buffer)?;
            is_new |= self.shared.insert((it.number, peer, buffer, places.first().copied()));
        }
        self.tape.exchanges += usize::from(is_new);
        Ok(())
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = self.need(stmt.get(attr::WORK), "the number of a Wait")?;
        let Some(end) = self.posted.remove(&number) else {
            let message = format!("this rank waits for communication {number}, but has not posted it");
            return Err(self.refuse(message));
        };
        end.into_iter().for_each(|it| self.wait_for(self.current, &[it]));
        Ok(())
    }

    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let rank = self.rank.unwrap_or(0);
        let index = |this: &Self, key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&this.scalars, it));
            this.need(value.filter(|it| *it < n), "a root or a peer")
        };
        let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
        let (n, position) = (team.len(), team.iter().position(|it| *it == rank));
        let buffer = stmt.get(attr::BUFFER).filter(|it| self.holds(*it));
        let (ends, team) = ([stmt.get(attr::INPUT), stmt.get(attr::OUTPUT)], Channel::Team(backend, team));
        let (channel, me, kind, from, [input, output]) = match (stmt.op, position, buffer) {
            (Op::Communication, Some(me), _) => {
                let (kind, root) = (stmt.get(attr::TYPE), index(self, attr::ROOT, n)?);
                let (kind, [input, output]) = (kind.unwrap_or(CommunicationType::Allreduce), ends);
                let is_bool = input.is_some_and(|it| self.program.tensors[it].dtype == Some(DType::Bool));
                let combine = combine_of(stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum), is_bool);
                let integral = input.is_some_and(|it| is_integral(self.program, it));
                let (reads, writes) = directions(kind, me, root, n);
                let ends = [input.filter(|_| reads), output.filter(|_| writes)];
                (team, me, Kind::Collective { kind, root, combine, integral }, None, ends)
            }
            (Op::CollectivePermute, Some(me), _) => {
                (team, me, Kind::Transfer, Some(index(self, attr::RECV_PEER, n)?), ends)
            }
            (Op::P2PCommunication, _, Some(buffer)) => {
                let peer = index(self, attr::PEER, self.ranks)?;
                let backend = if self.group.is_some() { Backend::Nccl } else { backend };
                if stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv) {
                    (Channel::Pair(backend, peer, rank), 1, Kind::Transfer, Some(0), [None, Some(buffer)])
                } else {
                    (Channel::Pair(backend, rank, peer), 0, Kind::Transfer, None, [Some(buffer), None])
                }
            }
            (Op::Communication | Op::CollectivePermute | Op::P2PCommunication, ..) => {
                stmt.number.into_iter().for_each(|it| _ = self.posted.insert(it, None));
                return Ok(());
            }
            _ => return Err(self.unknown(stmt.op)),
        };
        let input = input.map(|it| self.view(it)).transpose()?;
        let output = output.filter(|it| self.holds(*it)).map(|it| self.output_view(it)).transpose()?;
        let meeting = self.meeting(&channel, me, kind)?;
        let it = Transfer { channel, meeting, me, from, input, output, part: None };
        match &mut self.group {
            Some(group) => group.push(it),
            None => self.post(stmt.number, vec![it])?,
        }
        Ok(())
    }
}

/// Returns whether a member of a team of `n` contributes its input to a collective, and whether it gets anything.
fn directions(kind: CommunicationType, me: usize, root: usize, n: usize) -> (bool, bool) {
    match kind {
        CommunicationType::Broadcast | CommunicationType::Scatter => (me == root, true),
        CommunicationType::Gather | CommunicationType::Reduce => (true, me == root),
        CommunicationType::SendRecv => (me == root, n == 1 || me == usize::from(root == 0)),
        CommunicationType::Allgather
        | CommunicationType::Allreduce
        | CommunicationType::ReduceScatter
        | CommunicationType::AllToAll
        | CommunicationType::CollectivePermute => (true, true),
    }
}

/// Returns how a collective combines elements.
fn combine_of(op: RedOp, is_bool: bool) -> Combine {
    match op {
        RedOp::Sum => Combine::Sum,
        RedOp::Avg => Combine::Average,
        RedOp::Product => Combine::Product,
        RedOp::Max => Combine::lattice("max", is_bool),
        RedOp::Min => Combine::lattice("min", is_bool),
        RedOp::BitAnd => Combine::Lattice("and"),
        RedOp::BitOr => Combine::Lattice("or"),
        RedOp::BitXor => Combine::Lattice("xor"),
    }
}
