//! Which elements of a tensor a rank holds, and whether a statement needs elements of other ranks.

use std::ops::Range;

use grammar::{
    DimGroup, DimMap, OperandMap, ResultDim,
    ir::{AxisId, DeviceDim, ExprId, OpStmt, ParallelType, Program, TensorId, Transform},
    operand_map,
    ops::TypeRule,
    result_dims,
    scalars::Scalars,
};

/// A digit of the index of a dimension.
#[derive(Clone, PartialEq, Debug)]
struct Digit {
    extent: usize,
    parallel: ParallelType,
    /// Its value on the rank; `None` if the rank has all values.
    fixed: Option<usize>,
}

/// A rank's part of a tensor. The index of each dimension of the whole tensor consists of digits, slowest first.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Part {
    pub(crate) whole: Vec<usize>,
    digits: Vec<Vec<Digit>>,
}

/// The device axes of a dimension, innermost first, each with the number of elements between its indices.
type Sharding = Vec<(DeviceDim, usize)>;

impl Part {
    /// Returns all of a tensor.
    pub(crate) fn all(whole: &[usize]) -> Self {
        let digit =
            |extent: &usize| vec![Digit { extent: *extent, parallel: ParallelType::Serial, fixed: None }];
        Self { whole: whole.to_vec(), digits: whole.iter().map(digit).collect() }
    }

    /// Returns the part of a rank of the mesh, or all of the tensor without a rank. `stream` is the slice, if the tensor holds one stream's
    /// slice.
    pub(crate) fn of(
        program: &Program,
        scalars: &Scalars<'_>,
        tensor: TensorId,
        rank: Option<usize>,
        stream: Option<usize>,
    ) -> Result<Self, String> {
        let stream = program.is_split_by_stream(tensor).then(|| stream.unwrap_or(0));
        let (mut whole, mut digits) = (Vec::new(), Vec::new());
        for axis in program.dimensions(tensor) {
            let it = &program.axes[axis];
            let extent = size(scalars, it.expanded.unwrap_or(it.extent));
            whole.push(extent.ok_or("an extent has no value; give it one with `--set`")?);
        }
        let Some(rank) = rank else { return Ok(Self::all(&whole)) };
        for (axis, extent) in program.dimensions(tensor).zip(&whole) {
            let mut found = Vec::new();
            divide(program, scalars, tensor, axis, *extent, &mut found)?;
            let mesh = &program.tensors[tensor].mesh;
            for it in &mut found {
                it.fixed = match it.parallel {
                    ParallelType::Device(dim) => {
                        let at = mesh.coordinate(rank, dim).filter(|_| mesh.extent(dim) == it.extent);
                        Some(at.ok_or("a device axis does not fit its mesh")?)
                    }
                    ParallelType::Stream => stream,
                    ParallelType::Serial | ParallelType::Kernel(_) => None,
                };
            }
            digits.push(found);
        }
        Ok(Self { whole, digits })
    }

    /// Returns the shape of the part.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let free =
            |digits: &Vec<Digit>| digits.iter().filter(|it| it.fixed.is_none()).map(|it| it.extent).product();
        self.digits.iter().map(free).collect()
    }

    /// Returns whether the part is the whole tensor, in order.
    pub(crate) fn is_whole(&self) -> bool {
        self.digits.iter().flatten().all(|it| it.fixed.is_none() || it.extent == 1)
    }

    /// Returns the row-major index in the whole tensor of each element of the part.
    pub(crate) fn indices(&self) -> Vec<usize> {
        let mut found = vec![0];
        for it in self.digits.iter().flatten() {
            let values = it.fixed.map_or(0..it.extent, |at| at..at + 1);
            let below = |start: usize| values.clone().map(move |at| start * it.extent + at);
            found = found.into_iter().flat_map(below).collect();
        }
        found
    }

    /// Returns the indices of a dimension, if they are consecutive.
    pub(crate) fn range(&self, dim: usize) -> Option<Range<usize>> {
        let digits = self.digits.get(dim)?;
        let inner = digits.iter().rposition(|it| it.fixed.is_some() && it.extent > 1).map_or(0, |at| at + 1);
        let count: usize = digits[inner..].iter().map(|it| it.extent).product();
        let number = digits[..inner].iter().try_fold(0, |number, it| {
            Some(number * it.extent + it.fixed.or((it.extent == 1).then_some(0))?)
        })?;
        Some(number * count..(number + 1) * count)
    }

    fn sharding(&self, dim: usize) -> Sharding {
        let (mut inner, mut found) = (1, Vec::new());
        for it in self.digits.get(dim).into_iter().flatten().rev() {
            match it.parallel {
                ParallelType::Device(device) if it.extent > 1 => found.push((device, inner)),
                _ => (),
            }
            inner *= it.extent;
        }
        found
    }

    fn is_sharded(&self) -> bool {
        (0..self.whole.len()).any(|dim| !self.sharding(dim).is_empty())
    }

    /// Returns the place of the stream axis: its dimension, and the number of chunks.
    pub(crate) fn stream_axis(&self) -> Option<(usize, usize)> {
        let is_stream = |it: &Digit| it.parallel == ParallelType::Stream;
        self.digits.iter().enumerate().find_map(|(dim, digits)| {
            let at = digits.iter().position(is_stream)?;
            let outermost = digits[..at].iter().all(|it| it.fixed.is_some() || it.extent == 1);
            (outermost && digits[at].fixed.is_none()).then_some((dim, digits[at].extent))
        })
    }
}

/// Returns a count or an index.
pub(crate) fn size(scalars: &Scalars<'_>, expr: ExprId) -> Option<usize> {
    usize::try_from(scalars.int(expr).ok()?).ok()
}

/// Appends the digits of an axis: the axes that it is split into.
fn divide(
    program: &Program,
    scalars: &Scalars<'_>,
    tensor: TensorId,
    axis: AxisId,
    extent: usize,
    found: &mut Vec<Digit>,
) -> Result<(), String> {
    for step in &program.tensors[tensor].domains.transforms {
        match step {
            Transform::Split { input, factor, outer_split, outer, inner } if *input == axis => {
                let by = size(scalars, *factor).filter(|by| *by > 0 && extent.is_multiple_of(*by));
                let by = by.ok_or("an axis is not split into equal parts")?;
                let (slow, fast) = if *outer_split { (by, extent / by) } else { (extent / by, by) };
                divide(program, scalars, tensor, *outer, slow, found)?;
                return divide(program, scalars, tensor, *inner, fast, found);
            }
            Transform::Swizzle1D { input, output } if *input == axis => {
                return divide(program, scalars, tensor, *output, extent, found);
            }
            Transform::Merge { outer, inner, .. } if [*outer, *inner].contains(&axis) => {
                return Err("an axis is merged with another one".to_owned());
            }
            Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => (),
        }
    }
    found.push(Digit { extent, parallel: program.axes[axis].parallel, fixed: None });
    Ok(())
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
        if self.program.tensors[self.out.0].unit.is_some() {
            return true;
        }
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
            let rest = |it: &Part| (1..it.whole.len()).all(|dim| it.sharding(dim).is_empty());
            return self.stmt.rule().runs_on_outermost_parts(self.stmt)
                && rest(to)
                && self.args.iter().all(|(_, it)| it.sharding(0) == to.sharding(0) && rest(it));
        };
        let mut dims = Vec::new();
        for (map, (_, part)) in maps.into_iter().zip(self.args) {
            match map {
                OperandMap::Dims(it) => dims.push(it),
                OperandMap::Groups(groups) => return groups.iter().all(|it| keeps_order(it, part, to)),
            }
        }
        let results = result_dims(self.program, self.stmt, &dims);
        let devices = |it: Sharding| it.into_iter().map(|it| it.0).collect::<Vec<_>>();
        let partial = results.iter().position(|it| *it == ResultDim::Partial);
        let partial = partial.map_or(Vec::new(), |at| devices(to.sharding(at)));
        let is_copy = self.stmt.op.def().type_rule == TypeRule::Same;
        let fits = |dim: usize, map: DimMap, arg: TensorId, from: &Part| match map {
            DimMap::Parallel(at) => {
                from.sharding(dim) == to.sharding(at) || is_copy && self.is_subrange(arg, from, dim)
            }
            DimMap::InGroups { to: at, .. } => {
                let (mine, its) = (from.sharding(dim), to.sharding(at));
                let scaled =
                    |it: Sharding, by: usize| it.into_iter().map(move |(device, step)| (device, step * by));
                scaled(mine, to.whole[at]).eq(scaled(its, from.whole[dim]))
            }
            DimMap::Broadcast(_) | DimMap::RequiresWhole => from.sharding(dim).is_empty(),
            DimMap::Reduction => devices(from.sharding(dim)) == partial,
        };
        let mut operands = dims.iter().zip(self.args);
        let operands_fit = operands
            .all(|(maps, (arg, from))| maps.iter().enumerate().all(|(dim, map)| fits(dim, *map, *arg, from)));
        let needs_whole =
            |(at, it): (usize, &ResultDim)| *it == ResultDim::RequiresWhole && !to.sharding(at).is_empty();
        operands_fit && !results.iter().enumerate().any(needs_whole)
    }

    /// Returns whether the rank's part of a dimension of a copy is a range of its part of the operand.
    fn is_subrange(&self, arg: TensorId, from: &Part, dim: usize) -> bool {
        let (has, takes) = (from.sharding(dim), self.out.1.sharding(dim));
        let ranges = self.range(arg, from, dim).zip(self.range(self.out.0, &self.out.1, dim));
        takes.ends_with(&has) && ranges.is_some_and(|(has, takes)| contains(&has, &takes))
    }

    fn range(&self, tensor: TensorId, part: &Part, dim: usize) -> Option<Range<usize>> {
        part.range(dim).filter(|_| !self.program.is_split_by_stream(tensor))
    }
}

pub(crate) fn contains(whole: &Range<usize>, part: &Range<usize>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}

/// Returns whether the same devices divide the elements of a group of dimensions at the same steps.
fn keeps_order(group: &DimGroup, from: &Part, to: &Part) -> bool {
    let steps = |part: &Part, dims: Range<usize>| -> Sharding {
        let steps = |dim: usize| {
            let inner: usize = part.whole[dim + 1..dims.end].iter().product();
            part.sharding(dim).into_iter().rev().map(move |(device, step)| (device, step * inner))
        };
        dims.clone().flat_map(steps).collect()
    };
    steps(from, group.operand.clone()) == steps(to, group.result.clone())
}
