//! Which elements of a tensor a rank holds, in which order, and where they are in a buffer.

use super::*;

/// A rank's part of a tensor: all combinations of the indices that it holds in each dimension, in row-major order.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Part {
    /// The shape of the whole tensor.
    pub(crate) whole: Vec<usize>,
    /// For each dimension the indices that the rank holds, in ascending order.
    pub(crate) held: Vec<Vec<usize>>,
}

impl Part {
    /// Returns all of a tensor.
    pub(crate) fn all(whole: &[usize]) -> Self {
        Self { whole: whole.to_vec(), held: whole.iter().map(|extent| (0..*extent).collect()).collect() }
    }

    /// Returns the part of a rank of the mesh, or all of the tensor without a rank. Of axes that streams divide, it has the index `slice`;
    /// `None`: all indices.
    pub(crate) fn of(
        program: &Program,
        scalars: &Scalars<'_>,
        tensor: TensorId,
        rank: Option<usize>,
        slice: Option<usize>,
    ) -> Computed<Self> {
        let it = &program.tensors[tensor];
        let axes = program.dimensions(tensor).map(|it| &program.axes[it]);
        let whole: Option<Vec<_>> = axes.map(|it| size(scalars, it.expanded.unwrap_or(it.extent))).collect();
        let whole = whole.ok_or("an extent is negative, or has no value; `--set` gives one to a scalar")?;
        let count = whole.iter().fold(1, |all: usize, it| all.saturating_mul((*it).max(1)));
        require(count <= MAX_WORK, format!("it has more than {MAX_WORK} elements"))?;
        let Some(rank) = rank else { return Ok(Self::all(&whole)) };
        let is_merged = it.domains.transforms.iter().any(|it| matches!(it, Transform::Merge { .. }));
        let held = |(axis, mut inner)| {
            let mut held = vec![0];
            for leaf in program.loop_axes_of(tensor, axis) {
                let own = &program.axes[leaf];
                let extent = if leaf == axis { inner } else { size(scalars, own.extent)? };
                let fixed = match own.parallel {
                    ParallelType::Device(device) if it.mesh.extent(device) == extent => {
                        Some(it.mesh.coordinate(rank, device)?)
                    }
                    ParallelType::Device(_) => return None,
                    // Slices of streams are consecutive indices of those that the rank holds.
                    ParallelType::Stream if slice.is_some() && held.len() > 1 => return None,
                    ParallelType::Stream => slice,
                    ParallelType::Serial | ParallelType::Kernel(_) => None,
                };
                let is_even = extent == inner || extent > 0 && inner.is_multiple_of(extent);
                if !is_even || fixed.is_some_and(|at| at >= extent) {
                    return None;
                }
                inner /= extent.max(1);
                let own = fixed.map_or(0..extent, |at| at..at + 1);
                held = held.iter().flat_map(|at| own.clone().map(move |it| at * extent + it)).collect();
            }
            (inner <= 1 && !is_merged).then_some(held)
        };
        let held = program.dimensions(tensor).zip(whole.iter().copied()).map(held).collect::<Option<_>>();
        let held = held.ok_or("its mesh and its streams do not divide its axes into equal parts")?;
        Ok(Self { whole, held })
    }

    /// Returns the shape of the part.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.held.iter().map(Vec::len).collect()
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// Returns the index in the whole tensor of each element.
    pub(crate) fn indices(&self) -> impl Iterator<Item = Vec<usize>> {
        let shape = self.shape();
        let index = move |at| self.held.iter().zip(unravel(at, &shape)).map(|(held, at)| held[at]).collect();
        (0..self.len()).map(index)
    }

    /// Returns the positions in the part of a block of elements of the whole tensor, given by its indices in each dimension; `None` if the
    /// rank does not hold all of them.
    pub(crate) fn positions<I: IntoIterator<Item = usize> + Clone>(&self, block: &[I]) -> Option<Vec<usize>> {
        self.held.iter().zip(block).try_fold(vec![0], |found, (held, indices)| {
            let own = indices.clone().into_iter().map(|it| held.binary_search(&it).ok());
            let own = own.collect::<Option<Vec<_>>>()?;
            Some(found.iter().flat_map(|at| own.iter().map(move |it| at * held.len() + it)).collect())
        })
    }
}

/// Returns the row-major number of an index.
pub(crate) fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |all, (at, extent)| all * extent + at)
}

/// Returns the index with a row-major number.
pub(crate) fn unravel(number: usize, shape: &[usize]) -> Vec<usize> {
    let inner = |dim: usize| shape[dim + 1..].iter().product::<usize>();
    (0..shape.len()).map(|dim| number / inner(dim) % shape[dim]).collect()
}

/// Returns a count or an index.
pub(crate) fn size(scalars: &Scalars<'_>, expr: ExprId) -> Option<usize> {
    usize::try_from(scalars.int(expr).ok()?).ok()
}

/// The elements of a part.
pub(crate) type Values = Vec<Element>;

/// Returns the elements at these places.
pub(crate) fn at(values: &[Element], places: &[usize]) -> Values {
    places.iter().map(|at| values[*at]).collect()
}

/// The places of a part's elements in a buffer, and its shape when a name was bound to them.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) buffer: usize,
    pub(crate) places: Rc<[usize]>,
    pub(crate) shape: Vec<usize>,
}

impl View {
    /// Returns the elements, as buffers and places in them.
    pub(crate) fn elements(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places.iter().map(|it| (self.buffer, *it))
    }

    /// Returns the places at these positions if the distance of neighbours along each dimension of a shape is constant; a tensor that is
    /// no copy has only such views.
    pub(crate) fn strided(&self, positions: &[usize], shape: Vec<usize>) -> Option<Self> {
        let places = positions.iter().map(|at| self.places.get(*at).copied()).collect::<Option<Rc<[_]>>>()?;
        let is_regular = |dim: usize| {
            let next: usize = shape[dim + 1..].iter().product();
            let inner = (0..places.len()).filter(|at| at / next % shape[dim] + 1 < shape[dim]);
            let mut steps = inner.map(|at| places[at + next].wrapping_sub(places[at]));
            let first = steps.next();
            steps.all(|it| Some(it) == first)
        };
        let fits = places.len() == shape.iter().product::<usize>() && (0..shape.len()).all(is_regular);
        fits.then_some(Self { buffer: self.buffer, places, shape })
    }
}
