//! What happens when an actor goes on: hosts issue, streams run, and those that waited are woken up.

use super::{
    Fault, InstRef, Options, Outcome,
    machine::{Condition, Machine, Open, Progress, Role},
    schedule::Action,
    step::Space,
};
use crate::plan::{
    Communication, Effect, InstKind,
    sync::{self, halves},
};

impl Machine<'_> {
    /// Goes on until nothing may happen.
    pub fn run(mut self, options: &Options) -> Result<Outcome, Fault> {
        for rank in 0..self.plans.len() {
            self.consider(self.host_of(rank));
        }
        while let Some(actor) = self.ready.pop().map_err(Fault::Steps)? {
            self.actors[actor].ready = false;
            self.outcome.steps += 1;
            if let Some(it) = &options.inquiry {
                it.look(&self);
            }
            let at = self.head(actor).map(|inst| InstRef { rank: self.actors[actor].rank, inst });
            self.outcome.notes.at = at;
            match self.actors[actor].role {
                Role::Host => self.run_host(actor)?,
                Role::Stream => self.run_stream(actor)?,
                Role::Queue => self.run_queue(actor)?,
            }
            let notes = &mut self.outcome.notes;
            if notes.first_inexact.is_none() && !notes.exactness.is_exact() {
                notes.first_inexact = at;
            }
        }
        if (0..self.actors.len()).any(|it| self.head(it).is_some()) {
            let explained = sync::explain(self.plans, self.matched, &self.state());
            return Err(Fault::Deadlock(Box::new(explained)));
        }
        for it in &options.watch {
            let block = Space::World(&mut self.memories).load(it.rank, &it.view);
            self.outcome.watched.push(block.map_err(|it| Fault::Internal(it.to_string()))?);
        }
        Ok(self.outcome)
    }

    /// Makes an actor ready if its head may happen, else has it woken up by what it waits for.
    pub fn consider(&mut self, actor: usize) {
        let Some(inst) = self.head(actor) else { return };
        if let Some(condition) = self.awaited(actor) {
            self.conditions.await_it(condition, actor);
            return;
        }
        let rank = self.actors[actor].rank;
        match (self.actors[actor].role, self.effect(rank, inst)) {
            (Role::Queue, effect) => {
                if self.progress[rank][inst] == Progress::Posted && self.actors[actor].open.is_none() {
                    match effect {
                        Effect::Post(Communication::Transfer(transfer)) if self.meets => {
                            self.open_transfer(actor, inst, transfer);
                        }
                        Effect::Post(Communication::Transfer(transfer)) => {
                            self.open_sides(actor, transfer);
                        }
                        _ if self.meets => self.open_collective(actor, inst),
                        _ => self.open_member(actor),
                    }
                }
            }
            (Role::Stream, Effect::Reshard(_)) => self.open_collective(actor, inst),
            (Role::Host | Role::Stream, _) => self.make_ready(actor),
        }
    }

    /// Whether what an actor does next touches memory.
    fn touches(&self, actor: usize, at: InstRef) -> bool {
        let part = |part: u32| !sync::Step { at, part }.touched(self.plans, self.matched).is_empty();
        let it = &self.actors[actor];
        match (it.role, &it.open) {
            // A posting touches nothing.
            (Role::Stream, _) if matches!(self.effect(at.rank, at.inst), Effect::Post(_)) => false,
            (_, Some(Open::Half)) => part(1),
            (_, Some(Open::Member { begun })) => part(u32::from(*begun)),
            (_, Some(Open::Sides { ready, .. })) => ready.iter().any(|it| part(*it)),
            (_, Some(Open::Collective | Open::Transfer { .. }) | None) => part(0),
        }
    }

    /// That a step is the one that is given, where steps are.
    pub fn expect_part(&self, at: InstRef, part: u32) -> Result<(), Fault> {
        match self.ready.current() {
            Some(step) if step != (sync::Step { at, part }) => Err(Fault::Steps(step)),
            Some(_) | None => Ok(()),
        }
    }

    /// Adds an actor to the ready set.
    pub fn make_ready(&mut self, actor: usize) {
        let Some(inst) = self.head(actor) else { return };
        let it = &mut self.actors[actor];
        if it.ready {
            return;
        }
        it.ready = true;
        let host = matches!(it.role, Role::Host);
        let stamp = it.items.front().map_or(self.issued, |&(_, stamp)| stamp);
        let rank = it.rank;
        let touches = !host && self.ready.is_given() && self.touches(actor, InstRef { rank, inst });
        self.ready.push(Action { actor, host, inst, rank, stamp, touches });
    }

    /// Makes a condition true.
    pub fn raise(&mut self, condition: Condition) {
        for it in self.conditions.raise(condition) {
            self.consider(it);
        }
    }

    /// The head of a stream or queue is complete.
    pub fn retire(&mut self, actor: usize) {
        let it = &mut self.actors[actor];
        it.open = None;
        let rank = it.rank;
        if let Some((inst, _)) = it.items.pop_front() {
            self.complete(rank, inst);
        }
        self.consider(actor);
    }

    /// An instruction is complete.
    fn complete(&mut self, rank: usize, inst: usize) {
        self.progress[rank][inst] = Progress::Done;
        if let Some(trace) = &mut self.outcome.trace {
            trace.push(InstRef { rank, inst });
        }
    }

    /// The host's next step: it issues an instruction, or enters or leaves one of its own.
    fn run_host(&mut self, actor: usize) -> Result<(), Fault> {
        let rank = self.actors[actor].rank;
        let inst = self.hosts[rank].next;
        let entered = std::mem::take(&mut self.hosts[rank].inside);
        match self.effect(rank, inst) {
            Effect::Share(_) | Effect::Barrier if entered => {
                self.hosts[rank].next += 1;
                self.complete(rank, inst);
            }
            Effect::Share(_) | Effect::Barrier => {
                self.hosts[rank].inside = true;
                let matched = self.matched;
                for comm in matched.comms_of(InstRef { rank, inst }) {
                    if self.arrive(*comm) {
                        self.raise(Condition::Comm(*comm));
                    }
                }
            }
            Effect::Post(it) => self.issue_on_queue(rank, inst, it.communicator())?,
            Effect::Reshard(_)
            | Effect::Compute
            | Effect::Record(_)
            | Effect::Join(_)
            | Effect::Wait(_)
            | Effect::Signal(_)
            | Effect::Await(_)
            | Effect::Finish => self.issue(rank, inst),
        }
        self.consider(actor);
        Ok(())
    }

    /// Puts an instruction on its stream.
    pub fn issue(&mut self, rank: usize, inst: usize) {
        self.hosts[rank].next += 1;
        self.issued += 1;
        let stream = self.stream_of(rank, self.plans[rank].code[inst].stream);
        self.actors[stream].items.push_back((inst, self.issued));
        if self.actors[stream].items.len() == 1 {
            self.consider(stream);
        }
    }

    /// Runs the head of a stream.
    fn run_stream(&mut self, actor: usize) -> Result<(), Fault> {
        let rank = self.actors[actor].rank;
        let Some(inst) = self.head(actor) else { return Ok(()) };
        match self.effect(rank, inst) {
            Effect::Post(it) => return self.post(actor, it.communicator()),
            Effect::Reshard(_) => return self.run_collective(actor),
            Effect::Record(event) => self.raise(Condition::Event(rank, event)),
            Effect::Signal(_) => {
                let matched = self.matched;
                for comm in matched.comms_of(InstRef { rank, inst }) {
                    self.raise(Condition::Comm(*comm));
                }
            }
            Effect::Join(_) | Effect::Wait(_) | Effect::Await(_) => {}
            Effect::Finish => self.finish(rank, inst)?,
            Effect::Compute => {
                let (plans, kind) = (self.plans, &self.plans[rank].code[inst].kind);
                let is_second = matches!(self.actors[actor].open, Some(Open::Half));
                let halves = if self.meets { None } else { halves(rank, kind) };
                let half = halves.map(|it| {
                    let [from, to] = it[usize::from(is_second)].clone().map(Box::new);
                    InstKind::Copy { from, to }
                });
                self.expect_part(InstRef { rank, inst }, u32::from(is_second))?;
                Space::World(&mut self.memories)
                    .run(rank, half.as_ref().unwrap_or(kind), &mut self.outcome.notes)
                    .map_err(|it| it.at(plans, InstRef { rank, inst }))?;
                if half.is_some() && !is_second {
                    self.actors[actor].open = Some(Open::Half);
                    self.make_ready(actor);
                    return Ok(());
                }
            }
            Effect::Share(_) | Effect::Barrier => {
                return Err(Fault::Internal("a host instruction is on a stream".to_owned()));
            }
        }
        self.retire(actor);
        Ok(())
    }

    /// Reads the outputs of a rank, and notes what has not run: its own instructions, and others' that write here.
    fn finish(&mut self, rank: usize, inst: usize) -> Result<(), Fault> {
        let plans = self.plans;
        let mut space = Space::World(&mut self.memories);
        for (at, port) in plans[rank].outputs.iter().enumerate() {
            if let Some(view) = &port.shard.view {
                let block = space.load(rank, view).map_err(|it| it.at(plans, InstRef { rank, inst }))?;
                self.outcome.outputs[rank][at] = Some(block);
            }
        }
        let pending = |it: &InstRef| self.progress[it.rank][it.inst] != Progress::Done;
        let own = (0..inst).map(|inst| InstRef { rank, inst });
        let others = self.remote_writes[rank].iter().copied();
        self.outcome.pending[rank] = own.chain(others).filter(pending).collect();
        Ok(())
    }
}
