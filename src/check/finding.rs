//! What the checker finds, folded over ranks and iterations: one finding for each pair of statements.

use std::collections::BTreeSet;

use grammar::{codes::Code, ir::StmtId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    excess::{Excess, ExcessNotSearched},
    memory::UnwrittenRead,
    ordering_model::OrderingModel,
    race_side::RaceSide,
};
use crate::plan::{
    BufferNo, Plan,
    sync::{CommOrderCycle, CommOrderEdge, Deadlock},
};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Accesses that nothing orders.
    pub race: bool,
    /// Ranks that wait for what never happens.
    pub comm: bool,
    /// Elements that nothing has written.
    pub memory: bool,
    /// What the program could do without: remarks, which are no faults.
    pub excess: bool,
    /// Accesses of two consecutive runs that nothing orders, where one run has no race.
    pub repeat: bool,
    /// Whose rules give an order.
    pub model: OrderingModel,
}

impl Checks {
    /// Everything that is asked of one run, by the documented rules.
    pub const ALL: Self = Self { excess: true, ..Self::ALL_FAULTS };
    /// Everything that a program has to be free of, by the documented rules.
    pub const ALL_FAULTS: Self = Self { race: true, comm: true, memory: true, ..Self::NONE };
    /// Nothing but deadlocks, which are always looked for.
    const NONE: Self = Self {
        race: false,
        comm: false,
        memory: false,
        excess: false,
        repeat: false,
        model: OrderingModel::Nccl,
    };

    /// Whether excess is all that is asked for.
    pub fn is_excess_only(self) -> bool {
        self == Self { excess: true, model: self.model, ..Self::NONE }
    }

    /// Whether anything is checked that looks at memory.
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
        ];
        let words: Vec<&str> = words.into_iter().filter(|it| it.0).map(|it| it.1).collect();
        f.write_str(&words.join(","))
    }
}

/// `race,comm,memory,excess,repeat`; `all` is all but the last.
impl std::str::FromStr for Checks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut checks = Self::NONE;
        for word in text.split(',') {
            match word.trim() {
                "all" => checks = Self { repeat: checks.repeat, ..Self::ALL },
                "race" => checks.race = true,
                "comm" => checks.comm = true,
                "memory" => checks.memory = true,
                "excess" => checks.excess = true,
                // Races of one run are races of two.
                "repeat" => (checks.race, checks.repeat) = (true, true),
                other => {
                    return Err(format!(
                        "`{other}` is no check: expected race, comm, memory, excess, repeat or all"
                    ));
                }
            }
        }
        Ok(checks)
    }
}

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Two accesses that nothing orders.
    Race {
        /// The first of them.
        race: Race,
        /// Where else the same two statements race.
        more: Occurrences,
    },
    /// Elements that are read, or returned, and that nothing has written.
    Unwritten {
        /// The first read of them.
        read: UnwrittenRead,
        /// Where else the same statement reads such elements.
        more: Occurrences,
    },
    /// Ranks wait for what never happens.
    Deadlock(Box<Deadlock>),
    /// Ranks use communicators in orders that contradict each other.
    CommunicatorOrder(Box<CommOrderCycle>),
    /// What the program could do without.
    Excess(Box<Excess>),
}

impl Finding {
    /// The statements that it is about, each with a rank that runs it and what it does; none of the caller.
    pub fn labeled_statements(&self, plans: &[Plan]) -> Vec<(usize, StmtId, String)> {
        let place = |rank: usize, origin: u32, label: String| {
            Some((rank, plans[rank].origins[origin as usize].stmt?, label))
        };
        match self {
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
            Self::Deadlock(it) => {
                let rank = it.line(plans).map_or(0, |it| it.0);
                it.stmt(plans).map(|stmt| (rank, stmt, "a rank waits here".to_owned())).into_iter().collect()
            }
            Self::CommunicatorOrder(it) => {
                let at = |it: &CommOrderEdge| {
                    let origin = plans[it.first.rank].code[it.first.inst].origin;
                    place(it.first.rank, origin, format!("rank {} posts this first", it.first.rank))
                };
                it.0.iter().filter_map(at).collect()
            }
            Self::Excess(it) => {
                let (rank, origin) = it.stmt;
                place(rank, origin, "the program could do without this".to_owned()).into_iter().collect()
            }
        }
    }
}

/// Other ranks and iterations with the same finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occurrences {
    /// All ranks with the finding, the first included.
    pub ranks: BTreeSet<usize>,
    /// How often it occurs.
    pub count: usize,
    /// The lines of all pairs of statements that race on the tensor in the same two streams or queues.
    pub lines: BTreeSet<u32>,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What is wrong, in the order of the program.
    pub findings: Vec<Finding>,
    /// What could not be checked, and why.
    pub not_checked: Vec<String>,
    /// Where excess was not looked for, and why.
    pub not_searched: Vec<ExcessNotSearched>,
}

impl Report {
    /// Whether the program deadlocks.
    pub fn has_deadlock(&self) -> bool {
        self.findings.iter().any(|it| matches!(it, Finding::Deadlock(_)))
    }

    /// Adds what was found.
    pub(super) fn add(&mut self, plans: &[Plan], races: Vec<Race>, mut reads: Vec<UnwrittenRead>) {
        // What a race lets be read too early is not missing; an output that nothing writes is.
        let racing: FxHashSet<(usize, BufferNo)> = races.iter().map(|it| (it.rank, it.buffer)).collect();
        reads.retain(|it| it.output.is_some() || !racing.contains(&(it.rank, it.buffer)));
        self.add_races(plans, races);
        self.add_unwritten(plans, reads);
    }

    /// Adds races: one for each pair of lines, and one for each pair of streams and queues, that race on a tensor.
    fn add_races(&mut self, plans: &[Plan], mut races: Vec<Race>) {
        let mut by_lines = FxHashMap::default();
        let mut by_actors = FxHashMap::default();
        // A statement may race both with what it reads and with what it writes: the write says more.
        races.sort_by_key(|race| {
            let sides = RaceSide::both(plans, race);
            let writes = sides.iter().any(|it| it.is_in_program() && it.writes && !it.allocates());
            (!writes, sides.iter().any(RaceSide::allocates))
        });
        // Statements that race for a buffer are not ordered with its ALLOCATE either, mostly: one edit ends both.
        let code = |race: &Race| RaceSide::code(race, &RaceSide::both(plans, race));
        let plain: FxHashSet<(usize, BufferNo)> =
            races.iter().filter(|it| code(it) == Code::Race).map(|it| (it.rank, it.buffer)).collect();
        races.retain(|it| {
            let is_consequence = it.reused.is_none() && code(it) == Code::StorageRace;
            !is_consequence || !plain.contains(&(it.rank, it.buffer))
        });
        for race in races {
            let name = &plans[race.rank].buffers[race.buffer as usize].name;
            let sides = RaceSide::both(plans, &race);
            let mut lines =
                sides.each_ref().map(|it| (it.plan.program_id, it.is_in_program().then(|| it.line())));
            let mut actors = sides
                .each_ref()
                .map(|it| (it.is_in_program(), it.plan.rank == race.rank, it.actor_name(), it.allocates()));
            lines.sort_unstable();
            actors.sort_unstable();
            // What is missing at entry is not what is missing at exit.
            let is_entry = sides.iter().any(|it| it.party == Party::CallerBefore);
            let kind = (RaceSide::code(&race, &sides), is_entry);
            let actors = (name, sides[0].plan.program_id, actors, kind);
            let lines_key = (lines, kind);
            let known = by_lines.get(&lines_key).or_else(|| by_actors.get(&actors)).copied();
            let at = known.unwrap_or(self.findings.len());
            by_lines.entry(lines_key).or_insert(at);
            if known.is_none() {
                by_actors.insert(actors, at);
                self.findings.push(Finding::Race { race, more: Occurrences::default() });
            }
            if let Finding::Race { more, .. } = &mut self.findings[at] {
                more.add(race.rank);
                more.lines.extend(lines.iter().filter_map(|it| it.1));
            }
        }
    }

    /// Adds unwritten reads: one for each line and buffer name.
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
}
