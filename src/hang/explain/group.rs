//! Explains groups with different members, and all-to-alls whose sizes do not match.

use grammar::codes::Code;

use super::{Finding, diverged::values, empty, label};
use crate::{
    queues::{Call, Job},
    record::{Crosswise, GroupId, Rank, total},
    wording::{numbers_text, operands, position, ranks_of, ranks_text, tensors, verb, what_at},
};

pub(super) fn membership(job: &Job<'_>, variants: &[GroupId], waiting: &[Call]) -> Finding {
    let stated = |group: &GroupId| -> Vec<Rank> {
        job.queues
            .iter()
            .filter(|it| it.group == *group)
            .flat_map(|it| it.lanes.iter().map(|it| it.rank))
            .collect()
    };
    let mut sides: Vec<(GroupId, Vec<Rank>)> = variants.iter().map(|it| (*it, stated(it))).collect();
    sides.sort_by_key(|it| std::cmp::Reverse(it.1.len()));
    let name = variants.first().map(|it| job.records.group(*it).to_string()).unwrap_or_default();
    let members =
        |group: GroupId| numbers_text(job.records.group(group).members.as_deref().unwrap_or_default());
    let is_clear = sides.len() > 1 && sides[0].1.len() > sides[1].1.len();
    let deviating: Vec<Rank> = sides.iter().skip(1).flat_map(|it| it.1.iter().copied()).collect();
    let list = |(group, ranks): &(GroupId, Vec<Rank>)| {
        format!("{} with the members {}", ranks_text(ranks), members(*group))
    };
    let (usual, others) =
        (sides.first().map(list).unwrap_or_default(), sides.iter().skip(1).map(list).collect::<Vec<_>>());
    let message = format!(
        "{name} has other members on different ranks: {} created it differently from {usual}",
        others.join(", ")
    );
    let mut labels = Vec::new();
    let first_of = |ranks: &[Rank]| waiting.iter().find(|it| ranks.contains(&it.rank)).copied();
    if let Some(call) = first_of(&deviating) {
        labels.push(label(
            job,
            call,
            format!("{} {} in its own group here", ranks_text(&deviating), verb(&deviating, "wait")),
        ));
    }
    let usual_ranks = sides.first().map_or(&[][..], |it| &it.1);
    labels.extend(first_of(usual_ranks).map(|call| {
        label(job, call, format!("{} {} here", ranks_text(usual_ranks), verb(usual_ranks, "wait")))
    }));
    let mut notes = vec![
        "NCCL makes a communicator of each list of members: the ranks wait in different ones".to_owned(),
    ];
    // Ranks that a side counts as members and that have no such group agree with the others.
    let claimed =
        sides.iter().skip(1).flat_map(|it| job.records.group(it.0).members.clone().unwrap_or_default());
    let without: Vec<Rank> =
        claimed.filter(|it| job.has_dump(*it) && !sides.iter().any(|side| side.1.contains(it))).collect();
    if !without.is_empty() {
        notes.push(format!("{} {} no such group", ranks_text(&without), verb(&without, "have")));
    }
    Finding {
        code: Code::HangMembership,
        message,
        ranks: if is_clear || !without.is_empty() { deviating } else { Vec::new() },
        labels,
        notes,
        help: "every rank must call `new_group` with the same list of ranks, in the same order; the records do not hold the line of `new_group`".to_owned(),
    }
}

pub(super) fn crosswise(job: &Job<'_>, found: &Crosswise, waiting: &[Call]) -> Finding {
    let Crosswise { names, descriptions, sides } = found;
    let mut sides: Vec<(&Vec<Rank>, usize)> = sides.iter().zip(0..).collect();
    sides.sort_by_key(|it| std::cmp::Reverse(it.0.len()));
    let [(usual, of_usual), (others, of_others)] = sides.as_slice() else {
        return empty(Code::HangMembership);
    };
    let labels = [*others, *usual].into_iter().filter_map(|side| {
        let call = waiting.iter().find(|it| side.contains(&it.rank))?;
        Some(label(job, *call, format!("{} {} here", ranks_text(side), verb(side, "wait"))))
    });
    Finding {
        message: format!(
            "{} have made groups {} and {} in different orders: group {} is `{}` on {}, and `{}` on {}",
            ranks_text(&[usual.as_slice(), others.as_slice()].concat()),
            names[0],
            names[1],
            names[0], descriptions[*of_usual], ranks_text(usual), descriptions[*of_others], ranks_text(others),
        ),
        ranks: if usual.len() > others.len() { others.to_vec() } else { Vec::new() },
        labels: labels.collect(),
        notes: vec!["groups are told apart by their number on each rank, so that calls in one and the same group do not meet".to_owned()],
        help: "every rank must call `new_group` in the same order, also for groups that it is no member of".to_owned(),
        ..empty(Code::HangMembership)
    }
}

pub(super) fn uneven(job: &Job<'_>, queue: usize, seq: u32, deviating: &[Call]) -> Finding {
    let queue = &job.queues[queue];
    let calls: Vec<Call> = queue.lanes.iter().filter_map(|it| job.call_at(it, seq)).collect();
    let sizes = |call: &Call| {
        let signature = job.records.signature(job.record(*call).signature);
        (total(&signature.inputs), total(&signature.outputs))
    };
    let (sent, expected) = calls
        .iter()
        .map(sizes)
        .fold((0, 0), |sum, it| (i64::saturating_add(sum.0, it.0), i64::saturating_add(sum.1, it.1)));
    let Some(shown) = deviating.first().or(calls.first()).copied() else { return empty(Code::HangSizes) };
    let at = position(job, shown);
    let name = what_at(job, shown);
    let ranks = ranks_of(deviating);
    let signature = job.records.signature(job.record(shown).signature);
    let output = tensors(&crate::record::Signature { inputs: Vec::new(), ..signature.clone() });
    let who = match deviating {
        [] => "no rank alone shows it".to_owned(),
        deviating => {
            let others = calls
                .iter()
                .find(|it| !deviating.contains(it))
                .map(|it| operands(job, *it))
                .unwrap_or_default();
            format!(
                "{} {} {} (output {output}), the others {others}",
                ranks_text(&ranks),
                verb(&ranks, "pass"),
                values(job, deviating)
            )
        }
    };
    let message = match sent == expected {
        true => format!("the splits of {name} are not those of the earlier rounds: {who}"),
        false => format!(
            "the splits of {name} do not match: all ranks together send {sent} elements and expect {expected}; {who}"
        ),
    };
    let waiting: Vec<Rank> = calls.iter().filter(|it| !job.record(**it).done).map(|it| it.rank).collect();
    Finding {
        code: Code::HangSizes,
        message,
        ranks: ranks.clone(),
        labels: vec![label(job, shown, match deviating {
            [] => "the sizes of all ranks together do not match here".to_owned(),
            _ => format!("the sizes of {} differ here", ranks_text(&ranks)),
        })],
        notes: vec![
            format!("this is {at}; {} {} not completed it", ranks_text(&waiting), verb(&waiting, "have")),
            "the records hold the shapes of the whole tensors, not the splits".to_owned(),
        ],
        help: "what rank i sends to rank j (`input_split_sizes` on i) must be what j expects from i (`output_split_sizes` on j): exchange the splits first".to_owned(),
    }
}
