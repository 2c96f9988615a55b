//! Collectives that push data: every member writes to slots of its peers, and each member computes its output
//! from its own slots.
//!
//! A slot belongs to one sender, so no member waits before it sends. One kernel executes the whole collective
//! (`PeerPhases::Packets`): it writes packets that consist of data and a flag, and the receiver polls the flags.
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

use grammar::Algorithm;

use super::{
    CollectiveCall, Steps, Transport,
    two_shot::{longest_share, share},
};
use crate::{
    CollectiveKind, PacketFormat, PeerPhases, Phase, PieceSource, SignalId, SignalKind, Transfer, View,
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

    fn writes_own_output(&self, _: CollectiveKind) -> bool {
        true
    }

    fn packet_format(&self) -> Option<PacketFormat> {
        Some(self.1)
    }

    fn slot_lens(&self, kind: CollectiveKind, n: usize, input: usize) -> Vec<usize> {
        match self.0 {
            PushSteps::OneShot => vec![if kind.splits_input() { input / n.max(1) } else { input }],
            PushSteps::TwoShot => vec![longest_share(n, input); 2],
        }
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> Steps {
        let phases = match (call.own_views(), self.0) {
            (None, _) => Vec::new(),
            (Some((input, output)), PushSteps::OneShot) => call.push_one_shot(input, output).into(),
            (Some((input, output)), PushSteps::TwoShot) => call.push_two_shot(input, output).into(),
        };
        Steps::Kernel(PeerPhases::Packets { format: self.1, index: call.index, phases })
    }
}

impl CollectiveCall<'_> {
    fn push_one_shot(&self, input: &View, output: &View) -> [Phase; 2] {
        let (n, me) = (self.team.len(), self.me);
        // The part of each input that a member needs.
        let part = |to: usize| {
            let pieces = self.kind.output_pieces(to, n);
            let range = pieces.first().map_or(0..0, |it| it.source_range(input.len(), n));
            input.narrow(0, range.start, range.len())
        };
        let (mut send, mut receive) = (Phase::default(), Phase::default());
        self.others().for_each(|to| self.send(&mut send, 0, to, part(to)));
        let own = part(me);
        for (at, piece) in self.kind.output_pieces(me, n).iter().enumerate() {
            let out = output.narrow(0, at * own.len(), own.len());
            match piece.source {
                PieceSource::Reduced => receive.transfers.extend(self.reduce_slots(&own, out)),
                PieceSource::Member(from) if from == me => self.keep(&mut receive, own.clone(), out),
                PieceSource::Member(from) => self.receive(&mut receive, 0, from, out),
            }
        }
        [self.exchange(send.transfers, SignalKind::TeamData(self.team_no)), receive]
    }

    fn push_two_shot(&self, input: &View, output: &View) -> [Phase; 3] {
        let [send, mut reduce] = self.reduce_own_share(input, output);
        self.others().for_each(|to| self.send(&mut reduce, 1, to, self.share_of(output, self.me)));
        let mut receive = Phase::default();
        self.others().for_each(|from| self.receive(&mut receive, 1, from, self.share_of(output, from)));
        [send, self.exchange(reduce.transfers, SignalKind::TeamResult(self.team_no)), receive]
    }

    /// Sends each other member its share of the input, and reduces the own share of all inputs.
    pub(super) fn reduce_own_share(&self, input: &View, output: &View) -> [Phase; 2] {
        let (mut send, mut reduce) = (Phase::default(), Phase::default());
        self.others().for_each(|to| self.send(&mut send, 0, to, self.share_of(input, to)));
        let (own, out) = (self.share_of(input, self.me), self.share_of(output, self.me));
        reduce.transfers.extend(self.reduce_slots(&own, out));
        [self.exchange(send.transfers, SignalKind::TeamData(self.team_no)), reduce]
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
    fn send(&self, phase: &mut Phase, round: usize, to: usize, from: View) {
        let slot = self.slot(round, to, self.me, from.len());
        phase.copy(self.here(from), slot);
    }

    /// Copies from the slot of another member.
    fn receive(&self, phase: &mut Phase, round: usize, from: usize, to: View) {
        let slot = self.slot(round, self.me, from, to.len());
        phase.copy(slot, self.here(to));
    }

    /// Copies this member's own part, unless it is in place.
    fn keep(&self, phase: &mut Phase, from: View, to: View) {
        if from != to {
            phase.copy(self.here(from), self.here(to));
        }
    }

    /// Returns a phase whose transfers write to all other members: it signals them, and waits for their signals.
    pub(super) fn exchange(&self, transfers: Vec<Transfer>, kind: SignalKind) -> Phase {
        let (me, index) = (self.team[self.me], self.index);
        let others = || self.others().map(|it| self.team[it]);
        Phase {
            transfers,
            signals: others().map(|to| SignalId { from: me, to, kind, index }).collect(),
            waits: others().map(|from| SignalId { from, to: me, kind, index }).collect(),
        }
    }

    /// Reduces this member's own part and the slots of all others, in team order.
    fn reduce_slots(&self, own: &View, out: View) -> Option<Transfer> {
        let op = self.kind.op?;
        let part = |member: usize| {
            if member == self.me { self.here(own.clone()) } else { self.slot(0, self.me, member, own.len()) }
        };
        let parts = (0..self.team.len()).map(part).collect();
        Some(Transfer::Reduce { op, parts, out: self.here(out), copies: Vec::new() })
    }
}
