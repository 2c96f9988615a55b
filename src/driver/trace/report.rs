//! Prints what the traces of a job show.

use grammar::count_text;
use serde_json::{Value, json};

use super::{Job, Kind, Row, compare::Times};

/// The number of kinds that are listed.
const LISTED: usize = 20;
/// The number of letters of a kernel that are shown.
const SHOWN: usize = 48;

impl Kind {
    /// How long the longest kernels take beyond the transfers, in microseconds.
    pub fn skew(&self) -> f64 {
        self.kernel - self.transfer
    }
}

/// Returns the report, one line a string.
pub fn lines(job: &Job) -> Vec<String> {
    let mut lines = vec![
        "collectives of the traces; times are microseconds of GPUs, as they were measured:".to_owned(),
        format!(
            "  {:<20}  {:>10}  {:>6}  {:>10}  {:>10}  {:>10}  {:>10}  {:<16}  group, what hides it, and where it is posted",
            "collective", "MiB", "count", "kernel", "transfer", "skew", "exposed", "last"
        ),
    ];
    for it in job.kinds.iter().take(LISTED) {
        let bytes = mebibytes(it.bytes);
        let each = |time: f64| time / it.count as f64;
        let last = format!("rank {} ({}×)", it.last, it.last_count);
        let posted = it.posted.as_ref().map_or(String::new(), |it| format!("; in {it}"));
        let beside = it.beside.as_ref().map_or_else(
            || "nothing".to_owned(),
            |name| {
                format!(
                    "{}{}",
                    name.chars().take(SHOWN).collect::<String>(),
                    if name.len() > SHOWN { "…" } else { "" }
                )
            },
        );
        lines.push(format!(
            "  {:<20}  {bytes:>10}  {:>6}  {:>10.1}  {:>10.1}  {:>10.1}  {:>10.1}  {last:<16}  {}, {beside}{posted}",
            it.name,
            it.count,
            each(it.kernel),
            each(it.transfer),
            each(it.skew()),
            each(it.kernel - it.hidden),
            it.group
        ));
    }
    if let Some(more) = job.kinds.len().checked_sub(LISTED).filter(|it| *it > 0) {
        lines.push(format!("  {more} further kinds are exposed for less time"));
    }
    lines.push("  kernel: on the rank that waits longest; transfer: on the rank that comes last; skew: what the others wait for it".to_owned());
    for (rank, communication, hidden) in &job.ranks {
        let part = if *communication > 0.0 { 100.0 * hidden / communication } else { 0.0 };
        lines.push(format!(
            "  rank {rank}: communication {communication:.1} µs, of which {hidden:.1} µs ({part:.0}%) hidden behind computation and {:.1} µs exposed",
            communication - hidden
        ));
    }
    lines
}

/// Returns a size as MiB.
fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |it| format!("{:.2}", it as f64 / 1_048_576.0))
}

/// Returns the communications of a program beside those of traces, one line a string. The times of the program are those of `source`.
pub fn comparison_lines(rows: &[Row], rank: usize, source: &str) -> Vec<String> {
    let mut lines = vec![
        format!("communications of rank {rank}, measured, then {source}; microseconds of each:"),
        format!(
            "  {:>5}  {:<20}  {:>8}  {:>5}  {:>8}  {:>8}  {:>8}  {:>8}  {:>5}  {:>8}  {:>8}  {:>8}",
            "line",
            "communication",
            "MiB",
            "count",
            "kernel",
            "transfer",
            "hidden",
            "exposed",
            "count",
            "transfer",
            "hidden",
            "exposed"
        ),
    ];
    let each = |it: &Times| {
        let each =
            |time: f64| if it.count == 0 { "-".to_owned() } else { format!("{:.1}", time / it.count as f64) };
        [it.kernel, it.transfer, it.hidden, it.kernel - it.hidden].map(each)
    };
    for it in rows {
        let line = it.line.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let [kernel, transfer, hidden, exposed] = each(&it.measured);
        let [_, estimate, estimate_hidden, estimate_exposed] = each(&it.estimated);
        let posted = it.posted.as_ref().map_or(String::new(), |it| format!("  in {it}"));
        lines.push(format!(
            "  {line:>5}  {:<20}  {:>8}  {:>5}  {kernel:>8}  {transfer:>8}  {hidden:>8}  {exposed:>8}  {:>5}  {estimate:>8}  {estimate_hidden:>8}  {estimate_exposed:>8}{posted}",
            it.name, mebibytes(it.bytes), it.measured.count, it.estimated.count
        ));
    }
    let alone = |is_alone: fn(&Row) -> bool, of: &str, in_other: &str| {
        let count =
            rows.iter().filter(|it| is_alone(it)).map(|it| it.measured.count + it.estimated.count).sum();
        (count > 0).then(|| {
            format!(
                "  {} of the {of} {} no partner in the {in_other}",
                count_text(count, "communication"),
                if count == 1 { "has" } else { "have" }
            )
        })
    };
    lines.extend(alone(|it| it.measured.count == 0, "program", "traces"));
    lines.extend(alone(|it| it.estimated.count == 0, "traces", "program"));
    lines
}

/// Returns the same as JSON: times in microseconds, those of a row all together.
pub fn comparison_json(rows: &[Row]) -> Value {
    let times = |it: &Times| json!({"count": it.count, "kernel": it.kernel, "transfer": it.transfer, "hidden": it.hidden, "exposed": it.kernel - it.hidden});
    let row = |it: &Row| {
        json!({
            "line": it.line, "communication": it.name, "bytes": it.bytes, "posted": it.posted, "measured": times(&it.measured),
            "estimated": times(&it.estimated),
        })
    };
    rows.iter().map(row).collect()
}

/// Returns the figures as JSON: times in microseconds, those of a kind all together.
pub fn json(job: &Job) -> Value {
    let kind = |it: &Kind| {
        json!({
            "collective": it.name, "group": it.group, "bytes": it.bytes, "count": it.count, "kernel": it.kernel, "transfer": it.transfer,
            "skew": it.skew(), "hidden": it.hidden, "last": it.last, "last_count": it.last_count, "beside": it.beside, "posted": it.posted,
        })
    };
    let rank = |(rank, communication, hidden): &(usize, f64, f64)| json!({"rank": rank, "communication": communication, "hidden": hidden});
    json!({
        "collectives": job.kinds.iter().map(kind).collect::<Vec<_>>(),
        "ranks": job.ranks.iter().map(rank).collect::<Vec<_>>(),
        "notes": job.notes,
    })
}
