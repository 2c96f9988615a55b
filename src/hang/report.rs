//! The report on the dumps of a job: what was found, and where each rank is.

use std::{cmp::Reverse, collections::BTreeMap};

use grammar::{
    codes::{Code, Severity},
    count_text,
};

use crate::{
    cause::{Analysis, Cause, analyse},
    dumps::Dumps,
    earlier,
    explain::{Finding, explain, explain_completed},
    host::{Host, Hosts},
    queues::{Call, Job, lost_messages},
    record::{GroupId, Peer, Rank, RankLog},
    site::call_name,
    wording::{numbers_text, operands, place, ranks_text},
};

/// The number of rows of the table of ranks.
const MAX_ROWS: usize = 24;

/// Where some ranks are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankRow {
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// `waits`, `idle`, `done` or `no dump`.
    pub state: &'static str,
    /// The first call that did not finish or, for an idle rank, its last call.
    pub call: String,
    /// Its place in the program.
    pub place: String,
    /// Its position in its group.
    pub position: String,
    /// The largest number of calls that did not finish on one of the ranks.
    pub open: usize,
}

/// The report on a job.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was found: the first cause, or what looks wrong in a job that proceeds.
    pub findings: Vec<Finding>,
    /// Whether the records show a hang.
    pub is_hang: bool,
    /// Whether the records show that the job proceeds: all calls of all ranks have completed, also those whose records are lost.
    pub proceeds: bool,
    /// Where the ranks are, the ranks of one state in one row.
    pub rows: Vec<RankRow>,
    /// The number of ranks that the records name.
    pub world: usize,
    /// The number of ranks with a dump.
    pub dumps: usize,
    /// The number of ranks of which only a log says something.
    pub printed: usize,
    /// The number of ranks with a dump that has records.
    pub recorded: usize,
    /// The number of ranks that have lost records of calls that may not have completed.
    pub cut: usize,
    /// The number of records.
    pub records: usize,
    /// What was read, and what is left out.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns what was read, in one line.
    pub fn summary(&self) -> String {
        if self.printed == self.dumps {
            return format!(
                "{} of a log, {}",
                count_text(self.dumps, "rank"),
                count_text(self.records, "record")
            );
        }
        let of = if self.dumps == self.world {
            String::new()
        } else {
            format!(" of {}", count_text(self.world, "rank"))
        };
        format!("{}{of}, {}", count_text(self.dumps, "dump"), count_text(self.records, "record"))
    }

    /// Returns the result in one sentence.
    pub fn verdict(&self) -> String {
        match self.findings.first() {
            Some(finding) if self.is_hang => format!("hang: {}", finding.message),
            Some(finding) => format!("no hang is shown: {}", finding.message),
            None if self.records == 0 => {
                "no hang is shown: the dumps have no records: no call was made before they were written, or a \
                 `TORCH_FR_BUFFER_SIZE` (older: `TORCH_NCCL_TRACE_BUFFER_SIZE`) of 0 switches the recorder off"
                    .to_owned()
            }
            None if self.recorded < self.world => format!(
                "no hang is shown by the records of {} of {}, and the others have none: every call that all members made has completed",
                self.recorded,
                count_text(self.world, "rank")
            ),
            None if !self.proceeds => format!(
                "no hang is shown: every call that the records hold has completed, and the ring buffers of {} have lost calls that may not have",
                count_text(self.cut, "rank")
            ),
            None => "the records show no hang: every call that all members made has completed".to_owned(),
        }
    }
}

/// The maximum number of notes about `pg_status`.
const MAX_STATUS_NOTES: usize = 4;

/// Explains the dumps of a job.
pub fn report(dumps: &Dumps) -> Report {
    let unreadable: Vec<Rank> = dumps.skipped.iter().map(|it| it.rank).collect();
    let job = Job::new(&dumps.records, &unreadable);
    let analysis = analyse(&job);
    let mut findings = Vec::new();
    let mut notes = dumps.notes.clone();
    if let Some((cause, rest)) = analysis.causes.split_first() {
        let mut finding = explain(&job, &analysis, cause);
        let later = rest.iter().filter(|it| is_fault(it));
        let later: Vec<String> = later
            .map(|it| explain(&job, &analysis, it).message)
            .filter(|it| *it != finding.message)
            .collect();
        if is_fault(cause) && !later.is_empty() {
            let more =
                if later.len() > 1 { format!(", and {} more", later.len() - 1) } else { String::new() };
            finding.notes.push(format!("what happened after it, perhaps because of it: {}{more}", later[0]));
        }
        if !is_fault(cause) {
            add_hosts(&dumps.hosts, &analysis, &mut finding);
        }
        findings.push(finding);
    }
    if findings.is_empty() {
        let has_none = || dumps.records.ranks.iter().all(|it| it.records.is_empty());
        findings.extend(messages(&dumps.hosts).or_else(|| ended(&dumps.hosts).filter(|_| has_none())));
    }
    findings.extend(analysis.completed.iter().map(|it| explain_completed(&job, it)));
    // A job that the watchdog of one rank ends hangs, whatever the cause is.
    let is_printed = dumps.hosts.values().any(|it| it.timed_out);
    let is_given_up = || analysis.stalls.iter().any(|it| it.is_given_up(&job));
    let is_timed_out = !analysis.causes.is_empty() && (is_printed || is_given_up());
    let is_error = |it: &Finding| it.code.severity() == Severity::Error;
    let is_hang = findings.iter().any(is_error) || is_timed_out;
    let logs = &dumps.records.ranks;
    let cut = logs.iter().filter(|it| it.is_cut()).count();
    if cut > 0 {
        notes.push(format!("the ring buffers of {} have overwritten older records", count_text(cut, "rank")));
    }
    let printed: Vec<Rank> = logs.iter().filter(|it| it.from_log).map(|it| it.rank).collect();
    if !printed.is_empty() {
        notes.push(format!(
            "of {} there are only the lines of the watchdog: `TORCH_FR_BUFFER_SIZE=20000` (before 2.8 `TORCH_NCCL_TRACE_BUFFER_SIZE`) and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` make dumps of all calls; \"last enqueued\" is set when NCCL's call has returned, so that a rank may be in the next one",
            ranks_text(&printed)
        ));
    }
    if logs.iter().any(|it| it.only_active && !it.from_log) {
        notes.push(
            "the dumps hold only calls that have not completed (`TORCH_INCLUDE_ONLY_ACTIVE`)".to_owned(),
        );
    }
    notes.extend(earlier::note(logs));
    // Where records are missing, the status says more.
    let is_undecided = findings.iter().any(|it| it.code == Code::HangUndecided);
    if is_undecided || logs.iter().any(|it| it.records.is_empty() || !shows_completion(&job, it)) {
        notes.extend(status_notes(logs));
    }
    let has_none =
        logs.iter().any(|it| !it.records.is_empty() && !it.from_log) && !logs.iter().any(|it| it.has_stacks);
    if has_none {
        notes.push("the dumps have no stacks, so there are no source lines: JSON of PyTorch never has them, pickles have".to_owned());
    }
    let open = logs.iter().filter(|it| !shows_completion(&job, it)).count();
    let recorded = logs.iter().filter(|it| !it.records.is_empty()).count();
    Report {
        proceeds: findings.is_empty() && open == 0 && recorded == job.world.len(),
        findings,
        is_hang,
        cut: open,
        rows: rows(&job, &analysis),
        world: job.world.len(),
        dumps: logs.len(),
        printed: printed.len(),
        recorded,
        records: logs.iter().map(|it| it.records.len()).sum(),
        notes,
    }
}

/// Says what is known of the hosts of ranks that wait in no recorded call.
fn add_hosts(hosts: &Hosts, analysis: &Analysis, finding: &mut Finding) {
    let waits = |rank: &Rank| analysis.stalls.iter().any(|it| it.waiting.iter().any(|it| it.rank == *rank));
    let others = hosts.iter().filter(|it| !waits(it.0));
    let mut known: Vec<(bool, Rank, String)> =
        others.filter_map(|(rank, it)| Some((it.end.is_none(), *rank, it.text(*rank)?))).collect();
    known.sort();
    let Some((_, rank, text)) = known.first() else { return };
    finding.message.push_str(&format!("; {text}"));
    if finding.ranks.is_empty() && known.len() == 1 {
        finding.ranks.push(*rank);
    }
    finding.notes.extend(known.iter().skip(1).take(MAX_HOSTS).map(|it| it.2.clone()));
}

/// The hosts that notes tell of.
const MAX_HOSTS: usize = 8;

/// Returns what is known of hosts where no call is seen to wait.
fn ended(hosts: &Hosts) -> Option<Finding> {
    let of_end = |it: &(&Rank, &Host)| it.1.end.is_some();
    let ended: Vec<Rank> = hosts.iter().filter(of_end).map(|it| *it.0).collect();
    // Ranks at one place are one.
    let mut places: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    for (rank, it) in hosts.iter().filter(|it| ended.is_empty() || of_end(it)) {
        // Of a host whose watchdog alone has printed something, there is nothing to tell.
        if let Some(text) = it.end.clone().or_else(|| it.at.clone()) {
            places.entry(text).or_default().push(*rank);
        }
    }
    let texts: Vec<String> = places
        .iter()
        .map(|(text, ranks)| {
            format!(
                "{} {} {text}",
                ranks_text(ranks),
                match ranks.len() {
                    _ if !ended.is_empty() => "",
                    1 => "is",
                    _ => "are",
                }
            )
            .replace("  ", " ")
        })
        .collect();
    (!texts.is_empty()).then(|| Finding {
        code: Code::RankLate,
        message: format!("the files name no call that waits; {}", grammar::list_text(texts.iter().map(String::as_str), MAX_HOSTS, "and")),
        ranks: ended,
        labels: Vec::new(),
        notes: Vec::new(),
        help: "dumps of the flight recorder (`TORCH_FR_BUFFER_SIZE=20000`) or lines of its watchdog show which calls wait".to_owned(),
    })
}

/// Returns the sends and receives that timed out by lines that do not name the other ranks.
fn messages(hosts: &Hosts) -> Option<Finding> {
    let open: Vec<(Rank, &String)> =
        hosts.iter().filter_map(|it| Some((*it.0, it.1.message.as_ref()?))).collect();
    let texts: Vec<String> = open.iter().map(|(rank, it)| format!("rank {rank} in {it}")).collect();
    (!open.is_empty()).then(|| Finding {
        code: Code::HangUnknown,
        message: format!(
            "sends and receives timed out, and their lines do not name the other ranks: {}",
            grammar::list_text(texts.iter().map(String::as_str), MAX_HOSTS, "and")
        ),
        ranks: Vec::new(),
        labels: Vec::new(),
        notes: Vec::new(),
        help: "if each rank receives first, none sends: post both in one `batch_isend_irecv`, or let one side send first; dumps \
               (`TORCH_FR_BUFFER_SIZE=20000`) name the other ranks"
            .to_owned(),
    })
}

/// Whether all calls of a rank have completed, also those whose records are lost, if all of its records have: NCCL completes the collectives of a
/// group in their order.
fn shows_completion(job: &Job<'_>, log: &RankLog) -> bool {
    let is_shown = |group: &GroupId| {
        let about = job.records.group(*group);
        let is_one = about.members.as_ref().is_some_and(|it| it.len() == 1);
        let last = log.records.iter().rev().find(|it| it.group == *group && it.is_collective());
        let is_unused = || !log.status.is_empty() && log.status.iter().all(|it| it.enqueued <= it.completed);
        is_one
            || match last {
                Some(last) => {
                    last.done
                        && about.backend.starts_with("nccl")
                        && !lost_messages(job.records, log.rank, *group)
                }
                None => !log.records.iter().any(|it| it.group == *group) && is_unused(),
            }
    };
    !log.is_cut() || log.groups.iter().all(is_shown)
}

/// Says what `pg_status` shows: the last operation that each rank has enqueued in a group, if they differ, and the ranks that have no records
/// but wait.
fn status_notes(logs: &[RankLog]) -> Vec<String> {
    let mut enqueued: BTreeMap<u32, BTreeMap<i64, Vec<Rank>>> = BTreeMap::new();
    let mut waiting: BTreeMap<(u32, i64, i64), Vec<Rank>> = BTreeMap::new();
    for (log, it) in logs.iter().flat_map(|log| log.status.iter().map(move |it| (log, it))) {
        enqueued.entry(it.group).or_default().entry(it.enqueued).or_default().push(log.rank);
        if log.records.is_empty() && it.enqueued > it.completed {
            waiting.entry((it.group, it.enqueued, it.completed)).or_default().push(log.rank);
        }
    }
    let differ = enqueued.into_iter().filter(|it| it.1.len() > 1);
    let differ = differ.map(|(group, by_last)| {
        let last: Vec<String> =
            by_last.iter().rev().map(|(last, ranks)| format!("#{last} on {}", ranks_text(ranks))).collect();
        format!(
            "`pg_status` counts all operations, also those without a record: the last one enqueued in group {group} is {}",
            grammar::list_text(last.iter().map(String::as_str), 4, "and")
        )
    });
    let waiting = waiting.into_iter().map(|((group, last, done), ranks)| {
        format!(
            "{} kept no records, but by `pg_status` #{last} of group {group} is enqueued and #{done} is the last one that completed",
            ranks_text(&ranks)
        )
    });
    differ.chain(waiting).take(MAX_STATUS_NOTES).collect()
}

/// Whether a cause is a fault of the program, not a rank that is gone or late.
fn is_fault(cause: &Cause) -> bool {
    !matches!(
        cause,
        Cause::Missing { .. }
            | Cause::Lost { .. }
            | Cause::Late { .. }
            | Cause::Unknown { .. }
            | Cause::Cycle { is_proven: false, .. }
    )
}

/// Returns the table of ranks: those that wait first, and of one state the rows of many ranks first.
fn rows(job: &Job<'_>, analysis: &Analysis) -> Vec<RankRow> {
    let mut heads: BTreeMap<Rank, Vec<Call>> = BTreeMap::new();
    for queue in &job.queues {
        for lane in &queue.lanes {
            let head = lane.head.and_then(|it| job.call_at(lane, it));
            head.into_iter().for_each(|it| heads.entry(it.rank).or_default().push(it));
        }
    }
    for call in analysis.stalls.iter().flat_map(|it| &it.waiting) {
        let calls = heads.entry(call.rank).or_default();
        if !calls.contains(call) {
            calls.push(*call);
        }
    }
    let is_stalled = !analysis.stalls.is_empty();
    let mut rows: BTreeMap<(u8, String, String, String), RankRow> = BTreeMap::new();
    for rank in &job.world {
        let log = job.records.log(*rank);
        let last =
            log.and_then(|it| it.records.len().checked_sub(1)).map(|at| Call { rank: *rank, at: at as u32 });
        let first = heads.get(rank).and_then(|it| it.iter().min_by_key(|it| it.at)).copied();
        let (order, state, call) = match (log, first) {
            (None, _) => (3, "no dump", None),
            (Some(_), Some(call)) => (0, "waits", Some(call)),
            (Some(_), None) if is_stalled => (1, "idle", last),
            (Some(_), None) => (2, "done", last),
        };
        let open = log.map_or(0, |it| it.records.iter().filter(|it| !it.done).count());
        let open = if first.is_some() { open } else { 0 };
        let (name, at, position) = call.map(|it| describe(job, it)).unwrap_or_default();
        let key = (order, name.clone(), at.clone(), position.clone());
        let row = rows.entry(key).or_insert_with(|| RankRow {
            ranks: Vec::new(),
            state,
            call: name,
            place: at,
            position,
            open: 0,
        });
        row.ranks.push(*rank);
        row.open = row.open.max(open);
    }
    let mut rows: Vec<(u8, RankRow)> = rows.into_iter().map(|(key, row)| (key.0, row)).collect();
    // Few ranks in one state are what one looks for, but the many say what is normal.
    rows.sort_by_key(|(order, row)| (*order, Reverse(row.ranks.len())));
    rows.into_iter().map(|it| it.1).collect()
}

/// Returns the name of a call, its place and its position, alike for calls that only differ in the peer or in the group of one kind.
fn describe(job: &Job<'_>, call: Call) -> (String, String, String) {
    let record = job.record(call);
    let group = job.records.group(record.group);
    let tensors = operands(job, call);
    let name = format!("{} {tensors}", call_name(job.records, record)).trim().to_owned();
    let group = format!("group {}", group.own_description().unwrap_or(&group.name));
    let position = match record.peer {
        Peer::None => format!("#{} of {group}", record.seq),
        Peer::Any => format!("any rank of {group}"),
        Peer::Rank(_) => group,
    };
    (name, place(job, call).unwrap_or_default(), position)
}

/// Returns the lines of a table of ranks.
pub fn table(report: &Report) -> Vec<String> {
    let head = ["ranks", "state", "call", "place", "position", "open"].map(str::to_owned);
    let mut lines = vec![head];
    for row in report.rows.iter().take(MAX_ROWS) {
        let open = if row.open == 0 { String::new() } else { row.open.to_string() };
        let ranks = format!("{} ({})", numbers_text(&row.ranks), row.ranks.len());
        let ranks = if row.ranks.len() < 4 { numbers_text(&row.ranks) } else { ranks };
        lines.push([
            ranks,
            row.state.to_owned(),
            row.call.clone(),
            row.place.clone(),
            row.position.clone(),
            open,
        ]);
    }
    let width = |column: usize| lines.iter().map(|it| it[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let pad =
        |(text, width): (&String, &usize)| format!("{text}{}", " ".repeat(width - text.chars().count()));
    let line = |it: &[String; 6]| {
        it.iter().zip(&widths).map(pad).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut table: Vec<String> = lines.iter().map(line).collect();
    let more: usize = report.rows.iter().skip(MAX_ROWS).map(|it| it.ranks.len()).sum();
    if more > 0 {
        table.push(format!(
            "… {} in {} other states",
            count_text(more, "more rank"),
            report.rows.len() - MAX_ROWS
        ));
    }
    table
}
