//! Lowers `iota` and `eye`, whose elements follow from their index in the whole tensor. Each rank writes the
//! elements of its own part; its layout determines their position in the whole tensor.

use grammar::{Code, OpStmt, ResultDim, TensorId, result_dims};

use super::{
    InstKind, Number, ShardLayout, View,
    context::{PlanBuilder, Result},
    indices::{Indices, Run},
};

impl PlanBuilder<'_> {
    /// Returns the instructions for `out[i] = start + step · i`, for this rank's indices.
    pub(super) fn iota(&self, stmt: &OpStmt, out: TensorId, target: &View) -> Result<Vec<InstKind>> {
        let layout = self.generated_layout(stmt, out, target)?;
        let [start, step] = [self.integer_operand(stmt, 1)?, self.integer_operand(stmt, 2)?];
        let (Some(pieces), [stride]) = (layout.pieces.first(), &target.strides[..]) else {
            return Err(self.shape_mismatch(stmt.op, &target.shape, &layout.shape));
        };
        let indices = Indices::of(pieces);
        let runs = indices.runs();
        self.check_instruction_limit(runs.len())?;
        let iota = |run: Run| InstKind::Iota {
            to: Box::new(View {
                buffer: target.buffer,
                offset: target.offset + run.local * stride,
                shape: vec![run.count],
                strides: vec![run.local_step * stride],
            }),
            start: start.wrapping_add(step.wrapping_mul(run.whole as i64)),
            step: step.wrapping_mul(run.whole_step as i64),
        };
        Ok(runs.into_iter().map(iota).collect())
    }

    /// Returns the instructions that write 1 where the global row and the global column of an element are
    /// equal, and 0 elsewhere.
    pub(super) fn eye(&self, stmt: &OpStmt, out: TensorId, target: &View) -> Result<Vec<InstKind>> {
        let layout = self.generated_layout(stmt, out, target)?;
        let ([rows, columns], [down, right]) = (&layout.pieces[..], &target.strides[..]) else {
            return Err(self.shape_mismatch(stmt.op, &target.shape, &layout.shape));
        };
        let fill = |to, value| InstKind::Fill { to: Box::new(to), value: Number::Int(value) };
        let mut code = vec![fill(target.clone(), 0)];
        let (rows, columns) = (Indices::of(rows).all(), Indices::of(columns).all());
        let mut columns = columns.into_iter().enumerate().peekable();
        let mut ones = Vec::new();
        // Global indices ascend with local indices.
        for (row, whole) in rows.into_iter().enumerate() {
            while columns.next_if(|(_, it)| *it < whole).is_some() {}
            if let Some((column, _)) = columns.next_if(|(_, it)| *it == whole) {
                ones.push(target.offset + row * down + column * right);
            }
        }
        let lines = strided_views(&ones);
        self.check_instruction_limit(lines.len())?;
        code.extend(
            lines.into_iter().map(|(offset, shape, strides)| {
                fill(View { buffer: target.buffer, offset, shape, strides }, 1)
            }),
        );
        Ok(code)
    }

    /// Returns the layout of a result that is generated from indices.
    pub(super) fn generated_layout(
        &self,
        stmt: &OpStmt,
        out: TensorId,
        target: &View,
    ) -> Result<ShardLayout> {
        let name = || self.program.tensor_name(out);
        let dims = result_dims(self.program, stmt, &[]);
        let stream = super::shape::stream_piece(self.program, out).map(|(dim, ..)| dim);
        let depends = stream.and_then(|dim| dims.get(dim)).is_none_or(|it| *it == ResultDim::IndexDependent);
        let is_slice = self.program.is_split_by_stream(out);
        if is_slice && depends && self.binding(out).is_none_or(|it| it.stream.is_none()) {
            let message = format!(
                "`{}`: `{}` holds the slice of one stream, but the program does not determine which one",
                stmt.op.name(),
                name()
            );
            let it = self.error(Code::Unsupported, message, "its elements depend on the slice");
            return Err(Box::new(it.help("create the whole tensor and take the slice with ShardByStream")));
        }
        let layout = self.layout(out)?;
        if layout.local_shape() != target.shape {
            return Err(self.shape_mismatch(stmt.op, &target.shape, &layout.local_shape()));
        }
        for (at, extent) in stmt.generated_shape().into_iter().flatten().enumerate() {
            let wanted = self.int(extent, "the length")?;
            if layout.shape.get(at).is_none_or(|have| i64::try_from(*have) != Ok(wanted)) {
                let message = format!(
                    "`{}` generates {wanted} elements, but `{}` has the logical shape {:?}",
                    stmt.op.name(),
                    name(),
                    layout.shape
                );
                return Err(self.error(Code::RuntimeShape, message, "the shapes do not match"));
            }
        }
        Ok(layout)
    }
}

/// Groups ascending offsets into strided views of two dimensions. Returns the offset, the shape and the
/// strides of each view.
fn strided_views(offsets: &[usize]) -> Vec<(usize, Vec<usize>, Vec<usize>)> {
    let lines = progressions(offsets.iter().map(|it| (*it, ())));
    let lines = lines.into_iter().map(|(start, (), count, step)| (start, (count, step)));
    let both = progressions(lines).into_iter();
    both.map(|(start, (count, step), lines, apart)| (start, vec![lines, count], vec![apart, step])).collect()
}

/// Groups neighbouring numbers with equal tags and constant distances. Returns the first number, tag, count
/// and distance of each group.
fn progressions<T: Copy + PartialEq>(
    numbers: impl Iterator<Item = (usize, T)>,
) -> Vec<(usize, T, usize, usize)> {
    let mut found: Vec<(usize, T, usize, usize)> = Vec::new();
    for (number, tag) in numbers {
        match found.last_mut() {
            Some((first, known, count, step))
                if *known == tag && (*count == 1 || number == *first + *count * *step) =>
            {
                *step = if *count == 1 { number - *first } else { *step };
                *count += 1;
            }
            _ => found.push((number, tag, 1, 0)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagonal_is_few_views() {
        assert_eq!(strided_views(&[3, 8, 13]), [(3, vec![1, 3], vec![0, 5])]);
        assert_eq!(strided_views(&[0, 1, 8, 9, 16, 17]), [(0, vec![3, 2], vec![8, 1])]);
        assert_eq!(strided_views(&[]), []);
        assert_eq!(strided_views(&[4]), [(4, vec![1, 1], vec![0, 0])]);
    }
}
