//! Meshes and shardings of Shardy.

use std::{ops::Range, sync::Arc};

use grammar::{DeviceDim, ir};

use crate::{
    tree::{Attribute, Operation},
    value::AxisSet,
};

/// The maximum number of axes of several devices: device dimensions have the letters x, y and z.
const MAX_AXES: usize = 3;
/// The maximum number of devices of a mesh.
const MAX_DEVICES: i64 = 4096;

/// Why a mesh or sharding is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedSharding {
    #[error("the mesh lists its devices in an order of its own")]
    DeviceOrder,
    #[error("the mesh has more than {MAX_AXES} axes of several devices")]
    TooManyAxes,
    #[error("the mesh does not have between 1 and {MAX_DEVICES} devices")]
    DeviceCount,
    #[error("`@{mesh}` has no axis `{axis}`")]
    UnknownAxis { mesh: String, axis: String },
    #[error("this is not a sharding of Shardy")]
    NotOfShardy,
    #[error("the sharding is in the call of `{0}`, which XLA writes for itself")]
    CallOfXla(String),
    #[error("the sharding has `unreduced` axes")]
    Unreduced,
    #[error("the module has no mesh `@{0}`")]
    UnknownMesh(String),
    #[error("the sharding names no mesh of the module")]
    NoMesh,
    #[error("the sharding has no list of dimensions")]
    NoDimensions,
    #[error("the sharding has {stated} dimensions, the tensor {tensor}")]
    DimensionCount { stated: usize, tensor: usize },
    #[error("a dimension of the sharding is not a list of axes")]
    NoListOfAxes,
    #[error("the part of the axis `{0}` is no axis beside the parts that the module uses elsewhere")]
    PartOfAxis(String),
    #[error("the sharding uses the axis `{0}` twice")]
    AxisTwice(String),
    #[error("an extent of {extent} is not divided evenly by the axis `{axis}` of {devices} devices")]
    UnevenExtent { extent: i64, axis: String, devices: i64 },
}

/// A mesh. An axis of the module is split into several ones where the module uses a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    pub(crate) name: String,
    /// The sizes of the axes with several devices, slowest first.
    pub(crate) axes: Vec<i64>,
    /// How far apart neighbours along each axis are, behind the number of devices.
    strides: Vec<i64>,
    /// The axes of the module: each has the strides below the first number, down to the second one.
    names: Vec<(String, [i64; 2])>,
    /// The devices by rows, which tensors have; empty if there is only one.
    pub(crate) grid: Arc<ir::Mesh>,
}

/// The axes of a mesh over which each dimension of a tensor is sharded, major first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sharding {
    pub(crate) mesh: usize,
    pub(crate) dims: Vec<Vec<usize>>,
}

impl Mesh {
    /// Reads `sdy.mesh @mesh = <["dp"=2, "tp"=2]>`.
    ///
    /// # Errors
    /// Returns what is not supported.
    pub(crate) fn read(op: &Operation<'_>) -> Result<Self, UnsupportedSharding> {
        let name = match op.attribute(&["sym_name"]) {
            Some(Attribute::String(name)) => *name,
            _ => op.symbol("sym_name").unwrap_or_default(),
        };
        let mut sizes = Vec::new();
        let stated = op.attribute(&["mesh"]).into_iter().chain(&op.positional);
        for it in stated {
            let Attribute::Named(_, entries, items) = it else { continue };
            if let Some(ids) = Attribute::find(entries, "device_ids").and_then(Attribute::ints)
                && ids.iter().zip(0..).any(|(id, at)| *id != at)
            {
                return Err(UnsupportedSharding::DeviceOrder);
            }
            let Some(Attribute::Array(axes)) = items.first() else { continue };
            for axis in axes {
                let Attribute::Named(name, _, size) = axis else { continue };
                let Some(Attribute::Int(size)) = size.first() else { continue };
                sizes.push(((*name).to_owned(), *size));
            }
        }
        let count = sizes.iter().try_fold(1i64, |count, (_, size)| count.checked_mul(*size));
        let count = count.filter(|it| (1..=MAX_DEVICES).contains(it));
        let mut stride = count.ok_or(UnsupportedSharding::DeviceCount)?;
        let mut mesh = Self {
            name: name.to_owned(),
            axes: Vec::new(),
            strides: vec![stride],
            names: Vec::new(),
            grid: Arc::default(),
        };
        let mut strides = Vec::new();
        for (name, size) in sizes {
            mesh.names.push((name, [stride, stride / size]));
            stride /= size;
            strides.push(stride);
        }
        if mesh.split(&strides) { Ok(mesh) } else { Err(UnsupportedSharding::TooManyAxes) }
    }

    /// Splits axes so that there are axes of these strides, and returns whether the mesh may have all of them.
    fn split(&mut self, strides: &[i64]) -> bool {
        let mut all = [&self.strides[..], strides].concat();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        let divides = |it: &[i64]| it[1] > 0 && it[0] % it[1] == 0;
        if all.len() > MAX_AXES + 1 || !all.windows(2).all(divides) {
            return false;
        }
        self.axes = all.windows(2).map(|it| it[0] / it[1]).collect();
        if all[0] > 1 {
            let shape = self.axes.iter().map(|size| *size as usize).collect();
            self.grid = Arc::new(ir::Mesh::new(shape, (0..all[0] as usize).collect()));
        }
        self.strides = all;
        true
    }

    /// Splits axes so that the devices of a group are those along axes, if there are such axes.
    fn split_for_group(&mut self, group: &[i64]) {
        let mut members = group.to_vec();
        members.sort_unstable();
        let mut rest: Vec<i64> = members.iter().filter_map(|it| it.checked_sub(members[0])).collect();
        let mut strides = Vec::new();
        while let [_, stride, ..] = rest[..] {
            let count = (0..).zip(&rest).take_while(|(at, it)| *at * stride == **it).count();
            strides.extend([stride, stride * count as i64]);
            rest = rest.into_iter().step_by(count).collect();
        }
        self.split(&strides);
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> i64 {
        self.axes.iter().product()
    }

    /// Returns the device dimension of an axis, with its number of devices: x is the fastest.
    pub(crate) fn device(&self, axis: usize) -> (DeviceDim, i64) {
        let dim = [DeviceDim::X, DeviceDim::Y, DeviceDim::Z][(self.axes.len() - 1 - axis).min(2)];
        (dim, self.axes[axis])
    }

    /// Returns the axes that an axis of the module, or a part of it, became: none for one device. A part is the number of devices
    /// before it, and its own.
    ///
    /// # Errors
    /// Returns an error if the mesh does not have the axis, or such a part of it.
    pub(crate) fn axis(&self, name: &str, part: &[i64]) -> Result<Range<usize>, UnsupportedSharding> {
        if !self.names.iter().any(|it| it.0 == name) {
            return Err(UnsupportedSharding::UnknownAxis { mesh: self.name.clone(), axis: name.to_owned() });
        }
        let axis = |stride: i64| self.strides.iter().position(|it| *it == stride);
        let found = self.strides_of(name, part).and_then(|[slow, fast]| Some(axis(slow)?..axis(fast)?));
        found.ok_or_else(|| UnsupportedSharding::PartOfAxis(name.to_owned()))
    }

    /// Returns the strides before and of an axis of the module, or of a part of it.
    fn strides_of(&self, name: &str, part: &[i64]) -> Option<[i64; 2]> {
        let [slow, fast] = self.names.iter().find(|it| it.0 == name)?.1;
        match *part {
            [] => Some([slow, fast]),
            [before, size] if before > 0 && size > 0 && slow % before == 0 && slow / before % size == 0 => {
                Some([slow / before, slow / before / size]).filter(|it| it[1] >= fast)
            }
            _ => None,
        }
    }

    /// Returns the coordinates of a device along each axis.
    fn coordinates(&self, device: i64) -> Vec<i64> {
        let mut left = device;
        let mut found: Vec<i64> = self
            .axes
            .iter()
            .rev()
            .map(|size| {
                let it = left % size;
                left /= size;
                it
            })
            .collect();
        found.reverse();
        found
    }

    /// Returns whether two devices differ along one of these axes.
    pub(crate) fn differs_along(&self, a: i64, b: i64, axes: AxisSet) -> bool {
        let (a, b) = (self.coordinates(a), self.coordinates(b));
        (0..self.axes.len()).any(|axis| axes & (1 << axis) != 0 && a[axis] != b[axis])
    }

    /// Returns the axes along which neighbours differ, by their numbers.
    pub(crate) fn axes_between(&self, differ: impl Fn(usize, usize) -> bool) -> AxisSet {
        let devices = usize::try_from(self.devices()).unwrap_or(0);
        let mut stride = devices;
        let mut found = 0;
        for (axis, size) in self.axes.iter().enumerate() {
            let size = usize::try_from(*size).unwrap_or(1);
            stride /= size;
            let has_lower = |it: &usize| !(it / stride).is_multiple_of(size);
            if (0..devices).filter(has_lower).any(|it| differ(it - stride, it)) {
                found |= 1 << axis;
            }
        }
        found
    }

    /// Returns the groups of devices that differ along these axes alone, of which the first one is the slowest in a group.
    pub(crate) fn groups_along(&self, axes: &[usize]) -> Vec<Vec<i64>> {
        let mut all: Vec<(Vec<i64>, i64)> = Vec::new();
        for device in 0..self.devices() {
            let own = self.coordinates(device);
            let others = (0..self.axes.len()).filter(|axis| !axes.contains(axis));
            all.push((others.chain(axes.iter().copied()).map(|axis| own[axis]).collect(), device));
        }
        all.sort_unstable();
        let size: i64 = axes.iter().map(|axis| self.axes[*axis]).product();
        let devices: Vec<i64> = all.into_iter().map(|it| it.1).collect();
        devices.chunks(size.max(1) as usize).map(<[i64]>::to_vec).collect()
    }

    /// Returns the axes along which the devices of a group differ, if all groups are those of a set of axes.
    pub(crate) fn axes_of_groups(&self, groups: &[Vec<i64>]) -> Option<Vec<usize>> {
        let first: Vec<Vec<i64>> = groups.first()?.iter().map(|it| self.coordinates(*it)).collect();
        let axes: Vec<usize> =
            (0..self.axes.len()).filter(|axis| first.iter().any(|it| it[*axis] != first[0][*axis])).collect();
        // The members of a group are in the order of their coordinates, and the groups in any order.
        let is_each_once = groups.iter().map(Vec::len).sum::<usize>() as i64 == self.devices();
        let sorted = |mut all: Vec<Vec<i64>>| {
            all.sort_unstable();
            all
        };
        (is_each_once && sorted(groups.to_vec()) == sorted(self.groups_along(&axes))).then_some(axes)
    }
}

impl Sharding {
    /// Reads `#sdy.sharding<@mesh, [{}, {"tp"}]>` for a tensor with `rank` dimensions.
    ///
    /// # Errors
    /// Returns what is not supported.
    pub(crate) fn read(
        attribute: &Attribute<'_>,
        meshes: &[Mesh],
        shape: &[i64],
    ) -> Result<Self, UnsupportedSharding> {
        let Attribute::Named(_, entries, items) = attribute else {
            return Err(UnsupportedSharding::NotOfShardy);
        };
        if entries.iter().any(|it| it.0 == "unreduced") {
            return Err(UnsupportedSharding::Unreduced);
        }
        let mut items = items.iter();
        let mesh = match items.next() {
            Some(Attribute::Symbol(name)) => meshes
                .iter()
                .position(|it| it.name == *name)
                .ok_or_else(|| UnsupportedSharding::UnknownMesh((*name).to_owned()))?,
            _ => return Err(UnsupportedSharding::NoMesh),
        };
        let Some(Attribute::Array(stated)) = items.next() else {
            return Err(UnsupportedSharding::NoDimensions);
        };
        if stated.len() > shape.len() {
            return Err(UnsupportedSharding::DimensionCount { stated: stated.len(), tensor: shape.len() });
        }
        let mut dims = vec![Vec::new(); shape.len()];
        let mut used = Vec::new();
        for ((dim, stated), extent) in dims.iter_mut().zip(stated).zip(shape) {
            let Attribute::Set(axes) = stated else {
                return Err(UnsupportedSharding::NoListOfAxes);
            };
            let mut left = *extent;
            for it in axes {
                let (name, part) = match it {
                    Attribute::String(name) => (*name, Vec::new()),
                    Attribute::Named(name, _, part) => (*name, Attribute::numbers(part)),
                    // An open dimension: hir shards it as stated.
                    Attribute::Other("?") => continue,
                    _ => return Err(UnsupportedSharding::NoListOfAxes),
                };
                for axis in meshes[mesh].axis(name, &part)? {
                    let size = meshes[mesh].axes[axis];
                    if used.contains(&axis) {
                        return Err(UnsupportedSharding::AxisTwice(name.to_owned()));
                    }
                    if left % size != 0 {
                        return Err(UnsupportedSharding::UnevenExtent {
                            extent: *extent,
                            axis: name.to_owned(),
                            devices: size,
                        });
                    }
                    left /= size;
                    used.push(axis);
                    dim.push(axis);
                }
            }
        }
        Ok(Self { mesh, dims })
    }
}

/// Splits axes of meshes of which shardings have parts, or along parts of which the groups of collectives are.
pub(crate) fn split_axes(meshes: &mut [Mesh], ops: &[Operation<'_>]) {
    for op in ops {
        let groups = op.attribute(&["replica_groups"]).and_then(Attribute::rows).unwrap_or_default();
        let count = groups.iter().map(Vec::len).sum::<usize>() as i64;
        let group = groups.first().filter(|it| it.iter().all(|device| (0..count).contains(device)));
        for mesh in meshes.iter_mut().filter(|it| it.devices() == count) {
            group.into_iter().for_each(|it| mesh.split_for_group(it));
        }
        let named = op.attributes.iter().chain(op.result_attributes.iter().flatten());
        let arguments = op.regions.iter().flat_map(|it| &it.arguments).flat_map(|it| &it.attributes);
        named
            .chain(arguments)
            .map(|it| &it.1)
            .chain(&op.positional)
            .for_each(|it| split_for(meshes, None, it));
        op.regions.iter().for_each(|it| split_axes(meshes, &it.ops));
    }
}

/// Splits axes of meshes of which an attribute of shardings, of which one may be known, has parts.
fn split_for(meshes: &mut [Mesh], known: Option<usize>, attribute: &Attribute<'_>) {
    match attribute {
        Attribute::Named(name, entries, items) => {
            let mesh = match items.first() {
                Some(Attribute::Symbol(stated)) => meshes.iter().position(|it| it.name == *stated),
                _ => known,
            };
            let part = Attribute::numbers(items);
            if let Some(mesh) = mesh.and_then(|it| meshes.get_mut(it))
                && let Some(strides) = mesh.strides_of(name, &part)
            {
                mesh.split(&strides);
            }
            items.iter().chain(entries.iter().map(|it| &it.1)).for_each(|it| split_for(meshes, mesh, it));
        }
        Attribute::Array(items) | Attribute::Set(items) => {
            items.iter().for_each(|it| split_for(meshes, known, it));
        }
        Attribute::Dictionary(entries) => entries.iter().for_each(|it| split_for(meshes, known, &it.1)),
        _ => {}
    }
}
