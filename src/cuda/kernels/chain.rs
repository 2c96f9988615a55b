//! Element by element, one step after another: operators, conversions, copies of any strides, fills, and combinations of
//! several ranks' parts. A step takes what an earlier one has given from a register, rounded as it would be stored.

use std::fmt::Write;

use grammar::{dtype::DType, ops::Op};

use super::{
    BLOCK, Computed, Function, Kernel, Launch, Located, Operand, PARAMETERS, Read, Step, WIDEST, check,
    expression, floats, integers, named, shape::merged,
};
use crate::plan::{Number, ReduceOp};

/// An operand as it is given.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) enum Argument<'a> {
    /// Elements of the result's shape.
    View(Located<'a>),
    /// One value for all.
    Number(Number),
}

/// A step as it is given.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) struct Link<'a> {
    pub function: Function,
    pub args: Vec<Argument<'a>>,
    pub out: Located<'a>,
    /// Whether the result goes to memory; if not, only later steps have it.
    pub stored: bool,
}

impl<'a> Link<'a> {
    /// A step whose result is stored.
    pub fn new(function: Function, args: Vec<Argument<'a>>, out: Located<'a>) -> Self {
        Self { function, args, out, stored: true }
    }

    /// The operands that are views.
    pub fn views(&self) -> impl Iterator<Item = &Located<'a>> {
        self.args.iter().filter_map(|it| match it {
            Argument::View(it) => Some(it),
            Argument::Number(_) => None,
        })
    }
}

/// The last of some steps that writes the elements of a view.
pub(in crate::cuda) fn writer(earlier: &[Link], view: &Located) -> Option<usize> {
    earlier.iter().rposition(|it| it.out.coincides(view))
}

/// What a chain has in memory, and the constants of its steps.
#[derive(Default)]
struct Parameters<'a> {
    /// Views by place, those that are read first.
    places: Vec<Located<'a>>,
    /// The element types that their bits are taken as.
    types: Vec<DType>,
    constants: Vec<u64>,
}

impl<'a> Parameters<'a> {
    /// The place of a view that is read.
    fn read(&mut self, view: &Located<'a>, dtype: DType) -> usize {
        let pairs = self.places.iter().zip(&self.types);
        let known = pairs.into_iter().position(|(place, known)| place.coincides(view) && *known == dtype);
        known.unwrap_or_else(|| {
            self.places.push(*view);
            self.types.push(dtype);
            self.places.len() - 1
        })
    }

    fn constant(&mut self, number: Number, computed: Computed) -> usize {
        self.constants.push(constant(number, computed));
        self.constants.len() - 1
    }
}

/// Prepares one kernel for steps that come one after the other; `None` where there is nothing to do. All have one shape, and
/// what two of them touch is the same elements or lies apart.
///
/// # Errors
/// Element types and operators that the kernels lack, more than a kernel's parameters hold.
pub(in crate::cuda) fn chain(links: &[Link]) -> Result<Option<Launch>, String> {
    let Some(first) = links.first() else { return Ok(None) };
    let shape = &first.out.view.shape;
    let (mut steps, mut parameters) = (Vec::with_capacity(links.len()), Parameters::default());
    for (at, link) in links.iter().enumerate() {
        steps.push(step(link, &links[..at], &mut parameters)?);
        let views = link.views().chain([&link.out]);
        if let Some(it) = views.into_iter().find(|it| it.view.shape != *shape) {
            return Err(format!("operands of shapes {:?} and {shape:?}", it.view.shape));
        }
    }
    if first.out.view.is_empty() {
        return Ok(None);
    }
    let Parameters { mut places, types, mut constants } = parameters;
    places.extend(links.iter().filter(|it| it.stored).map(|it| it.out));
    let strides: Vec<&[usize]> = places.iter().map(|it| it.view.strides.as_slice()).collect();
    let merged = merged(shape, &strides).checked()?;
    let sizes: Vec<usize> = places.iter().map(|it| it.dtype.size()).collect();
    let addresses: Vec<u64> = places.iter().map(|it| it.address).collect();
    let most = WIDEST / sizes.iter().max().copied().unwrap_or(1).max(1);
    let width = merged.width(most, &addresses, &sizes);
    let last = merged.extents.len() - 1;
    let count = (first.out.view.len() / width) as u64;
    let read =
        |(at, dtype): (usize, DType)| Read { dtype, repeated: width > 1 && merged.strides[at][last] == 0 };
    let reads = types.into_iter().enumerate().map(read).collect();

    // An array has an element at least.
    constants.resize(constants.len().max(1), 0);
    let mut words = addresses;
    words.extend(sizes.iter().enumerate().flat_map(|(at, size)| merged.stride_words(at, *size, width)));
    words.extend(merged.extent_words(width));
    words.extend([merged.extents.len() as u64, count]);
    words.extend(&constants);
    if words.len() > PARAMETERS {
        return Err(format!("{} operands, more than a kernel takes", sizes.len()));
    }
    let kernel = Kernel::Chain { reads, steps, constants: constants.len(), width, small: count < 1 << 31 };
    Ok(Some(Launch { kernel, words, blocks: count.div_ceil(u64::from(BLOCK)) }))
}

/// A step behind those that come before it.
fn step<'a>(link: &Link<'a>, earlier: &[Link], parameters: &mut Parameters<'a>) -> Result<Step, String> {
    let Link { function, args, out, stored } = link;
    check(link.views().map(|it| it.dtype).chain([out.dtype]))?;
    let (function, computed) = computed(*function, args, out.dtype)?;
    // The bits of equally long types move as unsigned integers.
    let is_raw = match (function, args.as_slice()) {
        (Function::Op(Op::BitCast), _) => true,
        (Function::Move, [Argument::View(it)]) => it.dtype == out.dtype,
        _ => false,
    };
    let raw = |dtype: DType| if is_raw { unsigned(dtype.size()) } else { dtype };
    let computed = if is_raw { Computed::U64 } else { computed };
    let operand = |arg: &Argument<'a>| match arg {
        Argument::Number(it) => Operand::Constant(parameters.constant(*it, computed)),
        Argument::View(it) => match writer(earlier, it) {
            Some(step) => Operand::Step(step, raw(it.dtype)),
            None => Operand::Read(parameters.read(it, raw(it.dtype))),
        },
    };
    let args = args.iter().map(operand).collect();
    Ok(Step { function, args, out: raw(out.dtype), computed, stored: *stored })
}

fn unsigned(size: usize) -> DType {
    match size {
        1 => DType::UInt8,
        2 => DType::UInt16,
        4 => DType::UInt32,
        _ => DType::UInt64,
    }
}

/// A constant's bits as a kernel takes it: as binary64 or a 64-bit integer. A float is rounded to the computed type, or
/// truncated.
fn constant(number: Number, computed: Computed) -> u64 {
    let (real, whole) = match number {
        Number::Int(it) => (it as f64, it),
        Number::Float(it) => (it, it as i64),
        Number::Bool(it) => (f64::from(u8::from(it)), i64::from(it)),
    };
    match computed {
        Computed::F32 => f64::from(real as f32).to_bits(),
        Computed::F64 => real.to_bits(),
        Computed::I64 | Computed::U64 => whole as u64,
    }
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
        Some(Argument::View(it)) if it.dtype.is_integral() => integers(std::iter::once(it.dtype)),
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
            let computed = match all.clone().all(DType::is_integral) {
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
            let whole = out.is_integral() && dtypes().all(DType::is_integral) && !float_number;
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

/// The body of an instance: all loads of a group, then the steps element by element, then all stores.
pub(super) fn body(kernel: &Kernel) -> String {
    let Kernel::Chain { reads, steps, constants, width, small } = kernel else { return String::new() };
    let stored: Vec<usize> = (0..steps.len()).filter(|it| steps[*it].stored).collect();
    let (index, places) = (if *small { "u32" } else { "u64" }, reads.len() + stored.len());
    let mut text = format!(
        "  for ({index} g = blockIdx.x * ({index}){BLOCK} + threadIdx.x; g < ({index})p.count; g += gridDim.x * \
         ({index}){BLOCK}) {{\n    u64 at[{places}];\n    locate<{index}, {places}, {constants}>(p, g, at);\n"
    );
    // Writing to a string does not fail.
    for (at, Read { dtype, repeated }) in reads.iter().enumerate() {
        let (dtype, read) = (named(*dtype), if *repeated { "repeat" } else { "load" });
        let _ =
            writeln!(text, "    const Pack<{dtype}, {width}> x{at} = {read}<{dtype}, {width}>(at[{at}]);");
    }
    for at in &stored {
        let _ = writeln!(text, "    Pack<{}, {width}> y{at};", named(steps[*at].out));
    }
    let _ = writeln!(text, "#pragma unroll\n    for (int v = 0; v < {width}; ++v) {{");
    for (at, step) in steps.iter().enumerate() {
        let _ = write!(text, "{}", statement(step, at, *width));
    }
    text += "    }\n";
    for (place, at) in stored.iter().enumerate() {
        let (out, place) = (named(steps[*at].out), reads.len() + place);
        let _ = writeln!(text, "    save<{out}, {width}>(at[{place}], y{at});");
    }
    text + "  }\n"
}

/// What a step does for one element: `r` and its number is the result.
fn statement(step: &Step, at: usize, width: usize) -> String {
    let Step { function, args, out, computed, stored } = step;
    let value = |arg: &Operand| match arg {
        Operand::Read(place) => format!("up<C>(x{place}.e[v])"),
        Operand::Step(step, dtype) => format!("up<C>(bits<{}>(r{step}))", named(*dtype)),
        Operand::Constant(number) if computed.is_float() => format!("(C)bits<f64>(p.constant[{number}])"),
        Operand::Constant(number) => format!("(C)p.constant[{number}]"),
    };
    let values: Vec<String> = args.iter().map(value).collect();
    let mut text = String::new();
    let result = match function {
        Function::Op(_) | Function::Move => {
            for (name, value) in ["a", "b", "c"].iter().zip(&values) {
                let _ = writeln!(text, "        const C {name} = {value};");
            }
            match function {
                Function::Op(op) if *op != Op::BitCast => {
                    let expression = expression::operator(*op, *computed).unwrap_or_default();
                    format!("(C)({expression})")
                }
                _ => "a".to_owned(),
            }
        }
        Function::Iota => match values.as_slice() {
            [start, step] => format!("(C)({start} + {step} * (i64)((u64)g * {width} + v))"),
            _ => String::new(),
        },
        Function::Combine(op) => {
            let expression = expression::step(*op, *computed).unwrap_or_default();
            for (number, value) in values.iter().enumerate() {
                let _ = match number {
                    0 => writeln!(text, "        C r = {value};"),
                    _ => writeln!(text, "        {{ const C a = r, b = {value}; r = {expression}; }}"),
                };
            }
            match op {
                ReduceOp::Avg => format!("r / (C){}", values.len()),
                _ => "r".to_owned(),
            }
        }
    };
    let (out, kept) = (named(*out), if *stored { format!("y{at}.e[v] = ") } else { String::new() });
    format!(
        "      {out} r{at};\n      {{\n        typedef {} C;\n{text}        {kept}r{at} = down(To<{out}>(), {result});\n      \
         }}\n",
        computed.name()
    )
}
