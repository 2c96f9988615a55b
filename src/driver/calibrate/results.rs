//! The times of a machine, from the results of the programs that measure them.

use std::{collections::BTreeMap, path::Path};

use hir_plan::timeline::{
    machine::{Crowding, Delay, FROM_MEMORY, Machine, Run, Slowdown, VERSION},
    table::{Point, Table},
    work::Work,
};
use serde_json::Value;

use super::{
    entries::{Entry, Meaning, table_name},
    evidence, first_work,
    programs::{Call, repeated_call},
    result_of,
};

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

/// Reads the results of the programs of `write_entries`. A program without a result is named in `missing`.
pub fn read_results(folder: &Path, entries: &[Entry], ranks: usize, date: String) -> Measured {
    let mut machine = Machine {
        version: VERSION,
        date,
        hir: env!("CARGO_PKG_VERSION").to_owned(),
        ranks,
        ..Machine::default()
    };
    let mut results = Results { ranks, ..Results::default() };
    for (number, entry) in entries.iter().enumerate() {
        results.add(entry, &result_of(folder, number, &entry.program), &mut machine);
    }
    complete(&mut results.tables);
    let tables = std::mem::take(&mut results.tables);
    machine.tables = tables.into_iter().map(|(kind, points)| (kind, table(points))).collect();
    results.set_switch(&mut machine);
    let mut fastest = machine.clone();
    fastest.tables.values_mut().flat_map(|it| &mut it.0).for_each(|it| it.us = it.least);
    results.set_exchanges(&mut machine, &fastest);
    fastest.exchange_us.clone_from(&machine.exchange_us);
    fastest.crowding.clone_from(&machine.crowding);
    results.set_slowdowns(&mut machine, &fastest);
    (machine.run_us, machine.event_us) = (rounded(machine.run_us), rounded(machine.event_us));
    machine.accuracy = evidence::accuracy(&evidence::compare(&machine));
    Measured { machine, missing: results.missing }
}

/// The times that programs had, in microseconds, with what they contain.
#[derive(Default)]
struct Results {
    ranks: usize,
    /// Of a program with one launch.
    least: f64,
    /// Of a launch more.
    launch: f64,
    tables: Tables,
    switching: Option<(Call, f64)>,
    /// Microseconds of a product, in turns with another one on one stream.
    in_turns: Vec<([usize; 3], f64)>,
    exchanging: Vec<([Call; 2], f64)>,
    together: Vec<([(Call, usize); 2], f64)>,
    chunks: Vec<([Call; 2], usize, f64)>,
    sustained: Vec<(Call, f64)>,
    missing: Vec<String>,
}

impl Results {
    /// Adds what hir-run has written about a program.
    fn add(&mut self, entry: &Entry, result: &Value, machine: &mut Machine) {
        describe(machine, &result["machine"]);
        let time = |key: &str| result[key].as_f64();
        let Some((median, shortest)) = time("median_us").zip(time("min_us")) else {
            let verdict = result["verdict"].as_str().unwrap_or("not run");
            self.missing.push(format!("{}: {verdict}", entry.name()));
            return;
        };
        let run_us = machine.run_us;
        let each = |calls: usize| {
            let each = |it: f64| (it - run_us).max(0.1) / calls as f64;
            Times { median: each(median), least: each(shortest) }
        };
        match &entry.meaning {
            Meaning::Least => self.least = median,
            Meaning::Leasts(calls) => {
                let call = (median - self.least).max(0.0) / (calls.saturating_sub(1)).max(1) as f64;
                (machine.run_us, self.launch) = ((self.least - call).max(0.0), call);
            }
            Meaning::Alternating(calls) => {
                machine.event_us = (each(*calls).median - self.launch).max(0.0);
            }
            Meaning::Table(class, calls, from_memory) => {
                match first_work(&entry.program, |it| it.class() == *class, self.ranks) {
                    Some(work) => {
                        let at = work.extents.iter().map(|it| *it as u64).collect();
                        let table = self.tables.entry(table_name(work.kind, *from_memory)).or_default();
                        table.entry(at).or_insert(each(*calls));
                    }
                    None => self.missing.push(format!("{}: its plan has no such work", entry.name())),
                }
            }
            Meaning::Switching(call, calls) => self.switching = Some((*call, each(*calls).median)),
            Meaning::Crowding { product, times, is_crowded: false } => {
                self.in_turns.push((*product, each(2 * times).median));
            }
            Meaning::Crowding { product, times, is_crowded: true } => {
                if let Some((_, alone)) = self.in_turns.iter().find(|it| it.0 == *product) {
                    // The first product runs alone.
                    let all = (each(1).median - 2.0 * machine.event_us) / alone;
                    let factor = rounded(((all - 1.0) / (2 * times - 1) as f64).max(0.1));
                    machine.crowding.push(Crowding { at: product.map(|it| it as f64), factor });
                }
            }
            Meaning::Exchanging(pair, calls) => self.exchanging.push((*pair, each(*calls).median)),
            Meaning::Together(calls) => self.together.push((*calls, each(1).least)),
            Meaning::Chunks(calls, count) => self.chunks.push((*calls, *count, each(1).least)),
            Meaning::Sustained(call, calls) => self.sustained.push((*call, each(*calls).median)),
            Meaning::Run(layer) => machine.runs.push(Run {
                program: layer.to_string(),
                passes: entry.passes.to_owned(),
                us: median,
                least: shortest,
            }),
        }
    }

    fn work(&self, call: Call) -> Option<Work> {
        first_work(&repeated_call(call, 1, self.ranks), |_| true, self.ranks)
    }

    fn time_of(&self, machine: &Machine, call: Call) -> Option<f64> {
        self.work(call).and_then(|it| machine.microseconds(&it))
    }

    /// Sets the time that a kernel takes longer behind another one than behind one of the same kind.
    fn set_switch(&self, machine: &mut Machine) {
        if let Some((call, time)) = self.switching {
            let alone = self.time_of(machine, call).map_or(time, |it| it + self.launch);
            machine.switch_us = rounded((time - alone).max(0.0) / 2.0);
        }
    }

    /// Sets the delays of communications behind kernels. `fastest` is the machine with the least times.
    ///
    /// Copy engines have two times, from program to program one or the other in most of the runs. Estimates take the least time of a copy
    /// and this delay, so it is what the median of the program exceeds the least times of its parts by.
    fn set_exchanges(&self, machine: &mut Machine, fastest: &Machine) {
        for (pair, time) in &self.exchanging {
            let [compute, exchange] = pair.map(|it| self.time_of(fastest, it));
            let Some((behind, exchange)) = compute.zip(exchange) else { continue };
            if let Some(kind) = self.work(pair[1]).and_then(|it| it.contention()) {
                let us = rounded((time - behind - exchange - 2.0 * machine.switch_us).max(0.0));
                let delays = machine.exchange_us.entry(kind.name().to_owned()).or_default();
                delays.push(Delay { behind: rounded(behind), us });
            }
        }
        for delays in machine.exchange_us.values_mut() {
            delays.sort_by(|a, b| a.behind.total_cmp(&b.behind));
        }
    }

    /// Sets the factors of what runs at the same time and of sustained load. `fastest` has the delays of communications.
    fn set_slowdowns(&self, machine: &mut Machine, fastest: &Machine) {
        for (calls, time) in &self.together {
            if let Some((name, it)) = contention(fastest, *calls, *time, self.ranks) {
                machine.contention.entry(name.to_owned()).or_default().push(it);
            }
        }
        for (call, time) in &self.sustained {
            let work = self.work(*call);
            if let Some((work, alone)) = work.and_then(|it| Some((it.clone(), machine.microseconds(&it)?))) {
                let factor = rounded((time / alone).max(1.0));
                machine.sustained.push(Slowdown { at: work.extents.iter().product(), factor });
            }
        }
        let mut factors: Vec<(&str, f64, Vec<f64>)> = Vec::new();
        for (calls, count, time) in &self.chunks {
            let [Some(product), Some(communication)] = calls.map(|it| self.work(it)) else { continue };
            let of_chunks = contention_of_chunks(fastest, [&product, &communication], *count, *time);
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
    }
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
/// communication. The products of other chunks than the first one are crowded.
fn contention_of_chunks(
    machine: &Machine,
    [product, communication]: [&Work; 2],
    count: usize,
    time: f64,
) -> Option<f64> {
    let compute = machine.microseconds(product)? + machine.microseconds_between(product, 0.0);
    let exchange =
        machine.microseconds(communication)? + machine.microseconds_between(communication, compute);
    let crowded = compute * machine.crowding(&product.extents);
    let (longer, shorter) = (crowded.max(exchange), crowded.min(exchange));
    let beside = (count - 1) as f64;
    let lost = time - compute - exchange - beside * longer;
    Some(1.0 + (lost / (beside * shorter)).max(0.0))
}

impl Entry {
    /// Returns what the entry measures, in words.
    fn name(&self) -> String {
        match &self.meaning {
            Meaning::Least => "the time of a run".to_owned(),
            Meaning::Leasts(_) => "the time of a launch".to_owned(),
            Meaning::Alternating(_) => "the time of an event".to_owned(),
            Meaning::Table(class, _, from_memory) => format!("table `{}`", table_name(class, *from_memory)),
            Meaning::Switching(..) => "the time of another kernel".to_owned(),
            Meaning::Crowding { product, .. } => format!("two streams of products {product:?}"),
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
    use grammar::Algorithm;

    use super::*;
    use grammar::CommunicationType;

    #[test]
    fn contention_is_the_slowdown_while_both_run() {
        let point = |us: f64| Table(vec![Point { at: vec![2.0], us, least: us }]);
        let product = Table(vec![Point { at: vec![4096.0, 4096.0, 8192.0], us: 400.0, least: 400.0 }]);
        let tables = [("product bf16", product), ("nccl allreduce", point(100.0))];
        let tables = tables.into_iter().map(|(name, it)| (name.to_owned(), it)).collect();
        let machine = Machine { tables, ..Machine::default() };
        let calls = [
            (Call::Product([4096, 4096, 8192]), 1),
            (Call::Collective(CommunicationType::Allreduce, Algorithm::Nccl, 1), 1),
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
