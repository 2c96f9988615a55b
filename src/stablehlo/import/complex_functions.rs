//! Arithmetic and functions of complex numbers, by those of their parts.

use grammar::{DType, Op};

use super::{Imported, Importer, complex::Parts, elementwise::comparison};
use crate::{tree::Operation, value::Value};

impl Importer<'_, '_> {
    pub(super) fn complex_product(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Imported<Parts> {
        let mut product = |x: &Value, y: &Value| self.binary_values("multiply", x.clone(), y.clone());
        let (ac, bd, ad, bc) = (product(a, c)?, product(b, d)?, product(a, d)?, product(b, c)?);
        Ok([self.binary_values("subtract", ac, bd)?, self.binary_values("add", ad, bc)?])
    }

    /// Divides by the larger part of the divisor first (Smith, Algorithm 116, 1962).
    pub(super) fn complex_quotient(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Imported<Parts> {
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
    pub(super) fn magnitude(&mut self, [re, im]: &Parts) -> Imported<Value> {
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

    pub(super) fn complex_equality(
        &mut self,
        op: &Operation<'_>,
        [a, b]: Parts,
        [c, d]: Parts,
    ) -> Imported<Value> {
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

    pub(super) fn complex_power(&mut self, a: &Parts, b: &Parts) -> Imported<Parts> {
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
    pub(super) fn complex_function(&mut self, op: &Operation<'_>, name: &str, a: &Parts) -> Imported<Parts> {
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
