//! Computes which instructions precede which in a simple way: every edge of a graph, and its transitive
//! closure.

use std::collections::HashMap;

use grammar::words::CommunicationType;
use hir_plan::{Backend, CollectiveKind, Direction, InstKind, Plan, SignalId};

/// The transitive closure of the order. Each instruction has a begin and an end of its memory accesses: nodes
/// `n` and `n + 1`.
pub struct Graph {
    edges: Vec<Vec<usize>>,
    reached: Vec<Vec<u64>>,
    /// The begin node of each instruction, by rank and index.
    nodes: Vec<Vec<usize>>,
}

type Group<'p> = (Option<Backend>, &'p [usize]);

impl Graph {
    pub fn of(plans: &[Plan]) -> Self {
        let mut graph = Self { edges: Vec::new(), reached: Vec::new(), nodes: vec![Vec::new(); plans.len()] };
        let mut signals: HashMap<SignalId, usize> = HashMap::new();
        let mut awaits: Vec<(SignalId, usize)> = Vec::new();
        // `begins`: the begin node for a group, the index of the collective, and a rank. `sends`: the begin
        // node of the send for a group, sender, receiver, and index.
        let mut begins: HashMap<(Group, usize, usize), usize> = HashMap::new();
        let mut sends: HashMap<(Group, usize, usize, usize), usize> = HashMap::new();
        let mut meets: Vec<(usize, (Group, usize, usize))> = Vec::new();
        let mut receives: Vec<(usize, (Group, usize, usize, usize))> = Vec::new();
        for plan in plans {
            let me = plan.rank;
            let mut last_on_stream: HashMap<u32, usize> = HashMap::new();
            let mut last_on_queue: HashMap<Group, usize> = HashMap::new();
            let mut counts: HashMap<(Group, Option<(usize, Direction)>), usize> = HashMap::new();
            let (mut events, mut works) = (HashMap::new(), HashMap::new());
            for inst in &plan.code {
                let node = graph.pair();
                graph.nodes[me].push(node);
                let communicator = match &inst.kind {
                    InstKind::Collective(it) => Some(it.communicator),
                    InstKind::P2pGroup(it) => Some(it.communicator),
                    InstKind::ShareMemHandles { .. } | InstKind::Barrier => continue,
                    _ => None,
                };
                let group = communicator.map(|at| {
                    let it = &plan.communicators[at as usize];
                    (Some(it.backend), &it.team[..])
                });
                // The posting runs on the stream, and the posted work on the queue of the communicator.
                let on_stream = match group {
                    None => node,
                    Some(group) => {
                        let posting = graph.pair();
                        graph.edge(posting + 1, node);
                        if let Some(before) = last_on_queue.insert(group, node + 1) {
                            graph.edge(before, node);
                        }
                        posting
                    }
                };
                if let Some(before) = last_on_stream.insert(inst.stream, on_stream + 1) {
                    graph.edge(before, on_stream);
                }
                let mut next = |key| {
                    let count = counts.entry(key).or_insert(0);
                    *count += 1;
                    *count
                };
                match &inst.kind {
                    InstKind::RecordEvent { event } => _ = events.insert(*event, node + 1),
                    InstKind::WaitEvent { event } => {
                        events.get(event).into_iter().for_each(|from| graph.edge(*from, node))
                    }
                    InstKind::Wait { work } => {
                        works.get(work).into_iter().for_each(|from| graph.edge(*from, node))
                    }
                    InstKind::Signal { signal: slot } => _ = signals.insert(*slot, node + 1),
                    InstKind::WaitSignal { signal: slot } => awaits.push((*slot, node)),
                    InstKind::Reshard(reshard) => {
                        let group: Group = (None, &reshard.team);
                        let which = next((group, None));
                        begins.insert((group, which, me), node);
                        meets.extend(reshard.team.iter().map(|from| (node + 1, (group, which, *from))));
                    }
                    InstKind::Collective(collective) => {
                        works.insert(collective.work, node + 1);
                        let Some(group) = group else { continue };
                        let which = next((group, None));
                        begins.insert((group, which, me), node);
                        let gets = collective.output.as_ref().is_some_and(|view| !view.is_empty());
                        for (member, from) in group.1.iter().enumerate() {
                            if gets && needs(collective.kind, group.1, me, member) {
                                meets.push((node + 1, (group, which, *from)));
                            }
                        }
                    }
                    InstKind::P2pGroup(transfer) => {
                        works.insert(transfer.work, node + 1);
                        let Some(group) = group else { continue };
                        for side in &transfer.ops {
                            let which = next((group, Some((side.peer, side.direction))));
                            match side.direction {
                                Direction::Send => _ = sends.insert((group, me, side.peer, which), node),
                                Direction::Recv => receives.push((node + 1, (group, side.peer, me, which))),
                            }
                        }
                    }
                    _ => (),
                }
            }
        }
        let found = awaits.iter().filter_map(|(slot, to)| Some((*signals.get(slot)?, *to)));
        let found = found.chain(meets.iter().filter_map(|(to, key)| Some((*begins.get(key)?, *to))));
        let found = found.chain(receives.iter().filter_map(|(to, key)| Some((*sends.get(key)?, *to))));
        for (from, to) in found.collect::<Vec<_>>() {
            graph.edge(from, to);
        }
        graph.compute_reachability();
        graph
    }

    /// Returns true if an instruction ends before another begins.
    pub fn is_ordered(&self, (rank, inst): (usize, usize), (other, later): (usize, usize)) -> bool {
        let to = self.nodes[other][later];
        self.reached[self.nodes[rank][inst] + 1][to / 64] >> (to % 64) & 1 == 1
    }

    fn pair(&mut self) -> usize {
        let node = self.edges.len();
        self.edges.extend([vec![node + 1], Vec::new()]);
        node
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.edges[from].push(to);
    }

    /// Computes the reachable nodes of every node. A node is processed after all its successors.
    fn compute_reachability(&mut self) {
        let count = self.edges.len();
        let mut degrees = vec![0; count];
        self.edges.iter().flatten().for_each(|to| degrees[*to] += 1);
        let mut order: Vec<usize> = (0..count).filter(|it| degrees[*it] == 0).collect();
        let mut at = 0;
        while let Some(node) = order.get(at).copied() {
            at += 1;
            for to in &self.edges[node] {
                degrees[*to] -= 1;
                if degrees[*to] == 0 {
                    order.push(*to);
                }
            }
        }
        self.reached = vec![vec![0; count.div_ceil(64)]; count];
        for node in order.into_iter().rev() {
            let mut mine = std::mem::take(&mut self.reached[node]);
            for to in &self.edges[node] {
                mine[to / 64] |= 1 << (to % 64);
                mine.iter_mut().zip(&self.reached[*to]).for_each(|(mine, theirs)| *mine |= theirs);
            }
            self.reached[node] = mine;
        }
    }
}

/// Returns true if a member of a team receives data from another one.
fn needs(kind: CollectiveKind, team: &[usize], me: usize, from: usize) -> bool {
    let me = team.iter().position(|it| *it == me);
    let is_root = |member| kind.root == member;
    match kind.of {
        CommunicationType::Broadcast | CommunicationType::Scatter => is_root(Some(from)),
        CommunicationType::Gather | CommunicationType::Reduce => is_root(me),
        CommunicationType::SendRecv => is_root(Some(from)) && me == Some(usize::from(from == 0)),
        CommunicationType::CollectivePermute => kind.peers.is_some_and(|it| from == it.recv),
        CommunicationType::Allgather
        | CommunicationType::Allreduce
        | CommunicationType::ReduceScatter
        | CommunicationType::AllToAll => true,
    }
}
