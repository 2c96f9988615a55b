//! Who goes next: picks one of the actions that the synchronisation allows.
//!
//! Invariant: the same schedule and the same plans give the same choices.

use std::{
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use thiserror::Error;

use crate::{
    io::generate::split_mix,
    plan::sync::{InstRef, Step},
};

/// How the simulator chooses among actions that may run. Spelt `program`, `seed:7`, `adversarial`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// The earliest instruction: the smallest index in its rank's code, then the smallest rank. Every instruction runs
    /// as soon as it is issued and allowed.
    #[default]
    Program,
    /// Random and reproducible. Even seeds give hosts and queues random priorities with a few changes on the way, as
    /// probabilistic concurrency testing does (Burckhardt et al. 2010), so some queue lags far behind; odd seeds
    /// choose uniformly, so instructions interleave finely.
    Seed(u64),
    /// Hosts run ahead as far as they can, then the instruction that was issued last runs first.
    Adversarial,
    /// The steps that touch memory in this order, and then the others in the order of `Program`. What touches no memory happens as soon
    /// as it may.
    Steps {
        /// What reports call it.
        name: Arc<str>,
        /// The steps.
        steps: Arc<[Step]>,
    },
}

/// A schedule that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown schedule `{0}`: expected `program`, `adversarial`, `seed:N`, `seed:A..B`, `explore:N` or `@FILE`"
)]
pub struct ScheduleError(String);

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seed = || text.strip_prefix("seed:").and_then(|it| it.parse().ok());
        match text {
            "program" => Ok(Self::Program),
            "adversarial" => Ok(Self::Adversarial),
            _ => seed().map(Self::Seed).ok_or_else(|| ScheduleError(text.to_owned())),
        }
    }
}

/// Most schedules of one run.
const MAX_SCHEDULES: u64 = 10_000_000;

/// Which schedules a program runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleSet {
    /// One schedule, or one for every seed of a range: `seed:0..50`.
    List(Vec<Schedule>),
    /// At most so many orders of the steps that conflict, each of which may give another result: `explore:100`.
    Explore(usize),
    /// The order that a file gives: `@FILE`.
    File(PathBuf),
}

impl ScheduleSet {
    /// Whether it is the order of the program alone.
    pub fn is_program(&self) -> bool {
        matches!(self, Self::List(them) if *them == [Schedule::Program])
    }
}

impl fmt::Display for ScheduleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(them) => match them.as_slice() {
                [first, .., last] => write!(f, "{first} to {last}"),
                it => it.iter().try_for_each(|it| it.fmt(f)),
            },
            Self::Explore(most) => write!(f, "explore:{most}"),
            Self::File(path) => write!(f, "@{}", path.display()),
        }
    }
}

impl FromStr for ScheduleSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((first, last)) = text.strip_prefix("seed:").and_then(|range| range.split_once("..")) {
            return match (first.parse::<u64>(), last.parse::<u64>()) {
                (Ok(first), Ok(last)) if first < last && last - first > MAX_SCHEDULES => {
                    Err(format!("`{text}` has {} seeds: a run takes {MAX_SCHEDULES} at most", last - first))
                }
                (Ok(first), Ok(last)) if first < last => {
                    Ok(Self::List((first..last).map(Schedule::Seed).collect()))
                }
                _ => Err(format!("`{text}` is no range of seeds: expected `seed:0..50`")),
            };
        }
        if let Some(most) = text.strip_prefix("explore:") {
            return match most.parse() {
                Ok(most) if (1..=MAX_SCHEDULES).contains(&most) => Ok(Self::Explore(most as usize)),
                _ => Err(format!(
                    "`{text}` is no number of orders: expected `explore:100`, at most {MAX_SCHEDULES}"
                )),
            };
        }
        match text.strip_prefix('@') {
            Some(path) => Ok(Self::File(path.into())),
            None => {
                text.parse().map(|it| Self::List(vec![it])).map_err(|fault: ScheduleError| fault.to_string())
            }
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("program"),
            Self::Seed(seed) => write!(f, "seed:{seed}"),
            Self::Adversarial => f.write_str("adversarial"),
            Self::Steps { name, .. } => f.write_str(name),
        }
    }
}

/// Something that may happen now.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyAction {
    /// The host or queue whose head it is.
    pub actor: usize,
    /// Whether it is a host's.
    pub is_host: bool,
    /// The instruction's index in its rank's code.
    pub inst: usize,
    /// Its rank.
    pub rank: usize,
    /// When it was issued, among all ranks.
    pub issue_time: u64,
    /// Whether it touches memory; looked at only where steps are given.
    pub touches_memory: bool,
}

/// The actions that may happen now, one for each actor at most.
pub(super) struct ReadySet {
    actions: SelectionPolicy,
    steps: u64,
}

/// By what the next one is chosen.
enum SelectionPolicy {
    /// The greatest key goes first.
    Ordered { adversarial: bool, heap: BinaryHeap<(u64, usize)> },
    /// The actor of the greatest priority goes first; at each change, the one about to go falls behind all others.
    Priorities { of: Vec<u64>, changes: VecDeque<u64>, heap: BinaryHeap<(u64, usize)> },
    /// Any.
    Uniform { bag: Vec<usize>, random: Random },
    /// Those that touch no memory, then the next of the given steps, then the earliest instruction.
    Listed {
        free: Vec<usize>,
        touching: BTreeMap<(usize, usize), usize>,
        steps: VecDeque<Step>,
        current: Option<Step>,
    },
}

/// Most priority changes in one run.
const MAX_CHANGES: u64 = 12;

impl ReadySet {
    /// An empty set for so many actors, which will take about so many steps.
    pub fn new(schedule: &Schedule, actors: usize, steps: u64) -> Self {
        let ordered = |adversarial| SelectionPolicy::Ordered { adversarial, heap: BinaryHeap::new() };
        let actions = match schedule {
            Schedule::Program => ordered(false),
            Schedule::Adversarial => ordered(true),
            Schedule::Steps { steps, .. } => SelectionPolicy::Listed {
                free: Vec::new(),
                touching: BTreeMap::new(),
                steps: steps.iter().copied().collect(),
                current: None,
            },
            Schedule::Seed(seed) => {
                let mut random = Random(*seed);
                if seed % 2 == 0 {
                    let of = (0..actors).map(|_| random.next() | 1 << 63).collect();
                    let mut changes: Vec<u64> =
                        (0..random.below(MAX_CHANGES + 1)).map(|_| random.below(steps.max(1))).collect();
                    changes.sort_unstable();
                    SelectionPolicy::Priorities { of, changes: changes.into(), heap: BinaryHeap::new() }
                } else {
                    SelectionPolicy::Uniform { bag: Vec::new(), random }
                }
            }
        };
        Self { actions, steps: 0 }
    }

    /// Adds an action of an actor that has none here.
    pub fn push(&mut self, action: ReadyAction) {
        match &mut self.actions {
            SelectionPolicy::Ordered { adversarial: false, heap } => {
                heap.push((!((action.inst as u64) << 24 | action.rank as u64), action.actor));
            }
            SelectionPolicy::Ordered { adversarial: true, heap } => {
                let key = if action.is_host { u64::MAX - action.rank as u64 } else { action.issue_time };
                heap.push((key, action.actor));
            }
            SelectionPolicy::Priorities { of, heap, .. } => heap.push((of[action.actor], action.actor)),
            SelectionPolicy::Uniform { bag, .. } => bag.push(action.actor),
            SelectionPolicy::Listed { free, touching, .. } => {
                if action.touches_memory {
                    touching.insert((action.inst, action.rank), action.actor);
                } else {
                    free.push(action.actor);
                }
            }
        }
    }

    /// Takes the actor whose action happens next; `None` where nothing may happen.
    ///
    /// # Errors
    /// The given step that may not happen now.
    pub fn pop(&mut self) -> Result<Option<usize>, Step> {
        self.steps += 1;
        Ok(match &mut self.actions {
            SelectionPolicy::Ordered { heap, .. } => heap.pop().map(|(_, actor)| actor),
            SelectionPolicy::Priorities { of, changes, heap } => {
                while changes.front().is_some_and(|&at| at < self.steps) {
                    changes.pop_front();
                    if let Some((_, actor)) = heap.pop() {
                        of[actor] = changes.len() as u64;
                        heap.push((of[actor], actor));
                    }
                }
                heap.pop().map(|(_, actor)| actor)
            }
            SelectionPolicy::Uniform { bag, random } => {
                (!bag.is_empty()).then(|| bag.swap_remove(random.below(bag.len() as u64) as usize))
            }
            SelectionPolicy::Listed { free, touching, steps, current } => {
                *current = None;
                if let Some(actor) = free.pop() {
                    return Ok(Some(actor));
                }
                *current = steps.pop_front();
                match current {
                    Some(step) => {
                        let InstRef { rank, inst } = step.inst_ref;
                        Some(touching.remove(&(inst, rank)).ok_or(*step)?)
                    }
                    None => touching.pop_first().map(|it| it.1),
                }
            }
        })
    }

    /// Whether steps are given.
    pub fn has_given_steps(&self) -> bool {
        matches!(self.actions, SelectionPolicy::Listed { .. })
    }

    /// The given step that happens now.
    pub fn current_step(&self) -> Option<Step> {
        match &self.actions {
            SelectionPolicy::Listed { current, .. } => *current,
            SelectionPolicy::Ordered { .. }
            | SelectionPolicy::Priorities { .. }
            | SelectionPolicy::Uniform { .. } => None,
        }
    }

    /// Chooses one of `count` things that one actor may do.
    pub fn pick(&mut self, count: usize) -> usize {
        match &mut self.actions {
            SelectionPolicy::Ordered { adversarial: true, .. } => count.saturating_sub(1),
            SelectionPolicy::Ordered { adversarial: false, .. }
            | SelectionPolicy::Priorities { .. }
            | SelectionPolicy::Listed { .. } => 0,
            SelectionPolicy::Uniform { random, .. } => random.below(count as u64) as usize,
        }
    }
}

/// The splitmix64 generator.
pub(super) struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
