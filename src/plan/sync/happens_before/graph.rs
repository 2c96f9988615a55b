//! The happens-before order as a graph. Each instruction has a node for its beginning and one for its end,
//! and edges lead from predecessors.
//!
//! A collective reads at its beginning and writes at its end. The sides of a P2P group execute between its
//! beginning and its end. `walk` visits the same order with clocks, which take less memory; the graph also
//! shows where an order comes from.

use rustc_hash::FxHashMap;

use super::{OrderError, clock_len, first_actors};
use crate::{
    Direction, InstKind,
    sync::{
        CommKey, CommNo, InstRef, Step, Symmetry, WaitOrder, World, acquire_step, begin_end_steps,
        collective_members, deliver_step,
        machine::Machine,
        memory_groups::{actor_count, total_actors},
        next_receives,
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

/// The nodes of communications.
#[derive(Default)]
struct Places {
    /// Of P2P groups: the step of each side, unless it has no elements.
    sides: FxHashMap<InstRef, Vec<Option<u32>>>,
    /// Of other instructions that communicate: the beginning and the end.
    nodes: FxHashMap<InstRef, [u32; 2]>,
}

impl Places {
    /// Returns the node of a side of a P2P group; of another instruction, that which `select` takes.
    fn node(&self, at: InstRef, side: u32, select: impl Fn([u32; 2]) -> u32) -> Option<u32> {
        match self.sides.get(&at) {
            Some(sides) => *sides.get(side as usize)?,
            None => self.nodes.get(&at).map(|it| select(*it)),
        }
    }
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
        clock_len(total_actors(world))?;
        let run = Machine::new(world, WaitOrder::Guaranteed, &|_| false, |_| ());
        let mut graph = Self::default();
        let numbers: Vec<u32> = (0..run.actors.len() as u32).collect();
        let places = graph.add_actors(world, &run, &numbers);
        let is_receive = |at: InstRef, side: usize| match &world[at.rank].code[at.inst].kind {
            InstKind::P2pGroup(it) => it.ops.get(side).is_some_and(|it| it.direction == Direction::Recv),
            _ => false,
        };
        let mut messages: FxHashMap<CommNo, [Option<u32>; 2]> = FxHashMap::default();
        for (at, sides) in &places.sides {
            for (side, (step, comm)) in sides.iter().zip(world.matching().comms_of(*at)).enumerate() {
                if step.is_some() {
                    messages.entry(*comm).or_default()[usize::from(is_receive(*at, side))] = *step;
                }
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

    /// As `of`, for one rank of each class. What an instruction waits for on another rank is represented by the instruction on the
    /// representative of that rank.
    pub fn of_representatives(world: &World, symmetry: &Symmetry) -> Self {
        let ranks: Vec<usize> = symmetry.classes().iter().map(|it| it[0]).collect();
        let run = Machine::of_ranks(world, &ranks, |_| ());
        let first = first_actors(world);
        let actors = |rank: &usize| first[*rank]..first[*rank] + actor_count(&world[*rank]);
        let numbers: Vec<u32> = ranks.iter().flat_map(actors).collect();
        let mut graph = Self::default();
        let places = graph.add_actors(world, &run, &numbers);
        for rank in ranks {
            for (wait, causes) in symmetry.causes(world, &world[rank]) {
                let at = InstRef { rank, inst: wait.inst };
                let to = places.node(at, wait.which, |[begin, end]| if wait.is_at_end { end } else { begin });
                for (cause, which) in causes {
                    // A signal is set at the end of its instruction. A part of a communication arrives at its beginning.
                    let signals = matches!(world[cause.rank].code[cause.inst].kind, InstKind::Signal { .. });
                    let from = places.node(cause, which, |[begin, end]| if signals { end } else { begin });
                    if let (Some(to), Some(from)) = (to, from) {
                        graph.predecessors[to as usize].push(from);
                    }
                }
            }
        }
        graph
    }

    /// Adds the instructions of the actors of a machine, with the orders that its events make. `numbers` are those of its
    /// actors.
    fn add_actors(&mut self, world: &World, run: &Machine<()>, numbers: &[u32]) -> Places {
        // By token: the nodes that signal it, and the nodes that wait for it.
        let mut tokens: Vec<[Vec<u32>; 2]> = vec![Default::default(); run.events.len()];
        let mut places = Places::default();
        for (actor, number) in run.actors.iter().zip(numbers) {
            let mut last = None;
            for item in &actor.items {
                let at = InstRef { rank: actor.rank, inst: item.inst as usize };
                let kind = &world[at.rank].code[at.inst].kind;
                let node = |part: Option<u32>| Node {
                    inst_ref: at,
                    actor: *number,
                    step: part.filter(|_| !item.is_post).map(|part| Step { inst_ref: at, index: part }),
                    is_post: item.is_post,
                };
                let [first, second] = begin_end_steps(at.rank, kind);
                let sides = if let InstKind::P2pGroup(it) = kind { Some(it) } else { None };
                let sides = sides.filter(|_| !item.is_post);
                let begin = self.push(node(first));
                self.predecessors[begin as usize].extend(last);
                let mut inside = vec![begin];
                let mut steps = Vec::new();
                // By side: the deliveries before it.
                let mut earlier: FxHashMap<usize, u32> = FxHashMap::default();
                let next = sides.map_or_else(Vec::new, next_receives);
                let ops = sides.into_iter().flat_map(|it| &it.ops);
                for (side, (it, next)) in ops.zip(next).enumerate() {
                    let takes = self.push(node(Some(acquire_step(side))));
                    self.predecessors[takes as usize].push(begin);
                    let step = self.push(node(Some(deliver_step(side))));
                    self.predecessors[step as usize].push(takes);
                    self.predecessors[takes as usize].extend(earlier.get(&side));
                    earlier.extend(next.map(|it| (it, step)));
                    inside.push(step);
                    steps.push(Some(step).filter(|_| !it.view.is_empty()));
                }
                let end = self.push(node(second));
                self.predecessors[end as usize].append(&mut inside);
                last = Some(end);
                if sides.is_some() {
                    places.sides.insert(at, steps);
                } else if !item.is_post && !world.matching().comms_of(at).is_empty() {
                    places.nodes.insert(at, [begin, end]);
                }
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
                self.predecessors[node as usize].extend_from_slice(&given);
            }
        }
        places
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
