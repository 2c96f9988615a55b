//! The values of a program's inputs, on every rank.

use std::str::FromStr;

use grammar::{
    dtype::DType,
    ir::{AxisId, Expr, Program},
};

use super::RunError;
use crate::{
    io::{
        data::{Data, Tensor},
        file::{IoError, Loaded, Source},
        generate::{ExactRange, Generator, Kind},
        shard,
    },
    plan::{InstKind, Plan, Port, ReduceOp},
};

/// `--input NAME=…` or `--input NAME@local=…`.
#[derive(Clone, Debug, PartialEq)]
pub struct InputFlag {
    /// The tensor, `T0`.
    pub name: String,
    /// Whether the value is each rank's own part; `%r` in it stands for the rank.
    pub local: bool,
    /// Where it comes from.
    pub value: String,
}

impl FromStr for InputFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(
                "expected `NAME=@file.npy`, `NAME@local=@file.%r.npy` or `NAME=2x2xf32=1 2 3 4`".to_owned()
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
    /// The value for one rank.
    pub(super) fn source(&self, rank: usize) -> Result<Source, RunError> {
        self.value.replace("%r", &rank.to_string()).parse().map_err(|error| self.fault(error))
    }

    /// The tensor for one rank.
    fn load(&self, rank: usize, dtype: DType) -> Result<Loaded, RunError> {
        self.source(rank)?.load(dtype).map_err(|error| self.fault(error))
    }

    fn fault(&self, error: IoError) -> RunError {
        let local = if self.local { "@local" } else { "" };
        RunError::Given { flag: format!("--input {}{local}", self.name), error }
    }
}

/// What the inputs are filled with.
#[derive(Clone, Debug)]
pub struct Filling {
    /// How inputs without a flag are made up.
    pub generator: Generator,
    /// Inputs that are given.
    pub given: Vec<InputFlag>,
    /// Float conversions that were made, to be told.
    pub notes: Vec<String>,
}

impl Filling {
    /// A filling whose `exact` values suit the plans: small enough for the longest sum in the narrowest float type.
    pub fn new(kind: Kind, seed: u64, given: Vec<InputFlag>, plans: &[Plan]) -> Self {
        let exact = ExactRange::for_terms(longest_sum(plans), narrowest(plans));
        Self { generator: Generator { kind, seed, exact }, given, notes: Vec::new() }
    }

    /// Every rank's part of every input.
    ///
    /// # Errors
    /// A flag for a tensor that is no input, a file that does not read or fit, an element type without arithmetic.
    pub fn fill(&mut self, plans: &[Plan]) -> Result<Vec<Vec<Data>>, RunError> {
        self.fill_some(plans, |_| true)
    }

    /// As `fill`, for the ranks that are wanted; the others get no inputs.
    ///
    /// # Errors
    /// As `fill`.
    pub fn fill_some(
        &mut self,
        plans: &[Plan],
        wanted: impl Fn(usize) -> bool,
    ) -> Result<Vec<Vec<Data>>, RunError> {
        let names: Vec<&str> =
            plans.iter().flat_map(|plan| &plan.inputs).map(|port| port.name.as_str()).collect();
        if let Some(stray) = self.given.iter().find(|it| !names.contains(&it.name.as_str())) {
            let mut names = names;
            names.dedup();
            names.truncate(12);
            return Err(RunError::Tensor(format!(
                "`--input {}`: the program has no such input; it has {}",
                stray.name,
                names.join(", ")
            )));
        }
        let twice = |at: &usize| self.given[..*at].iter().any(|it| it.name == self.given[*at].name);
        if let Some(again) = (0..self.given.len()).find(twice) {
            return Err(RunError::Tensor(format!("`--input {}` is given twice", self.given[again].name)));
        }
        let mut wholes: Vec<(String, Tensor)> = Vec::new();
        for flag in self.given.iter().filter(|it| !it.local) {
            if let Some(port) = plans.iter().flat_map(|plan| &plan.inputs).find(|port| port.name == flag.name)
            {
                let loaded = flag.load(0, port.dtype)?;
                self.notes.extend(loaded.converted.map(|from| converted(&flag.name, from, port)));
                wholes.push((flag.name.clone(), loaded.tensor));
            }
        }
        let mut ranks = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut inputs = Vec::with_capacity(plan.inputs.len());
            for (position, port) in plan.inputs.iter().enumerate().filter(|_| wanted(plan.rank)) {
                inputs.push(self.part(plan.rank, position, port, &wholes)?);
            }
            ranks.push(inputs);
        }
        Ok(ranks)
    }

    fn part(
        &self,
        rank: usize,
        position: usize,
        port: &Port,
        wholes: &[(String, Tensor)],
    ) -> Result<Data, RunError> {
        if port.shard.view.is_none() {
            return Ok(Data::zeros(port.dtype, 0)?);
        }
        let layout = &port.shard.layout;
        if let Some((name, whole)) = wholes.iter().find(|(name, _)| *name == port.name) {
            return shard::slice(whole, layout)
                .map_err(|fault| RunError::Tensor(format!("`--input {name}`: {fault}")));
        }
        if let Some(flag) = self.given.iter().find(|it| it.local && it.name == port.name) {
            let tensor = flag.load(rank, port.dtype)?.tensor;
            let wanted: usize = layout.local_shape().iter().product();
            if tensor.data.len() != wanted {
                return Err(RunError::Tensor(format!(
                    "`--input {}@local`: rank {rank} gets shape {:?} where its part is {:?}",
                    flag.name,
                    tensor.shape,
                    layout.local_shape()
                )));
            }
            return Ok(tensor.data);
        }
        Ok(self.generator.fill(position, port.dtype, layout, rank)?)
    }
}

fn converted(name: &str, from: DType, port: &Port) -> String {
    format!("{name}: converted from {} to {}, to nearest even", from.short_name(), port.dtype.short_name())
}

/// Gives symbolic extents the values that input files show.
///
/// # Errors
/// A file that does not read.
pub fn bind_extents(program: &mut Program, given: &[InputFlag]) -> Result<(), RunError> {
    for flag in given.iter().filter(|it| !it.local) {
        let found = Program::tensors_of(&program.inputs).find(|id| program.tensor_name(*id) == flag.name);
        let Some(tensor) = found else { continue };
        let shape = match flag.source(0)? {
            Source::Literal(tensor) => tensor.shape,
            Source::File(file) => file.read().map_err(|error| flag.fault(error))?.shape,
        };
        let dims: Vec<_> = program.dimensions(tensor).collect();
        if dims.len() != shape.len() {
            let symbolic = |axis: &AxisId| program.constant(program.axes[*axis].extent).is_none();
            if dims.iter().any(symbolic) {
                return Err(RunError::Tensor(format!(
                    "`--input {}` has {} dimensions where the program has {}",
                    flag.name,
                    shape.len(),
                    dims.len()
                )));
            }
            continue;
        }
        for (axis, extent) in dims.into_iter().zip(shape) {
            if let Expr::Symbol(symbol) = program.exprs[program.axes[axis].extent] {
                let value = program.int(extent as i64);
                program.definitions.entry(symbol).or_insert(value);
            }
        }
    }
    Ok(())
}

/// The largest number of products that are summed into one element, over ranks included.
pub fn longest_sum(plans: &[Plan]) -> usize {
    let mut local = 1;
    let mut over_ranks = 1;
    let mut visit = |kind: &InstKind, plan: &Plan| match kind {
        InstKind::Gemm(it) => local = local.max(it.a.shape.last().copied().unwrap_or(1)),
        InstKind::Reduce(it) => {
            local = local.max(it.axes.iter().map(|axis| it.input.shape[*axis]).product());
        }
        InstKind::Collective(it) => {
            let sums = |op: ReduceOp| matches!(op, ReduceOp::Sum | ReduceOp::Avg);
            if it.kind.combines().is_some_and(sums) {
                over_ranks = over_ranks.max(plan.communicators[it.communicator as usize].team.len());
            }
        }
        InstKind::Combine { parts, .. } => over_ranks = over_ranks.max(parts.len()),
        InstKind::Reshard(_)
        | InstKind::Alloc { .. }
        | InstKind::Copy { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Map { .. }
        | InstKind::Transfer(_)
        | InstKind::Wait { .. }
        | InstKind::Signal { .. }
        | InstKind::Await { .. }
        | InstKind::Record { .. }
        | InstKind::Join { .. }
        | InstKind::Exchange { .. }
        | InstKind::Barrier
        | InstKind::Finish => (),
    };
    for plan in plans {
        for inst in &plan.code {
            match &inst.kind {
                InstKind::Reshard(it) => it.body.iter().for_each(|kind| visit(kind, plan)),
                kind => visit(kind, plan),
            }
        }
    }
    local * over_ranks
}

/// The fewest significand bits of any buffer; 53 where there is no float.
fn narrowest(plans: &[Plan]) -> u32 {
    let buffers = plans.iter().flat_map(|plan| &plan.buffers);
    buffers.filter_map(|it| it.dtype.significand_bits()).min().unwrap_or(53)
}
