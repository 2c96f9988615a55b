//! The type that an operator's rule gives its result, for the operators whose operands determine it.

use crate::{
    attr,
    dtype::DType,
    ir::{Axis, AxisId, AxisKind, Mesh, OpStmt, Operand, ParallelType, Program, TensorId},
    ops::{Op, TypeRule},
};

/// The type of a result. The numbers of the axes are those of operands.
pub(crate) struct ResultType {
    pub(crate) axes: Vec<Axis>,
    pub(crate) dtype: DType,
    pub(crate) mesh: Mesh,
}

/// Returns the type of the first result of a statement with the text `text`; `None` if the operands do not determine
/// it.
pub(crate) fn result_type(program: &mut Program, stmt: &OpStmt, text: &str) -> Option<ResultType> {
    let args: Vec<TensorId> = Program::tensors_of(&stmt.args).collect();
    let mut ctx = Operands { program, stmt, args: &args };
    let found = match stmt.op.def().type_rule {
        TypeRule::Same | TypeRule::Cast => ctx.dims(0)?,
        TypeRule::Pointwise if stmt.op != Op::Expand => ctx.pointwise()?,
        TypeRule::Linear => ctx.linear()?,
        TypeRule::Matmul => ctx.matmul()?,
        TypeRule::Attention => ctx.attention()?,
        TypeRule::Broadcast => ctx.broadcast()?,
        TypeRule::Squeeze => ctx.squeeze()?,
        TypeRule::Select => ctx.select()?,
        TypeRule::Slice => ctx.slice()?,
        TypeRule::Generate => {
            let axis = |extent| Axis::new(AxisKind::Iteration, ParallelType::Serial, 0, extent);
            stmt.generated_shape()?.into_iter().map(axis).collect()
        }
        // The result states which axes are reduced, in which order they are, or the sizes.
        TypeRule::Pointwise
        | TypeRule::Unchecked
        | TypeRule::Reduce
        | TypeRule::Permute
        | TypeRule::Reshape
        | TypeRule::Shard
        | TypeRule::Communicate => return None,
    };
    let is_split = found.iter().any(|it| it.parallel != ParallelType::Serial);
    let dtype = ctx.dtype(text)?;
    let meshes = args.iter().filter(|_| is_split).map(|it| &program.tensors[*it].mesh);
    let mesh = meshes.into_iter().find(|it| !it.is_empty()).map(|it| Mesh::clone(it));
    Some(ResultType { axes: found, dtype, mesh: mesh.unwrap_or_default() })
}

/// A statement and its operands.
struct Operands<'p> {
    program: &'p mut Program,
    stmt: &'p OpStmt,
    args: &'p [TensorId],
}

impl Operands<'_> {
    /// Returns the dimensions of an operand. They keep device axes if these are logical axes.
    fn dims(&self, position: usize) -> Option<Vec<Axis>> {
        let tensor = *self.args.get(position)?;
        Some(self.program.dimensions(tensor).map(|axis| self.dim(tensor, axis)).collect())
    }

    fn dim(&self, tensor: TensorId, axis: AxisId) -> Axis {
        let it = &self.program.axes[axis];
        let parallel = match it.parallel {
            ParallelType::Device(_) if self.program.has_plain_domains(tensor) => it.parallel,
            ParallelType::Device(_)
            | ParallelType::Serial
            | ParallelType::Stream
            | ParallelType::Kernel(_) => ParallelType::Serial,
        };
        Axis { expanded: it.expanded, ..Axis::new(it.kind, parallel, 0, it.extent) }
    }

    fn pointwise(&self) -> Option<Vec<Axis>> {
        let mut found = self.dims(0)?;
        for position in 1..self.args.len() {
            let other = self.dims(position)?;
            if other.len() != found.len() {
                return None;
            }
            for (axis, other) in found.iter_mut().zip(other) {
                if self.is_one(axis) {
                    *axis = other;
                }
            }
        }
        Some(found)
    }

    fn is_one(&self, axis: &Axis) -> bool {
        self.program.constant(axis.expanded.unwrap_or(axis.extent)) == Some(1)
    }

    fn linear(&self) -> Option<Vec<Axis>> {
        let (mut found, weight) = (self.dims(0)?, self.dims(1)?);
        let [columns, _] = weight.as_slice() else { return None };
        *found.last_mut()? = columns.clone();
        Some(found)
    }

    fn matmul(&self) -> Option<Vec<Axis>> {
        let (a, b) = (self.dims(0)?, self.dims(1)?);
        let ([batches @ .., rows, _], [others @ .., _, columns]) = (a.as_slice(), b.as_slice()) else {
            return None;
        };
        let batches = if batches.len() < others.len() { others } else { batches };
        Some(batches.iter().chain([rows, columns]).cloned().collect())
    }

    fn attention(&self) -> Option<Vec<Axis>> {
        if self.stmt.op != Op::Sdpa {
            return None;
        }
        let (mut found, value) = (self.dims(0)?, self.dims(2)?);
        *found.last_mut()? = value.last()?.clone();
        Some(found)
    }

    fn broadcast(&mut self) -> Option<Vec<Axis>> {
        let flags = self.stmt.get(attr::FLAGS)?;
        let one = self.program.intern_int(1);
        let mut rest = self.dims(0)?.into_iter();
        let found = flags.iter().map(|is_new| {
            if *is_new {
                Some(Axis::new(AxisKind::Broadcast, ParallelType::Serial, 0, one))
            } else {
                rest.next()
            }
        });
        found.collect()
    }

    fn slice(&mut self) -> Option<Vec<Axis>> {
        let (ranges, mut found) = (self.stmt.get(attr::RANGES)?, self.dims(0)?);
        for (axis, range) in found.iter_mut().zip(ranges) {
            let [start, stop, step] = range.map(|it| self.program.constant(it));
            let (start, step) = (start?, step.filter(|it| *it > 0)?);
            let extent = stop?.checked_sub(start)?.checked_add(step - 1)? / step;
            if self.program.constant(axis.extent) != Some(extent) {
                let extent = self.program.intern_int(extent);
                *axis = Axis::new(AxisKind::Iteration, ParallelType::Serial, 0, extent);
            }
        }
        Some(found)
    }

    fn squeeze(&self) -> Option<Vec<Axis>> {
        let (flags, dims) = (self.stmt.get(attr::FLAGS)?, self.dims(0)?);
        let kept = dims.into_iter().zip(flags).filter(|(_, gone)| !**gone);
        Some(kept.map(|(axis, _)| axis).collect())
    }

    fn select(&self) -> Option<Vec<Axis>> {
        let (tensor, axis) = (*self.args.first()?, self.stmt.get(attr::AXIS)?);
        let dims = self.program.dimensions(tensor).filter(|it| *it != axis);
        Some(dims.map(|it| self.dim(tensor, it)).collect())
    }

    fn dtype(&self, text: &str) -> Option<DType> {
        let of =
            |position: usize| self.args.iter().skip(position).find_map(|it| self.program.tensors[*it].dtype);
        match self.stmt.op {
            Op::Eq
            | Op::Ne
            | Op::Lt
            | Op::Le
            | Op::Gt
            | Op::Ge
            | Op::LogicalAnd
            | Op::LogicalOr
            | Op::LogicalNot
            | Op::SignBit
            | Op::IsFinite
            | Op::IsInf
            | Op::IsNan
            | Op::IsNegInf
            | Op::IsPosInf
            | Op::IsReal => Some(DType::Bool),
            Op::Cast => cast_dtype(text),
            Op::BitCast | Op::Complex | Op::Real | Op::Imag => None,
            // The condition has another type.
            Op::Where => of(usize::from(matches!(self.stmt.args.first(), Some(Operand::Tensor(_))))),
            _ => self.stmt.get(attr::DTYPE).or_else(|| of(0)),
        }
    }
}

/// Returns the element type to which a cast such as `T2 = __to_int64_t(T1);` or `T2 = __bfloat2float(T1);` converts.
fn cast_dtype(text: &str) -> Option<DType> {
    let name = text.split_once('=')?.1.split('(').next()?.trim();
    let name = name.strip_prefix("__").map_or(name, |it| it.strip_prefix("to_").unwrap_or(it));
    let last = name.rsplit_once('2').map_or(name, |(_, to)| to);
    [name, last]
        .into_iter()
        .find_map(|it| DType::from_name(it).or_else(|| DType::from_name(&format!("__{it}"))))
}
