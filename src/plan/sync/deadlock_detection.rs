//! Decides whether the plans of all ranks deadlock: they do if some actors do not finish in the blocking order.

use super::{Position, WaitOrder, World, WorldState, machine::Machine, machine::first_actors};

impl World {
    /// Returns the state in which the ranks deadlock; `None` if all plans run to completion. It is computed once.
    ///
    /// Time and memory are proportional to the number of instructions and of parts of communications.
    pub fn deadlocked_state(&self) -> Option<&WorldState> {
        self.deadlocked.get_or_init(|| self.blocked_state(WaitOrder::Blocking)).as_ref()
    }

    /// As `deadlocked_state`, in any order in which hosts take part; not stored.
    pub(super) fn blocked_state(&self, order: WaitOrder) -> Option<WorldState> {
        let mut machine = Machine::new(self, order, &|_| false, |_| ());
        let has_finished = machine.run(&mut |_, _, ()| ());
        (!has_finished).then(|| state(self, &machine))
    }
}

/// Returns the positions of all ranks.
fn state(world: &World, machine: &Machine<()>) -> WorldState {
    let head = |actor: usize, end: usize| {
        let it = &machine.actors[actor];
        it.items.get(it.next).map_or(end, |it| (it.inst as usize).min(end))
    };
    let hosts = machine.actors.len() - world.len();
    let ranks = world.iter().zip(first_actors(world));
    let positions = ranks.map(|(plan, first)| {
        let issued = head(hosts + plan.rank, plan.code.len());
        let heads = |from: usize, count: usize| (from..from + count).map(|it| head(it, issued)).collect();
        let (first, streams) = (first as usize, plan.streams.len());
        let queues = heads(first + streams, plan.communicators.len());
        Some(Position { round: 0, issued, streams: heads(first, streams), queues })
    });
    positions.collect()
}
