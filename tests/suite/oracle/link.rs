//! What communications and hosts of different ranks wait for.

use std::collections::BTreeMap;

use super::{
    graph::Graph,
    program::{Kind, Program},
    works::{Access, Cell, Comm, Exchange, Flow, Kernel, Op, Rules, accesses},
};

/// Adds what works of different ranks wait for.
pub fn link(graph: &mut Graph, program: &Program, rules: Rules) {
    // What it waits for never is: it waits for itself.
    let never = graph.add(Vec::new());
    graph.may[never].push(never);
    let kernels = graph.kernels.clone();
    link_collectives(graph, &kernels, never);
    let is_view = |it: &&Kernel| matches!(it.ops[..], [Op::View]);
    let views: Vec<Vec<&Kernel>> = kernels.iter().map(|it| it.iter().filter(is_view).collect()).collect();
    for it in views.iter().flat_map(|it| it.iter().enumerate()) {
        let others = views.iter().map(|of| of.get(it.0).map_or(never, |it| it.begin));
        graph.may[it.1.end].extend(others);
    }
    link_sends(graph, &kernels, never);
    link_transfers(graph, never);
    link_hosts(graph, program, rules, never);
}

fn link_collectives(graph: &mut Graph, kernels: &[Vec<Kernel>], never: usize) {
    let mut by_comm: BTreeMap<&Comm, Vec<Vec<&Kernel>>> = BTreeMap::new();
    for (rank, all) in kernels.iter().enumerate() {
        for it in all.iter().filter(|it| matches!(it.ops[..], [Op::Collective { .. }])) {
            by_comm.entry(&it.comm).or_insert_with(|| vec![Vec::new(); kernels.len()])[rank].push(it);
        }
    }
    for (comm, all) in by_comm {
        let members = comm.members();
        let count = members.iter().map(|it| all[*it].len()).max().unwrap_or_default();
        for number in 0..count {
            let of: Vec<Option<&Kernel>> = members.iter().map(|it| all[*it].get(number).copied()).collect();
            let there: Vec<(usize, &Kernel)> =
                of.iter().enumerate().filter_map(|it| Some((it.0, (*it.1)?))).collect();
            let kind_of = |it: &Kernel| match it.ops[..] {
                [Op::Collective { kind, root, .. }] => Some((kind, if kind.has_root() { root } else { 0 })),
                _ => None,
            };
            let Some(first) = there.first().and_then(|it| kind_of(it.1)) else { continue };
            graph.may_be_swapped |= there.iter().any(|it| it.1.number != there[0].1.number);
            if there.iter().any(|it| kind_of(it.1) != Some(first)) {
                graph.refused.insert("E0501");
            }
            let (kind, root) = first;
            for (own, it) in &there {
                let begins = of.iter().map(|it| it.map_or(never, |it| it.begin));
                graph.may[it.end].extend(begins);
                let sources = there.iter().filter(|other| match kind {
                    Kind::Broadcast | Kind::Scatter => other.0 == root,
                    Kind::Reduce | Kind::Gather => *own == root || other.0 == *own,
                    _ => true,
                });
                let sources: Vec<(usize, &Kernel)> = sources.copied().collect();
                graph.needs[it.end].extend(sources.iter().map(|it| it.1.begin));
                let input = |(at, it): &(usize, &Kernel)| {
                    let (read, begin) = (accesses(&it.ops[0], members[*at], comm).0, it.begin);
                    read.into_iter().map(move |it| (begin, it))
                };
                let inputs = sources.iter().flat_map(input).collect();
                let out = accesses(&it.ops[0], members[*own], comm).1;
                graph.flows.push(Flow { work: it.end, out, from: inputs, is_opaque: false });
            }
        }
    }
}

type Message<'a> = (&'a Kernel, &'a [Cell]);

fn link_sends(graph: &mut Graph, kernels: &[Vec<Kernel>], never: usize) {
    let mut all: BTreeMap<(&Comm, usize, usize), [Vec<Message<'_>>; 2]> = BTreeMap::new();
    for (rank, kernels) in kernels.iter().enumerate() {
        for kernel in kernels {
            for op in &kernel.ops {
                match op {
                    Op::Send { peer, cells } => {
                        all.entry((&kernel.comm, rank, *peer)).or_default()[0].push((kernel, cells));
                    }
                    Op::Receive { peer, cells } => {
                        all.entry((&kernel.comm, *peer, rank)).or_default()[1].push((kernel, cells));
                    }
                    Op::Collective { .. } | Op::View => (),
                }
            }
        }
    }
    for [sends, receives] in all.into_values() {
        for number in 0..sends.len().max(receives.len()) {
            match (sends.get(number), receives.get(number)) {
                (Some((send, read)), Some((receive, written))) => {
                    if send.is_communication != receive.is_communication {
                        graph.refused.insert("E0501");
                    }
                    graph.needs[receive.end].push(send.begin);
                    let from = read.iter().map(|it| (send.begin, *it)).collect();
                    graph.may[send.end].push(receive.begin);
                    graph.flows.push(Flow {
                        work: receive.end,
                        out: written.to_vec(),
                        from,
                        is_opaque: false,
                    });
                }
                (one, other) => {
                    for it in one.into_iter().chain(other) {
                        graph.may[it.0.end].push(never);
                    }
                }
            }
        }
    }
}

fn link_transfers(graph: &mut Graph, never: usize) {
    let all = graph.transfers.clone();
    let sides = |from, to, sends| all.get(&(from, to, sends)).map_or(&[][..], |it| &it[..]);
    let mut pairs: Vec<(usize, usize)> = all.keys().map(|it| (it.0, it.1)).collect();
    pairs.dedup();
    for (from, to) in pairs {
        let (sent, received) = (sides(from, to, true), sides(from, to, false));
        for number in 0..sent.len().max(received.len()) {
            let (Some(send), Some(receive)) = (sent.get(number), received.get(number)) else {
                for it in sent.get(number).into_iter().chain(received.get(number)) {
                    graph.may[it.copied].push(never);
                }
                continue;
            };
            if send.puts != receive.puts || send.handle != receive.handle {
                graph.refused.insert("E0501");
            }
            let (ready, copy) = if send.puts { (receive, send) } else { (send, receive) };
            graph.needs[copy.copied].push(ready.reached);
            graph.needs[ready.copied].push(copy.copied);
            let work = [copy.copied; 2];
            for (side, writes) in [(send, false), (receive, true)] {
                let access =
                    |cell: &Cell| Access { begin: work[0], end: work[1], cell: *cell, writes, by: copy.by };
                graph.accesses.extend(side.cells.iter().map(access));
            }
            let from = send.cells.iter().map(|it| (copy.copied, *it)).collect();
            let out = receive.cells.clone();
            graph.flows.push(Flow { work: copy.copied, out, from, is_opaque: false });
        }
    }
}

fn link_hosts(graph: &mut Graph, program: &Program, rules: Rules, never: usize) {
    let exchanges = graph.exchanges.clone();
    // Each exchange ends with a barrier of all ranks, which is a communication.
    let count = exchanges.iter().map(Vec::len).max().unwrap_or_default();
    for number in 0..count {
        for it in exchanges.iter().filter_map(|it| it.get(number)) {
            let others = exchanges.iter().map(|it| it.get(number).map_or(never, |it| it.0[2]));
            graph.hosts[it.0[3]].extend(others);
        }
    }
    let mut created = graph.created.clone();
    if rules.pairs && count > 0 {
        let world = created.entry(Comm::Team((0..program.ranks).collect())).or_default();
        for (rank, all) in exchanges.iter().enumerate() {
            if let Some(([_, before, _, behind], _)) = all.first() {
                let meeting = [*before, *behind];
                world
                    .entry(rank)
                    .and_modify(|it| {
                        if it[0] > *before {
                            *it = meeting
                        }
                    })
                    .or_insert(meeting);
            }
        }
    }
    for (comm, of) in &created {
        for it in of.values() {
            graph.hosts[it[1]].extend(comm.members().iter().map(|it| of.get(it).map_or(never, |it| it[0])));
        }
    }
    for ((comm, kind, ends), of) in graph.connected.clone() {
        let members = if kind.is_some() { comm.members() } else { ends.to_vec() };
        for it in of.values() {
            graph.hosts[it[1]].extend(members.iter().map(|it| of.get(it).map_or(never, |it| it[0])));
        }
    }
    // A view is there once all have given their handles.
    let is_view = |it: &&Exchange| it.1.is_none();
    let of_rank = |it: &Vec<Exchange>| it.iter().filter(is_view).map(|it| it.0).collect();
    let views: Vec<Vec<[usize; 4]>> = exchanges.iter().map(of_rank).collect();
    for it in views.iter().flat_map(|it| it.iter().enumerate()) {
        graph.exchanged[it.1[3]].extend(views.iter().filter_map(|of| of.get(it.0)).map(|it| it[0]));
    }
    // A handle is there once the other side has given its own.
    let mut handles: BTreeMap<(usize, usize), [Vec<[usize; 4]>; 2]> = BTreeMap::new();
    for (meeting, all) in exchanges.iter().flatten() {
        for (from, to, sends) in all.iter().flatten() {
            handles.entry((*from, *to)).or_default()[usize::from(!sends)].push(*meeting);
        }
    }
    for [sent, received] in handles.into_values() {
        for number in 0..sent.len().max(received.len()) {
            let both = [sent.get(number), received.get(number)];
            for it in both.into_iter().flatten() {
                graph.hosts[it[1]].extend(both.map(|it| it.map_or(never, |it| it[0])));
            }
        }
    }
}
