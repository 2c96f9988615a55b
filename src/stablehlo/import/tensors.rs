//! Types, shardings, and the tensors that statements of a region need: with the axes of its devices.

use std::sync::Arc;

use grammar::{DType, ExprId, Mesh, Op, OpStmt, TensorId, attr};
use hir_ir::build::{Dim, apply};

use super::{Imported, Importer, MAX_RANK, errors::unsupported_sharding};
use crate::{
    sharding::Sharding,
    tree::{Attribute, Operation, TensorType, Type},
    value::{AxisSet, Scalar, Splat, TOKEN, Tensor, Value},
};

impl<'s> Importer<'_, 's> {
    pub(super) fn tensor_type<'a>(&self, ty: &'a Type<'_>) -> Imported<&'a TensorType> {
        match ty {
            Type::Tensor(it) if it.shape.len() > MAX_RANK => {
                Err(self
                    .bad_module(format!("a tensor has more than {MAX_RANK} dimensions"), "expected fewer"))
            }
            Type::Tensor(it) => Ok(it),
            _ if ty.is_token() => Ok(&TOKEN),
            Type::Other(text) => Err(self.unsupported(text)),
        }
    }

    /// Returns the type of a result, or that of its parts where they are imported.
    pub(super) fn result_type(&self, op: &Operation<'_>, at: usize) -> Imported<TensorType> {
        let ty = op.result_types.get(at).ok_or_else(|| self.missing(op, "type"))?;
        let ty = self.tensor_type(ty)?.clone();
        let part = ty.dtype.part().filter(|_| self.has_parts);
        Ok(TensorType { dtype: part.unwrap_or(ty.dtype), ..ty })
    }

    pub(super) fn sharding(
        &self,
        stated: Option<&Attribute<'_>>,
        shape: &[i64],
    ) -> Imported<Option<Sharding>> {
        // Open dimensions without axes state nothing.
        let Some(stated) = stated.filter(|it| !it.is_open_sharding()) else { return Ok(None) };
        let sharding = Sharding::read(stated, &self.meshes, shape);
        sharding.map(Some).map_err(|it| unsupported_sharding(self.out.span, &it))
    }

    /// Returns the sharding of a tensor that every device holds, if the module has a mesh of several devices.
    pub(super) fn replicated(&self, shape: &[i64]) -> Option<Sharding> {
        let mesh = self.meshes.iter().position(|it| it.devices() > 1)?;
        Some(Sharding { mesh, dims: vec![Vec::new(); shape.len()] })
    }

    /// Returns the dimensions of a tensor with this sharding.
    pub(super) fn sharded_dims(&self, shape: &[i64], sharding: &Sharding) -> Vec<Dim> {
        let mesh = &self.meshes[sharding.mesh];
        let dims = shape.iter().zip(&sharding.dims);
        dims.map(|(extent, axes)| Dim {
            shards: axes.iter().map(|axis| mesh.device(*axis)).collect(),
            ..Dim::of(*extent)
        })
        .collect()
    }

    /// Returns the devices of a mesh.
    pub(super) fn grid(&self, mesh: usize) -> Arc<Mesh> {
        Arc::clone(self.meshes.get(mesh).map_or(&self.no_mesh, |it| &it.grid))
    }

    pub(super) fn declare_sharded(
        &mut self,
        shape: &[i64],
        dtype: DType,
        sharding: Option<&Sharding>,
    ) -> TensorId {
        let (dims, mesh) = match sharding {
            Some(it) => (self.sharded_dims(shape, it), self.grid(it.mesh)),
            None => (shape.iter().copied().map(Dim::of).collect(), Arc::clone(&self.no_mesh)),
        };
        self.declare_on(dims, dtype, mesh)
    }

    /// Returns a tensor with this sharding. A sum whose sharding nothing states gets it in place, so that it need not be
    /// complete before it is sharded.
    pub(super) fn constrained(&mut self, tensor: Tensor, sharding: &Sharding) -> Tensor {
        if self.unsharded_sums.remove(&tensor.id) {
            let dims = self.sharded_dims(&tensor.shape, sharding);
            let mesh = self.grid(sharding.mesh);
            self.out.reshard(tensor.id, dims, mesh);
            return tensor;
        }
        let id = self.declare_sharded(&tensor.shape, tensor.dtype, Some(sharding));
        self.set(id, tensor.id);
        Tensor { id, ..tensor }
    }

    /// Adds the statement that one tensor has the elements of another one.
    pub(super) fn set(&mut self, to: TensorId, from: TensorId) {
        self.out.assign(to, apply(Op::Set, [from]));
        if let Some(dim) = self.iotas.get(&from).copied() {
            self.iotas.insert(to, dim);
        }
    }

    /// Returns the device axes of a value before its own dimensions.
    pub(super) fn device_dims(&self, axes: AxisSet) -> Vec<Dim> {
        let Some(region) = &self.region else { return Vec::new() };
        let mesh = &self.meshes[region.mesh];
        let all = 0..mesh.axes.len();
        all.filter(|it| axes & (1 << it) != 0)
            .map(|it| mesh.device(it))
            .map(|(device, extent)| Dim::device(device, extent))
            .collect()
    }

    /// Declares a tensor with these dimensions, behind those of devices.
    pub(super) fn declare(&mut self, dims: Vec<Dim>, dtype: DType) -> TensorId {
        let mesh = self.region_grid();
        self.declare_on(dims, dtype, mesh)
    }

    /// Declares a tensor with these dimensions on a mesh. Complex numbers are pairs in a dimension behind them.
    pub(super) fn declare_on(&mut self, mut dims: Vec<Dim>, dtype: DType, mesh: Arc<Mesh>) -> TensorId {
        let part = dtype.part();
        dims.extend(part.map(|_| Dim::of(2)));
        self.out.tensor(dims, part.unwrap_or(dtype), mesh)
    }

    /// Returns the devices of values here.
    pub(super) fn region_grid(&self) -> Arc<Mesh> {
        self.region.as_ref().map_or_else(|| Arc::clone(&self.no_mesh), |it| self.grid(it.mesh))
    }

    /// Declares a tensor for a result.
    pub(super) fn tensor(&mut self, axes: AxisSet, shape: &[i64], dtype: DType) -> Tensor {
        let mut dims = self.device_dims(axes);
        dims.extend(shape.iter().copied().map(Dim::of));
        Tensor { id: self.declare(dims, dtype), axes, shape: shape.to_vec(), dtype }
    }

    /// Adds a statement whose result has this type.
    pub(super) fn emit(&mut self, axes: AxisSet, shape: &[i64], dtype: DType, stmt: OpStmt) -> Tensor {
        let it = self.tensor(axes, shape, dtype);
        self.out.assign(it.id, stmt);
        it
    }

    /// Returns integers as operands of a statement.
    pub(super) fn ints(&mut self, all: impl IntoIterator<Item = i64>) -> Vec<ExprId> {
        all.into_iter().map(|it| self.out.int(it)).collect()
    }

    /// Returns a value as a tensor.
    pub(super) fn materialized(&mut self, value: Value) -> Tensor {
        match value {
            Value::Tensor(it) => {
                self.store_pieces(&it);
                it
            }
            Value::Splat(Splat { scalar, shape, dtype }) => {
                let axes = scalar.axes();
                // Numbers of Host IR become the largest element of this type, and scalars of the host are integers.
                let (own, scalar) = match scalar {
                    Scalar::Float(it) if dtype == DType::E5M2 && it.is_infinite() => {
                        (DType::UInt8, Scalar::Int(if it < 0.0 { 0xfc } else { 0x7c }))
                    }
                    Scalar::Named(..) if !dtype.is_integral() => (DType::Int64, scalar),
                    _ => (dtype, scalar),
                };
                let devices = self.device_dims(axes).into_iter().map(|it| it.extent);
                let extents = self.ints(devices.chain(shape.iter().copied()));
                let number = scalar.expr(dtype, &mut self.out);
                let full = apply(Op::Full, [number]).with(attr::SHAPE, extents);
                let it = self.emit(axes, &shape, own, full);
                match own {
                    _ if own == dtype => it,
                    DType::UInt8 => self.emit(axes, &shape, dtype, apply(Op::BitCast, [it.id])),
                    _ => self.emit(axes, &shape, dtype, apply(Op::Cast, [it.id])),
                }
            }
        }
    }

    /// Returns a tensor with the dimensions of these devices too, of extent 1 where it does not have them.
    pub(super) fn with_axes(&mut self, tensor: Tensor, axes: AxisSet) -> Tensor {
        if tensor.axes | axes == tensor.axes {
            return tensor;
        }
        let axes = tensor.axes | axes;
        let mut dims = Vec::new();
        let mut flags = Vec::new();
        for axis in (0..8).filter(|it| axes & (1 << it) != 0) {
            let is_new = tensor.axes & (1 << axis) == 0;
            flags.push(is_new);
            dims.extend(if is_new { vec![Dim::of(1)] } else { self.device_dims(1 << axis) });
        }
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        flags.extend(tensor.shape.iter().map(|_| false));
        let id = self.declare(dims, tensor.dtype);
        self.out.assign(id, apply(Op::Broadcast, [tensor.id]).with(attr::FLAGS, flags));
        Tensor { id, axes, ..tensor }
    }

    /// Returns a tensor that has an index for each of these devices.
    pub(super) fn on_axes(&mut self, tensor: Tensor, axes: AxisSet) -> Tensor {
        if tensor.axes | axes == tensor.axes {
            return tensor;
        }
        let it = self.with_axes(tensor, axes);
        let shape = it.shape.clone();
        self.emit(it.axes, &shape, it.dtype, apply(Op::Expand, [it.id]))
    }

    /// Returns the number of device axes of a value.
    pub(super) fn device_count(axes: AxisSet) -> usize {
        axes.count_ones() as usize
    }

    /// Returns the number of a dimension, behind those of devices, as an attribute.
    pub(super) fn dim_of(&mut self, axes: AxisSet, dim: usize) -> ExprId {
        self.out.int((Self::device_count(axes) + dim) as i64)
    }

    /// Returns the operands of an operation, of which there are exactly `N`.
    pub(super) fn operands<const N: usize>(
        &self,
        op: &Operation<'_>,
        operands: Vec<Value>,
    ) -> Imported<[Value; N]> {
        let count = operands.len();
        operands.try_into().map_err(|_| {
            self.bad_module(format!("`{}` has {count} operands", op.name), &format!("expected {N} operands"))
        })
    }
}
