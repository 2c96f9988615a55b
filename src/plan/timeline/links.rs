//! Communications that share the links of a GPU.
//!
//! Each GPU has one link, with the same bandwidth in both directions. What a communication moves in a microsecond while it runs
//! alone is its part of the link. While the parts in one direction of one link are together more than the whole link, each
//! communication progresses at 1 / their sum of its speed; over several such links, at the least of these speeds.

use grammar::collective::Members;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{SliceKind, items::Item, times::Times};
use crate::{Access, Communication, Direction, Plan};

/// What an item needs of a link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LinkUse {
    /// The rank whose GPU has the link.
    pub rank: usize,
    /// Whether data leaves the GPU.
    pub leaves: bool,
    /// The part of the bandwidth, while the item runs alone; 0 if the item of the other side counts, and this one only waits for it.
    pub part: f64,
}

/// Returns what an instruction needs of links, or the collective over peer memory whose first transfer it is. Alone it takes
/// `alone` microseconds; a link moves `bandwidth` bytes in a microsecond.
pub(super) fn link_uses(plan: &Plan, at: usize, alone: f64, bandwidth: f64) -> Vec<LinkUse> {
    let inst = &plan.code[at];
    let part = |bytes: usize| (bytes as f64 / (alone * bandwidth).max(f64::MIN_POSITIVE)).min(1.0);
    let own = |leaves: bool, bytes: usize| LinkUse { rank: plan.rank, leaves, part: part(bytes) };
    let other_side = |rank: usize, leaves: bool| LinkUse { rank, leaves, part: 0.0 };
    let mut found: Vec<LinkUse> = match inst.kind.communication() {
        Some(Communication::P2pGroup(it)) => {
            let moved = |direction: Direction| {
                let ops = it.ops.iter().filter(|it| it.direction == direction && it.peer != plan.rank);
                ops.map(|it| plan.bytes_of(&it.view)).fold(0, usize::saturating_add)
            };
            let peers = it.ops.iter().filter(|it| it.peer != plan.rank);
            let peers = peers.map(|it| other_side(it.peer, it.direction == Direction::Recv));
            peers.chain([own(true, moved(Direction::Send)), own(false, moved(Direction::Recv))]).collect()
        }
        Some(Communication::Collective(it)) => {
            let traffic = plan.traffic(inst);
            let bytes = (traffic.bytes as f64 * traffic.bus_factor) as usize;
            let sends = it.input.is_some();
            let receives = it.output.is_some();
            // Where one member sends to all others or receives from them, its link holds them up; else all do the same.
            let leaves = it.kind.of.facts().from == Members::Root;
            let team = &plan.communicators[it.communicator as usize].team;
            let root = it.kind.root.and_then(|member| Some(other_side(*team.get(member)?, leaves)));
            let own =
                [own(true, if sends { bytes } else { 0 }), own(false, if receives { bytes } else { 0 })];
            root.into_iter().chain(own).collect()
        }
        None => {
            let of_access = |(it, bytes): (Access<'_>, usize)| {
                [own(it.is_write, bytes), LinkUse { rank: it.rank, ..own(!it.is_write, bytes) }]
            };
            plan.peer_accesses(plan.kernel_range(at)).into_iter().flat_map(of_access).collect()
        }
    };
    found.retain(|it| it.part > 0.0 || it.rank != plan.rank);
    found
}

/// The ranks that have items, and how many ranks each of them stands for.
pub(super) struct Representatives {
    /// By rank: the rank that stands for it, and for how many ranks that one stands.
    of: FxHashMap<usize, (usize, f64)>,
}

impl Representatives {
    /// Those of classes of ranks, of which the first one has items; each rank stands for itself if there are none.
    pub fn of(classes: &[Vec<usize>]) -> Self {
        let members = |all: &Vec<usize>| {
            let (first, count) = (all.first().copied().unwrap_or(0), all.len() as f64);
            all.iter().map(move |it| (*it, (first, count))).collect::<Vec<_>>()
        };
        Self { of: classes.iter().flat_map(members).collect() }
    }

    fn get(&self, rank: usize) -> (usize, f64) {
        self.of.get(&rank).copied().unwrap_or((rank, 1.0))
    }
}

/// An item that uses a link.
struct User {
    begin: f64,
    end: f64,
    part: f64,
    item: usize,
}

/// Returns how long each item does not progress, of its present time, because others use the same links.
pub(super) fn lost_on_links(times: &Times<'_>, representatives: &Representatives) -> FxHashMap<usize, f64> {
    // By link and direction.
    let mut links: FxHashMap<(usize, bool), Vec<User>> = FxHashMap::default();
    for (number, it) in times.items.iter().enumerate() {
        if !it.is_work || it.kind != SliceKind::Communication {
            continue;
        }
        let [begin, end] = [it.first, it.last].map(|it| times.times[it as usize]);
        let Some((begin, end)) = begin.zip(end) else { continue };
        let users = representatives.get(it.inst_ref.rank).1;
        for used in &it.links {
            // As many ranks as this one stands for use the links of as many ranks as the other one stands for.
            let (rank, owners) = representatives.get(used.rank);
            let weight = if used.rank == it.inst_ref.rank { 1.0 } else { users / owners };
            let user = User { begin, end, part: used.part * weight, item: number };
            links.entry((rank, used.leaves)).or_default().push(user);
        }
    }
    let mut lost: FxHashMap<usize, f64> = FxHashMap::default();
    for users in links.into_values() {
        for (item, time) in lost_on(users) {
            let known = lost.entry(item).or_default();
            *known = known.max(time);
        }
    }
    lost
}

/// Returns how long each of the users of a link does not progress.
fn lost_on(users: Vec<User>) -> FxHashMap<usize, f64> {
    let mut lost: FxHashMap<usize, f64> = FxHashMap::default();
    let mut changes: Vec<(f64, usize, bool)> = Vec::with_capacity(2 * users.len());
    for (number, it) in users.iter().enumerate() {
        changes.extend([(it.begin, number, true), (it.end, number, false)]);
    }
    // At one time, what ends comes before what begins.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)).then(a.1.cmp(&b.1)));
    let mut active: FxHashSet<usize> = FxHashSet::default();
    let mut since = 0.0;
    for (time, number, begins) in changes {
        if active.len() > 1 && time > since {
            let load: f64 = active.iter().map(|it| users[*it].part).sum();
            if load > 1.0 {
                let not_progressed = (time - since) * (1.0 - 1.0 / load);
                active.iter().for_each(|it| *lost.entry(users[*it].item).or_default() += not_progressed);
            }
        }
        since = time;
        if begins {
            active.insert(number);
        } else {
            active.remove(&number);
        }
    }
    lost
}

/// Returns the time of an item that progresses for all but `lost` of its present time.
pub(super) fn slowed(item: &Item, lost: f64) -> f64 {
    let now = item.duration.microseconds();
    // The part in which it progresses is more than one in ten thousand: no link has more users at the same time.
    if lost <= 0.0 || now <= 0.0 { item.alone } else { item.alone / (1.0 - lost / now).max(1e-4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_link_progresses_by_its_part() {
        let user = |begin, end, part, item| User { begin, end, part, item };
        // Two that need the whole link, for 10 of 20 microseconds; a small one beside the second one alone.
        let lost =
            lost_on(vec![user(0.0, 20.0, 1.0, 0), user(10.0, 30.0, 1.0, 1), user(22.0, 24.0, 0.25, 2)]);
        assert_eq!(lost[&0], 5.0);
        assert!((lost[&1] - 5.4).abs() < 1e-9 && (lost[&2] - 0.4).abs() < 1e-9, "{lost:?}");
        // Those that fit do not lose.
        assert!(lost_on(vec![user(0.0, 9.0, 0.5, 0), user(0.0, 9.0, 0.5, 1)]).is_empty());
    }
}
