//! Checks that matched communications agree: the members of a collective on kind, root, element count and
//! dtype, and the two sides of a message on element count and dtype. The libraries do not check this: they
//! access whatever memory follows the buffer, or wait forever.
//!
//! Only the first error of each group, or of each pair of ranks, is reported, since later ones may be its
//! consequences. Of the communications that lack a part, only those are reported here whose other sides name another
//! backend (`backends`); `deadlock_detection` and the executors report the others.

mod backends;
mod handles;
mod members;

use std::collections::{BTreeMap, BTreeSet};

use grammar::{
    Algorithm, Code, DType, Diagnostic, P2pProtocol, Program, Span,
    attr::{self, AttrName},
};

use super::{
    Alignment, Blocker, CommKey, CommMatching, CommNo, CommRole, GroupNo, InstRef, MatchedComm, report_text,
    skipped,
};
use crate::{
    CollectiveKind, Communication, Direction, Plan, SyncEffect, View,
    posted::{PostedWorld, Request},
};

/// An element count and an element type.
type Amount = (usize, DType);

/// What one side does.
struct Side {
    at: InstRef,
    /// The statement, an index into the rank's `Plan::origins`.
    origin: u32,
    label: String,
    /// The attribute that differs.
    attr: Option<AttrName>,
}

/// A disagreement, with the sides that do not agree.
struct Fault {
    sides: Vec<Side>,
    message: String,
    help: String,
}

impl Side {
    fn new(plans: &[Plan], at: InstRef, attr: Option<AttrName>, label: String) -> Self {
        Self { at, origin: plans[at.rank].code[at.inst].origin, label, attr }
    }
}

/// The part of one member in a collective.
struct Post {
    at: InstRef,
    kind: CollectiveKind,
    algo: Option<Algorithm>,
    input: Option<Amount>,
    output: Option<Amount>,
}

/// Returns the disagreements between ranks, each with the rank whose program it is located in.
pub(crate) fn agreement(
    programs: &[&Program],
    posted: &PostedWorld,
    matched: &CommMatching,
) -> Vec<(usize, Diagnostic)> {
    let plans = &posted.plans;
    let mut faults: Vec<Fault> = collective_faults(posted, matched);
    faults.extend(message_faults(posted, matched));
    faults.extend(backends::backend_faults(posted, matched));
    let diagnostic = |it: Fault| {
        let rank = it.sides.first().map_or(0, |side| side.at.rank);
        let span = |side: &Side| {
            let stmt = plans[side.at.rank].origins[side.origin as usize].stmt;
            let program = programs[side.at.rank];
            match (stmt, side.attr) {
                (Some(stmt), Some(attr)) => program.attr_span(stmt, attr),
                (Some(stmt), None) => program.stmt_span(stmt),
                (None, _) => program.spans.header,
            }
        };
        // Sides in the text of another rank have no position in this text.
        let is_shown = |side: &&Side| std::ptr::eq(programs[side.at.rank], programs[rank]);
        let mut places: Vec<(Span, String)> = Vec::new();
        for side in it.sides.iter().filter(is_shown) {
            let span = span(side);
            match places.iter_mut().find(|(other, _)| *other == span) {
                Some((_, label)) => *label += &format!(", {}", side.label),
                None => places.push((span, side.label.clone())),
            }
        }
        let mut fault = Diagnostic::new(Code::Disagreement, Span::default(), it.message, "");
        fault.labels = places;
        (rank, fault.help(it.help))
    };
    faults.into_iter().map(diagnostic).collect()
}

fn amount(plan: &Plan, view: &View) -> Amount {
    (view.len(), plan.dtype_of(view))
}

/// Formats an element count and type: `1024 x bf16`.
fn amount_text((len, dtype): Amount) -> String {
    format!("{len} x {}", dtype.short_name())
}

// ---- collectives

/// Returns the first error of each group.
fn collective_faults(posted: &PostedWorld, matched: &CommMatching) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for comm in &matched.comms {
        let CommKey::Collective(group, which) = comm.key else { continue };
        if comm.parts.len() != matched.expected_parts(comm) || faults.contains_key(&group) {
            continue;
        }
        let posts: Option<Vec<Post>> = in_team_order(comm).into_iter().map(|at| post(posted, at)).collect();
        let team = report_text::team(&matched.groups[group as usize].team);
        let name = format!("the {} collective of team ({team})", report_text::ordinal(which));
        let backend = matched.groups[group as usize].backend;
        let Some(posts) = posts else { continue };
        if let Some(mut fault) = members::check_members(&posted.plans, &name, backend, &posts) {
            let sides = fault.sides.iter().filter_map(|side| posts.iter().find(|it| it.at == side.at));
            if let [one, two] = sides.collect::<Vec<_>>()[..]
                && let Some(later) = swapped(posted, matched, (group, which), [one, two])
            {
                let [mine, theirs] = [(one, later[0]), (two, later[1])].map(|(first, second)| {
                    let [first, second] =
                        [first.at, second].map(|at| report_text::describe(&posted.plans, at));
                    format!("{first} before {second}")
                });
                fault.message = format!(
                    "{name}: the calls are swapped: rank {} posts {mine}, rank {} posts {theirs}",
                    one.at.rank, two.at.rank
                );
                fault.help = members::SAME_ORDER.to_owned();
            }
            faults.insert(group, fault);
        }
    }
    faults.into_values().collect()
}

/// Returns the parts of two members in the first later collective of their group in which each does what the other one does in this
/// collective.
fn swapped(
    posted: &PostedWorld,
    matched: &CommMatching,
    (group, which): (GroupNo, u32),
    members: [&Post; 2],
) -> Option<[InstRef; 2]> {
    // Not each member of a collective has an input and an output.
    let agrees = |one: Option<Amount>, other: Option<Amount>| one.zip(other).is_none_or(|it| it.0 == it.1);
    let same = |one: &Post, other: &Post| {
        one.kind.is_compatible_with(other.kind)
            && one.algo == other.algo
            && agrees(one.input, other.input)
            && agrees(one.output, other.output)
    };
    let later = matched.comms.iter().filter(|it| match it.key {
        CommKey::Collective(of, number) => of == group && number > which,
        CommKey::Message(..) | CommKey::Handle(..) | CommKey::Barrier(_) | CommKey::Signal(_) => false,
    });
    later.into_iter().find_map(|comm| {
        let part = |rank: usize| {
            let at = comm.parts.iter().find(|it| it.inst_ref.rank == rank)?.inst_ref;
            post(posted, at)
        };
        let [one, two] = [part(members[0].at.rank)?, part(members[1].at.rank)?];
        (same(&one, members[1]) && same(&two, members[0])).then_some([one.at, two.at])
    })
}

fn in_team_order(comm: &MatchedComm) -> Vec<InstRef> {
    let mut parts: Vec<_> = comm.parts.iter().collect();
    parts.sort_by_key(|it| if let CommRole::Member(place) = it.role { place } else { 0 });
    parts.into_iter().map(|it| it.inst_ref).collect()
}

/// Returns the part that an instruction posts; `None` for a resharding operator.
fn post(posted: &PostedWorld, at: InstRef) -> Option<Post> {
    let plan = &posted.plans[at.rank];
    let SyncEffect::Post(Communication::Collective(it)) = plan.code[at.inst].kind.effect() else {
        return None;
    };
    let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
    let algo = posted.requests[at.rank][it.work as usize].algo;
    Some(Post { at, kind: it.kind, algo, input, output })
}

// ---- messages

/// One side of a message.
struct PostedOp<'a> {
    at: InstRef,
    /// The statement, an index into the rank's `Plan::origins`.
    origin: u32,
    protocol: Option<P2pProtocol>,
    /// The index of the exchange of its memory handle.
    handle: Option<u32>,
    view: &'a View,
}

/// Returns the first error of each pair of ranks.
fn message_faults(posted: &PostedWorld, matched: &CommMatching) -> Vec<Fault> {
    let plans = &posted.plans;
    let (mut faults, mut alignment) = (BTreeMap::new(), None);
    for (number, comm) in (0..).zip(&matched.comms) {
        let CommKey::Message(group, from, to, _) = comm.key else { continue };
        let find = |direction| {
            comm.parts.iter().find(|it| it.role == CommRole::Side(direction)).map(|it| it.inst_ref)
        };
        let (Some(send), Some(recv)) = (find(Direction::Send), find(Direction::Recv)) else { continue };
        let [Some(send), Some(recv)] = [send, recv].map(|at| posted_op(posted, matched, number, at)) else {
            continue;
        };
        if faults.contains_key(&(group, from, to)) {
            continue;
        }
        let parts = [(recv.at, from, Direction::Send), (send.at, to, Direction::Recv)];
        if let Some(mut fault) = disagreement(plans, send, recv) {
            let alignment = alignment.get_or_insert_with(|| Alignment::new(plans, matched));
            if let Some(cause) = parts.into_iter().find_map(|it| skipped_side(plans, alignment, comm.key, it))
            {
                let symptom = std::mem::replace(&mut fault.message, cause);
                fault.help = format!(
                    "messages match in order, so a later one takes the place of the missing one: {symptom}"
                );
            }
            faults.insert((group, from, to), fault);
        }
    }
    // One skipped statement may shift the messages to several ranks.
    let mut seen = BTreeSet::new();
    faults.into_values().filter(|it| seen.insert(it.message.clone())).collect()
}

/// Says which message a rank skips, if this is why another one arrives in its place. `missing` is the side
/// that `rank` may skip, and `at` the instruction that meets the wrong message.
fn skipped_side(
    plans: &[Plan],
    alignment: &mut Alignment<'_>,
    key: CommKey,
    (at, rank, missing): (InstRef, usize, Direction),
) -> Option<String> {
    let blocker = Blocker { rank, inst: None, part: Some((key, CommRole::Side(missing))) };
    let skipped = alignment.skipped(at, &blocker)?;
    let it = skipped::explain(&plans[rank], &skipped);
    let ([verb, _], [reason, rest]) = (it.verb, it.reason);
    Some(format!("rank {rank} {verb} {}: {reason} on rank {rank}{rest}", it.what))
}

/// Returns what the two sides of a message do not agree on.
fn disagreement(plans: &[Plan], send: PostedOp<'_>, recv: PostedOp<'_>) -> Option<Fault> {
    let plan = |it: &PostedOp<'_>| &plans[it.at.rank];
    let [given, wanted] = [&send, &recv].map(|it| amount(plan(it), it.view));
    let (from, to) = (send.at.rank, recv.at.rank);
    let [here, there] = [&send, &recv].map(|it| plan(it).describe_origin(it.origin));
    let fault = |attr, help: &str, [mine, theirs]: [String; 2]| {
        let (mine, theirs) = (format!("rank {from} sends {mine}"), format!("rank {to} receives {theirs}"));
        let message = format!("{mine} in {here}, but {theirs} in {there}");
        let sides = vec![
            Side { at: send.at, origin: send.origin, label: mine, attr: Some(attr) },
            Side { at: recv.at, origin: recv.origin, label: theirs, attr: Some(attr) },
        ];
        Some(Fault { sides, message, help: help.to_owned() })
    };
    if given != wanted {
        let help = "let the two buffers have the same number of elements of the same type";
        return fault(attr::BUFFER.name(), help, [given, wanted].map(amount_text));
    }
    let (mine, theirs) = (send.protocol?, recv.protocol?);
    if mine != theirs {
        let help = "use the same protocol on both sides";
        return fault(attr::PROTOCOL.name(), help, [mine, theirs].map(|it| format!("by protocol {it}")));
    }
    if let Some(sides) = handles::crossed(plans, &send, &recv) {
        return fault(attr::BUFFER.name(), handles::HELP, sides);
    }
    if send.view.in_common_shape(recv.view).is_some() {
        return None;
    }
    let help = "let the two buffers have the same shape, or make both contiguous";
    fault(attr::BUFFER.name(), help, [send.view, recv.view].map(|it| format!("shape {:?}", it.shape)))
}

/// Returns the side of a message that an instruction posts.
fn posted_op<'a>(
    posted: &'a PostedWorld,
    matched: &CommMatching,
    number: CommNo,
    at: InstRef,
) -> Option<PostedOp<'a>> {
    let SyncEffect::Post(Communication::P2pGroup(it)) = posted.plans[at.rank].code[at.inst].kind.effect()
    else {
        return None;
    };
    let which = matched.comms_of(at).iter().position(|it| *it == number)?;
    let origin = matched.origin(&posted.plans, at, number);
    let Request { protocol, handle, .. } = posted.requests[at.rank][it.work as usize];
    Some(PostedOp { at, origin, protocol, handle, view: &it.ops.get(which)?.view })
}
