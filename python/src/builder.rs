//! The builder of programs for the importer of Python: tensors by their names, operators, attributes and words by those of the language.

use std::{collections::HashMap, mem, sync::Arc};

use grammar::{
    Arity, Attr, AxisId, AxisKind, DType, Domains, Expr, ExprId, Function, InfixOp, Mesh, Op, OpStmt,
    Operand, ParallelType, StmtId, Stream, StreamId, TensorId, Transform, attr::OperandKind,
};
use hir_ir::build::ProgramBuilder;
use pyo3::{exceptions::PyValueError, prelude::*};
use rustc_hash::FxHashMap;

/// A letter of a kind, a word of a parallel type, a number and an extent.
type Axis = (String, String, u32, i64);
/// An object of Python. A tensor is its name, a scalar a boolean, an integer, a type with a literal, or a function with its operands.
type Any<'py> = Bound<'py, PyAny>;

/// A program that is being built.
#[pyclass]
#[derive(Default)]
pub(crate) struct Builder {
    out: ProgramBuilder,
    /// The tensors by their numbers.
    tensors: Vec<TensorId>,
    /// The captured streams by their names.
    streams: HashMap<String, StreamId>,
    mesh: Arc<Mesh>,
    /// The lines of the Python program to which statements belong.
    places: FxHashMap<StmtId, String>,
}

fn error(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

#[pymethods]
impl Builder {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Sets the devices of tensors that are declared next.
    fn set_mesh(&mut self, shape: Vec<usize>, devices: Vec<usize>) {
        self.mesh = Arc::new(Mesh::new(shape, devices));
    }

    /// Declares a tensor and returns its name. `whole` is the axis of which the axes from a position on are the two halves.
    fn tensor(&mut self, dtype: &str, axes: Vec<Axis>, whole: Option<(usize, Axis)>) -> PyResult<String> {
        let dtype = DType::from_name(dtype).ok_or_else(|| error(format!("no element type `{dtype}`")))?;
        let loops = axes.iter().map(|it| self.axis(it)).collect::<PyResult<Vec<_>>>()?;
        let mut domains = Domains { logical: loops.clone(), ..Domains::default() };
        if let Some((at, whole)) = whole {
            let input = self.axis(&whole)?;
            let (Some([outer, inner]), Some((.., extent))) = (loops.get(at..at + 2), axes.get(at)) else {
                return Err(error("the axis that is split has no two halves"));
            };
            domains.logical.splice(at..at + 2, [input]);
            let (outer, inner, factor) = (*outer, *inner, self.out.int(*extent));
            domains.transforms.push(Transform::Split { input, factor, outer_split: true, outer, inner });
        }
        let tensor = self.out.exact(loops, domains, dtype, Arc::clone(&self.mesh));
        self.tensors.push(tensor);
        Ok(format!("T{}", self.tensors.len() - 1))
    }

    /// Adds a statement.
    #[pyo3(signature = (op, outs, args, attrs, number=None, place=None))]
    fn add(
        &mut self,
        op: &str,
        outs: Vec<String>,
        args: Vec<Any<'_>>,
        attrs: HashMap<String, Any<'_>>,
        number: Option<u32>,
        place: Option<String>,
    ) -> PyResult<()> {
        // Several operators may have a name; they have other operands.
        let mut fault = error(format!("no operator `{op}` has these operands"));
        for op in Op::lookup(op) {
            match self.statement(*op, &outs, &args, &attrs) {
                Ok(stmt) if stmt.fits_definition() => {
                    let id = self.out.add(OpStmt { number, ..stmt });
                    self.places.extend(place.map(|it| (id, it)));
                    return Ok(());
                }
                Ok(_) => (),
                Err(it) => fault = it,
            }
        }
        Err(fault)
    }

    /// Begins what one rank executes. Without statements until `end`, there is no branch.
    fn begin_rank(&mut self, rank: i64) {
        let (own, rank) = (self.out.rank(), self.out.int(rank));
        let condition = self.out.expr(Expr::Infix(InfixOp::Eq, own, rank));
        self.out.begin_if(condition);
    }

    fn end(&mut self) {
        self.out.end();
    }

    /// The number of a communication that is posted next.
    fn work(&mut self) -> u32 {
        self.out.work()
    }

    /// What has been added so far, for `back_to`.
    fn mark(&self) -> (usize, usize) {
        (self.tensors.len(), self.out.block_size())
    }

    /// Takes back what has been added since.
    fn back_to(&mut self, mark: (usize, usize)) {
        let (tensors, statements) = mark;
        let unused = self.tensors.split_off(tensors.min(self.tensors.len()));
        self.out.take_back(statements, unused);
    }

    /// Ends the program, and returns its text, in which comments at the ends of lines are the places.
    fn finish(&mut self, inputs: Vec<String>, outputs: Vec<String>) -> PyResult<String> {
        let [inputs, outputs] =
            [inputs, outputs].map(|all| all.iter().map(|it| self.named(it)).collect::<PyResult<Vec<_>>>());
        let program = mem::take(&mut self.out).finish(&inputs?, &outputs?);
        Ok(grammar::print_commented(&program, &self.places))
    }
}

impl Builder {
    fn axis(&mut self, (letter, parallel, number, extent): &Axis) -> PyResult<AxisId> {
        let kind = AxisKind::LETTERS.iter().find(|it| it.0 == letter);
        let parallel = ParallelType::WORDS.iter().find(|it| it.0 == parallel);
        let (Some((_, kind)), Some((_, parallel))) = (kind, parallel) else {
            return Err(error(format!("no axis begins with `{letter}`")));
        };
        Ok(self.out.new_axis(*kind, *parallel, *number, *extent))
    }

    fn named(&self, name: &str) -> PyResult<TensorId> {
        let number = name.strip_prefix('T').and_then(|it| it.parse::<usize>().ok());
        let found = number.and_then(|it| self.tensors.get(it));
        found.copied().ok_or_else(|| error(format!("no tensor `{name}`")))
    }

    fn statement(
        &mut self,
        op: Op,
        outs: &[String],
        args: &[Any<'_>],
        attrs: &HashMap<String, Any<'_>>,
    ) -> PyResult<OpStmt> {
        let row = op.def();
        let captures = row.outs.first().is_some_and(|it| it.kind == OperandKind::Stream);
        let mut stmt = hir_ir::build::op(op);
        for name in outs {
            stmt.outs.push(if captures {
                Operand::Stream(self.captured(name))
            } else {
                self.named(name)?.into()
            });
        }
        let operands = row.args.iter().filter(|it| it.kind.is_operand());
        let mut kinds = operands.flat_map(|it| {
            std::iter::repeat_n(it.kind, if it.arity == Arity::Many { args.len() } else { 1 })
        });
        for it in args {
            let kind = kinds.next().ok_or_else(|| error(format!("too many operands of `{}`", op.name())))?;
            stmt.args.push(self.operand(kind, it)?);
        }
        let first = stmt.args.iter().find_map(|it| it.tensor());
        for param in row.args.iter().filter(|it| !it.kind.is_operand()).chain(row.attrs) {
            if let Some(it) = attrs.get(param.name) {
                stmt.attrs.push((param.key(), self.attr(param.kind, it, first)?));
            }
        }
        if stmt.attrs.len() < attrs.len() {
            return Err(error(format!("`{}` has no such attribute", op.name())));
        }
        Ok(stmt)
    }

    fn captured(&mut self, name: &str) -> StreamId {
        let number = self.streams.len() as u32;
        *self.streams.entry(name.to_owned()).or_insert_with(|| self.out.stream(Stream::Named(number)))
    }

    fn operand(&mut self, kind: OperandKind, it: &Any<'_>) -> PyResult<Operand> {
        match (kind, it.extract::<String>()) {
            (OperandKind::Stream, Ok(name)) => Ok(Operand::Stream(self.captured(&name))),
            (OperandKind::Stream, Err(_)) => {
                let index = self.scalar(it)?;
                Ok(Operand::Stream(self.out.stream(Stream::Index(index))))
            }
            (_, Ok(name)) => Ok(self.named(&name)?.into()),
            (_, Err(_)) => Ok(self.scalar(it)?.into()),
        }
    }

    fn scalar(&mut self, it: &Any<'_>) -> PyResult<ExprId> {
        let expr = if let Ok(it) = it.extract::<bool>() {
            Expr::Bool(it)
        } else if let Ok(it) = it.extract::<i64>() {
            Expr::Int(it)
        } else if let Ok((dtype, literal)) = it.extract::<(String, String)>() {
            let dtype =
                DType::from_name(&dtype).ok_or_else(|| error(format!("no element type `{dtype}`")))?;
            Expr::Float(dtype, literal)
        } else {
            let (name, operands) = it.extract::<(String, Vec<Any<'_>>)>()?;
            let operands = operands.iter().map(|it| self.scalar(it)).collect::<PyResult<Vec<_>>>()?;
            match (name.as_str(), &operands[..]) {
                ("rank", []) => return Ok(self.out.rank()),
                ("==", [a, b]) => Expr::Infix(InfixOp::Eq, *a, *b),
                ("where", _) => Expr::Call(Function::Op(Op::Where), operands),
                ("{}", _) => Expr::Call(Function::Array, operands),
                _ => return Err(error(format!("no function `{name}`"))),
            }
        };
        Ok(self.out.expr(expr))
    }

    fn scalars(&mut self, it: &Any<'_>) -> PyResult<Vec<ExprId>> {
        it.extract::<Vec<Any<'_>>>()?.iter().map(|it| self.scalar(it)).collect()
    }

    /// Returns an attribute. `first` is the tensor whose dimensions have numbers.
    fn attr(&mut self, kind: OperandKind, it: &Any<'_>, first: Option<TensorId>) -> PyResult<Attr> {
        let unknown = || error(format!("no attribute has the value `{it}`"));
        Ok(match kind {
            OperandKind::Tensor | OperandKind::Value | OperandKind::Scalar => match self.operand(kind, it)? {
                Operand::Tensor(it) => Attr::Tensor(it),
                Operand::Scalar(it) => Attr::Scalar(it),
                Operand::Stream(_) => return Err(unknown()),
            },
            OperandKind::Axis => {
                let axes = first.map(|it| self.out.dimensions(it)).unwrap_or_default();
                Attr::Axis(*axes.get(it.extract::<usize>()?).ok_or_else(unknown)?)
            }
            OperandKind::Word(words) => {
                let text = it.extract::<String>()?;
                Attr::Word(*words.iter().find(|it| it.text() == text).ok_or_else(unknown)?)
            }
            OperandKind::Name => Attr::Name(it.extract()?),
            OperandKind::DType => {
                Attr::DType(DType::from_name(&it.extract::<String>()?).ok_or_else(unknown)?)
            }
            OperandKind::Bool => Attr::Bool(it.extract()?),
            OperandKind::Team => Attr::Team(it.extract()?),
            OperandKind::Flags => Attr::Flags(it.extract()?),
            OperandKind::Work => Attr::Work(it.extract()?),
            OperandKind::Scalars => Attr::Scalars(self.scalars(it)?),
            OperandKind::Ranges => {
                let rows = it.extract::<Vec<Any<'_>>>()?;
                let row = |it: &Any<'_>| self.scalars(it)?.try_into().map_err(|_| unknown());
                Attr::Ranges(rows.iter().map(row).collect::<PyResult<_>>()?)
            }
            OperandKind::Values => {
                let all = it.extract::<Vec<Any<'_>>>()?;
                let all = all.iter().map(|it| self.operand(OperandKind::Value, it));
                Attr::Values(all.collect::<PyResult<_>>()?)
            }
            OperandKind::Stream | OperandKind::Bytes | OperandKind::Unit | OperandKind::Stmts => {
                return Err(unknown());
            }
        })
    }
}
