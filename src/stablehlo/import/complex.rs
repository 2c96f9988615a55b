//! Complex numbers: Host IR has them as pairs of floats, in a last dimension of extent 2. The two parts of a value are values of their
//! own, and are put together only where the program has to store them.

use grammar::{DType, Op};

use super::{
    Imported, Importer, Results,
    elementwise::short_name,
    operators::{self, Import},
    reduce::Reducer,
    types::{initial_values, pairs_of},
};
use crate::{
    tree::{Attribute, Block, Operation, Type},
    value::{Tensor, Value},
};

/// How an operation treats complex numbers.
#[derive(PartialEq, Eq)]
enum Treatment {
    /// Its import takes them as other values.
    Whole,
    /// It does the same to both parts.
    EachPart,
    /// It has a rule here.
    Rule,
}

impl Treatment {
    fn of(op: &Operation<'_>) -> Self {
        match short_name(op) {
            "call"
            | "composite"
            | "custom_call"
            | "while"
            | "case"
            | "if"
            | "optimization_barrier"
            | "propagation_barrier"
            | "manual_computation"
            | "sort"
            | "fft" => Self::Whole,
            "add"
            | "subtract"
            | "negate"
            | "broadcast_in_dim"
            | "reshape"
            | "transpose"
            | "slice"
            | "pad"
            | "reverse"
            | "concatenate"
            | "dynamic_slice"
            | "dynamic_update_slice"
            | "gather"
            | "select"
            | "all_gather"
            | "all_to_all"
            | "collective_permute"
            | "sharding_constraint"
            | "reshard"
            | "reduce"
            | "reduce_window"
            | "scatter"
            | "select_and_scatter"
            | "all_reduce"
            | "reduce_scatter" => Self::EachPart,
            _ => Self::Rule,
        }
    }
}

/// The real and the imaginary part.
pub(super) type Parts = [Value; 2];

impl<'m, 's> Importer<'m, 's> {
    /// Returns whether an operation computes complex numbers or with them, and does not only pass them on.
    pub(super) fn is_complex(op: &Operation<'_>, operands: &[Value]) -> bool {
        let has_result =
            op.result_types.iter().any(|it| matches!(it, Type::Tensor(it) if it.dtype.part().is_some()));
        Treatment::of(op) != Treatment::Whole
            && (has_result || operands.iter().any(|it| it.dtype().part().is_some()))
    }

    /// Imports an operation with complex operands or results.
    pub(super) fn complex_operation(
        &mut self,
        op: &'m Operation<'s>,
        import: Import<'m, 's>,
        operands: Vec<Value>,
    ) -> Results {
        if Treatment::of(op) == Treatment::EachPart {
            return match short_name(op) {
                _ if adds(op) => self.part_by_part(op, import, operands),
                "reduce" => import(self, op, operands),
                _ => Err(self.unsupported_form(op, "of complex numbers, unless they are added")),
            };
        }
        let name = short_name(op);
        let dtype = operands.first().map_or(DType::Float, Value::dtype);
        let result = self.result_type(op, 0)?;
        let part = dtype.part().or_else(|| result.dtype.part()).unwrap_or(dtype);
        let mut all =
            operands.iter().map(|it| self.parts(it, part)).collect::<Imported<Vec<_>>>()?.into_iter();
        let Some(a) = all.next() else {
            return match name {
                "constant" => self.complex_constant(op, import),
                _ => Err(self.unsupported_form(op, "of complex numbers")),
            };
        };
        let b = all.next();
        let found = match (name, b) {
            ("complex", _) => {
                let [re, im] = self.operands(op, operands)?;
                [re, im]
            }
            ("real", None) => return Ok(vec![a[0].clone()]),
            ("imag", None) => return Ok(vec![a[1].clone()]),
            ("abs", None) => return Ok(vec![self.magnitude(&a)?]),
            ("convert", None) if result.dtype.part().is_none() => {
                return Ok(vec![self.converted(a[0].clone(), result.dtype)?]);
            }
            ("convert", None) => {
                let part = result.dtype.part().unwrap_or(part);
                let [re, im] = a;
                [self.converted(re, part)?, self.converted(im, part)?]
            }
            ("is_finite", None) => {
                let [re, im] = a;
                let re = self.map(Op::IsFinite, vec![re], DType::Bool)?;
                let im = self.map(Op::IsFinite, vec![im], DType::Bool)?;
                return Ok(vec![self.binary_values("and", re, im)?]);
            }
            ("compare", Some(b)) => return Ok(vec![self.complex_equality(op, a, b)?]),
            ("multiply", Some(b)) => self.complex_product(&a, &b)?,
            ("divide", Some(b)) => self.complex_quotient(&a, &b)?,
            ("power", Some(b)) => self.complex_power(&a, &b)?,
            ("dot_general" | "convolution", Some(b)) => {
                let product = |importer: &mut Self, x: &Value, y: &Value| -> Imported<Value> {
                    importer.with_parts(|it| {
                        let all = import(it, op, vec![x.clone(), y.clone()])?;
                        let [one] = it.operands(op, all)?;
                        Ok(one)
                    })
                };
                let ac = product(self, &a[0], &b[0])?;
                let bd = product(self, &a[1], &b[1])?;
                let ad = product(self, &a[0], &b[1])?;
                let bc = product(self, &a[1], &b[0])?;
                [self.binary_values("subtract", ac, bd)?, self.binary_values("add", ad, bc)?]
            }
            (name, None) => self.complex_function(op, name, &a)?,
            _ => return Err(self.unsupported_form(op, "of complex numbers")),
        };
        Ok(vec![self.complex_value(found)])
    }

    /// Imports the real or the imaginary part of real numbers.
    pub(crate) fn complex_parts_of(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        Ok(vec![if op.name == "stablehlo.real" { value } else { Self::splat_like(&value, 0.0) }])
    }

    /// Imports an operation for the real and the imaginary parts of its operands.
    fn part_by_part(
        &mut self,
        op: &'m Operation<'s>,
        import: Import<'m, 's>,
        operands: Vec<Value>,
    ) -> Results {
        let initial = initial_values(op).map(|it| self.value(it)).collect::<Imported<Vec<_>>>()?;
        let operands: Vec<Value> = operands.into_iter().chain(initial).collect();
        let mut both = Vec::new();
        for at in 0..2 {
            let mut own = Vec::with_capacity(operands.len());
            for it in &operands {
                own.push(match it.dtype().part() {
                    Some(part) => self.parts(it, part)?[at].clone(),
                    None => it.clone(),
                });
            }
            both.push(self.with_parts(|it| import(it, op, own))?);
        }
        let [re, im] = <[Vec<Value>; 2]>::try_from(both).map_err(|_| self.missing(op, "operands"))?;
        Ok(re.into_iter().zip(im).map(|(re, im)| self.complex_value([re, im])).collect())
    }

    /// Applies a function to a value, or to both parts of a complex one.
    pub(super) fn each_part(
        &mut self,
        value: Value,
        mut f: impl FnMut(&mut Self, Value) -> Imported<Value>,
    ) -> Imported<Value> {
        let Some(part) = value.dtype().part() else { return f(self, value) };
        let [re, im] = self.parts(&value, part)?;
        let both = [f(self, re)?, f(self, im)?];
        Ok(self.complex_value(both))
    }

    /// Returns two values behind one another along the first dimension.
    pub(super) fn joined_rows(&mut self, a: Value, b: Value) -> Imported<Value> {
        if a.dtype().part().is_none() {
            return Ok(self.joined(vec![a, b], 0));
        }
        let (first, mut rest) = (self.parts_of(&a)?, self.parts_of(&b)?.into_iter());
        let [re, im] = first.map(|it| {
            let all = [it].into_iter().chain(rest.next()).collect();
            self.joined(all, 0)
        });
        Ok(self.complex_value([re, im]))
    }

    /// Returns the product of complex numbers.
    pub(super) fn multiplied(&mut self, a: &Value, b: &Value) -> Imported<Value> {
        let (a, b) = (self.parts_of(a)?, self.parts_of(b)?);
        let product = self.complex_product(&a, &b)?;
        Ok(self.complex_value(product))
    }

    /// Imports something for which the types of results are those of parts.
    fn with_parts<T>(&mut self, import: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.has_parts, true);
        let result = import(self);
        self.has_parts = before;
        result
    }

    /// Returns a complex value with these parts, which nothing stores yet.
    pub(super) fn complex_value(&mut self, parts: Parts) -> Value {
        let dtype = if parts[0].dtype() == DType::Double { DType::Complex128 } else { DType::Complex64 };
        let axes = parts[0].axes() | parts[1].axes();
        let it = self.tensor(axes, parts[0].shape(), dtype);
        self.complex_parts.insert(it.id, (parts, false));
        Value::Tensor(it)
    }

    /// Returns the parts of a complex value.
    pub(super) fn parts_of(&mut self, value: &Value) -> Imported<Parts> {
        self.parts(value, value.dtype().part().unwrap_or(value.dtype()))
    }

    /// Returns the parts of a value: of a real one, it and zeros.
    fn parts(&mut self, value: &Value, part: DType) -> Imported<Parts> {
        let it = match value {
            Value::Tensor(it) if it.dtype.part().is_some() => it.clone(),
            it => return Ok([it.clone(), Self::splat_like(it, 0.0)]),
        };
        if let Some((found, _)) = self.complex_parts.get(&it.id) {
            return Ok(found.clone());
        }
        let shape = it.shape.clone();
        let pairs = Value::Tensor(Tensor { shape: pairs_of(&shape), dtype: part, ..it.clone() });
        let parts = [0, 1].map(|at| {
            let mut ranges: Vec<[i64; 3]> = shape.iter().map(|extent| [0, *extent, 1]).collect();
            ranges.push([at, at + 1, 1]);
            let own = self.sliced(pairs.clone(), &ranges);
            let own = self.materialized(own);
            Value::Tensor(self.reshaped(own, &shape))
        });
        self.complex_parts.insert(it.id, (parts.clone(), true));
        Ok(parts)
    }

    /// Returns the tensor of a value, which the program stores. Complex numbers are pairs of floats.
    pub(super) fn stored(&mut self, value: Value) -> Tensor {
        let it = self.materialized(value);
        if let Some((parts, is_stored @ false)) = self.complex_parts.get_mut(&it.id) {
            *is_stored = true;
            let pairs = parts.clone().map(|part| {
                let own = self.materialized(part);
                let own = self.on_axes(own, it.axes);
                let shape: Vec<i64> = own.shape.iter().copied().chain([1]).collect();
                Value::Tensor(self.reshaped(own, &shape))
            });
            let all = self.joined(pairs.into(), it.shape.len());
            let all = self.materialized(all);
            self.set(it.id, all.id);
        }
        it
    }

    fn complex_constant(&mut self, op: &'m Operation<'s>, import: Import<'m, 's>) -> Results {
        let all = import(self, op, Vec::new())?;
        let [pairs] = self.operands(op, all)?;
        let ty = self.result_type(op, 0)?;
        let it = match pairs {
            // One number for all elements.
            Value::Tensor(it) if it.shape == [2] && ty.shape.iter().product::<i64>() != 1 => {
                let part = it.dtype;
                let one = Value::Tensor(Tensor { shape: Vec::new(), dtype: ty.dtype, ..it });
                let all = self.parts(&one, part)?.map(|it| self.broadcast_value(it, &[], &ty.shape));
                let [re, im] = all;
                return Ok(vec![self.complex_value([re?, im?])]);
            }
            it => self.materialized(it),
        };
        Ok(vec![Value::Tensor(Tensor { shape: ty.shape, dtype: ty.dtype, ..it })])
    }
}

/// Returns whether an operation combines elements by addition alone, or not at all: a region of one operation replaces an element.
fn adds(op: &Operation<'_>) -> bool {
    let is_sum =
        |it: &Block<'_>| it.ops.len() == 1 || Reducer::of_region(it, DType::Float) == Some(Reducer::Add);
    let mut operators =
        op.positional.iter().filter_map(Attribute::word).filter(|it| it.starts_with("stablehlo."));
    !operators::combines(op.name)
        || op.regions.iter().all(is_sum) && operators.all(|it| it == "stablehlo.add")
}
