//! Which elements of a tensor a rank holds, and whether a statement needs elements of other ranks.

use std::ops::Range;

use grammar::{
    DimGroup, DimMap, OperandMap, ResultDim, ScalarEvaluator,
    ir::{ExprId, OpStmt, ParallelType, Program, TensorId, Transform},
    operand_map,
    ops::TypeRule,
    result_dims,
    scalars::Scalars,
};

use crate::tensor::{Array, array};

/// The largest number of elements of a tensor.
const MAX_ELEMENTS: usize = 1 << 27;

/// A rank's part of a tensor.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Part {
    /// The shape of the whole tensor.
    pub(crate) whole: Vec<usize>,
    /// For each dimension the indices that the rank holds.
    pub(crate) held: Vec<Vec<usize>>,
    /// The dimension whose outermost axis is divided between streams, with the number of chunks.
    pub(crate) stream_axis: Option<(usize, usize)>,
}

impl Part {
    /// Returns all of a tensor.
    pub(crate) fn all(whole: &[usize]) -> Self {
        let held = whole.iter().map(|extent| (0..*extent).collect()).collect();
        Self { whole: whole.to_vec(), held, stream_axis: None }
    }

    /// Returns the part of a rank of the mesh, or all of the tensor without a rank. `stream` is the slice, if the tensor holds one stream's
    /// slice; `None`: the slices of all streams.
    pub(crate) fn of(
        program: &Program,
        scalars: &Scalars<'_>,
        tensor: TensorId,
        rank: Option<usize>,
        stream: Option<usize>,
    ) -> Result<Self, &'static str> {
        let it = &program.tensors[tensor];
        let axes = program.dimensions(tensor).map(|axis| &program.axes[axis]);
        let sizes =
            axes.map(|it| size(scalars, it.expanded.unwrap_or(it.extent))).collect::<Option<Vec<_>>>();
        let sizes = sizes.ok_or("an extent has no value; give it one with `--set`")?;
        if sizes.iter().fold(1, |all: usize, it| all.saturating_mul((*it).max(1))) > MAX_ELEMENTS {
            return Err("it has more than 134217728 elements");
        }
        let mut part = Self::all(&sizes);
        let Some(rank) = rank else { return Ok(part) };
        if it.domains.transforms.iter().any(|it| matches!(it, Transform::Merge { .. })) {
            return Err("an axis is merged with another one");
        }
        let stream = stream.filter(|_| program.is_split_by_stream(tensor));
        for (dim, axis) in program.dimensions(tensor).enumerate() {
            let (mut held, mut inner, mut is_outermost) = (vec![0], part.whole[dim], true);
            for leaf in program.loop_axes_of(tensor, axis) {
                let own = &program.axes[leaf];
                let extent = if leaf == axis { Some(inner) } else { size(scalars, own.extent) };
                let extent = extent.filter(|by| *by > 0 && inner.is_multiple_of(*by) || *by == inner);
                let extent = extent.ok_or("an axis is not split into equal parts")?;
                inner /= extent.max(1);
                let fixed = match own.parallel {
                    ParallelType::Device(device) => {
                        let at =
                            it.mesh.coordinate(rank, device).filter(|_| it.mesh.extent(device) == extent);
                        Some(at.ok_or("a device axis does not fit its mesh")?)
                    }
                    ParallelType::Stream => {
                        if is_outermost && stream.is_none() {
                            part.stream_axis = part.stream_axis.or(Some((dim, extent)));
                        }
                        stream
                    }
                    ParallelType::Serial | ParallelType::Kernel(_) => None,
                };
                is_outermost &= fixed.is_some() || extent == 1;
                let values = fixed.map_or(0..extent, |at| at..at + 1);
                held =
                    held.iter().flat_map(|start| values.clone().map(move |at| start * extent + at)).collect();
            }
            if inner > 1 {
                return Err("an axis is not split into equal parts");
            }
            part.held[dim] = held;
        }
        Ok(part)
    }

    /// Returns the shape of the part.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.held.iter().map(Vec::len).collect()
    }

    /// Returns the row-major index in the whole tensor of each element of the part.
    pub(crate) fn places(&self) -> Array<usize> {
        array(&self.shape(), self.places_in(0..self.whole.len()))
    }

    /// Returns the row-major indices of the part in consecutive dimensions.
    fn places_in(&self, dims: Range<usize>) -> Vec<usize> {
        let below = |found: Vec<usize>, dim: usize| {
            let held = |start| self.held[dim].iter().map(move |at| start * self.whole[dim] + at);
            found.into_iter().flat_map(held).collect()
        };
        dims.fold(vec![0], below)
    }

    fn has_all(&self, dim: usize) -> bool {
        self.held[dim].len() == self.whole[dim]
    }
}

/// Returns a count or an index.
pub(crate) fn size(scalars: &Scalars<'_>, expr: ExprId) -> Option<usize> {
    usize::try_from(scalars.int(expr).ok()?).ok()
}

/// Returns the positions of the indices that one rank holds among those that another one holds, if it has all of them.
pub(crate) fn positions(has: &[usize], takes: &[usize]) -> Option<Vec<usize>> {
    takes.iter().map(|it| has.binary_search(it).ok()).collect()
}

/// Returns whether a part of the first result is computed from these parts of the operands: corresponding dimensions have corresponding
/// indices.
pub(crate) fn is_aligned(
    program: &Program,
    stmt: &OpStmt,
    value: ScalarEvaluator<'_>,
    args: &[Part],
    to: &Part,
) -> bool {
    let has_all = |it: &Part, from: usize| (from..it.whole.len()).all(|dim| it.has_all(dim));
    let mut all = args.iter().chain([to]);
    if all.clone().all(|it| has_all(it, 0)) {
        return true;
    }
    let maps = (0..args.len()).map(|at| operand_map(program, stmt, at, value)).collect::<Option<Vec<_>>>();
    let Some(maps) = maps else {
        return stmt.rule().runs_on_outermost_parts(stmt)
            && all.all(|it| it.held.first() == to.held.first() && has_all(it, 1));
    };
    let mut dims = Vec::new();
    for (map, part) in maps.into_iter().zip(args) {
        match map {
            OperandMap::Dims(it) => dims.push(it),
            OperandMap::Groups(groups) => {
                let is_same = |it: DimGroup| part.places_in(it.operand) == to.places_in(it.result);
                return groups.into_iter().all(is_same);
            }
        }
    }
    let results = result_dims(program, stmt, &dims);
    let partial = results.iter().position(|it| *it == ResultDim::Partial);
    let is_copy = stmt.op.def().type_rule == TypeRule::Same;
    let fits = |from: &Part, dim: usize, map: DimMap| {
        let (held, len) = (&from.held[dim], from.whole[dim]);
        let at = match map {
            DimMap::Parallel(at) | DimMap::InGroups { to: at, .. } => Some(at),
            DimMap::Reduction => partial,
            DimMap::Broadcast(_) | DimMap::RequiresWhole => None,
        };
        let Some((own, other)) = at.map(|at| (&to.held[at], to.whole[at])) else { return from.has_all(dim) };
        if len == other || matches!(map, DimMap::Parallel(_)) {
            return held == own || is_copy && positions(held, own).is_some();
        }
        // The indices in two dimensions that are made as long as each other.
        let scaled = |held: &[usize], by: usize| -> Vec<usize> {
            held.iter().flat_map(|at| at * by..(at + 1) * by).collect()
        };
        scaled(held, other) == scaled(own, len)
    };
    let mut operands = dims.iter().zip(args);
    operands.all(|(maps, from)| maps.iter().enumerate().all(|(dim, map)| fits(from, dim, *map)))
        && (0..results.len()).all(|dim| results[dim] != ResultDim::RequiresWhole || to.has_all(dim))
}
