//! What a rank posts: kernels of NCCL, and sides of transfers over peer memory.

use std::collections::BTreeMap;

use super::{
    graph::{Graph, State},
    program::{Kind, Side},
    works::{By, Comm, Kernel, Op, Rules, Transfer, accesses, conflict, is_in_place},
};

impl Graph {
    /// Posts a kernel of NCCL.
    pub fn post(
        &mut self,
        (rules, ranks): (Rules, usize),
        (number, comm, ops, is_communication): (usize, Comm, Vec<Op>, bool),
        by: By,
        state: &mut State,
    ) {
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
            let is_new =
                |it: &_| !self.connected.get(it).is_some_and(|it: &BTreeMap<_, _>| it.contains_key(&by.rank));
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
        let it = Kernel { comm, begin, end, ops, number, is_communication, at: by.at, awaited: None };
        self.kernels[by.rank].push(it);
    }

    /// Posts a side of a transfer over peer memory.
    pub fn transfer(&mut self, side: &Side, by: By, ranks: usize, state: &mut State) {
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
        let it = Transfer { key, puts, handle, cells, reached, copied, by };
        self.transfers.entry((from, to, side.sends)).or_default().push(it);
    }
}
