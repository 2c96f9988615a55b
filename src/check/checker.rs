//! Runs all requested checks in one walk over the instructions of all ranks.

use super::{
    capture::{CaptureFault, capture_faults},
    conflict::Race,
    excess::{Excess, ExcessNotSearched, UnreadWrites, find_excess},
    finding::{Checks, Finding, Report},
    memory::{UnwrittenRead, WriteTracker},
    ordering_model::AccessRules,
    race::RaceDetector,
    repeat,
};
use hir_plan::{
    OverwrittenView, Plan, World,
    sync::{
        CommOrderCycle, Deadlock, TooManyComms, comm_order_cycle,
        happens_before::{self, OrderError},
    },
};

/// The raw results of the checks, before they are merged over ranks and iterations.
#[derive(Clone, Debug, Default)]
pub struct CheckResults {
    /// A deadlock. No other check runs in this case.
    pub deadlock: Option<Box<Deadlock>>,
    /// Ranks post to communicators in contradictory orders.
    pub communicator_order: Option<Box<CommOrderCycle>>,
    /// What a capture into a CUDA graph does not record, or what ends it with an error.
    pub capture_faults: Vec<CaptureFault>,
    /// Pairs of accesses that no synchronization orders.
    pub races: Vec<Race>,
    /// Reads of elements that nothing has written.
    pub unwritten_reads: Vec<UnwrittenRead>,
    /// Copies in loops that write into views, with their ranks.
    pub overwritten_views: Vec<(usize, OverwrittenView)>,
    /// Statements that the program does not need.
    pub excess: Vec<Excess>,
    /// The checks that could not run, and the reasons.
    pub not_checked: Vec<String>,
    /// True if the program may have more races.
    pub has_more_races: bool,
    /// The searches for excess that could not run, and the reasons.
    pub not_searched: Vec<ExcessNotSearched>,
}

/// Runs `checks` on the plans of all ranks.
pub fn run_checks(world: &World, checks: Checks) -> CheckResults {
    let mut found = CheckResults::default();
    if let Some(deadlock) = world.deadlock() {
        // Instructions after a deadlock never execute, so they are not checked.
        found.deadlock = Some(Box::new(deadlock));
        return found;
    }
    if checks.comm {
        match comm_order_cycle(world, checks.launch_order()) {
            Ok(it) => found.communicator_order = it.map(Box::new),
            Err(TooManyComms) => {
                found.not_checked.push(
                    "the order of communicators: too many streams and communicators, or too many communications that nothing orders".to_owned(),
                );
            }
        }
    }
    if checks.capture {
        found.capture_faults = world.iter().flat_map(capture_faults).collect();
    }
    if !checks.needs_accesses() {
        return found;
    }
    let (mut races, mut memory) = (RaceDetector::new(world, checks.access_rules()), WriteTracker::new(world));
    let mut unread = UnreadWrites::new(world);
    let walked = happens_before::walk(world, &mut |it| {
        // Waits and writes are judged only if the program has no race.
        if checks.race || checks.excess {
            races.visit(&it);
        }
        if checks.excess {
            unread.visit(&it);
        }
        if checks.memory {
            memory.visit(&it);
        }
    });
    match walked {
        Ok(()) => (),
        Err(OrderError::TooLarge) => {
            found.not_checked.push("races and memory: all ranks together have too many streams and communicators; use a smaller mesh".to_owned());
            return found;
        }
        Err(OrderError::Deadlock) => {
            found.not_checked.push("races and memory: no order of all instructions was found".to_owned());
            return found;
        }
    }
    races.finish();
    let is_clean = races.found.is_empty() && races.not_compared == 0;
    if checks.excess {
        let (excess, not_searched) =
            find_excess(world, is_clean.then_some(unread), &races.found, checks.access_rules());
        // A caller that requested the race check already sees the reason.
        if is_clean || !checks.race {
            found.not_searched = not_searched;
        }
        found.excess = excess;
    }
    if !checks.race {
        races.found.clear();
        races.not_compared = 0;
    }
    found.has_more_races = checks.race && races.is_truncated();
    if found.has_more_races {
        found.not_checked.push(format!("races beyond the first {}", races.found.len()));
    }
    if races.not_compared > 0 {
        found
            .not_checked
            .push(format!("{} pairs of views that have too many pieces to compare", races.not_compared));
    }
    if memory.not_checked > 0 {
        found
            .not_checked
            .push(format!("{} reads and writes that have too many pieces to record", memory.not_checked));
    }
    memory.finish();
    if checks.memory {
        let of = |plan: &Plan| {
            plan.overwritten_views.clone().into_iter().map(|it| (plan.rank, it)).collect::<Vec<_>>()
        };
        found.overwritten_views = world.iter().flat_map(of).collect();
    }
    (found.races, found.unwritten_reads) = (races.found, memory.found);
    if checks.repeat && found.races.is_empty() {
        found.check_two_runs(world, checks.access_rules());
    }
    found
}

impl CheckResults {
    /// Adds the races between two consecutive runs. A single run has no race.
    fn check_two_runs(&mut self, plans: &[Plan], rules: AccessRules) {
        match repeat::races_between_runs(plans, rules) {
            Ok((races, not_compared)) => {
                self.races.extend(races);
                if not_compared > 0 {
                    self.not_checked.push(format!(
                        "{not_compared} pairs of views of two runs that have too many pieces to compare"
                    ));
                }
            }
            Err(OrderError::TooLarge | OrderError::Deadlock) => {
                self.not_checked.push("two runs: no order of all their instructions was found".to_owned());
            }
        }
    }

    /// Merges the results over ranks and iterations into a report.
    pub fn report(self, plans: &[Plan]) -> Report {
        let mut report =
            Report { findings: Vec::new(), not_checked: self.not_checked, not_searched: self.not_searched };
        report.findings.extend(self.deadlock.map(Finding::Deadlock));
        report.findings.extend(self.communicator_order.map(Finding::CommunicatorOrder));
        report.add_captures(plans, self.capture_faults);
        report.add(plans, self.races, self.unwritten_reads);
        report.add_overwritten_views(plans, self.overwritten_views);
        report.findings.extend(self.excess.into_iter().map(|it| Finding::Excess(Box::new(it))));
        report
    }
}
