//! Matmuls with a sharded contracted axis: partial sums and their reduction over devices.

use grammar::{AxisKind, Diagnostic, DimMap, Memory, Op, OpStmt, Operand, Program, TensorId, attr};
use hir_ir::build;

use super::{Decomposer, device_reduction::reduces_in_one_step, slices::is_slice};
use crate::analysis::{
    propagation,
    sharding::{Dim, DimPiece, Sharding},
};

impl Decomposer<'_> {
    /// Decomposes a matmul whose operands both shard the contracted axis over the devices of `pieces`, into
    /// partial sums and their reduction.
    #[allow(clippy::too_many_arguments, reason = "the parts of one statement")]
    pub(super) fn decompose_matmul(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        maps: &[Vec<DimMap>],
        out: TensorId,
        goal: &Sharding,
        pieces: &[DimPiece],
    ) -> Result<(), Diagnostic> {
        self.check_device_extents(it, pieces, goal)?;
        let mut sums = goal.clone();
        for dim in &mut sums.dims {
            dim.pieces.retain(|piece| pieces.iter().all(|other| other.parallel != piece.parallel));
        }
        let mut scattered = sums.clone();
        let count = pieces.iter().filter_map(|piece| piece.device()).map(|it| goal.mesh.extent(it) as i64);
        let count = self.program.intern_int(count.product());
        sums.dims.push(Dim { partial: true, pieces: pieces.to_vec(), ..Dim::whole(count) });
        let temporary = self.new_tensor(&sums, out);
        // The partial products omit the bias, which would be added once per partial sum. A product with scales has no bias here.
        let factors = if it.args.is_empty() { args.len() } else { 2 };
        let bias = args.get(factors).copied();
        let positional = it.args.len().min(factors);
        let mut product = OpStmt { args: it.args[..positional].to_vec(), ..it.clone() };
        product.outs = vec![Operand::Tensor(temporary)];
        let needs = propagation::operand_shardings_with_reduction(
            self.program,
            &args[..factors],
            &maps[..factors],
            &sums,
            pieces,
        );
        self.emit_on_resharded(&product, &args[..factors], &from[..factors], &needs, temporary)?;
        let (temporary, sums, parts) = self.reduce_scattered_sums(it, temporary, sums, goal);
        scattered.dims = sums.without_dims(&parts).dims;
        // The reduction has the goal sharding if one step leads there. Otherwise it is replicated and
        // resharded afterwards.
        let one_step = reduces_in_one_step(self.program, &sums, &parts, goal);
        if one_step {
            scattered = goal.clone();
        }
        let in_place = one_step && bias.is_none() && self.is_written_once(out);
        let sum = if in_place { out } else { self.new_tensor(&scattered, out) };
        self.set_reduction_axes(sum, &sums, &parts);
        self.emit_reduction(it, temporary, sum);
        let Some(bias) = bias else {
            if !in_place {
                self.reshard(sum, &scattered, goal, Some(out))?;
            }
            return Ok(());
        };
        let last = goal.dims.len() - 1;
        let resharded = scattered.clone();
        let sum = if one_step { sum } else { self.reshard(sum, &resharded, goal, None)? };
        let mut need = Sharding { mesh: goal.mesh.clone(), dims: vec![goal.dims[last].without_streams()] };
        // In a loop over streams, a slice of the bias gives a slice of the row.
        let of_bias = &from[2].dims[0];
        let stream = of_bias.stream().filter(|_| is_slice(self.program, bias)).copied();
        if stream.is_some()
            && [of_bias.without_streams(), need.dims[0].clone()].iter().any(|it| it.stream().is_some())
        {
            return Err(
                self.resharding_error(it, "the bias is a slice of a stream, of which each device has a part")
            );
        }
        need.dims[0].pieces.extend(stream);
        let bias = self.reshard(bias, &from[2], &need, None)?;
        // A single row with the result's rank.
        let one = self.program.intern_int(1);
        let mut row = need;
        for _ in 0..last {
            row.dims.insert(0, Dim { kind: AxisKind::Broadcast, ..Dim::whole(one) });
        }
        let row = match stream {
            Some(_) => self.new_tensor(&row, bias),
            None => row.new_tensor(self.program, self.fresh, bias, Memory::Local),
        };
        let flags = (0..=last).map(|at| at != last).collect();
        self.emit(OpStmt {
            outs: vec![Operand::Tensor(row)],
            args: vec![Operand::Tensor(bias)],
            attrs: vec![attr::FLAGS.with(flags)],
            ..build::op(Op::Broadcast)
        });
        self.emit(OpStmt {
            outs: vec![Operand::Tensor(out)],
            args: vec![Operand::Tensor(sum), Operand::Tensor(row)],
            ..build::op(Op::Add)
        });
        Ok(())
    }

    /// Checks that the device axes of the contracted axis have constant extents: the axis of the partial sums is made of the
    /// number of devices, and its split has to be even.
    fn check_device_extents(
        &self,
        it: &OpStmt,
        pieces: &[DimPiece],
        goal: &Sharding,
    ) -> Result<(), Diagnostic> {
        let symbolic = pieces
            .iter()
            .find_map(|piece| piece.device().filter(|_| self.program.constant(piece.count).is_none()));
        let Some(device) = symbolic else { return Ok(()) };
        let error =
            self.resharding_error(it, "the extent of a device axis of the contracted axis is a symbol");
        let count = goal.mesh.extent(device);
        Err(error
            .help(format!("write the number of devices as the extent of the device axis, `{{{count}}}`")))
    }

    /// Reduces partial sums, indexed by the last dimension, over the device axes that shard the goal, until one is left. Returns
    /// the sums, their sharding, and the dimensions of the remaining device axes.
    fn reduce_scattered_sums(
        &mut self,
        it: &OpStmt,
        partial: TensorId,
        sums: Sharding,
        goal: &Sharding,
    ) -> (TensorId, Sharding, Vec<usize>) {
        let last = sums.dims.len() - 1;
        let (sum, sharding, mut parts) = match sums.dims[last].pieces.len() {
            1 => (partial, sums, vec![last]),
            _ => self.split_reduced_dims(partial, &sums, &[last]),
        };
        let (sum, sharding) = self.reduce_scattered_axes(it, sum, sharding, &mut parts, goal);
        (sum, sharding, parts)
    }
}

/// Returns the device pieces of the contracted dimension over which a matmul's partial sums are computed, outermost first:
/// those that both operands have, up to the first difference, or those of one operand if the other is replicated over them
/// and the partial sums are less to send than that operand. Returns none if the meshes differ, the result counts
/// partial sums already, or its type has no zero.
pub(super) fn contracted_device_pieces(
    program: &Program,
    args: &[TensorId],
    from: &[Sharding],
    maps: &[Vec<DimMap>],
    out: TensorId,
    goal: &Sharding,
) -> Vec<DimPiece> {
    let [x, weight, ..] = from else { return Vec::new() };
    if maps.len() < 2
        || goal.dims.iter().any(|dim| dim.partial)
        || program.tensors[out].dtype.is_some_and(|it| !it.has_zero())
        || [x, weight].iter().any(|operand| operand.mesh != goal.mesh)
    {
        return Vec::new();
    }
    let pieces = |sharding: &Sharding, maps: &[DimMap]| -> Vec<DimPiece> {
        let dim = maps.iter().position(|map| *map == DimMap::Reduction);
        let pieces = dim.map(|dim| sharding.dims[dim].pieces.iter().copied());
        pieces.into_iter().flatten().take_while(|piece| piece.device().is_some()).collect()
    };
    // An embedding reduces the rows of the table only: the indices have no such dimension.
    if !maps[0].contains(&DimMap::Reduction) {
        return pieces(weight, &maps[1]);
    }
    let of_operands = [pieces(x, &maps[0]), pieces(weight, &maps[1])];
    let (at, other) = match &of_operands {
        [x, weight] if !x.is_empty() && !weight.is_empty() => {
            return x.iter().zip(weight).take_while(|(a, b)| a == b).map(|(piece, _)| *piece).collect();
        }
        [x, _] if !x.is_empty() => (0, weight),
        [_, weight] if !weight.is_empty() => (1, x),
        _ => return Vec::new(),
    };
    let pieces = &of_operands[at];
    let is_over = |dim: &Dim| dim.devices().any(|it| pieces.iter().any(|piece| piece.device() == Some(it)));
    let is_scattered = goal.dims.iter().any(is_over);
    let gathered = element_count(program, args[at]);
    let summed = element_count(program, out).map(|it| if is_scattered { it } else { it.saturating_mul(2) });
    let sends_less = summed.zip(gathered).is_some_and(|(summed, gathered)| summed < gathered);
    if sends_less && !other.dims.iter().any(is_over) { pieces.clone() } else { Vec::new() }
}

/// Returns the number of elements of a tensor, if its extents are constant.
fn element_count(program: &Program, tensor: TensorId) -> Option<i64> {
    let extents = program.dimensions(tensor).map(|axis| program.constant(program.axes[axis].extent));
    extents.into_iter().try_fold(1_i64, |count, extent| count.checked_mul(extent?))
}
