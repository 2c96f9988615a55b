//! Whether those who communicate mean the same: the members of a collective its type, root and sizes, the two sides of a
//! message its size. Libraries do not look: they move what lies behind a buffer, or wait for ever.
//!
//! Members match by position in their communicator's queue, messages by position between two ranks. Only the first fault
//! of a queue is told, since what comes behind it may be its consequence. What has no counterpart is left to the executors.

use std::collections::{BTreeMap, HashMap};

use grammar::{diagnostic::Diagnostic, dtype::DType, ir::Program};

use super::{CollectiveKind, Communicator, Direction, InstKind, Plan, View, comm::Links, link};

/// Elements of a type.
type Amount = (usize, DType);
/// What is wrong: rank, instruction, message.
type Fault = (usize, usize, String);

/// What one member posts.
struct Post {
    rank: usize,
    inst: usize,
    kind: CollectiveKind,
    input: Option<Amount>,
    output: Option<Amount>,
}

/// Faults, each with the rank whose program it is about.
pub(super) fn agree(programs: &[&Program], ranks: &[(Plan, Links)]) -> Vec<(usize, Diagnostic)> {
    let mut faults: Vec<Fault> = queues(ranks).into_iter().filter_map(|it| first(ranks, &it)).collect();
    faults.extend(cuda(ranks));
    faults.extend(messages(ranks));
    let told = |(rank, inst, message): Fault| link::disagreement(programs, &ranks[rank].0, inst, message);
    faults.into_iter().map(told).collect()
}

fn amount(plan: &Plan, view: &View) -> Amount {
    (view.len(), plan.buffers[view.buffer as usize].dtype)
}

/// `1024 x bf16`.
fn shown((len, dtype): Amount) -> String {
    format!("{len} x {}", dtype.short_name())
}

fn place(ranks: &[(Plan, Links)], rank: usize, inst: usize) -> String {
    let plan = &ranks[rank].0;
    plan.code.get(inst).map_or_else(String::new, |inst| plan.place(inst))
}

// ---- collectives

/// What the members of every communicator post, by member.
fn queues(ranks: &[(Plan, Links)]) -> Vec<Vec<Vec<Post>>> {
    let mut numbers: HashMap<&Communicator, usize> = HashMap::new();
    let mut queues: Vec<Vec<Vec<Post>>> = Vec::new();
    for (rank, (plan, _)) in ranks.iter().enumerate() {
        // Teams are long: each is looked at once, not for every instruction.
        let groups = groups(plan, &mut numbers);
        let member = |it: &Communicator| it.team.iter().position(|it| *it == rank);
        let members: Vec<Option<usize>> = plan.communicators.iter().map(member).collect();
        for (inst, it) in plan.code.iter().enumerate() {
            let InstKind::Collective(it) = &it.kind else { continue };
            let Some(me) = members[it.communicator as usize] else { continue };
            let number = groups[it.communicator as usize];
            queues.resize_with(queues.len().max(number + 1), Vec::new);
            if queues[number].is_empty() {
                let team = &plan.communicators[it.communicator as usize].team;
                queues[number].resize_with(team.len(), Vec::new);
            }
            let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
            queues[number][me].push(Post { rank, inst, kind: it.kind, input, output });
        }
    }
    queues
}

/// The numbers of a rank's communicators: equal ones of all ranks have one number.
fn groups<'p>(plan: &'p Plan, numbers: &mut HashMap<&'p Communicator, usize>) -> Vec<usize> {
    let mut number = |it| {
        let next = numbers.len();
        *numbers.entry(it).or_insert(next)
    };
    plan.communicators.iter().map(&mut number).collect()
}

fn first(ranks: &[(Plan, Links)], queue: &[Vec<Post>]) -> Option<Fault> {
    let shortest = queue.iter().map(Vec::len).min()?;
    (0..shortest).find_map(|at| check(ranks, &queue.iter().map(|it| &it[at]).collect::<Vec<_>>()))
}

/// Collectives of the CUDA backend have one queue, of the world.
fn cuda(ranks: &[(Plan, Links)]) -> Option<Fault> {
    let shortest = ranks.iter().map(|(_, links)| links.collectives.len()).min()?;
    (0..shortest).find_map(|at| {
        let post = |rank: &usize| {
            let (plan, links) = ranks.get(*rank)?;
            let it = &links.collectives[at];
            let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
            Some(Post { rank: *rank, inst: it.posted_at, kind: it.kind, input, output })
        };
        let posts: Vec<Post> = ranks[0].1.collectives[at].team.iter().filter_map(post).collect();
        check(ranks, &posts.iter().collect::<Vec<_>>())
    })
}

/// What does not fit in one collective of all members, in team order.
fn check(ranks: &[(Plan, Links)], members: &[&Post]) -> Option<Fault> {
    let permutes = |it| matches!(it, CollectiveKind::Permute { .. });
    let lead = *members.first()?;
    let other = members.iter().find(|it| it.kind != lead.kind && !(permutes(it.kind) && permutes(lead.kind)));
    if let Some(it) = other {
        let (mine, theirs) = (it.kind.name(), lead.kind.name());
        let at = place(ranks, lead.rank, lead.inst);
        return Some((
            it.rank,
            it.inst,
            format!("rank {} posts {mine} and rank {} {theirs} ({at})", it.rank, lead.rank),
        ));
    }
    let name = lead.kind.name();
    let mut givers = members.iter().filter_map(|it| Some((it, it.input?)));
    let (giver, given) = givers.next()?;
    if let Some((it, mine)) = givers.find(|(_, mine)| *mine != given) {
        let at = place(ranks, giver.rank, giver.inst);
        let message = format!(
            "rank {} gives {} to {name} and rank {} {} ({at})",
            it.rank,
            shown(mine),
            giver.rank,
            shown(given)
        );
        return Some((it.rank, it.inst, message));
    }
    let (len, dtype) = given;
    let count = members.len();
    let delivered = match lead.kind {
        CollectiveKind::Gather { .. } | CollectiveKind::Allgather => len * count,
        CollectiveKind::Scatter { .. } | CollectiveKind::ReduceScatter { .. } => len / count,
        CollectiveKind::Broadcast { .. }
        | CollectiveKind::Reduce { .. }
        | CollectiveKind::Allreduce { .. }
        | CollectiveKind::SendRecv { .. }
        | CollectiveKind::AllToAll
        | CollectiveKind::Permute { .. } => len,
    };
    if lead.kind.divides() && !len.is_multiple_of(count) {
        let message = format!("{name} of {len} elements does not divide by {count} members");
        return Some((giver.rank, giver.inst, message));
    }
    let delivered = (delivered, dtype);
    let (it, wanted) = members.iter().find_map(|it| Some((it, it.output.filter(|it| *it != delivered)?)))?;
    let message = format!("{name} delivers {}, the output holds {}", shown(delivered), shown(wanted));
    Some((it.rank, it.inst, message))
}

// ---- messages

/// Sends and receives of one communicator, from one rank to another: rank, instruction and amount, by position.
#[derive(Default)]
struct Channel {
    sends: Vec<(usize, Amount)>,
    receives: Vec<(usize, Amount)>,
}

/// Messages of libraries; those of the CUDA backend are matched where they are linked.
fn messages(ranks: &[(Plan, Links)]) -> Vec<Fault> {
    let mut numbers: HashMap<&Communicator, usize> = HashMap::new();
    let mut channels: BTreeMap<(usize, usize, usize), Channel> = BTreeMap::new();
    for (rank, (plan, _)) in ranks.iter().enumerate() {
        let groups = groups(plan, &mut numbers);
        for (inst, it) in plan.code.iter().enumerate() {
            let InstKind::Transfer(it) = &it.kind else { continue };
            let number = groups[it.communicator as usize];
            for side in &it.sides {
                let amount = amount(plan, &side.view);
                match side.direction {
                    Direction::Send => {
                        channels.entry((number, rank, side.peer)).or_default().sends.push((inst, amount));
                    }
                    Direction::Recv => {
                        channels.entry((number, side.peer, rank)).or_default().receives.push((inst, amount));
                    }
                }
            }
        }
    }
    let fault = |((_, from, to), it): ((usize, usize, usize), Channel)| {
        let pairs = it.sends.into_iter().zip(it.receives);
        let ((inst, given), (there, wanted)) = pairs.into_iter().find(|(send, recv)| send.1 != recv.1)?;
        let at = place(ranks, to, there);
        let (given, wanted) = (shown(given), shown(wanted));
        Some((from, inst, format!("rank {from} sends {given} and rank {to} receives {wanted} ({at})")))
    };
    channels.into_iter().filter_map(fault).collect()
}
