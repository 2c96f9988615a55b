//! Who would have to do what a blocked head waits for, and what that rank is doing instead.

use std::cell::OnceCell;

use rustc_hash::FxHashMap;

use super::{
    InstRef, describe, located,
    machine::{Condition, Effect, Machine, Open, Progress, Role},
    skipped::Counterparts,
};
use crate::plan::{Backend, Direction, Meaning, Slot, Transfer};

/// Most members of a team that a place names.
const MAX_TEAM: usize = 16;

/// A head that cannot run.
pub(super) struct Blocked {
    /// The actor whose head it is.
    pub actor: usize,
    /// The instruction.
    pub at: InstRef,
    /// What it waits for.
    pub what: String,
    /// What has to run first.
    pub needs: Vec<Need>,
}

/// An instruction that has to run before a head may.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// The rank that has to run it.
    pub rank: usize,
    /// Which; `None`: there is none.
    pub inst: Option<usize>,
    /// What it is, if it is a communication.
    pub part: Option<Part>,
}

/// A rank's part in a communication.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// In a meeting of a group.
    Member(usize),
    /// A side of a transfer.
    Side(Message),
    /// A flag of the CUDA backend.
    Flag(Slot),
    /// Handles that are exchanged, the barrier behind them.
    Share,
}

/// A side of a transfer as both ranks know it: group, sender, receiver, side, which one between the two.
pub(super) type Message = (usize, usize, usize, Direction, usize);

/// Where in all plans everything is done that one can wait for.
pub(super) struct Book<'a> {
    pub(super) machine: &'a Machine<'a>,
    pub(super) conditions: FxHashMap<Condition, usize>,
    barriers: FxHashMap<(usize, usize), usize>,
    pub(super) meetings: FxHashMap<(usize, usize, usize), usize>,
    pub(super) messages: FxHashMap<Message, usize>,
    sides: FxHashMap<InstRef, Vec<Message>>,
    pub(super) counterparts: OnceCell<Counterparts>,
}

impl<'a> Book<'a> {
    /// Reads all plans.
    pub fn new(machine: &'a Machine<'a>) -> Self {
        let mut it = Self {
            machine,
            conditions: FxHashMap::default(),
            barriers: FxHashMap::default(),
            meetings: FxHashMap::default(),
            messages: FxHashMap::default(),
            sides: FxHashMap::default(),
            counterparts: OnceCell::new(),
        };
        for (rank, plan) in machine.plans.iter().enumerate() {
            let mut barriers = 0;
            let mut met: FxHashMap<usize, usize> = FxHashMap::default();
            let mut sent: FxHashMap<Message, usize> = FxHashMap::default();
            for inst in 0..plan.code.len() {
                let at = InstRef { rank, inst };
                match machine.effect(rank, inst) {
                    Effect::Raise(condition) => it.provide(condition, inst),
                    Effect::Exchange(handles) => {
                        handles.iter().for_each(|h| it.provide(Condition::published(rank, h), inst));
                    }
                    Effect::Barrier => {
                        it.barriers.insert((rank, barriers), inst);
                        barriers += 1;
                    }
                    Effect::Collective(collective) => {
                        it.provide(Condition::Work(rank, collective.work), inst);
                        it.attend(machine.group_at(at), rank, inst, &mut met);
                    }
                    Effect::Reshard(_) => it.attend(machine.group_at(at), rank, inst, &mut met),
                    Effect::Transfer(transfer) => {
                        it.provide(Condition::Work(rank, transfer.work), inst);
                        it.send(transfer, at, &mut sent);
                    }
                    Effect::Compute | Effect::Await(_) | Effect::Finish => {}
                }
            }
        }
        it
    }

    fn provide(&mut self, condition: Condition, inst: usize) {
        self.conditions.entry(condition).or_insert(inst);
    }

    fn attend(&mut self, group: Option<usize>, rank: usize, inst: usize, met: &mut FxHashMap<usize, usize>) {
        let Some(group) = group else { return };
        let ordinal = met.entry(group).or_default();
        self.meetings.insert((group, rank, *ordinal), inst);
        *ordinal += 1;
    }

    fn send(&mut self, transfer: &Transfer, at: InstRef, sent: &mut FxHashMap<Message, usize>) {
        let Some(group) = self.machine.group_at(at) else { return };
        let mut sides = Vec::new();
        for side in &transfer.sides {
            let (sender, receiver) = match side.direction {
                Direction::Send => (at.rank, side.peer),
                Direction::Recv => (side.peer, at.rank),
            };
            let count = sent.entry((group, sender, receiver, side.direction, 0)).or_default();
            let message = (group, sender, receiver, side.direction, *count);
            *count += 1;
            self.messages.insert(message, at.inst);
            sides.push(message);
        }
        self.sides.insert(at, sides);
    }

    /// What the head of an actor waits for; `None` where it has none.
    pub fn blocked(&self, actor: usize) -> Option<Blocked> {
        let machine = self.machine;
        let it = &machine.actors[actor];
        let at = InstRef { rank: it.rank, inst: machine.head(actor)? };
        let (what, needs) = match (&it.open, it.role) {
            (Some(Open::Transfer { bound, .. }), _) => self.unmatched(at, bound),
            (Some(Open::Meeting), _) => self.absent(at),
            (None, Role::Queue(_)) => {
                let need = Need { rank: at.rank, inst: Some(at.inst), part: None };
                (format!("for {} to come to its posting", self.stream(at)), vec![need])
            }
            (None, Role::Host | Role::Stream) => self.unfulfilled(actor, at),
        };
        Some(Blocked { actor, at, what, needs })
    }

    /// The sides of a transfer that have no partner.
    fn unmatched(&self, at: InstRef, bound: &[bool]) -> (String, Vec<Need>) {
        let (mut words, mut needs) = (Vec::new(), Vec::new());
        let sides = self.sides.get(&at).into_iter().flatten();
        for (&(group, sender, receiver, direction, which), _) in
            sides.zip(bound).filter(|(_, bound)| !**bound)
        {
            let (word, peer) = match direction {
                Direction::Send => (format!("to send to rank {receiver}"), receiver),
                Direction::Recv => (format!("to receive from rank {sender}"), sender),
            };
            let theirs = (group, sender, receiver, direction.mirror(), which);
            let inst = self.messages.get(&theirs).copied();
            words.push(word);
            needs.push(Need { rank: peer, inst, part: Some(Part::Side(theirs)) });
        }
        words.dedup();
        (words.join(" and "), needs)
    }

    /// Members that have not come to a meeting.
    fn absent(&self, at: InstRef) -> (String, Vec<Need>) {
        let machine = self.machine;
        let Some(&(group, ordinal)) = machine.tickets.get(&at) else { return (String::new(), Vec::new()) };
        let here = machine.meetings.get(&(group, ordinal)).map_or(&[][..], |it| it);
        let here = |rank: usize| here.iter().any(|&it| machine.actors[it].rank == rank);
        let missing: Vec<usize> =
            machine.groups[group].team.iter().copied().filter(|&it| !here(it)).collect();
        let needs = missing
            .iter()
            .map(|&rank| {
                let inst = self.meetings.get(&(group, rank, ordinal)).copied();
                Need { rank, inst, part: Some(Part::Member(group)) }
            })
            .collect();
        (format!("in {} for {}", self.name(at), names(&missing)), needs)
    }

    /// Conditions that do not hold.
    fn unfulfilled(&self, actor: usize, at: InstRef) -> (String, Vec<Need>) {
        let machine = self.machine;
        let (mut words, mut needs) = (Vec::new(), Vec::new());
        for condition in machine.awaited(actor).into_iter().filter(|&it| !machine.holds(it)) {
            let inst = self.conditions.get(&condition).copied();
            let (word, rank) = match condition {
                Condition::Event(rank, _) => {
                    (self.there(rank, inst, "", "for an event that is never recorded"), rank)
                }
                Condition::Work(rank, _) => {
                    let what = "the communication of ";
                    (self.there(rank, inst, what, "for a communication that is never posted"), rank)
                }
                Condition::Slot(slot) => {
                    let says = match slot.meaning {
                        Meaning::Ready | Meaning::PutReady | Meaning::TeamReady => "is ready",
                        Meaning::Done | Meaning::PutDone | Meaning::TeamDone => "is done",
                    };
                    (
                        format!("for rank {} to say that it {says} (message {})", slot.from, slot.index),
                        slot.from,
                    )
                }
                Condition::Handle(sender, receiver, index, side) => {
                    let (peer, role) = match side {
                        Direction::Send => (sender, format!("sender to rank {receiver}")),
                        Direction::Recv => (receiver, format!("receiver from rank {sender}")),
                    };
                    let number = self.number(at, peer, index, side);
                    (format!("for rank {peer} to share P2PCommunication {number} as {role}"), peer)
                }
                Condition::Barrier(ordinal) => {
                    let late = |rank: &usize| machine.hosts[*rank].barriers <= ordinal;
                    let missing: Vec<usize> = (0..machine.plans.len()).filter(late).collect();
                    let need = |&rank| {
                        let inst = self.barriers.get(&(rank, ordinal)).copied();
                        Need { rank, inst, part: Some(Part::Share) }
                    };
                    needs.extend(missing.iter().map(need));
                    words.push(format!("at a barrier for {}", names(&missing)));
                    continue;
                }
            };
            words.push(word);
            let part = match condition {
                Condition::Slot(slot) => Some(Part::Flag(slot)),
                Condition::Handle(..) | Condition::Barrier(_) => Some(Part::Share),
                Condition::Event(..) | Condition::Work(..) => None,
            };
            needs.push(Need { rank, inst, part });
        }
        let within = if let Effect::Exchange(_) = machine.effect(at.rank, at.inst) {
            "in ShareMemHandles "
        } else {
            ""
        };
        (format!("{within}{}", words.join(" and ")), needs)
    }

    /// The number that the text gives to a handle of an exchange.
    fn number(&self, at: InstRef, peer: usize, index: u32, theirs: Direction) -> u32 {
        let Effect::Exchange(handles) = self.machine.effect(at.rank, at.inst) else { return 0 };
        let same = handles.iter().find(|it| it.peer == peer && it.index == index && it.direction != theirs);
        same.map_or(0, |it| it.number)
    }

    /// The actor whose head holds up an instruction that has not run.
    pub fn holder(&self, need: Need) -> Option<usize> {
        let machine = self.machine;
        let at = InstRef { rank: need.rank, inst: need.inst? };
        if at.inst >= machine.hosts[at.rank].next {
            return Some(machine.host_of(at.rank));
        }
        match machine.progress[at.rank][at.inst] {
            Progress::Pending => {
                Some(machine.stream_of(at.rank, machine.plans[at.rank].code[at.inst].stream))
            }
            Progress::Posted => machine.groups[machine.group_at(at)?].queues.get(&at.rank).copied(),
            Progress::Done => None,
        }
    }

    /// The last instruction of a rank: what holds it up is what the rank is doing.
    pub fn last(&self, rank: usize) -> Need {
        let inst = self.machine.plans.get(rank).and_then(|it| it.code.len().checked_sub(1));
        Need { rank, inst, part: None }
    }

    /// Whether a rank has nothing left to do.
    pub fn finished(&self, rank: usize) -> bool {
        let machine = self.machine;
        (0..machine.actors.len()).all(|it| machine.actors[it].rank != rank || machine.head(it).is_none())
    }

    /// The line of an instruction.
    pub fn line(&self, at: InstRef) -> u32 {
        located(self.machine.plans, at).0
    }

    /// `line 19, streamIdx=1, on stream 1`, or `… on NCCL (0 1 2)` for the head of a queue.
    pub fn place(&self, it: &Blocked) -> String {
        let place = located(self.machine.plans, it.at).1;
        match self.machine.actors[it.actor].role {
            Role::Host | Role::Stream => format!("{place}, on {}", self.stream(it.at)),
            Role::Queue(group) => format!("{place},{}", self.suffix(group)),
        }
    }

    /// `line 19, streamIdx=1 (Allgather)`.
    pub fn doing(&self, at: InstRef) -> String {
        let place = located(self.machine.plans, at).1;
        let name = self.name(at);
        if name.is_empty() { place } else { format!("{place} ({name})") }
    }

    /// What an instruction is called, where that helps.
    fn name(&self, at: InstRef) -> String {
        match self.machine.effect(at.rank, at.inst) {
            Effect::Collective(it) => it.kind.name(),
            Effect::Transfer(_) => "a send or receive".to_owned(),
            Effect::Exchange(_) => "ShareMemHandles".to_owned(),
            Effect::Barrier => "a barrier".to_owned(),
            Effect::Reshard(_) => "a resharding operator".to_owned(),
            Effect::Compute | Effect::Raise(_) | Effect::Await(_) | Effect::Finish => String::new(),
        }
    }

    /// ` on NCCL (0 1 2)`, a large team by its ends; nothing for a team that reshards.
    fn suffix(&self, group: usize) -> String {
        let group = &self.machine.groups[group];
        let mut team: Vec<String> = group.team.iter().map(ToString::to_string).collect();
        if team.len() > MAX_TEAM {
            team.splice(MAX_TEAM / 2..team.len() - 1, ["…".to_owned()]);
        }
        match group.backend {
            Some(Backend::Nccl) => format!(" on NCCL ({})", team.join(" ")),
            Some(Backend::Ucc) => format!(" on UCC ({})", team.join(" ")),
            None => String::new(),
        }
    }

    fn stream(&self, at: InstRef) -> &str {
        let plan = &self.machine.plans[at.rank];
        plan.streams.get(plan.code[at.inst].stream as usize).map_or("no stream", |it| it)
    }

    /// `for line 2 on stream 0`, or `never` where there is no such instruction.
    fn there(&self, rank: usize, inst: Option<usize>, what: &str, never: &str) -> String {
        match inst {
            Some(inst) => format!("for {what}{}", describe(self.machine.plans, InstRef { rank, inst })),
            None => never.to_owned(),
        }
    }
}

/// `rank 1`, `ranks 1 2 3`.
pub(super) fn names(them: &[usize]) -> String {
    let numbers: Vec<String> = them.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if them.len() == 1 { "" } else { "s" }, numbers.join(" "))
}
