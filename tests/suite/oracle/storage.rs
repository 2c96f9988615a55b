//! The storage of names.

use std::collections::BTreeSet;

use super::{
    graph::{Graph, State},
    program::{Program, Role, Side},
    works::{Buffer, Cell, cells},
};

impl Graph {
    /// Binds a name to new storage.
    pub fn allocate(
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
        let all_of_run = if state.run == 0 { &mut self.buffers } else { &mut self.later };
        all_of_run.insert(id, buffer);
        state.bound.insert(tensor, all.clone());
        all
    }

    /// Releases a name. The storage is freed when no view uses it (grammar/REFERENCE.md, Deallocate), in the first run.
    pub fn free(&mut self, tensor: usize, state: &mut State) {
        let rank = self.kernels.len() - 1;
        let released = state.bound.remove(&tensor).unwrap_or_default();
        let id_of = |it: &Cell| [it[0], it[1], it[2]];
        let is_bound = |id| state.bound.values().flatten().any(|it| id_of(it) == id);
        let ids: BTreeSet<[usize; 3]> =
            released.iter().map(id_of).filter(|id| id[0] == rank && !is_bound(*id)).collect();
        let is_counted = state.run == 0;
        for id in ids.into_iter().filter(|_| is_counted) {
            let Some(stream) = self.buffers.get(&id).map(|it| it.stream) else { continue };
            let work = self.on_stream(state, stream, Vec::new());
            if let Some(buffer) = self.buffers.get_mut(&id) {
                buffer.freed = Some(state.at);
                buffer.host = Some(state.host);
                buffer.works_of_stream[1] = Some(work);
            }
        }
    }

    /// The end of the program frees what it has not freed, other than outputs.
    pub fn free_left(&mut self, program: &Program, rank: usize, state: &mut State) {
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
    pub fn bind_received(
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
}
