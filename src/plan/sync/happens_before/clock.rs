//! Vector clocks: how far each actor has certainly come when an instruction begins.

use std::rc::Rc;

use crate::sync::machine::Progress;

/// A vector clock: a lower bound for the progress of every actor, or of the actors of a group of ranks.
#[derive(Clone, Debug)]
pub struct Clock {
    /// By actor, from `first` on: the number of ended instructions. The entry of `actor` itself is out of date.
    pub(super) known: Rc<Vec<u32>>,
    /// The first actor that is counted.
    pub(super) first: u32,
    pub(super) actor: u32,
    pub(super) ended: u32,
}

/// An execution of an instruction at the point where it accesses memory: on its stream, or on the queue of
/// its communicator.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The rank that executes it.
    pub rank: usize,
    /// Its index in `Plan::code`.
    pub inst: usize,
    /// The actor that executes it.
    pub actor: u32,
    /// Its position among the actor's instructions, from 1.
    pub number: u32,
    /// The instructions that have ended when it begins.
    pub clock: Clock,
}

impl Clock {
    /// Returns the clock of an actor at the beginning.
    pub(super) fn new(known: &Rc<Vec<u32>>, first: u32, actor: u32) -> Self {
        Self { known: Rc::clone(known), first, actor, ended: 0 }
    }

    /// Returns the number of ended instructions of an actor; 0 for one that is not counted.
    pub fn ended(&self, actor: u32) -> u32 {
        if actor == self.actor { self.ended } else { self.stored(actor).unwrap_or(0) }
    }

    /// Returns the number of actors that are counted.
    pub fn actors(&self) -> usize {
        self.known.len()
    }

    /// Returns the entry of an actor; `None` if it is not counted.
    fn stored(&self, actor: u32) -> Option<u32> {
        self.known.get(actor.checked_sub(self.first)? as usize).copied()
    }

    /// Stores at least this number of ended instructions of an actor, if it is counted.
    fn store(&mut self, actor: u32, ended: u32) {
        if self.stored(actor).is_some_and(|known| known < ended) {
            Rc::make_mut(&mut self.known)[(actor - self.first) as usize] = ended;
        }
    }
}

impl Progress for Clock {
    fn end_instruction(&mut self) {
        self.ended += 1;
    }

    /// Stores the actor's own count in the vector, so that other clocks can share the vector.
    fn share(&mut self) {
        self.store(self.actor, self.ended);
    }

    /// Joins another clock into this one: takes the maximum for each actor.
    fn join(&mut self, other: &Self) {
        if !Rc::ptr_eq(&self.known, &other.known) {
            let (mut knows_more, mut knows_less) = (false, false);
            for (theirs, mine) in other.known.iter().zip(self.known.iter()) {
                knows_more |= theirs > mine;
                knows_less |= theirs < mine;
            }
            match (knows_more, knows_less) {
                // The members of a collective end with equal clocks and share one vector.
                (true, false) => self.known = Rc::clone(&other.known),
                (true, true) => {
                    let known = Rc::make_mut(&mut self.known);
                    known
                        .iter_mut()
                        .zip(other.known.iter())
                        .for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
                }
                (false, _) => (),
            }
        }
        if other.actor == self.actor {
            // An event that one actor signals several times: the last signal counts.
            self.ended = self.ended.max(other.ended);
        } else {
            self.store(other.actor, other.ended);
        }
    }
}

impl Occurrence {
    /// Returns whether this ends before `other` begins.
    pub fn happens_before(&self, other: &Self) -> bool {
        other.clock.ended(self.actor) >= self.number
    }
}
