//! Manual regions (`shard_map`) and sharding constraints.
//!
//! A region computes with the shards of one device. The program has the shards of all devices in one tensor, whose device axes are
//! before the dimensions of the shard. Which device axes it has is its `AxisSet`: a value that is equal on the devices of a mesh axis
//! does not have that axis.

use std::sync::Arc;

use grammar::Op;
use hir_ir::build::{self, Dim, apply};

use super::{Imported, Importer, Region, Results, errors::unsupported_sharding};
use crate::{
    sharding::Sharding,
    tree::{Attribute, Block, Operation},
    value::{AxisSet, Scalar, Splat, Tensor, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn sharding_constraint(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let stated = op.attribute(&["sharding"]).or(op.positional.first());
        let stated = stated.ok_or_else(|| self.missing(op, "sharding"))?;
        Ok(vec![self.with_sharding(value, stated)?])
    }

    /// Returns the results of an operation that has `sdy.sharding` itself.
    pub(super) fn with_shardings(
        &mut self,
        op: &Operation<'_>,
        stated: &Attribute<'_>,
        results: Vec<Value>,
    ) -> Results {
        if results.is_empty() {
            return Ok(results);
        }
        let all = match stated {
            Attribute::Named(_, _, items) => match &items[..] {
                [Attribute::Array(all)] if all.len() == results.len() => all,
                _ => return Err(self.missing(op, "sdy.sharding")),
            },
            _ => return Err(self.missing(op, "sdy.sharding")),
        };
        results.into_iter().zip(all).map(|(value, stated)| self.with_sharding(value, stated)).collect()
    }

    fn with_sharding(&mut self, value: Value, stated: &Attribute<'_>) -> Imported<Value> {
        let sharding = self.sharding(Some(stated), value.shape())?;
        let (tensor, sharding) = match (value, sharding) {
            (Value::Tensor(tensor), Some(sharding)) => (tensor, sharding),
            // A number needs no storage.
            (it, _) => return Ok(it),
        };
        self.store_pieces(&tensor);
        if self.region.is_none() {
            return Ok(Value::Tensor(self.constrained(tensor, &sharding)));
        }
        // Of the axes that are not manual.
        let mut dims = self.device_dims(tensor.axes);
        dims.extend(self.sharded_dims(&tensor.shape, &sharding));
        let id = self.declare(dims, tensor.dtype);
        self.set(id, tensor.id);
        Ok(Value::Tensor(Tensor { id, ..tensor }))
    }

    pub(crate) fn manual_computation(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [body] = &op.regions[..] else { return Err(self.missing(op, "region")) };
        let inputs = self.shardings(op, "in_shardings", operands.iter().map(Value::shape))?;
        let types =
            op.result_types.iter().map(|it| self.tensor_type(it).cloned()).collect::<Imported<Vec<_>>>()?;
        let outputs = self.shardings(op, "out_shardings", types.iter().map(|it| &it.shape[..]))?;
        let Some(mesh) = inputs.iter().chain(&outputs).map(|it| it.mesh).next() else {
            return Err(self.unsupported_form(op, "it has no shardings"));
        };
        if inputs.iter().chain(&outputs).any(|it| it.mesh != mesh) {
            return Err(self.unsupported_form(op, "its shardings are of several meshes"));
        }
        let region = Region { mesh, manual: self.manual_axes(op, mesh)? };
        if let Some(outer) = self.region.clone() {
            let shards = inputs.iter().chain(&outputs).flat_map(|it| it.dims.iter().flatten());
            if outer.mesh != mesh || shards.into_iter().any(|it| region.manual & (1 << it) != 0) {
                return Err(
                    self.unsupported_form(op, "a manual region in another one, with shards of its own")
                );
            }
            return self.inner_region(body, operands, &outer, region);
        }
        let mut values = Vec::with_capacity(operands.len());
        for (value, sharding) in operands.into_iter().zip(&inputs) {
            values.push(self.each_part(value, |it, part| Ok(it.entered(part, sharding, &region)))?);
        }
        self.region = Some(region.clone());
        let results = self.region_with(body, values);
        let results = results.and_then(|it| {
            if it.len() == types.len() {
                Ok(it)
            } else {
                let message = "the region returns another number of values";
                Err(self.bad_module(message, "expected one for each result"))
            }
        })?;
        results.iter().for_each(|it| self.store(it));
        let mut left = Vec::with_capacity(results.len());
        for ((value, ty), sharding) in results.into_iter().zip(&types).zip(&outputs) {
            left.push(self.each_part(value, |it, part| Ok(it.left(part, &ty.shape, sharding, &region)))?);
        }
        self.region = None;
        Ok(left)
    }

    /// Imports a region in another one whose operands and results are equal on all devices of its own axes. JAX writes it for an
    /// `axis_index` where not all axes are manual.
    fn inner_region(
        &mut self,
        body: &'m Block<'s>,
        operands: Vec<Value>,
        outer: &Region,
        own: Region,
    ) -> Results {
        self.region = Some(Region { manual: outer.manual | own.manual, ..own });
        let results = self.region_with(body, operands)?;
        results.iter().for_each(|it| self.store(it));
        let mut left = Vec::with_capacity(results.len());
        for it in results {
            left.push(match it {
                Value::Splat(Splat { scalar: Scalar::Named(it, axes), shape, dtype }) => {
                    let scalar = Scalar::Named(it, axes & outer.manual);
                    Value::Splat(Splat { scalar, shape, dtype })
                }
                it @ Value::Splat(_) => it,
                Value::Tensor(it) => Value::Tensor(self.of_first_device(it, outer.manual)),
            });
        }
        self.region = Some(outer.clone());
        Ok(left)
    }

    /// Returns the shardings of the operands or the results.
    fn shardings<'a>(
        &self,
        op: &Operation<'_>,
        name: &str,
        shapes: impl Iterator<Item = &'a [i64]>,
    ) -> Imported<Vec<Sharding>> {
        let stated = match op.attribute(&[name]) {
            Some(Attribute::Array(all)) => all,
            Some(Attribute::Named(_, _, items)) => match items.first() {
                Some(Attribute::Array(all)) => all,
                _ => return Err(self.missing(op, name)),
            },
            _ => return Err(self.missing(op, name)),
        };
        let shapes: Vec<_> = shapes.collect();
        if shapes.len() != stated.len() {
            return Err(self.bad_module(
                format!("`{name}` has {} shardings", stated.len()),
                "expected one for each value",
            ));
        }
        let read = |(it, shape)| {
            Sharding::read(it, &self.meshes, shape).map_err(|it| unsupported_sharding(op.span, &it))
        };
        stated.iter().zip(shapes).map(read).collect()
    }

    fn manual_axes(&self, op: &Operation<'_>, mesh: usize) -> Imported<AxisSet> {
        let names = match op.attribute(&["manual_axes"]) {
            Some(Attribute::Set(names)) => names,
            Some(Attribute::Named(_, _, items)) => match items.first() {
                Some(Attribute::Set(names)) => names,
                _ => return Err(self.missing(op, "manual_axes")),
            },
            _ => return Err(self.missing(op, "manual_axes")),
        };
        let mut manual = 0;
        for name in names {
            let Attribute::String(name) = name else { return Err(self.missing(op, "manual_axes")) };
            let axes = self.meshes[mesh].axis(name, &[]).map_err(|it| unsupported_sharding(op.span, &it))?;
            manual |= axes.fold(0, |all, it| all | 1 << it);
        }
        Ok(manual)
    }

    /// Returns the manual axes over which a dimension is sharded, and their number of devices.
    fn manual_part(&self, axes: &[usize], region: &Region) -> (Vec<usize>, i64) {
        let own: Vec<usize> = axes.iter().copied().filter(|it| region.manual & (1 << it) != 0).collect();
        let parts = own.iter().map(|it| self.meshes[region.mesh].axes[*it]).product();
        (own, parts)
    }

    /// Returns the shards of a value, which enters a region.
    fn entered(&mut self, value: Value, sharding: &Sharding, region: &Region) -> Value {
        let parts: Vec<_> = sharding.dims.iter().map(|axes| self.manual_part(axes, region)).collect();
        let shape: Vec<i64> =
            value.shape().iter().zip(&parts).map(|(extent, part)| extent / part.1).collect();
        let tensor = match value {
            Value::Splat(it) => return Value::Splat(Splat { shape, ..it }),
            Value::Tensor(it) => it,
        };
        let wanted = self.sharded_dims(&tensor.shape, sharding);
        let mesh = self.grid(region.mesh);
        let mut own = self.out.dims(tensor.id).iter().filter(|it| !it.is_reduced).zip(&wanted);
        let is_so =
            *self.out.mesh(tensor.id) == mesh && own.all(|(a, b)| a.shards == b.shards && a.device.is_none());
        let tensor = if is_so { tensor } else { self.constrained(tensor, sharding) };
        let axes = parts.iter().flat_map(|it| &it.0).fold(0, |axes, it| axes | 1 << it);
        if axes == 0 {
            return Value::Tensor(tensor);
        }
        // Split the dimensions into devices and shards.
        let (mut dims, mut devices) = (Vec::new(), Vec::new());
        for ((extent, part), dim) in shape.iter().zip(&parts).zip(wanted) {
            for axis in &part.0 {
                devices.push((*axis, dims.len()));
                let (device, extent) = self.meshes[region.mesh].device(*axis);
                dims.push(Dim::device(device, extent));
            }
            dims.push(Dim {
                extent: *extent,
                shards: dim.shards.into_iter().skip(part.0.len()).collect(),
                ..Dim::default()
            });
        }
        let split = self.out.tensor(dims.clone(), tensor.dtype, Arc::clone(&mesh));
        self.out.assign(split, apply(Op::Reshape, [tensor.id]));
        // The devices first.
        devices.sort_unstable();
        let order: Vec<usize> = devices
            .iter()
            .map(|it| it.1)
            .chain((0..dims.len()).filter(|at| dims[*at].device.is_none()))
            .collect();
        let id = self.reordered(split, &dims, &order, mesh);
        Value::Tensor(Tensor { id, axes, shape, dtype: tensor.dtype })
    }

    /// Returns the whole tensor of shards that leave a region.
    fn left(&mut self, value: Value, shape: &[i64], sharding: &Sharding, region: &Region) -> Value {
        let parts: Vec<_> = sharding.dims.iter().map(|axes| self.manual_part(axes, region)).collect();
        let needed = parts.iter().flat_map(|it| &it.0).fold(0, |axes, it| axes | 1 << it);
        if let Value::Splat(it) = &value
            && !matches!(it.scalar, Scalar::Named(..))
        {
            return Value::Splat(Splat { shape: shape.to_vec(), ..it.clone() });
        }
        let tensor = self.materialized(value);
        let tensor = self.on_axes(tensor, needed);
        let tensor = self.of_first_device(tensor, needed);
        if needed == 0 {
            return Value::Tensor(tensor);
        }
        let from = self
            .device_dims(needed)
            .into_iter()
            .chain(tensor.shape.iter().copied().map(Dim::of))
            .collect::<Vec<_>>();
        let device = |axis: usize| (0..axis).filter(|it| needed & (1 << it) != 0).count();
        let own = Self::device_count(needed);
        let order: Vec<usize> = parts
            .iter()
            .enumerate()
            .flat_map(|(at, part)| part.0.iter().map(|it| device(*it)).chain([own + at]))
            .collect();
        let mesh = self.grid(region.mesh);
        let merged = self.reordered(tensor.id, &from, &order, mesh);
        let id = self.declare_sharded(shape, tensor.dtype, Some(sharding));
        self.out.assign(id, apply(Op::Reshape, [merged]));
        Value::Tensor(Tensor { id, axes: 0, shape: shape.to_vec(), dtype: tensor.dtype })
    }

    /// Returns what each device has along the axes that are not `kept`: the module states that all devices have the same. No statement
    /// makes it so, and who compares results sees replicas that differ.
    fn of_first_device(&mut self, tensor: Tensor, kept: AxisSet) -> Tensor {
        let others = (0..8).filter(|axis| tensor.axes & !kept & (1 << axis) != 0);
        let mut own = tensor.clone();
        for axis in others {
            let place = Self::device_count(own.axes & ((1 << axis) - 1));
            let rest = self.tensor(own.axes & !(1 << axis), &own.shape, own.dtype);
            let (axis, first) = (self.out.axis(own.id, place), self.out.int(0));
            self.out.add(build::select(rest.id, own.id, axis, first));
            own = rest;
        }
        if own.axes == tensor.axes {
            return tensor;
        }
        // The result has storage of its own.
        let shape = own.shape.clone();
        self.emit(own.axes, &shape, own.dtype, apply(Op::Set, [own.id]))
    }
}
