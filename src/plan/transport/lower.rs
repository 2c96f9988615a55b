//! Selects the communications that have a transport, and replaces them in the plans of all ranks.

use grammar::{Algorithm, CommunicationType, Contribution, Diagnostic, Members, Program, StmtId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CollectiveCall, LoweredComm, MemberViews, Steps, Transport,
    messages::Message,
    queue::rewrite_plan,
    slots::{SlotPool, Slots},
    staging::{self, StagedViews},
    transport, with_algorithm,
};
use crate::{
    Backend, Collective, CollectiveKind, Communication, Direction, P2pGroup, PeerPhases, Plan, SyncEffect,
    View, ViewKey,
    limits::{Limits, MAX_WORLD_INSTRUCTIONS},
    posted::{PostedWorld, Request},
    sync::{CommKey, CommMatching, CommNo, CommRole, InstRef, MatchedComm, World},
};

/// By rank: the lowered communications, by index in `Plan::code`.
type Lowered = Vec<FxHashMap<usize, LoweredComm>>;

/// Lowers the communications of all ranks that no library executes. `matched` are the communications of the posted plans.
///
/// # Errors
/// The plans exceed the limit on instructions or bytes. The error has the rank whose program it is located
/// in.
pub(crate) fn lower(
    programs: &[&Program],
    posted: PostedWorld,
    matched: CommMatching,
    limits: &Limits,
) -> Result<World, Vec<(usize, Diagnostic)>> {
    let PostedWorld { mut plans, requests } = posted;
    let mut lowered: Lowered = plans.iter().map(|_| FxHashMap::default()).collect();
    let mut groups = FxHashMap::default();
    let mut hosts = HandleExchanges::default();
    let mut pools =
        Pools { staging: plans.iter().map(staging::StagingPool::of).collect(), slots: SlotPool::default() };
    let mut count: usize = plans.iter().map(|it| it.code.len()).sum();
    for (number, comm) in (0..).zip(&matched.comms) {
        let before = count;
        match comm.key {
            // A collective that some member does not post never runs. It stays in the plan, so that the
            // deadlock report can name it.
            CommKey::Collective(group, index) if comm.parts.len() == matched.expected_parts(comm) => {
                let next = groups.len() as u32;
                if let Some(it) = Lowering::of(&plans, &requests, &matched, comm, group) {
                    if count + it.min_instruction_count() > limits.instructions {
                        return Err(vec![too_large(programs, &plans, comm, limits)]);
                    }
                    let group = *groups.entry(group).or_insert(next);
                    count += it.lower((&mut plans, &requests), (group, index), &mut pools, &mut lowered);
                    if it.backend == Backend::Cuda && hosts.is_first(&plans, comm) {
                        hosts.add(&mut lowered, comm);
                    }
                }
            }
            CommKey::Message(group, ..) if matched.groups[group as usize].backend == Some(Backend::Cuda) => {
                count += message(&plans, &requests, &matched, (number, comm), &mut lowered);
            }
            CommKey::Collective(..)
            | CommKey::Message(..)
            | CommKey::Handle(..)
            | CommKey::Barrier(_)
            | CommKey::Signal(_) => (),
        }
        if count > limits.instructions && count > before {
            return Err(vec![too_large(programs, &plans, comm, limits)]);
        }
    }
    if lowered.iter().all(FxHashMap::is_empty) {
        return Ok(World::with_matching(plans, matched));
    }
    // They are as large as the plans, and those of the lowered plans follow.
    drop(matched);
    for (plan, lowered) in plans.iter_mut().zip(lowered) {
        if !lowered.is_empty() {
            rewrite_plan(plan, lowered);
        }
    }
    let bytes = plans.iter().map(Plan::bytes).sum();
    limits.check_memory(programs[0], plans.len(), bytes).map_err(|fault| vec![(0, fault)])?;
    Ok(World::new(plans))
}

fn too_large(
    programs: &[&Program],
    plans: &[Plan],
    comm: &MatchedComm,
    limits: &Limits,
) -> (usize, Diagnostic) {
    let at = comm.parts.first().map_or(InstRef { rank: 0, inst: 0 }, |it| it.inst_ref);
    let plan = &plans[at.rank];
    let program = programs[at.rank];
    let stmt = plan.code.get(at.inst).and_then(|it| plan.origins[it.origin as usize].stmt);
    let span = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
    let limit = limits.instructions;
    let message =
        format!("the communications of {} ranks are lowered to more than {limit} instructions", plans.len());
    let text = (message, "each member touches the memory of all others");
    let fewer = "run it on fewer ranks, bind shorter loops with `--set`, or let NCCL move the data: \
                 `backend=NCCL` and no `algo=`";
    // How many there would be is not known.
    let needed = limits.instructions.saturating_add(1).max(MAX_WORLD_INSTRUCTIONS);
    (at.rank, Limits::too_many_instructions(needed, span, text, fewer))
}

/// The exchanges of memory handles before collectives of the CUDA backend. If the team is the whole world,
/// nvFuser's hosts wait for each other before the first collective of a statement on a view. nvFuser has no
/// CUDA collectives of smaller teams; these need no exchange here, since executors map all memory before the
/// first run.
#[derive(Default)]
struct HandleExchanges {
    /// The combinations of rank, statement and view seen so far.
    known: FxHashSet<(usize, Option<StmtId>, ViewKey)>,
}

impl HandleExchanges {
    /// Returns whether some member of a collective of the whole world uses a view for the first time. All
    /// hosts then wait for each other.
    fn is_first(&mut self, plans: &[Plan], comm: &MatchedComm) -> bool {
        let mut is_first = false;
        for InstRef { rank, inst } in comm.parts.iter().map(|it| it.inst_ref) {
            let plan = &plans[rank];
            let it = collective(plans, InstRef { rank, inst });
            if let Some(view) = it.and_then(|it| it.output.as_ref().or(it.input.as_ref())) {
                let stmt = plan.origins[plan.code[inst].origin as usize].stmt;
                is_first |= self.known.insert((rank, stmt, view.key()));
            }
        }
        is_first && comm.parts.len() == plans.len()
    }

    fn add(&self, lowered: &mut Lowered, comm: &MatchedComm) {
        for at in comm.parts.iter().map(|it| it.inst_ref) {
            if let Some(steps) = lowered[at.rank].get_mut(&at.inst) {
                steps.begins_with_barrier = true;
            }
        }
    }
}

/// The buffers that collectives share.
struct Pools {
    /// By rank.
    staging: Vec<staging::StagingPool>,
    slots: SlotPool,
}

/// A collective that has a transport.
struct Lowering<'a> {
    backend: Backend,
    transport: &'static dyn Transport,
    kind: CollectiveKind,
    /// World ranks in team order.
    team: &'a [usize],
    /// By member: the instruction that posts its part, if any.
    parts: Vec<Option<InstRef>>,
}

impl<'a> Lowering<'a> {
    /// Selects the transport of a collective; `None` if a library executes it, or if it is a resharding
    /// operator.
    fn of(
        plans: &[Plan],
        requests: &[Vec<Request>],
        matched: &'a CommMatching,
        comm: &MatchedComm,
        group: u32,
    ) -> Option<Self> {
        let group = &matched.groups[group as usize];
        let first = comm.parts.first()?.inst_ref;
        let it = collective(plans, first)?;
        let view = it.input.as_ref().or(it.output.as_ref());
        let bytes = view.map_or(0, |view| plans[first.rank].bytes_of(view));
        let backend = group.backend?;
        let algo = requests[first.rank][it.work as usize].algo;
        let mut transport = transport(backend, it.kind, algo, (group.team.len(), bytes))?;
        let has_views =
            |at: InstRef| collective(plans, at).is_some_and(|it| it.input.is_some() && it.output.is_some());
        if transport.has_slots() && !comm.parts.iter().all(|it| has_views(it.inst_ref)) {
            let is_allreduce = it.kind.of == CommunicationType::Allreduce;
            let without_slots = if is_allreduce { Algorithm::TwoShot } else { Algorithm::OneShot };
            transport = with_algorithm(Some(without_slots), it.kind)?;
        }
        let mut parts = vec![None; group.team.len()];
        for part in &comm.parts {
            if let CommRole::Member(place) = part.role {
                parts[place] = Some(part.inst_ref);
            }
        }
        Some(Self { backend, transport, kind: it.kind, team: &group.team, parts })
    }

    /// Returns a lower bound for the number of added instructions: three for the signals of each pair of
    /// members that access each other's memory.
    fn min_instruction_count(&self) -> usize {
        let n = self.team.len();
        let facts = self.kind.of.facts();
        let pairs = match facts.contribution {
            Contribution::Each | Contribution::Reduction if self.kind.root.is_none() => n * (n - 1),
            Contribution::Each | Contribution::Reduction => n - 1,
            Contribution::One if self.kind.root.is_some() && facts.to == Members::All => n - 1,
            Contribution::One => 0,
        };
        3 * pairs
    }

    /// Lowers the parts of all members. Returns the number of added instructions.
    fn lower(
        &self,
        (plans, requests): (&mut [Plan], &[Vec<Request>]),
        (group, index): (u32, u32),
        pools: &mut Pools,
        lowered: &mut Lowered,
    ) -> usize {
        let n = self.team.len();
        let mut members: Vec<Option<MemberViews>> = Vec::with_capacity(n);
        let mut staged = Vec::with_capacity(n);
        for (me, part) in self.parts.iter().enumerate() {
            let posted = part.and_then(|at| collective(plans, at).map(|it| (at, it.clone())));
            let views = posted.map(|(at, it)| {
                let member = (self.kind, me, n);
                pools.staging[at.rank].stage(&mut plans[at.rank], self.transport, member, &it)
            });
            let (member, own) = views.unzip();
            members.push(member);
            staged.push(own);
        }
        let slots = self.slots(plans, group, &members, pools);
        let mut count = 0;
        for (me, (part, staged)) in self.parts.iter().zip(staged).enumerate() {
            let (Some(at), Some(staged)) = (part, staged) else { continue };
            // The peers of a permutation differ between members.
            let posted = collective(plans, *at);
            let kind = posted.map_or(self.kind, |it| it.kind);
            let fused = posted.filter(|it| requests[at.rank][it.work as usize].fuses_epilogue);
            let call = CollectiveCall {
                kind,
                team: self.team,
                me,
                members: &members,
                slots: &slots,
                team_no: group,
                index,
            };
            let steps = self.transport.lower(&call);
            let has_pads =
                self.backend == Backend::Cuda && matches!(steps, Steps::Kernel(PeerPhases::Memory(_)));
            let it = LoweredComm {
                begins_with_barrier: false,
                staged,
                steps,
                pads: has_pads.then_some(group),
                is_complete_when_posted: self.transport.writes_own_output(kind),
                epilogue: fused.and_then(|it| Some(it.output.as_ref()?.shape.clone())),
            };
            count += it.size();
            lowered[at.rank].insert(at.inst, it);
        }
        count
    }
}

impl Lowering<'_> {
    /// Returns the slots for each step of the transport that has slots.
    fn slots(
        &self,
        plans: &mut [Plan],
        group: u32,
        members: &[Option<MemberViews>],
        pools: &mut Pools,
    ) -> Vec<Slots> {
        let input = members.iter().flatten().find_map(|it| it.input.as_ref());
        let lens = self.transport.slot_lens(self.kind, self.team.len(), input.map_or(0, View::len));
        let parts: Vec<InstRef> = self.parts.iter().flatten().copied().collect();
        let dtype = parts.first().and_then(|at| {
            let view = collective(plans, *at)?.input.as_ref()?;
            Some(plans[at.rank].dtype_of(view))
        });
        let Some(dtype) = dtype else { return Vec::new() };
        let slots = |(round, len)| {
            pools.slots.slots(
                plans,
                (group, self.backend, self.transport.packet_format()),
                &parts,
                (round, len, dtype),
            )
        };
        lens.into_iter().enumerate().map(slots).collect()
    }
}

fn collective(plans: &[Plan], at: InstRef) -> Option<&Collective> {
    match plans.get(at.rank)?.code.get(at.inst)?.kind.effect() {
        SyncEffect::Post(Communication::Collective(it)) => Some(it),
        _ => None,
    }
}

fn p2p_group(plans: &[Plan], at: InstRef) -> Option<&P2pGroup> {
    match plans.get(at.rank)?.code.get(at.inst)?.kind.effect() {
        SyncEffect::Post(Communication::P2pGroup(it)) => Some(it),
        _ => None,
    }
}

/// Lowers both sides of a message. Returns the number of added instructions.
fn message(
    plans: &[Plan],
    requests: &[Vec<Request>],
    matched: &CommMatching,
    (number, comm): (CommNo, &MatchedComm),
    lowered: &mut Lowered,
) -> usize {
    let CommKey::Message(_, from, to, index) = comm.key else { return 0 };
    let side = |at: InstRef| {
        let it = p2p_group(plans, at)?;
        let which = matched.comms_of(at).iter().position(|it| *it == number)?;
        Some((requests[at.rank][it.work as usize].protocol?, it.ops.get(which)?))
    };
    let find =
        |direction| comm.parts.iter().find(|it| it.role == CommRole::Side(direction)).map(|it| it.inst_ref);
    let mut count = 0;
    for (direction, rank, peer) in [(Direction::Send, from, to), (Direction::Recv, to, from)] {
        let Some((at, (protocol, mine))) = find(direction).and_then(|at| Some((at, side(at)?))) else {
            continue;
        };
        let theirs = find(direction.opposite()).and_then(side).map(|it| &it.1.view);
        let it = Message { rank, peer, direction, protocol, index, mine: &mine.view, theirs };
        let it = LoweredComm {
            pads: None,
            begins_with_barrier: false,
            staged: StagedViews::default(),
            steps: it.lower(),
            is_complete_when_posted: false,
            epilogue: None,
        };
        count += it.size();
        lowered[rank].insert(at.inst, it);
    }
    count
}
