//! Meshes of devices.

/// A mesh of devices with up to three dimensions (x fastest).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mesh {
    /// Extents, slowest first (`[y, x]`); empty if there is no mesh.
    pub shape: Vec<usize>,
    /// World ranks in row-major order.
    pub devices: Vec<usize>,
    /// Positions in `devices` sorted by rank; empty if the devices are consecutive ranks in order.
    by_rank: Vec<usize>,
}

impl Mesh {
    /// Creates a mesh with these extents, slowest first, and these ranks in row-major order.
    pub fn new(shape: Vec<usize>, devices: Vec<usize>) -> Self {
        let mut by_rank = Vec::new();
        if devices.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            by_rank.extend(0..devices.len());
            by_rank.sort_by_key(|at| devices[*at]);
        }
        Self { shape, devices, by_rank }
    }

    /// Returns the position of `rank` in `devices`, in logarithmic time.
    pub fn position(&self, rank: usize) -> Option<usize> {
        if self.by_rank.is_empty() {
            let at = rank.checked_sub(*self.devices.first()?)?;
            return (at < self.devices.len()).then_some(at);
        }
        let at = *self.by_rank.get(self.by_rank.partition_point(|at| self.devices[*at] < rank))?;
        (self.devices[at] == rank).then_some(at)
    }

    /// Returns whether there is no mesh: the tensor is on all ranks.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns whether `rank` holds a shard of the tensor.
    pub fn contains(&self, rank: usize) -> bool {
        self.is_empty() || self.position(rank).is_some()
    }

    /// Returns the extent of a device dimension; 1 if the mesh has fewer dimensions.
    pub fn extent(&self, dim: DeviceDim) -> usize {
        self.shape.len().checked_sub(1 + dim as usize).map_or(1, |at| self.shape[at])
    }

    /// Returns the coordinate of `rank` along a device dimension, or `None` if the mesh does not contain it.
    pub fn coordinate(&self, rank: usize, dim: DeviceDim) -> Option<usize> {
        let position = self.position(rank)?;
        let inner: usize = self.shape.iter().rev().take(dim as usize).product();
        Some(position / inner % self.extent(dim))
    }
}

/// A device dimension: `deviceIdx.x`, `.y` or `.z`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceDim {
    /// Fastest.
    X = 0,
    /// Middle.
    Y = 1,
    /// Slowest.
    Z = 2,
}
