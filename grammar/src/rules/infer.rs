//! The type that an operator's rule gives its result, for the operators whose operands determine it.

use crate::{
    dtype::DType,
    ir::{Axis, AxisId, Mesh, OpStmt, ParallelType, Program, TensorId},
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
    let mut operands = Operands { program, stmt, args: &args, text };
    let rule = stmt.rule();
    let found = rule.result_axes(&mut operands)?;
    let is_split = found.iter().any(|it| it.parallel != ParallelType::Serial);
    let dtype = rule.result_dtype(&operands)?;
    let meshes = args.iter().filter(|_| is_split).map(|it| &program.tensors[*it].mesh);
    let mesh = meshes.into_iter().find(|it| !it.is_empty()).map(|it| Mesh::clone(it));
    Some(ResultType { axes: found, dtype, mesh: mesh.unwrap_or_default() })
}

/// A statement and its operands, from which a rule infers a result.
pub struct Operands<'p> {
    pub(super) program: &'p mut Program,
    pub(super) stmt: &'p OpStmt,
    /// The positional tensors.
    pub(super) args: &'p [TensorId],
    /// The text of the statement.
    pub(super) text: &'p str,
}

impl Operands<'_> {
    /// Returns the dimensions of an operand. They keep device axes if these are logical axes.
    pub(super) fn dims(&self, position: usize) -> Option<Vec<Axis>> {
        let tensor = *self.args.get(position)?;
        Some(self.program.dimensions(tensor).map(|axis| self.dim(tensor, axis)).collect())
    }

    pub(super) fn dim(&self, tensor: TensorId, axis: AxisId) -> Axis {
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

    pub(super) fn is_one(&self, axis: &Axis) -> bool {
        self.program.constant(axis.expanded.unwrap_or(axis.extent)) == Some(1)
    }

    /// Returns the element type of the first operand from this position on that has one.
    pub(super) fn dtype(&self, position: usize) -> Option<DType> {
        self.args.iter().skip(position).find_map(|it| self.program.tensors[*it].dtype)
    }
}
