//! The one change of the calls of one rank with which all calls meet.
//!
//! A fault of the program is that a rank leaves out a call, makes one more, exchanges two, or makes one otherwise. With the opposite change the calls of all
//! ranks meet in the order of the logs, or wait for a rank whose log ends. A change is likely if the calls around it then follow each
//! other as in other rounds or on other ranks, which they do not without it.
//!
//! Invariant: a rank is named only if no change of another rank that lets all calls meet is as likely.

mod context;

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    agreement::Key,
    departure::Departure,
    divergence::How,
    peers::offset,
    queues::{Call, Job},
    record::{Batch, GroupId, Peer, Rank, SignatureId},
};
use context::{CONTEXT, Corpus};

/// The number of calls, and of ranks times groups, above which nothing is searched.
const MAX_CALLS: usize = 100_000;
const MAX_COUNTERS: usize = 1 << 20;

/// The number of calls behind a change that are compared.
const BEHIND: usize = 4;

/// The number of calls before the first one that does not proceed that may be wrong, of ranks, and of changes that are tried.
const MAX_BACK: usize = 64;
const MAX_RANKS: usize = 32;
const MAX_TRIED: usize = 96;

/// By how many calls of context a change makes a place likelier at least. What a rank seldom calls is no call too many: that needs more.
const LEAST: f64 = 0.2;
const LEAST_WITHOUT: f64 = 2.0;

/// By how many calls of context the likeliest change is better than one of another rank; by less if neither is much better than none.
const MARGIN: f64 = 1.0;
const SMALL_MARGIN: f64 = 0.5;

/// The token of no call.
const NONE: u32 = u32::MAX;

/// A part of what is called at once: a collective, or a message of a batch.
#[derive(Clone, Copy)]
struct Op {
    group: GroupId,
    /// The other rank, and whether this one sends.
    peer: Option<(Rank, bool)>,
    key: Key,
    site: u32,
    signature: SignatureId,
    /// Whether it waits for nobody: what it meets is lost.
    is_free: bool,
}

/// What two parts that ranks with one role make have in common: what they do, where, the kind of the group, and the distance of the peer.
type Shown = (Key, u32, u32, Option<i64>);

/// What meets: of a group the n-th collective, or the n-th message from a rank to another one.
type Meeting = (GroupId, Option<(Rank, Rank)>, u32);

/// What is called at once.
#[derive(Clone)]
struct Item {
    call: Call,
    /// Equal numbers: equal calls of ranks with one role.
    token: u32,
    is_done: bool,
    ops: Vec<Op>,
}

/// How a lane is changed back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Without,
    With,
    Instead,
    Exchanged(usize),
}

/// A change of a lane at a position, and how likely it is.
struct Candidate {
    lane: usize,
    at: usize,
    change: Change,
    /// For a call that is put in: one like it.
    like: Option<Call>,
    put: Option<Item>,
    likeness: f64,
}

/// What happens if ranks execute their calls one by one.
struct Outcome {
    /// How far each lane comes.
    reached: Vec<usize>,
    /// The lanes that wait for none whose log ends, and those whose calls others do not make.
    stuck: Vec<usize>,
    /// The number of collectives that meet although they differ.
    differing: usize,
    /// The lanes of collectives that meet at different places of the program.
    apart: Vec<usize>,
}

/// Finds the rank, and what it did.
pub(crate) fn find(job: &Job<'_>) -> Option<Departure> {
    let logs = &job.records.ranks;
    let calls: usize = logs.iter().map(|it| it.records.len()).sum();
    let is_known = |rank: &Rank| job.records.log(*rank).is_some_and(|it| !it.only_active && !it.from_log);
    if calls > MAX_CALLS
        || logs.len() * job.records.groups.len() > MAX_COUNTERS
        || !job.world.iter().all(is_known)
    {
        return None;
    }
    let lanes = Lanes::new(job);
    let before = lanes.execute(None);
    // Where all calls meet, different lines may still show which rank departed.
    let meets_apart = before.stuck.is_empty() && before.differing == 0;
    let suspects = if meets_apart { &before.apart } else { &before.stuck };
    let corpus = Corpus::new(&lanes.all, |lane, at| lanes.before(lane, at));
    let mut found: Vec<Candidate> = Vec::new();
    for &lane in suspects.iter().take(MAX_RANKS) {
        found.extend(lanes.candidates(&corpus, lane, before.reached[lane]));
    }
    // A line that only one rank has, and only once, is a part of its own: `if rank == 0`.
    found.retain(|it| !meets_apart || it.change == Change::With || lanes.has_place_elsewhere(it.lane, it.at));
    found.sort_by(|a, b| b.likeness.total_cmp(&a.likeness));
    let meets = |it: Candidate| {
        let mut items = lanes.all[it.lane].clone();
        exchanged(&mut items, it.at, it.change, it.put.clone());
        let outcome = lanes.execute(Some((it.lane, &items)));
        let is_apart = meets_apart && !outcome.apart.is_empty();
        (outcome.stuck.is_empty() && outcome.differing == 0 && !is_apart).then_some((outcome.apart.len(), it))
    };
    let meeting: Vec<(usize, Candidate)> = found.into_iter().take(MAX_TRIED).filter_map(meets).collect();
    let (apart, best) =
        meeting.iter().min_by(|a, b| a.0.cmp(&b.0).then(b.1.likeness.total_cmp(&a.1.likeness)))?;
    let least = if best.change == Change::Without { LEAST_WITHOUT } else { LEAST };
    let margin = if best.likeness >= LEAST_WITHOUT { MARGIN } else { SMALL_MARGIN };
    let is_near = |it: &Candidate| it.lane != best.lane && it.likeness + margin > best.likeness;
    let has_rival = meeting.iter().any(|it| it.0 <= *apart && is_near(&it.1));
    (best.likeness >= least && !has_rival).then(|| lanes.explain(best))
}

/// The calls of all ranks.
struct Lanes<'j> {
    job: &'j Job<'j>,
    all: Vec<Vec<Item>>,
    /// For each rank and group, the number of the first collective; `None` if it is lost.
    first: Vec<Vec<Option<u32>>>,
}

impl<'j> Lanes<'j> {
    fn new(job: &'j Job<'j>) -> Self {
        let mut tokens: FxHashMap<Vec<Shown>, u32> = FxHashMap::default();
        let mut all = Vec::new();
        let mut first = Vec::new();
        for log in &job.records.ranks {
            let rank = log.rank;
            let mut items: Vec<Item> = Vec::new();
            let mut batches: FxHashMap<(GroupId, u32), usize> = FxHashMap::default();
            for (at, record) in log.records.iter().enumerate() {
                let is_message = record.peer != Peer::None;
                if !is_message && !record.is_collective() {
                    continue;
                }
                let call = Call { rank, at: at as u32 };
                let op = op(job, call);
                if is_message && record.batch == Batch::Member {
                    let next = items.len();
                    let place = *batches.entry((record.group, record.p2p_seq)).or_insert(next);
                    if let Some(item) = items.get_mut(place) {
                        item.ops.push(op);
                        item.is_done &= record.done;
                        continue;
                    }
                }
                items.push(Item { call, token: 0, is_done: record.done, ops: vec![op] });
            }
            for item in &mut items {
                let shown = item.ops.iter().map(|it| {
                    let peer = it.peer.and_then(|(peer, _)| offset(job, it.group, rank, peer));
                    (it.key, it.site, job.kind_of_group(it.group), peer)
                });
                let next = tokens.len() as u32;
                item.token = *tokens.entry(shown.collect()).or_insert(next);
            }
            let mut own = vec![None; job.records.groups.len()];
            for queue in &job.queues {
                if let Some(lane) = queue.lane(rank) {
                    let is_lost = lane.calls.is_empty() && log.is_cut();
                    own[queue.group.index()] = (!is_lost).then_some(lane.first.max(1));
                }
            }
            all.push(items);
            first.push(own);
        }
        Self { job, all, first }
    }

    /// Returns whether the place of a lane's call is also that of another call, of this lane or another one.
    fn has_place_elsewhere(&self, lane: usize, at: usize) -> bool {
        let site = |it: &Item| it.ops.first().map(|it| it.site);
        let own = self.all[lane].get(at).and_then(site);
        let items = |(of, items): (usize, &Vec<Item>)| {
            items.iter().enumerate().any(|(place, it)| (of, place) != (lane, at) && site(it) == own)
        };
        self.all.iter().enumerate().any(items)
    }

    fn place(&self, rank: Rank) -> Option<usize> {
        self.job.records.ranks.binary_search_by_key(&rank, |it| it.rank).ok()
    }

    /// Executes the calls of each rank one by one, with the calls of one lane exchanged.
    fn execute(&self, changed: Option<(usize, &[Item])>) -> Outcome {
        let lane = |at: usize| match changed {
            Some((of, items)) if of == at => items,
            _ => &self.all[at],
        };
        let count = self.all.len();
        let mut next = self.first.clone();
        let mut posted: FxHashMap<(GroupId, Rank, Rank, bool), u32> = FxHashMap::default();
        // The numbers of the parts of the call at which each lane is.
        let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut met: FxHashMap<Meeting, (Op, usize)> = FxHashMap::default();
        let mut wrong = vec![false; count];
        let mut apart = BTreeSet::new();
        let mut outcome =
            Outcome { reached: vec![0; count], stuck: Vec::new(), differing: 0, apart: Vec::new() };
        // Whether another lane has to come to something first, and which.
        let waits = |at: usize,
                     next: &[Vec<Option<u32>>],
                     posted: &FxHashMap<_, u32>,
                     ops: &[Op],
                     numbers: &[u32]| {
            let rank = self.job.records.ranks[at].rank;
            let mut of: Vec<usize> = Vec::new();
            for (op, number) in ops.iter().zip(numbers).filter(|it| !it.0.is_free) {
                match op.peer {
                    Some((peer, sends)) => {
                        let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
                        let theirs = posted.get(&(op.group, from, to, !sends)).copied().unwrap_or(0);
                        if theirs <= *number {
                            of.extend(self.place(peer));
                        }
                    }
                    None => {
                        let queue = self.job.queue(op.group);
                        let members =
                            queue.into_iter().flat_map(|it| &it.lanes).filter_map(|it| self.place(it.rank));
                        of.extend(
                            members.filter(|it| next[*it][op.group.index()].is_some_and(|it| it <= *number)),
                        );
                    }
                }
            }
            of
        };
        let mut moves = true;
        while std::mem::take(&mut moves) {
            for at in 0..count {
                let rank = self.job.records.ranks[at].rank;
                while let Some(item) = lane(at).get(outcome.reached[at]) {
                    if numbers[at].is_empty() {
                        moves = true;
                        for op in &item.ops {
                            let (number, place) = match op.peer {
                                _ if op.is_free => (0, None),
                                Some((peer, sends)) => {
                                    let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
                                    let count = posted.entry((op.group, from, to, sends)).or_default();
                                    *count += 1;
                                    (*count - 1, Some((op.group, Some((from, to)), *count - 1)))
                                }
                                None => {
                                    let count = next[at][op.group.index()].get_or_insert(0);
                                    *count += 1;
                                    (*count - 1, Some((op.group, None, *count - 1)))
                                }
                            };
                            numbers[at].push(number);
                            let Some(place) = place else { continue };
                            let (other, first) = *met.entry(place).or_insert((*op, at));
                            let is_wrong = match op.peer {
                                None => other.key != op.key,
                                Some(_) => self.differ(&other, op),
                            };
                            outcome.differing += usize::from(is_wrong);
                            if is_wrong && !item.is_done {
                                (wrong[at], wrong[first]) = (true, true);
                            }
                            if op.peer.is_none() && other.site != op.site {
                                apart.extend([at, first]);
                            }
                        }
                    }
                    if wrong[at]
                        || !item.is_done && !waits(at, &next, &posted, &item.ops, &numbers[at]).is_empty()
                    {
                        break;
                    }
                    numbers[at].clear();
                    outcome.reached[at] += 1;
                }
            }
        }
        // Who waits for a lane that ends waits for that rank.
        let mut is_open: Vec<bool> = (0..count).map(|at| outcome.reached[at] < lane(at).len()).collect();
        let waiting: Vec<Vec<usize>> = (0..count)
            .map(|at| match lane(at).get(outcome.reached[at]) {
                Some(item) if !wrong[at] => waits(at, &next, &posted, &item.ops, &numbers[at]),
                _ => Vec::new(),
            })
            .collect();
        let mut changes = true;
        while std::mem::take(&mut changes) {
            for at in 0..count {
                if is_open[at] && waiting[at].iter().any(|it| !is_open[*it]) {
                    (is_open[at], changes) = (false, true);
                }
            }
        }
        outcome.stuck = (0..count).filter(|it| is_open[*it] || wrong[*it]).collect();
        outcome.apart = apart.into_iter().collect();
        outcome
    }

    /// Returns the tokens of the two calls before a position; `NONE` is before the begin of a log that has lost nothing.
    fn before(&self, lane: usize, at: usize) -> Option<[u32; 2]> {
        let token = |at: usize| self.all[lane][at].token;
        let is_whole = self.job.records.ranks[lane].lost == 0;
        let second = token(at.checked_sub(1)?);
        Some([at.checked_sub(2).map(token).or_else(|| is_whole.then_some(NONE))?, second])
    }

    fn differ(&self, one: &Op, other: &Op) -> bool {
        let [one, other] = [one, other].map(|it| self.job.records.signature(it.signature));
        one.elements() != other.elements() || one.element_type() != other.element_type()
    }

    /// Returns the changes of a lane up to a position that make its calls likelier, or little less likely.
    fn candidates(&self, corpus: &Corpus, lane: usize, reached: usize) -> Vec<Candidate> {
        let items = &self.all[lane];
        let mut found = Vec::new();
        for at in reached.saturating_sub(MAX_BACK)..(reached + BEHIND).min(items.len()) {
            let first = at.saturating_sub(2 * CONTEXT);
            let end = (at + 1 + BEHIND).min(items.len());
            let tokens: Vec<u32> = items[first..end].iter().map(|it| it.token).collect();
            let place = at - first;
            let around = Corpus::around(&tokens, place);
            let own = corpus.likeness(lane, &tokens, place, (0, &around));
            let mut add = |change: Change, like: Option<Call>, put: Option<Item>| {
                let mut tokens = tokens.clone();
                let token = put.as_ref().map(|it| it.token);
                let changed = exchanged(&mut tokens, place, change, token);
                let likeness = corpus.likeness(lane, &tokens, place, (changed, &around)) - own;
                if likeness > -SMALL_MARGIN {
                    found.push(Candidate { lane, at, change, like, put, likeness });
                }
            };
            // At the end of a log, a loop may be left for the first time: only another call at the same line is not that.
            let is_new = |it: &Item| {
                !corpus.is_shared(it.token) && items[..at].iter().all(|before| before.token != it.token)
            };
            let is_end = at + 1 == items.len() || items[at..].iter().all(is_new);
            // One call behind it may be the first of a part that the program seldom has.
            if at + 2 < items.len() {
                add(Change::Without, None, None);
            }
            for by in (1..4).filter(|by| items.get(at + by).is_some_and(|it| it.token != items[at].token)) {
                add(Change::Exchanged(by), None, None);
            }
            let Some(key) = self.before(lane, at) else { continue };
            for (of, place) in corpus.after.get(&key).into_iter().flat_map(|it| it.values()) {
                let like = &self.all[*of][*place];
                let Some(put) = self.as_of(like, lane).filter(|it| it.token != items[at].token) else {
                    continue;
                };
                if !is_end {
                    add(Change::With, Some(like.call), Some(put.clone()));
                }
                let is_place = items[at].ops[0].site != 0 && put.ops[0].site == items[at].ops[0].site;
                if !is_end || is_place {
                    add(Change::Instead, Some(like.call), Some(put));
                }
            }
        }
        found
    }

    /// Returns a call as another rank makes it: in its own group of the kind, with the peer at the same distance.
    fn as_of(&self, item: &Item, lane: usize) -> Option<Item> {
        let (from, to) = (item.call.rank, self.job.records.ranks[lane].rank);
        let mut item = Item { is_done: false, ..item.clone() };
        if from == to {
            return Some(item);
        }
        for op in &mut item.ops {
            let kind = self.job.kind_of_group(op.group);
            let log = self.job.records.log(to)?;
            let mut groups: FxHashSet<GroupId> = self.job.groups_of(log).collect();
            groups.retain(|it| self.job.kind_of_group(*it) == kind);
            let mut groups = groups.into_iter();
            let group = groups.next().filter(|_| groups.next().is_none())?;
            if let Some((peer, sends)) = op.peer {
                let by = offset(self.job, op.group, from, peer)?;
                let members = &self.job.queue(group)?.members;
                let place = members.iter().position(|it| *it == to)? as i64;
                let peer = members[(place + by).rem_euclid(members.len() as i64) as usize];
                op.peer = Some((peer, sends));
            }
            op.group = group;
        }
        Some(item)
    }

    fn explain(&self, found: &Candidate) -> Departure {
        let items = &self.all[found.lane];
        let call = items[found.at].call;
        let (usual, how) = match (found.change, found.like) {
            (Change::Without, _) => (items[found.at + 1].call, How::Added(1)),
            (Change::Exchanged(by), _) => (items[found.at + by].call, How::Reordered(2)),
            (Change::With, Some(like)) => (like, How::Skipped(1)),
            (_, like) => {
                let like = like.unwrap_or(call);
                let [mine, theirs] =
                    [call, like].map(|it| self.job.records.signature(self.job.record(it).signature));
                let is_one = mine.name == theirs.name && self.job.token(call).1 == self.job.token(like).1;
                let how = match is_one && self.job.key(call) != self.job.key(like) {
                    true if mine.element_type() != theirs.element_type() => How::ElementType,
                    true => How::Elements,
                    false => How::Other,
                };
                (like, how)
            }
        };
        let like = Some(usual.rank).filter(|it| *it != call.rank).into_iter().collect();
        Departure { call, usual, like, how, count: None }
    }
}

/// Changes calls at a position. Returns the position behind what is changed.
fn exchanged<T>(items: &mut Vec<T>, at: usize, change: Change, put: Option<T>) -> usize {
    match (change, put) {
        (Change::Without, _) => {
            items.remove(at);
            at
        }
        (Change::Exchanged(by), _) => {
            items.swap(at, at + by);
            at + by + 1
        }
        (Change::Instead, Some(put)) => {
            items[at] = put;
            at + 1
        }
        (Change::With, Some(put)) => {
            items.insert(at, put);
            at + 1
        }
        (Change::With | Change::Instead, None) => at,
    }
}

fn op(job: &Job<'_>, call: Call) -> Op {
    let record = job.record(call);
    let (key, site) = job.token(call);
    let is_send = job.records.signature(record.signature).kind == crate::record::Kind::Send;
    let peer = match record.peer {
        Peer::Rank(peer) => Some((peer, is_send)),
        Peer::None | Peer::Any => None,
    };
    // Messages whose other end may be lost.
    let is_cut = |(peer, sends): (Rank, bool)| {
        let (from, to) = if sends { (call.rank, peer) } else { (peer, call.rank) };
        let at = job.pairs.binary_search_by_key(&(record.group, from, to), |it| it.0);
        at.is_ok_and(|it| {
            let pair = &job.pairs[it].1;
            let calls = if sends { &pair.sends } else { &pair.receives };
            pair.is_cut || calls.first().is_none_or(|it| call.at < *it)
        })
    };
    let is_free = record.peer == Peer::Any || peer.is_some_and(is_cut);
    Op { group: record.group, peer, key, site, signature: record.signature, is_free }
}
