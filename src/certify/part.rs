//! Which elements of a tensor a rank holds, and whether a statement needs elements of other ranks.

use std::ops::Range;

use grammar::{
    DimGroup, DimMap, OperandMap, ResultDim,
    ir::{DeviceDim, ExprId, OpStmt, ParallelType, Program, TensorId, Transform},
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
    /// For each dimension its device axes, innermost first, each with the number of elements between its indices.
    sharding: Vec<Sharding>,
    /// The dimension whose outermost axis is divided between streams, with the number of chunks.
    pub(crate) stream_axis: Option<(usize, usize)>,
}

type Sharding = Vec<(DeviceDim, usize)>;

impl Part {
    /// Returns all of a tensor.
    pub(crate) fn all(whole: &[usize]) -> Self {
        let held = whole.iter().map(|extent| (0..*extent).collect()).collect();
        Self { whole: whole.to_vec(), held, sharding: vec![Vec::new(); whole.len()], stream_axis: None }
    }

    /// Returns the part of a rank of the mesh, or all of the tensor without a rank. `stream` is the slice, if the tensor holds one stream's
    /// slice.
    pub(crate) fn of(
        program: &Program,
        scalars: &Scalars<'_>,
        tensor: TensorId,
        rank: Option<usize>,
        stream: Option<usize>,
    ) -> Result<Self, &'static str> {
        let sizes = program.dimensions(tensor).map(|axis| {
            let it = &program.axes[axis];
            size(scalars, it.expanded.unwrap_or(it.extent))
        });
        let sizes = sizes.collect::<Option<Vec<usize>>>();
        let sizes = sizes.ok_or("an extent has no value; give it one with `--set`")?;
        if sizes.iter().fold(1, |all: usize, it| all.saturating_mul((*it).max(1))) > MAX_ELEMENTS {
            return Err("it has more than 134217728 elements");
        }
        let mut part = Self::all(&sizes);
        let Some(rank) = rank else { return Ok(part) };
        let it = &program.tensors[tensor];
        if it.domains.transforms.iter().any(|it| matches!(it, Transform::Merge { .. })) {
            return Err("an axis is merged with another one");
        }
        let stream = program.is_split_by_stream(tensor).then(|| stream.unwrap_or(0));
        for (dim, axis) in program.dimensions(tensor).enumerate() {
            let (mut held, mut inner, mut is_outermost) = (vec![0], part.whole[dim], true);
            for leaf in program.loop_axes_of(tensor, axis) {
                let extent =
                    if leaf == axis { Some(inner) } else { size(scalars, program.axes[leaf].extent) };
                let extent = extent.filter(|by| *by > 0 && inner.is_multiple_of(*by) || *by == inner);
                let extent = extent.ok_or("an axis is not split into equal parts")?;
                inner /= extent.max(1);
                let fixed = match program.axes[leaf].parallel {
                    ParallelType::Device(device) => {
                        let at =
                            it.mesh.coordinate(rank, device).filter(|_| it.mesh.extent(device) == extent);
                        if extent > 1 {
                            part.sharding[dim].insert(0, (device, inner));
                        }
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
                let below = |start: usize| values.clone().map(move |at| start * extent + at);
                held = held.into_iter().flat_map(below).collect();
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
        let mut found = vec![0];
        for (extent, held) in self.whole.iter().zip(&self.held) {
            found =
                found.into_iter().flat_map(|start| held.iter().map(move |at| start * extent + at)).collect();
        }
        array(&self.shape(), found)
    }

    fn is_sharded(&self) -> bool {
        self.sharding.iter().any(|it| !it.is_empty())
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

/// A statement with the parts of its operands and of its first result on one rank, or on a member of their meshes.
pub(crate) struct Sharded<'a> {
    pub(crate) program: &'a Program,
    pub(crate) scalars: &'a Scalars<'a>,
    pub(crate) stmt: &'a OpStmt,
    pub(crate) args: &'a [(TensorId, Part)],
    pub(crate) out: &'a (TensorId, Part),
    pub(crate) ranks: usize,
}

impl Sharded<'_> {
    /// Returns whether each rank has the elements that it needs to compute its part of the result: then the statement computes with
    /// the parts of the rank, and else with whole tensors.
    pub(crate) fn is_local(&self) -> bool {
        let is_spread = self.args.iter().chain([self.out]).any(|it| it.1.is_sharded());
        self.args.iter().all(|it| self.is_available(it)) && (!is_spread || self.is_aligned())
    }

    /// Returns whether every rank that holds a part of the result holds one of the operand.
    fn is_available(&self, (arg, part): &(TensorId, Part)) -> bool {
        let (from, to) = (&self.program.tensors[*arg].mesh, &self.program.tensors[self.out.0].mesh);
        match (from.is_empty(), to.is_empty()) {
            (true, _) => true,
            (false, true) => (0..self.ranks).all(|rank| from.contains(rank)),
            (false, false) => {
                from == to || !part.is_sharded() && to.devices.iter().all(|rank| from.contains(*rank))
            }
        }
    }

    /// Returns whether corresponding dimensions are sharded in the same way.
    fn is_aligned(&self) -> bool {
        let to = &self.out.1;
        let value = |it| self.scalars.int(it).ok();
        let maps = (0..self.args.len()).map(|at| operand_map(self.program, self.stmt, at, &value));
        let Some(maps) = maps.collect::<Option<Vec<_>>>() else {
            let rest = |it: &Part| it.sharding.iter().skip(1).all(Vec::is_empty);
            return self.stmt.rule().runs_on_outermost_parts(self.stmt)
                && rest(to)
                && self.args.iter().all(|(_, it)| it.sharding.first() == to.sharding.first() && rest(it));
        };
        let mut dims = Vec::new();
        for (map, (_, part)) in maps.into_iter().zip(self.args) {
            match map {
                OperandMap::Dims(it) => dims.push(it),
                OperandMap::Groups(groups) => return groups.iter().all(|it| keeps_order(it, part, to)),
            }
        }
        let results = result_dims(self.program, self.stmt, &dims);
        let whole = Sharding::new();
        let partial = results.iter().position(|it| *it == ResultDim::Partial);
        let partial = partial.map_or(&whole, |at| &to.sharding[at]);
        let is_copy = self.stmt.op.def().type_rule == TypeRule::Same;
        let fits = |dim: usize, map: DimMap, arg: TensorId, from: &Part| match map {
            DimMap::Parallel(at) => {
                from.sharding[dim] == to.sharding[at] || is_copy && self.is_subrange(arg, from, dim)
            }
            DimMap::InGroups { to: at, .. } => {
                scaled(&from.sharding[dim], to.whole[at]).eq(scaled(&to.sharding[at], from.whole[dim]))
            }
            DimMap::Broadcast(_) | DimMap::RequiresWhole => from.sharding[dim].is_empty(),
            DimMap::Reduction => from.sharding[dim].iter().map(|it| it.0).eq(partial.iter().map(|it| it.0)),
        };
        let mut operands = dims.iter().zip(self.args);
        let operands_fit = operands
            .all(|(maps, (arg, from))| maps.iter().enumerate().all(|(dim, map)| fits(dim, *map, *arg, from)));
        let needs_whole =
            |(it, sharding): (&ResultDim, &Sharding)| *it == ResultDim::RequiresWhole && !sharding.is_empty();
        operands_fit && !results.iter().zip(&to.sharding).any(needs_whole)
    }

    /// Returns whether the rank's part of a dimension of a copy is contained in its part of the operand.
    fn is_subrange(&self, arg: TensorId, from: &Part, dim: usize) -> bool {
        let to = &self.out.1;
        to.sharding[dim].ends_with(&from.sharding[dim])
            && ![arg, self.out.0].iter().any(|it| self.program.is_split_by_stream(*it))
            && positions(&from.held[dim], &to.held[dim]).is_some()
    }
}

/// Returns the device axes of a dimension that is a factor as long.
fn scaled(sharding: &Sharding, by: usize) -> impl Iterator<Item = (DeviceDim, usize)> {
    sharding.iter().map(move |(device, step)| (*device, step * by))
}

/// Returns whether the same devices divide the elements of a group of dimensions at the same steps.
fn keeps_order(group: &DimGroup, from: &Part, to: &Part) -> bool {
    let steps = |part: &Part, dims: &Range<usize>| -> Sharding {
        let inner = |dim: usize| part.whole[dim + 1..dims.end].iter().product();
        dims.clone()
            .rev()
            .flat_map(|dim| scaled(&part.sharding[dim], inner(dim)).collect::<Sharding>())
            .collect()
    };
    steps(from, &group.operand) == steps(to, &group.result)
}
