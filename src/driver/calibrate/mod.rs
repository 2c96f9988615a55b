//! Measures the times of a machine: small programs, one for each time, run as hir-run runs any other program. `collectives` finds
//! the fastest algorithm of each collective with such programs.

pub mod collectives;
pub mod entries;
pub mod evidence;
pub mod exact;
pub mod layer;
pub mod programs;

use std::{cmp::Ordering, collections::BTreeMap, fs, io, path::Path};

use grammar::{count_text, diagnostic::Diagnostic, ir::Program, source::Source, span::LineIndex};
use hir_plan::{
    World,
    timeline::{
        machine::{Delay, FROM_MEMORY, Machine, Point, Run, Slowdown, Table, VERSION},
        work::{Work, WorkKind, work_of},
    },
};
use hir_process::atomic_file;
use passes::{PassCall, PipelineError, Settings, Verify};
use serde_json::Value;

use entries::{Entry, Meaning};
use programs::{Call, repeated_call};

/// Writes the programs and the file of command lines for `hir-run --batch`.
///
/// # Errors
/// A file cannot be written.
pub fn write_entries(folder: &Path, entries: &[Entry]) -> io::Result<()> {
    write_batch(
        folder,
        entries.iter().map(|it| {
            let passes =
                if it.passes.is_empty() { String::new() } else { format!("--passes '{}' ", it.passes) };
            let [runs, warmup] = it.runs;
            (&it.text[..], format!("{passes}-G -n {runs} -w {warmup}"))
        }),
    )
}

/// Writes programs, and the file of their command lines, `batch.txt`: the text of each, and its options. All get random inputs.
///
/// # Errors
/// A file cannot be written.
fn write_batch<'t>(folder: &Path, programs: impl Iterator<Item = (&'t str, String)>) -> io::Result<()> {
    let mut lines = String::new();
    for (number, (text, options)) in programs.enumerate() {
        let program = folder.join(format!("{number}.hir"));
        atomic_file::write(&program, text.as_bytes())?;
        let (program, json) = (program.display(), folder.join(format!("{number}.json")));
        lines += &format!("'{program}' {options} --inputs random -J '{}'\n", json.display());
    }
    atomic_file::write(&folder.join("batch.txt"), lines.as_bytes())
}

/// Returns what hir-run has written about a program of `write_batch`, or null: it did not run, or the folder has another
/// program of this number, which another version of hir has written.
fn result_of(folder: &Path, number: usize, text: &str) -> Value {
    let is_same = fs::read_to_string(folder.join(format!("{number}.hir"))).is_ok_and(|it| it == text);
    let result = fs::read_to_string(folder.join(format!("{number}.json"))).ok().filter(|_| is_same);
    result.and_then(|it| serde_json::from_str::<Value>(&it).ok()).unwrap_or_default()
}

/// The times of a program in microseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    median: f64,
    least: f64,
}

/// What was measured, and what could not be.
pub struct Measured {
    /// The machine.
    pub machine: Machine,
    /// For each program without a time: what it would have measured, and its verdict.
    pub missing: Vec<String>,
}

/// Why times cannot be added to those of a base: the result would describe no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherMachine {
    /// They are those of another number of ranks.
    #[error("it has the times of {}, and those of {measured} are measured", count_text(*.base, "rank"))]
    Ranks {
        /// Number of ranks of the base.
        base: usize,
        /// Number of ranks of the times.
        measured: usize,
    },
    /// They are those of another GPU.
    #[error("it has the times of `{base}`, and those of `{measured}` are measured")]
    Gpu {
        /// The GPU of the base.
        base: String,
        /// The GPU of the times.
        measured: String,
    },
}

/// Tests whether times of a GPU on some ranks can be added to those of a base. A GPU whose name is not known, an empty one, may be that of
/// the base.
///
/// # Errors
/// The base is another machine.
pub fn is_same_machine(base: &Machine, gpu: &str, ranks: usize) -> Result<(), OtherMachine> {
    if base.ranks != ranks {
        return Err(OtherMachine::Ranks { base: base.ranks, measured: ranks });
    }
    if !gpu.is_empty() && base.gpu != gpu {
        return Err(OtherMachine::Gpu { base: base.gpu.clone(), measured: gpu.to_owned() });
    }
    Ok(())
}

/// Adds the times of another measurement of the same machine, which replace those of the same work.
///
/// # Errors
/// It is another machine.
pub fn add(machine: &mut Machine, measured: Machine) -> Result<(), OtherMachine> {
    is_same_machine(machine, &measured.gpu, measured.ranks)?;
    for (name, Table(points)) in measured.tables {
        let Table(known) = machine.tables.entry(name).or_default();
        known.retain(|it| points.iter().all(|new| new.at != it.at));
        known.extend(points);
        known.sort_by(|a, b| a.at.partial_cmp(&b.at).unwrap_or(Ordering::Equal));
    }
    machine.accuracy = evidence::accuracy(&evidence::compare(machine));
    Ok(())
}

/// Reads the results of the programs of `write_entries`. A program without a result is named in `missing`.
pub fn read_results(folder: &Path, entries: &[Entry], ranks: usize, date: String) -> Measured {
    let mut machine = Machine {
        version: VERSION,
        date,
        hir: env!("CARGO_PKG_VERSION").to_owned(),
        ranks,
        ..Machine::default()
    };
    let mut missing = Vec::new();
    let (mut switching, mut exchanging, mut together, mut chunks, mut sustained) =
        (None, Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut least, mut launch) = (0.0, 0.0);
    let mut tables = Tables::new();
    for (number, entry) in entries.iter().enumerate() {
        let result = result_of(folder, number, &entry.text);
        describe(&mut machine, &result["machine"]);
        let time = |key: &str| result[key].as_f64();
        let Some((median, shortest)) = time("median_us").zip(time("min_us")) else {
            let verdict = result["verdict"].as_str().unwrap_or("not run");
            missing.push(format!("{}: {verdict}", entry.name()));
            continue;
        };
        let each = |calls: usize| {
            let each = |it: f64| (it - machine.run_us).max(0.1) / calls as f64;
            Times { median: each(median), least: each(shortest) }
        };
        match &entry.meaning {
            Meaning::Least => least = median,
            Meaning::Leasts(calls) => {
                let call = (median - least).max(0.0) / (calls.saturating_sub(1)).max(1) as f64;
                (machine.run_us, launch) = ((least - call).max(0.0), call);
            }
            Meaning::Alternating(calls) => {
                machine.event_us = (each(*calls).median - launch).max(0.0);
            }
            Meaning::Table(class, calls, place) => {
                match first_work(&entry.text, |it| it.class() == *class, ranks) {
                    Some(work) => {
                        let at = work.extents.iter().map(|it| *it as u64).collect();
                        let table = tables.entry(place.table(work.kind)).or_default();
                        table.entry(at).or_insert(each(*calls));
                    }
                    None => missing.push(format!("{}: its plan has no such work", entry.name())),
                }
            }
            Meaning::Switching(call, calls) => switching = Some((*call, each(*calls).median)),
            Meaning::Exchanging(pair, calls) => exchanging.push((*pair, each(*calls).least)),
            Meaning::Together(calls) => together.push((*calls, each(1).least)),
            Meaning::Chunks(calls, count) => chunks.push((*calls, *count, each(1).least)),
            Meaning::Sustained(call, calls) => sustained.push((*call, each(*calls).median)),
            Meaning::Run(layer) => machine.runs.push(Run {
                program: layer.to_string(),
                passes: entry.passes.to_owned(),
                us: median,
                least: shortest,
            }),
        }
    }
    complete(&mut tables);
    machine.tables = tables.into_iter().map(|(kind, points)| (kind, table(points))).collect();
    let work = |call: Call| first_work(&repeated_call(call, 1, ranks), |_| true, ranks);
    let time_of = |machine: &Machine, call: Call| work(call).and_then(|it| machine.microseconds(&it));
    if let Some((call, time)) = switching {
        let alone = time_of(&machine, call).map_or(time, |it| it + launch);
        machine.switch_us = rounded((time - alone).max(0.0) / 2.0);
    }
    // Copy engines have two times, from program to program one or the other in most of the runs, so the least times are compared.
    let mut fastest = machine.clone();
    fastest.tables.values_mut().flat_map(|it| &mut it.0).for_each(|it| it.us = it.least);
    for (pair, time) in exchanging {
        let [compute, exchange] = pair.map(|it| time_of(&fastest, it));
        let Some((behind, exchange)) = compute.zip(exchange) else { continue };
        if let Some(kind) = work(pair[1]).and_then(|it| it.contention()) {
            let us = rounded((time - behind - exchange - 2.0 * machine.switch_us).max(0.0));
            let delays = machine.exchange_us.entry(kind.name().to_owned()).or_default();
            delays.push(Delay { behind: rounded(behind), us });
        }
    }
    for delays in machine.exchange_us.values_mut() {
        delays.sort_by(|a, b| a.behind.total_cmp(&b.behind));
    }
    fastest.exchange_us.clone_from(&machine.exchange_us);
    for (calls, time) in together {
        if let Some((name, it)) = contention(&fastest, calls, time, ranks) {
            machine.contention.entry(name.to_owned()).or_default().push(it);
        }
    }
    for (call, time) in sustained {
        if let Some((work, alone)) = work(call).and_then(|it| Some((it.clone(), machine.microseconds(&it)?)))
        {
            let factor = rounded((time / alone).max(1.0));
            machine.sustained.push(Slowdown { at: work.extents.iter().product(), factor });
        }
    }
    // The delays of communications are known by now.
    let mut factors: Vec<(&str, f64, Vec<f64>)> = Vec::new();
    for (calls, count, time) in chunks {
        let [Some(product), Some(communication)] = calls.map(work) else { continue };
        let of_chunks = contention_of_chunks(&fastest, [&product, &communication], count, time);
        let (Some(factor), Some(kind)) = (of_chunks, communication.contention()) else { continue };
        let at = communication.extents.first().copied().unwrap_or(1.0);
        match factors.iter_mut().find(|it| (it.0, it.1) == (kind.name(), at)) {
            Some((.., known)) => known.push(factor),
            None => factors.push((kind.name(), at, vec![factor])),
        }
    }
    for (name, at, factors) in factors {
        let factor = rounded(factors.iter().sum::<f64>() / factors.len() as f64);
        machine.contention.entry(name.to_owned()).or_default().push(Slowdown { at, factor });
    }
    for points in machine.contention.values_mut().chain([&mut machine.sustained]) {
        points.sort_by(|a, b| a.at.total_cmp(&b.at));
    }
    (machine.run_us, machine.event_us) = (rounded(machine.run_us), rounded(machine.event_us));
    machine.accuracy = evidence::accuracy(&evidence::compare(&machine));
    Measured { machine, missing }
}

/// The times of each kind of work, by extents.
type Tables = BTreeMap<String, BTreeMap<Vec<u64>, Times>>;

/// Adds to each grid of products that read from memory what is the same without (`entries::from_memory`).
fn complete(tables: &mut Tables) {
    let grids: Vec<String> = tables.keys().filter(|it| it.ends_with(FROM_MEMORY)).cloned().collect();
    for name in grids {
        let same = name.strip_suffix(FROM_MEMORY).and_then(|it| tables.get(it)).cloned().unwrap_or_default();
        let grid = tables.entry(name).or_default();
        same.into_iter().for_each(|(at, it)| {
            grid.entry(at).or_insert(it);
        });
    }
}

fn table(points: BTreeMap<Vec<u64>, Times>) -> Table {
    let point = |(at, it): (Vec<u64>, Times)| Point {
        at: at.into_iter().map(|it| it as f64).collect(),
        us: rounded(it.median),
        least: rounded(it.least),
    };
    Table(points.into_iter().map(point).collect())
}

/// Rounds to nanoseconds, so that the file is short.
fn rounded(microseconds: f64) -> f64 {
    (microseconds * 1e3).round().max(1.0) / 1e3
}

/// Adds the names and versions of a result, which knows NCCL only if its program calls it.
fn describe(machine: &mut Machine, facts: &Value) {
    let Machine { gpu, driver, cublaslt, nccl, .. } = machine;
    for (to, key) in [(gpu, "gpu"), (driver, "driver"), (cublaslt, "cublaslt"), (nccl, "nccl")] {
        if let Some(text) = facts[key].as_str().filter(|_| to.is_empty()) {
            // The path of NCCL says nothing about the machine.
            text.split(" (").next().unwrap_or(text).clone_into(to);
        }
    }
}

/// Returns the factor by which a kernel that computes and a communication slow each other down, with the name of its points. While both
/// run, each progresses at 1 / factor of its speed: of two calls that take a and b alone, a ≥ b, the time of both is
/// b · factor + (a - b).
fn contention(
    machine: &Machine,
    calls: [(Call, usize); 2],
    time: f64,
    ranks: usize,
) -> Option<(&'static str, Slowdown)> {
    let works = calls.map(|(call, times)| {
        let work = first_work(&repeated_call(call, 1, ranks), |_| true, ranks)?;
        let alone = machine.microseconds(&work)? * times as f64;
        Some((work, alone))
    });
    let [Some((_, compute)), Some((work, communication))] = works else { return None };
    let (longer, shorter) = (compute.max(communication), compute.min(communication));
    let factor = rounded(1.0 + ((time - longer) / shorter).max(0.0));
    Some((work.contention()?.name(), Slowdown { at: *work.extents.first()?, factor }))
}

/// As `contention`, for chunks of a product and a communication of which each is beside the product of the next chunk: of two that take a
/// and b alone, a ≥ b, `count` chunks take the time of the first product, `count - 1` times b · factor + (a - b), and that of the last
/// communication.
fn contention_of_chunks(
    machine: &Machine,
    [product, communication]: [&Work; 2],
    count: usize,
    time: f64,
) -> Option<f64> {
    let compute = machine.microseconds(product)? + machine.microseconds_between(product, 0.0);
    let exchange =
        machine.microseconds(communication)? + machine.microseconds_between(communication, compute);
    let (longer, shorter) = (compute.max(exchange), compute.min(exchange));
    let beside = (count - 1) as f64;
    let lost = time - compute - exchange - beside * longer;
    Some(1.0 + (lost / (beside * shorter)).max(0.0))
}

/// Why a program has no plans after some passes.
#[derive(Debug)]
pub enum Refusal {
    /// A pass cannot rewrite it, or has a wrong option.
    Passes(Box<PipelineError>),
    /// The result of the passes cannot be planned.
    Plans(Vec<Diagnostic>),
}

/// Returns the plans of a program after some passes.
///
/// # Errors
/// The program cannot be rewritten or planned.
pub fn plans(
    program: &Program,
    lines: &LineIndex,
    calls: &[PassCall],
    ranks: usize,
) -> Result<World, Refusal> {
    let mut program = program.clone();
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(&mut program, calls, settings, &mut |_| {}).map_err(Refusal::Passes)?;
    hir_plan::build(&program, lines, ranks).map_err(Refusal::Plans)
}

/// Returns the plans of a program of this module after some passes; `None` if it cannot be rewritten or planned.
fn world(text: &str, passes: &str, ranks: usize) -> Option<World> {
    let source = Source::new("calibrate".to_owned(), text.to_owned());
    let program = source.programs().0.pop()?;
    let calls = passes::parse(passes).ok()?;
    plans(&program, &source.lines, &calls, ranks).ok()
}

/// Returns the first work of rank 0 of a program whose kind is wanted.
fn first_work(text: &str, is_wanted: impl Fn(WorkKind) -> bool, ranks: usize) -> Option<Work> {
    let world = world(text, "", ranks)?;
    let plan = world.first()?;
    let mut all = (0..plan.code.len()).filter_map(|at| work_of(plan, at));
    all.find(|it| is_wanted(it.kind))
}

impl Entry {
    /// Returns what the entry measures, in words.
    fn name(&self) -> String {
        match &self.meaning {
            Meaning::Least => "the time of a run".to_owned(),
            Meaning::Leasts(_) => "the time of a launch".to_owned(),
            Meaning::Alternating(_) => "the time of an event".to_owned(),
            Meaning::Table(class, _, place) => format!("table `{}`", place.table(class)),
            Meaning::Switching(..) => "the time of another kernel".to_owned(),
            Meaning::Exchanging(..) => "the time of a communication between kernels".to_owned(),
            Meaning::Together(calls) => format!("contention of {:?}", calls.map(|it| it.0)),
            Meaning::Chunks(calls, count) => format!("contention of {count} chunks of {calls:?}"),
            Meaning::Sustained(call, _) => format!("sustained load of {call:?}"),
            Meaning::Run(layer) => format!("{layer} with {}", self.passes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_the_work_of_its_table() {
        for it in entries::entries(2, false) {
            if let Meaning::Table(class, ..) = &it.meaning {
                assert!(
                    first_work(&it.text, |it| it.class() == *class, 2).is_some(),
                    "{class}:\n{}",
                    it.text
                );
            }
        }
    }

    #[test]
    fn times_of_another_machine_are_not_added() {
        let machine = |gpu: &str, ranks| Machine { gpu: gpu.to_owned(), ranks, ..Machine::default() };
        let mut base = machine("NVIDIA H200", 2);
        assert_eq!(add(&mut base, machine("NVIDIA H200", 2)), Ok(()));
        assert_eq!(add(&mut base, machine("", 2)), Ok(()));
        let refused =
            |other| add(&mut base.clone(), other).map_or_else(|it| it.to_string(), |()| String::new());
        let of_gpu = refused(machine("NVIDIA H100", 2));
        assert!(of_gpu.contains("NVIDIA H200") && of_gpu.contains("NVIDIA H100"), "{of_gpu}");
        let of_ranks = refused(machine("NVIDIA H200", 4));
        assert!(of_ranks.contains("2 ranks") && of_ranks.contains('4'), "{of_ranks}");
    }

    #[test]
    fn contention_is_the_slowdown_while_both_run() {
        let point = |us: f64| Table(vec![Point { at: vec![2.0], us, least: us }]);
        let product = Table(vec![Point { at: vec![4096.0, 4096.0, 8192.0], us: 400.0, least: 400.0 }]);
        let tables = [("product bf16", product), ("nccl allreduce", point(100.0))];
        let tables = tables.into_iter().map(|(name, it)| (name.to_owned(), it)).collect();
        let machine = Machine { tables, ..Machine::default() };
        let calls = [
            (Call::Product([4096, 4096, 8192]), 1),
            (Call::Collective(programs::Collective::Allreduce, "nccl", 1), 1),
        ];
        // The all-reduce of one element takes 100 µs; both together 450 µs instead of 400.
        let slowdown = |factor| Some(("nccl", Slowdown { at: 2.0, factor }));
        assert_eq!(contention(&machine, calls, 450.0, 2), slowdown(1.5));
        assert_eq!(contention(&machine, calls, 350.0, 2), slowdown(1.0));
        // Three chunks: 400 µs, twice 100 · 1.5 + 300, and 100 µs; less if nothing is lost.
        let works = calls.map(|(call, _)| first_work(&repeated_call(call, 1, 2), |_| true, 2));
        let [product, communication] = &works;
        let works = product.as_ref().zip(communication.as_ref());
        let of_chunks = |time| contention_of_chunks(&machine, works?.into(), 3, time);
        assert_eq!(of_chunks(1400.0), Some(1.5));
        assert_eq!(of_chunks(1200.0), Some(1.0));
    }
}
