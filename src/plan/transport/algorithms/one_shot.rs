//! Collectives in one round of signals: members access the inputs and outputs of their peers directly.
//!
//! Without a reduction, each member copies to the outputs of the receiving members; with one, each receiving member
//! reads the inputs of all and reduces them in team order, so the results are bitwise equal on all members. The
//! all-reduce is the one-stage all-reduce of vLLM and PyTorch's `one_shot_all_reduce`.

use grammar::{Algorithm, CommunicationType};

use super::{CollectiveCall, Steps, Transport};
use crate::{
    CollectiveKind, OutputPiece, PeerPhases, Phase, PieceSource, ReduceOp, Transfer, View, ViewOnRank,
};

/// What accesses the memory of peers.
#[derive(Clone, Copy)]
pub(super) enum OneShot {
    /// The CUDA backend without `algo=`: copy engines copy, or a kernel reduces, between commands that signal and wait.
    Default,
    /// `one-shot-copy`: the same, for collectives without a reduction.
    CopyEngines,
    /// `one-shot`: one kernel, including its signals.
    Kernel,
}

impl Transport for OneShot {
    fn algorithm(&self) -> Option<Algorithm> {
        match self {
            Self::Default => None,
            Self::CopyEngines => Some(Algorithm::OneShotCopy),
            Self::Kernel => Some(Algorithm::OneShot),
        }
    }

    fn supports_in_place(&self, kind: CollectiveKind) -> bool {
        // Each element is accessed by only one member, which may be its owner. In an all-reduce, a member's output is written while
        // another one still reads its input.
        kind.of.facts().may_be_in_place && kind.of != CommunicationType::Allreduce
    }

    fn writes_own_output(&self, kind: CollectiveKind) -> bool {
        kind.op.is_some()
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> Steps {
        let phases = match call.kind.op {
            Some(op) => call.reduce_from_members(op),
            None => call.copy_to_members(),
        };
        match self {
            Self::Default | Self::CopyEngines => Steps::separate(&phases),
            Self::Kernel => Steps::Kernel(PeerPhases::Memory(phases)),
        }
    }
}

impl CollectiveCall<'_> {
    /// Lowers a collective with a reduction: each receiving member reads the inputs of all.
    fn reduce_from_members(&self, op: ReduceOp) -> [Phase; 2] {
        let n = self.team.len();
        let receivers: Vec<usize> =
            self.all().into_iter().filter(|it| !self.kind.output_pieces(*it, n).is_empty()).collect();
        let transfers: Vec<Transfer> = match self.kind.output_pieces(self.me, n).as_slice() {
            [] => Vec::new(),
            [first, ..] => {
                let own = self.members[self.me].as_ref();
                let given = own.and_then(|it| it.input.as_ref()).map_or(0, View::len);
                let elements = first.source_range(given, n);
                let out = own.and_then(|it| it.output.clone());
                out.and_then(|out| self.peer_reduce(op, elements.start, elements.len(), out))
                    .into_iter()
                    .collect()
            }
        };
        let accessed = if receivers.contains(&self.me) { self.all() } else { Vec::new() };
        self.with_signals(&accessed, &receivers, transfers)
    }

    /// Reduces `len` elements from `start` on of all members' inputs, in team order; `None` if the views of
    /// some member are not known.
    pub(super) fn peer_reduce(&self, op: ReduceOp, start: usize, len: usize, out: View) -> Option<Transfer> {
        let part = |(member, rank): (usize, &usize)| {
            let input = self.members[member].as_ref()?.input.as_ref()?;
            Some(ViewOnRank { rank: *rank, view: input.narrow(0, start, len) })
        };
        let parts = self.team.iter().enumerate().map(part).collect::<Option<Vec<_>>>()?;
        Some(Transfer::Reduce { op, parts, out: self.here(out), copies: Vec::new() })
    }

    /// Lowers a collective without a reduction: this member copies its input to every member that receives
    /// it.
    fn copy_to_members(&self) -> [Phase; 2] {
        let n = self.team.len();
        let mut access = Phase::default();
        let mut receivers = Vec::new();
        let own = self.members[self.me].as_ref().and_then(|it| it.input.as_ref());
        for to in self.others().chain([self.me]) {
            let Some((at, delivery)) = self.delivery(to) else { continue };
            let elements = delivery.source_range(own.map_or(0, View::len), n);
            receivers.push(to);
            // All pieces of an output have the same length.
            self.copy(&mut access, own, (elements.start, elements.len()), to, at * elements.len());
        }
        let senders = self.kind.source_members(self.me, n);
        self.with_signals(&receivers, &senders, access.transfers)
    }

    /// Returns the piece that member `to` receives from this one, and its index in the output. In a
    /// permutation, a member knows only the peer that it sends to.
    fn delivery(&self, to: usize) -> Option<(usize, OutputPiece)> {
        match self.kind.peers {
            Some(peers) if to != self.me => (peers.send == to)
                .then_some((0, OutputPiece { source: PieceSource::Member(self.me), part: None })),
            _ => self.kind.output_piece_from(self.me, to, self.team.len()),
        }
    }

    /// Copies `len` elements of this member's view to a member's output, unless they are there already.
    pub(super) fn copy(
        &self,
        phase: &mut Phase,
        from: Option<&View>,
        (start, len): (usize, usize),
        to: usize,
        offset: usize,
    ) {
        let output = self.members[to].as_ref().and_then(|it| it.output.as_ref());
        let (Some(from), Some(output)) = (from, output) else { return };
        // `agreement` has compared the sizes if all members post the collective, and otherwise the collective
        // never runs.
        if start + len > from.len() || offset + len > output.len() {
            return;
        }
        let from = self.here(from.narrow(0, start, len));
        let to = ViewOnRank { rank: self.team[to], view: output.narrow(0, offset, len) };
        if from != to {
            phase.copy(from, to);
        }
    }

    /// Returns a view of this member's memory.
    pub(super) fn here(&self, view: View) -> ViewOnRank {
        ViewOnRank { rank: self.team[self.me], view }
    }
}
