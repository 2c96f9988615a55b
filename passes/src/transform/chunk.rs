//! chunk: splits an axis into chunks for streams, in all tensors that share the axis.
//!
//! Before (`chunk{axis=iS0,count=4}`):
//! ```text
//! T2[iS0{12}, iS1{5}] = linear(T0[iS3{12}, iS4{8}], T1[iS5{5}, iS6{8}])
//! ```
//! After:
//! ```text
//! T2[istreamIdx8{4}, iS9{3}, iS1{5}] = linear(T0[iS3{12}, iS4{8}], T1[iS5{5}, iS6{8}])
//! ```
//!
//! With `axis=auto`, the default, the pass splits the axes along which resharding can overlap with
//! computation (see `auto`).
//!
//! An existing stream axis is replaced, unless the program depends on its chunks: a ShardByStream, a loop over the
//! axis, or an allocation domain. An axis that is sharded over devices is split within each device.
//! With `sizes=a,b,…`, the chunks have these numbers of elements (see `sizes`).

mod auto;
mod axis_users;
mod chunked_axis;
mod groups;
mod obstacles;
mod sizes;

use std::ops::RangeInclusive;

use grammar::{
    AxisId, Code, Diagnostic, Domains, ParallelType, Program, Span, TensorId, Transform, axis_text,
};
use hir_ir::build::IrBuilder;
use rustc_hash::FxHashSet;

pub(crate) use axis_users::AxisUsers;
pub(crate) use obstacles::known_extent;
use obstacles::{allocates_parts, obstacle_to_new_axes, tensors_of_shared_numbers};

pub(crate) use sizes::chunk_by_sizes;

pub(crate) use auto::{Chunking, CommCandidate, MAX_COUNT, choose_chunking, comm_candidates};

use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, EquivalentDims, Extent},
        sharding::{Dim, DimPiece, Sharding},
    },
    pass::{Arguments, Change, Obstacle, OptionKind, OptionSpec, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("chunk", include_str!("chunk.rs"), run)
    .about("split an axis into chunks for streams, in all tensors that share it")
    .with_options(&[
        OptionSpec::new("axis", OptionKind::Text, Some("auto")).about(
            "an axis, such as iS7, or a dimension of a tensor, such as T3.0; auto: the axes along which \
             resharding can overlap",
        ),
        OptionSpec::new("count", OptionKind::Count, None).about(
            "number of chunks, with axis=auto at most; default: the largest up to 4 that divides the axis",
        ),
        OptionSpec::new("sizes", OptionKind::Counts, None)
            .about("number of elements of each chunk, such as 2048,2048,1024; default: chunks of equal size"),
    ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    if arguments.count("count") == Some(0) {
        return Err(arguments.error("count", "cannot split an axis into 0 chunks", "expected 1 or more"));
    }
    // With more chunks than this, chunks would be empty or the tensor would not fit in memory.
    let count = arguments.count("count").map(|it| it.min(1 << 31) as i64);
    let name = arguments.text("axis").unwrap_or("auto");
    if name == "auto" {
        if arguments.counts("sizes").is_some() {
            let message = "`chunk` accepts `sizes=…` only together with `axis=…`";
            let it = arguments.error("sizes", message, "sizes of the chunks of which axis?");
            return Err(it.help("add `axis=…`, such as `axis=T3.0`"));
        }
        let mut change = Change::Unchanged;
        let shared_numbers = tensors_of_shared_numbers(program);
        for cut in auto::auto_chunkings(program, count.unwrap_or(DEFAULT_COUNT)) {
            // An earlier iteration may have split a tensor of this chunking.
            let is_free = |(tensor, dim): &(TensorId, usize)| {
                !shared_numbers.contains(tensor)
                    && obstacle_to_count(program, *tensor, *dim, cut.count).is_none()
            };
            let is_free = cut.component.dims.iter().all(is_free);
            if is_free
                && chunk_equally(program, std::slice::from_ref(&cut)).map_err(|it| it.1)? == Change::Changed
            {
                change = Change::Changed;
            }
        }
        if change == Change::Unchanged {
            let message = "`chunk` changes nothing: `axis=auto` finds no axis along which communications can overlap with computation";
            remarks.no_effect(program.spans.header, message, "no such axis");
        }
        return Ok(change);
    }
    let (tensor, dim) = find(program, name).ok_or_else(|| {
        let message = format!("no tensor has the axis `{name}`");
        arguments
            .error("axis", message, "expected an axis of the program")
            .help("name an axis as the program prints it, such as iS7, or a dimension, such as T3.0")
    })?;
    if let Some(sizes) = arguments.counts("sizes") {
        if count.is_some() {
            let message = "`chunk` accepts `count=…` or `sizes=…`, not both";
            let it = arguments.error("sizes", message, "sizes of the chunks");
            return Err(it
                .label(arguments.span("count"), "number of equal chunks")
                .help("remove one of them"));
        }
        let sizes: Vec<i64> = sizes.into_iter().map(|it| it as i64).collect();
        return chunk_by_sizes(program, name, &sizes, (tensor, dim));
    }
    let component = DimEquivalence::of(program).dims_equivalent_to(tensor, dim).map_err(|twice| {
        let message = format!("`{}` has the axis `{name}` twice", program.tensor_name(twice));
        Diagnostic::new(
            Code::NotRewritten,
            program.tensor_span(twice),
            message,
            "both dimensions would have to be split",
        )
        .help("name an axis that occurs in one dimension of each tensor")
    })?;
    let divides = |count: &i64| {
        component.dims.iter().all(|(tensor, dim)| obstacle_to_count(program, *tensor, *dim, *count).is_none())
    };
    // If no count divides the axis, the count 2 makes `chunk_all` report the reason.
    let count = count.unwrap_or_else(|| (2..=DEFAULT_COUNT).rev().find(divides).unwrap_or(2));
    EqualChunks::of(program, name).chunk_all(count, &component)
}

/// The default limit for the number of chunks: the largest number up to this that divides the axis is used.
pub(crate) const DEFAULT_COUNT: i64 = 4;

/// Splits dimensions into chunks of equal size, each in all tensors that share it.
///
/// # Errors
/// Returns the first dimension that cannot be split, as an index into `cuts`, and why. The program is not usable then.
pub(crate) fn chunk_equally(program: &mut Program, cuts: &[Chunking]) -> Result<Change, (usize, Diagnostic)> {
    let mut chunks = EqualChunks::of(program, "auto");
    let mut change = Change::Unchanged;
    for (at, cut) in cuts.iter().enumerate() {
        if chunks.chunk_all(cut.count, &cut.component).map_err(|it| (at, it))? == Change::Changed {
            change = Change::Changed;
        }
    }
    Ok(change)
}

/// Returns the reason why a dimension cannot be split into `count` chunks; `None` if it can.
fn obstacle_to_count(program: &Program, tensor: TensorId, dim: usize, count: i64) -> Option<Obstacle> {
    obstacle_to_counts(program, tensor, dim, count..=count)
}

/// Returns the reason why a dimension cannot be split into any number of chunks in `counts`; `None` if it
/// can.
fn obstacle_to_counts(
    program: &Program,
    tensor: TensorId,
    dim: usize,
    counts: RangeInclusive<i64>,
) -> Option<Obstacle> {
    match divided_extent(program, tensor, dim) {
        Ok(it) => DividedExtent::of((tensor, dim), it?).obstacle_to_all(program, counts),
        Err(reason) => Some(reason),
    }
}

/// The extent of a dimension that is split into chunks within each device.
struct DividedExtent {
    tensor: TensorId,
    dim: usize,
    extent: i64,
    /// The number of devices that have a part of it.
    spread: i64,
}

/// Returns the extent of a dimension that can have new axes, and the number of devices that have a part of it; `None` if it is not known.
///
/// # Errors
/// Returns the reason why it cannot have new axes.
fn divided_extent(program: &Program, tensor: TensorId, dim: usize) -> Extent {
    let name = || program.tensor_name(tensor);
    let it = Sharding::of(program, tensor)
        .ok_or_else(|| format!("`{}` is sharded over the inner part of a split axis", name()))?;
    if it.dims.iter().any(|dim| dim.stream().is_some()) {
        return Err(format!("`{}` has a stream axis already", name()).into());
    }
    if allocates_parts(program, tensor, dim) {
        return Err(format!("the allocation domain of `{}` names parts of dimension {dim}", name()).into());
    }
    let spread = it.dims[dim].devices().map(|device| it.mesh.extent(device) as i64).product();
    let extent = known_extent(program, it.dims[dim].extent);
    Ok(extent.map(|extent| (extent, spread)))
}

impl DividedExtent {
    fn of((tensor, dim): (TensorId, usize), (extent, spread): (i64, i64)) -> Self {
        Self { tensor, dim, extent, spread }
    }

    /// Returns whether it can be split into this number of chunks.
    fn is_divided_by(&self, count: i64) -> bool {
        self.extent % (self.spread * count) == 0
    }

    /// Returns the reason why it cannot be split into any of these numbers of chunks; `None` if it can.
    fn obstacle_to_all(&self, program: &Program, counts: RangeInclusive<i64>) -> Option<Obstacle> {
        let (first, last) = (*counts.start(), *counts.end());
        counts.into_iter().all(|count| !self.is_divided_by(count)).then(|| {
            let part = part_of(self.extent, self.spread);
            let divides = if first == last {
                format!("{first} does not divide")
            } else {
                format!("no number from {first} to {last} divides")
            };
            let name = program.tensor_name(self.tensor);
            Obstacle::from(format!("dimension {} of `{name}` has {part}, which {divides}", self.dim))
        })
    }
}

/// Describes the extent on each device of a dimension that is sharded over `spread` devices.
fn part_of(extent: i64, spread: i64) -> String {
    match spread {
        1 => format!("extent {extent}"),
        _ if extent % spread == 0 => {
            format!("extent {} on each of {spread} devices ({extent} in all)", extent / spread)
        }
        _ => format!("extent {extent} over {spread} devices"),
    }
}

/// Finds the tensor and dimension that an axis name such as `iS7`, or `T3.0`, denotes.
fn find(program: &Program, name: &str) -> Option<(TensorId, usize)> {
    if let Some((tensor, dim)) = name.split_once('.') {
        let (number, dim): (u32, usize) = (tensor.strip_prefix('T')?.parse().ok()?, dim.parse().ok()?);
        let tensor = program.tensors.iter().find(|(_, it)| it.number == number && it.unit.is_none())?.0;
        return (dim < program.dimensions(tensor).count()).then_some((tensor, dim));
    }
    let is_named = |axis: &AxisId| axis_text(program, *axis).split('{').next() == Some(name);
    program.tensors.iter().filter(|(_, it)| it.unit.is_none()).find_map(|(tensor, _)| {
        let dim = program
            .dimensions(tensor)
            .position(|axis| is_named(&axis) || loop_axes_of(program, tensor, axis).0.iter().any(is_named))?;
        Some((tensor, dim))
    })
}

struct EqualChunks<'p> {
    fresh: IrBuilder,
    inputs: FxHashSet<TensorId>,
    shared_numbers: FxHashSet<TensorId>,
    users: AxisUsers,
    program: &'p mut Program,
    name: &'p str,
}

impl<'p> EqualChunks<'p> {
    fn of(program: &'p mut Program, name: &'p str) -> Self {
        let inputs = Program::tensors_of(&program.inputs).collect();
        let shared_numbers = tensors_of_shared_numbers(program);
        let (fresh, users) = (IrBuilder::of(program), AxisUsers::of(program));
        Self { fresh, inputs, shared_numbers, users, program, name }
    }

    /// Splits the dimension of every tensor of the component into `count` chunks of equal size.
    fn chunk_all(&mut self, count: i64, component: &EquivalentDims) -> Result<Change, Diagnostic> {
        let mut changed = false;
        for (tensor, dim) in &component.dims {
            let sharding = self.sharding(*tensor)?;
            let cut = self.cut(&sharding, *tensor, *dim, count)?;
            if self.inputs.contains(tensor) || cut == sharding.dims[*dim] {
                continue;
            }
            let known = (&self.shared_numbers, &self.users);
            match obstacle_to_new_axes(self.program, known, self.name, (*tensor, *dim)) {
                Some(obstacle) => return Err(obstacle),
                None => {
                    replace_dim(self.program, (&mut self.fresh, &mut self.users), *tensor, *dim, &cut);
                }
            }
            changed = true;
        }
        Ok(Change::from_flag(changed))
    }

    /// Returns the dimension with a stream piece inside its device pieces.
    fn cut(
        &mut self,
        sharding: &Sharding,
        tensor: TensorId,
        dim: usize,
        count: i64,
    ) -> Result<Dim, Diagnostic> {
        let mut cut = sharding.dims[dim].without_streams();
        let other = sharding.dims.iter().enumerate().any(|(at, it)| at != dim && it.stream().is_some());
        if other {
            let name = self.program.tensor_name(tensor);
            let message = format!(
                "axis `{}`: `{name}` has the axis in dimension {dim}, and a stream axis in another dimension",
                self.name
            );
            let it = self.chunking_error(tensor, message);
            return Err(it.help("a tensor has at most one stream axis: split one of the two axes only"));
        }
        let spread: i64 = cut.devices().map(|device| sharding.mesh.extent(device) as i64).product();
        if let Some(extent) = known_extent(self.program, cut.extent)
            && extent % (spread * count) != 0
        {
            let (name, part) = (self.program.tensor_name(tensor), part_of(extent, spread));
            let message = format!(
                "axis `{}`: dimension {dim} of `{name}` has {part}, which cannot be split into {count} equal chunks",
                self.name
            );
            let it = self.chunking_error(tensor, message);
            return Err(it.help("use another `count=…`, or set the size of each chunk with `sizes=…`"));
        }
        let count = self.program.intern_int(count);
        cut.pieces.push(DimPiece { parallel: ParallelType::Stream, count, swizzled: false });
        Ok(cut)
    }

    fn sharding(&self, tensor: TensorId) -> Result<Sharding, Diagnostic> {
        Sharding::of(self.program, tensor).ok_or_else(|| {
            let name = self.program.tensor_name(tensor);
            self.chunking_error(tensor, format!("`{name}` is sharded over the inner part of a split axis"))
        })
    }

    fn chunking_error(&self, tensor: TensorId, message: String) -> Diagnostic {
        let span: Span = self.program.tensor_span(tensor);
        Diagnostic::new(Code::NotRewritten, span, message, "not chunked")
    }
}

/// Returns the loop axes that a logical axis was transformed into, and the transforms.
fn loop_axes_of(program: &Program, tensor: TensorId, axis: AxisId) -> (Vec<AxisId>, Vec<Transform>) {
    let mut leaves = vec![axis];
    let mut used = Vec::new();
    for transform in &program.tensors[tensor].domains.transforms {
        let (inputs, outputs) = transform.axes();
        if let Some(at) = leaves.iter().position(|leaf| inputs.contains(leaf)) {
            leaves.splice(at..=at, outputs);
            used.push(transform.clone());
        }
    }
    (leaves, used)
}

/// Replaces the axes of one dimension of a tensor by those of `cut`. The new logical axis keeps the number of
/// the old one, since axis numbers encode permutations.
pub(crate) fn replace_dim(
    program: &mut Program,
    (fresh, users): (&mut IrBuilder, &mut AxisUsers),
    tensor: TensorId,
    dim: usize,
    cut: &Dim,
) {
    let Some(axis) = program.dimensions(tensor).nth(dim) else { return };
    let (leaves, used) = loop_axes_of(program, tensor, axis);
    let (mut loops, mut domains) = (Vec::new(), Domains::default());
    cut.append_axes(program, fresh, &mut loops, &mut domains);
    let new = domains.logical[0];
    program.axes[new].number = program.axes[axis].number;
    let it = &mut program.tensors[tensor];
    let at = it.loop_domain.iter().position(|leaf| leaves.contains(leaf)).unwrap_or(it.loop_domain.len());
    it.loop_domain.retain(|leaf| !leaves.contains(leaf));
    it.loop_domain.splice(at..at, loops);
    it.domains.logical.iter_mut().filter(|it| **it == axis).for_each(|it| *it = new);
    it.domains.transforms.retain(|transform| !used.contains(transform));
    it.domains.transforms.append(&mut domains.transforms);
    it.domains.allocation.iter_mut().flatten().filter(|it| **it == axis).for_each(|it| *it = new);
    users.rename(program, tensor, axis, new);
}
