//! Checks that the members of a collective agree.

use grammar::attr::{self, AttrName};

use super::{Amount, Fault, Post, Side, amount_text};
use crate::{Backend, Plan, algorithm::chosen_algorithm, sync::report_text};

/// The help if members post collectives in different orders.
pub(super) const SAME_ORDER: &str = "post the collectives of a team in the same order on all its ranks";

/// Returns the first disagreement in a collective. `members` are the parts of all members, in team order;
/// `name` is the name of the collective in messages.
pub(super) fn check_members(
    plans: &[Plan],
    name: &str,
    backend: Option<Backend>,
    members: &[Post],
) -> Option<Fault> {
    let team = Team { plans, name, members, lead: members.first()? };
    let amounts = || {
        let (giver, given) = members.iter().find_map(|it| Some((it, it.input?)))?;
        team.check_inputs(giver, given).or_else(|| team.check_outputs(giver, given))
    };
    team.check_kinds()
        .or_else(|| team.check_algorithms(backend))
        .or_else(|| team.check_permutation())
        .or_else(amounts)
}

/// The parts of all members of a collective.
struct Team<'a> {
    plans: &'a [Plan],
    /// The name of the collective in messages.
    name: &'a str,
    /// In team order.
    members: &'a [Post],
    /// The first member.
    lead: &'a Post,
}

impl Team<'_> {
    fn describe(&self, it: &Post) -> String {
        report_text::describe(self.plans, it.at)
    }

    fn posts(&self, it: &Post) -> String {
        format!("rank {} posts {}", it.at.rank, self.describe(it))
    }

    /// Returns the fault that a member disagrees with an earlier one about an attribute. `label` says what a member has.
    fn disagree(
        &self,
        (one, two): (&Post, &Post),
        attr: Option<AttrName>,
        label: impl Fn(&Post) -> String,
        (message, help): (String, &str),
    ) -> Fault {
        let sides = [one, two].map(|it| Side::new(self.plans, it.at, attr, label(it)));
        Fault { sides: sides.into(), message, help: help.to_owned() }
    }

    /// All members post the same kind of collective, with the same root and reduction.
    fn check_kinds(&self) -> Option<Fault> {
        let Self { name, lead, .. } = *self;
        let it = self.members.iter().find(|it| !it.kind.is_compatible_with(lead.kind))?;
        let (mine, theirs) = (it.at.rank, lead.at.rank);
        if it.kind.op_name() != lead.kind.op_name() {
            let label = |it: &Post| format!("rank {} posts {}", it.at.rank, it.kind.op_name());
            let message = format!("{name} differs: {}, {}", self.posts(lead), self.posts(it));
            return Some(self.disagree((lead, it), None, label, (message, SAME_ORDER)));
        }
        let what = self.describe(it);
        if let (Some(one), Some(two)) = (lead.kind.root, it.kind.root)
            && one != two
        {
            let message = format!(
                "{name}, {what}: the ranks use different roots: member {one} on rank {theirs}, member {two} on rank {mine}"
            );
            let label = |it: &Post| format!("{} on rank {}", it.kind.root.unwrap_or_default(), it.at.rank);
            let help = "use the same root on all ranks of the team";
            return Some(self.disagree((lead, it), Some(attr::ROOT.name()), label, (message, help)));
        }
        let message = format!(
            "{name}, {what}: the ranks use different reductions: {} on rank {theirs}, {} on rank {mine}",
            lead.kind.describe(),
            it.kind.describe()
        );
        let label = |it: &Post| format!("{} on rank {}", it.kind.describe(), it.at.rank);
        let help = "use the same `red_op` on all ranks of the team";
        Some(self.disagree((lead, it), Some(attr::RED_OP.name()), label, (message, help)))
    }

    /// All members use the same algorithm. Members without `algo=` agree if the same one is selected for them.
    fn check_algorithms(&self, backend: Option<Backend>) -> Option<Fault> {
        let Self { name, lead, members, .. } = *self;
        let algorithm = |it: &Post| {
            let bytes = it.input.map_or(0, |(len, dtype)| len * dtype.size());
            chosen_algorithm(backend, it.kind, it.algo, (members.len(), bytes))
        };
        let it = members.iter().find(|it| algorithm(it) != algorithm(lead))?;
        let named =
            |it: &Post| it.algo.map_or("without `algo=`".to_owned(), |it| format!("with `algo={it}`"));
        let message =
            format!("{name}: {} {}, {} {}", self.posts(lead), named(lead), self.posts(it), named(it));
        let label = |it: &Post| format!("rank {}: {}", it.at.rank, named(it));
        let help = "write the same `algo=` on all ranks of the team";
        Some(self.disagree((lead, it), Some(attr::ALGO.name()), label, (message, help)))
    }

    /// Each member of a permutation receives from the member that sends to it. The usual cause of an error is that all ranks run the dump of
    /// one rank, which contains that rank's peers as literals.
    fn check_permutation(&self) -> Option<Fault> {
        let Self { plans, name, members, .. } = *self;
        let (me, from) = members.iter().enumerate().find_map(|(me, it)| {
            let from = it.kind.peers?.recv;
            (members.get(from)?.kind.peers?.send != me).then_some((me, from))
        })?;
        let (it, giver) = (&members[me], members[from].at.rank);
        let message = format!(
            "{name}: rank {} receives from rank {giver} in {}, but rank {giver} sends to another rank",
            it.at.rank,
            self.describe(it)
        );
        let help = "a dump prints its own rank's index as a literal in `send_peer` and `recv_peer`: write `rank` in its \
                    place, or give every rank its own dump with `--program 0=a.hir,1=b.hir`";
        let receives = format!("rank {} receives from rank {giver}", it.at.rank);
        let sends = format!("rank {giver} sends to another rank");
        let sides = vec![
            Side::new(plans, it.at, Some(attr::RECV_PEER.name()), receives),
            Side::new(plans, members[from].at, Some(attr::SEND_PEER.name()), sends),
        ];
        Some(Fault { sides, message, help: help.to_owned() })
    }

    /// All members that contribute something contribute the same amount, which the members can share if they get parts of it. `giver` is the
    /// first of them.
    fn check_inputs(&self, giver: &Post, given: Amount) -> Option<Fault> {
        let Self { plans, name, lead, members, .. } = *self;
        let amount = |it: &Post| it.input.map(amount_text).unwrap_or_default();
        let gives =
            |it: &Post| format!("rank {} contributes {} in {}", it.at.rank, amount(it), self.describe(it));
        let attr = Some(attr::INPUT.name());
        if let Some(it) = members.iter().find(|it| it.input.is_some_and(|it| it != given)) {
            let message = format!("{name}: {}, {}", gives(giver), gives(it));
            let label = |it: &Post| format!("rank {} contributes {}", it.at.rank, amount(it));
            let help = "contribute the same number of elements of the same type on all ranks of the team";
            return Some(self.disagree((giver, it), attr, label, (message, help)));
        }
        let count = members.len();
        if lead.kind.splits_input() && !given.0.is_multiple_of(count) {
            let message = format!("{name}: {}, which is not divisible by {count} members", gives(giver));
            let label = format!("{} on rank {}", amount(giver), giver.at.rank);
            let help = format!("contribute a multiple of {count} elements");
            return Some(Fault { sides: vec![Side::new(plans, giver.at, attr, label)], message, help });
        }
        None
    }

    /// The output of each member holds what the collective gives.
    fn check_outputs(&self, giver: &Post, given: Amount) -> Option<Fault> {
        let Self { plans, name, lead, members, .. } = *self;
        let (len, dtype) = given;
        let (it, wanted, delivered) = members.iter().enumerate().find_map(|(member, it)| {
            let delivered = (lead.kind.output_len(member, members.len(), len), dtype);
            it.output.filter(|it| *it != delivered).map(|wanted| (it, wanted, delivered))
        })?;
        let (what, output) = (self.describe(it), amount_text(wanted));
        let message = format!(
            "{name}: the output of {what} has {output} on rank {}, but the {} gives {}",
            it.at.rank,
            lead.kind.op_name(),
            amount_text(delivered)
        );
        let from = match members.iter().filter(|it| it.input.is_some()).count() {
            1 => format!("{} from rank {}", amount_text(given), giver.at.rank),
            givers => format!("{} from each of {givers} ranks", amount_text(given)),
        };
        let output = format!("{output} on rank {}", it.at.rank);
        let sides = vec![
            Side::new(plans, it.at, Some(attr::OUTPUT.name()), output),
            Side::new(plans, giver.at, Some(attr::INPUT.name()), from),
        ];
        let help = format!("use an output of {}, or another input", amount_text(delivered));
        Some(Fault { sides, message, help })
    }
}
