//! Accessors and visitors for the attributes, scalar expressions and tensors of statements.

use crate::{
    attr::{self, AttrName, AttrValue, Key},
    ir::{Attr, Expr, ExprId, OpStmt, Operand, Program, TensorId},
    ops::{Arity, Op, OpClass, OperandDef},
};

impl OpStmt {
    /// Returns the tensor operands, positional ones before keyed ones.
    pub fn tensor_operands(&self) -> Vec<TensorId> {
        let keyed = self.attrs.iter().filter_map(|(_, attr)| attr.tensor());
        Program::tensors_of(&self.args).chain(keyed).collect()
    }

    /// Returns false if the statement states `is_causal=false`.
    pub fn may_be_causal(&self, program: &Program) -> bool {
        let value = self.get(attr::IS_CAUSAL).map(|it| &program.exprs[it]);
        !matches!(value, None | Some(Expr::Bool(false)))
    }

    /// Returns true if the statement computes results from its operands.
    pub fn computes(&self) -> bool {
        match self.op.def().class {
            OpClass::Compute | OpClass::Elementwise => true,
            crate::other_classes!() | OpClass::View | OpClass::Allocate | OpClass::Deallocate => false,
        }
    }

    /// Returns the value of an attribute, or `None` if the statement does not have it.
    pub fn get<T: AttrValue>(&self, key: Key<T>) -> Option<T::Read<'_>> {
        self.attr(key.name()).and_then(T::read)
    }

    /// Sets an attribute. A new attribute is inserted at its position in the operator's definition.
    pub fn set<T: AttrValue>(&mut self, key: Key<T>, value: T) {
        let value = value.into_attr();
        if let Some((_, old)) = self.attrs.iter_mut().find(|(name, _)| *name == key) {
            *old = value;
            return;
        }
        let row = self.op.def();
        let params = row.args.iter().chain(row.attrs);
        let later = params.skip_while(|it| it.name != key.name().0).skip(1);
        let is_later = |(name, _): &(AttrName, Attr)| later.clone().any(|it| it.name == name.0);
        let at = self.attrs.iter().position(is_later).unwrap_or(self.attrs.len());
        self.attrs.insert(at, (key.name(), value));
    }

    /// Returns the statement with this attribute.
    pub fn with<T: AttrValue>(mut self, key: Key<T>, value: T) -> Self {
        self.set(key, value);
        self
    }

    /// Returns whether the numbers of results and operands, and the attributes, are those of the operator's definition.
    pub fn fits_definition(&self) -> bool {
        let row = self.op.def();
        let is_counted = |list: &[Operand], defined: &mut dyn Iterator<Item = &OperandDef>| {
            let (mut least, mut most) = (0, Some(0));
            for it in defined {
                least += usize::from(it.arity == Arity::One);
                most = most.filter(|_| it.arity != Arity::Many).map(|most| most + 1);
            }
            list.len() >= least && most.is_none_or(|most| list.len() <= most)
        };
        let mut operands = row.args.iter().filter(|it| it.kind.is_operand());
        let mut required = row.args.iter().filter(|it| !it.kind.is_operand()).chain(row.attrs);
        is_counted(&self.outs, &mut row.outs.iter())
            && is_counted(&self.args, &mut operands)
            && required.all(|it| it.arity != Arity::One || self.attr(it.key()).is_some())
            && self.attrs.iter().all(|(name, attr)| row.takes(*name, attr))
    }

    /// Returns the attribute with this name, regardless of its type.
    pub(crate) fn attr(&self, name: AttrName) -> Option<&Attr> {
        self.attrs.iter().find(|(it, _)| *it == name).map(|(_, attr)| attr)
    }

    /// Returns the logical shape of the result of full, iota or eye, or `None` for other operators.
    pub fn generated_shape(&self) -> Option<Vec<ExprId>> {
        let length = || match self.args.first() {
            Some(Operand::Scalar(length)) => Some(*length),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => None,
        };
        match (self.op, self.get(attr::SHAPE)) {
            (
                Op::Full | Op::RngUniform | Op::RngUniformRange | Op::RngNormal | Op::RngNormalGeneral,
                Some(shape),
            ) => Some(shape.to_vec()),
            (Op::Iota, _) => Some(vec![length()?]),
            (Op::Eye, _) => Some(vec![length()?; 2]),
            _ => None,
        }
    }

    /// Visits the scalar operands and attributes, except stream indices and the statements listed in
    /// ShareMemHandles.
    pub fn scalars(&self, visit: &mut dyn FnMut(ExprId)) {
        let mut operand = |it: Operand| match it {
            Operand::Scalar(expr) => visit(expr),
            Operand::Tensor(_) | Operand::Stream(_) => (),
        };
        self.outs.iter().chain(&self.args).copied().for_each(&mut operand);
        self.attrs.iter().for_each(|(_, attr)| attr.operands(&mut operand));
    }

    /// As `scalars`, with mutable access.
    pub fn scalars_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        self.operands_mut(&mut |it| match it {
            OperandMut::Scalar(expr) => visit(expr),
            OperandMut::Tensor(_) => (),
        });
    }

    /// Visits the tensors of results, operands and attributes with mutable access, except those of the
    /// statements listed in ShareMemHandles.
    pub fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut TensorId)) {
        self.operands_mut(&mut |it| match it {
            OperandMut::Tensor(tensor) => visit(tensor),
            OperandMut::Scalar(_) => (),
        });
    }

    fn operands_mut(&mut self, visit: &mut dyn FnMut(OperandMut<'_>)) {
        let operands = self.outs.iter_mut().chain(&mut self.args);
        operands.filter_map(Operand::as_mut).for_each(&mut *visit);
        self.attrs.iter_mut().for_each(|(_, attr)| attr.operands_mut(visit));
    }
}

/// A scalar or tensor of an operand, with mutable access.
enum OperandMut<'a> {
    Scalar(&'a mut ExprId),
    Tensor(&'a mut TensorId),
}

impl Operand {
    fn as_mut(&mut self) -> Option<OperandMut<'_>> {
        match self {
            Self::Scalar(expr) => Some(OperandMut::Scalar(expr)),
            Self::Tensor(tensor) => Some(OperandMut::Tensor(tensor)),
            Self::Stream(_) => None,
        }
    }
}

impl Attr {
    /// Visits the scalars and tensors of an attribute as operands, except those of listed statements.
    pub(crate) fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        match self {
            Self::Scalar(expr) => visit(Operand::Scalar(*expr)),
            Self::Scalars(exprs) => exprs.iter().for_each(|it| visit(Operand::Scalar(*it))),
            Self::Ranges(ranges) => ranges.iter().flatten().for_each(|it| visit(Operand::Scalar(*it))),
            Self::Tensor(tensor) => visit(Operand::Tensor(*tensor)),
            Self::Values(values) => values.iter().copied().for_each(visit),
            crate::constant_attrs!() => (),
        }
    }

    /// As `operands`, with mutable access.
    fn operands_mut(&mut self, visit: &mut dyn FnMut(OperandMut<'_>)) {
        match self {
            Self::Scalar(expr) => visit(OperandMut::Scalar(expr)),
            Self::Scalars(exprs) => exprs.iter_mut().for_each(|it| visit(OperandMut::Scalar(it))),
            Self::Ranges(ranges) => {
                ranges.iter_mut().flatten().for_each(|it| visit(OperandMut::Scalar(it)));
            }
            Self::Tensor(tensor) => visit(OperandMut::Tensor(tensor)),
            Self::Values(values) => values.iter_mut().filter_map(Operand::as_mut).for_each(visit),
            crate::constant_attrs!() => (),
        }
    }

    /// Visits the scalar expressions of an attribute with mutable access.
    pub fn scalars_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        self.operands_mut(&mut |it| match it {
            OperandMut::Scalar(expr) => visit(expr),
            OperandMut::Tensor(_) => (),
        });
    }
}
