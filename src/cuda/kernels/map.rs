//! Element by element: operators, conversions, copies of any strides, fills, and combinations of several ranks' parts.

use std::fmt::Write;

use grammar::{dtype::DType, ops::Op};

use super::{
    Access, BLOCK, Computed, Function, Kernel, Launch, Located, WIDEST, check, expression, floats, integers,
    is_integer, named, shape::merged,
};
use crate::plan::{Number, ReduceOp};

/// An operand of a map.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) enum Argument<'a> {
    /// Elements of the result's shape.
    View(Located<'a>),
    /// One value for all.
    Number(Number),
}

/// Prepares a map; `None` where there is nothing to do.
///
/// # Errors
/// Element types and operators that the kernels lack.
pub(in crate::cuda) fn map(
    function: Function,
    args: &[Argument],
    out: &Located,
) -> Result<Option<Launch>, String> {
    let views = || {
        args.iter().filter_map(|it| match it {
            Argument::View(it) => Some(it),
            Argument::Number(_) => None,
        })
    };
    check(views().map(|it| it.dtype).chain([out.dtype]))?;
    if let Some(it) = views().find(|it| it.view.shape != out.view.shape) {
        return Err(format!("operands of shapes {:?} and {:?}", it.view.shape, out.view.shape));
    }
    let (function, computed) = computed(function, args, out.dtype)?;
    if out.view.is_empty() {
        return Ok(None);
    }
    // The bits of equally long types move as unsigned integers.
    let raw = |dtype: DType| match (function, args) {
        (Function::Op(Op::BitCast), _) => unsigned(dtype.size()),
        (Function::Move, [Argument::View(it)]) if it.dtype == out.dtype => unsigned(dtype.size()),
        _ => dtype,
    };
    let computed = match raw(out.dtype) == out.dtype {
        true => computed,
        false => Computed::U64,
    };
    let operands: Vec<&Located> = std::iter::once(out).chain(views()).collect();
    let strides: Vec<&[usize]> = operands.iter().map(|it| it.view.strides.as_slice()).collect();
    let merged = merged(&out.view.shape, &strides).checked()?;
    let sizes: Vec<usize> = operands.iter().map(|it| it.dtype.size()).collect();
    let addresses: Vec<u64> = operands.iter().map(|it| it.address).collect();
    let most = WIDEST / sizes.iter().max().copied().unwrap_or(1).max(1);
    let width = merged.width(most, &addresses, &sizes);
    let last = merged.extents.len() - 1;
    let count = (out.view.len() / width) as u64;

    let (mut base, mut stride_words) = (Vec::new(), Vec::new());
    let (mut real, mut whole) = ([0f64; 4], [0i64; 4]);
    let mut accesses = Vec::new();
    let mut next = 1;
    base.push(out.address);
    stride_words.extend(merged.stride_words(0, sizes[0], width));
    for (at, arg) in args.iter().enumerate() {
        match arg {
            Argument::View(it) => {
                base.push(it.address);
                stride_words.extend(merged.stride_words(next, sizes[next], width));
                accesses.push(match merged.strides[next][last] {
                    0 if width > 1 => Access::Repeated(raw(it.dtype)),
                    _ => Access::Dense(raw(it.dtype)),
                });
                next += 1;
            }
            Argument::Number(number) => {
                // A place without meaning keeps operands and parameters in step.
                base.push(0);
                stride_words.extend([0; super::DIMS]);
                accesses.push(Access::Number);
                (real[at], whole[at]) = constants(*number, computed);
            }
        }
    }
    let mut words = base;
    words.extend(stride_words);
    words.extend(merged.extent_words(width));
    words.extend([merged.extents.len() as u64, count]);
    words.extend(real.map(f64::to_bits));
    words.extend(whole.map(|it| it as u64));
    let kernel = Kernel::Map {
        function,
        args: accesses,
        out: raw(out.dtype),
        computed,
        width,
        small: count < 1 << 31,
    };
    Ok(Some(Launch { kernel, words, blocks: count.div_ceil(u64::from(BLOCK)) }))
}

fn unsigned(size: usize) -> DType {
    match size {
        1 => DType::UInt8,
        2 => DType::UInt16,
        4 => DType::UInt32,
        _ => DType::UInt64,
    }
}

/// A constant as both kinds of parameters. A float is rounded to the computed type, or truncated.
fn constants(number: Number, computed: Computed) -> (f64, i64) {
    let (real, whole) = match number {
        Number::Int(it) => (it as f64, it),
        Number::Float(it) => (it, it as i64),
        Number::Bool(it) => (f64::from(u8::from(it)), i64::from(it)),
    };
    (if computed == Computed::F32 { f64::from(real as f32) } else { real }, whole)
}

/// The type to compute in, as the simulator chooses it; refuses what there is no expression for.
fn computed(function: Function, args: &[Argument], out: DType) -> Result<(Function, Computed), String> {
    let lacks = |op: Op| format!("`{}` on element type `{}` has no kernel", op.name(), out.short_name());
    let dtypes = || {
        args.iter().filter_map(|it| match it {
            Argument::View(it) => Some(it.dtype),
            Argument::Number(_) => None,
        })
    };
    let of_source = || match args.first() {
        Some(Argument::View(it)) if is_integer(it.dtype) => integers(std::iter::once(it.dtype)),
        Some(Argument::View(it)) => floats(std::iter::once(it.dtype)),
        Some(Argument::Number(Number::Float(_))) => Computed::F64,
        Some(Argument::Number(_)) | None => Computed::I64,
    };
    match function {
        Function::Iota => Ok((function, Computed::I64)),
        Function::Move | Function::Op(Op::Cast) => Ok((Function::Move, of_source())),
        Function::Op(Op::BitCast) => match dtypes().next() {
            Some(from) if from.size() == out.size() => Ok((function, Computed::U64)),
            _ => Err(lacks(Op::BitCast)),
        },
        Function::Combine(op) => {
            let all = dtypes().chain([out]);
            let computed = match all.clone().all(is_integer) {
                true => integers(dtypes().collect::<Vec<_>>().into_iter().chain([out])),
                false => floats(all),
            };
            match expression::step(op, computed) {
                Some(_) => Ok((function, computed)),
                None => Err(format!("{op:?} of element type `{}` has no kernel", out.short_name())),
            }
        }
        Function::Op(op) => {
            let float_number = args.iter().any(|it| matches!(it, Argument::Number(Number::Float(_))));
            let whole = is_integer(out) && dtypes().all(is_integer) && !float_number;
            let computed = match whole {
                true => integers(dtypes().collect::<Vec<_>>().into_iter().chain([out])),
                false => floats(dtypes().chain([out])),
            };
            // The complement of a truth value is the other one.
            let applied = if op == Op::BitNot && out == DType::Bool { Op::LogicalNot } else { op };
            match expression::operator(applied, computed) {
                Some(_) => Ok((Function::Op(applied), computed)),
                None => Err(lacks(op)),
            }
        }
    }
}

/// The body of an instance.
pub(super) fn body(kernel: &Kernel) -> String {
    let Kernel::Map { function, args, out, computed, width, small } = kernel else { return String::new() };
    let (out, n) = (named(*out), args.len() + 1);
    let index = if *small { "u32" } else { "u64" };
    let mut text = format!(
        "  typedef {} C;\n  for ({index} g = blockIdx.x * ({index}){BLOCK} + threadIdx.x; g < ({index})p.count; g += \
         gridDim.x * ({index}){BLOCK}) {{\n    u64 at[{n}];\n    locate<{index}, {n}>(p, g, at);\n",
        computed.name()
    );
    let mut values = String::new();
    for (arg, access) in args.iter().enumerate() {
        let (place, name) = (arg + 1, format!("v{arg}"));
        let _ = match access {
            Access::Dense(dtype) | Access::Repeated(dtype) => {
                let read = if matches!(access, Access::Dense(_)) { "load" } else { "repeat" };
                let dtype = named(*dtype);
                let _ = writeln!(
                    text,
                    "    const Pack<{dtype}, {width}> x{arg} = {read}<{dtype}, {width}>(at[{place}]);"
                );
                writeln!(values, "      const C {name} = up<C>(x{arg}.e[v]);")
            }
            Access::Number if computed.is_float() => {
                writeln!(values, "      const C {name} = (C)p.real[{arg}];")
            }
            Access::Number => writeln!(values, "      const C {name} = (C)p.whole[{arg}];"),
        };
    }
    let operands = ["a", "b", "c"].iter().zip(0..args.len());
    let bound: String = operands.map(|(name, arg)| format!("      const C {name} = v{arg};\n")).collect();
    let result = match function {
        Function::Op(Op::BitCast) | Function::Move => format!("{bound}      const C r = a;\n"),
        Function::Iota => {
            format!("      const C r = (C)(p.whole[0] + p.whole[1] * (i64)((u64)g * {width} + v));\n")
        }
        Function::Op(op) => {
            let expression = expression::operator(*op, *computed).unwrap_or_default();
            format!("{bound}      const C r = (C)({expression});\n")
        }
        Function::Combine(op) => {
            let step = expression::step(*op, *computed).unwrap_or_default();
            let mut text = "      C r = v0;\n".to_owned();
            for arg in 1..args.len() {
                let _ = writeln!(text, "      {{ const C a = r, b = v{arg}; r = {step}; }}");
            }
            if *op == ReduceOp::Avg {
                let _ = writeln!(text, "      r = r / (C){};", args.len());
            }
            text
        }
    };
    let _ = write!(
        text,
        "    Pack<{out}, {width}> y;\n#pragma unroll\n    for (int v = 0; v < {width}; ++v) {{\n{values}{result}      \
         y.e[v] = down(To<{out}>(), r);\n    }}\n    save<{out}, {width}>(at[0], y);\n  }}\n"
    );
    text
}
