use std::fmt::Write as _;

use hir_hang::unpack_gzip;

use super::{kineto::parse, *};

/// A trace of a rank: a product, and an all-reduce that begins at `at` and ends at 1000.
fn trace(rank: usize, at: f64) -> String {
    let dur = 1000.0 - at;
    format!(
        r#"{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": [
        {{"ph": "X", "cat": "kernel", "name": "ampere_gemm", "pid": 0, "tid": 7, "ts": 700.0, "dur": 200.0, "args": {{"stream": 7}}}},
        {{"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1, "dur": 5000, "args": {{"External id": 3}}}},
        {{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ts": {at}, "dur": {dur}, "args": {{
            "stream": 20, "Collective name": "allreduce", "In msg nelems": 1048576, "dtype": "BFloat16", "Process Group Name": "0",
            "Process Group Description": "default_pg", "Group size": 2}}}}]}}"#
    )
}

fn job(texts: &[String]) -> Result<Job, TraceError> {
    let traces: Result<Vec<RankTrace>, _> =
        texts.iter().enumerate().map(|(number, it)| parse(it, number)).collect();
    Ok(analyze(&traces?))
}

#[test]
fn a_long_kernel_is_a_transfer_and_a_wait() -> Result<(), TraceError> {
    let job = job(&[trace(0, 89.0), trace(1, 740.0)])?;
    let kind = &job.kinds[0];
    assert_eq!((job.kinds.len(), kind.count, kind.bytes), (1, 1, Some(2 << 20)));
    assert_eq!((kind.kernel, kind.transfer, kind.skew()), (911.0, 260.0, 651.0));
    assert_eq!((kind.last, kind.hidden, kind.beside.as_deref()), (1, 200.0, Some("ampere_gemm")));
    assert_eq!(kind.group, "0 (default_pg)");
    assert_eq!(job.ranks, [(0, 911.0, 200.0), (1, 260.0, 160.0)]);
    assert!(
        lines(&job)[2].contains("911.0       260.0       651.0       711.0  rank 1 (1×)"),
        "{:?}",
        lines(&job)
    );
    Ok(())
}

#[test]
fn traces_of_different_lengths_are_compared_from_the_end() -> Result<(), TraceError> {
    let early = trace(0, 100.0).replacen(
        "\"traceEvents\": [",
        "\"traceEvents\": [{\"cat\": \"kernel\", \"name\": \"ncclDevKernel_AllReduce_Sum\", \"ts\": 0, \"dur\": 50, \"args\": {\"Process Group Name\": \"0\", \"Process Group Description\": \"default_pg\", \"Collective name\": \"allreduce\"}},",
        1,
    );
    let job = job(&[early, trace(1, 600.0)])?;
    assert_eq!((job.kinds.len(), job.kinds[0].transfer, job.kinds[0].skew()), (1, 400.0, 500.0));
    assert!(job.notes[0].contains("[2, 1] collectives"), "{:?}", job.notes);
    Ok(())
}

#[test]
fn ranks_without_a_trace_are_named() -> Result<(), TraceError> {
    let notes = |texts: &[String]| job(texts).map(|it| it.notes);
    let of_three = |at: f64| {
        trace(0, at).replace("\"Group size\": 2", "\"Group size\": 3").replace("\"rank\": 0", "\"rank\": 2")
    };
    let said = "group 0 (default_pg): traces of";
    let of = |it: &str| vec![format!("{said} {it}: transfers may contain waits for the others")];
    assert_eq!(notes(&[trace(0, 89.0)])?, of("1 of its 2 ranks"));
    assert_eq!(notes(&[of_three(89.0), trace(1, 700.0)])?, of("2 of its 3 ranks"));
    assert_eq!(notes(&[trace(0, 89.0).replace("\"Group size\": 2", "\"seq\": 2")])?, of("1 of its ranks"));
    Ok(())
}

#[test]
fn what_is_no_trace_is_refused() {
    let message = |text: &str| parse(text, 0).err().map_or(String::new(), |it| it.to_string());
    assert!(message("{}").contains("export_chrome_trace"));
    assert!(message("{\"traceEvents\": []}").contains("ProfilerActivity.CUDA"));
    let many = format!("{{\"traceEvents\": [{}{{}}]}}", "{\"cat\": \"kernel\"},".repeat(1_000_001));
    assert!(message(&many).contains("more than 1000000 events"));
}

/// Eight ranks with 100,000 kernels each.
#[test]
fn large_traces_are_linear() -> Result<(), TraceError> {
    let mut events = String::new();
    for number in 0..20_000 {
        let (at, name) = (
            f64::from(number) * 10.0,
            if number % 10 == 0 { "ncclDevKernel_AllGather_RING" } else { "gemm" },
        );
        let _ = write!(
            events,
            "{{\"cat\":\"kernel\",\"name\":\"{name}\",\"ts\":{at},\"dur\":12,\"args\":{{\"stream\":7}}}},"
        );
    }
    let text = format!("{{\"traceEvents\":[{}]}}", events.trim_end_matches(','));
    let job = job(&[text.clone(), text])?;
    assert_eq!(job.kinds[0].count, 2000);
    Ok(())
}

/// No damage of an export is a panic or has no end, and what is cut off is refused.
#[test]
fn damaged_exports_are_refused() -> std::io::Result<()> {
    let whole = unpack_gzip(include_bytes!("../../../tests/cases/timeline/h200-rank0.sqlite.gz"))?;
    let kernels = |bytes: &[u8]| read(bytes.to_vec(), 0).map(|it| it.iter().map(|it| it.kernels.len()).sum());
    assert_eq!(kernels(&whole).ok(), Some(126_usize));
    let (mut refused, mut places) = (0, std::collections::BTreeSet::new());
    for at in (0..whole.len()).step_by(211) {
        assert!(kernels(&whole[..at]).is_err(), "cut at {at}");
        for value in [0, 5, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Err(TraceError::Sqlite(damaged)) = kernels(&bytes) {
                refused += 1;
                places.insert(damaged.page);
            }
        }
    }
    assert!(refused > 50 && places.len() > 20, "{refused} at {places:?}");
    Ok(())
}

/// The same job in both formats, in files of one rank and in one of both: the figures are the same. An export has no sizes, names of groups
/// and files.
#[test]
fn an_export_shows_what_a_trace_shows() -> Result<(), Box<dyn std::error::Error>> {
    let figures = |files: &[&[u8]]| -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let mut traces = Vec::new();
        for it in files {
            traces.extend(read(unpack_gzip(it)?, traces.len())?);
        }
        let job = analyze(&traces);
        let posted = |it: &Kind| it.posted.as_deref().map(|it| it.split(' ').next().map(str::to_owned));
        let kind = |it: &Kind| {
            let times = [it.kernel, it.transfer, it.hidden].map(|it| format!("{it:.1}"));
            let who = (it.name.to_lowercase(), it.count, it.last, it.last_count);
            format!("{who:?} {times:?} {:?} {:?}", it.beside, posted(it))
        };
        let rank = |it: &(usize, f64, f64)| format!("{} {:.1} {:.1}", it.0, it.1, it.2);
        Ok(job.kinds.iter().map(kind).chain(job.ranks.iter().map(rank)).chain(job.notes.clone()).collect())
    };
    let kineto = figures(&[
        include_bytes!("../../../tests/cases/timeline/h200-rank0.json.gz"),
        include_bytes!("../../../tests/cases/timeline/h200-rank1.json.gz"),
    ])?;
    let processes = figures(&[
        include_bytes!("../../../tests/cases/timeline/h200-rank0.sqlite.gz"),
        include_bytes!("../../../tests/cases/timeline/h200-rank1.sqlite.gz"),
    ])?;
    let one = figures(&[include_bytes!("../../../tests/cases/timeline/h200.sqlite.gz")])?;
    assert_eq!(kineto.len(), 4);
    assert_eq!((&processes, &one), (&kineto, &kineto));
    Ok(())
}
