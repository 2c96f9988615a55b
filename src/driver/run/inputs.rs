//! Computes the values of a program's inputs on every rank.

use grammar::InvalidOption;
use std::{collections::hash_map::Entry, str::FromStr, sync::Arc};

use grammar::DType;
use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::{
    RunError, exact_range,
    index_inputs::{IndexRange, index_inputs, inputs_behind_indices},
};
use crate::tensor_file::{IoError, LoadedTensor, TensorSource};
use hir_plan::{IoBinding, Number, Plan, ShardLayout, World};
use hir_process::input_file::InputFiles;
use hir_tensor::{
    data::{Data, NdArray, WrittenMask},
    generate::{InputGenerator, InputKind},
    shape_match::{Scope, to_logical},
    shard::{self, RankShard, assemble_shards},
};

/// The command-line option that provides inputs.
pub(crate) const INPUT: &str = "--input";

/// An operand of `--input`, `--expect` or `--output`: `NAME=…` or `NAME@local=…`.
#[derive(Clone, Debug, PartialEq)]
pub struct InputFlag {
    /// Name of the tensor: `T0`.
    pub name: String,
    /// True if the value is the part of each rank. `%r` in the value stands for the rank.
    pub local: bool,
    /// The value: a literal, or `@` and a file.
    pub value: String,
}

impl FromStr for InputFlag {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(
                "expected `NAME=@file.npy`, `NAME@local=@file.%r.npy` or `NAME=2x2xf32=1 2 3 4`".into()
            );
        };
        let (name, local) = match name.strip_suffix("@local") {
            Some(name) => (name, true),
            None => (name, false),
        };
        Ok(Self { name: name.trim().to_owned(), local, value: value.to_owned() })
    }
}

impl InputFlag {
    /// Parses the value for one rank.
    pub(crate) fn source(&self, option: &str, rank: usize) -> Result<TensorSource, RunError> {
        self.value_of(rank).parse().map_err(|error| self.flag_error(option, error))
    }

    /// Returns the text of the value for one rank.
    fn value_of(&self, rank: usize) -> String {
        if self.local { self.value.replace("%r", &rank.to_string()) } else { self.value.clone() }
    }

    /// Loads the value for one rank, in the logical shape of `port`: the whole tensor, or the part of the
    /// rank. `option` is the option that the flag belongs to.
    ///
    /// # Errors
    /// The value cannot be read, or does not have the tensor's element type or one of its shapes.
    pub fn load(
        &self,
        files: &InputFiles,
        option: &str,
        rank: usize,
        port: &IoBinding,
    ) -> Result<LoadedTensor, RunError> {
        let source = self.source(option, rank)?;
        let loaded = source.load(files, port.dtype).map_err(|error| self.flag_error(option, error))?;
        let scope = if self.local { Scope::Local } else { Scope::Whole };
        match to_logical(loaded.tensor, port, scope) {
            Ok(tensor) => Ok(LoadedTensor { tensor, ..loaded }),
            Err(fault) => Err(self.shape_error(option, rank, &fault.to_string())),
        }
    }

    /// Returns the shape of an input's value for one rank.
    ///
    /// # Errors
    /// The value cannot be read.
    pub(super) fn shape(&self, files: &InputFiles, rank: usize) -> Result<Vec<usize>, RunError> {
        match self.source(INPUT, rank)? {
            TensorSource::Literal(tensor) => Ok(tensor.shape),
            TensorSource::File(file) => {
                file.read(files).map(|it| it.shape).map_err(|error| self.flag_error(INPUT, error))
            }
        }
    }

    /// Returns the error for a value that does not have a shape of the tensor.
    pub(super) fn shape_error(&self, option: &str, rank: usize, fault: &str) -> RunError {
        let value = self.value_of(rank);
        let what = if value.starts_with('@') { format!("`{value}`") } else { "the literal".to_owned() };
        RunError::Tensor(format!("`{}`: {what} {fault}", self.flag_text(option)))
    }

    pub(super) fn flag_error(&self, option: &str, error: IoError) -> RunError {
        RunError::InvalidFlagValue { flag: self.flag_text(option), error }
    }

    /// Formats the flag without its value: `--input T0@local`.
    fn flag_text(&self, option: &str) -> String {
        format!("{option} {}{}", self.name, if self.local { "@local" } else { "" })
    }
}

/// Checks that each flag of `--input` names another input. `inputs` are those of all ranks.
pub(super) fn check_input_names<'n>(
    flags: &[InputFlag],
    inputs: impl Iterator<Item = &'n str>,
) -> Result<(), RunError> {
    let names: IndexSet<&str> = inputs.collect();
    if let Some(stray) = flags.iter().find(|it| !names.contains(it.name.as_str())) {
        let near = grammar::nearest(&stray.name, names.iter().copied());
        let near = near.map(|it| format!("; did you mean `{it}`?")).unwrap_or_default();
        return Err(RunError::Tensor(format!(
            "`--input {}`: the program has no such input; it has {}{near}",
            stray.name,
            grammar::list_text(names.iter().copied(), 12, "and")
        )));
    }
    let twice = |at: &usize| flags[..*at].iter().any(|it| it.name == flags[*at].name);
    match (0..flags.len()).find(twice) {
        Some(again) => Err(RunError::Tensor(format!("`--input {}` is given twice", flags[again].name))),
        None => Ok(()),
    }
}

/// Returns the error for a flag of `--expect` that names no output.
pub fn unknown_output(flag: &InputFlag, outputs: &[&str]) -> RunError {
    RunError::Tensor(format!(
        "`--expect {}`: the program has no such output; it has {}",
        flag.name,
        outputs.join(", ")
    ))
}

/// The source of the input values: flags, tensors in memory and a generator.
#[derive(Clone, Debug)]
pub struct InputSpec {
    /// Generates the inputs that no flag provides.
    pub generator: InputGenerator,
    /// The flags that provide inputs.
    pub flags: Vec<InputFlag>,
    /// Whole tensors in memory, with the names of their inputs.
    tensors: Vec<(String, NdArray)>,
    /// By position: the inputs that are used as indices.
    indices: FxHashMap<usize, IndexRange>,
    /// The files that the run has read.
    files: Arc<InputFiles>,
    /// Notes about conversions between float types, to be printed.
    pub notes: Vec<String>,
}

impl InputSpec {
    /// Creates a specification of generated values, whose `exact` values are small enough that the longest sum is exact in the
    /// narrowest float type of the world.
    pub fn new(kind: InputKind, seed: u64, world: &World) -> Self {
        let exact = exact_range::of(world);
        let generator = InputGenerator { kind, seed, exact };
        Self {
            generator,
            flags: Vec::new(),
            tensors: Vec::new(),
            indices: index_inputs(world),
            files: Arc::default(),
            notes: Vec::new(),
        }
    }

    /// Adds whole tensors in memory, each with the name of its input.
    pub fn with_tensors(self, tensors: Vec<(String, NdArray)>) -> Self {
        Self { tensors, ..self }
    }

    /// Adds flags that provide inputs. `files` are those that the run has read.
    pub fn with_flags(self, flags: Vec<InputFlag>, files: &Arc<InputFiles>) -> Self {
        Self { flags, files: Arc::clone(files), ..self }
    }

    /// Returns the names of the generated inputs from which the indices of a statement are computed. `line` is that of the statement of
    /// a rank.
    pub fn generated_behind_indices(&self, world: &World, rank: usize, line: u32) -> Vec<String> {
        let names = inputs_behind_indices(world, rank, line).into_iter();
        let names = names.filter_map(|it| Some(world[rank].inputs.get(it)?.name.clone()));
        let is_given = |name: &String| {
            self.flags.iter().any(|it| it.name == *name) || self.tensors.iter().any(|it| it.0 == *name)
        };
        names.filter(|it| !is_given(it)).collect()
    }

    /// Returns whether ranks that hold the same part of an input may get different values.
    pub fn differs_by_rank(&self) -> bool {
        self.generator.kind == InputKind::Rank || self.flags.iter().any(|it| it.local)
    }

    /// Returns every rank's part of every input.
    ///
    /// # Errors
    /// A flag names a tensor that is not an input, a file cannot be read or has the wrong shape, or an
    /// element type has no arithmetic.
    pub fn fill(&mut self, plans: &[Plan]) -> Result<Vec<Vec<Arc<Data>>>, RunError> {
        self.fill_ranks(plans, |_| true)
    }

    /// Like `fill`, but only for the ranks that `wanted` selects. The other ranks get no inputs.
    ///
    /// # Errors
    /// The errors of `fill`.
    pub fn fill_ranks(
        &mut self,
        plans: &[Plan],
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<Vec<Arc<Data>>>, RunError> {
        check_input_names(
            &self.flags,
            plans.iter().flat_map(|plan| &plan.inputs).map(|it| it.name.as_str()),
        )?;
        let mut wholes = tensors_of_inputs(&self.tensors, plans)?;
        for flag in self.flags.iter().filter(|it| !it.local) {
            if let Some(port) = plans.iter().flat_map(|plan| &plan.inputs).find(|port| port.name == flag.name)
            {
                let loaded = flag.load(&self.files, INPUT, 0, port)?;
                self.notes.extend(loaded.converted.map(|from| conversion_note(&flag.name, from, port)));
                wholes.push((flag.name.clone(), loaded.tensor));
            }
        }
        let mut ranks = Vec::with_capacity(plans.len());
        // Ranks that hold the same part share it.
        let mut known: FxHashMap<(usize, &ShardLayout), Arc<Data>> = FxHashMap::default();
        for plan in plans {
            let mut inputs = Vec::with_capacity(plan.inputs.len());
            for (position, port) in plan.inputs.iter().enumerate().filter(|_| wanted(plan.rank)) {
                let own = || self.part(plan.rank, position, port, &wholes).map(Arc::new);
                let data = match known.entry((position, &port.shard.layout)) {
                    _ if self.differs_by_rank() || port.shard.view.is_none() => own()?,
                    Entry::Occupied(it) => Arc::clone(it.get()),
                    Entry::Vacant(it) => Arc::clone(it.insert(own()?)),
                };
                inputs.push(data);
            }
            ranks.push(inputs);
        }
        Ok(ranks)
    }

    /// Returns every rank's part of every input of another program that takes the same inputs, by position.
    /// `plans` belong to the program whose inputs the flags name.
    ///
    /// # Errors
    /// The errors of `fill`. Ranks hold different values of one element, and the other program shards the
    /// tensor differently.
    pub fn fill_corresponding(
        &self,
        plans: &[Plan],
        other: &[Plan],
    ) -> Result<Vec<Vec<Arc<Data>>>, RunError> {
        let plain = Self { flags: Vec::new(), tensors: Vec::new(), notes: Vec::new(), ..self.clone() };
        let mut inputs = plain.clone().fill(other)?;
        if self.flags.is_empty() {
            return Ok(inputs);
        }
        let mine = Self { notes: Vec::new(), ..self.clone() }.fill(plans)?;
        for flag in &self.flags {
            let find = |plan: &Plan| plan.inputs.iter().position(|port| port.name == flag.name);
            let Some(position) = plans.iter().find_map(find) else { continue };
            let theirs = |rank: usize| other.get(rank).and_then(|plan| plan.inputs.get(position));
            let mut parts: Vec<(&IoBinding, &Arc<Data>, WrittenMask, usize)> = Vec::new();
            for (plan, data) in plans.iter().zip(&mine) {
                let at = find(plan).filter(|at| plan.inputs[*at].shard.view.is_some());
                parts.extend(
                    at.map(|at| (&plan.inputs[at], &data[at], WrittenMask::full(data[at].len()), plan.rank)),
                );
            }
            let is_alike = |(port, _, _, rank): &(&IoBinding, &Arc<Data>, WrittenMask, usize)| {
                theirs(*rank)
                    .is_some_and(|it| it.shard.view.is_some() && it.shard.layout == port.shard.layout)
            };
            let held =
                other.iter().filter(|plan| theirs(plan.rank).is_some_and(|it| it.shard.view.is_some()));
            if parts.len() == held.count() && parts.iter().all(is_alike) {
                parts.iter().for_each(|(_, data, _, rank)| inputs[*rank][position] = Arc::clone(data));
                continue;
            }
            let shards: Vec<RankShard<'_>> = parts
                .iter()
                .map(|(port, data, written, rank)| RankShard {
                    rank: *rank,
                    layout: &port.shard.layout,
                    data,
                    written,
                    shadow: None,
                })
                .collect();
            let whole = assemble_shards(&shards)?;
            if let Some(it) = whole.conflict {
                return Err(RunError::Tensor(format!(
                    "`{}`: element {:?} is {} on rank {} and {} on rank {}; the other program shards this tensor \
                     differently and needs one value",
                    flag.flag_text(INPUT),
                    it.index,
                    it.values[0],
                    it.ranks[0],
                    it.values[1],
                    it.ranks[1]
                )));
            }
            for (rank, inputs) in inputs.iter_mut().enumerate() {
                let Some(port) = theirs(rank).filter(|it| it.shard.view.is_some()) else { continue };
                // The shapes differ only by split or merged dimensions, so the order of elements is the same.
                let tensor =
                    NdArray { shape: port.shard.layout.shape.clone(), data: whole.tensor.data.clone() };
                inputs[position] = Arc::new(shard::local_shard(&tensor, &port.shard.layout)?);
            }
        }
        Ok(inputs)
    }

    fn part(
        &self,
        rank: usize,
        position: usize,
        port: &IoBinding,
        wholes: &[(String, NdArray)],
    ) -> Result<Data, RunError> {
        if port.shard.view.is_none() {
            return Ok(Data::zeros(port.dtype, 0)?);
        }
        let layout = &port.shard.layout;
        if let Some((name, whole)) = wholes.iter().find(|(name, _)| *name == port.name) {
            return shard::local_shard(whole, layout)
                .map_err(|fault| RunError::Tensor(format!("`--input {name}`: {fault}")));
        }
        if let Some(flag) = self.flags.iter().find(|it| it.local && it.name == port.name) {
            return Ok(flag.load(&self.files, INPUT, rank, port)?.tensor.data);
        }
        Ok(match self.indices.get(&position).filter(|_| port.dtype.is_integral()) {
            None => self.generator.fill(position, port.dtype, layout, rank)?,
            Some(IndexRange::Below(most)) => {
                self.generator.fill_indices(position, port.dtype, layout, *most)?
            }
            Some(IndexRange::Ends { groups, extent }) => {
                let mut data = Data::zeros(port.dtype, layout.global_indices().len())?;
                for (at, group) in layout.global_indices().into_iter().enumerate() {
                    data.set(at, Number::Int(((group + 1) * extent / groups.max(&1)) as i64));
                }
                data
            }
        })
    }
}

/// Returns the tensors in memory in the logical shapes of their inputs.
fn tensors_of_inputs(
    tensors: &[(String, NdArray)],
    plans: &[Plan],
) -> Result<Vec<(String, NdArray)>, RunError> {
    let ports = || plans.iter().flat_map(|plan| &plan.inputs);
    let names: IndexSet<&str> = ports().map(|it| it.name.as_str()).collect();
    let convert = |(name, tensor): &(String, NdArray)| {
        let Some(port) = ports().find(|it| it.name == *name) else {
            let known = grammar::list_text(names.iter().copied(), 12, "and");
            return Err(RunError::Tensor(format!("`{name}` is no input of the program; it has {known}")));
        };
        let given = tensor.data.dtype();
        if given != port.dtype && (given, port.dtype) != (DType::Int64, DType::Index) {
            let (given, wanted) = (given.short_name(), port.dtype.short_name());
            return Err(RunError::Tensor(format!("`{name}` has the element type {wanted}, not {given}")));
        }
        let whole = to_logical(tensor.clone(), port, Scope::Whole)
            .map_err(|fault| RunError::Tensor(format!("the array {fault}")))?;
        Ok((name.clone(), whole))
    };
    tensors.iter().map(convert).collect()
}

fn conversion_note(name: &str, from: DType, port: &IoBinding) -> String {
    format!(
        "{name}: converted from {} to {}, rounding to nearest even",
        from.short_name(),
        port.dtype.short_name()
    )
}

/// Returns the inputs of two runs, one after the other, of each rank.
pub(super) fn of_both_runs(
    mut first: Vec<Vec<Arc<Data>>>,
    second: Vec<Vec<Arc<Data>>>,
) -> Vec<Vec<Arc<Data>>> {
    first.iter_mut().zip(second).for_each(|(mine, more)| mine.extend(more));
    first
}
