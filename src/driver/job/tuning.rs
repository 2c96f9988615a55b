//! `--tune` and `--tuning`: tables of the algorithms of matrix products and of the pipelines of programs, which one run
//! measures and later runs use.
//!
//! Only rank 0 reads and writes the file. It sends the entries to the others, so that all ranks use the same algorithms.
//! A table is valid for one kind of GPU, driver and cuBLASLt.

pub mod pipelines;
mod table;

use std::{fs, io, os::unix::fs::FileTypeExt, path::Path};

use grammar::{count_text, escape_control};

use super::gpu::JobGroup;
use crate::run::{
    command_line::TuningFlag,
    failure::{JobFailure, Result},
    files::{cannot_write, write_file},
};
use hir_executor::{AlgorithmUse, Executor, ExecutorError, Machine, MatmulAlgorithm, ProcessGroup, Tuning};
use hir_launch::job_rank::JobRank;
use hir_process::{atomic_file, input_file::InputFiles};
use table::{Entry, MAX_BYTES, TuningTable, difference};

/// What rank 0 sends to the other ranks: the entries and the number of ranks for which they were measured, if there are
/// any to use, or why there are none.
type Sent = Result<Option<(Vec<(String, MatmulAlgorithm)>, usize)>, String>;

/// Reads the file on rank 0 and makes all ranks use its algorithms, or checks that entries can be added to it. Call it
/// while nothing runs, before inputs are loaded. The inner result is the same on all ranks: the kind of machine.
///
/// # Errors
/// A call fails on this rank, or a rank does not answer. The inner error: the file cannot be read, is no table, or was
/// made for another machine; or the machines of the ranks differ.
pub fn load(
    files: &InputFiles,
    flag: TuningFlag<'_>,
    engine: &mut dyn Executor,
    member: &JobRank,
    say: &mut dyn FnMut(String),
) -> Result<Result<Machine>> {
    let peers: &dyn ProcessGroup = &JobGroup(member);
    let failed = |message: String| Ok(Err(JobFailure::Environment(message)));
    member.set_phase("reading the table of algorithms");
    let machines = engine.machines(peers)?;
    let Some(machine) = machines.first() else {
        return Err(ExecutorError::Internal("no rank has a GPU".to_owned()).into());
    };
    for (rank, other) in machines.iter().enumerate() {
        if let Some((name, first, here)) = difference(machine, other) {
            return failed(format!(
                "all ranks use the same algorithms, but the {name} is `{first}` on rank 0 and `{here}` on rank {rank}: remove \
                 `--tune` or `--tuning`, or use equal machines"
            ));
        }
    }
    let mine = match flag {
        _ if peers.rank() > 0 => Ok(None),
        TuningFlag::MeasurePipeline => Ok(None),
        TuningFlag::Measure(path) => check(files, path).map(|()| None),
        TuningFlag::Use(path) => entries(files, path, machine).map(Some),
    };
    let mine: Sent = mine.map_err(|it| it.to_string());
    let sent = member.channel.all_gather_values(&mine)?.into_iter().next();
    let sent = match sent.unwrap_or(Ok(None)) {
        Ok(it) => it,
        Err(message) => return failed(message),
    };
    if let (TuningFlag::Use(path), Some((entries, ranks))) = (flag, sent) {
        let used = engine.use_algorithms(peers, &entries)?;
        if let Some((product, why)) = &used.refused {
            return failed(format!(
                "`{}`: cuBLASLt refuses the algorithm of `{}`: {why}: measure again with `--tune`",
                path.display(),
                escape_control(product)
            ));
        }
        say(coverage(path, &used, ranks, peers.world()));
    }
    Ok(Ok(machine.clone()))
}

/// Checks that a table can be written and, if it exists, that it can be read.
///
/// # Errors
/// The file cannot be written or read, is not a regular file, or is no table.
pub fn check(files: &InputFiles, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(cannot_write(path, format!("there is no folder `{}`", folder.display())));
    }
    atomic_file::check(path).map_err(|fault| cannot_write(path, fault.to_string()))?;
    read(path, |limit| files.read_again(path, limit)).map(drop)
}

/// Checks that the table of `--tuning` exists, can be read, and was measured on this kind of machine.
///
/// # Errors
/// The file cannot be read, is not a regular file, is no table, or is that of another machine.
pub fn check_existing(files: &InputFiles, path: &Path, machine: &Machine) -> Result<()> {
    entries(files, path, machine).map(drop)
}

/// Adds entries with `add`, which returns what to tell the user, to a table of a machine. Another job may have written
/// the table since it was checked, so it is read again. Returns all that the user should know.
fn store(
    files: &InputFiles,
    path: &Path,
    (machine, ranks): (&Machine, usize),
    add: impl FnOnce(&mut TuningTable) -> String,
) -> Result<Vec<String>> {
    let empty = || TuningTable::new(machine.clone(), ranks);
    let mut table = read(path, |limit| files.read_again(path, limit))?.unwrap_or_else(empty);
    let mut notes = Vec::new();
    if let Some(message) = other_machine(&table, machine, path) {
        let dropped = table.products.len() + table.pipelines.len();
        notes.push(format!("{message}; its {dropped} entries are dropped"));
        table = empty();
    }
    notes.push(add(&mut table));
    let text = table.text().map_err(|it| JobFailure::Internal(format!("cannot write the table: {it}")))?;
    write_file(path, &text)?;
    Ok(notes)
}

/// Adds measured algorithms to a table, where they replace the entries of the same products. Returns what to tell the
/// user.
///
/// # Errors
/// The file cannot be read or written, or is no table.
pub fn store_algorithms(
    files: &InputFiles,
    path: &Path,
    (machine, ranks): (&Machine, usize),
    tuning: &Tuning,
) -> Result<Vec<String>> {
    store(files, path, (machine, ranks), |table| {
        table.ranks = ranks;
        table.products.retain(|it| tuning.products.iter().all(|product| product.key != it.product));
        let kept = table.products.len();
        table.products.extend(tuning.products.iter().map(|it| Entry {
            product: it.key.clone(),
            algorithm: it.algorithm,
            first_us: table::rounded(it.first),
            best_us: table::rounded(it.best),
        }));
        // A file does not depend on the order in which products were measured.
        table.products.sort_by(|a, b| a.product.cmp(&b.product));
        let new = tuning.products.len();
        format!("`{}`: {} measured, {kept} other entries kept", path.display(), count_text(new, "product"))
    })
}

/// Returns the algorithms of a table that was measured on this kind of machine, and the number of ranks.
fn entries(
    files: &InputFiles,
    path: &Path,
    machine: &Machine,
) -> Result<(Vec<(String, MatmulAlgorithm)>, usize)> {
    let table = existing(files, path)?;
    match other_machine(&table, machine, path) {
        Some(message) => Err(JobFailure::Environment(format!("{message}: measure again with `--tune`"))),
        None => Ok((table.products.into_iter().map(|it| (it.product, it.algorithm)).collect(), table.ranks)),
    }
}

/// Reads a table that has to exist, with the same contents in the whole run.
fn existing(files: &InputFiles, path: &Path) -> Result<TuningTable> {
    read(path, |limit| files.read_at_most(path, limit))?
        .ok_or_else(|| cannot_read(path, "the file does not exist".to_owned()))
}

/// Checks that a path does not name a FIFO, a device or a folder: opening a FIFO waits for another process, and a table
/// that is written to a device cannot be read again. Errors of the operating system are left to the reader.
fn check_regular(path: &Path) -> Result<()> {
    let Ok(about) = fs::metadata(path) else { return Ok(()) };
    let what = match about.file_type() {
        it if it.is_file() => return Ok(()),
        it if it.is_dir() => "a folder",
        it if it.is_fifo() => "a FIFO",
        it if it.is_socket() => "a socket",
        _ => "a device",
    };
    Err(JobFailure::Environment(format!(
        "`{}` is {what}, but a table is a regular file: give the name of another file",
        path.display()
    )))
}

/// Reads a table with `bytes`; `None` if there is no file.
fn read(path: &Path, bytes: impl FnOnce(u64) -> io::Result<Vec<u8>>) -> Result<Option<TuningTable>> {
    check_regular(path)?;
    let bytes = match bytes(MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(fault) => return Err(cannot_read(path, fault.to_string())),
    };
    let text = String::from_utf8(bytes).map_err(|_| cannot_read(path, "it is not UTF-8 text".to_owned()))?;
    TuningTable::parse(path, &text).map(Some).map_err(|it| JobFailure::Environment(it.to_string()))
}

fn cannot_read(path: &Path, cause: String) -> JobFailure {
    JobFailure::CannotRead { path: path.display().to_string(), cause }
}

/// Returns a message if a table was made for another machine.
fn other_machine(table: &TuningTable, here: &Machine, path: &Path) -> Option<String> {
    let (name, there, here) = difference(&table.machine, here)?;
    Some(format!(
        "`{}` was measured on another machine: the {name} was `{}`, and here it is `{here}`",
        path.display(),
        escape_control(there)
    ))
}

/// Says how many products have an entry.
fn coverage(path: &Path, used: &AlgorithmUse, measured: usize, ranks: usize) -> String {
    let AlgorithmUse { products, given, .. } = used;
    let other =
        if measured == ranks { String::new() } else { format!("; it was measured with {measured} ranks") };
    format!(
        "`{}` has an entry for {given} of {}{other}",
        path.display(),
        count_text(*products, "matrix product")
    )
}

/// Returns the lines that state what tuning has gained.
pub fn report(tuning: &Tuning, rounds: usize, graph: bool) -> Vec<String> {
    let mut lines = tuning.notes.clone();
    if tuning.products.is_empty() {
        lines.push("no matrix product to tune: cuBLASLt computes none".to_owned());
        return lines;
    }
    let how = if graph { "as captured graphs" } else { "issued command by command" };
    lines.push(format!(
        "algorithms of matrix products, measured in turns, {how}: the time of the whole program on the slowest rank, median of \
         {rounds} rounds"
    ));
    lines.extend(tuning.products.iter().map(|it| {
        let (key, first, best) = (&it.key, it.first, it.best);
        match (it.measured, it.choice) {
            (1, _) => format!("{key}: {first:.2} us with the only algorithm"),
            (measured, 0) => {
                format!("{key}: {first:.2} us with the first of {measured} algorithms, which stays")
            }
            (measured, choice) => format!(
                "{key}: {first:.2} us with the first of {measured} algorithms, {best:.2} us with number {}",
                choice + 1
            ),
        }
    }));
    lines.push(match tuning.whole {
        None => "the whole program keeps the algorithms that cuBLASLt chooses".to_owned(),
        Some([before, after]) => format!(
            "the whole program: {before:.2} us with the algorithms that cuBLASLt chooses, {after:.2} us with the measured ones{}",
            if tuning.gains_nothing() { ", so it keeps those that cuBLASLt chooses".to_owned() } else { format!(" ({:.1}% less)", 100.0 * (1.0 - after / before.max(1e-3))) }
        ),
    });
    lines
}
