//! Executes a job as PyTorch and NCCL do.
//!
//! From `ProcessGroupNCCL.cpp` (2.7 and later): a synchronous collective runs on the program's stream, an asynchronous one and all messages on
//! the stream of their communicator, which first waits for the program's stream; after a blocking message or batch the program's stream waits
//! for it. A batch runs on the communicator of the group; an unbatched message on one of the pair, or with eager initialization on that of
//! the group. The kernels of a communicator run one after the other. With lazy initialization the host waits in the first call of a
//! communicator, before the record, until all members have come to it.
//!
//! From NCCL: the collectives of a communicator are matched by their order, messages by that of each direction. A collective that needs all members
//! completes when all have started it. Small sends, and small rooted collectives on ranks whose data does not depend on the others, complete
//! from buffers.

use rustc_hash::FxHashMap;

use super::{
    program::{Call, Kind, Program, Step},
    rng::Rng,
};

/// What holds for the whole job.
#[derive(Clone)]
pub struct Settings {
    /// The number of calls that the host may be ahead of the first that has not completed.
    pub ahead: usize,
    /// Whether communicators are made at their first call.
    pub is_lazy: bool,
    /// Messages up to this number of bytes complete from buffers.
    pub eager_bytes: u64,
}

impl Settings {
    /// Chooses some.
    pub fn choose(rng: &mut Rng) -> Self {
        Self {
            ahead: rng.pick(&[0, 1, 2, 5, 10, 20, 50]),
            is_lazy: rng.percent(50),
            eager_bytes: rng.pick(&[0, 1 << 14, 1 << 19]),
        }
    }
}

/// What of a device does not work.
#[derive(Clone, Copy, Default)]
pub struct Broken {
    /// The kernel of this call of this rank never starts.
    pub kernel: Option<(usize, usize)>,
    /// The call with this position on this rank starts everywhere and never completes.
    pub network: Option<(usize, usize)>,
}

/// The times of a call in nanoseconds from the start of the job; `None`: never.
#[derive(Clone, Copy, Default)]
pub struct Times {
    pub issued: Option<u64>,
    pub started: Option<u64>,
    pub done: Option<u64>,
}

/// A communicator: of a group, or of a pair of its ranks.
type Communicator = (usize, Option<(usize, usize)>);

/// What meets: a collective by its number, a message by its direction and number.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Meeting {
    Collective(Communicator, usize),
    Message(Communicator, usize, usize, usize),
}

struct Node<'a> {
    call: &'a Call,
    /// Calls of this rank that the kernel, and that the host, waits for.
    after: Vec<usize>,
    host_after: Vec<usize>,
    first_use: Option<Communicator>,
    meetings: Vec<Meeting>,
}

/// Executes a job: the times of the calls of each rank.
pub fn execute(program: &Program, settings: &Settings, broken: Broken) -> Vec<Vec<Times>> {
    let nodes: Vec<Vec<Node>> = (0..program.ranks.len()).map(|rank| nodes(program, settings, rank)).collect();
    let mut met: FxHashMap<Meeting, Vec<(usize, usize)>> = FxHashMap::default();
    for (rank, own) in nodes.iter().enumerate() {
        for (at, node) in own.iter().enumerate() {
            node.meetings.iter().for_each(|&it| met.entry(it).or_default().push((rank, at)));
        }
    }
    let network: Vec<Meeting> =
        broken.network.map_or(Vec::new(), |(rank, at)| nodes[rank][at].meetings.clone());
    let mut times: Vec<Vec<Times>> = nodes.iter().map(|own| vec![Times::default(); own.len()]).collect();
    let mut next = vec![(0, 0u64); nodes.len()];
    let mut open_from = vec![0; nodes.len()];
    let mut arrived: FxHashMap<Communicator, FxHashMap<usize, u64>> = FxHashMap::default();
    // Ranks for which something may have changed.
    let mut waiting: Vec<usize> = (0..nodes.len()).rev().collect();
    let mut is_waiting = vec![true; nodes.len()];
    while let Some(rank) = waiting.pop() {
        is_waiting[rank] = false;
        let own = &nodes[rank];
        let mut wake = |group: usize| {
            for &it in &program.groups[group].ranks {
                if !std::mem::replace(&mut is_waiting[it], true) {
                    waiting.push(it);
                }
            }
        };
        // The host issues what it can.
        while let Some(node) = own.get(next[rank].0) {
            let (at, clock) = next[rank];
            let Some(ready) = latest(node.host_after.iter().map(|&it| times[rank][it].done)) else { break };
            let mut time = ready.max(clock) + node.call.host_time;
            if let Some(communicator) = node.first_use {
                let here = arrived.entry(communicator).or_default();
                if here.insert(rank, time).is_none() {
                    wake(communicator.0);
                }
                let members = communicator.1.map_or(program.groups[communicator.0].ranks.len(), |_| 2);
                if here.len() < members {
                    break;
                }
                time = here.values().copied().max().unwrap_or(time) + 1_000;
            }
            times[rank][at].issued = Some(time);
            next[rank] = (at + 1, time);
        }
        // Kernels start and complete.
        for at in open_from[rank]..next[rank].0 {
            let node = &own[at];
            if times[rank][at].started.is_none() && broken.kernel != Some((rank, at)) {
                let ready = latest(node.after.iter().map(|&it| times[rank][it].done));
                let start = ready.zip(times[rank][at].issued).map(|(a, b)| a.max(b));
                times[rank][at].started = start;
                if start.is_some() {
                    wake(node.call.group);
                }
            }
            if times[rank][at].started.is_some() && times[rank][at].done.is_none() {
                let done = completes(program, settings, &nodes, &met, &times, &network, (rank, at));
                times[rank][at].done = done;
                if done.is_some() {
                    wake(node.call.group);
                }
            }
        }
        while times[rank].get(open_from[rank]).is_some_and(|it| it.done.is_some()) {
            open_from[rank] += 1;
        }
    }
    times
}

/// Returns the last of some times, or `None` if one is never.
fn latest(times: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    times.into_iter().try_fold(0, |last, it| it.map(|it| it.max(last)))
}

fn nodes<'a>(program: &'a Program, settings: &Settings, rank: usize) -> Vec<Node<'a>> {
    let mut nodes: Vec<Node> = Vec::new();
    let (mut tail, mut pending, mut host_after) = (Vec::new(), Vec::new(), Vec::new());
    let mut last: FxHashMap<Communicator, usize> = FxHashMap::default();
    let mut counts: FxHashMap<(Communicator, Option<(usize, usize)>), usize> = FxHashMap::default();
    for step in &program.ranks[rank] {
        let call = match step {
            Step::WaitAll => {
                tail.append(&mut pending);
                continue;
            }
            Step::Item => {
                host_after.clone_from(&tail);
                continue;
            }
            Step::Call(call) => call,
        };
        let at = nodes.len();
        let communicator = match &call.kind {
            Kind::Message(it) if settings.is_lazy => {
                (call.group, Some((rank.min(it.peer), rank.max(it.peer))))
            }
            _ => (call.group, None),
        };
        let mut number = |direction: Option<(usize, usize)>| {
            let count = counts.entry((communicator, direction)).or_default();
            *count += 1;
            *count
        };
        let messages = match &call.kind {
            Kind::Message(it) => std::slice::from_ref(it),
            Kind::Batch(all) => all,
            _ => &[],
        };
        let mut meetings: Vec<Meeting> = messages
            .iter()
            .map(|it| if it.sends { (rank, it.peer) } else { (it.peer, rank) })
            .map(|(from, to)| Meeting::Message(communicator, from, to, number(Some((from, to)))))
            .collect();
        if messages.is_empty() && !matches!(call.kind, Kind::Batch(_)) {
            meetings.push(Meeting::Collective(communicator, number(None)));
        }
        let mut after: Vec<usize> = tail.clone();
        after.extend(last.get(&communicator));
        if at > settings.ahead {
            host_after.push(at - 1 - settings.ahead);
        }
        let first_use = (settings.is_lazy && !last.contains_key(&communicator)).then_some(communicator);
        last.insert(communicator, at);
        if call.is_async {
            pending.push(at);
        } else {
            tail = vec![at];
        }
        nodes.push(Node { call, after, host_after: std::mem::take(&mut host_after), first_use, meetings });
    }
    nodes
}

/// Returns whether two calls that meet move the same data.
fn fit(a: &Call, b: &Call) -> bool {
    let bytes = |it: &Call| it.size * it.dtype.1;
    let is_message = |it: &Call| matches!(it.kind, Kind::Message(_) | Kind::Batch(_));
    bytes(a) == bytes(b) && (is_message(a) && is_message(b) || a.kind == b.kind)
}

/// Returns when a started call completes.
fn completes(
    program: &Program,
    settings: &Settings,
    nodes: &[Vec<Node>],
    met: &FxHashMap<Meeting, Vec<(usize, usize)>>,
    times: &[Vec<Times>],
    network: &[Meeting],
    (rank, at): (usize, usize),
) -> Option<u64> {
    let node = &nodes[rank][at];
    let is_small = node.call.size * node.call.dtype.1 <= settings.eager_bytes;
    let start = times[rank][at].started?;
    let mut last = start;
    for meeting in &node.meetings {
        // What a sender has put into a buffer has completed for it.
        let is_buffered = matches!(meeting, Meeting::Message(_, from, _, _) if is_small && *from == rank);
        if network.contains(meeting) && !is_buffered {
            return None;
        }
        let sides = met.get(meeting)?;
        let members: Vec<usize> = match meeting {
            Meeting::Message(_, from, _, _) if is_small && *from == rank => vec![rank],
            Meeting::Message(_, from, to, _) => vec![*from, *to],
            Meeting::Collective((group, _), _) => {
                let ranks = &program.groups[*group].ranks;
                let place = |it: usize| ranks.iter().position(|&other| other == it).unwrap_or(0);
                let count = ranks.len();
                // The distance from the root along the ring.
                let from = |root: usize, it: usize| (place(it) + count - place(root)) % count;
                let needs = |it: usize| match node.call.kind {
                    Kind::Broadcast(root) if is_small => from(root, it) <= from(root, rank),
                    Kind::Reduce(root) if is_small => from(root, it) >= from(root, rank),
                    _ => true,
                };
                ranks.iter().copied().filter(|&it| needs(it)).collect()
            }
        };
        for member in members {
            let &(_, place) = sides.iter().find(|it| it.0 == member)?;
            if !fit(node.call, nodes[member][place].call) {
                return None;
            }
            last = last.max(times[member][place].started?);
        }
        // A collective whose calls differ hangs on all members that wait for each other.
        if let Meeting::Collective(..) = meeting
            && sides.iter().any(|&(member, place)| !fit(node.call, nodes[member][place].call))
        {
            return None;
        }
    }
    Some(last + node.call.device_time)
}
