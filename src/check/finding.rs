//! Findings of the checker, merged over ranks and iterations: one finding for each ordered pair of statements.

use grammar::{InvalidOption, Named};
use std::collections::BTreeSet;

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    excess::{Excess, ExcessNotSearched},
    execution_fault::ExecutionFault,
    memory::UnwrittenRead,
    not_checked::NotChecked,
    ordering_model::{AccessRules, OrderingModel, StorageModel},
    race_side::RaceSide,
};
use hir_plan::{
    BufferNo, OverwrittenView, Plan, World,
    sync::{CommOrderCycle, CommOrderEdge, Deadlock, HostRule, LaunchOrder, P2pQueues},
};

/// Selects the checks to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Finds pairs of conflicting accesses that no synchronization orders.
    pub race: bool,
    /// Finds contradictory orders of communicators. Deadlocks are always reported.
    pub comm: bool,
    /// Finds reads of elements that nothing has written.
    pub memory: bool,
    /// Finds statements that the program does not need. They are reported as remarks, not faults.
    pub excess: bool,
    /// Finds races between two consecutive runs, and contradictory orders of communicators in any number of runs, if a single run has none.
    pub repeat: bool,
    /// Finds work that a capture into a CUDA graph does not record, or that ends the capture with an error.
    pub capture: bool,
    /// The rules that define which accesses are ordered.
    pub model: OrderingModel,
    /// How the kernels of different communicators are launched. With `OrderingModel::Hir` always `Implicit`, as hir-run does,
    /// and as the constants say; tools that check a program for other executors set `Explicit`.
    pub nccl: LaunchOrder,
    /// The communicators of sends and receives that are in no group; `None` finds what is a fault with either. The constants and
    /// `OrderingModel::Hir` have that of all ranks, as hir-run does.
    pub p2p: Option<P2pQueues>,
    /// Whether NCCL connects ranks in the first communication that needs it, its default (`NCCL_RUNTIME_CONNECT=1`; sends and receives
    /// always). In the constants they are connected before, as by hir-run.
    pub connects: bool,
    /// Whether collectives of a team over peer memory follow each other in issue order: PyTorch 2.15.
    pub serial_pads: bool,
    /// Where storage comes from. With `OrderingModel::Hir` it is never used again before its uses have ended.
    pub storage: StorageModel,
}

impl Checks {
    /// The checks of `--check` without words: all checks of a single run, by the documented rules.
    pub const DEFAULT: Self = Self { excess: true, ..Self::ALL_FAULTS };
    /// The checks for faults in a single run, by the documented rules.
    pub const ALL_FAULTS: Self = Self { race: true, comm: true, memory: true, ..Self::NONE };
    /// No checks except the deadlock check, which always runs.
    const NONE: Self = Self {
        race: false,
        comm: false,
        memory: false,
        excess: false,
        repeat: false,
        capture: false,
        model: OrderingModel::Nccl,
        nccl: LaunchOrder::Implicit,
        p2p: Some(P2pQueues::Communicator),
        connects: false,
        serial_pads: false,
        storage: StorageModel::PyTorch,
    };

    /// Returns true if excess is the only requested check.
    pub fn is_excess_only(self) -> bool {
        self == Self { excess: true, ..Self::NONE.with_models_of(self) }
    }

    /// Returns whether collectives of a team over peer memory may share signal pads: those of PyTorch, unless each of them waits for the one before
    /// (`GroupStreamGuard`). hir's executors count.
    pub(super) fn has_signal_pads(self) -> bool {
        self.model == OrderingModel::Nccl && !self.serial_pads
    }

    /// Returns the order in which kernels of different communicators are launched.
    pub(super) fn launch_order(self) -> LaunchOrder {
        match self.model {
            OrderingModel::Nccl => self.nccl,
            OrderingModel::Hir => LaunchOrder::Implicit,
        }
    }

    /// Returns the communicators of sends and receives to check with; `None` is either.
    pub(super) fn p2p_queues(self) -> Option<P2pQueues> {
        match self.model {
            OrderingModel::Nccl => self.p2p,
            OrderingModel::Hir => Some(P2pQueues::Communicator),
        }
    }

    /// Returns the rules by which hosts block.
    pub(super) fn host_rules(self) -> Vec<HostRule> {
        let applies = |it: &HostRule| match it {
            HostRule::Creation => self.p2p_queues() != Some(P2pQueues::Communicator),
            // A program that has run before has exchanged its handles.
            HostRule::Connection | HostRule::Exchange => self.model == OrderingModel::Nccl && self.connects,
            HostRule::SymmetricMemory => self.access_rules().allocates_with_cuda(),
        };
        HostRule::ALL.into_iter().filter(applies).collect()
    }

    /// Returns all communicators of sends and receives to check with.
    pub(super) fn all_p2p_queues(self) -> impl Iterator<Item = P2pQueues> {
        P2pQueues::ALL.iter().copied().filter(move |it| self.p2p_queues().is_none_or(|only| only == *it))
    }

    /// Returns the checks for faults in a single run, with the same models.
    #[must_use]
    pub fn of_faults(self) -> Self {
        Self::ALL_FAULTS.with_models_of(self)
    }

    fn with_models_of(self, it: Self) -> Self {
        let Self { model, nccl, p2p, connects, serial_pads, storage, .. } = it;
        Self { model, nccl, p2p, connects, serial_pads, storage, ..self }
    }

    /// Returns the rules for accesses.
    pub(super) fn access_rules(self) -> AccessRules {
        AccessRules { model: self.model, storage: self.storage }
    }

    /// Returns true if the semaphores of transfers over peer memory are checked.
    pub(super) fn looks_at_semaphores(self) -> bool {
        self.race && self.model == OrderingModel::Nccl
    }

    /// Returns true if any requested check needs the memory accesses.
    pub(super) fn needs_accesses(self) -> bool {
        self.race || self.memory || self.excess || self.repeat
    }
}

impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [
            (self.race, "race"),
            (self.comm, "comm"),
            (self.memory, "memory"),
            (self.excess, "excess"),
            (self.repeat, "repeat"),
            (self.capture, "capture"),
        ];
        let words: Vec<&str> = words.into_iter().filter(|it| it.0).map(|it| it.1).collect();
        f.write_str(&words.join(","))
    }
}

/// Parses a list of `race`, `comm`, `memory`, `excess`, `repeat`, `capture` and `all`, which is all of them but `capture`.
impl std::str::FromStr for Checks {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let mut checks = Self::NONE;
        for word in text.split(',') {
            match word.trim() {
                "all" => checks = Self { repeat: true, capture: checks.capture, ..Self::DEFAULT },
                "race" => checks.race = true,
                "comm" => checks.comm = true,
                "memory" => checks.memory = true,
                "excess" => checks.excess = true,
                "capture" => checks.capture = true,
                // Several runs are compared only if a single one has no race and no contradictory order.
                "repeat" => (checks.race, checks.comm, checks.repeat) = (true, true, true),
                other => {
                    return Err(format!(
                        "`{other}` is not a check: expected race, comm, memory, excess, repeat, capture or all"
                    )
                    .into());
                }
            }
        }
        Ok(checks)
    }
}

/// A fault or a remark about a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// A race.
    Race {
        /// The first occurrence.
        race: Race,
        /// All occurrences of the race.
        more: Occurrences,
    },
    /// A read, or a returned output, of elements that nothing has written.
    Unwritten {
        /// The first occurrence.
        read: UnwrittenRead,
        /// All occurrences of the read.
        more: Occurrences,
    },
    /// A write into the result of a copy that is a view of the operand.
    OverwrittenView {
        /// The write.
        copy: OverwrittenView,
        /// The first rank that executes it.
        rank: usize,
        /// All ranks that execute it.
        more: Occurrences,
    },
    /// A deadlock.
    Deadlock(Box<Deadlock>),
    /// Ranks post to communicators in contradictory orders.
    CommunicatorOrder(Box<CommOrderCycle>),
    /// A fault of how an executor runs a statement: in a capture into a CUDA graph, or with semaphores.
    Execution {
        /// The first occurrence.
        fault: ExecutionFault,
        /// All occurrences.
        more: Occurrences,
    },
    /// A statement that the program does not need.
    Excess(Box<Excess>),
    /// A fault that the program has where conditions end loops early (`WHILE`).
    EarlyExit {
        /// The plans that have the fault, an index into `World::early_exits`.
        world: usize,
        /// The fault.
        finding: Box<Finding>,
    },
}

impl Finding {
    /// Returns the race and all its occurrences, or `None` for a fault of another kind.
    pub fn race(&self) -> Option<(&Race, &Occurrences)> {
        match self {
            Self::Race { race, more } => Some((race, more)),
            Self::Unwritten { .. }
            | Self::OverwrittenView { .. }
            | Self::Deadlock(_)
            | Self::CommunicatorOrder(_)
            | Self::Execution { .. }
            | Self::Excess(_)
            | Self::EarlyExit { .. } => None,
        }
    }

    /// Returns the finding with the plans to which it refers.
    pub(super) fn resolved<'a>(&'a self, world: &'a World) -> (&'a World, &'a Self) {
        match self {
            Self::EarlyExit { world: at, finding } => {
                (world.early_exits().get(*at).unwrap_or(world), finding)
            }
            _ => (world, self),
        }
    }

    /// Returns the statements of the finding: a rank that executes the statement, the statement, and a label.
    /// Accesses by the caller have no statement and are skipped.
    pub fn labeled_statements(&self, world: &World) -> Vec<(usize, StmtId, String)> {
        let (plans, finding) = self.resolved(world);
        let place = |rank: usize, origin: u32, label: String| {
            Some((rank, plans[rank].origins[origin as usize].stmt?, label))
        };
        match finding {
            Self::Race { race, .. } => {
                let sides = RaceSide::both(plans, race);
                let sides = sides.iter().filter(|it| it.is_in_program());
                sides.filter_map(|it| place(it.plan.rank, it.origin, it.label())).collect()
            }
            Self::Unwritten { read, .. } => {
                let inst = &plans[read.inst_ref.rank].code[read.inst_ref.inst];
                place(read.inst_ref.rank, inst.origin, "reads unwritten elements".to_owned())
                    .into_iter()
                    .collect()
            }
            Self::OverwrittenView { copy, rank, .. } => {
                let label = format!("writes into `{}`", copy.base);
                place(*rank, copy.origin, label).into_iter().collect()
            }
            Self::Deadlock(it) => {
                let rank = it.line(plans).map_or(0, |it| it.0);
                it.stmt(plans).map(|stmt| (rank, stmt, "a rank waits here".to_owned())).into_iter().collect()
            }
            Self::CommunicatorOrder(it) => {
                let at = |it: &CommOrderEdge| {
                    let origin = plans[it.first.rank].code[it.first.inst].origin;
                    place(it.first.rank, origin, format!("rank {} starts this first", it.first.rank))
                };
                it.edges.iter().filter_map(at).collect()
            }
            Self::Execution { fault, .. } => {
                place(fault.rank, fault.origin, fault.kind.label()).into_iter().collect()
            }
            Self::Excess(it) => {
                let (rank, origin) = it.stmt;
                place(rank, origin, "the program does not need this".to_owned()).into_iter().collect()
            }
            Self::EarlyExit { .. } => Vec::new(),
        }
    }
}

/// All ranks and iterations with the same finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// The ranks, including that of the first occurrence.
    pub ranks: BTreeSet<usize>,
    /// Number of occurrences.
    pub count: usize,
    /// The lines of the statements, and of other pairs on the same tensor and streams that the same edit removes.
    pub lines: BTreeSet<u32>,
    /// The occurrences of a race, on all ranks and in all iterations.
    pub(super) races: Vec<Race>,
}

/// The result of all requested checks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The findings, in program order.
    pub findings: Vec<Finding>,
    /// The checks that could not run, and the reasons.
    pub not_checked: Vec<NotChecked>,
    /// The searches for excess that did not run, and the reasons.
    pub not_searched: Vec<ExcessNotSearched>,
    /// The number of groups of ranks that share no memory, if each was checked by itself (`hir_plan::sync::MemoryGroups`); else
    /// 0 or 1.
    pub groups: usize,
}

impl Report {
    /// Returns true if the program deadlocks.
    pub fn has_deadlock(&self) -> bool {
        self.findings.iter().any(|it| matches!(it, Finding::Deadlock(_)))
    }

    /// Says that the ranks of a large world were checked in groups; `None` if they were checked together.
    pub fn groups_text(&self, ranks: usize) -> Option<String> {
        let groups = self.groups;
        (groups > 1).then(|| {
            format!(
                "races and memory: the {ranks} ranks are in {groups} groups that share no memory, and each group is checked by itself"
            )
        })
    }

    /// Merges races and unwritten reads into the findings.
    pub(super) fn add(&mut self, plans: &[Plan], races: Vec<Race>, mut reads: Vec<UnwrittenRead>) {
        // If a buffer has a race, an unwritten read of it is a consequence of the race. An output that
        // nothing writes is still reported.
        let racing: FxHashSet<(usize, BufferNo)> = races.iter().map(|it| (it.rank, it.buffer)).collect();
        reads.retain(|it| it.output.is_some() || !racing.contains(&(it.rank, it.buffer)));
        self.add_races(plans, races);
        self.add_unwritten(plans, reads);
    }

    /// Merges races: one finding for each pair of lines and each order of the two, over ranks and iterations.
    fn add_races(&mut self, plans: &[Plan], mut races: Vec<Race>) {
        let mut by_lines = FxHashMap::default();
        // A statement may race with both its reads and its writes. The write is more informative, so it comes
        // first.
        races.sort_by_key(|race| {
            let sides = RaceSide::both(plans, race);
            let writes = sides.iter().any(|it| it.is_in_program() && it.writes && !it.allocates());
            (!writes, sides.iter().any(RaceSide::allocates))
        });
        for race in races {
            let sides = RaceSide::in_issue_order(plans, &race);
            let mut lines =
                sides.each_ref().map(|it| (it.plan.program_id, it.is_in_program().then(|| it.line())));
            if sides[0].plan.rank != sides[1].plan.rank {
                lines.sort_unstable();
            }
            // A missing wait at entry and a missing wait at exit are separate findings.
            let is_entry = sides.iter().any(|it| it.party == Party::CallerBefore);
            // A missing wait at entry is on the rank whose caller writes.
            let is_remote = is_entry && sides.iter().any(|it| it.plan.rank != race.rank);
            let kind = (RaceSide::code(&race, &sides), is_entry, is_remote);
            let at = *by_lines.entry((lines, kind)).or_insert(self.findings.len());
            if at == self.findings.len() {
                self.findings.push(Finding::Race { race, more: Occurrences::default() });
            }
            if let Finding::Race { more, .. } = &mut self.findings[at] {
                more.add(race.rank);
                more.races.push(race);
                more.lines.extend(lines.iter().filter_map(|it| it.1));
            }
        }
    }

    /// Adds the writes into copies that are views: one finding for each statement.
    pub(super) fn add_overwritten_views(&mut self, plans: &[Plan], copies: Vec<(usize, OverwrittenView)>) {
        let mut known = FxHashMap::default();
        for (rank, copy) in copies {
            let line = plans[rank].origins[copy.origin as usize].line;
            let at = *known.entry((plans[rank].program_id, line)).or_insert(self.findings.len());
            if at == self.findings.len() {
                self.findings.push(Finding::OverwrittenView { copy, rank, more: Occurrences::default() });
            }
            if let Finding::OverwrittenView { more, .. } = &mut self.findings[at] {
                more.add(rank);
            }
        }
    }

    /// Adds faults of how an executor runs statements: one finding for each statement and kind.
    pub(super) fn add_execution_faults(&mut self, plans: &[Plan], faults: Vec<ExecutionFault>) {
        let mut known = FxHashMap::default();
        for fault in faults {
            let plan = &plans[fault.rank];
            let line = plan.origins[fault.origin as usize].line;
            let at = *known.entry((plan.program_id, line, fault.kind)).or_insert(self.findings.len());
            if at == self.findings.len() {
                self.findings.push(Finding::Execution { fault, more: Occurrences::default() });
            }
            if let Finding::Execution { more, .. } = &mut self.findings[at] {
                more.add(fault.rank);
            }
        }
    }

    /// Merges unwritten reads: one finding for each line and buffer name. The read that is shown reaches an output, if one of them
    /// does.
    fn add_unwritten(&mut self, plans: &[Plan], reads: Vec<UnwrittenRead>) {
        let mut known = FxHashMap::default();
        for read in reads {
            let plan = &plans[read.inst_ref.rank];
            let name = plans[read.rank].buffers[read.buffer as usize].name.clone();
            let line = plan.origins[plan.code[read.inst_ref.inst].origin as usize].line;
            let at = *known.entry((name, plan.program_id, line)).or_insert(self.findings.len());
            let rank = read.inst_ref.rank;
            if at == self.findings.len() {
                self.findings.push(Finding::Unwritten { read, more: Occurrences::default() });
            } else if let Finding::Unwritten { read: shown, .. } = &mut self.findings[at]
                && shown.reaches.is_none()
                && read.reaches.is_some()
            {
                *shown = read;
            }
            if let Finding::Unwritten { more, .. } = &mut self.findings[at] {
                more.add(rank);
            }
        }
    }
}

impl Occurrences {
    fn add(&mut self, rank: usize) {
        self.ranks.insert(rank);
        self.count += 1;
    }

    /// Adds the occurrences of a similar finding.
    pub(super) fn extend(&mut self, other: &Self) {
        self.ranks.extend(&other.ranks);
        self.count += other.count;
        self.lines.extend(&other.lines);
    }
}
