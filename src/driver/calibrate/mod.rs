//! Measures the times of a machine: small programs, one for each time, run as hir-run runs any other program. `collectives` finds
//! the fastest algorithm of each collective with such programs.

pub mod collectives;
mod draft;
pub mod entries;
pub mod evidence;
pub mod exact;
pub mod layer;
pub mod programs;
mod results;

use std::{cmp::Ordering, fs, io, path::Path};

use grammar::{Diagnostic, LineIndex, Program, count_text};
use hir_plan::{
    World,
    timeline::{
        machine::Machine,
        table::Table,
        work::{Work, WorkKind, work_of},
    },
};
use hir_process::atomic_file;
use passes::{PassCall, PipelineError, Settings, Verify};
use serde_json::Value;

use entries::Entry;
pub use results::{Measured, read_results};

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
            (&it.program, format!("{passes}-G -n {runs} -w {warmup}"))
        }),
    )
}

/// Writes programs, and the file of their command lines, `batch.txt`: each, and its options. All get random inputs.
///
/// # Errors
/// A file cannot be written.
fn write_batch<'p>(folder: &Path, programs: impl Iterator<Item = (&'p Program, String)>) -> io::Result<()> {
    let mut lines = String::new();
    for (number, (it, options)) in programs.enumerate() {
        let program = folder.join(format!("{number}.hir"));
        atomic_file::write(&program, grammar::print(it).as_bytes())?;
        let (program, json) = (program.display(), folder.join(format!("{number}.json")));
        lines += &format!("'{program}' {options} --inputs random -J '{}'\n", json.display());
    }
    atomic_file::write(&folder.join("batch.txt"), lines.as_bytes())
}

/// Returns what hir-run has written about a program of `write_batch`, or null: it did not run, or the folder has another
/// program of this number, which another version of hir has written.
fn result_of(folder: &Path, number: usize, program: &Program) -> Value {
    let is_same = fs::read_to_string(folder.join(format!("{number}.hir")))
        .is_ok_and(|it| it == grammar::print(program));
    let result = fs::read_to_string(folder.join(format!("{number}.json"))).ok().filter(|_| is_same);
    result.and_then(|it| serde_json::from_str::<Value>(&it).ok()).unwrap_or_default()
}

/// Why times cannot be added to those of a base: the result would describe no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
fn world(program: &Program, passes: &str, ranks: usize) -> Option<World> {
    let calls = passes::parse(passes).ok()?;
    plans(program, &LineIndex::new(""), &calls, ranks).ok()
}

/// Returns the first work of rank 0 of a program whose kind is wanted.
fn first_work(program: &Program, is_wanted: impl Fn(WorkKind) -> bool, ranks: usize) -> Option<Work> {
    let world = world(program, "", ranks)?;
    let plan = world.first()?;
    let mut all = (0..plan.code.len()).filter_map(|at| work_of(plan, at));
    all.find(|it| is_wanted(it.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_the_work_of_its_table() {
        for it in entries::entries(2, false) {
            if let entries::Meaning::Table(class, ..) = &it.meaning {
                assert!(
                    first_work(&it.program, |it| it.class() == *class, 2).is_some(),
                    "{class}:\n{}",
                    grammar::print(&it.program)
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
}
