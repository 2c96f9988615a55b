//! Advances actors: hosts issue instructions, streams run them, and waiting actors wake up.

use super::{
    InstRef, SimError, SimOptions, SimOutcome,
    machine::{InFlight, InstState, Machine},
    outcome::line_and_location,
    schedule::ReadyAction,
    step::Memories,
};
use grammar::Code;
use hir_plan::{
    Communication, ExecutionSite, InstKind, LOOP_LIMIT, LoopExit, Number, SignalId, SyncEffect,
    sync::{self, Actor, Event, copy_halves},
};

impl Machine<'_> {
    /// Runs until no actor is ready.
    pub fn run(mut self, options: &SimOptions) -> Result<SimOutcome, SimError> {
        for rank in 0..self.world.len() {
            self.update_readiness(self.host_of(rank));
        }
        while let Some(actor) = self.ready.pop().map_err(SimError::StepNotReady)? {
            self.actors[actor].ready = false;
            self.outcome.steps += 1;
            if let Some(it) = &options.progress_query {
                it.update(&self);
            }
            let at = self.head(actor).map(|inst| InstRef { rank: self.actors[actor].rank(), inst });
            self.outcome.notes.current = at;
            match self.actors[actor].actor {
                Actor::Host(_) => self.run_host(actor)?,
                Actor::Stream(..) => self.run_stream(actor)?,
                Actor::Queue(..) => self.run_queue(actor)?,
            }
            let notes = &mut self.outcome.notes;
            if notes.first_inexact.is_none() && !notes.exactness.is_exact() {
                notes.first_inexact = at;
            }
        }
        if (0..self.actors.len()).any(|it| self.head(it).is_some()) {
            if let Some(at) = self.lost_posts.first()
                && let InstKind::Signal { signal } = self.world[at.rank].code[at.inst].kind
            {
                let post = self.world[at.rank].describe_origin(self.world[at.rank].code[at.inst].origin);
                return Err(SimError::SemaphoreLost { rank: at.rank, post, waiting: signal.to });
            }
            let explained = sync::explain(self.world, &self.state());
            return Err(SimError::Deadlock(Box::new(explained)));
        }
        for it in &options.watch {
            let block = Memories::World(&mut self.memories).load(it.rank, &it.view);
            self.outcome.watched.push(block.map_err(|it| SimError::Internal(it.to_string()))?);
        }
        Ok(self.outcome)
    }

    /// Makes an actor ready if its head may run, or registers it as a waiter of the event that its head
    /// needs. The other parts of collectives and P2P groups do not count here: `queue` and `member` handle them.
    pub fn update_readiness(&mut self, actor: usize) {
        let Some(inst) = self.head(actor) else { return };
        let rank = self.actors[actor].rank();
        let Some(waits) = self.waits(actor) else { return };
        let is_inside = matches!(self.actors[actor].actor, Actor::Host(_)) && self.hosts[rank].is_inside_inst;
        let awaited = if is_inside { &waits.to_end } else { &waits.to_begin };
        let missing = awaited.iter().copied().find(|it| !self.has_happened(*it));
        self.waits = waits;
        match missing {
            // The stream that posts it updates the queue.
            Some(Event::Posted(_)) => return,
            Some(event) => return self.events.add_waiter(event, actor),
            None => (),
        }
        match (self.actors[actor].actor, self.effect(rank, inst)) {
            (Actor::Queue(..), effect) => {
                if self.actors[actor].in_flight.is_none() {
                    match (effect.execution_site(), self.is_synchronous) {
                        (ExecutionSite::Queue(Communication::P2pGroup(it)), true) => {
                            self.start_p2p_group(actor, inst, it);
                        }
                        (ExecutionSite::Queue(Communication::P2pGroup(it)), false) => {
                            self.start_p2p_ops(actor, it);
                        }
                        (ExecutionSite::Queue(Communication::Collective(_)), true) => {
                            self.start_collective(actor, inst);
                        }
                        (ExecutionSite::Queue(Communication::Collective(_)), false) => {
                            self.start_member(actor);
                        }
                        // A queue has communications only.
                        (ExecutionSite::Host | ExecutionSite::Stream, _) => (),
                    }
                }
            }
            (Actor::Stream(..), SyncEffect::Reshard(_)) => self.start_collective(actor, inst),
            (Actor::Host(_) | Actor::Stream(..), _) => self.make_ready(actor),
        }
    }

    /// Returns true if the next step of an actor accesses memory.
    fn touches_memory(&self, actor: usize, at: InstRef) -> bool {
        let part = |part: u32| !sync::Step { inst_ref: at, index: part }.accesses(self.world).is_empty();
        let it = &self.actors[actor];
        match (it.actor, &it.in_flight) {
            // A posting does not access memory.
            (Actor::Stream(..), _) if matches!(self.effect(at.rank, at.inst), SyncEffect::Post(_)) => false,
            (_, Some(InFlight::HalfCopy)) => part(1),
            (_, Some(InFlight::CollectiveMember { has_read_input: begun })) => part(u32::from(*begun)),
            (_, Some(InFlight::P2pOps { ready, .. })) => ready.iter().any(|it| part(*it)),
            (_, Some(InFlight::Collective | InFlight::P2pGroup { .. }) | None) => part(0),
        }
    }

    /// Checks that a step is the given one, under a schedule of given steps.
    pub fn check_given_step(&self, at: InstRef, part: u32) -> Result<(), SimError> {
        match self.ready.current_step() {
            Some(step) if step != (sync::Step { inst_ref: at, index: part }) => {
                Err(SimError::StepNotReady(step))
            }
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
        let host = matches!(it.actor, Actor::Host(_));
        let stamp = it.items.front().map_or(self.issued, |&(_, stamp)| stamp);
        let rank = it.rank();
        let touches =
            !host && self.ready.has_given_steps() && self.touches_memory(actor, InstRef { rank, inst });
        self.ready.push(ReadyAction {
            actor,
            is_host: host,
            inst,
            rank,
            issue_time: stamp,
            touches_memory: touches,
        });
    }

    /// Lets an event happen, and updates the actors that waited for it.
    fn happen(&mut self, event: Event) {
        for it in self.events.happen(event) {
            self.update_readiness(it);
        }
    }

    /// Completes the head of a stream or queue.
    pub fn retire(&mut self, actor: usize) {
        if let Some(mut waits) = self.waits(actor) {
            waits.ended.drain(..).for_each(|it| self.happen(it));
            self.waits = waits;
        }
        self.retire_without_events(actor);
    }

    /// Writes the semaphore of a transfer over peer memory, and returns whether its value is lost: the transfer before has not ended, so the
    /// word has the value already.
    fn is_lost(&mut self, signal: SignalId) -> bool {
        match self.semaphores.get(&signal) {
            Some((word, true)) => !self.posted_semaphores.insert(*word),
            Some((word, false)) => {
                self.posted_semaphores.remove(word);
                false
            }
            None => false,
        }
    }

    /// Completes the head of a stream or queue, and lets none of its events happen.
    fn retire_without_events(&mut self, actor: usize) {
        let it = &mut self.actors[actor];
        it.in_flight = None;
        let rank = it.rank();
        if let Some((inst, _)) = it.items.pop_front() {
            self.complete(rank, inst);
        }
        self.update_readiness(actor);
    }

    /// Marks an instruction as complete.
    fn complete(&mut self, rank: usize, inst: usize) {
        self.inst_states[rank][inst] = InstState::Done;
        self.completed += 1;
        if let Some(trace) = &mut self.outcome.trace {
            trace.push(InstRef { rank, inst });
        }
    }

    /// Runs the next step of a host: it issues an instruction, or starts or completes a host instruction.
    fn run_host(&mut self, actor: usize) -> Result<(), SimError> {
        let rank = self.actors[actor].rank();
        let inst = self.hosts[rank].next;
        let entered = std::mem::take(&mut self.hosts[rank].is_inside_inst);
        match self.effect(rank, inst) {
            SyncEffect::HostWait(event) => {
                self.hosts[rank].next += 1;
                self.complete(rank, inst);
                if let Some(exit) = self.world[rank].exit_at(event) {
                    self.leave_loop(InstRef { rank, inst }, exit)?;
                }
            }
            SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier if entered => {
                self.hosts[rank].next += 1;
                self.complete(rank, inst);
            }
            SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => {
                self.hosts[rank].is_inside_inst = true;
                let matched = self.world.matching();
                for comm in matched.comms_of(InstRef { rank, inst }) {
                    if self.arrive(*comm) {
                        self.happen(Event::AllArrived(*comm));
                    }
                }
            }
            SyncEffect::Post(it) => self.issue_on_queue(rank, inst, it.communicator())?,
            hir_plan::stream_sync_effects!()
            | SyncEffect::Reshard(_)
            | SyncEffect::Compute
            | SyncEffect::ReadOutputs => self.issue(rank, inst),
        }
        self.update_readiness(actor);
        Ok(())
    }

    /// Reads the condition of a loop. If it is false, the host continues at the end of the loop: what is between counts as complete.
    fn leave_loop(&mut self, at: InstRef, exit: &LoopExit) -> Result<(), SimError> {
        let block = Memories::World(&mut self.memories).load(at.rank, &exit.condition);
        let block = block.map_err(|it| it.into_sim_error(self.world, at))?;
        let goes_on = block.data.get(0) == Number::Bool(true);
        let plan = &self.world[at.rank];
        match exit.end {
            None if goes_on => {
                let (line, place) = line_and_location(self.world, at);
                let code = Some(Code::LoopLimit);
                Err(SimError::Program { code, rank: at.rank, line, place, message: LOOP_LIMIT.to_owned() })
            }
            Some(end) if !goes_on => {
                let end = InstKind::RecordEvent { event: end };
                while let Some(next) = plan.code.get(self.hosts[at.rank].next).filter(|it| it.kind != end) {
                    self.inst_states[at.rank][self.hosts[at.rank].next] = InstState::Done;
                    self.completed += 1;
                    self.hosts[at.rank].next += 1;
                    if let InstKind::RecordEvent { event } = next.kind {
                        self.happen(Event::Recorded(at.rank, event));
                    }
                }
                Ok(())
            }
            None | Some(_) => Ok(()),
        }
    }

    /// Issues an instruction to its stream.
    pub fn issue(&mut self, rank: usize, inst: usize) {
        self.hosts[rank].next += 1;
        self.issued += 1;
        let stream = self.stream_of(rank, self.world[rank].code[inst].stream);
        self.actors[stream].items.push_back((inst, self.issued));
        if self.actors[stream].items.len() == 1 {
            self.update_readiness(stream);
        }
    }

    /// Runs the head of a stream.
    fn run_stream(&mut self, actor: usize) -> Result<(), SimError> {
        let rank = self.actors[actor].rank();
        let Some(inst) = self.head(actor) else { return Ok(()) };
        match self.effect(rank, inst) {
            SyncEffect::Post(it) => return self.post(actor, it.communicator()),
            SyncEffect::Reshard(_) => return self.run_collective(actor),
            SyncEffect::Signal(it) if self.is_lost(it) => {
                self.lost_posts.push(InstRef { rank, inst });
                self.retire_without_events(actor);
                return Ok(());
            }
            // `retire` lets their events happen.
            hir_plan::stream_sync_effects!() => {}
            SyncEffect::ReadOutputs => self.read_outputs(rank, inst)?,
            SyncEffect::Compute => {
                let (plans, kind) = (self.world, &self.world[rank].code[inst].kind);
                let is_second = matches!(self.actors[actor].in_flight, Some(InFlight::HalfCopy));
                let halves = if self.is_synchronous { None } else { copy_halves(rank, kind) };
                let half = halves.map(|it| {
                    let [from, to] = it[usize::from(is_second)].clone().map(Box::new);
                    InstKind::Copy { from, to }
                });
                self.check_given_step(InstRef { rank, inst }, u32::from(is_second))?;
                Memories::World(&mut self.memories)
                    .run(rank, half.as_ref().unwrap_or(kind), &mut self.outcome.notes)
                    .map_err(|it| it.into_sim_error(plans, InstRef { rank, inst }))?;
                if half.is_some() && !is_second {
                    self.actors[actor].in_flight = Some(InFlight::HalfCopy);
                    self.make_ready(actor);
                    return Ok(());
                }
            }
            SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier | SyncEffect::HostWait(_) => {
                return Err(SimError::Internal("a host instruction is on a stream".to_owned()));
            }
        }
        self.retire(actor);
        Ok(())
    }

    /// Reads the outputs of a rank, and records the instructions that have not run: its own, and those of
    /// other ranks that write to its memory.
    fn read_outputs(&mut self, rank: usize, inst: usize) -> Result<(), SimError> {
        let plans = self.world;
        let space = Memories::World(&mut self.memories);
        for (at, port) in plans[rank].outputs.iter().enumerate() {
            if let Some(view) = &port.shard.view {
                let output = self.shared_outputs.read(&space, rank, view);
                let output = output.map_err(|it| it.into_sim_error(plans, InstRef { rank, inst }))?;
                self.outcome.outputs[rank][at] = Some(output);
            }
        }
        let pending = |it: &InstRef| self.inst_states[it.rank][it.inst] != InstState::Done;
        let own = (0..inst).map(|inst| InstRef { rank, inst });
        let others = self.remote_writes[rank].iter().copied();
        self.outcome.pending[rank] = own.chain(others).filter(pending).collect();
        Ok(())
    }
}
