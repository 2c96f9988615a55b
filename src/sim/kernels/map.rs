//! Elementwise operators.
//!
//! A floating-point function is evaluated in binary64, rounded to the precision of its operands and then to
//! the result's type. For `+ - * /` and `sqrt`, this is the correctly rounded operation in that precision.
//! Such an operation is exact if its residual is 0. Any other function counts as exact only if its binary64
//! value is representable in binary32. For `exp` and similar functions, the true values that binary32
//! represents are the exact ones, except for arguments below about 2^-53.

use grammar::{DType, Op, dtype::Class};

use super::{Exactness, KernelError, Precision, Result, narrow, shadow_lanes, wrap};
use hir_plan::Number;
use hir_tensor::{
    data::{Data, Element, Shadow, WrittenMask, each},
    dense::DenseTensor,
    elementwise::elementwise,
};

/// An operand: a tensor of the result's shape, or one value for all elements.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a DenseTensor),
    /// One value. A float is first rounded to the precision of the tensor operands.
    Number(Number),
}

/// Applies `op` to every element. The result and all tensor operands have the shape `shape`.
///
/// # Errors
/// Complex numbers, `bit_cast` between types of different sizes, an operator that does not support a type, or
/// an integer division by zero.
pub fn map(
    op: Op,
    args: &[Operand],
    out_dtype: DType,
    shape: &[usize],
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let written = written(op, args, shape.iter().product());
    let dtypes = || args.iter().filter_map(Operand::dtype);
    let (data, shadow) = match op {
        Op::Cast => cast(op, args, out_dtype, written.len(), exactness)?,
        Op::BitCast => bit_cast(op, args, out_dtype)?,
        _ if out_dtype.is_integral() && dtypes().all(DType::is_integral) => {
            integers(op, args, out_dtype, &written)?
        }
        _ => {
            // The type of a number matters only if there are no tensor operands.
            let blocks = args.iter().filter_map(Operand::block).map(|it| it.data.dtype());
            let precision = Precision::of(blocks.chain([out_dtype]));
            floats(op, args, out_dtype, precision, &written, exactness)?
        }
    };
    Ok(DenseTensor { shape: shape.to_vec(), data, written, shadow })
}

impl<'a> Operand<'a> {
    fn block(&self) -> Option<&'a DenseTensor> {
        match self {
            Self::Tensor(it) => Some(it),
            Self::Number(_) => None,
        }
    }

    fn dtype(&self) -> Option<DType> {
        match self {
            Self::Tensor(it) => Some(it.data.dtype()),
            Self::Number(Number::Float(_)) => Some(DType::Double),
            Self::Number(Number::Int(_) | Number::Bool(_)) => None,
        }
    }

    fn is_written(&self, at: usize) -> bool {
        self.block().is_none_or(|it| it.written.get(at))
    }

    /// Returns true if a condition holds at an element.
    fn holds(&self, at: usize) -> bool {
        let value = match self {
            Self::Tensor(it) => it.data.get(at),
            Self::Number(it) => *it,
        };
        !matches!(value, Number::Bool(false) | Number::Int(0) | Number::Float(0.0))
    }
}

/// Returns the written mask. A result is written if all operands are. `where` needs its condition and the
/// selected operand.
fn written(op: Op, args: &[Operand], len: usize) -> WrittenMask {
    if args.iter().filter_map(Operand::block).all(|it| it.written.is_full()) {
        return WrittenMask::full(len);
    }
    let element = |at| match (op, args) {
        (Op::Where, [condition, yes, no]) => {
            condition.is_written(at) && if condition.holds(at) { yes } else { no }.is_written(at)
        }
        _ => args.iter().all(|it| it.is_written(at)),
    };
    WrittenMask::from_flags((0..len).map(element).collect())
}

/// The elements, and their shadow if it differs from them.
type Computed = (Data, Option<Shadow>);

/// Operands by element, padded to three. A single value has stride 0.
pub(super) struct Columns<T> {
    columns: [(Vec<T>, usize); 3],
}

impl<T: Copy + Default> Columns<T> {
    /// Builds the columns. `block` returns the elements of a tensor, `number` converts a single value.
    pub fn of(
        args: &[Operand],
        block: impl Fn(&DenseTensor) -> Vec<T>,
        number: impl Fn(Number) -> T,
    ) -> Self {
        let mut columns = [const { Vec::new() }; 3].map(|_: Vec<T>| (vec![T::default()], 0));
        for (column, arg) in columns.iter_mut().zip(args) {
            *column = match arg {
                Operand::Tensor(it) => (block(it), 1),
                Operand::Number(it) => (vec![number(*it)], 0),
            };
        }
        Self { columns }
    }

    /// Returns the operands of element `i`.
    pub fn at(&self, i: usize) -> [T; 3] {
        let [a, b, c] = &self.columns;
        [a.0[i * a.1], b.0[i * b.1], c.0[i * c.1]]
    }
}

fn integers(op: Op, args: &[Operand], out_dtype: DType, written: &WrittenMask) -> Result<Computed> {
    // The complement of a boolean is its negation.
    let applied = if op == Op::BitNot && out_dtype == DType::Bool { Op::LogicalNot } else { op };
    let row = elementwise(applied).and_then(|it| it.integer);
    let function = row.ok_or(KernelError::Op(op, out_dtype))?.function;
    let dtypes = || args.iter().filter_map(Operand::dtype).chain([out_dtype]);
    // Beside unsigned 64-bit integers, a constant is unsigned, as in C++: -1 is the largest value.
    let is_unsigned = dtypes().any(|it| it == DType::UInt64) && !dtypes().any(is_signed);
    let number = |it| match it {
        Number::Int(it) if is_unsigned => i128::from(it as u64),
        Number::Int(it) => i128::from(it),
        Number::Bool(it) => i128::from(it),
        Number::Float(it) => it as i128,
    };
    let columns = Columns::of(args, |it| it.data.to_i128(), number);
    let mut out = Vec::with_capacity(written.len());
    for element in 0..written.len() {
        match function(columns.at(element)) {
            Some(it) => out.push(it),
            None if written.get(element) => return Err(KernelError::DivisionByZero { op, element }),
            None => out.push(0),
        }
    }
    let data = wrap(out_dtype, out.into_iter())?;
    if args.iter().filter_map(Operand::block).all(|it| it.shadow.is_none()) {
        return Ok((data, None));
    }
    let lanes = shadow_lanes::per_lane(|lane| {
        let whole =
            |it: &DenseTensor| shadow_lanes::lane_values(it, lane).into_iter().map(|it| it as i128).collect();
        let columns = Columns::of(args, whole, number);
        let results = (0..written.len()).map(|at| function(columns.at(at)).unwrap_or(0));
        Ok::<_, KernelError>(wrap(out_dtype, results)?.to_f64())
    })?;
    let shadow = shadow_lanes::into_shadow(lanes, &data)?;
    Ok((data, shadow))
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::Index)
}

/// Returns a constant as an operand of a floating-point operator.
pub(super) fn constant(number: Number, precision: Precision) -> f64 {
    match number {
        Number::Int(it) => precision.round(it as f64),
        Number::Bool(it) => f64::from(u8::from(it)),
        Number::Float(it) => precision.round(it),
    }
}

fn floats(
    op: Op,
    args: &[Operand],
    out_dtype: DType,
    precision: Precision,
    written: &WrittenMask,
    exactness: &mut Exactness,
) -> Result<Computed> {
    if matches!(out_dtype.class(), Class::Complex) {
        return Err(KernelError::Op(op, out_dtype));
    }
    let row = elementwise(op).and_then(|it| it.float).ok_or(KernelError::Op(op, out_dtype))?;
    let function = precision.function(&row);
    let mut inexact = 0;
    for arg in args {
        // Counts integers beyond 2^53 and constants that the precision cannot represent.
        inexact += match arg {
            Operand::Tensor(it) if it.data.dtype().is_integral() => it.data.convert(DType::Double)?.1,
            Operand::Number(Number::Float(it)) => usize::from(precision.round(*it) != *it && !it.is_nan()),
            Operand::Tensor(_) | Operand::Number(_) => 0,
        };
    }
    let columns = Columns::of(args, |it| it.data.to_f64(), |it| constant(it, precision));
    let mut rounds = 0;
    let values: Vec<f64> = (0..written.len())
        .map(|at| {
            if !written.get(at) {
                return 0.0;
            }
            let (value, exact) = function.eval(columns.at(at));
            let rounded = precision.round(value);
            rounds += usize::from(!exact || (rounded != value && !value.is_nan()));
            rounded
        })
        .collect();
    let (data, changed) = narrow(out_dtype, values.into_iter())?;
    exactness.count(inexact + rounds + changed);
    let is_shadowed = args.iter().filter_map(Operand::block).any(|it| it.shadow.is_some());
    let shadow = if exactness.shadows && (is_shadowed || rounds + changed > 0) {
        shadow_lanes::map_shadow((op, &row), args, precision, &data, written)?
    } else {
        None
    };
    Ok((data, shadow))
}

fn cast(
    op: Op,
    args: &[Operand],
    out_dtype: DType,
    len: usize,
    exactness: &mut Exactness,
) -> Result<Computed> {
    match args {
        [Operand::Tensor(it)] => {
            let block = convert(it, out_dtype, exactness)?;
            Ok((block.data, block.shadow))
        }
        [Operand::Number(it)] => {
            let mut data = Data::zeros(out_dtype, len)?;
            let changed = (0..len).filter(|&at| data.set(at, *it)).count();
            exactness.count(if out_dtype.is_integral() { 0 } else { changed });
            Ok((data, None))
        }
        _ => Err(KernelError::Op(op, out_dtype)),
    }
}

/// Converts a block to another element type.
///
/// # Errors
/// `Data` does not support the type.
pub fn convert(block: &DenseTensor, dtype: DType, exactness: &mut Exactness) -> Result<DenseTensor> {
    let (data, changed) = block.data.convert(dtype)?;
    exactness.count(changed);
    let shadow = if exactness.shadows { shadow_lanes::convert_shadow(block, &data, changed)? } else { None };
    Ok(DenseTensor { shape: block.shape.clone(), data, written: block.written.clone(), shadow })
}

fn bit_cast(op: Op, args: &[Operand], out_dtype: DType) -> Result<Computed> {
    fn all<S: Element, T: Element>(from: &[S], to: &mut [T]) {
        to.iter_mut().zip(from).for_each(|(slot, it)| *slot = T::from_bits(it.to_bits()));
    }
    let cast = |from: &Data| {
        let mut out = Data::zeros(out_dtype, from.len())?;
        each!(from, from => each!(&mut out, to => all(from, to)));
        Ok(out)
    };
    match args {
        [Operand::Tensor(it)] if it.data.dtype().size() == out_dtype.size() => {
            let data = cast(&it.data)?;
            let shadow = shadow_lanes::shadow_per_lane(&[it], &data, |it| cast(&it[0]))?;
            Ok((data, shadow))
        }
        _ => Err(KernelError::Op(op, out_dtype)),
    }
}

#[cfg(test)]
mod tests {
    use grammar::{OPS, OpClass};
    use half::bf16;

    use super::*;

    fn block(data: impl Into<Data>) -> DenseTensor {
        let data = data.into();
        DenseTensor::full(vec![data.len()], data)
    }

    /// Returns the result of an operator on blocks, and the number of inexact roundings.
    fn run(op: Op, args: &[&DenseTensor], out_dtype: DType) -> Result<(Data, usize)> {
        let mut exactness = Exactness::default();
        let operands: Vec<_> = args.iter().map(|it| Operand::Tensor(it)).collect();
        let out = map(op, &operands, out_dtype, &args[0].shape, &mut exactness)?;
        Ok((out.data, exactness.inexact()))
    }

    fn singles(op: Op, args: &[&[f32]]) -> Result<(Vec<f64>, usize)> {
        let blocks: Vec<_> = args.iter().map(|it| block(it.to_vec())).collect();
        let (data, inexact) = run(op, &blocks.iter().collect::<Vec<_>>(), DType::Float)?;
        Ok((data.to_f64(), inexact))
    }

    #[test]
    fn every_map_operator_but_the_complex_ones_is_here() {
        for row in OPS.iter().filter(|it| it.class == OpClass::Elementwise) {
            let supported = |one: DenseTensor, dtype| run(row.op, &vec![&one; row.args.len()], dtype).is_ok();
            let found =
                supported(block(vec![1.0f64]), DType::Double) || supported(block(vec![1i64]), DType::Int64);
            assert_eq!(found, !matches!(row.op, Op::Complex | Op::Real | Op::Imag), "{}", row.mnemonic);
        }
        let error = run(Op::Complex, &[&block(vec![1f32]), &block(vec![1f32])], DType::Complex64);
        assert_eq!(
            error.map_err(|it| it.to_string()).err().as_deref(),
            Some("`std::complex` on element type `c64` is not supported")
        );
    }

    #[test]
    fn arithmetic_and_its_exactness() -> Result<()> {
        assert_eq!(singles(Op::Add, &[&[1.0, 0.5], &[2.0, 0.25]])?, (vec![3.0, 0.75], 0));
        assert_eq!(singles(Op::Add, &[&[16777216.0], &[1.0]])?, (vec![16777216.0], 1));
        assert_eq!(singles(Op::Add, &[&[1.0], &[1e-30]])?.1, 1);
        assert_eq!(singles(Op::Sub, &[&[1.0, f32::INFINITY], &[2.0, 1.0]])?, (vec![-1.0, f64::INFINITY], 0));
        assert_eq!(singles(Op::Mul, &[&[4097.0], &[4095.0]])?, (vec![16777215.0], 0));
        assert_eq!(singles(Op::Mul, &[&[4097.0], &[4097.0]])?.1, 1);
        assert_eq!(singles(Op::Mul, &[&[3e38], &[3e38]])?, (vec![f64::INFINITY], 1));
        assert_eq!(singles(Op::Div, &[&[3.0, 1.0], &[4.0, 3.0]])?, (vec![0.75, f64::from(1f32 / 3.0)], 1));
        assert_eq!(singles(Op::Sqrt, &[&[2.25, 2.0]])?, (vec![1.5, f64::from(2f32.sqrt())], 1));
        assert_eq!(singles(Op::Lerp, &[&[1.0], &[3.0], &[0.5]])?, (vec![2.0], 0));
        assert_eq!(run(Op::Add, &[&block(vec![1.0f64]), &block(vec![1e-30f64])], DType::Double)?.1, 1);
        // 256 + 1 is exact in binary32 but not in bf16.
        let halves = |it: f32| block(vec![bf16::from_f32(it)]);
        let (data, inexact) = run(Op::Add, &[&halves(256.0), &halves(1.0)], DType::BFloat)?;
        assert_eq!((data.to_f64(), inexact), (vec![256.0], 1));
        Ok(())
    }

    #[test]
    fn shadows_of_singles_are_the_values_in_double() -> Result<()> {
        let (mut exactness, mut rounded) = (Exactness { shadows: true, ..Exactness::default() }, 0);
        // The step of `nextafter` depends on the precision.
        for row in OPS.iter().filter(|it| it.class == OpClass::Elementwise && it.op != Op::NextAfter) {
            let columns = [[0.3f32, -0.7, 1.9, -11.0], [1.7, 0.9, -2.3, 3.1], [0.1, 0.8, 0.4, 0.6]];
            let single: Vec<DenseTensor> = columns.iter().map(|it| block(it.to_vec())).collect();
            let double = columns.iter().map(|it| block(it.map(f64::from).to_vec())).collect::<Vec<_>>();
            let mut run = |blocks: &[DenseTensor], dtype| {
                let args: Vec<_> = blocks[..row.args.len()].iter().map(Operand::Tensor).collect();
                map(row.op, &args, dtype, &[4], &mut exactness)
            };
            let results = [run(&single, DType::Float), run(&double, DType::Double)];
            let [Ok(single), Ok(double)] = results else { continue };
            let Some(shadow) = single.shadow else { continue };
            rounded += 1;
            let bits = |it: &[f64]| it.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(shadow.lane(0)), bits(&double.data.to_f64()), "{}", row.mnemonic);
        }
        assert!(rounded > 20, "{rounded}");
        Ok(())
    }

    #[test]
    fn functions() -> Result<()> {
        assert_eq!(singles(Op::Exp, &[&[0.0, 1.0]])?, (vec![1.0, f64::from(std::f32::consts::E)], 1));
        assert_eq!(singles(Op::Exp2, &[&[3.0, -1.0]])?, (vec![8.0, 0.5], 0));
        assert_eq!(singles(Op::Pow, &[&[3.0], &[2.0]])?, (vec![9.0], 0));
        assert_eq!(singles(Op::Round, &[&[2.5, 3.5, -0.5]])?, (vec![2.0, 4.0, 0.0], 0));
        assert_eq!(singles(Op::Mod, &[&[-7.0], &[3.0]])?.0, [-1.0]);
        assert_eq!(singles(Op::Remainder, &[&[-7.0], &[3.0]])?.0, [2.0]);
        assert_eq!(singles(Op::Sigmoid, &[&[0.0]])?, (vec![0.5], 0));
        assert_eq!(singles(Op::Threshold, &[&[1.0, 3.0], &[2.0, 2.0], &[9.0, 9.0]])?.0, [9.0, 3.0]);
        assert_eq!(singles(Op::Clamp, &[&[1.0, 3.0, 9.0], &[2.0; 3], &[4.0; 3]])?.0, [2.0, 3.0, 4.0]);
        assert_eq!(singles(Op::FMax, &[&[f32::NAN], &[2.0]])?.0, [2.0]);
        assert!(singles(Op::Max, &[&[f32::NAN, 2.0], &[2.0, f32::NAN]])?.0.iter().all(|it| it.is_nan()));
        assert_eq!(singles(Op::NextAfter, &[&[1.0], &[2.0]])?.0, [1.0 + f64::from(f32::EPSILON)]);
        Ok(())
    }

    #[test]
    fn integers_are_exact() -> Result<()> {
        let two = |op, a: &[i32], b: &[i32]| {
            run(op, &[&block(a.to_vec()), &block(b.to_vec())], DType::Int32).map(|it| it.0.to_i128())
        };
        assert_eq!(two(Op::Add, &[i32::MAX], &[1])?, [i128::from(i32::MIN)]);
        assert_eq!(two(Op::Div, &[-7, 7, i32::MIN], &[2, -2, -1])?, [-3, -3, i128::from(i32::MIN)]);
        assert_eq!(two(Op::Mod, &[-7], &[2])?, [-1]);
        assert_eq!(two(Op::CeilDiv, &[7, -7, 6], &[2, 2, 3])?, [4, -3, 2]);
        assert_eq!(two(Op::Shl, &[1, 1], &[4, 40])?, [16, 0]);
        assert_eq!(two(Op::Shr, &[-8, -8], &[1, 99])?, [-4, -1]);
        assert_eq!(two(Op::Pow, &[3, -1, 2], &[4, -3, -1])?, [81, -1, 0]);
        assert_eq!(two(Op::Gcd, &[-12], &[18])?, [6]);
        let fault = two(Op::Div, &[1, 1], &[1, 0]);
        assert_eq!(fault, Err(KernelError::DivisionByZero { op: Op::Div, element: 1 }));
        let large = block(vec![u64::MAX]);
        assert_eq!(run(Op::Shr, &[&large, &block(vec![63u64])], DType::UInt64)?.0, Data::U64(vec![1]));
        assert_eq!(run(Op::Lt, &[&block(vec![1u64]), &large], DType::Bool)?.0, Data::Bool(vec![true]));
        assert_eq!(run(Op::BitNot, &[&block(vec![true])], DType::Bool)?.0, Data::Bool(vec![false]));
        assert_eq!(run(Op::BitNot, &[&block(vec![0u8])], DType::UInt8)?.0, Data::U8(vec![255]));
        Ok(())
    }

    #[test]
    fn casts() -> Result<()> {
        let floats = block(vec![2.7f32, -2.7, 1e30]);
        assert_eq!(run(Op::Cast, &[&floats], DType::Int32)?, (Data::I32(vec![2, -2, i32::MAX]), 1));
        assert_eq!(
            run(Op::Cast, &[&block(vec![16777217i32])], DType::Float)?,
            (Data::F32(vec![16777216.0]), 1)
        );
        assert_eq!(run(Op::BitCast, &[&block(vec![1f32])], DType::Int32)?.0, Data::I32(vec![0x3f80_0000]));
        assert_eq!(run(Op::BitCast, &[&block(vec![-1i16])], DType::UInt16)?.0, Data::U16(vec![65535]));
        assert!(run(Op::BitCast, &[&floats], DType::Int64).is_err());
        Ok(())
    }

    #[test]
    fn constants_have_the_precision_of_the_elements() -> Result<()> {
        let mut exactness = Exactness::default();
        let one = block(vec![1f32]);
        let args = [Operand::Tensor(&one), Operand::Number(Number::Float(0.1))];
        let out = map(Op::Mul, &args, DType::Float, &[1], &mut exactness)?;
        assert_eq!((out.data, exactness.inexact()), (Data::F32(vec![0.1]), 1));
        let args = [Operand::Tensor(&one), Operand::Number(Number::Int(2))];
        assert_eq!(map(Op::Ge, &args, DType::Bool, &[1], &mut exactness)?.data, Data::Bool(vec![false]));
        Ok(())
    }

    #[test]
    fn results_depend_on_what_they_read() -> Result<()> {
        let flags = |it: [bool; 3]| WrittenMask::from_flags(it.to_vec());
        let condition = block(vec![true, false, true]);
        let yes = DenseTensor { written: flags([true, false, false]), ..block(vec![1i32, 2, 3]) };
        let no = DenseTensor { written: flags([false, true, true]), ..block(vec![4i32, 5, 6]) };
        let args = [Operand::Tensor(&condition), Operand::Tensor(&yes), Operand::Tensor(&no)];
        let out = map(Op::Where, &args, DType::Int32, &[3], &mut Exactness::default())?;
        assert_eq!((out.data, out.written), (Data::I32(vec![1, 5, 3]), flags([true, true, false])));
        // Division by an unwritten 0 is not an error, and an unwritten quotient does not count as rounded.
        let zero = DenseTensor { written: flags([false, true, true]), ..block(vec![0i32, 1, 1]) };
        let args = [Operand::Tensor(&no), Operand::Tensor(&zero)];
        let out = map(Op::Div, &args, DType::Int32, &[3], &mut Exactness::default())?;
        assert_eq!(out.written, flags([false, true, true]));
        Ok(())
    }
}
