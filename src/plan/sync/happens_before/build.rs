//! Distributes the instructions of all plans over actors, with the events between them.

use super::{Deps, Event, Run};
use crate::{
    Collective, Communication, Direction, P2pGroup, Plan, SyncEffect,
    sync::{CommKey, CommMatching, CommNo, InstRef, MatchedComm},
    teams::position_in,
};

/// The state while the actors are built from plans.
pub(super) struct RunBuilder<'m> {
    pub(super) matched: &'m CommMatching,
    /// By communication: the event of its first part. A collective has one event for each member, in team
    /// order, followed by one that all members signal.
    pub(super) tokens: Vec<u32>,
    pub(super) events: Vec<Event>,
}

impl<'m> RunBuilder<'m> {
    pub(super) fn new(matched: &'m CommMatching) -> Self {
        let mut count = 0;
        let mut first = |comm: &MatchedComm| {
            let before = count;
            count += match comm.key {
                CommKey::Collective(group, _) => matched.groups[group as usize].team.len() as u32 + 1,
                // One event: the send has begun, or the signal is set.
                CommKey::Message(..) | CommKey::Signal(_) => 1,
                CommKey::Handle(..) | CommKey::Barrier(_) => 0,
            };
            before
        };
        let tokens: Vec<u32> = matched.comms.iter().map(&mut first).collect();
        let mut events: Vec<Event> = (0..count).map(|_| Event::with_signals(1)).collect();
        for (comm, first) in matched.comms.iter().zip(&tokens) {
            if let CommKey::Collective(group, _) = comm.key {
                let members = matched.groups[group as usize].team.len() as u32;
                events[(first + members) as usize] = Event::with_signals(members);
            }
        }
        Self { matched, tokens, events }
    }

    /// Distributes a rank's instructions over its actors: the streams from `first` on, then the queues.
    pub(super) fn plan(
        &mut self,
        plan: &Plan,
        first: usize,
        is_dropped: &dyn Fn(InstRef) -> bool,
        run: &mut Run,
    ) {
        let rank = plan.rank;
        let queue = |number: u32| {
            first + plan.streams.len() + self.matched.queue_of(rank, number).unwrap_or(number) as usize
        };
        let queues: Vec<usize> = (0..plan.communicators.len() as u32).map(queue).collect();
        // The events and works that precede the current instruction. A wait for a later one has no effect.
        let mut events: Vec<Option<u32>> = vec![None; plan.event_count];
        let mut works: Vec<Option<u32>> = vec![None; plan.work_count];
        for (inst, it) in plan.code.iter().enumerate() {
            let stream = first + it.stream as usize;
            let comms = self.matched.comms_of(InstRef { rank, inst });
            let mut deps = Deps::default();
            let queued = match it.kind.effect() {
                SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => continue,
                SyncEffect::Compute | SyncEffect::ReadOutputs => None,
                SyncEffect::RecordEvent(_)
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Wait(_)
                | SyncEffect::WaitSignal(_)
                    if is_dropped(InstRef { rank, inst }) =>
                {
                    None
                }
                SyncEffect::RecordEvent(event) => {
                    let token = self.event();
                    events[event as usize] = Some(token);
                    deps.ended.push(token);
                    None
                }
                SyncEffect::WaitEvent(event) => {
                    deps.to_begin.extend(events[event as usize]);
                    None
                }
                SyncEffect::Wait(work) => {
                    deps.to_begin.extend(works[work as usize]);
                    None
                }
                SyncEffect::Signal(_) => {
                    deps.ended.extend(comms.iter().map(|it| self.tokens[*it as usize]));
                    None
                }
                SyncEffect::WaitSignal(_) => {
                    deps.to_begin.extend(comms.iter().map(|it| self.tokens[*it as usize]));
                    None
                }
                SyncEffect::Reshard(it) => {
                    let me = position_in(&it.team, rank);
                    self.add_collective_deps(comms, me, it.team.len(), Givers::All, &mut deps);
                    None
                }
                SyncEffect::Post(it) => {
                    match it {
                        Communication::Collective(it) => {
                            let team = &plan.communicators[it.communicator as usize].team;
                            let me = position_in(team, rank);
                            let givers = me.map_or(Givers::All, |me| Givers::of(it, me, team.len()));
                            self.add_collective_deps(comms, me, team.len(), givers, &mut deps);
                        }
                        Communication::P2pGroup(it) => self.add_p2p_deps(comms, it, &mut deps),
                    }
                    let done = self.event();
                    works[it.work() as usize] = Some(done);
                    deps.ended.push(done);
                    Some(queues[it.communicator() as usize])
                }
            };
            if let Some(queue) = queued {
                let posted = self.event();
                run.push(stream, inst, true, &Deps { ended: vec![posted], ..Deps::default() });
                deps.to_begin.push(posted);
                run.push(queue, inst, false, &deps);
            } else {
                run.push(stream, inst, false, &deps);
            }
        }
    }

    pub(super) fn event(&mut self) -> u32 {
        self.events.push(Event::with_signals(1));
        self.events.len() as u32 - 1
    }

    /// Adds the dependences of a collective or resharding operator: it begins, and ends after `givers` have
    /// begun. Members are positions in the team.
    fn add_collective_deps(
        &self,
        comms: &[CommNo],
        me: Option<usize>,
        members: usize,
        givers: Givers,
        deps: &mut Deps,
    ) {
        let (Some(comm), Some(me)) = (comms.first(), me) else { return };
        let token = |member: usize| self.tokens[*comm as usize] + member as u32;
        deps.begun.extend([token(me), token(members)]);
        // A member that needs all others waits for the one event that all members signal, so that a team of n
        // needs n tokens instead of n². Each member signals that event exactly once.
        match givers {
            Givers::All if members > 2 => deps.to_end.push(token(members)),
            Givers::All => deps.to_end.extend((0..members).filter(|it| *it != me).map(token)),
            Givers::Some(givers) => deps.to_end.extend(givers.into_iter().filter(|it| *it != me).map(token)),
        }
    }

    /// Adds the dependences of a group: it begins, and ends after the sends that match its receives have
    /// begun.
    fn add_p2p_deps(&self, comms: &[CommNo], group: &P2pGroup, deps: &mut Deps) {
        for (comm, side) in comms.iter().zip(&group.ops).filter(|it| !it.1.view.is_empty()) {
            let deps = match side.direction {
                Direction::Send => &mut deps.begun,
                Direction::Recv => &mut deps.to_end,
            };
            deps.push(self.tokens[*comm as usize]);
        }
    }
}

/// The members of a collective whose data a member receives.
enum Givers {
    All,
    Some(Vec<usize>),
}

impl Givers {
    /// Returns the members from which member `me` of a team of `n` receives data.
    fn of(it: &Collective, me: usize, n: usize) -> Self {
        match &it.output {
            Some(view) if !view.is_empty() => {
                if it.kind.receives_from_all(me, n) {
                    Self::All
                } else {
                    Self::Some(it.kind.source_members(me, n))
                }
            }
            Some(_) | None => Self::Some(Vec::new()),
        }
    }
}
