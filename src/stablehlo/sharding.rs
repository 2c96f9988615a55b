//! Meshes and shardings of Shardy.

use crate::tree::{Attribute, Operation};

/// A mesh. Axes of one device are left out: they shard nothing.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    pub(crate) name: String,
    /// The axes with their sizes, slowest first.
    pub(crate) axes: Vec<(String, i64)>,
    /// The names of axes of one device.
    units: Vec<String>,
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
    /// Returns what hir does not support.
    pub(crate) fn read(op: &Operation<'_>) -> Result<Self, String> {
        let name = match op.attribute(&["sym_name"]) {
            Some(Attribute::String(name)) => *name,
            _ => op.symbol("sym_name").unwrap_or_default(),
        };
        let mut mesh = Self { name: name.to_owned(), axes: Vec::new(), units: Vec::new() };
        let stated = op.attribute(&["mesh"]).into_iter().chain(&op.positional);
        for it in stated {
            let Attribute::Named(_, entries, items) = it else { continue };
            if let Some(ids) = Attribute::find(entries, "device_ids").and_then(Attribute::ints)
                && ids.iter().zip(0..).any(|(id, at)| *id != at)
            {
                return Err("the mesh lists its devices in an order of its own".to_owned());
            }
            let Some(Attribute::Array(axes)) = items.first() else { continue };
            for axis in axes {
                let Attribute::Named(name, _, size) = axis else { continue };
                let Some(Attribute::Int(size)) = size.first() else { continue };
                match size {
                    1 => mesh.units.push((*name).to_owned()),
                    _ => mesh.axes.push(((*name).to_owned(), *size)),
                }
            }
        }
        let devices = mesh.axes.iter().try_fold(1i64, |count, (_, size)| count.checked_mul(*size));
        if mesh.axes.len() > 3 {
            return Err("the mesh has more than three axes of several devices".to_owned());
        }
        match devices {
            Some(1..=4096) => Ok(mesh),
            _ => Err("the mesh does not have between 1 and 4096 devices".to_owned()),
        }
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> i64 {
        self.axes.iter().map(|it| it.1).product()
    }

    /// Returns the letter of the device dimension of an axis: x is the fastest.
    pub(crate) fn letter(&self, axis: usize) -> char {
        ['x', 'y', 'z'][(self.axes.len() - 1 - axis).min(2)]
    }

    /// Returns the devices by rows, `{{0 1}{2 3}}`.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.rows(0, 0, self.devices(), &mut text);
        text
    }

    fn rows(&self, axis: usize, first: i64, count: i64, text: &mut String) {
        text.push('{');
        if axis + 1 >= self.axes.len() {
            let ids: Vec<String> = (first..first + count).map(|it| it.to_string()).collect();
            text.push_str(&ids.join(" "));
        } else {
            let part = count / self.axes[axis].1;
            (0..self.axes[axis].1).for_each(|at| self.rows(axis + 1, first + at * part, part, text));
        }
        text.push('}');
    }

    /// Returns the index of an axis; `None` for an axis of one device.
    ///
    /// # Errors
    /// Returns an error if the mesh does not have the axis.
    pub(crate) fn axis(&self, name: &str) -> Result<Option<usize>, String> {
        let found = self.axes.iter().position(|it| it.0 == name);
        match found {
            None if !self.units.iter().any(|it| it == name) => {
                Err(format!("`@{}` has no axis `{name}`", self.name))
            }
            _ => Ok(found),
        }
    }

    /// Returns the coordinates of a device along each axis.
    fn coordinates(&self, device: i64) -> Vec<i64> {
        let mut left = device;
        let mut found: Vec<i64> = self
            .axes
            .iter()
            .rev()
            .map(|(_, size)| {
                let it = left % size;
                left /= size;
                it
            })
            .collect();
        found.reverse();
        found
    }

    /// Returns the axes along which the devices of a group differ, if all groups are those of a set of axes.
    pub(crate) fn axes_of_groups(&self, groups: &[Vec<i64>]) -> Option<Vec<usize>> {
        let count = usize::try_from(self.devices()).ok()?;
        let mut is_member = vec![false; count];
        let first: Vec<Vec<i64>> = groups.first()?.iter().map(|it| self.coordinates(*it)).collect();
        let axes: Vec<usize> =
            (0..self.axes.len()).filter(|axis| first.iter().any(|it| it[*axis] != first[0][*axis])).collect();
        let size: i64 = axes.iter().map(|axis| self.axes[*axis].1).product();
        for group in groups {
            if group.len() as i64 != size {
                return None;
            }
            for (at, device) in group.iter().enumerate() {
                let place = is_member.get_mut(usize::try_from(*device).ok()?)?;
                if std::mem::replace(place, true) {
                    return None;
                }
                // The members are in the order of their coordinates.
                let own = self.coordinates(*device);
                let index = axes.iter().fold(0, |index, axis| index * self.axes[*axis].1 + own[*axis]);
                let is_fixed =
                    |axis: &usize| !axes.contains(axis) && own[*axis] != self.coordinates(group[0])[*axis];
                if index != at as i64 || (0..self.axes.len()).any(|axis| is_fixed(&axis)) {
                    return None;
                }
            }
        }
        is_member.iter().all(|it| *it).then_some(axes)
    }
}

impl Sharding {
    /// Reads `#sdy.sharding<@mesh, [{}, {"tp"}]>` for a tensor with `rank` dimensions.
    ///
    /// # Errors
    /// Returns what hir does not support.
    pub(crate) fn read(attribute: &Attribute<'_>, meshes: &[Mesh], shape: &[i64]) -> Result<Self, String> {
        let Attribute::Named(_, entries, items) = attribute else {
            return Err("this is not a sharding of Shardy".to_owned());
        };
        if entries.iter().any(|it| it.0 == "unreduced") {
            return Err("the sharding has `unreduced` axes".to_owned());
        }
        let mut items = items.iter();
        let mesh = match items.next() {
            Some(Attribute::Symbol(name)) => meshes
                .iter()
                .position(|it| it.name == *name)
                .ok_or_else(|| format!("the module has no mesh `@{name}`"))?,
            _ => return Err("the sharding names no mesh of the module".to_owned()),
        };
        let Some(Attribute::Array(stated)) = items.next() else {
            return Err("the sharding has no list of dimensions".to_owned());
        };
        if stated.len() > shape.len() {
            return Err(format!("the sharding has {} dimensions, the tensor {}", stated.len(), shape.len()));
        }
        let mut dims = vec![Vec::new(); shape.len()];
        let mut used = Vec::new();
        for ((dim, stated), extent) in dims.iter_mut().zip(stated).zip(shape) {
            let Attribute::Set(axes) = stated else {
                return Err("a dimension of the sharding is not a list of axes".to_owned());
            };
            let mut left = *extent;
            for it in axes {
                let name = match it {
                    Attribute::String(name) => *name,
                    // An open dimension: hir shards it as stated.
                    Attribute::Other("?") => continue,
                    _ => return Err("the sharding has a part of an axis".to_owned()),
                };
                let Some(axis) = meshes[mesh].axis(name)? else { continue };
                let size = meshes[mesh].axes[axis].1;
                if used.contains(&axis) {
                    return Err(format!("the sharding uses the axis `{name}` twice"));
                }
                if left % size != 0 {
                    return Err(format!(
                        "an extent of {extent} is not divided evenly by the axis `{name}` of {size} devices"
                    ));
                }
                left /= size;
                used.push(axis);
                dim.push(axis);
            }
        }
        Ok(Self { mesh, dims })
    }
}
