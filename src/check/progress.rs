//! Whether a program without a wait makes progress as with it: no rank may start kernels of communicators in contradictory orders (E0707), and a
//! capture does not fail (E0708). These faults are of no pair of accesses.

use super::{
    access_checks::Grouping, capture::capture, excess::StmtOnRank, finding::Checks,
    kernels_of_runs::cycle_between_runs,
};
use hir_plan::{
    EventNo, InstKind, Plan, World,
    sync::{
        CommOrderCycle, HostRule, LaunchOrder, MemoryGroups, TooManyComms, comm_order_cycle, shared_pads,
    },
};

/// Returns a cycle in the order in which ranks may start kernels of their communicators, if there is one. Where the host waits for the barrier of
/// an exchange of handles, what it posts later starts later.
///
/// # Errors
/// There are too many unordered communications, or too many streams and communicators, to compare.
pub(super) fn cycle_of_kernels(
    world: &World,
    checks: Checks,
) -> Result<Option<CommOrderCycle>, TooManyComms> {
    let cycle = |world: &World| comm_order_cycle(world, checks.launch_order());
    let found = cycle(world)?;
    let waits = checks.host_rules().contains(&HostRule::Exchange) && world.exchanges_handles();
    let is_excluded =
        found.is_some() && waits && cycle(&world.with_host_waits(&[HostRule::Exchange]))?.is_none();
    Ok(found.filter(|_| !is_excluded))
}

/// The program with all waits.
pub struct Progress<'p> {
    world: &'p World,
    checks: Checks,
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
        let has_kernels =
            world.iter().any(|it| it.communicators.len() + it.peer_collectives.len().min(1) > 1);
        let compares_kernels = has_kernels && cycle_of_kernels(world, checks) == Ok(None);
        let compares_runs =
            compares_kernels && checks.repeat && checks.launch_order() == LaunchOrder::Explicit;
        Self {
            world,
            checks,
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
        (!self.compares_kernels || cycle_of_kernels(&world, self.checks) == Ok(None))
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
