//! What the ranks of a program execute: their statements with all scalars evaluated, all names resolved to views of buffers, and what they
//! wait for.
//!
//! A rank issues steps to its chains. The tasks of a step read and write elements. A task is a member of an action: a statement of one rank
//! is an action with one member, and a communication one whose members are ranks.

use super::*;

/// Where an input or output is, and which part of it; `None` on a rank that has no part.
pub(crate) type Port = Option<(View, Part)>;

/// Computes what a task writes from what each member of its action reads.
pub(crate) type Function<'p> = Box<dyn Fn(&Algebra, &[Vec<Values>]) -> Result<Vec<Values>, String> + 'p>;

/// What all ranks of a program execute.
#[derive(Default)]
pub(crate) struct Trace<'p> {
    pub(crate) steps: Vec<Step<'p>>,
    /// By action: the steps and the numbers of tasks of its members; `None` for a rank that has not posted it.
    pub(crate) actions: Vec<Vec<Option<(usize, usize)>>>,
    /// By chain: what its next step waits for.
    pub(crate) chains: Vec<Vec<usize>>,
    /// The number of elements of each buffer. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    /// By rank: the inputs and the outputs.
    pub(crate) ports: Vec<[Vec<Port>; 2]>,
    /// How many actions a member has posted to a channel, and the action that is the n-th one there.
    pub(crate) counts: FxHashMap<(Channel, usize), usize>,
    pub(crate) posted: FxHashMap<(Channel, Option<Kind>, usize), usize>,
    /// How many steps, iterations, and elements of buffers there are.
    pub(crate) work: usize,
}

/// A step of a chain: a stream or a queue of communications of a rank, whose steps run one after another. Its tasks begin together. It
/// ends when all members have begun the actions of its tasks.
#[derive(Default)]
pub(crate) struct Step<'p> {
    pub(crate) chain: usize,
    pub(crate) tasks: Vec<Task<'p>>,
    /// The steps that wait for its end, and for how many it waits itself.
    pub(crate) followers: Vec<usize>,
    pub(crate) waits: usize,
}

/// What a rank does for a statement, as a member of an action.
#[derive(Default)]
pub(crate) struct Task<'p> {
    pub(crate) rank: usize,
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<StmtId>,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    /// `None`: what it reads is copied.
    pub(crate) function: Option<Function<'p>>,
    pub(crate) action: usize,
    /// Its position among the members, and those whose data it receives.
    pub(crate) me: usize,
    pub(crate) sources: Vec<usize>,
}

/// What the members of an action agree on: the communication, the position of its root or 0, how elements are combined, how many of
/// them one member sends to another one, and their type.
pub(crate) type Kind = (CommunicationType, usize, Option<Combine>, usize, DType);

/// Where the steps of ranks meet, or the steps of a chain follow each other, in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// `None`: the stream that is current at entry.
    Stream(Option<i64>),
    Captured(Stream),
    Team(Backend, Rc<[usize]>),
    /// From the first rank to the second one, of a team in which all of them transfer, or of no team.
    Pair(Backend, Rc<[usize]>, [usize; 2]),
    /// The exchanges of memory handles of transfers from the first rank to the second one, and the transfers by the n-th of these handles.
    Handle([usize; 2]),
    Copy([usize; 2], usize),
    /// The hosts of all ranks.
    Hosts,
}

impl<'p> Trace<'p> {
    /// Makes the next step of a chain wait for others.
    pub(crate) fn wait_for(&mut self, chain: usize, steps: &[usize]) {
        let frontier = &mut self.chains[chain];
        frontier.extend(steps);
        frontier.sort_unstable();
        frontier.dedup();
    }

    /// Appends a step to its chain, behind what that has to wait for, and returns its number.
    pub(crate) fn append(&mut self, step: Step<'p>) -> usize {
        let at = self.steps.len();
        for (number, it) in step.tasks.iter().enumerate() {
            self.actions[it.action][it.me] = Some((at, number));
        }
        let after = mem::replace(&mut self.chains[step.chain], vec![at]);
        after.iter().for_each(|it| self.steps[*it].followers.push(at));
        self.steps.push(Step { waits: after.len(), ..step });
        at
    }
}
