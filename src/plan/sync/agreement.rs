//! Checks that matched communications agree: the members of a collective on kind, root, element count and
//! dtype, and the two sides of a message on element count and dtype. The libraries do not check this: they
//! access whatever memory follows the buffer, or wait forever.
//!
//! Only the first error of each group, or of each pair of ranks, is reported, since later ones may be its
//! consequences. Communications that lack a part are not checked here; `deadlock_detection` and the executors
//! report them.

use std::collections::BTreeMap;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::Program,
    words::{Algorithm, P2pProtocol},
};

use super::{CommKey, CommMatching, CommNo, CommRole, InstRef, MatchedComm, report_text};
use crate::plan::{
    Backend, CollectiveKind, Communication, Direction, Plan, SyncEffect, Transfer, View,
    algorithm::chosen_algorithm,
};

/// An element count and an element type.
type Amount = (usize, DType);

/// A disagreement, located at an instruction.
struct Fault {
    at: InstRef,
    /// The statement to report, an index into the rank's `Plan::origins`.
    origin: u32,
    message: String,
    help: Option<&'static str>,
}

impl Fault {
    fn new(plans: &[Plan], at: InstRef, message: String) -> Self {
        let origin = plans[at.rank].code[at.inst].origin;
        Self { at, origin, message, help: None }
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
pub(in crate::plan) fn agreement(
    programs: &[&Program],
    plans: &[Plan],
    matched: &CommMatching,
) -> Vec<(usize, Diagnostic)> {
    let mut faults: Vec<Fault> = collective_faults(plans, matched);
    faults.extend(message_faults(plans, matched));
    let diagnostic = |it: Fault| {
        let (rank, plan) = (it.at.rank, &plans[it.at.rank]);
        let stmt = plan.origins[it.origin as usize].stmt;
        let span = stmt.map_or(programs[rank].spans.header, |stmt| programs[rank].stmt_span(stmt));
        let label = format!("rank {rank} does not agree with the other ranks");
        let fault = Diagnostic::new(Code::Disagreement, span, it.message, label);
        (rank, if let Some(help) = it.help { fault.help(help) } else { fault })
    };
    faults.into_iter().map(diagnostic).collect()
}

fn amount(plan: &Plan, view: &View) -> Amount {
    (view.len(), plan.buffers[view.buffer as usize].dtype)
}

/// Formats an element count and type: `1024 x bf16`.
fn amount_text((len, dtype): Amount) -> String {
    format!("{len} x {}", dtype.short_name())
}

// ---- collectives

/// Returns the first error of each group.
fn collective_faults(plans: &[Plan], matched: &CommMatching) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for comm in &matched.comms {
        let CommKey::Collective(group, which) = comm.key else { continue };
        if comm.parts.len() != matched.expected_parts(comm) || faults.contains_key(&group) {
            continue;
        }
        let posts: Option<Vec<Post>> = in_team_order(comm).into_iter().map(|at| post(plans, at)).collect();
        let team = report_text::team(&matched.groups[group as usize].team);
        let name = format!("the {} collective of team ({team})", report_text::ordinal(which));
        let backend = matched.groups[group as usize].backend;
        if let Some(fault) = posts.and_then(|it| check_members(plans, &name, backend, &it)) {
            faults.insert(group, fault);
        }
    }
    faults.into_values().collect()
}

fn in_team_order(comm: &MatchedComm) -> Vec<InstRef> {
    let mut parts: Vec<_> = comm.parts.iter().collect();
    parts.sort_by_key(|it| if let CommRole::Member(place) = it.role { place } else { 0 });
    parts.into_iter().map(|it| it.inst_ref).collect()
}

/// Returns the part that an instruction posts; `None` for a resharding operator.
fn post(plans: &[Plan], at: InstRef) -> Option<Post> {
    let plan = &plans[at.rank];
    let SyncEffect::Post(Communication::Collective(it)) = plan.code[at.inst].kind.effect() else {
        return None;
    };
    let [input, output] = [&it.input, &it.output].map(|it| it.as_ref().map(|it| amount(plan, it)));
    Some(Post { at, kind: it.kind, algo: it.algo, input, output })
}

/// Returns the first disagreement in a collective. `members` are the parts of all members, in team order;
/// `name` is the name of the collective in messages.
fn check_members(plans: &[Plan], name: &str, backend: Option<Backend>, members: &[Post]) -> Option<Fault> {
    let posts = |it: &Post| format!("rank {} posts {}", it.at.rank, report_text::describe(plans, it.at));
    let lead = members.first()?;
    let other = members.iter().find(|it| !it.kind.is_compatible_with(lead.kind));
    if let Some(it) = other {
        let (mine, theirs) = (it.kind.describe(), lead.kind.describe());
        let message = format!("{name}: {}, {}: {theirs} and {mine} do not match", posts(lead), posts(it));
        return Some(Fault::new(plans, it.at, message));
    }
    let named = |it: &Post| it.algo.map_or("without `algo=`".to_owned(), |it| format!("with `algo={it}`"));
    // Members without `algo=` agree if the same algorithm is selected for them.
    let algorithm = |it: &Post| {
        let bytes = it.input.map_or(0, |(len, dtype)| len * dtype.size());
        chosen_algorithm(backend, it.kind, it.algo, (members.len(), bytes))
    };
    if let Some(it) = members.iter().find(|it| algorithm(it) != algorithm(lead)) {
        let (mine, theirs) = (named(it), named(lead));
        let message = format!("{name}: {} {theirs}, {} {mine}", posts(lead), posts(it));
        return Some(Fault::new(plans, it.at, message));
    }
    if let Some(fault) = check_permute(plans, name, members) {
        return Some(fault);
    }
    let mut givers = members.iter().filter_map(|it| Some((it, it.input?)));
    let (giver, given) = givers.next()?;
    let gives = |it: &Post, amount: Amount| {
        format!(
            "rank {} contributes {} in {}",
            it.at.rank,
            amount_text(amount),
            report_text::describe(plans, it.at)
        )
    };
    if let Some((it, mine)) = givers.find(|(_, mine)| *mine != given) {
        return Some(Fault::new(
            plans,
            it.at,
            format!("{name}: {}, {}", gives(giver, given), gives(it, mine)),
        ));
    }
    let (len, dtype) = given;
    let count = members.len();
    if lead.kind.splits_input() && !len.is_multiple_of(count) {
        let message = format!("{name}: {}, which is not divisible by {count} members", gives(giver, given));
        return Some(Fault::new(plans, giver.at, message));
    }
    let (it, wanted, delivered) = members.iter().enumerate().find_map(|(member, it)| {
        let delivered = (lead.kind.output_len(member, count, len), dtype);
        it.output.filter(|it| *it != delivered).map(|wanted| (it, wanted, delivered))
    })?;
    let (what, output) = (report_text::describe(plans, it.at), amount_text(wanted));
    let message = format!(
        "{name} delivers {} to rank {}, but the output of {what} holds {output}",
        amount_text(delivered),
        it.at.rank
    );
    Some(Fault::new(plans, it.at, message))
}

/// Checks that each member of a permutation receives from the member that sends to it. The usual cause of an
/// error is that all ranks run the dump of one rank, which contains that rank's peers as literals.
fn check_permute(plans: &[Plan], name: &str, members: &[Post]) -> Option<Fault> {
    let (me, from) = members.iter().enumerate().find_map(|(me, it)| {
        let CollectiveKind::Permute { recv_peer, .. } = it.kind else { return None };
        let CollectiveKind::Permute { send_peer, .. } = members.get(recv_peer)?.kind else { return None };
        (send_peer != me).then_some((me, recv_peer))
    })?;
    let (it, giver) = (&members[me], members[from].at.rank);
    let message = format!(
        "{name}: rank {} receives from rank {giver} in {}, but rank {giver} sends to another rank",
        it.at.rank,
        report_text::describe(plans, it.at)
    );
    let help = "a dump prints its own rank's index as a literal in `send_peer` and `recv_peer`: write `rank` in its \
                place, or give every rank its own dump with `--program 0=a.hir,1=b.hir`";
    Some(Fault { help: Some(help), ..Fault::new(plans, it.at, message) })
}

// ---- messages

/// One side of a message.
struct PostedOp<'a> {
    at: InstRef,
    /// The statement, an index into the rank's `Plan::origins`.
    origin: u32,
    protocol: Option<P2pProtocol>,
    view: &'a View,
}

/// Returns the first error of each pair of ranks.
fn message_faults(plans: &[Plan], matched: &CommMatching) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for (number, comm) in (0..).zip(&matched.comms) {
        let CommKey::Message(group, from, to, _) = comm.key else { continue };
        let find = |direction| {
            comm.parts.iter().find(|it| it.role == CommRole::Side(direction)).map(|it| it.inst_ref)
        };
        let (Some(send), Some(recv)) = (find(Direction::Send), find(Direction::Recv)) else { continue };
        let [Some(send), Some(recv)] = [send, recv].map(|at| posted_op(plans, matched, number, at)) else {
            continue;
        };
        if let Some(message) = disagreement(plans, &send, &recv) {
            let fault = Fault { at: send.at, origin: send.origin, message, help: None };
            faults.entry((group, from, to)).or_insert(fault);
        }
    }
    faults.into_values().collect()
}

/// Returns a description of what the two sides of a message do not agree on.
fn disagreement(plans: &[Plan], send: &PostedOp<'_>, recv: &PostedOp<'_>) -> Option<String> {
    let plan = |it: &PostedOp<'_>| &plans[it.at.rank];
    let [given, wanted] = [send, recv].map(|it| amount(plan(it), it.view));
    let (from, to) = (send.at.rank, recv.at.rank);
    let [here, there] = [send, recv].map(|it| plan(it).describe_origin(it.origin));
    if given != wanted {
        let (given, wanted) = (amount_text(given), amount_text(wanted));
        return Some(format!(
            "rank {from} sends {given} in {here}, but rank {to} receives {wanted} in {there}"
        ));
    }
    let (mine, theirs) = (send.protocol?, recv.protocol?);
    if mine != theirs {
        let sides = format!("rank {from} sends by protocol {mine} in {here}");
        return Some(format!("{sides}, but rank {to} receives by {theirs} in {there}"));
    }
    send.view.in_common_shape(recv.view).is_none().then(|| {
        let (mine, theirs) = (&send.view.shape, &recv.view.shape);
        format!(
            "rank {from} sends shape {mine:?} in {here}, but rank {to} receives shape {theirs:?} in {there}"
        )
    })
}

/// Returns the side of a message that an instruction posts.
fn posted_op<'a>(
    plans: &'a [Plan],
    matched: &CommMatching,
    number: CommNo,
    at: InstRef,
) -> Option<PostedOp<'a>> {
    let SyncEffect::Post(Communication::Transfer(it)) = plans[at.rank].code[at.inst].kind.effect() else {
        return None;
    };
    let Transfer { ops: sides, protocol, .. } = it;
    let which = matched.comms_of(at).iter().position(|it| *it == number)?;
    let origin = matched.origin(plans, at, number);
    Some(PostedOp { at, origin, protocol: *protocol, view: &sides.get(which)?.view })
}
