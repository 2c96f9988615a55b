//! Collectives that push data: every member writes to slots of its peers, and each member computes its output
//! from its own slots.
//!
//! A slot belongs to one sender, so no member waits before it sends. One kernel executes the whole collective
//! (`KernelKind::Packets`): it writes packets that consist of data and a flag, and the receiver polls the flags.
//! So the kernel needs neither signals nor fences, and it ends without a barrier. The formats are those of NCCL's
//! protocols LL, whose flags double the traffic, and LL128.
//!
//! * `PushSteps::OneShot`: each member sends each peer what this peer needs. For an Allreduce this is the whole input:
//!   `(n - 1) · bytes` leave each member.
//! * `PushSteps::TwoShot`: member `i` reduces share `i` of all inputs and sends the result to all others. In two steps,
//!   `2 · (n - 1) / n · bytes` leave each member.
//!
//! Reductions add in team order, so the results are bitwise equal on all members.
//!
//! **Reuse of slots.** The collectives of a team that run one after another alternate between two sets of slots
//! (`slots`). A member that sends data of collective `i + 2` has received data of collective `i + 1` from every
//! peer, which the peer has sent after it had read its slots of collective `i`. So every member sends to every
//! other one in each collective, if necessary a packet without data. A barrier of all ranks separates two runs.

use grammar::words::Algorithm;

use super::{
    CollectiveCall, LoweredComm, Transport,
    two_shot::{longest_share, share},
};
use crate::{
    CollectiveKind, InstKind, KernelKind, PacketFormat, PieceSource, ReduceOp, SignalId, SignalKind, View,
    ViewOnRank,
};

/// The steps in which members push data.
#[derive(Clone, Copy)]
pub(super) enum PushSteps {
    /// Every member sends each peer what this peer needs.
    OneShot,
    /// An Allreduce in which every member reduces one share.
    TwoShot,
}

/// Pushes data in packets.
pub(super) struct Push(pub PushSteps, pub PacketFormat);

impl Transport for Push {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(match (self.0, self.1) {
            (PushSteps::OneShot, PacketFormat::Ll) => Algorithm::OneShotLl,
            (PushSteps::OneShot, PacketFormat::Ll128) => Algorithm::OneShotLl128,
            (PushSteps::TwoShot, PacketFormat::Ll) => Algorithm::TwoShotLl,
            (PushSteps::TwoShot, PacketFormat::Ll128) => Algorithm::TwoShotLl128,
        })
    }

    fn supports_in_place(&self, _: CollectiveKind) -> bool {
        true
    }

    fn writes_own_output(&self, _: CollectiveKind) -> bool {
        true
    }

    fn kernel(&self) -> Option<KernelKind> {
        Some(KernelKind::Packets(self.1))
    }

    fn slot_lens(&self, kind: CollectiveKind, n: usize, input: usize) -> Vec<usize> {
        match self.0 {
            PushSteps::OneShot => vec![if kind.splits_input() { input / n.max(1) } else { input }],
            PushSteps::TwoShot => vec![longest_share(n, input); 2],
        }
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> LoweredComm {
        let at_post = match self.0 {
            PushSteps::OneShot => call.push_one_shot(),
            PushSteps::TwoShot => call.push_two_shot(),
        };
        LoweredComm { at_post, ..LoweredComm::default() }
    }
}

impl CollectiveCall<'_> {
    fn push_one_shot(&self) -> Vec<InstKind> {
        let (n, me) = (self.team.len(), self.me);
        let Some((input, output)) = self.own_views() else { return Vec::new() };
        // The part of each input that a member needs.
        let part = |to: usize| {
            let pieces = self.kind.output_pieces(to, n);
            pieces.first().map_or(0..0, |it| it.source_range(input.len(), n))
        };
        let mut work = Vec::new();
        for to in self.others() {
            work.push(self.send(0, to, input.narrow(0, part(to).start, part(to).len())));
        }
        work.extend(self.exchange(SignalKind::TeamData(self.team_no)));
        let own = input.narrow(0, part(me).start, part(me).len());
        let pieces = self.kind.output_pieces(me, n);
        for (at, piece) in pieces.iter().enumerate() {
            let out = output.narrow(0, at * own.len(), own.len());
            match piece.source {
                PieceSource::Reduced => work.extend(self.reduce_slots(&own, out)),
                PieceSource::Member(from) if from == me => work.extend(self.keep(own.clone(), out)),
                PieceSource::Member(from) => work.push(self.receive(0, from, out)),
            }
        }
        work
    }

    fn push_two_shot(&self) -> Vec<InstKind> {
        let Some((input, output)) = self.own_views() else { return Vec::new() };
        let mut work = self.reduce_own_share(input, output);
        work.extend(self.others().map(|to| self.send(1, to, self.share_of(output, self.me))));
        work.extend(self.exchange(SignalKind::TeamResult(self.team_no)));
        work.extend(self.others().map(|from| self.receive(1, from, self.share_of(output, from))));
        work
    }

    /// Sends each other member its share of the input, and reduces the own share of all inputs.
    pub(super) fn reduce_own_share(&self, input: &View, output: &View) -> Vec<InstKind> {
        let mut work: Vec<InstKind> =
            self.others().map(|to| self.send(0, to, self.share_of(input, to))).collect();
        work.extend(self.exchange(SignalKind::TeamData(self.team_no)));
        work.extend(self.reduce_slots(&self.share_of(input, self.me), self.share_of(output, self.me)));
        work
    }

    /// Returns a member's share of a view.
    fn share_of(&self, view: &View, member: usize) -> View {
        let (start, len) = share(member, self.team.len(), view.len());
        view.narrow(0, start, len)
    }

    /// Returns the views of this member, if it has both.
    pub(super) fn own_views(&self) -> Option<(&View, &View)> {
        let own = self.members[self.me].as_ref()?;
        Some((own.input.as_ref()?, own.output.as_ref()?))
    }

    /// Returns the first `len` elements of the slot of `from` on member `to`.
    fn slot(&self, round: usize, to: usize, from: usize, len: usize) -> ViewOnRank {
        let slots = &self.slots[round];
        let all = View::contiguous(slots.buffers[to], vec![self.team.len() * slots.len]);
        ViewOnRank { rank: self.team[to], view: all.narrow(0, from * slots.len, len) }
    }

    /// Copies a view to this member's slot on another one.
    fn send(&self, round: usize, to: usize, from: View) -> InstKind {
        let slot = self.slot(round, to, self.me, from.len());
        InstKind::Copy { from: Box::new(self.here(from)), to: Box::new(slot) }
    }

    /// Copies from the slot of another member.
    fn receive(&self, round: usize, from: usize, to: View) -> InstKind {
        let slot = self.slot(round, self.me, from, to.len());
        InstKind::Copy { from: Box::new(slot), to: Box::new(self.here(to)) }
    }

    /// Copies this member's own part, unless it is in place.
    fn keep(&self, from: View, to: View) -> Option<InstKind> {
        let differ = from != to;
        differ.then(|| InstKind::Copy { from: Box::new(self.here(from)), to: Box::new(self.here(to)) })
    }

    /// Signals all other members that their slots are written, and waits until the own slots are.
    fn exchange(&self, kind: SignalKind) -> impl Iterator<Item = InstKind> {
        self.signals(kind).chain(self.wait_for_signals(kind))
    }

    /// Signals all other members.
    pub(super) fn signals(&self, kind: SignalKind) -> impl Iterator<Item = InstKind> {
        let (from, index) = (self.team[self.me], self.index);
        self.others()
            .map(move |to| InstKind::Signal { signal: SignalId { from, to: self.team[to], kind, index } })
    }

    /// Waits for the signals of all other members.
    pub(super) fn wait_for_signals(&self, kind: SignalKind) -> impl Iterator<Item = InstKind> {
        let (to, index) = (self.team[self.me], self.index);
        self.others().map(move |from| InstKind::WaitSignal {
            signal: SignalId { from: self.team[from], to, kind, index },
        })
    }

    /// Reduces this member's own part and the slots of all others, in team order.
    fn reduce_slots(&self, own: &View, out: View) -> Option<InstKind> {
        let op: ReduceOp = self.kind.reduce_op()?;
        let part = |member: usize| {
            if member == self.me { self.here(own.clone()) } else { self.slot(0, self.me, member, own.len()) }
        };
        let parts = (0..self.team.len()).map(part).collect();
        Some(InstKind::PeerReduce { op, parts, out: Box::new(out) })
    }

    fn here(&self, view: View) -> ViewOnRank {
        ViewOnRank { rank: self.team[self.me], view }
    }
}
