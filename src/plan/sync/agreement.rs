//! Checks that matched communications agree: the members of a collective on kind, root, element count and dtype, the two sides of
//! a message on element count and dtype. Libraries do not check: they move what lies behind a buffer, or wait for ever.
//!
//! Only the first fault of a group, or between two ranks, is reported, since those behind it may follow from it. A communication
//! of which a part is missing is left to `stuck` and to the executors.

use std::collections::BTreeMap;

use grammar::{diagnostic::Diagnostic, dtype::DType, ir::Program};

use super::{Comm, InstRef, Key, Matched, Role};
use crate::plan::{
    CollectiveKind, Communication, Direction, Effect, Plan, Transfer, View, comm::Links, link,
};

/// Elements of a type.
type Amount = (usize, DType);

/// What is wrong, at an instruction.
struct Fault {
    at: InstRef,
    message: String,
    help: Option<&'static str>,
}

impl Fault {
    fn new(at: InstRef, message: String) -> Self {
        Self { at, message, help: None }
    }
}

/// What one member posts.
struct Post {
    at: InstRef,
    kind: CollectiveKind,
    input: Option<Amount>,
    output: Option<Amount>,
}

/// Faults, each with the rank whose program it is about.
pub(in crate::plan) fn agreement(
    programs: &[&Program],
    plans: &[Plan],
    links: &[Links],
) -> Vec<(usize, Diagnostic)> {
    let matched = Matched::of(plans);
    let mut faults: Vec<Fault> = collectives(plans, &matched);
    faults.extend(cuda(plans, links));
    faults.extend(messages(plans, &matched));
    let diagnostic = |it: Fault| {
        let (rank, fault) = link::disagreement(programs, &plans[it.at.rank], it.at.inst, it.message);
        (rank, if let Some(help) = it.help { fault.help(help) } else { fault })
    };
    faults.into_iter().map(diagnostic).collect()
}

fn amount(plan: &Plan, view: &View) -> Amount {
    (view.len(), plan.buffers[view.buffer as usize].dtype)
}

/// `1024 x bf16`.
fn shown((len, dtype): Amount) -> String {
    format!("{len} x {}", dtype.short_name())
}

fn place(plans: &[Plan], at: InstRef) -> String {
    let plan = &plans[at.rank];
    plan.code.get(at.inst).map_or_else(String::new, |inst| plan.place(inst))
}

// ---- collectives

/// The first fault of each communicator.
fn collectives(plans: &[Plan], matched: &Matched) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for comm in &matched.comms {
        let Key::Collective(group, _) = comm.key else { continue };
        if comm.parts.len() != matched.expected(comm) || faults.contains_key(&group) {
            continue;
        }
        let posts: Option<Vec<Post>> = in_team_order(comm).into_iter().map(|at| post(plans, at)).collect();
        if let Some(fault) = posts.and_then(|it| check(plans, &it.iter().collect::<Vec<_>>())) {
            faults.insert(group, fault);
        }
    }
    faults.into_values().collect()
}

fn in_team_order(comm: &Comm) -> Vec<InstRef> {
    let mut parts: Vec<_> = comm.parts.iter().collect();
    parts.sort_by_key(|it| if let Role::Member(place) = it.role { place } else { 0 });
    parts.into_iter().map(|it| it.at).collect()
}

/// What a member posts; `None`: a resharding operator.
fn post(plans: &[Plan], at: InstRef) -> Option<Post> {
    let plan = &plans[at.rank];
    let Effect::Post(Communication::Collective(it)) = plan.code[at.inst].kind.effect() else { return None };
    let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
    Some(Post { at, kind: it.kind, input, output })
}

/// Collectives of the CUDA backend have one queue, of the world.
fn cuda(plans: &[Plan], links: &[Links]) -> Option<Fault> {
    let shortest = links.iter().map(|it| it.collectives.len()).min()?;
    (0..shortest).find_map(|which| {
        let post = |rank: &usize| {
            let (plan, it) = (plans.get(*rank)?, &links.get(*rank)?.collectives[which]);
            let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
            Some(Post { at: InstRef { rank: *rank, inst: it.posted_at }, kind: it.kind, input, output })
        };
        let posts: Vec<Post> = links[0].collectives[which].team.iter().filter_map(post).collect();
        check(plans, &posts.iter().collect::<Vec<_>>())
    })
}

/// What does not fit in one collective of all members, in team order.
fn check(plans: &[Plan], members: &[&Post]) -> Option<Fault> {
    let permutes = |it| matches!(it, CollectiveKind::Permute { .. });
    let lead = *members.first()?;
    let other = members.iter().find(|it| it.kind != lead.kind && !(permutes(it.kind) && permutes(lead.kind)));
    if let Some(it) = other {
        let (mine, theirs) = (it.kind.name(), lead.kind.name());
        let at = place(plans, lead.at);
        let message = format!("rank {} posts {mine} and rank {} {theirs} ({at})", it.at.rank, lead.at.rank);
        return Some(Fault::new(it.at, message));
    }
    if let Some(fault) = permute(members) {
        return Some(fault);
    }
    let name = lead.kind.name();
    let mut givers = members.iter().filter_map(|it| Some((it, it.input?)));
    let (giver, given) = givers.next()?;
    if let Some((it, mine)) = givers.find(|(_, mine)| *mine != given) {
        let at = place(plans, giver.at);
        let message = format!(
            "rank {} gives {} to {name} and rank {} {} ({at})",
            it.at.rank,
            shown(mine),
            giver.at.rank,
            shown(given)
        );
        return Some(Fault::new(it.at, message));
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
        return Some(Fault::new(giver.at, message));
    }
    let delivered = (delivered, dtype);
    let (it, wanted) = members.iter().find_map(|it| Some((it, it.output.filter(|it| *it != delivered)?)))?;
    let message = format!("{name} delivers {}, the output holds {}", shown(delivered), shown(wanted));
    Some(Fault::new(it.at, message))
}

/// A member of a permutation has to receive from the member that sends to it. A dump contains its own rank's peers as literals, so
/// one rank's dump that all ranks run is the usual cause.
fn permute(members: &[&Post]) -> Option<Fault> {
    let (me, from) = members.iter().enumerate().find_map(|(me, it)| {
        let CollectiveKind::Permute { recv_peer, .. } = it.kind else { return None };
        let CollectiveKind::Permute { send_peer, .. } = members.get(recv_peer)?.kind else { return None };
        (send_peer != me).then_some((me, recv_peer))
    })?;
    let (rank, giver) = (members[me].at.rank, members[from].at.rank);
    let message = format!("rank {rank} gets from rank {giver}, which sends to another rank");
    let help = "a dump prints its own rank's index as a literal in `send_peer` and `recv_peer`: write `rank` in its \
                place, or give every rank its own dump with `--program 0=a.hir,1=b.hir`";
    Some(Fault { help: Some(help), ..Fault::new(members[me].at, message) })
}

// ---- messages

/// The first fault between each two ranks. Messages of the CUDA backend are compared where they are lowered.
fn messages(plans: &[Plan], matched: &Matched) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for comm in &matched.comms {
        let Key::Message(group, from, to, _) = comm.key else { continue };
        let find = |direction| comm.parts.iter().find(|it| it.role == Role::Side(direction)).map(|it| it.at);
        let (Some(send), Some(recv)) = (find(Direction::Send), find(Direction::Recv)) else { continue };
        let [Some(given), Some(wanted)] = [send, recv].map(|at| side(plans, matched, comm, at)) else {
            continue;
        };
        if given != wanted {
            let (at, given, wanted) = (place(plans, recv), shown(given), shown(wanted));
            let message = format!("rank {from} sends {given} and rank {to} receives {wanted} ({at})");
            faults.entry((group, from, to)).or_insert_with(|| Fault::new(send, message));
        }
    }
    faults.into_values().collect()
}

/// What one side of a message holds; `None` for messages of a rank to itself, whose sides are one instruction's.
fn side(plans: &[Plan], matched: &Matched, comm: &Comm, at: InstRef) -> Option<Amount> {
    let plan = &plans[at.rank];
    let Effect::Post(Communication::Transfer(Transfer { sides, .. })) = plan.code[at.inst].kind.effect()
    else {
        return None;
    };
    let which = matched.comms_of(at).iter().position(|it| matched.comm(*it).key == comm.key)?;
    Some(amount(plan, &sides.get(which)?.view))
}
