//! Whether a program without a wait makes progress as with it: no rank may start kernels of communicators in contradictory orders (E0707), and a
//! capture does not fail (E0708). These faults are of no pair of accesses.

use super::{
    access_checks::Grouping, capture::capture, excess::StmtOnRank, finding::Checks,
    kernels_of_runs::cycle_between_runs,
};
use hir_plan::{
    EventNo, InstKind, Plan, World,
    sync::{LaunchOrder, MemoryGroups, comm_order_cycle, shared_pads},
};

/// The program with all waits.
pub struct Progress<'p> {
    world: &'p World,
    order: LaunchOrder,
    /// Whether the kernels of a run, and those of several runs, are compared: they have no contradictory orders.
    compares_kernels: bool,
    compares_runs: bool,
    /// Whether collectives that share signal pads are compared: they are ordered.
    compares_pads: bool,
    /// The number of faults of a capture by rank, if a capture is checked.
    capture_faults: Option<Vec<usize>>,
}

impl<'p> Progress<'p> {
    /// Looks at the program with all waits.
    pub fn of(world: &'p World, checks: Checks) -> Self {
        let order = checks.launch_order();
        let has_kernels =
            world.iter().any(|it| it.communicators.len() + it.peer_collectives.len().min(1) > 1);
        let compares_kernels = has_kernels && comm_order_cycle(world, order) == Ok(None);
        let compares_runs = compares_kernels && checks.repeat && order == LaunchOrder::Explicit;
        Self {
            world,
            order,
            compares_kernels,
            compares_pads: checks.has_signal_pads() && shares_no_pads(world) && has_pads(world),
            compares_runs: compares_runs && cycle_between_runs(world, Grouping::Large) == Ok(None),
            capture_faults: checks.capture.then(|| capture_faults(world)),
        }
    }

    /// Returns whether no fault is new without a statement that waits.
    pub fn is_kept_without(&self, wait: StmtOnRank) -> bool {
        if !self.compares_kernels && !self.compares_pads && self.capture_faults.is_none() {
            return true;
        }
        let world = without(self.world, wait);
        let captures = || {
            self.capture_faults.as_ref().is_none_or(|known| {
                capture_faults(&world).iter().zip(known).all(|(found, known)| found <= known)
            })
        };
        (!self.compares_kernels || comm_order_cycle(&world, self.order) == Ok(None))
            && (!self.compares_runs || cycle_between_runs(&world, Grouping::Large) == Ok(None))
            && (!self.compares_pads || shares_no_pads(&world))
            && captures()
    }
}

fn has_pads(world: &World) -> bool {
    world.iter().any(|plan| plan.peer_collectives.iter().any(|it| it.pads.is_some()))
}

fn shares_no_pads(world: &World) -> bool {
    shared_pads(world, &MemoryGroups::whole(world)) == Ok(None)
}

fn capture_faults(world: &World) -> Vec<usize> {
    world.iter().map(|it| capture(it).faults.len()).collect()
}

/// Returns plans in which the instructions of a statement record events for which nothing waits, so that all others keep their places.
fn without(world: &World, (rank, origin): StmtOnRank) -> World {
    let (program, stmt) = (world[rank].program_id, world[rank].origins[origin as usize].stmt);
    let mut plans: Vec<Plan> = world.plans().to_vec();
    for Plan { code, origins, event_count, .. } in plans.iter_mut().filter(|it| it.program_id == program) {
        for it in code.iter_mut().filter(|it| origins[it.origin as usize].stmt == stmt) {
            it.kind = InstKind::RecordEvent { event: *event_count as EventNo };
            *event_count += 1;
        }
    }
    World::new(plans)
}
