//! Compares the types that the text states with those of the values.

use std::fmt;

use grammar::{Code, DType, Diagnostic, Span, count_text};
use rustc_hash::FxHashMap;

use super::{Imported, Importer};
use crate::{
    tree::{Attribute, Block, Operation, TensorType, Type, Use},
    value::{TOKEN, Value},
};

impl<'s> Importer<'_, 's> {
    /// Returns a dimension that an operation states by one of these names, of a tensor with `rank` dimensions.
    pub(super) fn dimension(&self, op: &Operation<'_>, names: &[&str], rank: usize) -> Imported<usize> {
        let name = names.first().copied().unwrap_or_default();
        let Some(stated) = op.int(names) else { return Err(self.missing(op, name)) };
        usize::try_from(stated).ok().filter(|it| *it < rank).ok_or_else(|| {
            let message = format!(
                "`{name}` of `{}` is {stated}, and the tensor has {}",
                op.name,
                count_text(rank, "dimension")
            );
            self.bad_module(message, "expected a dimension of it")
        })
    }

    /// Checks that the operands of an operation, and its initial values, have the types that it states for them.
    pub(super) fn check_operands(&self, op: &Operation<'s>, operands: &[Value]) -> Imported<()> {
        for (at, (it, stated)) in op.operands.iter().zip(self.stated_types(op)?).enumerate() {
            if let Some(value) = operands.get(at) {
                self.check_type(format_args!("`{}`", it.name), value.ty(), stated, it.span)?;
            }
        }
        let initial = self.stated_types(op)?.skip(op.operands.len());
        for (it, stated) in initial_values(op).zip(initial) {
            self.check_type(format_args!("`{}`", it.name), self.value(it)?.ty(), stated, it.span)?;
        }
        Ok(())
    }

    /// Checks that the arguments of a region have the types of their values.
    pub(super) fn check_arguments(&self, block: &Block<'_>, values: &[Value]) -> Imported<()> {
        let mut pairs = block.arguments.iter().zip(values);
        pairs.try_for_each(|(it, value)| {
            self.check_type(format_args!("`{}`", it.name), value.ty(), &it.ty, it.span)
        })
    }

    /// Checks that the results of a function have the types that it states.
    pub(super) fn check_function(&self, function: &Operation<'_>, results: &[Value]) -> Imported<()> {
        let arguments = function.regions.first().map_or(&[][..], |it| &it.arguments);
        if let Some(Attribute::FunctionType(from, _)) = function.attribute(&["function_type"])
            && !arguments.iter().map(|it| &it.ty).eq(from)
        {
            return Err(contradiction(
                function.span,
                "`function_type` does not have the types of the arguments",
                "expected those of the region",
            ));
        }
        let stated = results_of(function);
        if stated.len() != results.len() {
            let message = format!("a function returns {} values, not {}", results.len(), stated.len());
            return Err(contradiction(function.span, message, "expected a type for each result"));
        }
        let mut pairs = results.iter().zip(stated).enumerate();
        pairs.try_for_each(|(at, (value, stated))| {
            self.check_type(format_args!("result {at} of the function"), value.ty(), stated, function.span)
        })
    }

    /// Checks the types in a region that combines elements of these operands: its arguments are numbers, and each use states the type
    /// of its value.
    pub(super) fn check_combination(&self, op: &Operation<'s>, operands: &[Value]) -> Imported<()> {
        let is_sort = op.name == "stablehlo.sort";
        for region in &op.regions {
            let count = (region.arguments.len() / 2).max(1);
            let mut known: FxHashMap<&str, TensorType> = FxHashMap::default();
            for (at, it) in region.arguments.iter().enumerate() {
                let Some(operand) = operands.get(if is_sort { at / 2 } else { at % count }) else { continue };
                let ty = TensorType { shape: Vec::new(), dtype: operand.dtype(), bits: 0 };
                self.check_type(format_args!("`{}`", it.name), (&ty.shape, ty.dtype), &it.ty, it.span)?;
                known.insert(it.name, ty);
            }
            for op in &region.ops {
                for (it, stated) in op.operands.iter().zip(self.stated_types(op)?) {
                    if let Some(ty) = known.get(it.name) {
                        self.check_type(
                            format_args!("`{}`", it.name),
                            (&ty.shape, ty.dtype),
                            stated,
                            it.span,
                        )?;
                    }
                }
                for ((name, _), ty) in op.results.iter().zip(&op.result_types) {
                    known.insert(name, self.tensor_type(ty)?.clone());
                }
            }
        }
        Ok(())
    }

    /// Returns the types that an operation states for its operands, and behind them for its initial values. The pretty spelling has one
    /// type for all of them, or that of the condition and that of both values of a `select`.
    fn stated_types<'a>(
        &self,
        op: &'a Operation<'s>,
    ) -> Imported<impl Iterator<Item = &'a Type<'s>> + use<'a, 's>> {
        let count = op.operands.len() + initial_values(op).count();
        let types = &op.operand_types;
        let number = types.len();
        let is_one = !op.has_function_type && number == 1;
        let is_select = !op.has_function_type && op.name == "stablehlo.select" && (count, number) == (3, 2);
        // The type of the result.
        let is_result = !op.has_function_type && (count == 0 || op.name == "stablehlo.complex");
        if !(number == count || is_one || is_select || is_result) {
            let message = format!(
                "`{}` states another number of types than of operands: {number}, not {count}",
                op.name
            );
            return Err(contradiction(op.span, message, "expected a type for each operand"));
        }
        let count = if is_result { 0 } else { count };
        Ok((0..count).filter_map(move |at| types.get(if is_one { 0 } else { at.min(number - 1) })))
    }

    fn check_type(
        &self,
        what: fmt::Arguments<'_>,
        (shape, dtype): (&[i64], DType),
        stated: &Type<'_>,
        span: Span,
    ) -> Imported<()> {
        let stated = match stated {
            Type::Tensor(it) if it.shape == shape && it.dtype == dtype => return Ok(()),
            _ if stated.is_token() && (shape, dtype) == (&TOKEN.shape[..], TOKEN.dtype) => return Ok(()),
            Type::Tensor(it) => it.to_string(),
            Type::Other(text) => (*text).to_owned(),
        };
        let ty = TensorType { shape: shape.to_vec(), dtype, bits: 0 };
        let message = format!("{what} is a `{ty}`, not a `{stated}`");
        Err(contradiction(span, message, "the stated type is not that of the value"))
    }
}

/// Returns the type of a value.
pub(super) fn type_of(value: &Value) -> TensorType {
    TensorType { shape: value.shape().to_vec(), dtype: value.dtype(), bits: 0 }
}

/// Returns the shape of the pairs of floats that complex numbers of a shape are.
pub(super) fn pairs_of(shape: &[i64]) -> Vec<i64> {
    shape.iter().copied().chain([2]).collect()
}

/// Returns the initial values of the pretty spelling.
pub(super) fn initial_values<'a, 's>(op: &'a Operation<'s>) -> impl Iterator<Item = &'a Use<'s>> {
    op.positional.iter().filter_map(|it| match it {
        Attribute::Initial(it) => Some(it),
        _ => None,
    })
}

/// Returns the types that a function states for its results.
pub(super) fn results_of<'a, 's>(function: &'a Operation<'s>) -> &'a [Type<'s>] {
    match function.attribute(&["function_type"]) {
        Some(Attribute::FunctionType(_, to)) => to,
        _ => &function.result_types,
    }
}

/// Returns the error that the module contradicts itself.
fn contradiction(span: Span, message: impl Into<String>, label: &str) -> Box<Diagnostic> {
    let it = Diagnostic::new(Code::BadModule, span, message, label);
    Box::new(it.help("the text was edited or damaged: write it again with `as_text()`"))
}
