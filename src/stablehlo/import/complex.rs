//! Complex numbers: Host IR has them as pairs of floats, in a last dimension of extent 2. The two parts of a value are values of their
//! own, and are put together only where the program has to store them.

use grammar::{dtype::DType, ops::Op};

use super::{
    Imported, Importer, Results,
    elementwise::comparison,
    operators::{self, Import},
    reduce::Reducer,
    types::{initial_values, pairs_of},
};
use crate::{
    tree::{Attribute, Block, Operation, Type},
    value::{Tensor, Value},
};

/// Operations that do the same to both parts of their operands.
const PARTWISE: &str = "add subtract negate broadcast_in_dim reshape transpose slice pad reverse concatenate dynamic_slice dynamic_update_slice gather select select_and_scatter all_gather all_to_all collective_permute sharding_constraint reshard reduce reduce_window scatter all_reduce reduce_scatter";

/// The real and the imaginary part.
type Parts = [Value; 2];

impl<'m, 's> Importer<'m, 's> {
    /// Returns whether an operation computes complex numbers or with them, and does not only pass them on.
    pub(super) fn is_complex(op: &Operation<'_>, operands: &[Value]) -> bool {
        let passes = ["call", "func.call", "stablehlo.composite", "stablehlo.custom_call", "stablehlo.while"]
            .contains(&op.name)
            || ["stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier", "sdy.manual_computation"]
                .contains(&op.name);
        let has_result =
            op.result_types.iter().any(|it| matches!(it, Type::Tensor(it) if it.dtype.part().is_some()));
        !passes && (has_result || operands.iter().any(|it| it.dtype().part().is_some()))
    }

    /// Imports an operation with complex operands or results.
    pub(super) fn complex_operation(
        &mut self,
        op: &'m Operation<'s>,
        import: Import<'m, 's>,
        operands: Vec<Value>,
    ) -> Results {
        let name = op.name.rsplit('.').next().unwrap_or_default();
        if PARTWISE.split(' ').any(|it| it == name) {
            // A region without operations but its end replaces an element.
            let adds = |it: &Block<'_>| {
                it.ops.len() == 1 || Reducer::of_region(it, DType::Float) == Some(Reducer::Add)
            };
            let combines = operators::combines(op.name) && name != "sort";
            let is_sum = op.regions.iter().all(adds)
                && !op.positional.iter().filter_map(Attribute::word).any(|it| it == "stablehlo.multiply");
            if combines && !is_sum {
                return match name {
                    "reduce" => import(self, op, operands),
                    _ => Err(self.unsupported_form(op, "of complex numbers, unless they are added")),
                };
            }
            return self.part_by_part(op, import, operands);
        }
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
            ("fft", None) => {
                let found = self.fourier(op, &operands[0], a)?;
                if result.dtype.part().is_none() {
                    return Ok(vec![found[0].clone()]);
                }
                found
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

    // ---- arithmetic

    fn complex_product(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Imported<Parts> {
        let mut product = |x: &Value, y: &Value| self.binary_values("multiply", x.clone(), y.clone());
        let (ac, bd, ad, bc) = (product(a, c)?, product(b, d)?, product(a, d)?, product(b, c)?);
        Ok([self.binary_values("subtract", ac, bd)?, self.binary_values("add", ad, bc)?])
    }

    /// Divides by the larger part of the divisor first (Smith, Algorithm 116, 1962).
    fn complex_quotient(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Imported<Parts> {
        let dtype = a.dtype();
        let (of_c, of_d) =
            (self.map(Op::Abs, vec![c.clone()], dtype)?, self.map(Op::Abs, vec![d.clone()], dtype)?);
        let is_c = self.map(Op::Ge, vec![of_c, of_d], DType::Bool)?;
        let mut pick = |x: &Value, y: &Value| self.select_values(is_c.clone(), x.clone(), y.clone());
        let (large, small) = (pick(c, d)?, pick(d, c)?);
        // (a + bi) / (c + di), or (b - ai) / (d - ci).
        let (first, second) = (pick(a, b)?, pick(b, a)?);
        let ratio = self.binary_values("divide", small, large.clone())?;
        let mut scaled = |x: &Value, y: &Value| self.binary_values("multiply", x.clone(), y.clone());
        let (of_first, of_second, of_small) =
            (scaled(&first, &ratio)?, scaled(&second, &ratio)?, scaled(&ratio, &large)?);
        let of_small = self.binary_values("multiply", of_small, ratio)?;
        let size = self.binary_values("add", large, of_small)?;
        let re = self.binary_values("add", first, of_second)?;
        let im = self.binary_values("subtract", second, of_first)?;
        let negated = self.map(Op::Neg, vec![im.clone()], dtype)?;
        let im = self.select_values(is_c, im, negated)?;
        Ok([self.binary_values("divide", re, size.clone())?, self.binary_values("divide", im, size)?])
    }

    /// Returns the absolute value, scaled by the larger part, so that no square is infinite.
    fn magnitude(&mut self, [re, im]: &Parts) -> Imported<Value> {
        let dtype = re.dtype();
        let (x, y) =
            (self.map(Op::Abs, vec![re.clone()], dtype)?, self.map(Op::Abs, vec![im.clone()], dtype)?);
        let (large, small) =
            (self.binary_values("maximum", x.clone(), y.clone())?, self.binary_values("minimum", x, y)?);
        let ratio = self.binary_values("divide", small, large.clone())?;
        let square = self.binary_values("multiply", ratio.clone(), ratio)?;
        let sum = self.binary_values("add", square, Self::splat_like(&large, 1.0))?;
        let root = self.map(Op::Sqrt, vec![sum], dtype)?;
        let size = self.binary_values("multiply", large.clone(), root)?;
        // Of zeros and of infinities, the larger part is the size.
        let zero = Self::splat_like(&large, 0.0);
        let is_zero = self.folded_or_mapped(Op::Eq, large.clone(), zero, DType::Bool)?;
        let is_infinite = self.map(Op::IsInf, vec![large.clone()], DType::Bool)?;
        let is_own = self.binary_values("or", is_zero, is_infinite)?;
        self.select_values(is_own, large, size)
    }

    fn complex_equality(&mut self, op: &Operation<'_>, [a, b]: Parts, [c, d]: Parts) -> Imported<Value> {
        match comparison(op) {
            Some((direction @ ("EQ" | "NE"), _)) => {
                let is = if direction == "EQ" { Op::Eq } else { Op::Ne };
                let (re, im) = (
                    self.folded_or_mapped(is, a, c, DType::Bool)?,
                    self.folded_or_mapped(is, b, d, DType::Bool)?,
                );
                self.binary_values(if direction == "EQ" { "and" } else { "or" }, re, im)
            }
            _ => Err(self.unsupported_form(op, "an order of complex numbers")),
        }
    }

    fn complex_exp(&mut self, [re, im]: &Parts) -> Imported<Parts> {
        let dtype = re.dtype();
        let size = self.map(Op::Exp, vec![re.clone()], dtype)?;
        let (cos, sin) =
            (self.map(Op::Cos, vec![im.clone()], dtype)?, self.map(Op::Sin, vec![im.clone()], dtype)?);
        Ok([self.binary_values("multiply", size.clone(), cos)?, self.binary_values("multiply", size, sin)?])
    }

    fn complex_log(&mut self, a: &Parts) -> Imported<Parts> {
        let size = self.magnitude(a)?;
        let dtype = size.dtype();
        let re = self.map(Op::Log, vec![size], dtype)?;
        Ok([re, self.binary_values("atan2", a[1].clone(), a[0].clone())?])
    }

    fn complex_power(&mut self, a: &Parts, b: &Parts) -> Imported<Parts> {
        let log = self.complex_log(a)?;
        let product = self.complex_product(&log, b)?;
        let power = self.complex_exp(&product)?;
        // 0 to the power of 0 is 1, to other powers 0.
        let size = self.magnitude(a)?;
        let is_zero =
            self.folded_or_mapped(Op::Eq, size.clone(), Self::splat_like(&size, 0.0), DType::Bool)?;
        let exponent = self.magnitude(b)?;
        let is_one =
            self.folded_or_mapped(Op::Eq, exponent.clone(), Self::splat_like(&exponent, 0.0), DType::Bool)?;
        let of_zero = self.converted(is_one, size.dtype())?;
        let [re, im] = power;
        let zero = Self::splat_like(&im, 0.0);
        Ok([self.select_values(is_zero.clone(), of_zero, re)?, self.select_values(is_zero, zero, im)?])
    }

    /// Returns the square root whose real part is not negative.
    fn complex_sqrt(&mut self, [re, im]: &Parts) -> Imported<Parts> {
        let dtype = re.dtype();
        let size = self.magnitude(&[re.clone(), im.clone()])?;
        let half = Self::splat_like(re, 0.5);
        let abs = self.map(Op::Abs, vec![re.clone()], dtype)?;
        let sum = self.binary_values("add", size.clone(), abs)?;
        let sum = self.binary_values("multiply", sum, half.clone())?;
        let large = self.map(Op::Sqrt, vec![sum], dtype)?;
        let twice = self.binary_values("add", large.clone(), large.clone())?;
        let small = self.binary_values("divide", im.clone(), twice)?;
        let is_zero = self.folded_or_mapped(Op::Eq, size, Self::splat_like(re, 0.0), DType::Bool)?;
        let small = self.select_values(is_zero, im.clone(), small)?;
        let is_right = self.folded_or_mapped(Op::Ge, re.clone(), Self::splat_like(re, 0.0), DType::Bool)?;
        let signed = self.map(Op::Neg, vec![large.clone()], dtype)?;
        let is_lower = self.folded_or_mapped(Op::Lt, im.clone(), Self::splat_like(re, 0.0), DType::Bool)?;
        let signed = self.select_values(is_lower, signed, large.clone())?;
        let abs = self.map(Op::Abs, vec![small.clone()], dtype)?;
        Ok([self.select_values(is_right.clone(), large, abs)?, self.select_values(is_right, small, signed)?])
    }

    /// Returns functions that are composed of exponentials.
    fn complex_function(&mut self, op: &Operation<'_>, name: &str, a: &Parts) -> Imported<Parts> {
        let [re, im] = a.clone();
        let dtype = re.dtype();
        let like = re.clone();
        let number = |it: f64| Self::splat_like(&like, it);
        let (one, zero) = ([number(1.0), number(0.0)], number(0.0));
        let mut of = |op: Op, it: &Value| self.map(op, vec![it.clone()], dtype);
        Ok(match name {
            "exponential" => self.complex_exp(a)?,
            "log" => self.complex_log(a)?,
            "sqrt" => self.complex_sqrt(a)?,
            "rsqrt" => {
                let root = self.complex_sqrt(a)?;
                self.complex_quotient(&one, &root)?
            }
            "log_plus_one" => {
                let re = self.binary_values("add", re, one[0].clone())?;
                self.complex_log(&[re, im])?
            }
            "exponential_minus_one" => {
                // exp(x) cos(y) - 1 = expm1(x) cos(y) - 2 sin(y / 2)^2.
                let minus = of(Op::Expm1, &re)?;
                let (cos, sin, exp) = (of(Op::Cos, &im)?, of(Op::Sin, &im)?, of(Op::Exp, &re)?);
                let half = self.binary_values("multiply", im, number(0.5))?;
                let half = self.map(Op::Sin, vec![half], dtype)?;
                let square = self.binary_values("multiply", half.clone(), half)?;
                let twice = self.binary_values("add", square.clone(), square)?;
                let first = self.binary_values("multiply", minus, cos)?;
                [self.binary_values("subtract", first, twice)?, self.binary_values("multiply", exp, sin)?]
            }
            "sinh" | "cosh" => {
                let (sinh, cosh, sin, cos) =
                    (of(Op::Sinh, &re)?, of(Op::Cosh, &re)?, of(Op::Sin, &im)?, of(Op::Cos, &im)?);
                let (x, y) = if name == "sinh" { (sinh, cosh) } else { (cosh, sinh) };
                [self.binary_values("multiply", x, cos)?, self.binary_values("multiply", y, sin)?]
            }
            "sine" | "cosine" => {
                let (sin, cos, sinh, cosh) =
                    (of(Op::Sin, &re)?, of(Op::Cos, &re)?, of(Op::Sinh, &im)?, of(Op::Cosh, &im)?);
                let (x, y) = if name == "sine" { (sin, cos) } else { (cos, sin) };
                let re = self.binary_values("multiply", x, cosh)?;
                let im = self.binary_values("multiply", y, sinh)?;
                [re, if name == "sine" { im } else { self.map(Op::Neg, vec![im], dtype)? }]
            }
            // The hyperbolic tangent, which the tangent is at i times its argument.
            "tanh" | "tan" => {
                let (x, y) =
                    if name == "tanh" { (re, im) } else { (self.map(Op::Neg, vec![im], dtype)?, re) };
                let mut of = |op: Op, it: &Value| self.map(op, vec![it.clone()], dtype);
                let (t, tan) = (of(Op::Tanh, &x)?, of(Op::Tan, &y)?);
                let both = self.binary_values("multiply", t.clone(), tan.clone())?;
                let it = self.complex_quotient(&[t, tan], &[number(1.0), both])?;
                if name == "tanh" {
                    it
                } else {
                    let [re, im] = it;
                    [im, self.map(Op::Neg, vec![re], dtype)?]
                }
            }
            "logistic" => {
                let negated = [self.map(Op::Neg, vec![re], dtype)?, self.map(Op::Neg, vec![im], dtype)?];
                let [re, im] = self.complex_exp(&negated)?;
                let re = self.binary_values("add", re, one[0].clone())?;
                self.complex_quotient(&one, &[re, im])?
            }
            "sign" => {
                let size = self.magnitude(a)?;
                let is_zero = self.folded_or_mapped(Op::Eq, size.clone(), zero.clone(), DType::Bool)?;
                let mut part = |it: Value| {
                    let own = self.binary_values("divide", it, size.clone())?;
                    self.select_values(is_zero.clone(), zero.clone(), own)
                };
                [part(re)?, part(im)?]
            }
            _ => return Err(self.unsupported_form(op, "of complex numbers")),
        })
    }
}
