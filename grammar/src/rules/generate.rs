//! `full`, `iota`, `eye`, random numbers, and constants of bytes.

use super::*;

/// No tensor operands except the seed of random numbers; each element depends only on its index in the whole tensor.
pub(super) struct Generate;

impl Rule for Generate {
    fn check(&self, check: &mut Check<'_, '_>, _: &[TensorId]) {
        // The result has the logical shape that the operands give, regardless of how it is sharded.
        let Some(out) = check.stmt.out_tensor() else { return };
        if let Some(bytes) = check.stmt.get(attr::BYTES) {
            return check_bytes(check, out, bytes);
        }
        let Some(shape) = check.stmt.generated_shape() else { return };
        let dims = check.dims(out);
        let (p, name) = (check.program, check.stmt.op.name());
        if dims.len() != shape.len() {
            return check.rank_error(out, dims.len(), shape.len());
        }
        for (axis, extent) in dims.into_iter().zip(shape) {
            let (Some(have), Some(want)) = (check.constant(axis), p.constant(extent)) else { continue };
            if have != want {
                let message = format!(
                    "`{name}`: axis `{}` of `{}` has extent {have}, but `{name}` creates extent {want}",
                    axis_text(p, axis),
                    p.tensor_name(out)
                );
                check.error(Code::ShapeMismatch, message, "expected the extent of the whole tensor");
            }
        }
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let axis = |extent| Axis::new(AxisKind::Iteration, ParallelType::Serial, 0, extent);
        Some(operands.stmt.generated_shape()?.into_iter().map(axis).collect())
    }

    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        operands.stmt.get(attr::DTYPE).or_else(|| operands.dtype(0))
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        Some(OperandMap::Dims(vec![DimMap::RequiresWhole; operand.operand_extents.len()]))
    }

    fn unmapped_dim(&self, _: &Program, stmt: &OpStmt, _: AxisId) -> ResultDim {
        if stmt.op == Op::Full { ResultDim::Broadcast } else { ResultDim::IndexDependent }
    }
}

/// Checks that a constant has the bytes of all elements of the whole tensor.
fn check_bytes(check: &mut Check<'_, '_>, out: TensorId, bytes: &[u8]) {
    let (p, name) = (check.program, check.program.tensor_name(out));
    let size = match p.tensors[out].dtype {
        Some(DType::Composite(_)) | None => {
            let message = format!("`Constant`: `{name}` has no element type whose bytes hir knows");
            return check.error(Code::TypeMismatch, message, "expected a number, a complex number or a bool");
        }
        Some(it) => it.size(),
    };
    if p.tensors[out].dtype == Some(DType::Bool)
        && let Some(wrong) = bytes.iter().find(|it| **it > 1)
    {
        let message = format!("`Constant`: a bool of `{name}` has the byte {wrong}");
        return check.error(Code::BadOperands, message, "expected 0 or 1");
    }
    let extents =
        check.dims(out).into_iter().map(|it| check.constant(it).and_then(|it| usize::try_from(it).ok()));
    let Some(extents) = extents.collect::<Option<Vec<_>>>() else { return };
    let wanted = extents.into_iter().fold(size, usize::saturating_mul);
    if bytes.len() != wanted {
        let message =
            format!("`Constant`: {} bytes are given for `{name}`, whose elements have {wanted}", bytes.len());
        check.error(Code::ShapeMismatch, message, "expected the bytes of the whole tensor");
    }
}
