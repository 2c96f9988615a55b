//! The happens-before order as a graph. Each instruction has a node for its beginning and one for its end,
//! and edges lead from predecessors.
//!
//! A collective reads at its beginning and writes at its end. The sides of a P2P group execute between its
//! beginning and its end. `walk` visits the same order with clocks, which take less memory; the graph also
//! shows where an order comes from.

use rustc_hash::FxHashMap;

use super::{OrderError, actor_count};
use crate::{
    Direction, InstKind,
    sync::{
        CommKey, CommNo, InstRef, Step, WaitOrder, World, acquire_step, begin_end_steps, collective_members,
        deliver_step, machine::Machine,
    },
};

/// An event in the execution of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The instruction.
    pub inst_ref: InstRef,
    /// The actor that executes it, numbered as in `happens_before::Occurrence`.
    pub actor: u32,
    /// The step that executes here, if any.
    pub step: Option<Step>,
    /// Whether the instruction is only posted here, and executes on its queue.
    pub is_post: bool,
}

/// The happens-before order.
#[derive(Clone, Debug, Default)]
pub struct HappensBeforeGraph {
    /// The nodes, actor by actor, in issue order.
    pub nodes: Vec<Node>,
    /// By node: the indices of its direct predecessors.
    pub predecessors: Vec<Vec<u32>>,
}

impl HappensBeforeGraph {
    /// Builds the happens-before order of plans that do not deadlock.
    ///
    /// # Errors
    /// The world has too many streams.
    pub fn of(world: &World) -> Result<Self, OrderError> {
        actor_count(world)?;
        let run = Machine::new(world, WaitOrder::Guaranteed, &|_| false, |_| ());
        let matched = world.matching();
        let mut graph = Self::default();
        // By token: the nodes that signal it, and the nodes that wait for it.
        let mut tokens: Vec<[Vec<u32>; 2]> = vec![Default::default(); run.events.len()];
        let mut messages: FxHashMap<CommNo, [Option<u32>; 2]> = FxHashMap::default();
        for (number, actor) in run.actors.iter().enumerate() {
            let mut last = None;
            for item in &actor.items {
                let at = InstRef { rank: actor.rank, inst: item.inst as usize };
                let kind = &world[at.rank].code[at.inst].kind;
                let node = |part: Option<u32>| Node {
                    inst_ref: at,
                    actor: number as u32,
                    step: part.filter(|_| !item.is_post).map(|part| Step { inst_ref: at, index: part }),
                    is_post: item.is_post,
                };
                let [first, second] = begin_end_steps(at.rank, kind);
                let sides = if let InstKind::P2pGroup(it) = kind { Some(&it.ops) } else { None };
                let sides = sides.filter(|_| !item.is_post);
                let begin = graph.push(node(first));
                graph.predecessors[begin as usize].extend(last);
                let mut inside = vec![begin];
                for (side, (it, comm)) in sides.into_iter().flatten().zip(matched.comms_of(at)).enumerate() {
                    let takes = graph.push(node(Some(acquire_step(side))));
                    graph.predecessors[takes as usize].push(begin);
                    let step = graph.push(node(Some(deliver_step(side))));
                    graph.predecessors[step as usize].push(takes);
                    inside.push(step);
                    if !it.view.is_empty() {
                        messages.entry(*comm).or_default()[usize::from(it.direction == Direction::Recv)] =
                            Some(step);
                    }
                }
                let end = graph.push(node(second));
                graph.predecessors[end as usize].append(&mut inside);
                last = Some(end);
                let [start, begun, to_end, ended, stop] = item.tokens;
                let mut add = |range: std::ops::Range<u32>, takes: usize, node: u32| {
                    for token in &run.tokens[range.start as usize..range.end as usize] {
                        tokens[*token as usize][takes].push(node);
                    }
                };
                add(start..begun, 1, begin);
                add(ended..stop, 0, end);
                // The sides of a P2P group wait for each other individually.
                if sides.is_none() {
                    add(begun..to_end, 0, begin);
                    add(to_end..ended, 1, end);
                }
            }
        }
        for [given, taken] in tokens {
            for node in taken {
                graph.predecessors[node as usize].extend_from_slice(&given);
            }
        }
        for [send, recv] in messages.into_values() {
            if let (Some(send), Some(recv)) = (send, recv) {
                graph.predecessors[recv as usize].push(send);
            }
        }
        graph.join_resharding(world);
        Ok(graph)
    }

    fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.predecessors.push(Vec::new());
        self.nodes.len() as u32 - 1
    }

    /// Makes a resharding operator happen once for its whole team, at the beginning of its first member.
    fn join_resharding(&mut self, world: &World) {
        let matched = world.matching();
        let is_member = |it: &InstRef| matches!(world[it.rank].code[it.inst].kind, InstKind::Reshard(_));
        let mut nodes: FxHashMap<InstRef, [u32; 2]> = FxHashMap::default();
        for (number, it) in self.nodes.iter().enumerate().filter(|(_, it)| is_member(&it.inst_ref)) {
            nodes.entry(it.inst_ref).or_insert([number as u32; 2])[1] = number as u32;
        }
        for comm in matched.comms.iter().filter(|it| matches!(it.key, CommKey::Collective(..))) {
            let Some(first) = comm.parts.first().filter(|it| is_member(&it.inst_ref)) else { continue };
            let Some(members) = collective_members(matched, first.inst_ref) else { continue };
            let all: Option<Vec<[u32; 2]>> = members.iter().map(|it| nodes.get(it).copied()).collect();
            let Some([whole, _]) = all.as_ref().and_then(|it| it.first()).copied() else { continue };
            for [begin, end] in all.into_iter().flatten() {
                if begin != whole {
                    self.predecessors[whole as usize].push(begin);
                }
                self.predecessors[end as usize].push(whole);
            }
        }
    }

    /// Returns all nodes in a topological order. Of the nodes that are ready, nodes without a step come
    /// first, then those of the earliest instruction.
    pub fn topological_order(&self) -> Vec<u32> {
        let mut missing: Vec<u32> = self.predecessors.iter().map(|it| it.len() as u32).collect();
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for (node, before) in self.predecessors.iter().enumerate() {
            for it in before {
                after[*it as usize].push(node as u32);
            }
        }
        let key = |node: u32| {
            let it = self.nodes[node as usize];
            (it.step.is_some(), it.inst_ref.inst, it.inst_ref.rank, node)
        };
        let free = missing.iter().enumerate().filter(|it| *it.1 == 0);
        let mut ready: std::collections::BTreeSet<_> = free.map(|it| key(it.0 as u32)).collect();
        let mut sorted = Vec::with_capacity(self.nodes.len());
        while let Some((.., node)) = ready.pop_first() {
            sorted.push(node);
            for it in &after[node as usize] {
                missing[*it as usize] -= 1;
                if missing[*it as usize] == 0 {
                    ready.insert(key(*it));
                }
            }
        }
        sorted
    }
}
