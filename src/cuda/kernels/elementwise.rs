//! Fused elementwise kernels: operators, conversions, strided copies, fills, and reductions over ranks. An
//! operation takes the result of an earlier one from a register, rounded as if it had been stored.

use std::fmt::Write;

use grammar::{DType, Op};

use super::{
    BLOCK, ComputeType, DeviceView, ElementwiseKernel, FusedOp, Kernel, Launch, Load, MAX_ACCESS_BYTES,
    MAX_PARAM_WORDS, Operand, ScalarFunction, check_dtypes, expression, float_compute_type,
    integer_compute_type,
    shape::{merge_dims, merge_dims_in_any_order},
    transpose::transpose_launch,
    type_name,
};
use crate::unsupported::Unsupported;
use hir_plan::Number;

/// An operand of an elementwise operation.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ElementwiseArg<'a> {
    /// Elements of the result's shape.
    View(DeviceView<'a>),
    /// One value for all elements.
    Number(Number),
}

/// An elementwise operation on views.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ElementwiseOp<'a> {
    pub function: ScalarFunction,
    pub args: Vec<ElementwiseArg<'a>>,
    pub out: DeviceView<'a>,
    /// Whether the result is stored in memory. If not, only later operations of the kernel use it.
    pub is_stored: bool,
}

impl<'a> ElementwiseOp<'a> {
    /// Creates an operation whose result is stored.
    pub fn new(function: ScalarFunction, args: Vec<ElementwiseArg<'a>>, out: DeviceView<'a>) -> Self {
        Self { function, args, out, is_stored: true }
    }

    /// Creates a copy, which converts elements to the type of the result.
    pub fn convert(from: DeviceView<'a>, to: DeviceView<'a>) -> Self {
        Self::new(ScalarFunction::Convert, vec![ElementwiseArg::View(from)], to)
    }

    /// Returns the operands that are views.
    pub fn views(&self) -> impl Iterator<Item = &DeviceView<'a>> {
        self.args.iter().filter_map(|it| match it {
            ElementwiseArg::View(it) => Some(it),
            ElementwiseArg::Number(_) => None,
        })
    }
}

/// Returns the last of the `earlier` operations that writes the elements of a view.
fn defining_op(earlier: &[ElementwiseOp], view: &DeviceView) -> Option<usize> {
    earlier.iter().rposition(|it| it.out.has_same_elements(view))
}

/// The views and constants of a fused kernel.
#[derive(Default)]
pub(super) struct Parameters<'a> {
    /// The views: first those that are loaded.
    pub views: Vec<DeviceView<'a>>,
    /// The element type as which each view is loaded.
    pub types: Vec<DType>,
    pub constants: Vec<u64>,
}

impl<'a> Parameters<'a> {
    /// Returns the index of a view that is loaded.
    pub fn read(&mut self, view: &DeviceView<'a>, dtype: DType) -> usize {
        let pairs = self.views.iter().zip(&self.types);
        let known =
            pairs.into_iter().position(|(loaded, known)| loaded.has_same_elements(view) && *known == dtype);
        known.unwrap_or_else(|| {
            self.views.push(*view);
            self.types.push(dtype);
            self.views.len() - 1
        })
    }

    /// Returns the index of a constant.
    pub fn constant(&mut self, number: Number, computed: ComputeType) -> usize {
        self.constants.push(constant(number, computed));
        self.constants.len() - 1
    }
}

/// Prepares one kernel for consecutive operations of the same shape; returns `None` if there is nothing to
/// do. Any two views either have the same elements or are disjoint.
///
/// # Errors
/// The kernels do not support an element type or an operator, or the operands exceed a kernel's parameters.
pub(crate) fn elementwise_launch(ops: &[ElementwiseOp]) -> Result<Option<Launch>, Unsupported> {
    let Some(first) = ops.first() else { return Ok(None) };
    let shape = &first.out.view.shape;
    let (mut fused, mut parameters) = (Vec::with_capacity(ops.len()), Parameters::default());
    for (at, op) in ops.iter().enumerate() {
        fused.push(fused_op(op, &|view| defining_op(&ops[..at], view), &mut parameters)?);
        let views = op.views().chain([&op.out]);
        if let Some(it) = views.into_iter().find(|it| it.view.shape != *shape) {
            return Err(format!("operands have different shapes: {:?} and {shape:?}", it.view.shape).into());
        }
    }
    if first.out.view.is_empty() {
        return Ok(None);
    }
    let Parameters { mut views, types, mut constants } = parameters;
    views.extend(ops.iter().filter(|it| it.is_stored).map(|it| it.out));
    let strides: Vec<&[usize]> = views.iter().map(|it| it.view.strides.as_slice()).collect();
    // The elements of an arithmetic progression depend on their index.
    let is_indexed = ops.iter().any(|it| it.function == ScalarFunction::Iota);
    let merge = if is_indexed { merge_dims } else { merge_dims_in_any_order };
    let merged = merge(shape, &strides).checked()?;
    if let Some(launch) = transpose_launch(&fused, &merged, &views) {
        return Ok(Some(launch));
    }
    let sizes: Vec<usize> = views.iter().map(|it| it.dtype.size()).collect();
    let addresses: Vec<u64> = views.iter().map(|it| it.address).collect();
    let most = MAX_ACCESS_BYTES / sizes.iter().max().copied().unwrap_or(1).max(1);
    let width = merged.width(most, &addresses, &sizes);
    let last = merged.extents.len() - 1;
    let count = (first.out.view.len() / width) as u64;
    let read = |(at, dtype): (usize, DType)| Load {
        dtype,
        is_broadcast: width > 1 && merged.strides[at][last] == 0,
    };
    let reads = types.into_iter().enumerate().map(read).collect();

    // A C++ array has at least one element.
    constants.resize(constants.len().max(1), 0);
    let mut words = addresses;
    words.extend(sizes.iter().enumerate().flat_map(|(at, size)| merged.stride_words(at, *size, width)));
    words.extend(merged.extent_words(width));
    words.extend([merged.extents.len() as u64, count]);
    words.extend(&constants);
    if words.len() > MAX_PARAM_WORDS {
        return Err(format!("{} operands, more than a kernel takes", sizes.len()).into());
    }
    let kernel = ElementwiseKernel {
        reads,
        ops: fused,
        constants: constants.len(),
        width,
        uses_32_bit_index: count < 1 << 31,
    };
    Ok(Some(Launch {
        kernel: Kernel::Elementwise(kernel),
        params: words,
        blocks: count.div_ceil(u64::from(BLOCK)),
    }))
}

/// Translates an operation; `defining` returns the index of the earlier operation that computes a view.
pub(super) fn fused_op<'a>(
    op: &ElementwiseOp<'a>,
    defining: &dyn Fn(&DeviceView) -> Option<usize>,
    parameters: &mut Parameters<'a>,
) -> Result<FusedOp, Unsupported> {
    let ElementwiseOp { function, args, out, is_stored: stored } = op;
    check_dtypes(op.views().map(|it| it.dtype).chain([out.dtype]))?;
    let (function, computed) = choose_compute_type(*function, args, out.dtype)?;
    // Copies without conversion move the bits as unsigned integers.
    let is_raw = match (function, args.as_slice()) {
        (ScalarFunction::Op(Op::BitCast), _) => true,
        (ScalarFunction::Convert, [ElementwiseArg::View(it)]) => it.dtype == out.dtype,
        _ => false,
    };
    let raw = |dtype: DType| if is_raw { unsigned(dtype.size()) } else { dtype };
    let computed = if is_raw { ComputeType::U64 } else { computed };
    let operand = |arg: &ElementwiseArg<'a>| match arg {
        ElementwiseArg::Number(it) => Operand::Constant(parameters.constant(*it, computed)),
        ElementwiseArg::View(it) => match defining(it) {
            Some(number) => Operand::OpResult(number, raw(it.dtype)),
            None => Operand::Load(parameters.read(it, raw(it.dtype))),
        },
    };
    let args = args.iter().map(operand).collect();
    Ok(FusedOp { function, args, out: raw(out.dtype), compute_type: computed, is_stored: *stored })
}

fn unsigned(size: usize) -> DType {
    match size {
        1 => DType::UInt8,
        2 => DType::UInt16,
        4 => DType::UInt32,
        _ => DType::UInt64,
    }
}

/// Returns the bits of a constant in the kernel's parameters: binary64 or a 64-bit integer. A float is
/// rounded to binary32 if that is the compute type, and truncated if the compute type is an integer.
fn constant(number: Number, computed: ComputeType) -> u64 {
    let (real, whole) = match number {
        Number::Int(it) => (it as f64, it),
        Number::Float(it) => (it, it as i64),
        Number::Bool(it) => (f64::from(u8::from(it)), i64::from(it)),
    };
    match computed {
        ComputeType::F32 => f64::from(real as f32).to_bits(),
        ComputeType::F64 => real.to_bits(),
        ComputeType::I64 | ComputeType::U64 => whole as u64,
    }
}

/// Chooses the compute type as the simulator does; rejects operations without an expression.
fn choose_compute_type(
    function: ScalarFunction,
    args: &[ElementwiseArg],
    out: DType,
) -> Result<(ScalarFunction, ComputeType), Unsupported> {
    let lacks = |op| Unsupported::Operator { op, dtype: out };
    let dtypes = || {
        args.iter().filter_map(|it| match it {
            ElementwiseArg::View(it) => Some(it.dtype),
            ElementwiseArg::Number(_) => None,
        })
    };
    let of_source = || match args.first() {
        Some(ElementwiseArg::View(it)) if it.dtype.is_integral() => {
            integer_compute_type(std::iter::once(it.dtype))
        }
        Some(ElementwiseArg::View(it)) => float_compute_type(std::iter::once(it.dtype)),
        Some(ElementwiseArg::Number(Number::Float(_))) => ComputeType::F64,
        Some(ElementwiseArg::Number(_)) | None => ComputeType::I64,
    };
    match function {
        ScalarFunction::Iota => Ok((function, ComputeType::I64)),
        ScalarFunction::Convert | ScalarFunction::Op(Op::Cast) => Ok((ScalarFunction::Convert, of_source())),
        ScalarFunction::Op(Op::BitCast) => match dtypes().next() {
            Some(from) if from.size() == out.size() => Ok((function, ComputeType::U64)),
            _ => Err(lacks(Op::BitCast)),
        },
        ScalarFunction::Reduce(op) => {
            let all = dtypes().chain([out]);
            let computed = if all.clone().all(DType::is_integral) {
                integer_compute_type(dtypes().collect::<Vec<_>>().into_iter().chain([out]))
            } else {
                float_compute_type(all)
            };
            match expression::reduction_expression(op, computed) {
                Some(_) => Ok((function, computed)),
                None => Err(Unsupported::Reduction { op, dtype: out }),
            }
        }
        ScalarFunction::Op(op) => {
            let float_number = args.iter().any(|it| matches!(it, ElementwiseArg::Number(Number::Float(_))));
            let whole = out.is_integral() && dtypes().all(DType::is_integral) && !float_number;
            let computed = if whole {
                integer_compute_type(dtypes().collect::<Vec<_>>().into_iter().chain([out]))
            } else {
                float_compute_type(dtypes().chain([out]))
            };
            // The complement of a boolean is its negation.
            let applied = if op == Op::BitNot && out == DType::Bool { Op::LogicalNot } else { op };
            match expression::operator_expression(applied, computed) {
                Some(_) => Ok((ScalarFunction::Op(applied), computed)),
                None => Err(lacks(op)),
            }
        }
    }
}

/// Returns the body of an instance: all loads of a group, then the operations for each element, then all
/// stores.
pub(super) fn body(kernel: &ElementwiseKernel) -> String {
    let ElementwiseKernel { reads, ops, constants, width, uses_32_bit_index } = kernel;
    let stored: Vec<usize> = (0..ops.len()).filter(|it| ops[*it].is_stored).collect();
    let (index, view_count) = (if *uses_32_bit_index { "u32" } else { "u64" }, reads.len() + stored.len());
    let mut text = format!(
        "  for ({index} g = blockIdx.x * ({index}){BLOCK} + threadIdx.x; g < ({index})p.count; g += gridDim.x * \
         ({index}){BLOCK}) {{\n    u64 at[{view_count}];\n    locate<{index}, {view_count}, {constants}>(p, g, at);\n"
    );
    // Writing to a string does not fail.
    for (at, Load { dtype, is_broadcast: repeated }) in reads.iter().enumerate() {
        let (dtype, read) = (type_name(*dtype), if *repeated { "repeat" } else { "load" });
        let _ =
            writeln!(text, "    const Pack<{dtype}, {width}> x{at} = {read}<{dtype}, {width}>(at[{at}]);");
    }
    for at in &stored {
        let _ = writeln!(text, "    Pack<{}, {width}> y{at};", type_name(ops[*at].out));
    }
    let _ = writeln!(text, "#pragma unroll\n    for (int v = 0; v < {width}; ++v) {{");
    for (at, op) in ops.iter().enumerate() {
        let store_prefix = if op.is_stored { format!("y{at}.e[v] = ") } else { String::new() };
        let name = |operand: &Operand| match operand {
            Operand::Load(number) => format!("x{number}.e[v]"),
            Operand::OpResult(number, _) => format!("r{number}"),
            Operand::Constant(number) => format!("p.constant[{number}]"),
        };
        let index = format!("(u64)g * {width} + v");
        let _ = write!(text, "{}", statement(op, at, &index, &store_prefix, &name));
    }
    text += "    }\n";
    for (number, at) in stored.iter().enumerate() {
        let (out, view) = (type_name(ops[*at].out), reads.len() + number);
        let _ = writeln!(text, "    save<{out}, {width}>(at[{view}], y{at});");
    }
    text + "  }\n"
}

/// Returns the statements of an operation for one element; they define `r{at}`. `index` is the index of the element,
/// `store_prefix` is put before the definition, and `name` returns the text of an operand.
pub(super) fn statement(
    op: &FusedOp,
    at: usize,
    index: &str,
    store_prefix: &str,
    name: &dyn Fn(&Operand) -> String,
) -> String {
    let FusedOp { function, args, out, compute_type: computed, is_stored: _ } = op;
    let value = |arg: &Operand| match arg {
        Operand::Load(_) => format!("widen<C>({})", name(arg)),
        Operand::OpResult(_, dtype) => format!("widen<C>(bits<{}>({}))", type_name(*dtype), name(arg)),
        Operand::Constant(_) if computed.is_float() => format!("(C)bits<f64>({})", name(arg)),
        Operand::Constant(_) => format!("(C){}", name(arg)),
    };
    let values: Vec<String> = args.iter().map(value).collect();
    let mut text = String::new();
    let result = match function {
        ScalarFunction::Op(_) | ScalarFunction::Convert => {
            for (name, value) in ["a", "b", "c"].iter().zip(&values) {
                let _ = writeln!(text, "        const C {name} = {value};");
            }
            match function {
                ScalarFunction::Op(op) if *op != Op::BitCast => {
                    let expression = expression::operator_expression(*op, *computed).unwrap_or_default();
                    format!("(C)({expression})")
                }
                _ => "a".to_owned(),
            }
        }
        ScalarFunction::Iota => match values.as_slice() {
            [start, step] => format!("(C)({start} + {step} * (i64)({index}))"),
            _ => String::new(),
        },
        ScalarFunction::Reduce(op) => {
            let expression = expression::reduction_expression(*op, *computed).unwrap_or_default();
            for (number, value) in values.iter().enumerate() {
                let _ = match number {
                    0 => writeln!(text, "        C r = {value};"),
                    _ => writeln!(text, "        {{ const C a = r, b = {value}; r = {expression}; }}"),
                };
            }
            expression::result_expression(*op, values.len())
        }
    };
    let out = type_name(*out);
    format!(
        "      {out} r{at};\n      {{\n        typedef {} C;\n{text}        {store_prefix}r{at} = narrow(To<{out}>(), {result});\n      \
         }}\n",
        computed.name()
    )
}
