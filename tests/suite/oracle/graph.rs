//! What a program executes: works of streams, hosts and communications, each with the works that it follows.
//!
//! `needs` has what documents guarantee, `may` what a work may wait for in addition. Races are decided with the first, deadlocks with both.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    link,
    program::{Executed, Kind, Program, Role, Side, Stmt},
    works::{
        Access, Buffer, By, Cell, Comm, Exchange, Flow, Kernel, Meeting, Op, Rules, Transfer, cells, op_of,
    },
};

/// What NCCL connects at once: a communicator, with a kind of collective, or a sender and a receiver.
pub type Connection = (Comm, Option<Kind>, [usize; 2]);

#[derive(Default)]
pub struct Graph {
    pub needs: Vec<Vec<usize>>,
    pub may: Vec<Vec<usize>>,
    /// What hosts may wait for, and what they do wait for: only streams order kernels.
    pub hosts: Vec<Vec<usize>>,
    pub exchanged: Vec<Vec<usize>>,
    pub accesses: Vec<Access>,
    pub flows: Vec<Flow>,
    /// By rank: the caller before the first run, and after each run.
    pub entry: Vec<usize>,
    pub exits: Vec<Vec<usize>>,
    pub buffers: BTreeMap<[usize; 3], Buffer>,
    /// Those of later runs.
    pub later: BTreeMap<[usize; 3], Buffer>,
    /// By rank.
    pub kernels: Vec<Vec<Kernel>>,
    /// By sender, receiver and whether the rank sends.
    pub transfers: BTreeMap<(usize, usize, bool), Vec<Transfer>>,
    /// The place where each rank first uses a communicator.
    pub created: BTreeMap<Comm, BTreeMap<usize, Meeting>>,
    /// The place where each rank first needs a connection: of a kind of collective, or of a sender with a receiver.
    pub connected: BTreeMap<Connection, BTreeMap<usize, Meeting>>,
    /// By rank: where it gives its handles, has those of others, has reached the barrier, and has passed it. With those of transfers by sender, receiver and
    /// side; none for a view.
    pub exchanges: Vec<Vec<Exchange>>,
    /// By rank: the outputs at exit.
    pub outputs: Vec<Cell>,
    /// Codes of errors of the program.
    pub refused: BTreeSet<&'static str>,
    /// Works for which nothing waits.
    pub unobserved: BTreeSet<usize>,
    /// Documents do not say what the program does.
    pub is_unclear: bool,
    /// Ranks make calls of a team under different numbers: NCCL matches them in order.
    pub may_be_swapped: bool,
    /// Races of operations of one kernel.
    pub within: Vec<By>,
}

/// What a rank has done so far.
#[derive(Default)]
pub struct State {
    pub tails: BTreeMap<usize, usize>,
    pub host: usize,
    pub queues: BTreeMap<Comm, usize>,
    /// The gathers of views.
    pub gathers: Vec<usize>,
    /// By number: what a Wait waits for, and the kernel.
    pub pending: BTreeMap<usize, (Option<usize>, Option<usize>)>,
    pub bound: BTreeMap<usize, Vec<Cell>>,
    pub instances: BTreeMap<usize, usize>,
    pub works: BTreeMap<usize, Vec<usize>>,
    /// The handles of sides, and how many there are of each sender and receiver.
    pub shared: BTreeMap<(usize, usize, usize, bool), usize>,
    pub handles: BTreeMap<(usize, bool), usize>,
    pub at: usize,
    pub run: usize,
}

impl Graph {
    /// Returns the works of programs that run one after the other. They have the same ranks, and the tensors of the last one.
    pub fn of(programs: &[&Program], rules: Rules) -> Self {
        let mut graph = Self::default();
        let Some(last) = programs.last() else { return graph };
        for rank in 0..last.ranks {
            graph.kernels.push(Vec::new());
            graph.exchanges.push(Vec::new());
            graph.exits.push(Vec::new());
            let mut state = State { host: graph.add(Vec::new()), ..State::default() };
            let entry = graph.add(Vec::new());
            graph.entry.push(entry);
            state.tails.insert(0, entry);
            state.works.insert(0, vec![entry]);
            for (run, program) in programs.iter().enumerate() {
                state.run = run;
                for (tensor, _) in program.tensors.iter().enumerate().filter(|it| it.1.1 == Role::Input) {
                    state.bound.insert(tensor, cells(program, [rank, tensor, 0]));
                }
                for it in program.executed(rank) {
                    graph.execute(program, rules, (rank, &it), &mut state);
                    state.at += 1;
                }
                let exit = graph.on_stream(&mut state, 0, Vec::new());
                graph.exits[rank].push(exit);
                graph.free_left(program, rank, &mut state);
                for (tensor, _) in program.tensors.iter().enumerate().filter(|it| it.1.1 == Role::Output) {
                    graph.outputs.extend(state.bound.get(&tensor).into_iter().flatten());
                }
                (state.bound, state.instances) = Default::default();
            }
        }
        link::link(&mut graph, last, rules);
        graph
    }

    /// Adds a work.
    pub fn add(&mut self, needs: Vec<usize>) -> usize {
        self.needs.push(needs);
        self.may.push(Vec::new());
        self.hosts.push(Vec::new());
        self.exchanged.push(Vec::new());
        self.needs.len() - 1
    }

    pub fn on_stream(&mut self, state: &mut State, stream: usize, mut needs: Vec<usize>) -> usize {
        needs.extend(state.tails.get(&stream));
        needs.push(state.host);
        let work = self.add(needs);
        state.tails.insert(stream, work);
        work
    }

    /// The host of a rank meets others.
    pub fn meet(&mut self, state: &mut State) -> Meeting {
        let before = self.add(vec![state.host]);
        state.host = self.add(vec![before]);
        [before, state.host]
    }

    pub fn access(&mut self, [begin, end]: [usize; 2], cells: &[Cell], writes: bool, by: By) {
        self.accesses.extend(cells.iter().map(|&cell| Access { begin, end, cell, writes, by }));
    }

    fn execute(
        &mut self,
        program: &Program,
        rules: Rules,
        (rank, it): (usize, &Executed<'_>),
        state: &mut State,
    ) {
        let (stream, ranks) = (it.stream, program.ranks);
        let by = By {
            rank,
            place: it.place,
            index: it.index,
            stream,
            at: state.at,
            number: None,
            kernel: None,
            run: state.run,
        };
        let bound = |state: &State, tensor: &usize| state.bound.get(tensor).cloned().unwrap_or_default();
        match it.stmt {
            Stmt::Sync(awaited) => {
                let awaited = program.stream(*awaited, rank, it.index);
                let needs = state.tails.get(&awaited).copied().into_iter().collect();
                self.on_stream(state, stream, needs);
            }
            Stmt::HostSync => {
                let needs = [state.host].into_iter().chain(state.tails.get(&stream).copied()).collect();
                state.host = self.add(needs);
            }
            Stmt::Allocate { tensor, zero } => {
                let all = self.allocate(program, (rank, stream, *tensor), state);
                if *zero {
                    let work = self.on_stream(state, stream, Vec::new());
                    state.works.entry(stream).or_default().push(work);
                    self.access([work, work], &all, true, by);
                    self.flows.push(Flow { work, out: all, from: Vec::new(), is_opaque: false });
                }
            }
            Stmt::Free(tensor) => self.free(*tensor, state),
            Stmt::Compute { out, from } => {
                // The result of an operator is new storage if the name is not bound.
                for tensor in out {
                    if !state.bound.contains_key(tensor) {
                        // It is in no symmetric memory.
                        self.is_unclear |= program.tensors[*tensor].1 == Role::Symmetric;
                        self.allocate(program, (rank, stream, *tensor), state);
                    }
                }
                let work = self.on_stream(state, stream, Vec::new());
                state.works.entry(stream).or_default().push(work);
                let read: Vec<Cell> = from.iter().flat_map(|it| bound(state, it)).collect();
                let written: Vec<Cell> = out.iter().flat_map(|it| bound(state, it)).collect();
                self.access([work, work], &read, false, by);
                self.access([work, work], &written, true, by);
                let is_opaque = program.is_opaque(out, from);
                let from = read.into_iter().map(|it| (work, it)).collect();
                self.flows.push(Flow { work, out: written, from, is_opaque });
            }
            Stmt::Select { out, of, index } => {
                let row = index.value(rank, it.index, ranks);
                let cell = bound(state, of).get(row).copied();
                self.free(*out, state);
                state.bound.insert(*out, cell.into_iter().collect());
            }
            Stmt::View { out, of } => {
                // A run that is replayed does not exchange handles again.
                if state.run == 0 {
                    let [given, taken] = self.meet(state);
                    self.exchanges[rank].push(([given, given, given, taken], None));
                }
                let own = bound(state, of).first().map_or(0, |it| it[2]);
                let shards: Vec<Cell> = (0..ranks).map(|it| [it, *of, own, 0]).collect();
                if let Some(it) = self.buffers.get_mut(&[rank, *of, own]) {
                    it.is_kept = true;
                }
                // Other executors map the shards; that of hir gathers them here. Hosts meet in a barrier, which is a communication of all ranks,
                // but orders no memory.
                let comm = Comm::Team((0..ranks).collect());
                let copy = cells(program, [rank, *out, 0]);
                let begin = self.on_stream(state, stream, Vec::new());
                let end = self.add(vec![begin]);
                self.may[begin].extend(state.queues.get(&comm).into_iter().chain(state.gathers.last()));
                state.gathers.push(end);
                self.kernels[rank].push(Kernel {
                    comm,
                    begin,
                    end,
                    ops: vec![Op::View],
                    number: usize::MAX,
                    is_communication: true,
                    at: state.at,
                    awaited: None,
                });
                let work = self.on_stream(state, stream, Vec::new());
                self.may[work].push(end);
                self.access([work, work], &[[rank, *of, own, 0]], false, by);
                self.access([work, work], &copy, true, by);
                let from = vec![(work, [rank, *of, own, 0])];
                self.flows.push(Flow { work, out: copy.clone(), from, is_opaque: false });
                state.bound.insert(*out, shards.into_iter().chain(copy).collect());
            }
            Stmt::Collective { number, kind, team, root, input, output } => {
                let Some(own) = team.iter().position(|it| *it == rank) else {
                    state.pending.insert(*number, (None, None));
                    return;
                };
                if kind.receives(own == *root) && !state.bound.contains_key(output) {
                    self.allocate(program, (rank, stream, *output), state);
                }
                let (input, output) = (bound(state, input), bound(state, output));
                let is_of_all = team.len() == ranks;
                let (comm, ops) = match kind {
                    Kind::SendRecv => {
                        let peer = team[1 - own];
                        let op = if own == *root {
                            Op::Send { peer, cells: input }
                        } else {
                            Op::Receive { peer, cells: output }
                        };
                        let pair = Comm::Pair([team[0], team[1]], !is_of_all);
                        (if rules.pairs { pair } else { Comm::Team(team.clone()) }, vec![op])
                    }
                    Kind::CollectivePermute(by) => {
                        let (to, from) =
                            (team[(own + by) % team.len()], team[(own + team.len() - by) % team.len()]);
                        let ops = vec![
                            Op::Send { peer: to, cells: input },
                            Op::Receive { peer: from, cells: output },
                        ];
                        (Comm::Team(team.clone()), ops)
                    }
                    _ => (
                        Comm::Team(team.clone()),
                        vec![Op::Collective { kind: *kind, root: *root, input, output }],
                    ),
                };
                self.post((rules, ranks), (*number, comm, ops, true), by, state);
            }
            Stmt::Post(side) if side.puts.is_some() => self.transfer(side, by, ranks, state),
            Stmt::Post(side) => {
                self.bind_received(program, std::slice::from_ref(side), (rank, stream), state);
                let peer = side.peer.value(rank, it.index, ranks);
                let pair = Comm::Pair([rank.min(peer), rank.max(peer)], false);
                let comm = if rules.pairs { pair } else { Comm::Team((0..ranks).collect()) };
                let op = op_of(side, peer, bound(state, &side.buffer));
                self.post((rules, ranks), (side.number, comm, vec![op], false), by, state);
            }
            Stmt::Group { number, sides } => {
                self.bind_received(program, sides, (rank, stream), state);
                // A Wait for one of its transfers waits for nothing.
                state.pending.extend(sides.iter().map(|it| (it.number, (None, None))));
                let op = |side: &Side| {
                    op_of(side, side.peer.value(rank, it.index, ranks), bound(state, &side.buffer))
                };
                let ops = sides.iter().map(op).collect();
                self.post((rules, ranks), (*number, Comm::Team((0..ranks).collect()), ops, false), by, state);
            }
            Stmt::Share(_) if state.run > 0 => (),
            Stmt::Share(sides) => {
                let mut all = Vec::new();
                for side in sides {
                    let peer = side.peer.value(rank, it.index, ranks);
                    let key = (side.number, side.buffer, peer, side.sends);
                    // What has been exchanged is not exchanged again.
                    if state.shared.contains_key(&key) {
                        continue;
                    }
                    let count = state.handles.entry((peer, side.sends)).or_default();
                    state.shared.insert(key, *count);
                    *count += 1;
                    let (from, to) = if side.sends { (rank, peer) } else { (peer, rank) };
                    all.push((from, to, side.sends));
                    for [rank, tensor, instance, _] in bound(state, &side.buffer) {
                        if let Some(it) = self.buffers.get_mut(&[rank, tensor, instance]) {
                            it.is_kept = true;
                        }
                    }
                }
                if !all.is_empty() {
                    // The barrier is an all-reduce of all ranks on the current stream, and the host waits for its end.
                    let [given, taken] = self.meet(state);
                    let arrived = self.add(vec![taken]);
                    let queue = state.queues.get(&Comm::Team((0..ranks).collect()));
                    let before = [state.tails.get(&stream), queue, state.gathers.last()];
                    self.may[arrived].extend(before.into_iter().flatten().filter(|_| rules.connects));
                    state.host = self.add(vec![arrived]);
                    self.exchanges[rank].push(([given, taken, arrived, state.host], Some(all)));
                }
            }
            Stmt::Wait(number) => {
                let Some((work, kernel)) = state.pending.get(number).copied() else {
                    // A Wait of the CUDA backend reads a semaphore, and waits for nothing here.
                    if !state.shared.keys().any(|it| it.0 == *number) {
                        self.refused.insert("E0411");
                    }
                    return;
                };
                if let Some(kernel) = kernel {
                    self.kernels[rank][kernel].awaited.get_or_insert(state.at);
                }
                if kernel.is_some() || work.is_none() {
                    state.pending.remove(number);
                }
                self.unobserved.retain(|it| Some(*it) != work);
                self.on_stream(state, stream, work.into_iter().collect());
            }
        }
    }
}
