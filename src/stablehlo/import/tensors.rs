//! Types, shardings, and the tensors that statements of a region need: with the axes of its devices.

use grammar::dtype::DType;

use super::{Imported, Importer, MAX_RANK, errors::unsupported_sharding};
use crate::{
    sharding::{Mesh, Sharding},
    tree::{Attribute, Operation, TensorType, Type},
    value::{AxisSet, Scalar, Splat, Tensor, Value},
    writer::Dim,
};

impl<'s> Importer<'_, 's> {
    pub(super) fn tensor_type<'a>(&self, ty: &'a Type<'_>) -> Imported<&'a TensorType> {
        match ty {
            Type::Tensor(it) if it.shape.len() > MAX_RANK => {
                Err(self
                    .bad_module(format!("a tensor has more than {MAX_RANK} dimensions"), "expected fewer"))
            }
            Type::Tensor(it) => Ok(it),
            Type::Other(text) => Err(self.unsupported(text)),
        }
    }

    /// Returns the type of a result.
    pub(super) fn result_type<'a>(&self, op: &'a Operation<'_>, at: usize) -> Imported<&'a TensorType> {
        let ty = op.result_types.get(at).ok_or_else(|| self.missing(op, "type"))?;
        self.tensor_type(ty)
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
        let shard = |axis: &usize| (mesh.letter(*axis), mesh.axes[*axis].1);
        let dims = shape.iter().zip(&sharding.dims);
        dims.map(|(extent, axes)| Dim { shards: axes.iter().map(shard).collect(), ..Dim::of(*extent) })
            .collect()
    }

    pub(super) fn mesh_text(&self, mesh: usize) -> String {
        self.meshes.get(mesh).filter(|it| it.devices() > 1).map(Mesh::text).unwrap_or_default()
    }

    pub(super) fn declare_sharded(
        &mut self,
        shape: &[i64],
        dtype: DType,
        sharding: Option<&Sharding>,
    ) -> usize {
        match sharding {
            Some(it) => {
                let (dims, mesh) = (self.sharded_dims(shape, it), self.mesh_text(it.mesh));
                self.out.declare(dims, dtype, mesh)
            }
            None => self.out.declare(shape.iter().copied().map(Dim::of).collect(), dtype, String::new()),
        }
    }

    /// Returns a tensor with this sharding. A sum whose sharding nothing states gets it in place, so that it need not be
    /// complete before it is sharded.
    pub(super) fn constrained(&mut self, tensor: Tensor, sharding: &Sharding) -> Tensor {
        if self.unsharded_sums.remove(&tensor.number) {
            let dims = self.sharded_dims(&tensor.shape, sharding);
            let mesh = self.mesh_text(sharding.mesh);
            let it = &mut self.out.tensors[tensor.number];
            it.mesh = mesh;
            let mut kept = dims.into_iter();
            for dim in it.dims.iter_mut().filter(|it| !it.is_reduced) {
                *dim = kept.next().unwrap_or_default();
            }
            return tensor;
        }
        let number = self.declare_sharded(&tensor.shape, tensor.dtype, Some(sharding));
        self.set(number, tensor.number);
        Tensor { number, ..tensor }
    }

    /// Adds the statement that one tensor has the elements of another one.
    pub(super) fn set(&mut self, to: usize, from: usize) {
        self.out.statement(format!("T{to} = Set( T{from} )"));
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
            .map(|it| Dim::device(mesh.letter(it), mesh.axes[it].1))
            .collect()
    }

    /// Returns the text of the mesh of values here: tensors outside of manual regions have none, so that passes choose it.
    pub(super) fn region_mesh(&self) -> String {
        self.region.as_ref().map(|it| self.mesh_text(it.mesh)).unwrap_or_default()
    }

    /// Declares a tensor with these dimensions, behind those of devices.
    pub(super) fn declare(&mut self, dims: Vec<Dim>, dtype: DType) -> usize {
        let mesh = self.region_mesh();
        self.out.declare(dims, dtype, mesh)
    }

    /// Declares a tensor for a result.
    pub(super) fn tensor(&mut self, axes: AxisSet, shape: &[i64], dtype: DType) -> Tensor {
        let mut dims = self.device_dims(axes);
        dims.extend(shape.iter().copied().map(Dim::of));
        Tensor { number: self.declare(dims, dtype), axes, shape: shape.to_vec(), dtype }
    }

    /// Adds the statement `T1 = text`, whose result has this type.
    pub(super) fn emit(
        &mut self,
        axes: AxisSet,
        shape: &[i64],
        dtype: DType,
        text: impl std::fmt::Display,
    ) -> Tensor {
        let it = self.tensor(axes, shape, dtype);
        self.out.statement(format!("T{} = {text}", it.number));
        it
    }

    /// Returns a value as a tensor.
    pub(super) fn materialized(&mut self, value: Value) -> Tensor {
        match value {
            Value::Tensor(it) => it,
            Value::Splat(Splat { scalar, shape, dtype }) => {
                let axes = scalar.axes();
                let extents =
                    self.device_dims(axes).into_iter().map(|it| it.extent).chain(shape.iter().copied());
                let extents = extents.map(|it| it.to_string()).collect::<Vec<_>>().join(", ");
                if let (Scalar::Float(value), DType::E5M2) = (&scalar, dtype)
                    && value.is_infinite()
                {
                    // A number of Host IR becomes the largest element.
                    let bits = if *value < 0.0 { 0xfc } else { 0x7c };
                    let own = self.emit(axes, &shape, DType::UInt8, format!("full({{{extents}}}, {bits});"));
                    return self.emit(axes, &shape, dtype, format!("bit_cast(T{});", own.number));
                }
                let text = format!("full({{{extents}}}, {});", scalar.text(dtype));
                if let (Scalar::Named(..), false) = (&scalar, dtype.is_integral()) {
                    // A scalar of the host is an integer.
                    let own = self.emit(axes, &shape, DType::Int64, text);
                    return self.emit(axes, &shape, dtype, format!("cast(T{});", own.number));
                }
                self.emit(axes, &shape, dtype, text)
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
            flags.push(is_new.to_string());
            dims.extend(if is_new { vec![Dim::of(1)] } else { self.device_dims(1 << axis) });
        }
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        flags.extend(tensor.shape.iter().map(|_| "false".to_owned()));
        let number = self.declare(dims, tensor.dtype);
        self.out.statement(format!(
            "T{number} = broadcast( T{}, flags = {{{}}} )",
            tensor.number,
            flags.join(", ")
        ));
        Tensor { number, axes, ..tensor }
    }

    /// Returns a tensor that has an index for each of these devices.
    pub(super) fn on_axes(&mut self, tensor: Tensor, axes: AxisSet) -> Tensor {
        if tensor.axes | axes == tensor.axes {
            return tensor;
        }
        let it = self.with_axes(tensor, axes);
        let shape = it.shape.clone();
        self.emit(it.axes, &shape, it.dtype, format!("expand(T{})", it.number))
    }

    /// Returns the number of device axes of a value.
    pub(super) fn device_count(axes: AxisSet) -> usize {
        axes.count_ones() as usize
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
