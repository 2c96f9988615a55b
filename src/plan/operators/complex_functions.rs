//! Quotients, comparisons and functions of complex numbers, in binary64. The parts of a function are those of its definition by real ones
//! (Abramowitz and Stegun, "Handbook of Mathematical Functions", chapter 4); a quotient is R. L. Smith's ("Algorithm 116", 1962).

use grammar::{dtype::DType, ir::Operand, ops::Op};

use super::{OperatorCall, Result, misfit};
use crate::{
    Arg, Number, View,
    inst_builder::{InstBuilder, float, view},
};

/// The real and the imaginary parts of the elements.
type Parts = [View; 2];

/// Where the quotient of hyperbolic functions differs from 1 by less than a rounding error, and they are finite.
const LARGE: f64 = 300.0;

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
            Op::Tan => {
                let z = [z[0].clone(), it.clamped(&z[1])];
                let (sin, cos) = (it.sin(&z), it.cos(&z));
                it.quotient(&sin, &cos)
            }
            Op::Tanh => {
                let z = [it.clamped(&z[0]), z[1].clone()];
                let (sinh, cosh) = (it.sinh(&z), it.cosh(&z));
                it.quotient(&sinh, &cosh)
            }
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

    fn clamped(&mut self, a: &View) -> View {
        self.map(Op::Clamp, &[view(a), float(-LARGE), float(LARGE)])
    }

    fn product(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Parts {
        let [ac, bd, ad, bc] = [(a, c), (b, d), (a, d), (b, c)].map(|(x, y)| self.binary(Op::Mul, x, y));
        [self.binary(Op::Sub, &ac, &bd), self.binary(Op::Add, &ad, &bc)]
    }

    /// If the imaginary part of the divisor is larger, both numbers are multiplied by `-i` before.
    fn quotient(&mut self, [a, b]: &Parts, [c, d]: &Parts) -> Parts {
        let [size_c, size_d] = [c, d].map(|it| self.unary(Op::Abs, it));
        let is_turned = self.truth(Op::Lt, &[view(&size_c), view(&size_d)]);
        let [minus_a, minus_c] = [a, c].map(|it| self.unary(Op::Neg, it));
        let [a, b, c, d] =
            [(b, a), (&minus_a, b), (d, c), (&minus_c, d)].map(|(x, y)| self.choice(&is_turned, x, y));
        let ratio = self.binary(Op::Div, &d, &c);
        let [br, ar, dr] = [&b, &a, &d].map(|it| self.binary(Op::Mul, it, &ratio));
        let divisor = self.binary(Op::Add, &c, &dr);
        let (real, imaginary) = (self.binary(Op::Add, &a, &br), self.binary(Op::Sub, &b, &ar));
        [real, imaginary].map(|it| self.binary(Op::Div, &it, &divisor))
    }

    fn reciprocal(&mut self, z: &Parts) -> Parts {
        let one = [1, 0].map(|value| {
            let part = self.temporary();
            self.code.fill(&part, Number::Int(value));
            part
        });
        self.quotient(&one, z)
    }

    fn magnitude(&mut self, z: &Parts) -> View {
        let [real, imaginary] = z.each_ref().map(|it| self.binary(Op::Mul, it, it));
        let sum = self.binary(Op::Add, &real, &imaginary);
        self.unary(Op::Sqrt, &sum)
    }

    fn exp(&mut self, [x, y]: &Parts) -> Parts {
        let size = self.unary(Op::Exp, x);
        [Op::Cos, Op::Sin].map(|op| {
            let part = self.unary(op, y);
            self.binary(Op::Mul, &size, &part)
        })
    }

    fn log(&mut self, z: &Parts) -> Parts {
        let size = self.magnitude(z);
        [self.unary(Op::Log, &size), self.binary(Op::Atan2, &z[1], &z[0])]
    }

    /// The root with a real part that is not negative.
    fn sqrt(&mut self, z: &Parts) -> Parts {
        let (size, real) = (self.magnitude(z), self.unary(Op::Abs, &z[0]));
        let sum = self.binary(Op::Add, &size, &real);
        let half = self.map(Op::Mul, &[view(&sum), float(0.5)]);
        let large = self.unary(Op::Sqrt, &half);
        let twice = self.map(Op::Mul, &[view(&large), float(2.0)]);
        let ratio = self.binary(Op::Div, &z[1], &twice);
        let is_zero = self.truth(Op::Eq, &[view(&large), float(0.0)]);
        let small = self.choice(&is_zero, &z[1], &ratio);
        let (size_of_small, minus_large) = (self.unary(Op::Abs, &small), self.unary(Op::Neg, &large));
        let is_below = self.truth(Op::SignBit, &[view(&z[1])]);
        let signed = self.choice(&is_below, &minus_large, &large);
        let is_left = self.truth(Op::Lt, &[view(&z[0]), float(0.0)]);
        [self.choice(&is_left, &size_of_small, &large), self.choice(&is_left, &signed, &small)]
    }

    /// Products of functions of the real part and functions of the imaginary part.
    fn products(&mut self, [x, y]: &Parts, ops: [[Op; 2]; 2]) -> Parts {
        ops.map(|[of_x, of_y]| {
            let (a, b) = (self.unary(of_x, x), self.unary(of_y, y));
            self.binary(Op::Mul, &a, &b)
        })
    }

    fn sin(&mut self, z: &Parts) -> Parts {
        self.products(z, [[Op::Sin, Op::Cosh], [Op::Cos, Op::Sinh]])
    }

    fn cos(&mut self, z: &Parts) -> Parts {
        let [real, imaginary] = self.products(z, [[Op::Cos, Op::Cosh], [Op::Sin, Op::Sinh]]);
        [real, self.unary(Op::Neg, &imaginary)]
    }

    fn sinh(&mut self, z: &Parts) -> Parts {
        self.products(z, [[Op::Sinh, Op::Cos], [Op::Cosh, Op::Sin]])
    }

    fn cosh(&mut self, z: &Parts) -> Parts {
        self.products(z, [[Op::Cosh, Op::Cos], [Op::Sinh, Op::Sin]])
    }

    /// `1 / (1 + exp(-z))`.
    fn sigmoid(&mut self, z: &Parts) -> Parts {
        let minus = z.each_ref().map(|it| self.unary(Op::Neg, it));
        let [real, imaginary] = self.exp(&minus);
        let sum = self.map(Op::Add, &[view(&real), float(1.0)]);
        self.reciprocal(&[sum, imaginary])
    }

    /// `exp(w · log z)`; of 0, `0`, or `1` if `w` is 0.
    fn power(&mut self, z: &Parts, w: &Parts) -> Parts {
        let log = self.log(z);
        let exponent = self.product(w, &log);
        let [real, imaginary] = self.exp(&exponent);
        let size = self.magnitude(z);
        let is_zero = self.truth(Op::Eq, &[view(&size), float(0.0)]);
        let size = self.magnitude(w);
        let is_one = self.truth(Op::Eq, &[view(&size), float(0.0)]);
        let one = self.temporary();
        self.code.copy(&is_one, &one);
        let zero = self.temporary();
        self.code.fill(&zero, Number::Int(0));
        [self.choice(&is_zero, &one, &real), self.choice(&is_zero, &zero, &imaginary)]
    }
}
