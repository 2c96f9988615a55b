//! Compares what `hir hang` says with the truth, and counts.

use std::{collections::BTreeMap, fmt::Write as _};

use grammar::codes::Code;
use hir_hang::report::Report;

use super::{
    fault::{FAULTS, Fault},
    job::Job,
    program::{Kind, Step},
    twins::twins,
};

/// The counts of the jobs of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    pub jobs: usize,
    /// Jobs whose records do not show the rank, or no hang: twins decide it. The figures below are those of the others, but for the accused.
    pub open: usize,
    /// Healthy jobs that are called hangs.
    pub failed: usize,
    /// Jobs in which a rank that is not at fault is named.
    pub innocent: usize,
    pub right_rank: usize,
    pub right_kind: usize,
    pub undecided: usize,
}

/// What is wrong with an answer; empty if nothing is.
pub type Faults = Vec<&'static str>;

/// Counts a job by its answer, and returns what is wrong with it.
pub fn count(job: &Job, report: &Report, figures: &mut BTreeMap<Fault, Figures>) -> Faults {
    let made = &job.made;
    let own = figures.entry(made.fault).or_default();
    own.jobs += 1;
    let mut wrong = Vec::new();
    let mut add = |count: &mut usize, is_wrong: bool, what: &'static str| {
        *count += usize::from(is_wrong);
        if is_wrong {
            wrong.push(what);
        }
    };
    if made.fault == Fault::Healthy {
        add(&mut own.failed, report.is_hang, "healthy job failed");
        return wrong;
    }
    let finding = report.findings.first();
    let named: Vec<usize> = finding.map_or(Vec::new(), |it| it.ranks.iter().map(|&it| it as usize).collect());
    let at_fault = (made.fault != Fault::StuckNetwork).then_some(made.rank);
    add(&mut own.innocent, named.iter().any(|&it| Some(it) != at_fault), "innocent named");
    let is_right_rank = named.iter().copied().eq(at_fault);
    // A message in another order lacks its other end.
    let is_message = made.fault == Fault::OtherOrder
        && finding.is_some_and(|it| it.code == Code::HangPeer)
        && matches!(&made.program.ranks[made.rank][made.at], Step::Call(it) if matches!(it.kind, Kind::Message(_) | Kind::Batch(_)));
    let is_right_kind = is_message || finding.is_some_and(|it| says(made.fault, it.code, &it.message));
    let is_decided = report.is_hang;
    if is_right_rank && is_right_kind && is_decided {
        own.right_rank += 1;
        own.right_kind += 1;
        return wrong;
    }
    let shows_hang = made.fault.contradicts() || job.shows_time_out();
    if is_right_rank && is_right_kind && !shows_hang {
        own.right_rank += 1;
        own.right_kind += 1;
        return wrong;
    }
    let twins = twins(job);
    if twins.other_rank.is_some() {
        own.open += 1;
        return wrong;
    }
    let says_twin = |kind: &Fault| finding.is_some_and(|it| says(*kind, it.code, &it.message));
    // Of several kinds, an answer that says what is called instead of what names none.
    let is_open = finding.is_some_and(|it| it.code == Code::HangDiverged && it.message.contains(" where "));
    let is_right_kind =
        is_right_kind || twins.kinds.iter().any(says_twin) || is_open && !twins.kinds.is_empty();
    own.right_rank += usize::from(is_right_rank);
    own.right_kind += usize::from(is_right_kind);
    if !is_right_rank {
        wrong.push("other rank");
    }
    if !is_right_kind {
        wrong.push("other kind");
    }
    let shows_hang = shows_hang && (!twins.kinds.contains(&Fault::StuckHost) || job.shows_time_out());
    if shows_hang && !is_decided {
        own.undecided += 1;
        wrong.push("undecided");
    }
    wrong
}

/// Whether a finding says that a fault is of a kind.
fn says(fault: Fault, code: Code, message: &str) -> bool {
    use Code::{
        CallInFlight, HangCycle, HangDiverged, HangMembership, HangNoDump, HangPeer, HangSizes, HangUnknown,
        RankLate,
    };
    let has = |text: &str| message.contains(text);
    match fault {
        Fault::Healthy => false,
        Fault::Skip => code == HangPeer || code == HangDiverged && has("skips") || has("or skips that"),
        Fault::OneMore => {
            code == HangPeer || code == HangDiverged && (has("makes a call that") || has("more"))
        }
        Fault::OtherOrder => code == HangCycle || code == HangDiverged && has("order"),
        Fault::OtherSize | Fault::OtherType => code == HangSizes,
        Fault::OtherGroup => matches!(code, HangDiverged | HangCycle | HangMembership),
        Fault::StuckHost | Fault::Abort => {
            code == RankLate || has("has not come") || has("never came") || has("late")
        }
        Fault::StuckKernel | Fault::StuckNetwork => matches!(code, CallInFlight | HangUnknown),
        Fault::Killed => code == HangNoDump,
        Fault::BatchWithoutPartner => code == HangPeer,
    }
}

/// Returns the figures as a table.
pub fn table(figures: &BTreeMap<Fault, Figures>) -> String {
    let mut text = String::from(
        "kind                  jobs  open  healthy failed  innocent named  right rank  right kind  undecided\n",
    );
    let mut sum = Figures::default();
    for (fault, it) in FAULTS.iter().filter_map(|fault| figures.get_key_value(fault)) {
        line(&mut text, &format!("{fault:?}"), it);
        for (total, own) in [
            (&mut sum.jobs, it.jobs),
            (&mut sum.open, it.open),
            (&mut sum.failed, it.failed),
            (&mut sum.innocent, it.innocent),
            (&mut sum.right_rank, it.right_rank),
            (&mut sum.right_kind, it.right_kind),
            (&mut sum.undecided, it.undecided),
        ] {
            *total += own;
        }
    }
    line(&mut text, "all", &sum);
    text
}

/// Names what is worse than in a table that was kept.
pub fn worse(figures: &BTreeMap<Fault, Figures>, kept: &str) -> Vec<String> {
    let mut worse = Vec::new();
    for (fault, it) in figures {
        let name = format!("{fault:?}");
        let row = kept.lines().find(|line| line.split_whitespace().next() == Some(name.as_str()));
        let numbers: Vec<usize> =
            row.unwrap_or_default().split_whitespace().skip(1).filter_map(|it| it.parse().ok()).collect();
        let &[jobs, _, failed, innocent, right_rank, right_kind, undecided] = numbers.as_slice() else {
            worse.push(format!("{name} has no figures"));
            continue;
        };
        for (what, is_worse) in [
            ("jobs", it.jobs != jobs),
            ("healthy failed", it.failed > failed),
            ("innocent named", it.innocent > innocent),
            ("right rank", it.right_rank < right_rank),
            ("right kind", it.right_kind < right_kind),
            ("undecided", it.undecided > undecided),
        ] {
            if is_worse {
                worse.push(format!("{name}: {what}"));
            }
        }
    }
    worse
}

fn line(text: &mut String, name: &str, it: &Figures) {
    let Figures { jobs, open, failed, innocent, right_rank, right_kind, undecided } = it;
    let _ = writeln!(
        text,
        "{name:<20} {jobs:>5} {open:>5} {failed:>15} {innocent:>15} {right_rank:>11} {right_kind:>11} {undecided:>10}"
    );
}

/// Returns the mesh of a job and how its dumps are written, for a table.
pub fn kind_of_job(job: &Job) -> String {
    let size = |desc: &str| {
        let group = job.program.groups.iter().find(|it| it.desc == format!("mesh_{desc}"));
        group.map_or(String::new(), |it| format!("{desc}{} ", it.ranks.len()))
    };
    let mesh: String = ["tp", "dp", "pp", "ep"].map(size).concat();
    let writing = &job.writing;
    let ring = if writing.ring < 2000 { format!("ring{}", writing.ring) } else { "whole".to_owned() };
    let ring = if writing.only_active { "active".to_owned() } else { ring };
    format!(
        "{}\t{ring}{}{}",
        mesh.trim_end(),
        if writing.has_frames { "" } else { ",no frames" },
        if writing.is_late { ",late" } else { "" }
    )
}

/// Describes the truth of a job.
pub fn truth(job: &Job) -> String {
    let made = &job.made;
    let place = match job.program.ranks[made.rank].get(made.at) {
        Some(Step::Call(it)) => {
            let group = &job.program.groups[it.group];
            let kind = &it.kind;
            format!(
                "{kind:?} of group {} ({}, ranks {:?}) at line {}, round {}, {} {}",
                group.name, group.desc, group.ranks, it.line, it.iteration, it.size, it.dtype.0
            )
        }
        _ => "the end".to_owned(),
    };
    let after = match job.made.program.ranks[made.rank].get(made.at) {
        Some(Step::Call(it)) => format!("{:?} of group {} at line {}", it.kind, it.group, it.line),
        _ => "nothing".to_owned(),
    };
    let (settings, writing, twins) = (&job.settings, &job.writing, twins(job));
    format!(
        "Fault: {:?} of rank {} at {place}; it makes {after} there.\nHost ahead by {}, lazy {}, eager {} bytes, timing {}, ring {}, active only {}, \
         late {}, shows a time-out {}.\nTwins: {twins:?}\n",
        made.fault,
        made.rank,
        settings.ahead,
        settings.is_lazy,
        settings.eager_bytes,
        writing.has_timing,
        writing.ring,
        writing.only_active,
        writing.is_late,
        job.shows_time_out(),
    )
}
