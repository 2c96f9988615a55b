//! What ranks post to NCCL besides collectives of all ranks: groups of sends and receives, sends and receives in no group, and SendRecvs and
//! all-reduces of two ranks. A kernel executes each.
//!
//! Without eager initialization, a process group has a communicator for all its ranks and one for the sends and receives of each pair that are in
//! no group. `P2PCommunication`s are of the process group of all ranks, `Communication`s of that of their team.

use hir_plan::sync::P2pQueues;

use crate::rng::Rng;

pub const RANKS: usize = 3;

/// A transfer from a rank to another one, or an all-reduce of the two.
#[derive(Clone, Copy)]
pub struct Transfer {
    ranks: [usize; 2],
    /// The team of a `Communication`; `None` for two `P2PCommunication`s.
    team: Option<[usize; 2]>,
    is_all_reduce: bool,
}

impl Transfer {
    /// Returns a random transfer between the first ranks.
    pub fn random(rng: &mut Rng, ranks: usize) -> Self {
        let from = rng.below(ranks);
        let to = (from + 1 + rng.below(ranks - 1)) % ranks;
        let team = [None, None, Some([from, to]), Some([to, from])][rng.below(4)];
        Self { ranks: [from, to], team, is_all_reduce: team.is_some() && rng.below(3) == 0 }
    }

    /// Returns whether a rank takes part.
    pub fn has(&self, rank: usize) -> bool {
        self.ranks.contains(&rank)
    }
}

/// A side of a transfer, or the contribution or the result of an all-reduce.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    pub peer: usize,
    pub sends: bool,
    pub tensor: usize,
}

/// How a rank posts a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// As `P2PCommunication`s in a group.
    Group,
    /// As a `P2PCommunication` in no group.
    Single,
    /// As a `Communication` of a team, for the transfer with a number.
    Team { team: [usize; 2], transfer: usize },
}

/// What a rank posts at once.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// An all-reduce has two.
    pub sides: Vec<Side>,
    pub posted: Posted,
}

/// A communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Queue {
    /// That of all ranks.
    All,
    /// That of a team of two.
    Team([usize; 2]),
    /// That of the sends and receives of two ranks that are in no group, of the process group of all ranks.
    Pair([usize; 2]),
    /// As `Pair`, of the process group of a team.
    PairOfTeam([usize; 2]),
}

impl Queue {
    /// Returns its ranks.
    pub fn members(self, ranks: usize) -> Vec<usize> {
        match self {
            Self::All => (0..ranks).collect(),
            Self::Team(both) | Self::Pair(both) | Self::PairOfTeam(both) => both.to_vec(),
        }
    }
}

/// The kernels that each rank posts, in its order.
#[derive(Default)]
pub struct Kernels {
    /// The number of ranks.
    pub ranks: usize,
    pub of: [Vec<Kernel>; RANKS],
}

impl Kernels {
    /// Adds the kernel that a rank posts next, and removes what it executes from what is `left` of the transfers of the rank. `groups` of four sides
    /// are in groups. `operand` returns a tensor to read (`true`) or to write.
    pub fn post(
        &mut self,
        rng: &mut Rng,
        (transfers, left): (&[Transfer], &mut Vec<usize>),
        (rank, shuffles, groups): (usize, bool, usize),
        operand: &dyn Fn(&mut Rng, bool) -> usize,
    ) {
        let side = |rng: &mut Rng, transfer: usize, sends: bool| {
            let [from, to] = transfers[transfer].ranks;
            Side { peer: if from == rank { to } else { from }, sends, tensor: operand(rng, sends) }
        };
        let sends = |transfer: usize| transfers[transfer].ranks[0] == rank;
        let first = left[if shuffles { rng.below(left.len()) } else { 0 }];
        let Some(team) = transfers[first].team else {
            let is_group = rng.below(4) < groups;
            let count = if is_group { 1 + rng.below(3) } else { 1 };
            let (mut sides, mut next) = (Vec::new(), Some(first));
            while let Some(it) = next.filter(|_| sides.len() < count) {
                left.retain(|other| *other != it);
                sides.push(side(rng, it, sends(it)));
                let others: Vec<usize> =
                    left.iter().copied().filter(|it| transfers[*it].team.is_none()).collect();
                next = others.get(if shuffles { rng.below(others.len().max(1)) } else { 0 }).copied();
            }
            let posted = if is_group { Posted::Group } else { Posted::Single };
            return self.of[rank].push(Kernel { sides, posted });
        };
        // The ranks of a team post its communications in one order.
        let transfer = left.iter().copied().find(|it| transfers[*it].team == Some(team)).unwrap_or(first);
        left.retain(|it| *it != transfer);
        let mut sides = vec![side(rng, transfer, sends(transfer))];
        if transfers[transfer].is_all_reduce {
            let input = Side { sends: true, ..sides[0] };
            let mut output = side(rng, transfer, false);
            while output.tensor == input.tensor {
                output = side(rng, transfer, false);
            }
            sides = vec![input, output];
        }
        self.of[rank].push(Kernel { sides, posted: Posted::Team { team, transfer } });
    }

    /// Returns the communicator of a kernel.
    pub fn queue(&self, p2p: P2pQueues, rank: usize, number: usize) -> Queue {
        let Kernel { sides, posted } = &self.of[rank][number];
        let is_of_pair = p2p == P2pQueues::Pair && sides.len() == 1;
        let is_all = |team: &[usize; 2]| (0..self.ranks).eq(*team);
        match posted {
            Posted::Single if is_of_pair => Queue::Pair([rank.min(sides[0].peer), rank.max(sides[0].peer)]),
            Posted::Single | Posted::Group => Queue::All,
            Posted::Team { team, .. } => match (is_of_pair, is_all(team)) {
                (true, true) => Queue::Pair(*team),
                (true, false) => Queue::PairOfTeam(*team),
                (false, true) => Queue::All,
                (false, false) => Queue::Team(*team),
            },
        }
    }

    /// Returns the kernel, on the peer, of the other side of each transfer of a kernel: messages from one rank to another arrive in order, with a
    /// communicator for each pair those of groups and the others by themselves. `None` if the other side is not there.
    pub fn partners(&self, p2p: P2pQueues, rank: usize, number: usize) -> Vec<Option<usize>> {
        let kernel = &self.of[rank][number];
        let is_there = |it: &Kernel| match (it.posted, kernel.posted) {
            (Posted::Group | Posted::Single, Posted::Group | Posted::Single) => {
                p2p == P2pQueues::Communicator || it.posted == kernel.posted
            }
            (one, other) => one == other,
        };
        let earlier: Vec<&Kernel> = self.of[rank][..number].iter().filter(|it| is_there(it)).collect();
        let partner = |(at, side): (usize, &Side)| {
            let is_alike = |it: &&Side| it.peer == side.peer && it.sends == side.sends;
            let before = earlier.iter().flat_map(|it| &it.sides).chain(&kernel.sides[..at]);
            let before = before.filter(is_alike).count();
            let all = self.of[side.peer].iter().enumerate().filter(|it| is_there(it.1));
            let all = all.flat_map(|(number, it)| it.sides.iter().map(move |side| (number, side)));
            let alike = all.filter(|(_, it)| it.peer == rank && it.sends != side.sends);
            alike.map(|it| it.0).nth(before)
        };
        kernel.sides.iter().enumerate().map(partner).collect()
    }

    /// Returns two sides of a group that access the same memory.
    pub fn race_in_a_group(&self) -> Option<String> {
        let conflict = |one: &Side, other: &Side| {
            let is_in_order = !one.sends && !other.sends && one.peer == other.peer;
            one.tensor == other.tensor && !(one.sends && other.sends) && !is_in_order
        };
        let has_conflict = |it: &&Kernel| {
            let mut pairs = it.sides.iter().enumerate();
            pairs.any(|(at, one)| it.sides[..at].iter().any(|other| conflict(one, other)))
        };
        let found = self.of.iter().flatten().find(has_conflict);
        found.map(|it| format!("within {it:?}"))
    }
}

impl Kernel {
    /// Returns the statements that post it with a number.
    pub fn text(&self, number: usize, name: fn(usize) -> String) -> String {
        let transfer = |number: usize, it: &Side| {
            let (kind, buffer, peer) = (if it.sends { "send" } else { "recv" }, name(it.tensor), it.peer);
            format!("P2PCommunication {number} (type={kind}, buffer={buffer}, peer={peer}, backend=NCCL)")
        };
        match (self.posted, &self.sides[..]) {
            (Posted::Team { team: [one, other], .. }, [input, output]) => format!(
                "Communication {number} (type=Allreduce, team=({one} {other}), red_op=SUM, input={}, output={}, backend=NCCL)",
                name(input.tensor),
                name(output.tensor)
            ),
            (Posted::Team { team: [one, other], .. }, [side, ..]) => {
                let root = usize::from((one == side.peer) == side.sends);
                // A rank does not access what the other one reads or writes.
                let unused = 1 + usize::from(side.tensor == 1);
                let [input, output] = if side.sends { [side.tensor, unused] } else { [0, side.tensor] };
                format!(
                    "Communication {number} (type=SendRecv, team=({one} {other}), root={root}, input={}, output={}, backend=NCCL)",
                    name(input),
                    name(output)
                )
            }
            (Posted::Single, [side, ..]) => transfer(number, side),
            (_, sides) => {
                let sides = sides.iter().enumerate();
                let sides = sides.map(|(at, it)| transfer(1000 + 10 * number + at, it));
                let lines = ["StartCoalescing".to_owned()].into_iter().chain(sides);
                lines.chain([format!("EndCoalescing {number}")]).collect::<Vec<_>>().join("\n    ")
            }
        }
    }
}
