//! Collectives of manual regions: each is a resharding of device axes, so passes lower and overlap it like one that they insert.

use grammar::{DType, Diagnostic, Expr, ExprId, Function, InfixOp, Op};
use hir_ir::build::{self, Dim, apply};

use super::{Imported, Importer, Region, Results};
use crate::{
    import::reduce::{NO_REDUCER, Reducer},
    tree::{Attribute, Operation},
    value::{AxisSet, Scalar, Splat, Tensor, Value},
};

impl<'m, 's> Importer<'m, 's> {
    /// Returns the region of an operation that is valid only in one.
    fn manual_region(&self, op: &Operation<'_>) -> Imported<Region> {
        self.region.clone().ok_or_else(|| self.outside_of_regions(op))
    }

    fn outside_of_regions(&self, op: &Operation<'_>) -> Box<Diagnostic> {
        self.unsupported_form(op, "outside of a manual region (`shard_map` on several devices)")
    }

    /// Returns the mesh axes of the groups of a collective. A reduction does not depend on the order of the devices in a group.
    fn group_axes(&self, op: &Operation<'_>) -> Imported<AxisSet> {
        let mut rows = self.stated_groups(op).ok_or_else(|| {
            self.unsupported_form(op, "its `replica_groups` are not a list of devices or of axes of a mesh")
        })?;
        if op.name == "stablehlo.all_reduce" {
            rows.iter_mut().for_each(|it| it.sort_unstable());
        }
        // JAX writes no region for a mesh of one device.
        if self.region.is_none() && rows.iter().all(|it| it.len() == 1) {
            return Ok(0);
        }
        let region = self.manual_region(op)?;
        self.meets(op, &rows)?;
        let axes = self.meshes[region.mesh]
            .axes_of_groups(&rows)
            .map(|it| it.iter().fold(0, |axes, it| axes | 1 << it));
        axes.filter(|it| it & !region.manual == 0).ok_or_else(|| {
            self.unsupported_form(
                op,
                "its `replica_groups` are not all devices along manual axes of the mesh, or parts of axes, in their order; give the mesh an axis for them",
            )
        })
    }

    /// Returns the devices of each group, which are listed, or differ along axes of a mesh: JAX 0.12 writes these.
    fn stated_groups(&self, op: &Operation<'_>) -> Option<Vec<Vec<i64>>> {
        let stated = op.attribute(&["replica_groups"])?;
        let Attribute::Named(_, entries, _) = stated else { return stated.rows() };
        let (Attribute::Symbol(name), Attribute::Array(refs)) =
            (Attribute::find(entries, "mesh")?, Attribute::find(entries, "axes")?)
        else {
            return None;
        };
        let mesh = self.meshes.iter().find(|it| it.name == *name)?;
        let mut axes = Vec::with_capacity(refs.len());
        for it in refs {
            match it {
                Attribute::Named(_, parts, _) => match parts[..] {
                    [("name", Attribute::String(name))] => axes.extend(mesh.axis(name, &[]).ok()?),
                    _ => return None,
                },
                _ => return None,
            }
        }
        Some(mesh.groups_along(&axes))
    }

    /// Returns the number of devices of a group.
    fn group_size(&self, axes: AxisSet) -> i64 {
        self.device_dims(axes).iter().map(|it| it.extent).product()
    }

    pub(crate) fn device_id(&mut self, op: &'m Operation<'s>, _: Vec<Value>) -> Results {
        let scalar = match (op.name, &self.region) {
            ("stablehlo.partition_id", Some(region)) => {
                let (rank, count) = (self.out.rank(), self.meshes[region.mesh].devices());
                Scalar::Named(rank, self.valued(rank, (0..count).collect()))
            }
            ("stablehlo.partition_id", None) if !self.has_one_device => {
                return Err(self.outside_of_regions(op));
            }
            // The only device. Shardy partitions; nothing is replicated.
            _ => Scalar::Int(0),
        };
        let dtype = self.result_type(op, 0)?.dtype;
        Ok(vec![Value::Splat(Splat { scalar, shape: Vec::new(), dtype })])
    }

    pub(crate) fn all_reduce(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let axes = self.group_axes(op)?;
        if axes == 0 {
            return Ok(operands);
        }
        let mut results = Vec::with_capacity(operands.len());
        for it in operands {
            let reducer = self.reducer(op, &it)?;
            let tensor = self.materialized(it);
            results.push(Value::Tensor(self.reduced_over_devices(tensor, reducer, axes)));
        }
        Ok(results)
    }

    fn reducer(&self, op: &Operation<'_>, value: &Value) -> Imported<Reducer> {
        let found = op.regions.first().and_then(|it| Reducer::of_region(it, value.dtype()));
        found.ok_or_else(|| self.unsupported_form(op, NO_REDUCER))
    }

    pub(crate) fn all_gather(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let axes = self.group_axes(op)?;
        if axes == 0 {
            return Ok(operands);
        }
        let mut results = Vec::with_capacity(operands.len());
        for it in operands {
            let dim = self.dimension(op, &["all_gather_dim"], it.shape().len())?;
            let tensor = self.materialized(it);
            let tensor = self.on_axes(tensor, axes);
            results.push(Value::Tensor(self.gathered(tensor, axes, dim)));
        }
        Ok(results)
    }

    /// Returns the shards of a group, one behind the other along `dim`.
    fn gathered(&mut self, tensor: Tensor, axes: AxisSet, dim: usize) -> Tensor {
        let (mut dims, mut kept, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for axis in (0..8).filter(|it| tensor.axes & (1 << it) != 0) {
            for own in self.device_dims(1 << axis) {
                let is_gathered = axes & (1 << axis) != 0;
                if is_gathered {
                    moved.push(dims.len())
                } else {
                    kept.push(dims.len())
                }
                dims.push(if is_gathered { Dim::of(own.extent) } else { own });
            }
        }
        let first = dims.len();
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        let whole = self.declare(dims.clone(), tensor.dtype);
        self.out.assign(whole, apply(Op::Set, [tensor.id]));
        let order: Vec<usize> =
            kept.into_iter().chain(first..first + dim).chain(moved).chain(first + dim..dims.len()).collect();
        let mesh = self.region_grid();
        let ordered = self.reordered(whole, &dims, &order, mesh);
        let mut shape = tensor.shape.clone();
        shape[dim] *= self.group_size(axes);
        self.emit(tensor.axes & !axes, &shape, tensor.dtype, apply(Op::Reshape, [ordered]))
    }

    pub(crate) fn reduce_scatter(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let axes = self.group_axes(op)?;
        let [value] = self.operands(op, operands)?;
        if axes == 0 {
            return Ok(vec![value]);
        }
        let dim = self.dimension(op, &["scatter_dimension"], value.shape().len())?;
        let reducer = self.reducer(op, &value)?;
        let size = self.group_size(axes);
        if value.shape()[dim] % size != 0 {
            return Err(self.bad_module(
                "the scattered dimension is not divided evenly",
                "expected a multiple of the group",
            ));
        }
        let tensor = self.materialized(value);
        let tensor = self.on_axes(tensor, axes);
        let (mut dims, mut kept) = (Vec::new(), Vec::new());
        for axis in (0..8).filter(|it| tensor.axes & (1 << it) != 0) {
            for own in self.device_dims(1 << axis) {
                let is_reduced = axes & (1 << axis) != 0;
                if !is_reduced {
                    kept.push((axis, own.clone()));
                }
                dims.push(if is_reduced { Dim::reduced(own.extent) } else { own });
            }
        }
        let devices = self.device_dims(axes);
        let shards = devices.iter().filter_map(|it| Some((it.device?, it.extent))).collect();
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        let at = dims.len() - tensor.shape.len() + dim;
        dims[at].shards = shards;
        let sum = self.reduction_to(&tensor, reducer, dims);
        // Split the dimension into devices and shards, and put the devices in front.
        let mut shape = tensor.shape.clone();
        shape[dim] /= size;
        let mut split: Vec<Dim> = kept.iter().map(|it| it.1.clone()).collect();
        let mut places: Vec<(usize, usize)> = kept.iter().enumerate().map(|(at, it)| (it.0, at)).collect();
        let first = split.len();
        split.extend(shape[..dim].iter().copied().map(Dim::of));
        for axis in (0..8).filter(|it| axes & (1 << it) != 0) {
            places.push((axis, split.len()));
            split.extend(self.device_dims(1 << axis));
        }
        split.extend(shape[dim..].iter().copied().map(Dim::of));
        let parts = self.declare(split.clone(), tensor.dtype);
        self.out.assign(parts, apply(Op::Reshape, [sum]));
        places.sort_unstable();
        let front: Vec<usize> = places.into_iter().map(|it| it.1).collect();
        let order: Vec<usize> =
            front.iter().copied().chain((first..split.len()).filter(|it| !front.contains(it))).collect();
        let mesh = self.region_grid();
        let id = self.reordered(parts, &split, &order, mesh);
        Ok(vec![Value::Tensor(Tensor { id, shape, ..tensor })])
    }

    pub(crate) fn all_to_all(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let axes = self.group_axes(op)?;
        if axes == 0 {
            return Ok(operands);
        }
        if axes.count_ones() != 1 {
            return Err(self.unsupported_form(op, "over several axes of the mesh"));
        }
        let mut results = Vec::with_capacity(operands.len());
        for it in operands {
            let rank = it.shape().len();
            let (split, join) = (
                self.dimension(op, &["split_dimension"], rank)?,
                self.dimension(op, &["concat_dimension"], rank)?,
            );
            if it.shape()[split] % self.group_size(axes) != 0 {
                return Err(self
                    .bad_module("the dimension is not divided evenly", "expected a multiple of the group"));
            }
            let tensor = self.materialized(it);
            let tensor = self.on_axes(tensor, axes);
            results.push(Value::Tensor(self.exchanged(tensor, axes, split, join)));
        }
        Ok(results)
    }

    /// Sends part `i` of dimension `split` to device `i`, and puts what arrives one behind the other along `join`.
    fn exchanged(&mut self, tensor: Tensor, axes: AxisSet, split: usize, join: usize) -> Tensor {
        let parts = self.group_size(axes);
        let mut dims = self.device_dims(tensor.axes);
        let devices = dims.len();
        let source =
            (0..8).filter(|it| tensor.axes & (1 << it) != 0).position(|it| axes == 1 << it).unwrap_or(0);
        let mut shape = tensor.shape.clone();
        shape[split] /= parts;
        let part = devices + split;
        dims.extend(shape[..split].iter().copied().map(Dim::of));
        dims.push(Dim::of(parts));
        dims.extend(shape[split..].iter().copied().map(Dim::of));
        let cut = self.declare(dims.clone(), tensor.dtype);
        self.out.assign(cut, apply(Op::Reshape, [tensor.id]));
        // The parts become the devices, and the devices an ordinary dimension.
        let device = std::mem::replace(&mut dims[source], Dim::of(parts));
        dims[part] = device;
        let moved = self.declare(dims.clone(), tensor.dtype);
        self.out.assign(moved, apply(Op::Set, [cut]));
        let own: Vec<usize> = (devices..dims.len()).filter(|it| *it != part).collect();
        let front = (0..devices).map(|it| if it == source { part } else { it });
        let order: Vec<usize> = front
            .chain(own[..join].iter().copied())
            .chain([source])
            .chain(own[join..].iter().copied())
            .collect();
        let mesh = self.region_grid();
        let ordered = self.reordered(moved, &dims, &order, mesh);
        shape[join] *= parts;
        self.emit(tensor.axes, &shape, tensor.dtype, apply(Op::Reshape, [ordered]))
    }

    pub(crate) fn collective_permute(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let mut rows = op.attribute(&["source_target_pairs"]).and_then(Attribute::rows);
        // `dense<2>` is one pair.
        if let Some([row]) = rows.as_deref_mut()
            && let [device] = row[..]
        {
            row.push(device);
        }
        if self.region.is_none() && rows.as_ref().is_some_and(|it| *it == [[0, 0]]) {
            return Ok(vec![value]);
        }
        let region = self.manual_region(op)?;
        let count = usize::try_from(self.meshes[region.mesh].devices()).unwrap_or(0);
        let peers = rows.as_deref().and_then(|it| peers(it, count));
        let Some((targets, has_source)) = peers else {
            let form = "its `source_target_pairs` are not pairs of devices of the mesh, with each device at most once as a source and as a target";
            return Err(self.unsupported_form(op, form));
        };
        // XLA waits for all devices, not only for those that exchange something.
        self.meets(op, &[(0..count as i64).collect()])?;
        let mut sources = vec![0; count];
        targets.iter().enumerate().for_each(|(source, target)| sources[*target] = source);
        let (send, receive) = (self.peer(&targets), self.peer(&sources));
        let tensor = self.materialized(value);
        let tensor = self.on_axes(tensor, region.manual);
        let result = self.tensor(tensor.axes, &tensor.shape.clone(), tensor.dtype);
        self.out.allocate(result.id);
        let work = self.out.work();
        let team = (0..count).collect();
        self.out.add(build::collective_permute(work, team, [send, receive], (tensor.id, result.id)));
        self.out.add(build::wait(work));
        if has_source.iter().all(|it| *it) {
            return Ok(vec![Value::Tensor(result)]);
        }
        // A device to which nobody sends has zeros.
        let mut is_target = None;
        for device in (0..count).filter(|it| has_source[*it]) {
            let own = self.is_device(device);
            let own = self.out.define(true, own);
            is_target = Some(match is_target {
                None => own,
                Some(others) => {
                    let either = self.out.expr(Expr::Infix(InfixOp::Or, others, own));
                    self.out.define(true, either)
                }
            });
        }
        let (shape, dtype) = (result.shape.clone(), result.dtype);
        let is_reached = has_source.iter().map(|it| i64::from(*it)).collect();
        let scalar =
            is_target.map_or(Scalar::Bool(false), |it| Scalar::Named(it, self.valued(it, is_reached)));
        let pred = Splat { scalar, shape: shape.clone(), dtype: DType::Bool };
        let zero = if dtype.is_integral() { Scalar::Int(0) } else { Scalar::Float(0.0) };
        let zero = Value::Splat(Splat { scalar: zero, shape, dtype });
        Ok(vec![self.select_values(Value::Splat(pred), Value::Tensor(result), zero)?])
    }

    /// Returns whether the device is the one with this number.
    fn is_device(&mut self, device: usize) -> ExprId {
        let (rank, device) = (self.out.rank(), self.out.int(device as i64));
        self.out.expr(Expr::Infix(InfixOp::Eq, rank, device))
    }

    /// Returns the peer of each device.
    fn peer(&mut self, peers: &[usize]) -> ExprId {
        let (first, count) = (peers.first().copied().unwrap_or(0), peers.len());
        if peers.iter().enumerate().all(|(at, it)| *it == (at + first) % count) {
            let (rank, shift) = (self.out.rank(), self.out.int(first as i64));
            let sum = self.out.expr(Expr::Infix(InfixOp::Add, rank, shift));
            let count = self.out.int(count as i64);
            let peer = self.out.expr(Expr::Infix(InfixOp::Rem, sum, count));
            return self.out.define(false, peer);
        }
        let mut all = self.out.int(peers.last().copied().unwrap_or(0) as i64);
        for (device, peer) in peers.iter().enumerate().rev().skip(1) {
            let (is_own, peer) = (self.is_device(device), self.out.int(*peer as i64));
            let own = self.out.expr(Expr::Call(Function::Op(Op::Where), vec![is_own, peer, all]));
            all = self.out.define(false, own);
        }
        all
    }
}

/// Returns to which device each one sends, and whether a device receives. Devices that send nothing get the targets that are left,
/// so that the exchange is a permutation.
fn peers(pairs: &[Vec<i64>], count: usize) -> Option<(Vec<usize>, Vec<bool>)> {
    let mut targets = vec![None; count];
    let mut has_source = vec![false; count];
    for pair in pairs {
        let [source, target] = pair[..] else { return None };
        let (source, target) = (usize::try_from(source).ok()?, usize::try_from(target).ok()?);
        if std::mem::replace(has_source.get_mut(target)?, true)
            || targets.get_mut(source)?.replace(target).is_some()
        {
            return None;
        }
    }
    let mut left = (0..count).filter(|it| !has_source[*it]).collect::<Vec<_>>().into_iter();
    let targets = targets.into_iter().map(|it| it.or_else(|| left.next())).collect::<Option<Vec<_>>>()?;
    Some((targets, has_source))
}
