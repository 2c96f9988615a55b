//! What a program executes: works of streams, hosts and communications, each with the works that it follows.
//!
//! `needs` has what documents guarantee, `may` what a work may wait for in addition. Races are decided with the first, deadlocks with both.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    link,
    program::{Executed, Kind, Place, Program, Role, Shape, Side, Stmt},
};

/// The rules that options select.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Sends and receives that are in no group have a communicator for each pair, and communicators are created when they are first used.
    pub pairs: bool,
    /// NCCL connects ranks where it first needs that.
    pub connects: bool,
}

/// A part of a buffer: its rank, its tensor, how often the rank has allocated that before, and its row.
pub type Cell = [usize; 4];

/// The statement that does something, as a rank executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    pub rank: usize,
    pub place: Place,
    pub index: usize,
    pub stream: usize,
    /// The number of statements that the rank has executed before.
    pub at: usize,
    /// The number of the communication.
    pub number: Option<usize>,
    /// The kernel of the rank.
    pub kernel: Option<usize>,
    pub run: usize,
}

/// A read or write, from the beginning of a work to the end of one.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub begin: usize,
    pub end: usize,
    pub cell: Cell,
    pub writes: bool,
    pub by: By,
}

/// What a work computes: the cells that it writes, from those that it reads.
#[derive(Debug)]
pub struct Flow {
    pub work: usize,
    pub out: Vec<Cell>,
    /// With the works that read them.
    pub from: Vec<(usize, Cell)>,
    /// The text does not contain how.
    pub is_opaque: bool,
}

/// Storage that a rank allocates.
#[derive(Debug)]
pub struct Buffer {
    pub stream: usize,
    pub at: usize,
    pub freed: Option<usize>,
    /// What the host has waited for then.
    pub host: Option<usize>,
    /// What the stream computes before.
    pub works: Vec<usize>,
    pub role: Role,
    /// A handle keeps it.
    pub is_kept: bool,
    /// The work of the stream that allocates and that frees it, if streams do.
    pub works_of_stream: [Option<usize>; 2],
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Comm {
    Team(Vec<usize>),
    /// Of the sends and receives of two ranks that are in no group; of their team if that has not all ranks.
    Pair([usize; 2], bool),
}

impl Comm {
    pub fn members(&self) -> Vec<usize> {
        match self {
            Self::Team(it) => it.clone(),
            Self::Pair(it, _) => it.to_vec(),
        }
    }
}

/// What a kernel of NCCL does on a rank.
#[derive(Clone, Debug)]
pub enum Op {
    Collective { kind: Kind, root: usize, input: Vec<Cell>, output: Vec<Cell> },
    Send { peer: usize, cells: Vec<Cell> },
    Receive { peer: usize, cells: Vec<Cell> },
    /// The gather of a view.
    View,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    pub comm: Comm,
    pub begin: usize,
    pub end: usize,
    pub ops: Vec<Op>,
    /// The kind of its statement: sides of different kinds are not meant to meet.
    pub is_communication: bool,
    /// The number of statements before its Wait.
    pub awaited: Option<usize>,
    pub run: usize,
}

/// A side of a transfer over peer memory, where a rank posts it.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub key: (usize, usize, usize),
    pub sends: bool,
    pub puts: bool,
    /// The place of its handle among those of the two ranks.
    pub handle: Option<usize>,
    pub cells: Vec<Cell>,
    /// The stream arrives.
    pub reached: usize,
    /// The copy has ended, as the rank knows it.
    pub copied: usize,
    pub by: By,
}

/// A place where hosts meet: before and behind it.
pub type Meeting = [usize; 2];

pub type Exchange = ([usize; 3], Option<Vec<(usize, usize, bool)>>);

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
    /// By rank.
    pub kernels: Vec<Vec<Kernel>>,
    /// By sender, receiver and whether the rank sends.
    pub transfers: BTreeMap<(usize, usize, bool), Vec<Transfer>>,
    /// The place where each rank first uses a communicator.
    pub created: BTreeMap<Comm, BTreeMap<usize, Meeting>>,
    /// The place where each rank first needs a connection: of a kind of collective, or of a sender with a receiver.
    pub connected: BTreeMap<(Comm, Option<Kind>, [usize; 2]), BTreeMap<usize, Meeting>>,
    /// By rank: where it gives its handles, has those of others, and has passed the barrier. With those of transfers by sender, receiver and
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
    /// Races of operations of one kernel.
    pub within: Vec<By>,
}

/// What a rank has done so far.
#[derive(Default)]
struct State {
    tails: BTreeMap<usize, usize>,
    host: usize,
    queues: BTreeMap<Comm, usize>,
    /// The gathers of views.
    gathers: Vec<usize>,
    /// By number: what a Wait waits for, and the kernel.
    pending: BTreeMap<usize, (Option<usize>, Option<usize>)>,
    bound: BTreeMap<usize, Vec<Cell>>,
    instances: BTreeMap<usize, usize>,
    works: BTreeMap<usize, Vec<usize>>,
    /// The handles of sides, and how many there are of each sender and receiver.
    shared: BTreeMap<(usize, usize, usize, bool), usize>,
    handles: BTreeMap<(usize, bool), usize>,
    at: usize,
    run: usize,
}

impl Graph {
    /// Returns the works of some runs.
    pub fn of(program: &Program, rules: Rules, runs: usize) -> Self {
        let mut graph = Self::default();
        for rank in 0..program.ranks {
            graph.kernels.push(Vec::new());
            graph.exchanges.push(Vec::new());
            graph.exits.push(Vec::new());
            let mut state = State { host: graph.add(Vec::new()), ..State::default() };
            let entry = graph.add(Vec::new());
            graph.entry.push(entry);
            state.tails.insert(0, entry);
            state.works.insert(0, vec![entry]);
            for run in 0..runs {
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
        link::link(&mut graph, program, rules);
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

    fn on_stream(&mut self, state: &mut State, stream: usize, mut needs: Vec<usize>) -> usize {
        needs.extend(state.tails.get(&stream));
        needs.push(state.host);
        let work = self.add(needs);
        state.tails.insert(stream, work);
        work
    }

    /// The host of a rank meets others.
    fn meet(&mut self, state: &mut State) -> Meeting {
        let before = self.add(vec![state.host]);
        state.host = self.add(vec![before]);
        [before, state.host]
    }

    /// Binds a name to new storage.
    fn allocate(
        &mut self,
        program: &Program,
        (rank, stream, tensor): (usize, usize, usize),
        state: &mut State,
    ) -> Vec<Cell> {
        self.free(tensor, state);
        let instance = state.instances.entry(tensor).or_default();
        let id = [rank, tensor, *instance];
        *instance += 1;
        let all = cells(program, id);
        let buffer = Buffer {
            stream,
            at: state.at,
            freed: None,
            host: None,
            works: state.works.get(&stream).cloned().unwrap_or_default(),
            role: program.tensors[tensor].1,
            is_kept: false,
            works_of_stream: [Some(self.on_stream(state, stream, Vec::new())), None],
        };
        if state.run == 0 {
            self.buffers.insert(id, buffer);
        }
        state.bound.insert(tensor, all.clone());
        all
    }

    /// Releases a name.
    fn free(&mut self, tensor: usize, state: &mut State) {
        if let Some([rank, of, instance, _]) = state.bound.remove(&tensor).and_then(|it| it.first().copied())
            && of == tensor
            && let Some(stream) = self.buffers.get(&[rank, tensor, instance]).map(|it| it.stream)
            && state.run == 0
        {
            let work = self.on_stream(state, stream, Vec::new());
            if let Some(buffer) = self.buffers.get_mut(&[rank, tensor, instance]) {
                buffer.freed = Some(state.at);
                buffer.host = Some(state.host);
                buffer.works_of_stream[1] = Some(work);
            }
        }
    }

    /// The end of the program frees what it has not freed, other than outputs.
    fn free_left(&mut self, program: &Program, rank: usize, state: &mut State) {
        let is_left = |it: &[usize; 3], of: &Buffer| {
            it[0] == rank && of.freed.is_none() && program.tensors[it[1]].1 != Role::Output
        };
        let left: Vec<([usize; 3], usize)> =
            self.buffers.iter().filter(|it| is_left(it.0, it.1)).map(|it| (*it.0, it.1.stream)).collect();
        for (id, stream) in left.into_iter().filter(|_| state.run == 0) {
            let tail = [state.tails.get(&stream).copied(), Some(state.host)];
            let work = self.add(tail.into_iter().flatten().collect());
            if let Some(it) = self.buffers.get_mut(&id) {
                it.works_of_stream[1] = Some(work);
            }
        }
    }

    /// What a rank receives is new storage if the name is not bound.
    fn bind_received(
        &mut self,
        program: &Program,
        sides: &[Side],
        (rank, stream): (usize, usize),
        state: &mut State,
    ) {
        for it in sides.iter().filter(|it| !it.sends) {
            if !state.bound.contains_key(&it.buffer) {
                self.allocate(program, (rank, stream, it.buffer), state);
            }
        }
    }

    fn access(&mut self, [begin, end]: [usize; 2], cells: &[Cell], writes: bool, by: By) {
        self.accesses.extend(cells.iter().map(|&cell| Access { begin, end, cell, writes, by }));
    }

    fn execute(&mut self, program: &Program, rules: Rules, (rank, it): (usize, &Executed<'_>), state: &mut State) {
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
                for tensor in out.iter().filter(|_| !program.is_opaque(out, from)) {
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
                    self.exchanges[rank].push(([given, given, taken], None));
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
                self.kernels[rank].push(Kernel { comm, begin, end, ops: vec![Op::View], is_communication: true, awaited: None, run: state.run });
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
                if !state.bound.contains_key(output) {
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
                        let (to, from) = (team[(own + by) % team.len()], team[(own + team.len() - by) % team.len()]);
                        let ops = vec![Op::Send { peer: to, cells: input }, Op::Receive { peer: from, cells: output }];
                        (Comm::Team(team.clone()), ops)
                    }
                    _ => (Comm::Team(team.clone()), vec![Op::Collective { kind: *kind, root: *root, input, output }]),
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
                    let [given, taken] = self.meet(state);
                    state.host = self.add(vec![taken]);
                    self.exchanges[rank].push(([given, taken, state.host], Some(all)));
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
                work.iter().for_each(|it| drop(self.unobserved.remove(it)));
                self.on_stream(state, stream, work.into_iter().collect());
            }
        }
    }

    /// Posts a kernel of NCCL.
    fn post(&mut self, (rules, ranks): (Rules, usize), (number, comm, ops, is_communication): (usize, Comm, Vec<Op>, bool), by: By, state: &mut State) {
        if rules.pairs && !self.created.get(&comm).is_some_and(|it| it.contains_key(&by.rank)) {
            let meeting = self.meet(state);
            self.created.entry(comm.clone()).or_default().insert(by.rank, meeting);
        }
        if rules.connects {
            let key = |it: &Op| match it {
                Op::Collective { kind, .. } => (comm.clone(), Some(*kind), [0, 0]),
                Op::Send { peer, .. } => (comm.clone(), None, [by.rank, *peer]),
                Op::Receive { peer, .. } => (comm.clone(), None, [*peer, by.rank]),
                Op::View => (comm.clone(), Some(Kind::Allgather), [0, 0]),
            };
            let is_new = |it: &_| !self.connected.get(it).is_some_and(|it: &BTreeMap<_, _>| it.contains_key(&by.rank));
            let new: Vec<_> = ops.iter().map(key).filter(is_new).collect();
            if !new.is_empty() {
                let meeting = self.meet(state);
                for key in new {
                    self.connected.entry(key).or_default().insert(by.rank, meeting);
                }
            }
        }
        let before = [state.tails.get(&by.stream), state.queues.get(&comm), Some(&state.host)];
        let begin = self.add(before.into_iter().flatten().copied().collect());
        let end = self.add(vec![begin]);
        if comm == Comm::Team((0..ranks).collect()) {
            self.may[begin].extend(state.gathers.last());
        }
        state.queues.insert(comm.clone(), end);
        let kernel = self.kernels[by.rank].len();
        state.pending.insert(number, (Some(end), Some(kernel)));
        let by = By { number: Some(number), kernel: Some(kernel), ..by };
        for (at, op) in ops.iter().enumerate() {
            let (read, written) = accesses(op, by.rank, &comm);
            self.access([begin, end], &read, false, by);
            self.access([begin, end], &written, true, by);
            if ops[..at].iter().any(|it| conflict(it, op)) || !is_in_place(op, by.rank, &comm) {
                self.within.push(by);
            }
        }
        let it = Kernel { comm, begin, end, ops, is_communication, awaited: None, run: by.run };
        self.kernels[by.rank].push(it);
    }

    /// Posts a side of a transfer over peer memory.
    fn transfer(&mut self, side: &Side, by: By, ranks: usize, state: &mut State) {
        let (rank, peer) = (by.rank, side.peer.value(by.rank, by.index, ranks));
        let handle = state.shared.get(&(side.number, side.buffer, peer, side.sends)).copied();
        if handle.is_none() {
            self.refused.insert("E0406");
        }
        let puts = side.puts == Some(true);
        let copies = puts == side.sends;
        let reached = self.on_stream(state, by.stream, Vec::new());
        let copied = if copies {
            self.on_stream(state, by.stream, Vec::new())
        } else {
            let it = self.add(vec![reached]);
            self.unobserved.insert(it);
            it
        };
        let by = By { number: Some(side.number), ..by };
        state.pending.insert(side.number, (Some(if copies { reached } else { copied }), None));
        let cells = state.bound.get(&side.buffer).cloned().unwrap_or_default();
        let (from, to) = if side.sends { (rank, peer) } else { (peer, rank) };
        let key = (side.number, side.buffer, peer);
        let it = Transfer { key, sends: side.sends, puts, handle, cells, reached, copied, by };
        self.transfers.entry((from, to, side.sends)).or_default().push(it);
    }
}

fn op_of(side: &Side, peer: usize, cells: Vec<Cell>) -> Op {
    if side.sends { Op::Send { peer, cells } } else { Op::Receive { peer, cells } }
}

/// Returns the cells of a buffer.
fn cells(program: &Program, [rank, tensor, instance]: [usize; 3]) -> Vec<Cell> {
    let rows = if program.tensors[tensor].0 == Shape::Wide { program.ranks } else { 1 };
    (0..rows).map(|row| [rank, tensor, instance, row]).collect()
}

/// Returns the cells that an operation reads, and those that it writes.
pub fn accesses(op: &Op, rank: usize, comm: &Comm) -> (Vec<Cell>, Vec<Cell>) {
    match op {
        Op::Send { cells, .. } => (cells.clone(), Vec::new()),
        Op::Receive { cells, .. } => (Vec::new(), cells.clone()),
        Op::View => (Vec::new(), Vec::new()),
        Op::Collective { kind, root, input, output } => {
            let is_root = comm.members().get(*root) == Some(&rank);
            let reads = is_root || !matches!(kind, Kind::Broadcast | Kind::Scatter);
            let writes = is_root || !matches!(kind, Kind::Reduce | Kind::Gather);
            let of = |has: bool, it: &Vec<Cell>| if has { it.clone() } else { Vec::new() };
            (of(reads, input), of(writes, output))
        }
    }
}

/// Returns whether two operations of one kernel access the same memory. Messages of one peer arrive in order.
fn conflict(one: &Op, other: &Op) -> bool {
    let share = |one: &[Cell], other: &[Cell]| one.iter().any(|it| other.contains(it));
    match (one, other) {
        (Op::Receive { peer, cells }, Op::Receive { peer: of, cells: with }) => peer != of && share(cells, with),
        (Op::Receive { cells, .. }, Op::Send { cells: with, .. })
        | (Op::Send { cells, .. }, Op::Receive { cells: with, .. }) => share(cells, with),
        _ => false,
    }
}

/// Returns whether the output of a collective does not overlap its input, or is in place as NCCL documents it.
fn is_in_place(op: &Op, rank: usize, comm: &Comm) -> bool {
    let Op::Collective { kind, input, output, .. } = op else { return true };
    let (read, written) = accesses(op, rank, comm);
    let own = comm.members().iter().position(|it| *it == rank).unwrap_or_default();
    let is_of_rank = |part: &[Cell], all: &[Cell]| all.get(own) == part.first();
    !written.iter().any(|it| read.contains(it))
        || match kind {
            Kind::Allreduce | Kind::Broadcast | Kind::Reduce => input == output,
            Kind::Allgather | Kind::Gather => is_of_rank(input, output),
            Kind::ReduceScatter | Kind::Scatter => is_of_rank(output, input),
            _ => false,
        }
}
