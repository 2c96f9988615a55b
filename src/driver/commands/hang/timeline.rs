//! The timeline of the records of a job: for each rank a row for the collectives of each group, and one for its messages with each other rank. A call that
//! has not completed has no end.

use std::collections::BTreeMap;

use grammar::render::{Format, Style, render};
use hir_hang::{
    diagnostics::diagnostic,
    dumps::Dumps,
    record::{Batch, Peer, Rank, Record},
    report::Report,
    site::site,
};
use hir_plan::{
    sync::InstRef,
    timeline::{Diagnosis, Lane, Row, Slice, SliceKind, Timeline},
};

/// The number of calls above which a timeline shows those around the hang, so that its page has 20 MB at most.
const MAX_SLICES: usize = 50_000;

/// The number of calls of each rank that it shows at least.
const MIN_KEPT: usize = 8;

/// Returns the timeline. Times are those of the clocks of the hosts, from the first call of all ranks.
pub(super) fn timeline(dumps: &Dumps, found: &Report) -> Timeline {
    let records = &dumps.records;
    let all = records.ranks.iter().flat_map(|it| &it.records);
    let first = all.map(|it| it.created).min().unwrap_or(0);
    let micros = |time: i64| time.saturating_sub(first) as f64 / 1000.0;
    let mut timeline = Timeline {
        diagnosis: diagnosis(dumps, found),
        source: "from the flight recorder: a call begins when the host made it or, if it is later, when the call before it in its row ended, and ends when its completion was noticed".to_owned(),
        ..Timeline::default()
    };
    let all: usize = records.ranks.iter().map(|it| it.records.len()).sum();
    let kept = if all > MAX_SLICES { (MAX_SLICES / records.ranks.len()).max(MIN_KEPT) } else { all };
    if all > kept {
        timeline
            .source
            .push_str(&format!("; of each rank, {kept} calls around its first that has not completed"));
    }
    for log in &records.ranks {
        let mut rows: BTreeMap<String, usize> = BTreeMap::new();
        let mut free: Vec<f64> = vec![0.0; timeline.rows.len()];
        let open = log.records.iter().position(|it| !it.done).unwrap_or(log.records.len());
        let begin = open.saturating_sub(kept / 2).min(log.records.len().saturating_sub(kept));
        let near = log.records.iter().enumerate().skip(begin).take(kept);
        for (inst, record) in near.filter(|it| it.1.batch != Batch::P2pEnd) {
            let name = row_name(dumps, record);
            let row = *rows.entry(name.clone()).or_insert_with(|| {
                timeline.rows.push(Row { rank: log.rank as usize, lane: Lane::Group(name) });
                free.push(0.0);
                timeline.rows.len() - 1
            });
            // The device executes the calls of a row one after the other.
            let begin = micros(record.created).max(free[row]);
            let noticed = micros(if record.completed > 0 { record.completed } else { record.created });
            let end = record.done.then_some(noticed.max(begin));
            free[row] = end.unwrap_or(begin);
            timeline.slices.push(Slice {
                row,
                kind: SliceKind::Communication,
                inst_ref: InstRef { rank: log.rank as usize, inst },
                line: site(records, record).map(|it| it.line),
                iteration: String::new(),
                label: records.signature(record.signature).name.clone(),
                is_copy: false,
                begin,
                end,
                slowed: 0.0,
                shares_link: false,
                cause: None,
                is_crowded: false,
            });
        }
    }
    timeline.slices.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    let absent = timeline.diagnosis.ranks.iter().filter(|it| records.log(**it as Rank).is_none());
    timeline.rows.extend(absent.map(|it| Row { rank: *it, lane: Lane::Group("no dump".to_owned()) }));
    timeline
}

/// Returns what was found first: its ranks, and their calls at the positions that its labels have.
fn diagnosis(dumps: &Dumps, found: &Report) -> Diagnosis {
    let Some(finding) = found.findings.first() else { return Diagnosis::default() };
    let (source, diagnostic) = diagnostic(finding, dumps);
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = render(&[diagnostic], &source.name, &source.text, Format::Human, Style::default(), &mut text);
    // The verdict says what the first line says. Lines that only separate others are left out.
    let text = String::from_utf8_lossy(&text);
    let text = text.lines().skip(1).filter(|it| it.trim() != "│").map(str::to_owned);
    let lines = std::iter::once(found.verdict()).chain(text);
    let place = |it: &Record| (it.group, it.seq, it.p2p_seq, it.peer);
    let of_label = |(rank, at): (Rank, usize)| dumps.records.log(rank)?.records.get(at).map(place);
    let labels = finding.labels.iter().map(|it| it.record).filter(|it| finding.ranks.contains(&it.0));
    let places: Vec<_> = labels.filter_map(of_label).collect();
    let mut calls = Vec::new();
    for log in finding.ranks.iter().filter_map(|it| dumps.records.log(*it)) {
        let own = log.records.iter().enumerate().filter(|it| places.contains(&place(it.1)));
        calls.extend(own.map(|(inst, _)| InstRef { rank: log.rank as usize, inst }));
    }
    let ranks = finding.ranks.iter().map(|it| *it as usize).collect();
    Diagnosis { lines: lines.collect(), ranks, calls }
}

fn row_name(dumps: &Dumps, record: &Record) -> String {
    let group = dumps.records.group(record.group);
    match record.peer {
        Peer::None => group.to_string(),
        Peer::Any => format!("messages from any rank, {group}"),
        Peer::Rank(peer) => format!("messages with rank {peer}, {group}"),
    }
}
