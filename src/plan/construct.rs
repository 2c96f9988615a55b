//! Tensors made of host scalars: `TensorConstruct({i0, i1})`.

use grammar::{
    codes::Code,
    ir::{Expr, ExprId, OpStmt, Operand, SymbolId, TensorId},
};

use super::{
    InstKind, Number, View,
    context::{Builder, Result},
    scalar::Value,
};

/// The elements of an array in row-major order, with its shape; the shape of a scalar is empty.
struct Array {
    shape: Vec<usize>,
    elements: Vec<Number>,
}

impl Builder<'_> {
    /// `i84 = i82 % 8`, or `a5 = {i0, i1}`, executed where it stands.
    pub(super) fn define(&mut self, symbol: SymbolId, value: ExprId) -> Result<()> {
        match self.array_items(value) {
            Some(_) => _ = self.arrays.insert(symbol, value),
            None => {
                let value = self.value(value, "the definition")?;
                self.scalars.bind(symbol, Some(value));
            }
        }
        Ok(())
    }

    /// One `Fill` for each element of `target`, this rank's part of `out`.
    pub(super) fn construct(&self, stmt: &OpStmt, out: TensorId, target: &View) -> Result<Vec<InstKind>> {
        let Some(Operand::Scalar(value)) = stmt.args.first() else {
            return Err(self.unsupported(stmt.op, "it needs a scalar or an array of scalars"));
        };
        let (array, layout) = (self.array(*value)?, self.generated(stmt, out, target)?);
        if array.shape != layout.shape {
            let message = format!(
                "`{}`: an array of shape {:?} does not fill a tensor of shape {:?}",
                stmt.op.name(),
                array.shape,
                layout.shape
            );
            return Err(self.fault(Code::RuntimeShape, message, "the shapes do not fit"));
        }
        let mut fills = Vec::with_capacity(array.elements.len());
        for (at, whole) in layout.global_indices().into_iter().enumerate() {
            let Some(value) = array.elements.get(whole).copied() else { continue };
            let mut rest = at;
            let mut index = vec![0; target.shape.len()];
            for (place, extent) in index.iter_mut().zip(&target.shape).rev() {
                (*place, rest) = (rest % extent, rest / extent);
            }
            let element = index.into_iter().fold(target.clone(), |view, index| view.select(0, index));
            fills.push(InstKind::Fill { to: Box::new(element), value });
        }
        Ok(fills)
    }

    /// The items of an array constructor, or of the array that a symbol names.
    fn array_items(&self, expr: ExprId) -> Option<&[ExprId]> {
        match &self.program.exprs[expr] {
            Expr::Call(name, items) if name == "{}" => Some(items),
            Expr::Symbol(symbol) => {
                let value = self.arrays.get(symbol).or_else(|| self.program.definitions.get(symbol))?;
                match &self.program.exprs[*value] {
                    Expr::Call(name, items) if name == "{}" => Some(items),
                    _ => None,
                }
            }
            Expr::Int(_)
            | Expr::Bool(_)
            | Expr::Float(..)
            | Expr::Prefix(..)
            | Expr::Infix(..)
            | Expr::Call(..) => None,
        }
    }

    fn array(&self, expr: ExprId) -> Result<Array> {
        let Some(items) = self.array_items(expr) else {
            let element = match self.value(expr, "the element")? {
                Value::Int(value) => Number::Int(value),
                Value::Bool(value) => Number::Bool(value),
                Value::Float(value) => Number::Float(value),
            };
            return Ok(Array { shape: Vec::new(), elements: vec![element] });
        };
        let mut res = Array { shape: vec![items.len()], elements: Vec::new() };
        for (at, item) in items.iter().enumerate() {
            let part = self.array(*item)?;
            match at {
                0 => res.shape.extend(part.shape),
                _ if res.shape[1..] != part.shape => {
                    let message = "rows of an array have several lengths";
                    return Err(self.fault(Code::RuntimeShape, message, "expected rows of one length"));
                }
                _ => (),
            }
            res.elements.extend(part.elements);
        }
        Ok(res)
    }
}
