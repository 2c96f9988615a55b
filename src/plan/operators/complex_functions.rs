//! Quotients, comparisons and functions of complex numbers, in binary64. The parts of a function are those of its definition by real ones
//! (Abramowitz and Stegun, "Handbook of Mathematical Functions", chapter 4); a quotient is R. L. Smith's ("Algorithm 116", 1962).
//!
//! No intermediate value overflows or vanishes where the result is finite: squares are of numbers that a power of two scales, and
//! exponential functions of large numbers are computed as two factors (W. Kahan, "Branch Cuts for Complex Elementary Functions",
//! 1987; his `tanh` is ours). A part that is infinite or not a number is that of ISO C, annex G, where PyTorch gives it too.

use grammar::{DType, Op, Operand};

use super::{OperatorCall, Result, misfit};
use crate::{
    Arg, Number, View,
    inst_builder::{InstBuilder, float, view},
};

/// The real and the imaginary parts of the elements.
type Parts = [View; 2];

/// Exponential and hyperbolic functions of numbers up to this one are finite, and neither vanish nor are subnormal.
const FINITE: f64 = 700.0;
/// Beyond it, a hyperbolic tangent differs from ±1 by less than a rounding error; fourth powers of hyperbolic functions of it are finite.
const LARGE: f64 = 100.0;

impl OperatorCall<'_> {
    /// The operators that `complex` does not have.
    pub(super) fn complex_function(&self, code: &mut InstBuilder) -> Result<()> {
        let out = self.result(0)?;
        let mut it = Builder { code, shape: out.shape.clone() };
        let z = self.parts_of(&mut it, 0)?;
        let result = match self.stmt.op {
            Op::Eq | Op::Ne => {
                let w = self.parts_of(&mut it, 1)?;
                let joined = if self.stmt.op == Op::Eq { Op::LogicalAnd } else { Op::LogicalOr };
                let [real, imaginary] =
                    [0, 1].map(|at| it.truth(self.stmt.op, &[view(&z[at]), view(&w[at])]));
                it.code.map(joined, [view(&real), view(&imaginary)], out);
                return Ok(());
            }
            Op::IsNan | Op::IsInf | Op::IsFinite => {
                let joined = if self.stmt.op == Op::IsFinite { Op::LogicalAnd } else { Op::LogicalOr };
                let [real, imaginary] = z.each_ref().map(|part| it.truth(self.stmt.op, &[view(part)]));
                it.code.map(joined, [view(&real), view(&imaginary)], out);
                return Ok(());
            }
            Op::Abs => {
                let size = it.magnitude(&z);
                it.code.copy(&size, out);
                return Ok(());
            }
            Op::Add | Op::Sub => {
                let w = self.parts_of(&mut it, 1)?;
                [0, 1].map(|at| it.binary(self.stmt.op, &z[at], &w[at]))
            }
            Op::Mul => {
                let w = self.parts_of(&mut it, 1)?;
                it.product(&z, &w)
            }
            Op::Div => {
                let w = self.parts_of(&mut it, 1)?;
                it.quotient(&z, &w)
            }
            Op::Pow => {
                let w = self.parts_of(&mut it, 1)?;
                it.power(&z, &w)
            }
            Op::Reciprocal => it.reciprocal(&z),
            Op::Exp => it.exp(&z),
            Op::Log => it.log(&z),
            Op::Log2 | Op::Log10 => {
                let base: f64 = if self.stmt.op == Op::Log2 { 2.0 } else { 10.0 };
                it.log(&z).each_ref().map(|part| it.map(Op::Div, &[view(part), float(base.ln())]))
            }
            Op::Sqrt => it.sqrt(&z),
            Op::Rsqrt => {
                let root = it.sqrt(&z);
                it.reciprocal(&root)
            }
            Op::Sin => it.sin(&z),
            Op::Cos => it.cos(&z),
            Op::Sinh => it.sinh(&z),
            Op::Cosh => it.cosh(&z),
            Op::Tan => it.tan(&z),
            Op::Tanh => it.tanh(&z),
            Op::Sigmoid => it.sigmoid(&z),
            Op::Silu => {
                let factor = it.sigmoid(&z);
                it.product(&z, &factor)
            }
            _ => return Err(self.unsupported("it has no form for complex numbers")),
        };
        it.code.copy(&result[0], out);
        it.code.copy(&result[1], &out.imaginary());
        Ok(())
    }

    /// Returns the parts of a positional operand, which may be real, or a number.
    fn parts_of(&self, it: &mut Builder<'_>, at: usize) -> Result<Parts> {
        let is_tensor = |arg: &&Operand| matches!(arg, Operand::Tensor(_));
        let [real, imaginary] = [(); 2].map(|()| it.temporary());
        it.code.fill(&imaginary, Number::Int(0));
        match self.stmt.args.get(at) {
            Some(Operand::Tensor(_)) => {
                let own = self.stmt.args[..at].iter().filter(is_tensor).count();
                let whole = self.operand(own)?;
                let wide = whole.expand(&it.shape).ok_or_else(|| misfit(whole, &it.shape))?;
                it.code.copy(&wide, &real);
                if self.operand_dtype(own).part().is_some() {
                    it.code.copy(&wide.imaginary(), &imaginary);
                }
            }
            _ => {
                let value = self.number(self.scalar_arg(at)?)?;
                it.code.fill(&real, value);
            }
        }
        Ok([real, imaginary])
    }
}

/// Appends instructions on elements of one shape.
struct Builder<'c> {
    code: &'c mut InstBuilder,
    shape: Vec<usize>,
}

impl Builder<'_> {
    fn temporary(&mut self) -> View {
        self.code.temporary("part", DType::Double, self.shape.clone())
    }

    fn push(&mut self, op: Op, args: &[Arg], dtype: DType) -> View {
        let out = self.code.temporary("part", dtype, self.shape.clone());
        match args {
            [a] => self.code.map(op, [a.clone()], &out),
            [a, b] => self.code.map(op, [a.clone(), b.clone()], &out),
            [a, b, c, ..] => self.code.map(op, [a.clone(), b.clone(), c.clone()], &out),
            [] => {}
        }
        out
    }

    fn map(&mut self, op: Op, args: &[Arg]) -> View {
        self.push(op, args, DType::Double)
    }

    fn truth(&mut self, op: Op, args: &[Arg]) -> View {
        self.push(op, args, DType::Bool)
    }

    fn unary(&mut self, op: Op, a: &View) -> View {
        self.map(op, &[view(a)])
    }

    fn binary(&mut self, op: Op, a: &View, b: &View) -> View {
        self.map(op, &[view(a), view(b)])
    }

    /// `a` where a condition holds, else `b`.
    fn choice(&mut self, condition: &View, a: &View, b: &View) -> View {
        self.map(Op::Where, &[view(condition), view(a), view(b)])
    }

    /// `number` where a condition holds, else `a`.
    fn constant_or(&mut self, condition: &View, number: f64, a: &View) -> View {
        self.map(Op::Where, &[view(condition), float(number), view(a)])
    }

    fn clamped(&mut self, a: &View, limit: f64) -> View {
        self.map(Op::Clamp, &[view(a), float(-limit), float(limit)])
    }

    fn both(&mut self, a: &View, b: &View) -> View {
        self.truth(Op::LogicalAnd, &[view(a), view(b)])
    }

    fn times(&mut self, a: &View, number: f64) -> View {
        self.map(Op::Mul, &[view(a), float(number)])
    }

    fn plus(&mut self, a: &View, number: f64) -> View {
        self.map(Op::Add, &[view(a), float(number)])
    }

    /// The absolute values of the parts, and the larger one of them.
    fn sizes(&mut self, z: &Parts) -> (Parts, View) {
        let sizes = z.each_ref().map(|it| self.unary(Op::Abs, it));
        let larger = self.binary(Op::Max, &sizes[0], &sizes[1]);
        (sizes, larger)
    }

    /// For each of some factors, `2^-factor` where a size is at least `2^500`, `2^factor` where it is below `2^-400`, else 1. Products of
    /// such a size and the first of them have finite squares that are not subnormal, if it is not 0.
    fn scales<const N: usize>(&mut self, size: &View, factors: [i32; N]) -> [View; N] {
        let is_large = self.truth(Op::Ge, &[view(size), float(2f64.powi(500))]);
        let is_small = self.truth(Op::Lt, &[view(size), float(2f64.powi(-400))]);
        factors.map(|factor| {
            let scale = self.map(Op::Where, &[view(&is_small), float(2f64.powi(factor)), float(1.0)]);
            self.constant_or(&is_large, 2f64.powi(-factor), &scale)
        })
    }

    fn product(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Parts {
        let [ac, bd, ad, bc] = [(a, c), (b, d), (a, d), (b, c)].map(|(x, y)| self.binary(Op::Mul, x, y));
        [self.binary(Op::Sub, &ac, &bd), self.binary(Op::Add, &ad, &bc)]
    }

    /// If the imaginary part of the divisor is larger, both numbers are multiplied by `-i` before. Of a divisor 0, both parts are divided
    /// by its real part.
    fn quotient(&mut self, dividend: &Parts, divisor: &Parts) -> Parts {
        let scaled = [dividend, divisor].map(|it| {
            let (_, size) = self.sizes(it);
            let [scale, back] = self.scales(&size, [200, -200]);
            (it.each_ref().map(|part| self.binary(Op::Mul, part, &scale)), scale, back)
        });
        let [([a, b], _, back), ([c, d], scale, _)] = &scaled;
        let [size_c, size_d] = [c, d].map(|it| self.unary(Op::Abs, it));
        let is_turned = self.truth(Op::Lt, &[view(&size_c), view(&size_d)]);
        let [minus_a, minus_c] = [a, c].map(|it| self.unary(Op::Neg, it));
        let [a, b, c, d] =
            [(b, a), (&minus_a, b), (d, c), (&minus_c, d)].map(|(x, y)| self.choice(&is_turned, x, y));
        let ratio = self.binary(Op::Div, &d, &c);
        let [br, ar, dr] = [&b, &a, &d].map(|it| self.binary(Op::Mul, it, &ratio));
        let sum = self.binary(Op::Add, &c, &dr);
        let (real, imaginary) = (self.binary(Op::Add, &a, &br), self.binary(Op::Sub, &b, &ar));
        let is_zero = divisor.each_ref().map(|it| self.truth(Op::Eq, &[view(it), float(0.0)]));
        let is_zero = self.both(&is_zero[0], &is_zero[1]);
        [(real, &dividend[0]), (imaginary, &dividend[1])].map(|(part, of_zero)| {
            let quotient = self.binary(Op::Div, &part, &sum);
            let quotient = self.binary(Op::Mul, &quotient, scale);
            let quotient = self.binary(Op::Mul, &quotient, back);
            let of_zero = self.binary(Op::Div, of_zero, &divisor[0]);
            self.choice(&is_zero, &of_zero, &quotient)
        })
    }

    fn reciprocal(&mut self, z: &Parts) -> Parts {
        let one = [1, 0].map(|value| {
            let part = self.temporary();
            self.code.fill(&part, Number::Int(value));
            part
        });
        self.quotient(&one, z)
    }

    /// `sqrt(x² + y²)`; infinite if a part is.
    fn magnitude(&mut self, z: &Parts) -> View {
        let (_, larger) = self.sizes(z);
        let [scale, back] = self.scales(&larger, [600, -600]);
        let size = self.scaled_magnitude(z, &scale);
        let size = self.binary(Op::Mul, &size, &back);
        let [x, y] = z.each_ref().map(|it| self.truth(Op::IsInf, &[view(it)]));
        let size = self.constant_or(&x, f64::INFINITY, &size);
        self.constant_or(&y, f64::INFINITY, &size)
    }

    fn scaled_magnitude(&mut self, z: &Parts, scale: &View) -> View {
        let [real, imaginary] = z.each_ref().map(|it| {
            let part = self.binary(Op::Mul, it, scale);
            self.binary(Op::Mul, &part, &part)
        });
        let sum = self.binary(Op::Add, &real, &imaginary);
        self.unary(Op::Sqrt, &sum)
    }

    /// Functions of a real number times sines or cosines of another one: 0 where the second factor is, also if the first one is infinite.
    /// Each function has to be a multiple of `exp(±x)`, but for a rounding error, where the size of `x` is above `FINITE`; `rest` is what
    /// it multiplies beyond.
    fn products(&mut self, [x, y]: [&View; 2], rest: &View, ops: [[Op; 2]; 2]) -> Parts {
        let near = self.clamped(x, FINITE);
        let far = self.unary(Op::Exp, rest);
        ops.map(|[of_x, of_y]| {
            let (a, b) = (self.unary(of_x, &near), self.unary(of_y, y));
            let product = self.binary(Op::Mul, &a, &b);
            let product = self.binary(Op::Mul, &product, &far);
            let is_zero = self.truth(Op::Eq, &[view(&b), float(0.0)]);
            self.choice(&is_zero, &b, &product)
        })
    }

    /// `exp(x) · (cos y + i sin y)`; with an `y` that is not finite, 0 of `-∞` and `∞ + NaN i` of `∞`.
    fn exp(&mut self, [x, y]: &Parts) -> Parts {
        let near = self.clamped(x, FINITE);
        let rest = self.binary(Op::Sub, x, &near);
        let [real, imaginary] = self.products([x, y], &rest, [[Op::Exp, Op::Cos], [Op::Exp, Op::Sin]]);
        let is_finite = self.truth(Op::IsFinite, &[view(y)]);
        let is_angle_lost = self.truth(Op::LogicalNot, &[view(&is_finite)]);
        let is_large = self.truth(Op::Eq, &[view(x), float(f64::INFINITY)]);
        let is_large = self.both(&is_large, &is_angle_lost);
        let real = self.constant_or(&is_large, f64::INFINITY, &real);
        let is_zero = self.truth(Op::Eq, &[view(x), float(f64::NEG_INFINITY)]);
        [real, imaginary].map(|it| self.constant_or(&is_zero, 0.0, &it))
    }

    /// With `m ≥ n` the sizes of the parts, the real part is `log m + log1p((n/m)²) / 2`, and where the two terms may cancel,
    /// `log1p((m-1)(m+1) + n²) / 2`.
    fn log(&mut self, z: &Parts) -> Parts {
        let (sizes, m) = self.sizes(z);
        let n = self.binary(Op::Min, &sizes[0], &sizes[1]);
        let ratio = self.binary(Op::Div, &n, &m);
        let is_equal = self.truth(Op::Eq, &[view(&m), view(&n)]);
        let ratio = self.constant_or(&is_equal, 1.0, &ratio);
        let half_log1p = |it: &mut Self, of: &View| {
            let log = it.unary(Op::Log1p, of);
            it.times(&log, 0.5)
        };
        let square = self.binary(Op::Mul, &ratio, &ratio);
        let (log, correction) = (self.unary(Op::Log, &m), half_log1p(self, &square));
        let far = self.binary(Op::Add, &log, &correction);
        let (below, above) = (self.plus(&m, -1.0), self.plus(&m, 1.0));
        let (product, square) = (self.binary(Op::Mul, &below, &above), self.binary(Op::Mul, &n, &n));
        let sum = self.binary(Op::Add, &product, &square);
        let near = half_log1p(self, &sum);
        let is_near = [(Op::Gt, 0.5), (Op::Lt, 2.0)].map(|(op, it)| self.truth(op, &[view(&m), float(it)]));
        let is_near = self.both(&is_near[0], &is_near[1]);
        [self.choice(&is_near, &near, &far), self.binary(Op::Atan2, &z[1], &z[0])]
    }

    /// The root with a real part that is not negative; its parts are infinite where the imaginary part is.
    fn sqrt(&mut self, z: &Parts) -> Parts {
        let (sizes, larger) = self.sizes(z);
        let [scale, back] = self.scales(&larger, [600, -300]);
        let (size, real) = (self.scaled_magnitude(z, &scale), self.binary(Op::Mul, &sizes[0], &scale));
        let sum = self.binary(Op::Add, &size, &real);
        let half = self.times(&sum, 0.5);
        let large = self.unary(Op::Sqrt, &half);
        let large = self.binary(Op::Mul, &large, &back);
        let twice = self.times(&large, 2.0);
        let ratio = self.binary(Op::Div, &z[1], &twice);
        let is_zero = self.truth(Op::Eq, &[view(&large), float(0.0)]);
        let small = self.choice(&is_zero, &z[1], &ratio);
        let (size_of_small, minus_large) = (self.unary(Op::Abs, &small), self.unary(Op::Neg, &large));
        let is_below = self.truth(Op::SignBit, &[view(&z[1])]);
        let signed = self.choice(&is_below, &minus_large, &large);
        let is_left = self.truth(Op::Lt, &[view(&z[0]), float(0.0)]);
        let real = self.choice(&is_left, &size_of_small, &large);
        let imaginary = self.choice(&is_left, &signed, &small);
        let is_infinite = self.truth(Op::IsInf, &[view(&z[1])]);
        [self.constant_or(&is_infinite, f64::INFINITY, &real), self.choice(&is_infinite, &z[1], &imaginary)]
    }

    /// Hyperbolic functions of `x` times sines or cosines of `y`.
    fn hyperbolic(&mut self, [x, y]: [&View; 2], ops: [[Op; 2]; 2]) -> Parts {
        let near = self.clamped(x, FINITE);
        let [size, of_near] = [x, &near].map(|it| self.unary(Op::Abs, it));
        let rest = self.binary(Op::Sub, &size, &of_near);
        self.products([x, y], &rest, ops)
    }

    fn sin(&mut self, [x, y]: &Parts) -> Parts {
        self.hyperbolic([y, x], [[Op::Cosh, Op::Sin], [Op::Sinh, Op::Cos]])
    }

    fn cos(&mut self, [x, y]: &Parts) -> Parts {
        let [real, imaginary] = self.hyperbolic([y, x], [[Op::Cosh, Op::Cos], [Op::Sinh, Op::Sin]]);
        [real, self.unary(Op::Neg, &imaginary)]
    }

    fn sinh(&mut self, [x, y]: &Parts) -> Parts {
        self.hyperbolic([x, y], [[Op::Sinh, Op::Cos], [Op::Cosh, Op::Sin]])
    }

    fn cosh(&mut self, [x, y]: &Parts) -> Parts {
        self.hyperbolic([x, y], [[Op::Cosh, Op::Cos], [Op::Sinh, Op::Sin]])
    }

    /// `-i tanh(iz)`.
    fn tan(&mut self, [x, y]: &Parts) -> Parts {
        let [real, imaginary] = self.tanh(&[y.clone(), x.clone()]);
        [imaginary, real]
    }

    /// With `s = sinh x`, `t = tan y`, `b = 1 + t²`: `(b s sqrt(1+s²) + i t) / (1 + b s²)`; beyond `LARGE`, `±1 + 4i sin y cos y exp(-2|x|)`.
    fn tanh(&mut self, [x, y]: &Parts) -> Parts {
        let near = self.clamped(x, LARGE);
        let (s, t) = (self.unary(Op::Sinh, &near), self.unary(Op::Tan, y));
        let (s2, t2) = (self.binary(Op::Mul, &s, &s), self.binary(Op::Mul, &t, &t));
        let (b, s2_1) = (self.plus(&t2, 1.0), self.plus(&s2, 1.0));
        let bs2 = self.binary(Op::Mul, &b, &s2);
        let (divisor, cosh) = (self.plus(&bs2, 1.0), self.unary(Op::Sqrt, &s2_1));
        let bs = self.binary(Op::Mul, &b, &s);
        let product = self.binary(Op::Mul, &bs, &cosh);
        let [real, imaginary] = [&product, &t].map(|it| self.binary(Op::Div, it, &divisor));

        let size = self.unary(Op::Abs, x);
        let minus = self.unary(Op::Neg, &size);
        let factor = self.unary(Op::Exp, &minus);
        let (sin, cos) = (self.unary(Op::Sin, y), self.unary(Op::Cos, y));
        let product = self.binary(Op::Mul, &sin, &cos);
        let product = self.times(&product, 4.0);
        let product = self.binary(Op::Mul, &product, &factor);
        let far = self.binary(Op::Mul, &product, &factor);
        let sign = self.map(Op::Clamp, &[view(x), float(-1.0), float(1.0)]);
        let is_far = self.truth(Op::Gt, &[view(&size), float(LARGE)]);
        [self.choice(&is_far, &sign, &real), self.choice(&is_far, &far, &imaginary)]
    }

    /// `1 / (1 + exp(-z))`, and left of 0 `exp(z) / (1 + exp(z))`.
    fn sigmoid(&mut self, [x, y]: &Parts) -> Parts {
        let is_left = self.truth(Op::Lt, &[view(x), float(0.0)]);
        let size = self.unary(Op::Abs, x);
        let (minus_x, minus_y) = (self.unary(Op::Neg, &size), self.unary(Op::Neg, y));
        let exponent = [minus_x, self.choice(&is_left, y, &minus_y)];
        let [real, imaginary] = self.exp(&exponent);
        let dividend = [(&real, 1.0), (&imaginary, 0.0)].map(|(of_left, of_right)| {
            self.map(Op::Where, &[view(&is_left), view(of_left), float(of_right)])
        });
        let sum = self.plus(&real, 1.0);
        self.quotient(&dividend, &[sum, imaginary])
    }

    /// `1` if `w` is 0, else `exp(w · log z)`. So `pow(0, w)` is 0 if the real part of `w` is positive, `∞ + NaN i` if it is negative and
    /// `NaN + NaN i` if it is 0, as in PyTorch and in C++; they differ in `pow(0, 0)`, which is 1 as that of real numbers.
    fn power(&mut self, z: &Parts, w: &Parts) -> Parts {
        let log = self.log(z);
        let exponent = self.product(w, &log);
        let [real, imaginary] = self.exp(&exponent);
        let is_zero = w.each_ref().map(|it| self.truth(Op::Eq, &[view(it), float(0.0)]));
        let is_one = self.both(&is_zero[0], &is_zero[1]);
        [self.constant_or(&is_one, 1.0, &real), self.constant_or(&is_one, 0.0, &imaginary)]
    }
}
