//! Reads what `nsys export --type sqlite` writes of a profile of Nsight Systems, for all ranks that it has
//! ([the tables](https://docs.nvidia.com/nsight-systems/UserGuide/index.html)).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use super::{
    ranks::{Call, Kernel, RankTrace, Texts, TraceError, short_name},
    sqlite::{Database, Value},
};

/// The type of ranges that a thread pushes and pops.
const PUSHED: i64 = 59;
/// What the ranges of communication libraries begin with: they say what, not where.
const LIBRARIES: &[&str] = &["nccl", "c10d::"];

/// When something of a thread begins and ends: a range with its text, or a launch by process and correlation.
type Event = (i64, i64, Result<String, (i64, i64)>);

/// A kernel, times in nanoseconds.
struct Row {
    begin: i64,
    end: i64,
    stream: i64,
    launch: (i64, i64),
    name: i64,
}

/// Reads an export. A rank is a device of a process; `first` is the number of the first one.
///
/// # Errors
/// The file is damaged, or has no kernels.
pub fn parse(bytes: &[u8], first: usize) -> Result<Vec<RankTrace>, TraceError> {
    let database = Database::open(bytes)?;
    let mut ranks: BTreeMap<(i64, i64), Vec<Row>> = BTreeMap::new();
    let columns =
        ["start", "end", "deviceId", "globalPid", "streamId", "correlationId", "demangledName", "shortName"];
    database.rows("CUPTI_ACTIVITY_KIND_KERNEL", &columns, &mut |of| {
        let [Some(begin), Some(end), device, process, stream, correlation, long, short] =
            std::array::from_fn(|at| of[at].integer())
        else {
            return;
        };
        let (device, process) = (device.unwrap_or(0), process.unwrap_or(0));
        let (stream, launch) = (stream.unwrap_or(0), (process, correlation.unwrap_or(-1)));
        let name = long.or(short).unwrap_or(-1);
        ranks.entry((device, process)).or_default().push(Row { begin, end, stream, launch, name });
    })?;
    if ranks.is_empty() {
        return Err(TraceError::NoKernelTable);
    }
    let mut texts: HashMap<i64, String> = HashMap::new();
    database.rows("StringIds", &["id", "value"], &mut |of| {
        texts.extend(of[0].integer().zip(of[1].text()).map(|(id, it)| (id, it.to_owned())));
    })?;
    let text = |id: i64| texts.get(&id).map_or("", String::as_str);
    let is_collective = |it: &Row| text(it.name).starts_with("nccl");
    let calls = ranks.values().flatten().filter(|it| is_collective(it)).map(|it| it.launch).collect();
    let posted = posted_by(&database, &texts, calls)?;
    let mut shared = Texts::default();
    let trace = |(rank, rows): (usize, Vec<Row>)| {
        // Numbers of streams differ between the ranks of a process, their order does not.
        let streams: BTreeSet<i64> = rows.iter().filter(|it| is_collective(it)).map(|it| it.stream).collect();
        let kernel = |it: Row| {
            let name = shared.share(text(it.name));
            let collective = is_collective(&it).then(|| Call {
                name: shared.share(short_name(&name)),
                group: shared.share(&format!("of stream {}", streams.range(..it.stream).count() + 1)),
                size: None,
                bytes: None,
                posted: posted.get(&it.launch).map(|it| shared.share(it)),
                line: None,
            });
            let [begin, end] = [it.begin, it.end].map(|it| it as f64 / 1000.0);
            Kernel { name, begin, end, collective: collective.map(Box::new) }
        };
        let mut kernels: Vec<Kernel> = rows.into_iter().map(kernel).collect();
        kernels.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        RankTrace { rank: first + rank, kernels }
    };
    Ok(ranks.into_values().enumerate().map(trace).collect())
}

/// Returns the range of NVTX within which each of these kernels is launched, by process and correlation: the innermost one that no library
/// pushes.
fn posted_by(
    database: &Database<'_>,
    texts: &HashMap<i64, String>,
    mut calls: BTreeSet<(i64, i64)>,
) -> Result<HashMap<(i64, i64), String>, TraceError> {
    // By thread: when ranges begin and end with their texts, and launches.
    let mut threads: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
    // The upper bits of a thread are those of its process.
    let process = |thread: i64| thread & !0xff_ffff;
    for table in ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"] {
        database.rows(table, &["start", "globalTid", "correlationId"], &mut |of| {
            let [Some(at), Some(thread), Some(number)] = std::array::from_fn(|at| of[at].integer()) else {
                return;
            };
            let launch = (process(thread), number);
            if calls.remove(&launch) {
                threads.entry(thread).or_default().push((at, at, Err(launch)));
            }
        })?;
    }
    let columns = ["start", "end", "eventType", "globalTid", "text", "textId"];
    database.rows("NVTX_EVENTS", &columns, &mut |of| {
        let [Some(begin), Some(end), Some(PUSHED), Some(thread)] = std::array::from_fn(|at| of[at].integer())
        else {
            return;
        };
        let named = of[5].integer().and_then(|it| texts.get(&it)).map(String::as_str);
        let Some(text) = Value::text(of[4]).or(named) else { return };
        if let Some(all) =
            threads.get_mut(&thread).filter(|_| !LIBRARIES.iter().any(|it| text.starts_with(it)))
        {
            all.push((begin, end, Ok(text.to_owned())));
        }
    })?;
    let mut found = HashMap::new();
    for mut events in threads.into_values() {
        events.sort_by_key(|it| (it.0, Reverse(it.1)));
        let mut open: Vec<(i64, String)> = Vec::new();
        for (at, end, it) in events {
            open.retain(|it| it.0 >= at);
            match it {
                Ok(text) => open.push((end, text)),
                Err(launch) => found.extend(open.last().map(|it| (launch, it.1.clone()))),
            }
        }
    }
    Ok(found)
}
