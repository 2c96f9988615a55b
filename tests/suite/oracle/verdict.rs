//! Which faults a program has, by the rules that docs/checker.md cites.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    graph::Graph,
    kernels,
    program::{Program, Role},
    works::{Access, Buffer, By, Cell, Kernel, Rules},
};

/// A fault: its code, the statement that comes too early, and the one that it has to follow.
#[derive(Clone, Debug)]
pub struct Fault {
    pub code: &'static str,
    pub first: Option<By>,
    pub second: Option<By>,
    /// The stream of the first one.
    pub stream: usize,
}

/// The faults of one run. If a rank cannot end, nothing else is decided.
pub fn faults(program: &Program, rules: Rules, storage: bool) -> Vec<Fault> {
    faults_until(program, rules, storage, &|_| false)
}

/// As `faults`, until what is found is enough: the search of the orders of kernels takes long.
pub fn faults_until(
    program: &Program,
    rules: Rules,
    storage: bool,
    is_enough: &dyn Fn(&[Fault]) -> bool,
) -> Vec<Fault> {
    let graph = Graph::of(&[program], rules);
    let plain = |code| Fault { code, first: None, second: None, stream: 0 };
    if graph.is_unclear {
        return vec![plain("unclear")];
    }
    if !graph.refused.is_empty() {
        return graph.refused.iter().copied().map(plain).collect();
    }
    if graph.is_stuck() {
        return vec![plain("E0705")];
    }
    let before = Before::of(&graph);
    let mut all: Vec<Fault> = graph
        .within
        .iter()
        .map(|it| Fault { first: Some(*it), second: Some(*it), ..plain("E0701") })
        .collect();
    races(&graph, program, &before, &mut all);
    semaphores(&graph, &before, &mut all);
    if storage {
        reuses(&graph, &before, &mut all);
    }
    if is_enough(&all) {
        return all;
    }
    let has_race = all.iter().any(|it| it.code != "E0709");
    if graph.may_be_swapped {
        all.push(plain("swapped"));
    }
    match kernels::may_hang(&graph) {
        Some(true) => all.push(plain("E0707")),
        Some(false) => (),
        None => all.push(plain("unknown")),
    }
    if !has_race {
        unwritten(&graph, &mut all);
    }
    all
}

/// The faults between two runs, of programs that have none in one and whose hosts wait for no stream. Two programs have tensors of their own.
pub fn faults_between_runs(programs: [&Program; 2], rules: Rules) -> Vec<Fault> {
    let graph = Graph::of(&programs, rules);
    let (before, mut all) = (Before::of(&graph), Vec::new());
    semaphores(&graph, &before, &mut all);
    let [first, second] = [0, 1].map(|run| graph.accesses.iter().filter(move |it| it.by.run == run));
    let later: Vec<&Access> = second.collect();
    // A run that is replayed has the storage of the first one.
    let is_replayed = std::ptr::eq(programs[0], programs[1]);
    let of_next = if is_replayed { &graph.buffers } else { &graph.later };
    for one in first {
        let id = [one.cell[0], one.cell[1], one.cell[2]];
        let buffer = graph.buffers.get(&id).filter(|it| it.role != Role::Symmetric);
        // What a communication holds at the end is not compared.
        let is_held = graph.accesses.iter().any(|it| {
            let is_awaited = |of: usize| graph.kernels[it.by.rank][of].awaited.is_some();
            it.cell[..3] == id && it.by.run == 0 && it.by.kernel.is_some_and(|of| !is_awaited(of))
        });
        for other in &later {
            let conflicts = one.cell == other.cell && (one.writes || other.writes);
            let next = of_next.get(&[other.cell[0], other.cell[1], other.cell[2]]);
            let next = next.filter(|it| it.role != Role::Symmetric && other.cell[0] == id[0]);
            // A run that is replayed uses the storage of the capture: a tensor may have that of one that is freed before.
            let shares = buffer.zip(next).is_some_and(|(one, other)| {
                is_replayed
                    && one.stream == other.stream
                    && !other.is_kept
                    && other.freed.is_some_and(|freed| freed < one.at)
            });
            let is_freed = |one: &&Buffer| !is_held && !one.is_kept;
            let reuses = shares
                || buffer.filter(is_freed).zip(next).is_some_and(|(one, other)| one.stream == other.stream);
            if (conflicts || reuses) && !before.follows(other.begin, one.end) {
                let (first, second) = (Some(one.by), Some(other.by));
                all.push(Fault { code: "E0706", first, second, stream: one.by.stream });
            }
        }
    }
    all
}

/// The uses of storage that a stream allocates later, or frees earlier, with `cudaMallocAsync` and `cudaFreeAsync`.
pub fn faults_of_stream_ordered_storage(program: &Program, rules: Rules) -> Vec<Fault> {
    let graph = Graph::of(&[program], rules);
    let (before, mut all) = (Before::of(&graph), Vec::new());
    for it in &graph.accesses {
        let Some(buffer) = graph.buffers.get(&[it.cell[0], it.cell[1], it.cell[2]]) else { continue };
        let [allocated, freed] = buffer.works_of_stream;
        let early = allocated.is_some_and(|work| !before.follows(it.begin, work));
        let late = freed.is_some_and(|work| !before.follows(work, it.end));
        if early || late {
            all.push(Fault { code: "E0703", first: Some(it.by), second: None, stream: it.by.stream });
        }
    }
    all
}

/// By work: all works that it follows.
pub struct Before(Vec<Vec<u64>>);

impl Before {
    pub fn of(graph: &Graph) -> Self {
        let count = graph.needs.len();
        let mut all = vec![vec![0_u64; count / 64 + 1]; count];
        for at in graph.order() {
            let mut own = std::mem::take(&mut all[at]);
            own[at / 64] |= 1 << (at % 64);
            for it in graph.needs[at].iter().chain(&graph.exchanged[at]) {
                own.iter_mut().zip(&all[*it]).for_each(|(own, it)| *own |= it);
            }
            all[at] = own;
        }
        Self(all)
    }

    /// Returns whether a work is another one or follows it.
    pub fn follows(&self, work: usize, earlier: usize) -> bool {
        self.0[work][earlier / 64] >> (earlier % 64) & 1 == 1
    }
}

impl Graph {
    /// Returns the works that are executed, if those in `held` are not.
    pub fn done(&self, held: &BTreeSet<usize>, with_hosts: bool) -> Vec<bool> {
        let mut done = vec![false; self.needs.len()];
        let mut proceeds = true;
        while std::mem::take(&mut proceeds) {
            for at in 0..done.len() {
                let hosts = self.hosts[at].iter().chain(&self.exchanged[at]).filter(|_| with_hosts);
                let mut needs = self.needs[at].iter().chain(&self.may[at]).chain(hosts);
                if !done[at] && !held.contains(&at) && needs.all(|it| done[*it]) {
                    done[at] = true;
                    proceeds = true;
                }
            }
        }
        done
    }

    /// Returns whether a work is never executed.
    pub fn is_stuck(&self) -> bool {
        // The last one is what never is.
        let done = self.done(&BTreeSet::new(), true);
        (0..done.len() - 1).any(|it| !done[it] && !self.unobserved.contains(&it))
    }

    /// Returns the works in an order that the guarantees allow.
    fn order(&self) -> Vec<usize> {
        let mut after = vec![Vec::new(); self.needs.len()];
        let mut left = vec![0; self.needs.len()];
        for (at, left) in left.iter_mut().enumerate() {
            for it in self.needs[at].iter().chain(&self.exchanged[at]) {
                after[*it].push(at);
                *left += 1;
            }
        }
        let mut open: Vec<usize> = (0..left.len()).filter(|it| left[*it] == 0).collect();
        let mut all = Vec::new();
        while let Some(at) = open.pop() {
            all.push(at);
            for it in &after[at] {
                left[*it] -= 1;
                if left[*it] == 0 {
                    open.push(*it);
                }
            }
        }
        all
    }
}

fn races(graph: &Graph, program: &Program, before: &Before, all: &mut Vec<Fault>) {
    let mut by_cell: BTreeMap<Cell, Vec<&Access>> = BTreeMap::new();
    graph.accesses.iter().for_each(|it| by_cell.entry(it.cell).or_default().push(it));
    for (at, one) in graph.accesses.iter().enumerate() {
        let [rank, tensor, ..] = one.cell;
        let role = program.tensors[tensor].1;
        let fault = |first: Option<By>, second| Fault {
            code: "E0702",
            first,
            second,
            stream: first.map_or(0, |it| it.stream),
        };
        if role == Role::Input && !before.follows(one.begin, graph.entry[rank]) {
            all.push(fault(None, Some(one.by)));
        }
        let belongs = matches!(role, Role::Input | Role::Output);
        if belongs && !before.follows(graph.exits[rank][0], one.end) {
            all.push(fault(Some(one.by), None));
        }
        for other in &by_cell[&one.cell] {
            let is_later = std::ptr::from_ref(*other) < std::ptr::from_ref(&graph.accesses[at]);
            let conflicts = is_later && (one.writes || other.writes) && one.begin != other.begin;
            if conflicts && !before.follows(one.begin, other.end) && !before.follows(other.begin, one.end) {
                let (first, second) = (Some(other.by), Some(one.by));
                all.push(Fault { code: "E0701", first, second, stream: other.by.stream });
            }
        }
    }
}

fn semaphores(graph: &Graph, before: &Before, all: &mut Vec<Fault>) {
    for ((from, to, sends), posted) in &graph.transfers {
        for (at, later) in posted.iter().enumerate() {
            let Some(number) = posted[..at].iter().rposition(|it| it.key == later.key) else { continue };
            // The other side of the earlier transfer.
            let other = graph.transfers.get(&(*from, *to, !sends)).and_then(|it| it.get(number));
            let copied =
                if later.puts == *sends { Some(posted[number].copied) } else { other.map(|it| it.copied) };
            // A transfer without another side never ends.
            if copied.is_none_or(|copied| !before.follows(later.reached, copied)) {
                let (first, second) = (Some(posted[number].by), Some(later.by));
                all.push(Fault { code: "E0709", first, second, stream: posted[number].by.stream });
            }
        }
    }
}

/// Finds uses of storage that another tensor, or the caller, still uses, with the caching allocator of PyTorch.
fn reuses(graph: &Graph, before: &Before, all: &mut Vec<Fault>) {
    let mut uses: BTreeMap<[usize; 3], Vec<&Access>> = BTreeMap::new();
    for it in &graph.accesses {
        let [rank, tensor, instance, _] = it.cell;
        uses.entry([rank, tensor, instance]).or_default().push(it);
    }
    let of = |id: &[usize; 3]| uses.get(id).map_or(&[][..], |it| &it[..]);
    let is_block = |role: Role| role != Role::Symmetric;
    // Symmetric memory is unmapped at once.
    for (id, buffer) in graph.buffers.iter().filter(|it| !is_block(it.1.role) && !it.1.is_kept) {
        for it in of(id) {
            let early = buffer.host.is_some_and(|free| !before.follows(free, it.end));
            let by_peer = it.by.rank != id[0] && !before.follows(graph.exits[id[0]][0], it.end);
            if early || by_peer {
                all.push(Fault { code: "E0703", first: Some(it.by), second: None, stream: it.by.stream });
            }
        }
    }
    for (id, buffer) in graph.buffers.iter().filter(|it| is_block(it.1.role)) {
        let rank = id[0];
        // The caller may have freed the storage just before, and what the stream computes may use storage that is free now.
        for it in of(id) {
            if buffer.works.iter().any(|work| !before.follows(it.begin, *work)) {
                all.push(Fault { code: "E0703", first: None, second: Some(it.by), stream: buffer.stream });
            }
        }
        if buffer.is_kept {
            continue;
        }
        // Communications that the program has not awaited hold the storage. PyTorch releases it in the next call on the communicator, if they have
        // ended.
        let holders = |until: usize| -> Vec<(usize, bool)> {
            let kernels = |rank: usize| graph.kernels[rank].iter().filter(move |it| it.at < until);
            let kernel = |it: &&Access| it.by.kernel.map(|of| (it.by.rank, &graph.kernels[it.by.rank][of]));
            let holds = of(id)
                .iter()
                .filter_map(|it| kernel(it).filter(|of| of.1.awaited.is_none_or(|at| at > until)));
            let is_released = |rank, it: &Kernel| {
                kernels(rank).any(|of| {
                    of.comm.process_group(graph.kernels.len()) == it.comm.process_group(graph.kernels.len())
                        && of.at > it.at
                })
            };
            holds.map(|(rank, it)| (it.end, is_released(rank, it))).collect()
        };
        let mut check = |until: usize, next: Option<By>, follows: &dyn Fn(usize) -> bool| {
            let held = holders(until);
            if held.iter().any(|it| !it.1) {
                return;
            }
            for it in of(id) {
                let is_held = held.iter().any(|(end, _)| before.follows(*end, it.end));
                if !is_held && !follows(it.end) {
                    all.push(Fault { code: "E0703", first: Some(it.by), second: next, stream: it.by.stream });
                }
            }
        };
        // The caller allocates on the stream that is current at exit.
        if buffer.role == Role::Local && buffer.stream == 0 {
            check(usize::MAX - 1, None, &|end| before.follows(graph.exits[rank][0], end));
        }
        let Some(freed) = buffer.freed else { continue };
        let later = graph.buffers.iter().filter(|(other, next)| {
            other[0] == rank && next.stream == buffer.stream && next.at > freed && is_block(next.role)
        });
        for (other, next) in later {
            for user in of(other) {
                check(next.at, Some(user.by), &|end| before.follows(user.begin, end));
            }
        }
    }
}

/// Finds reads of elements that nothing has written, in a program without a race.
fn unwritten(graph: &Graph, all: &mut Vec<Fault>) {
    let mut written: BTreeSet<Cell> = BTreeSet::new();
    // What inputs hold is written.
    let is_written = |written: &BTreeSet<Cell>, it: &Cell| {
        written.contains(it) || !graph.buffers.contains_key(&[it[0], it[1], it[2]])
    };
    let mut reads = false;
    let mut order = vec![0; graph.needs.len()];
    graph.order().into_iter().enumerate().for_each(|(at, it)| order[it] = at);
    // What each flow reads, and what it writes.
    let mut events: Vec<(usize, usize, Option<Cell>)> = Vec::new();
    for (number, flow) in graph.flows.iter().enumerate() {
        events.extend(flow.from.iter().map(|it| (order[it.0], number, Some(it.1))));
        events.push((order[flow.work], number, None));
    }
    // A work reads before it writes.
    events.sort_by_key(|it| (it.0, it.2.is_none()));
    let mut has_unwritten = vec![false; graph.flows.len()];
    for (_, number, read) in events {
        let flow = &graph.flows[number];
        match read {
            Some(it) => has_unwritten[number] |= !is_written(&written, &it),
            None if !has_unwritten[number] => written.extend(&flow.out),
            // A kernel whose code is not there may not use what it reads.
            None if flow.is_opaque => {
                reads = true;
                written.extend(&flow.out);
            }
            None => {
                reads = true;
                written.retain(|it| !flow.out.contains(it));
            }
        }
    }
    let is_unwritten = |it: &&Cell| !is_written(&written, it);
    let code = if graph.outputs.iter().any(|it| is_unwritten(&it)) {
        "E0704"
    } else if reads {
        "W0701"
    } else {
        return;
    };
    all.push(Fault { code, first: None, second: None, stream: 0 });
}
