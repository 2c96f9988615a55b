//! Lowers tensors made of host scalars, `TensorConstruct({i0, i1})`, or of bytes, `Constant(0x0000803F)`.

use std::sync::Arc;

use grammar::{Code, DType, Expr, ExprId, Function, OpStmt, Operand, SymbolId, TensorId, attr};

use super::{
    InstKind, View,
    context::{Array, PlanBuilder, Result},
};

/// The maximum number of dimensions of an array, whether nested in brackets or through names of arrays.
const MAX_DIMENSIONS: usize = 64;

/// The maximum number of elements of an array.
const MAX_ELEMENTS: usize = 1 << 20;

impl PlanBuilder<'_> {
    /// Executes a definition: `i84 = i82 % 8`, or `a5 = {i0, i1}`.
    pub(super) fn define(&mut self, symbol: SymbolId, value: ExprId) -> Result<()> {
        let is_dependent = self.is_divergent() || self.scalars.depends_on_rank(value);
        self.scalars.set_rank_dependence(symbol, is_dependent);
        if self.array_items(value).is_some() || self.named_array(value).is_some() {
            // An error in an array is reported where the array is used.
            let array = self.array(value, 0);
            // A loop that makes large arrays counts towards the limit like a loop that makes many.
            self.work += array.as_ref().map_or(0, |it| it.elements.len());
            self.arrays.insert(symbol, array);
        } else {
            let value = self.value(value, "the definition")?;
            self.scalars.bind(symbol, Some(value));
        }
        Ok(())
    }

    /// Returns one `Fill` for each element of `target`, this rank's part of `out`.
    pub(super) fn construct(&self, stmt: &OpStmt, out: TensorId, target: &View) -> Result<Vec<InstKind>> {
        let Some(Operand::Scalar(value)) = stmt.args.first() else {
            return Err(self.unsupported(stmt.op, "it needs a scalar or an array of scalars"));
        };
        let (array, layout) = (self.array(*value, 0)?, self.generated_layout(stmt, out, target)?);
        if array.shape != layout.shape {
            let message = format!(
                "`{}`: an array of shape {:?} does not fill a tensor of shape {:?}",
                stmt.op.name(),
                array.shape,
                layout.shape
            );
            return Err(self.error(Code::RuntimeShape, message, "the shapes do not match"));
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

    /// Returns the instruction that sets `target`, this rank's part of `out`, to its elements of a constant.
    pub(super) fn constant(&self, stmt: &OpStmt, out: TensorId, target: &View) -> Result<Vec<InstKind>> {
        let Some(bytes) = stmt.get(attr::BYTES) else {
            return Err(self.unsupported(stmt.op, "it needs the bytes of its elements"));
        };
        let layout = self.generated_layout(stmt, out, target)?;
        let Some(size) = self.program.tensors[out].dtype.map(DType::size).filter(|it| *it > 0) else {
            return Err(self.unsupported(stmt.op, "its elements have no bytes that hir knows"));
        };
        let count: usize = layout.shape.iter().product();
        if bytes.len() != count.saturating_mul(size) {
            let message = format!(
                "`{}`: {} bytes do not fill a tensor of shape {:?}",
                stmt.op.name(),
                bytes.len(),
                layout.shape
            );
            return Err(self.error(Code::RuntimeShape, message, "the shapes do not match"));
        }
        let (starts, len) = layout.global_runs();
        let own = match &starts[..] {
            [0] if len == count => Arc::clone(bytes),
            _ => starts
                .iter()
                .filter_map(|start| bytes.get(start * size..(start + len) * size))
                .collect::<Vec<_>>()
                .concat()
                .into(),
        };
        Ok(vec![InstKind::Constant { to: Box::new(target.clone()), bytes: own }])
    }

    /// Returns the items of an array constructor, or of the array that a symbol of `Index definitions:`
    /// names.
    fn array_items(&self, expr: ExprId) -> Option<&[ExprId]> {
        match &self.program.exprs[expr] {
            Expr::Call(Function::Array, items) => Some(items),
            Expr::Symbol(symbol) => match &self.program.exprs[*self.program.definitions.get(symbol)?] {
                Expr::Call(Function::Array, items) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the array that a statement has bound to the symbol `expr`; `None` for other expressions.
    fn named_array(&self, expr: ExprId) -> Option<&Result<Array>> {
        match &self.program.exprs[expr] {
            Expr::Symbol(symbol) => self.arrays.get(symbol),
            _ => None,
        }
    }

    /// Evaluates an array of arrays or scalars. `depth` is the number of enclosing arrays.
    fn array(&self, expr: ExprId, depth: usize) -> Result<Array> {
        if let Some(known) = self.named_array(expr) {
            return known.clone();
        }
        let Some(items) = self.array_items(expr) else {
            let element = self.value(expr, "the element")?.into();
            return Ok(Array { shape: Vec::new(), elements: vec![element] });
        };
        let too_large = |message: String| self.error(Code::TooLarge, message, "this array");
        if depth == MAX_DIMENSIONS {
            return Err(too_large(format!("an array has more than {MAX_DIMENSIONS} dimensions")));
        }
        let mut res = Array { shape: vec![items.len()], elements: Vec::new() };
        for (at, item) in items.iter().enumerate() {
            let part = self.array(*item, depth + 1)?;
            match at {
                0 => res.shape.extend(part.shape),
                _ if res.shape[1..] != part.shape => {
                    let message = "the rows of an array differ in length";
                    return Err(self.error(Code::RuntimeShape, message, "expected rows of equal length"));
                }
                _ => (),
            }
            res.elements.extend(part.elements);
            if res.shape.len() > MAX_DIMENSIONS {
                return Err(too_large(format!("an array has more than {MAX_DIMENSIONS} dimensions")));
            }
            // Empty arrays count too: a chain of names that each repeat the previous one doubles the work at
            // every level.
            if res.shape.iter().fold(1usize, |all, n| all.saturating_mul((*n).max(1))) > MAX_ELEMENTS {
                return Err(too_large(format!("an array has more than {MAX_ELEMENTS} elements")));
            }
        }
        Ok(res)
    }
}
