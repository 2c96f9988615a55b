//! Collectives of the CUDA backend: copies and combinations over peer memory between flags, without multicast.
//!
//! Everyone tells everyone who writes or reads its buffer that it is ready, the data is copied or combined in team order,
//! everyone tells that it is done.

use grammar::ir::OpStmt;

use super::{
    CollectiveKind, InstKind, Meaning, Place, ReduceOp, Slot, View,
    build::{Builder, Result},
    comm::{PeerView, Pending, TeamViews, key},
};

impl Builder<'_> {
    pub(super) fn team_copies(
        &mut self,
        stmt: &OpStmt,
        team: &[usize],
        me: usize,
        kind: CollectiveKind,
        input: Option<View>,
        output: Option<View>,
    ) -> Result<()> {
        let mut world = team.to_vec();
        world.sort_unstable();
        if !world.into_iter().eq(0..self.plan.world) {
            return Err(self.unsupported(stmt.op, "with the CUDA backend the team has to be the whole world"));
        }
        let rank = self.rank();
        let index = self.comm.collectives.len() as u32;
        let others: Vec<usize> = team.iter().copied().filter(|it| *it != rank).collect();
        let raise = |to: usize, meaning| InstKind::Signal { slot: Slot { from: rank, to, meaning, index } };
        let expect = |from: usize, meaning| Slot { from, to: rank, meaning, index };
        let meeting = output.as_ref().or(input.as_ref()).map(key);
        let first = meeting.map(|view| (self.number(stmt), view)).is_none_or(|it| self.comm.met.insert(it));
        if first {
            self.emit(InstKind::Barrier);
        }
        let posted_at = self.plan.code.len();
        let mut open = Vec::new();
        let mut slots = Vec::new();
        match kind {
            CollectiveKind::Broadcast { root } if me == root => {
                others
                    .iter()
                    .for_each(|from| self.emit(InstKind::Await { slot: expect(*from, Meaning::TeamReady) }));
                let Some(input) = input.clone() else { return Ok(()) };
                for to in team {
                    if *to != rank || output.is_some() {
                        open.push((self.plan.code.len(), *to, PeerView::Output));
                        self.emit(self.between(rank, &input, *to));
                    }
                }
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamDone)));
            }
            CollectiveKind::Broadcast { root } => {
                self.emit(raise(team[root], Meaning::TeamReady));
                slots.push(expect(team[root], Meaning::TeamDone));
            }
            CollectiveKind::Allgather => {
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamReady)));
                others
                    .iter()
                    .for_each(|from| self.emit(InstKind::Await { slot: expect(*from, Meaning::TeamReady) }));
                let Some(input) = input.clone() else { return Ok(()) };
                for to in team {
                    open.push((self.plan.code.len(), *to, PeerView::OutputPart(me, team.len())));
                    self.emit(self.between(rank, &input, *to));
                }
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamDone)));
                slots.extend(others.iter().map(|from| expect(*from, Meaning::TeamDone)));
            }
            CollectiveKind::Allreduce { op } => {
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamReady)));
                others
                    .iter()
                    .for_each(|from| self.emit(InstKind::Await { slot: expect(*from, Meaning::TeamReady) }));
                self.combine(op, team, &input, &output, &mut open);
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamDone)));
                slots.extend(others.iter().map(|from| expect(*from, Meaning::TeamDone)));
            }
            CollectiveKind::Reduce { root, op } if me == root => {
                others
                    .iter()
                    .for_each(|from| self.emit(InstKind::Await { slot: expect(*from, Meaning::TeamReady) }));
                self.combine(op, team, &input, &output, &mut open);
                others.iter().for_each(|to| self.emit(raise(*to, Meaning::TeamDone)));
            }
            CollectiveKind::Reduce { root, .. } => {
                self.emit(raise(team[root], Meaning::TeamReady));
                slots.push(expect(team[root], Meaning::TeamDone));
            }
            CollectiveKind::Gather { .. }
            | CollectiveKind::Scatter { .. }
            | CollectiveKind::ReduceScatter { .. }
            | CollectiveKind::SendRecv { .. }
            | CollectiveKind::AllToAll
            | CollectiveKind::Permute { .. } => {
                return Err(self.unsupported(
                    stmt.op,
                    "the CUDA backend has Broadcast, Allgather, Allreduce and Reduce",
                ));
            }
        }
        self.posted.extend(stmt.number.map(|number| (number, Pending::Slots(slots))));
        self.comm.collectives.push(TeamViews { kind, team: team.to_vec(), posted_at, input, output, open });
        Ok(())
    }

    /// A copy whose destination `link` fills in.
    fn between(&self, from: usize, view: &View, to: usize) -> InstKind {
        InstKind::Copy {
            from: Box::new(Place { rank: from, view: view.clone() }),
            to: Box::new(Place { rank: to, view: view.clone() }),
        }
    }

    fn combine(
        &mut self,
        op: ReduceOp,
        team: &[usize],
        input: &Option<View>,
        output: &Option<View>,
        open: &mut Vec<(usize, usize, PeerView)>,
    ) {
        let (Some(input), Some(output)) = (input, output) else { return };
        let at = self.plan.code.len();
        open.extend(team.iter().enumerate().map(|(operand, rank)| (at, *rank, PeerView::Operand(operand))));
        let parts = team.iter().map(|rank| Place { rank: *rank, view: input.clone() }).collect();
        // Elements match by position, not by index.
        let out = output.reshape(&input.shape).unwrap_or_else(|| output.clone());
        self.emit(InstKind::Combine { op, parts, out: Box::new(out) });
    }
}
