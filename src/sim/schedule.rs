//! Schedules: chooses one of the actions that the synchronization allows.
//!
//! Invariant: the same schedule and the same plans give the same choices.

use grammar::InvalidOption;
use std::{
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use hir_plan::sync::{InstRef, Step};
use hir_tensor::generate::split_mix;

/// The policy by which the simulator chooses among ready actions. Its text form is `program`, `seed:7` or
/// `adversarial`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Chooses the instruction with the smallest index in its rank's code, then the smallest rank. Every
    /// instruction runs as soon as it is issued and allowed.
    #[default]
    Program,
    /// Chooses randomly and reproducibly. Even seeds assign random priorities to hosts and queues and change
    /// a few of them during the run, as in probabilistic concurrency testing (Burckhardt et al. 2010), so
    /// that some queue lags far behind. Odd seeds choose uniformly, so that instructions interleave finely.
    Seed(u64),
    /// Lets hosts run ahead as far as possible, then runs the instruction that was issued last.
    Adversarial,
    /// Runs the steps that access memory in the given order, and then the remaining ones in the order of
    /// `Program`. Steps that do not access memory run as soon as possible.
    Steps {
        /// The name in reports.
        name: Arc<str>,
        /// The steps.
        steps: Arc<[Step]>,
    },
}

impl FromStr for Schedule {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seed = || text.strip_prefix("seed:").and_then(|it| it.parse().ok());
        match text {
            "program" => Ok(Self::Program),
            "adversarial" => Ok(Self::Adversarial),
            _ => seed().map(Self::Seed).ok_or_else(|| {
                let expected = "`program`, `adversarial`, `seed:N`, `seed:A..B`, `explore:N` or `@FILE`";
                format!("unknown schedule `{text}`: expected {expected}").into()
            }),
        }
    }
}

/// The largest number of schedules in one run.
const MAX_SCHEDULES: u64 = 10_000_000;

/// The schedules that a program runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleSet {
    /// One schedule, or one for each seed of a range: `seed:0..50`.
    List(Vec<Schedule>),
    /// Up to this many orders of the conflicting steps, each of which may give a different result:
    /// `explore:100`.
    Explore(usize),
    /// The order given by a file: `@FILE`.
    File(PathBuf),
}

impl ScheduleSet {
    /// Returns true if the only schedule is `program`.
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
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        if let Some((first, last)) = text.strip_prefix("seed:").and_then(|range| range.split_once("..")) {
            return match (first.parse::<u64>(), last.parse::<u64>()) {
                (Ok(first), Ok(last)) if first < last && last - first > MAX_SCHEDULES => Err(format!(
                    "`{text}` has {} seeds, but a run takes at most {MAX_SCHEDULES}",
                    last - first
                )
                .into()),
                (Ok(first), Ok(last)) if first < last => {
                    Ok(Self::List((first..last).map(Schedule::Seed).collect()))
                }
                _ => Err(format!("`{text}` is not a range of seeds: expected `seed:0..50`").into()),
            };
        }
        if let Some(most) = text.strip_prefix("explore:") {
            return match most.parse() {
                Ok(most) if (1..=MAX_SCHEDULES).contains(&most) => Ok(Self::Explore(most as usize)),
                _ => Err(format!(
                    "`{text}` is not a number of orders: expected `explore:100`, at most {MAX_SCHEDULES}"
                )
                .into()),
            };
        }
        match text.strip_prefix('@') {
            Some(path) => Ok(Self::File(path.into())),
            None => text.parse().map(|it| Self::List(vec![it])),
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

/// An action that may run now.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyAction {
    /// The actor whose head it is.
    pub actor: usize,
    /// True if the actor is a host.
    pub is_host: bool,
    /// Index of the instruction in its rank's code.
    pub inst: usize,
    /// The rank.
    pub rank: usize,
    /// The issue time, counted over all ranks.
    pub issue_time: u64,
    /// True if the action accesses memory. Only set if steps are given.
    pub touches_memory: bool,
}

/// The actions that may run now, at most one for each actor.
pub(super) struct ReadySet {
    actions: SelectionPolicy,
    steps: u64,
}

/// The policy and its data structure.
enum SelectionPolicy {
    /// Chooses the greatest key.
    Ordered { adversarial: bool, heap: BinaryHeap<(u64, usize)> },
    /// Chooses the actor with the greatest priority. At each change, the actor about to be chosen gets the
    /// lowest priority.
    Priorities { of: Vec<u64>, changes: VecDeque<u64>, heap: BinaryHeap<(u64, usize)> },
    /// Chooses uniformly at random.
    Uniform { bag: Vec<usize>, random: Random },
    /// Chooses actions that do not access memory, then the next given step, then the earliest instruction.
    Listed {
        free: Vec<usize>,
        touching: BTreeMap<(usize, usize), usize>,
        steps: VecDeque<Step>,
        current: Option<Step>,
    },
}

/// The largest number of priority changes in one run.
const MAX_CHANGES: u64 = 12;

impl ReadySet {
    /// Creates an empty set for `actors` actors that take about `steps` steps.
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

    /// Adds the action of an actor that has no action in the set.
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

    /// Removes and returns the actor whose action runs next, or `None` if no action is ready.
    ///
    /// # Errors
    /// Returns the given step if it may not run now.
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

    /// Returns true if the steps are given.
    pub fn has_given_steps(&self) -> bool {
        matches!(self.actions, SelectionPolicy::Listed { .. })
    }

    /// Returns the given step that runs now.
    pub fn current_step(&self) -> Option<Step> {
        match &self.actions {
            SelectionPolicy::Listed { current, .. } => *current,
            SelectionPolicy::Ordered { .. }
            | SelectionPolicy::Priorities { .. }
            | SelectionPolicy::Uniform { .. } => None,
        }
    }

    /// Chooses one of `count` alternatives of one actor.
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

/// A splitmix64 generator.
pub(super) struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns a random number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
