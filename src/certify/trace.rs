//! What the ranks of a program execute: their statements with all scalars evaluated, all names resolved to views of buffers, and what they
//! wait for.
//!
//! A rank issues steps to its chains. Steps begin and end actions, which read and write elements: a statement of one rank is an action
//! with one member, and a communication one whose members are ranks.

use super::*;

/// Where an input or output is, and which part of it; `None` on a rank that has no part.
pub(crate) type Port = Option<(View, Part)>;

/// Computes what a member writes from what each member reads.
pub(crate) type Function<'p> = Box<dyn Fn(&Algebra, &[Vec<Values>]) -> Result<Vec<Values>, String> + 'p>;

/// What all ranks of a program execute.
pub(crate) struct Trace<'p> {
    pub(crate) program: &'p Program,
    /// Distinguishes the unknown values of this program.
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
    pub(crate) actions: Vec<Action<'p>>,
    pub(crate) chains: Vec<Chain>,
    /// The number of elements of each buffer, and of all of them. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    pub(crate) elements: usize,
    /// By rank: the inputs and the outputs.
    pub(crate) ports: Vec<[Vec<Port>; 2]>,
    /// The action that is posted to a channel as the n-th one.
    pub(crate) posted: FxHashMap<(Channel, usize), usize>,
}

/// A stream or a queue of communications of a rank, whose steps run one after another.
#[derive(Default)]
pub(crate) struct Chain {
    steps: u32,
    /// What the next step waits for.
    pub(crate) frontier: Vec<usize>,
}

#[derive(Default)]
pub(crate) struct Step {
    pub(crate) rank: usize,
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<StmtId>,
    pub(crate) chain: usize,
    /// Its number on the chain, from 1 on.
    pub(crate) number: u32,
    /// What it accesses, and whether it writes there; as many further steps of the chain as `lasts` belong to the access.
    pub(crate) accesses: Vec<(View, bool)>,
    pub(crate) lasts: u32,
    /// The steps that wait for its end, and for how many things it waits itself.
    pub(crate) followers: Vec<usize>,
    pub(crate) waits: usize,
    /// The action that it begins, with the position of the rank among the members.
    pub(crate) begins: Option<(usize, usize)>,
    /// The action that it ends, which all members have to have begun.
    pub(crate) ends: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Action<'p> {
    pub(crate) kind: Option<Kind>,
    /// `None`: a rank that has not posted it.
    pub(crate) members: Vec<Option<Member<'p>>>,
    /// The steps that end it, with the members whose data their ranks receive.
    pub(crate) ends: Vec<(usize, Vec<usize>)>,
}

/// What the members of a communication have to agree on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) communication: CommunicationType,
    /// The position of the root; 0 if there is none.
    pub(crate) root: usize,
    pub(crate) combine: Combine,
    /// Whether its elements are integers.
    pub(crate) integral: bool,
    /// How many elements one member sends to another one.
    pub(crate) len: usize,
}

pub(crate) struct Member<'p> {
    pub(crate) rank: usize,
    pub(crate) stmt: Option<StmtId>,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    /// `None`: what it reads is copied.
    pub(crate) function: Option<Function<'p>>,
    /// The members with which it has a transfer of its own, and whether it receives.
    pub(crate) sides: Vec<(usize, bool)>,
}

/// Where the steps of ranks meet, or the steps of a chain follow each other, in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// `None`: the stream that is current at entry.
    Stream(Option<i64>),
    Captured(Stream),
    Team(Backend, Rc<[usize]>),
    /// From the first rank to the second one.
    Pair(Backend, usize, usize),
    /// The hosts of all ranks.
    Hosts,
}

impl<'p> Trace<'p> {
    pub(crate) fn new(program: &'p Program, name: &'static str) -> Self {
        Self {
            program,
            name,
            steps: Vec::new(),
            actions: Vec::new(),
            chains: Vec::new(),
            buffers: Vec::new(),
            elements: 0,
            ports: Vec::new(),
            posted: FxHashMap::default(),
        }
    }

    /// Makes the next step of a chain wait for others.
    pub(crate) fn wait_for(&mut self, chain: usize, steps: &[usize]) {
        let frontier = &mut self.chains[chain].frontier;
        frontier.extend(steps);
        frontier.sort_unstable();
        frontier.dedup();
    }

    /// Appends a step to its chain, and returns its number.
    pub(crate) fn append(&mut self, step: Step) -> usize {
        let (at, chain) = (self.steps.len(), &mut self.chains[step.chain]);
        let after = mem::replace(&mut chain.frontier, vec![at]);
        chain.steps += 1;
        let members = step.ends.map_or(0, |it| self.actions[it].members.len());
        let waits = after.len() + members;
        after.into_iter().for_each(|it| self.steps[it].followers.push(at));
        self.steps.push(Step { number: chain.steps, waits, ..step });
        at
    }
}
