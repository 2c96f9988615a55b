//! Runs all requested checks in one walk over the instructions of all ranks.

use std::cell::OnceCell;

use super::{
    access_checks::{AccessChecks, Grouping},
    capture::capture,
    conflict::Race,
    excess::{Excess, ExcessKind, ExcessNotSearched, find_excess},
    execution_fault::{ExecutionFault, PostedAgain},
    finding::{Checks, Finding, Report},
    kernels_of_runs::cycle_between_runs,
    memory::UnwrittenRead,
    missing_write::late_writes,
    not_checked::NotChecked,
    ordering_model::AccessRules,
    progress::{Progress, cycle_of_kernels},
    race::MAX_RACES,
    repeat,
    semaphores::too_few_queues,
};
use rustc_hash::FxHashSet;

use hir_plan::{
    OverwrittenView, Plan, World,
    sync::{
        CommOrderCycle, Deadlock, HostRule, LaunchOrder, MemoryGroups, P2pQueues, happens_before::OrderError,
        own_orders_exclude_cycles, shared_pads,
    },
};

/// The raw results of the checks, before they are merged over ranks and iterations.
#[derive(Clone, Debug, Default)]
pub struct CheckResults {
    /// A deadlock. No other check runs in this case.
    pub deadlock: Option<Box<Deadlock>>,
    /// A deadlock of hosts that create communicators in contradictory orders, which is `communicator_order`, too. All other checks run.
    pub deadlock_of_hosts: Option<Box<Deadlock>>,
    /// Ranks post to communicators in contradictory orders.
    pub communicator_order: Option<Box<CommOrderCycle>>,
    /// Ranks post to communicators in contradictory orders if a run follows another one. No single run has contradictory orders.
    pub order_of_runs: Option<Box<CommOrderCycle>>,
    /// Faults of captures into CUDA graphs, and of semaphores.
    pub execution_faults: Vec<ExecutionFault>,
    /// Pairs of accesses that no synchronization orders.
    pub races: Vec<Race>,
    /// Reads of elements that nothing has written.
    pub unwritten_reads: Vec<UnwrittenRead>,
    /// Writes into copies that are views, with their ranks.
    pub overwritten_views: Vec<(usize, OverwrittenView)>,
    /// Statements that the program does not need.
    pub excess: Vec<Excess>,
    /// The checks that could not run, and the reasons.
    pub not_checked: Vec<NotChecked>,
    /// True if the program may have more races.
    pub has_more_races: bool,
    /// The searches for excess that could not run, and the reasons.
    pub not_searched: Vec<ExcessNotSearched>,
    /// The number of groups of ranks whose accesses were compared separately; 0 or 1 if all were compared.
    pub groups: usize,
}

/// Runs `checks` on the plans of all ranks.
pub fn run_checks(world: &World, checks: Checks) -> CheckResults {
    run_checks_in(world, checks, Grouping::Large)
}

/// As `run_checks`, with groups of ranks that are checked by themselves as `grouping` says.
pub fn run_checks_in(world: &World, checks: Checks, grouping: Grouping) -> CheckResults {
    let queues = checks.p2p_queues();
    let has_pairs = queues != Some(P2pQueues::Communicator);
    let pairs = has_pairs.then(|| world.with_pair_communicators()).flatten();
    let mut found = match (queues, &pairs) {
        (_, None) => run_checks_of(world, checks, grouping),
        // What a program does not need with fewer orders, it does not need with more.
        (None, Some(_)) => run_checks_of(world, Checks { excess: false, capture: false, ..checks }, grouping),
        (Some(_), Some(_)) => CheckResults::default(),
    };
    if let Some(pairs) = pairs.as_ref().filter(|_| found.deadlock.is_none()) {
        found.add(run_checks_of(pairs, checks, grouping), P2pQueues::Pair);
        if found.deadlock.is_none() && !world.meets_as_in(pairs) {
            found.not_checked.push(NotChecked::MixedTransfers);
        }
    }
    if found.deadlock.is_none() {
        let rules = checks.host_rules();
        let eager: Vec<HostRule> = rules.iter().copied().filter(|it| *it != HostRule::Creation).collect();
        let mut hosts = pairs.as_ref().unwrap_or(world).deadlock_of_hosts(&rules);
        if queues.is_none() && pairs.is_some() {
            hosts = hosts.or_else(|| world.deadlock_of_hosts(&eager));
        }
        match found.communicator_order {
            None => found.deadlock = hosts.map(Box::new),
            // Contradictory orders of communicators also let hosts connect in contradictory orders.
            Some(_) => {
                let others = hosts.filter(|it| it.hosts != [HostRule::Connection]);
                found.deadlock_of_hosts = others.map(Box::new);
            }
        }
    }
    found
}

/// Runs `checks` on the plans of all ranks, with the communicators that they name. What is compared with views that are copied is
/// compared with mapped ones, too, which have fewer orders.
fn run_checks_of(world: &World, checks: Checks, grouping: Grouping) -> CheckResults {
    let is_mapped = checks.access_rules().maps_views() && (checks.race || checks.excess || checks.repeat);
    let mapped = world.with_mapped_views().filter(|_| is_mapped);
    let excess = checks.excess && mapped.is_none();
    let mut found = run_checks_of_plans(world, Checks { excess, ..checks }, grouping);
    if found.deadlock.is_some() {
        return found;
    }
    let accesses = Checks { comm: false, memory: false, capture: false, ..checks };
    if let Some(mapped) = &mapped {
        found.add_accesses(run_checks_of_plans(mapped, accesses, grouping));
    }
    if checks.capture && checks.race && found.races.is_empty() {
        let accesses = Checks { excess: false, repeat: false, ..accesses };
        let captured = world.with_captured_storage();
        let captured = captured.map(|it| run_checks_of_plans(&it, accesses, grouping));
        let mut races = captured.map(|it| it.races).unwrap_or_default();
        races.iter_mut().filter_map(|it| it.reused.as_mut()).for_each(|it| it.in_capture = true);
        found.add_races(races, P2pQueues::Communicator);
    }
    found
}

/// Runs `checks` on the plans of all ranks as they are.
fn run_checks_of_plans(world: &World, checks: Checks, grouping: Grouping) -> CheckResults {
    let mut found = CheckResults::default();
    if let Some(deadlock) = world.deadlock() {
        // Instructions after a deadlock never execute, so they are not checked.
        found.deadlock = Some(Box::new(deadlock));
        return found;
    }
    let groups = grouping.groups(world);
    let is_ordered = found.check_communicators(world, checks, &groups);
    if checks.capture {
        let allocates = checks.access_rules().allocates_with_cuda();
        for it in world.iter().map(capture) {
            found.execution_faults.extend(it.faults.into_iter().chain(it.not_freed.filter(|_| allocates)));
        }
    }
    if checks.comm {
        found.execution_faults.extend(world.swapped_calls().map(|it| ExecutionFault::swapped(world, it)));
    }
    if !checks.needs_accesses() {
        return found;
    }
    found.groups = groups.groups().len();
    let mut accesses = match AccessChecks::of(world, checks, (grouping, &groups)) {
        Ok(it) => it,
        Err(OrderError::TooLarge) => {
            found.not_checked.push(NotChecked::TooLarge);
            return found;
        }
        Err(OrderError::Deadlock) => {
            found.not_checked.push(NotChecked::NoOrder);
            return found;
        }
    };
    if checks.looks_at_semaphores() {
        found.execution_faults.extend(too_few_queues(world));
        let again = |at: &PostedAgain| ExecutionFault::posted_again(world, *at, false);
        found.execution_faults.extend(accesses.posted_again.iter().map(again));
    }
    if checks.excess {
        found.search_excess(world, checks, &mut accesses);
    }
    if !checks.race {
        accesses.races.clear();
        accesses.not_compared = 0;
    }
    found.has_more_races = checks.race && accesses.races.len() >= MAX_RACES;
    let incomplete = [
        (found.has_more_races, NotChecked::MoreRaces(accesses.races.len())),
        (accesses.not_compared > 0, NotChecked::Views(accesses.not_compared)),
        (accesses.not_recorded > 0, NotChecked::Accesses(accesses.not_recorded)),
        (accesses.undecided > 0, NotChecked::Groups(accesses.undecided)),
    ];
    found.not_checked.extend(incomplete.into_iter().filter(|it| it.0).map(|it| it.1));
    if checks.memory {
        let of = |plan: &Plan| {
            plan.overwritten_views.clone().into_iter().map(|it| (plan.rank, it)).collect::<Vec<_>>()
        };
        found.overwritten_views = world.iter().flat_map(of).collect();
    }
    (found.races, found.unwritten_reads) = (accesses.races, accesses.unwritten_reads);
    if checks.repeat && found.races.is_empty() {
        found.check_two_runs(world, checks.access_rules(), grouping);
        // Kernels that start in issue order do so in all runs.
        if is_ordered && checks.launch_order() == LaunchOrder::Explicit {
            match cycle_between_runs(world, grouping) {
                Ok(it) => found.order_of_runs = it.map(Box::new),
                Err(fault) => found.not_checked.push(NotChecked::CommunicatorsOfRuns(fault)),
            }
        }
    }
    found
}

impl CheckResults {
    /// Looks for a cycle in the orders in which the ranks start the kernels of communicators. Returns whether there is none.
    fn check_communicators(&mut self, world: &World, checks: Checks, groups: &MemoryGroups) -> bool {
        let order = checks.launch_order();
        if !(checks.comm || checks.repeat) {
            return true;
        }
        let is_excluded = !groups.is_whole() && own_orders_exclude_cycles(world, groups, order);
        let cycle = if is_excluded { Ok(None) } else { cycle_of_kernels(world, checks) };
        let is_ordered = cycle == Ok(None);
        match cycle {
            Ok(it) => self.communicator_order = it.filter(|_| checks.comm).map(Box::new),
            Err(fault) => self.not_checked.push(NotChecked::Communicators(fault)),
        }
        if checks.comm && checks.has_signal_pads() && self.communicator_order.is_none() {
            match shared_pads(world, groups) {
                // Orders through other groups may order the two.
                Ok(Some(_)) if !groups.is_whole() => {
                    let whole = shared_pads(world, &MemoryGroups::whole(world)).ok().flatten();
                    self.communicator_order = whole.map(Box::new);
                }
                Ok(it) => self.communicator_order = it.map(Box::new),
                Err(fault) => self.not_checked.push(NotChecked::Communicators(fault)),
            }
        }
        is_ordered
    }

    /// Looks for waits and writes that are not needed.
    fn search_excess(&mut self, world: &World, checks: Checks, accesses: &mut AccessChecks<'_>) {
        let is_clean = accesses.is_free_of_races();
        let unread = accesses.unread.take().filter(|_| is_clean);
        let (excess, not_searched) =
            find_excess(world, (unread, is_clean), &accesses.races, checks.access_rules());
        // A caller that requested the race check already sees the reason.
        if is_clean || !checks.race {
            self.not_searched = not_searched;
        }
        self.excess = excess;
        if self.excess.is_empty() {
            return;
        }
        let progress = OnceCell::new();
        let is_kept =
            |it: &Excess| progress.get_or_init(|| Progress::of(world, checks)).is_kept_without(it.stmt);
        self.excess.retain(|it| match it.kind {
            ExcessKind::ImpliedWait | ExcessKind::UnneededWait { .. } => is_kept(it),
            ExcessKind::UnreadWrite { .. }
            | ExcessKind::AllocatesOnce { .. }
            | ExcessKind::NotDeallocated { .. } => true,
        });
        // What is read before it is written is not written in vain: the E0704 asks for the write earlier.
        let late = late_writes(world, &accesses.unwritten_reads);
        self.excess.retain(|it| {
            let (plan, origin) = (&world[it.stmt.0], it.stmt.1 as usize);
            let stmt = plan.origins[origin].stmt.map(|stmt| (plan.program_id, stmt));
            !(matches!(it.kind, ExcessKind::UnreadWrite { .. }) && stmt.is_some_and(|it| late.contains(&it)))
        });
    }

    /// Adds what is found in accesses to mapped views. What is found with copies, too, is reported once.
    fn add_accesses(&mut self, other: Self) {
        self.add_races(other.races, P2pQueues::Communicator);
        let known = std::mem::take(&mut self.execution_faults);
        let new = other.execution_faults.into_iter().filter(|it| !known.contains(it)).collect::<Vec<_>>();
        self.execution_faults = [known, new].concat();
        (self.excess, self.not_searched) = (other.excess, other.not_searched);
        let hosts = other.deadlock.map(|_| NotChecked::HostsOfViews);
        let new = other.not_checked.into_iter().chain(hosts).filter(|it| !self.not_checked.contains(it));
        let new = new.collect::<Vec<_>>();
        self.not_checked.extend(new);
        self.has_more_races |= other.has_more_races;
    }

    fn add_races(&mut self, races: Vec<Race>, p2p: P2pQueues) {
        let pair = |it: &Race| (it.rank, it.buffer, it.parties, it.between_runs);
        let reversed = |it: &Race| Race { parties: [it.parties[1], it.parties[0]], ..*it };
        let known: FxHashSet<_> = self.races.iter().flat_map(|it| [pair(it), pair(&reversed(it))]).collect();
        let new = races.into_iter().filter(|it| !known.contains(&pair(it)));
        self.races.extend(new.map(|it| Race { p2p, ..it }));
    }

    /// Adds the results with other communicators of sends and receives. What is found with both is reported once.
    fn add(&mut self, other: Self, p2p: P2pQueues) {
        self.add_races(other.races, p2p);
        self.deadlock = other.deadlock.map(|it| Box::new(Deadlock { note: p2p.note(), ..*it }));
        let cycle = other.communicator_order.map(|it| Box::new(CommOrderCycle { p2p, ..*it }));
        self.communicator_order = self.communicator_order.take().or(cycle);
        let of_runs = other.order_of_runs.map(|it| Box::new(CommOrderCycle { p2p, ..*it }));
        self.order_of_runs =
            self.order_of_runs.take().or(of_runs).filter(|_| self.communicator_order.is_none());
        let is_new = |it: &UnwrittenRead| !self.unwritten_reads.contains(it);
        self.unwritten_reads.extend(other.unwritten_reads.into_iter().filter(is_new).collect::<Vec<_>>());
        self.overwritten_views = other.overwritten_views;
        self.execution_faults = other.execution_faults;
        self.excess = other.excess;
        self.not_searched = other.not_searched;
        let is_new = |it: &NotChecked| !self.not_checked.contains(it);
        self.not_checked.extend(other.not_checked.into_iter().filter(is_new).collect::<Vec<_>>());
        self.has_more_races |= other.has_more_races;
        self.groups = other.groups;
    }

    /// Adds the races between two consecutive runs. A single run has no race.
    fn check_two_runs(&mut self, plans: &[Plan], rules: AccessRules, grouping: Grouping) {
        match repeat::races_between_runs(plans, rules, grouping) {
            Ok(repeat::BetweenRuns { races, not_compared, posted_again }) => {
                self.races.extend(races);
                // A transfer that is posted again within a run is reported there.
                let known = |it: &ExecutionFault| {
                    self.execution_faults
                        .iter()
                        .any(|other| (other.rank, other.origin) == (it.rank, it.origin))
                };
                let new: Vec<_> = posted_again.into_iter().filter(|it| !known(it)).collect();
                self.execution_faults.extend(new);
                if not_compared > 0 {
                    self.not_checked.push(NotChecked::ViewsOfRuns(not_compared));
                }
            }
            Err(OrderError::TooLarge | OrderError::Deadlock) => {
                self.not_checked.push(NotChecked::NoOrderOfRuns);
            }
        }
    }

    /// Merges the results over ranks and iterations into a report.
    pub fn report(self, plans: &[Plan]) -> Report {
        let mut report = Report {
            findings: Vec::new(),
            not_checked: self.not_checked,
            not_searched: self.not_searched,
            groups: self.groups,
        };
        report.findings.extend(self.deadlock.or(self.deadlock_of_hosts).map(Finding::Deadlock));
        report
            .findings
            .extend(self.communicator_order.or(self.order_of_runs).map(Finding::CommunicatorOrder));
        report.add_execution_faults(plans, self.execution_faults);
        report.add(plans, self.races, self.unwritten_reads);
        report.add_overwritten_views(plans, self.overwritten_views);
        report.findings.extend(self.excess.into_iter().map(|it| Finding::Excess(Box::new(it))));
        report
    }
}
