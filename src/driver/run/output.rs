//! `--output`: writes tensors of a program, whole or per rank, to files or to standard output.

use grammar::InvalidOption;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use grammar::DType;

use super::{
    RunError,
    failure::{JobFailure, Result},
    inputs::InputFlag,
    option_files::{OptionFile, exclusive_destination, same_file},
    results,
};
use crate::{
    session::Report,
    tensor_file::{self, TensorFile},
};
use hir_plan::{Plan, ViewOnRank};
use hir_sim::SimOutcome;
use hir_tensor::data::NdArray;

/// `--output NAME=…` or `--output NAME@local=…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFlag {
    /// Name of the tensor.
    pub name: String,
    /// True if each rank's part is written to its own file.
    pub local: bool,
    /// The destination: `-`, or `@` and a file.
    pub value: String,
}

impl std::str::FromStr for OutputFlag {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let expected =
            "expected `NAME=@file.npy`, `NAME=@file.safetensors#key`, `NAME@local=@file.%r.npy` or `NAME=-`";
        let flag: InputFlag = text.parse().map_err(|_| expected)?;
        if flag.value != "-" && flag.value.parse::<TensorFile>().is_err() {
            return Err(expected.into());
        }
        Ok(Self { name: flag.name, local: flag.local, value: flag.value })
    }
}

impl OutputFlag {
    /// Checks that the file format supports an element type.
    fn check_dtype(&self, dtype: DType) -> Result<(), RunError> {
        let local = if self.local { "@local" } else { "" };
        let fault =
            |error| RunError::InvalidFlagValue { flag: format!("--output {}{local}", self.name), error };
        match self.value.as_str() {
            "-" => Ok(()),
            file => file.parse::<TensorFile>().and_then(|it| it.check_dtype(dtype)).map_err(fault),
        }
    }

    /// Returns true if the process of rank `owner` writes the part of `rank`. A single process (`None`)
    /// writes all parts. Rank 0 writes whole tensors, and all parts that go to standard output.
    fn is_written_by(&self, owner: Option<usize>, rank: usize) -> bool {
        match owner {
            None => true,
            Some(owner) if self.local && self.value != "-" => owner == rank,
            Some(owner) => owner == 0,
        }
    }
}

/// Returns the views that this process reads back at the end of the program for its `--output` flags. `owner`
/// is as in `write_outputs`.
///
/// # Errors
/// No tensor of this name is bound when the program ends.
pub fn watched_views(plans: &[Plan], flags: &[OutputFlag], owner: Option<usize>) -> Result<Vec<ViewOnRank>> {
    let mut places = Vec::new();
    for flag in flags {
        let mut bound = false;
        for plan in plans {
            let port = plan.bound_at_exit.iter().find(|port| port.name == flag.name);
            let view = port.and_then(|port| port.shard.view.clone());
            bound |= view.is_some();
            let view = view.filter(|_| flag.is_written_by(owner, plan.rank));
            places.extend(view.map(|view| ViewOnRank { rank: plan.rank, view }));
        }
        if !bound {
            let bound: BTreeSet<&str> =
                plans.iter().flat_map(|it| &it.bound_at_exit).map(|it| it.name.as_str()).collect();
            let bound: Vec<&str> = bound.into_iter().collect();
            let message = format!(
                "`--output {}`: no tensor of this name is bound when the program ends; expected one of {}",
                flag.name,
                bound.join(", ")
            );
            return Err(JobFailure::Usage(message));
        }
    }
    Ok(places)
}

/// Returns the memory in bytes of the tensors of `--output` flags beside the run: their parts with masks, and what is written to files.
pub fn held_bytes(plans: &[Plan], flags: &[OutputFlag]) -> usize {
    let port = |plan: &Plan, flag: &OutputFlag| {
        let port = plan.bound_at_exit.iter().find(|it| it.name == flag.name)?;
        Some((port.shard.view.as_ref()?.len(), port.dtype.size().max(1), port.shard.layout.shape.clone()))
    };
    let bytes = |flag: &OutputFlag| {
        let parts = || plans.iter().filter_map(|it| port(it, flag));
        let held =
            parts().fold(0, |sum: usize, (len, size, _)| sum.saturating_add(len.saturating_mul(size + 1)));
        let written = if flag.local {
            parts().fold(0, |sum: usize, (len, size, _)| sum.saturating_add(len.saturating_mul(size)))
        } else {
            parts().next().map_or(0, |(len, size, shape)| {
                let whole = shape.iter().copied().fold(1, usize::saturating_mul);
                whole.saturating_mul(2 * size).saturating_add(hir_sim::assembly_bytes(whole, len, size))
            })
        };
        held.saturating_add(written)
    };
    flags.iter().map(bytes).fold(0, usize::saturating_add)
}

/// Checks that the file formats of `--output` support the element types of their tensors. `watched_views` reports names that
/// are not bound.
///
/// # Errors
/// A file format does not support the element type of its tensor.
pub fn check_dtypes(plans: &[Plan], flags: &[OutputFlag]) -> Result<()> {
    for plan in plans {
        for flag in flags {
            let port = plan.bound_at_exit.iter().find(|port| port.name == flag.name);
            port.map_or(Ok(()), |it| flag.check_dtype(it.dtype))?;
        }
    }
    Ok(())
}

/// Checks that no destination is written twice. Each tensor and each part needs its own file or, if one
/// process writes them all, its own key in a .safetensors file. `others` are the files of other options.
///
/// # Errors
/// Two tensors, or a tensor and another option, have the same destination.
pub fn check_destinations(
    plans: &[Plan],
    flags: &[OutputFlag],
    others: &[OptionFile<'_>],
    is_one_process: bool,
) -> Result<()> {
    let others: Vec<(PathBuf, &str)> =
        others.iter().filter_map(|it| Some((exclusive_destination(it.path)?, it.option))).collect();
    let mut files: BTreeMap<PathBuf, (usize, BTreeMap<Option<String>, String>)> = BTreeMap::new();
    for flag in flags.iter().filter(|it| it.value != "-") {
        let holds = |plan: &&Plan| {
            plan.bound_at_exit.iter().any(|it| it.name == flag.name && it.shard.view.is_some())
        };
        let ranks =
            plans.iter().filter(holds).map(|it| it.rank).take(if flag.local { plans.len() } else { 1 });
        for rank in ranks {
            let (value, what) = if flag.local {
                (flag.value.replace("%r", &rank.to_string()), format!("{} of rank {rank}", flag.name))
            } else {
                (flag.value.clone(), flag.name.clone())
            };
            let file: TensorFile = value.parse().map_err(RunError::Io)?;
            let key = match &file {
                TensorFile::Npy(_) => None,
                TensorFile::Safetensors { key, .. } => Some(key.clone().unwrap_or_default()),
            };
            let Some(destination) = exclusive_destination(file.path()) else { continue };
            if let Some((_, other)) = others.iter().find(|it| it.0 == destination) {
                return Err(same_file(other, "--output", file.path()).into());
            }
            let writer = if flag.local && !is_one_process { rank } else { 0 };
            let (first, keys) = files.entry(destination).or_insert((writer, BTreeMap::new()));
            let other = if *first == writer { keys.get(&key) } else { keys.values().next() };
            if let Some(other) = other {
                let help = match (*first == writer, flag.local) {
                    (true, false) => "use another file, or different keys in a .safetensors file",
                    (true, true) => "use `%r` in the name, which stands for the rank",
                    (false, _) => {
                        "each rank process needs its own file: use `%r` in the name, which stands for the rank"
                    }
                };
                let path = file.path().display();
                let message =
                    format!("`--output`: {other} and {what} have the same destination, `{path}`: {help}");
                return Err(JobFailure::Usage(message));
            }
            keys.insert(key, what);
        }
    }
    Ok(())
}

/// Writes the tensors of the `--output` flags. `outcome` must contain the views that `watched_views`
/// returned; `say` prints to standard output. `owner` is the rank of this process in a job with one process
/// per rank: it writes its own parts, and rank 0 writes whole tensors.
///
/// # Errors
/// A file cannot be written, or parts do not form a whole tensor.
pub fn write_outputs(
    plans: &[Plan],
    outcome: &SimOutcome,
    flags: &[OutputFlag],
    owner: Option<usize>,
    say: &mut dyn FnMut(Report),
) -> Result<()> {
    let mut blocks = outcome.watched.iter();
    let mut files: Vec<(TensorFile, NdArray)> = Vec::new();
    for flag in flags {
        let mut parts = Vec::new();
        for plan in plans.iter().filter(|it| flag.is_written_by(owner, it.rank)) {
            let port =
                plan.bound_at_exit.iter().find(|port| port.name == flag.name && port.shard.view.is_some());
            if let (Some(port), Some(block)) = (port, port.and_then(|_| blocks.next())) {
                parts.push((plan.rank, port, Arc::new(block.clone())));
            }
        }
        if flag.local {
            for (rank, _, block) in parts {
                let tensor = NdArray { shape: block.shape.clone(), data: block.data.clone() };
                let value = flag.value.replace("%r", &rank.to_string());
                emit(&format!("{}@local of rank {rank}:", flag.name), &value, tensor, &mut files, say)?;
            }
            continue;
        }
        if parts.is_empty() {
            continue;
        }
        let whole = results::assemble_output(&parts)?.whole;
        if let Some(at) = whole.written.first_unwritten() {
            say(Report::Note(format!(
                "{}: element {:?} is on no rank or was never written; such elements are written as 0",
                flag.name,
                hir_tensor::shard::unravel_index(at, &whole.tensor.shape)
            )));
        }
        emit(&flag.name, &flag.value, whole.tensor, &mut files, say)?;
    }
    let files: Vec<(TensorFile, &NdArray)> =
        files.iter().map(|(file, tensor)| (file.clone(), tensor)).collect();
    tensor_file::save(&files).map_err(|fault| JobFailure::from(RunError::Io(fault)))
}

fn emit(
    name: &str,
    value: &str,
    tensor: NdArray,
    files: &mut Vec<(TensorFile, NdArray)>,
    say: &mut dyn FnMut(Report),
) -> Result<()> {
    if value == "-" {
        let shape: String = tensor.shape.iter().map(|extent| format!("{extent}x")).collect();
        let values: Vec<String> = (0..tensor.data.len()).map(|at| tensor.data.text(at)).collect();
        let dtype = tensor.data.dtype().short_name();
        say(Report::Output(format!("{name} {shape}{dtype}= {}", values.join(" "))));
        return Ok(());
    }
    files.push((value.parse().map_err(RunError::Io)?, tensor));
    Ok(())
}
