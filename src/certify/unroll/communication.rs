//! Communications, their posts and Waits.

use std::rc::Rc;

use grammar::{
    attr,
    dtype::DType,
    ir::{OpStmt, Stmt},
    ops::Op,
    words::{Backend, CommunicationType, P2pType, RedOp},
};

use super::{Result, Unroller, is_integral};
use crate::{
    field::Combine,
    part::size,
    tape::{Channel, StepKind, Transfer, TransferKind},
    view::View,
};

impl Unroller<'_> {
    pub(super) fn post(&mut self, number: Option<u32>, transfers: Vec<Transfer>) -> Result<()> {
        // A group is empty on a rank that holds none of its buffers.
        let is_empty = transfers.is_empty();
        let step = if is_empty { None } else { Some(self.push(StepKind::Post(transfers.into()))?) };
        number.into_iter().for_each(|it| _ = self.posted.insert(it, step));
        Ok(())
    }

    /// Hosts exchange handles that are new, and then wait for each other.
    pub(super) fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut is_new = false;
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let (Some(buffer), Some(peer)) =
                (it.get(attr::BUFFER).filter(|it| self.holds(*it)), it.get(attr::PEER))
            else {
                continue;
            };
            let peer = self.need(size(&self.scalars, peer), "the peer")?;
            let View { buffer, offset, .. } = self.view(buffer)?;
            is_new |= self.shared.insert((it.number, peer, buffer, offset));
        }
        if is_new { self.push(StepKind::Exchange).map(|_| ()) } else { Ok(()) }
    }

    pub(super) fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = self.need(stmt.get(attr::WORK), "the number of a Wait")?;
        match self.posted.remove(&number) {
            Some(Some(step)) => self.push(StepKind::Wait(step)).map(|_| ()),
            Some(None) => Ok(()),
            None => {
                Err(self.refuse(format!("this rank waits for communication {number}, but has not posted it")))
            }
        }
    }

    pub(super) fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let index = |this: &Self, key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&this.scalars, it));
            this.need(value.filter(|it| *it < n), "a root or a peer")
        };
        let elsewhere = |this: &mut Self| {
            stmt.number.into_iter().for_each(|it| _ = this.posted.insert(it, None));
            Ok(())
        };
        let (channel, me, n, kind, input, output) = match stmt.op {
            Op::Communication | Op::CollectivePermute => {
                let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
                let Some(me) = team.iter().position(|it| Some(*it) == self.rank) else {
                    return elsewhere(self);
                };
                let (n, input, output) = (team.len(), stmt.get(attr::INPUT), stmt.get(attr::OUTPUT));
                let kind = if stmt.op == Op::CollectivePermute {
                    TransferKind::Permute(index(self, attr::RECV_PEER, n)?)
                } else {
                    let is_bool = input.is_some_and(|it| self.program.tensors[it].dtype == Some(DType::Bool));
                    let combine = combine_of(stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum), is_bool);
                    TransferKind::Collective {
                        kind: stmt.get(attr::TYPE).unwrap_or(CommunicationType::Allreduce),
                        root: index(self, attr::ROOT, n)?,
                        combine,
                        integral: input.is_some_and(|it| is_integral(self.program, it)),
                    }
                };
                (Channel::Team(backend, team), me, n, kind, input, output)
            }
            Op::P2PCommunication => {
                let Some(buffer) = stmt.get(attr::BUFFER).filter(|it| self.holds(*it)) else {
                    return elsewhere(self);
                };
                let peer = index(self, attr::PEER, self.ranks)?;
                let (backend, rank) =
                    (if self.group.is_some() { Backend::Nccl } else { backend }, self.rank.unwrap_or(0));
                if stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv) {
                    (Channel::Pair(backend, peer, rank), 1, 2, TransferKind::Pair, None, Some(buffer))
                } else {
                    (Channel::Pair(backend, rank, peer), 0, 2, TransferKind::Pair, Some(buffer), None)
                }
            }
            _ => return Err(self.unknown(stmt.op)),
        };
        let input = input.filter(|_| kind.reads(me)).map(|it| self.view(it)).transpose()?;
        let output = output.filter(|it| kind.writes(me, n) && self.holds(*it));
        let output = output.map(|it| self.output_view(it)).transpose()?;
        let is_receiver = kind == TransferKind::Pair && me == 1;
        let count = self.counts.entry((channel.clone(), is_receiver)).or_insert(0);
        let it = Transfer { channel, number: *count, me, kind, input, output };
        *count += 1;
        match &mut self.group {
            Some(group) => group.push(it),
            None => self.post(stmt.number, vec![it])?,
        }
        Ok(())
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
