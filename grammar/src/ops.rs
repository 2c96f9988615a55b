//! The op table: one definition for each operator of host programs and HostUnits.
//!
//! A definition gives the spelling, the operands, the attributes, the type rule, the class and a line of
//! documentation. The parser, the printer, the verifier, the planner and the passes read the definitions
//! instead of listing operators. CONTRIBUTING.md says what else a new operator needs. `attr` declares the attribute keys
//! with the types of their values, and `words` declares the keywords that some of them take.

mod definition;
mod lookup;
mod shorthand;

use self::shorthand::*;
use crate::attr::{OperandKind, *};

pub use definition::{AccessMode, Arity, AsmFormat, OpClass, OpDef, OperandDef};

/// Declares the operator enum and the table from one list.
macro_rules! table {
    ($($(#[doc = $doc:literal])+ $op:ident = $row:expr;)*) => {
        /// An operator; `def` returns its definition.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op { $($(#[doc = $doc])+ $op,)* }

        /// The op table, in the order of `Op`.
        pub static OPS: &[OpDef] = &[$(OpDef { op: Op::$op, doc: concat!($($doc),+), ..$row }),*];
    };
}

table! {
    // ---- streams and synchronization
    /// Makes a stream current: the statements that follow are issued on it.
    SetCurrentStream = OpDef { mnemonic: "SetCurrentStream", args: &[no_access("stream", OperandKind::Stream)],
        class: OpClass::Stream, ..STATEMENT_DEF };
    /// Captures the current stream.
    GetCurrentStream = OpDef { mnemonic: "GetCurrentStream", format: AsmFormat::Call,
        outs: &[operand("stream", OperandKind::Stream, AccessMode::Bind, Arity::One)], args: &[], class: OpClass::Stream,
        ..DEFAULT_DEF };
    /// Blocks the host until the current stream has finished the work issued so far, as `Tensor.item()` does.
    SynchronizeHost = OpDef { mnemonic: "Synchronize", args: &[attr(SYNC_TARGET)], class: OpClass::Stream,
        ..STATEMENT_DEF };
    /// Makes the current stream wait for the work issued so far on another stream.
    Synchronize = OpDef { mnemonic: "Synchronize", args: &[no_access("stream", OperandKind::Stream)],
        class: OpClass::Stream, ..STATEMENT_DEF };
    /// Delays the free of a tensor's storage until a stream has finished the work issued to it before, as `Tensor.record_stream` does.
    RecordStream = OpDef { mnemonic: "RecordStream",
        args: &[no_access("tensor", OperandKind::Tensor), no_access("stream", OperandKind::Stream)], class: OpClass::Stream,
        ..STATEMENT_DEF };
    /// Ends the loop whose body it begins where a tensor is false.
    While = OpDef { mnemonic: "WHILE", args: &[read("condition")], class: OpClass::Condition, ..STATEMENT_DEF };
    /// Makes the current stream wait for a posted communication; with the CUDA backend, only for what peers do.
    Wait = OpDef { mnemonic: "Wait", args: &[attr(WORK)], class: OpClass::Wait, ..STATEMENT_DEF };

    // ---- communication
    /// A collective of a team; `root` is an index into the team.
    Communication = OpDef { mnemonic: "Communication", format: AsmFormat::Numbered,
        attrs: &[attr(TYPE), attr(TEAM), opt(ROOT), opt(RED_OP), reads(INPUT), writes(OUTPUT), opt(BACKEND),
            opt(ALGO), opt(EPILOGUE), opt(MULTICAST_PROTOCOL)], type_rule: TypeRule::Communicate, class: OpClass::Communicate, ..STATEMENT_DEF };
    /// One side of a transfer between two ranks; `peer` is a world rank.
    P2PCommunication = OpDef { mnemonic: "P2PCommunication", format: AsmFormat::Numbered,
        attrs: &[attr(P2P_TYPE), keyed(BUFFER, AccessMode::Transfer, Arity::One), attr(PEER), opt(BACKEND),
            opt(PROTOCOL)], class: OpClass::Communicate, ..STATEMENT_DEF };
    /// Each rank of a team sends to one rank and receives from one; peers are indices into the team.
    CollectivePermute = OpDef { mnemonic: "CollectivePermute", format: AsmFormat::Numbered,
        attrs: &[attr(TEAM), attr(SEND_PEER), attr(RECV_PEER), reads(INPUT), writes(OUTPUT), opt(BACKEND)],
        type_rule: TypeRule::Communicate, class: OpClass::Communicate, ..STATEMENT_DEF };
    /// Begins a group of P2PCommunications that are posted together.
    StartCoalescing = OpDef { mnemonic: "StartCoalescing", format: AsmFormat::Bare, class: OpClass::Coalescing, ..STATEMENT_DEF };
    /// Ends the group and posts it; its number identifies the group.
    EndCoalescing = OpDef { mnemonic: "EndCoalescing", format: AsmFormat::Bare, class: OpClass::Coalescing, ..STATEMENT_DEF };
    /// Exchanges memory handles of the buffers of the listed transfers with the peers; blocks the host.
    ShareMemHandles = OpDef { mnemonic: "ShareMemHandles", args: &[attr(TRANSFERS)], class: OpClass::ShareHandles,
        ..STATEMENT_DEF };
    /// Sends each token to the ranks of its experts.
    Dispatch = OpDef { mnemonic: "Dispatch", format: AsmFormat::Numbered,
        attrs: &[attr(NUM_EXPERTS), opt(BACKEND), reads(IN), reads(TOPK_IDX), reads(TOPK_WEIGHTS),
            writes(OUT)], class: OpClass::Communicate, ..STATEMENT_DEF };
    /// Returns each token from its experts.
    Combine = OpDef { mnemonic: "Combine", format: AsmFormat::Numbered,
        attrs: &[opt(BACKEND), reads(IN), reads(TOPK_WEIGHTS), reads(SRC_IDX), writes(OUT)],
        class: OpClass::Communicate, ..STATEMENT_DEF };

    // ---- memory, views, launches
    /// Allocates storage for a tensor, unless its name is already bound.
    AllocateOnce = OpDef { mnemonic: "ALLOCATE", format: AsmFormat::Call, outs: BIND, args: &[],
        attrs: &[attr(BUFFER), attr(MEM_TYPE), attr(SIZE), attr(ZERO_INIT), opt(RESETS_TO_ZERO), opt(ALIAS), opt(POOL)],
        class: OpClass::Allocate, ..DEFAULT_DEF };
    /// Allocates new storage for a tensor at each execution.
    Allocate = OpDef { mnemonic: "ALLOCATE", format: AsmFormat::Call, outs: BIND, args: &[],
        attrs: &[attr(MEM_TYPE), attr(ZERO_INIT), opt(POOL)], class: OpClass::Allocate, ..DEFAULT_DEF };
    /// Releases a name; the storage is freed when no view and no posted work uses it.
    Deallocate = OpDef { mnemonic: "Deallocate", format: AsmFormat::Block,
        args: &[no_access("tensor", OperandKind::Tensor)], class: OpClass::Deallocate, ..STATEMENT_DEF };
    /// Binds a name to one index of an axis of another tensor.
    HirAliasSelect = OpDef { mnemonic: "HirAliasSelect", outs: BIND, args: &[no_access("in", OperandKind::Tensor)],
        attrs: &[attr(AXIS), attr(INDEX)], type_rule: TypeRule::Select, class: OpClass::View, ..DEFAULT_DEF };
    /// Binds a name to one stream's chunk of another tensor.
    ShardByStream = OpDef { mnemonic: "ShardByStream", format: AsmFormat::Call, outs: BIND,
        args: &[no_access("in", OperandKind::Tensor)], attrs: &[attr(STREAM_INDEX)], type_rule: TypeRule::Shard,
        class: OpClass::View, ..DEFAULT_DEF };
    /// Binds a name to all ranks' shards of a symmetric tensor, as one tensor.
    SymmetricContiguousView = OpDef { mnemonic: "SymmetricContiguousView", format: AsmFormat::Call, outs: BIND,
        args: &[no_access("in", OperandKind::Tensor)], class: OpClass::View, ..DEFAULT_DEF };
    /// Runs a kernel whose code is not in the text; `kernel=` may name one.
    LaunchKernel = OpDef { mnemonic: "LaunchKernel", format: AsmFormat::Launch,
        attrs: &[opt(GROUP_ID), reads(INPUTS), writes(OUTPUTS), opt(KERNEL)], class: OpClass::Opaque,
        ..STATEMENT_DEF };
    /// Runs a HostUnit.
    PostOnStream = OpDef { mnemonic: "PostOnStream", format: AsmFormat::Post, args: &[attr(UNIT)],
        attrs: &[reads(INPUTS), writes(OUTPUTS)], class: OpClass::HostUnit, ..STATEMENT_DEF };

    // ---- copies and shapes
    /// Copies a tensor; becomes a resharding if the shardings differ.
    Set = OpDef { attrs: &[opt(CACHE_OP)], ..call("Set", TypeRule::Same) };
    /// Copies a tensor with its axes in another order.
    Permute = OpDef { attrs: &[opt(CACHE_OP), opt(DIMS)], ..call("Set.Permute", TypeRule::Permute) };
    /// Copies a tensor at the boundary of a segment.
    SegmenterSet = OpDef { attrs: &[opt(CACHE_OP)], ..call("SegmenterSet", TypeRule::Same) };
    /// Copies to shared memory, in a scheduled kernel.
    CpAsync = call("CpAsync", TypeRule::Same);
    /// Copies to shared memory in bulk, in a scheduled kernel.
    CpAsyncBulk = call("CpAsyncBulk", TypeRule::Same);
    /// Copies a tile to shared memory, in a scheduled kernel.
    CpAsyncBulkTensorTile = call("CpAsyncBulkTensorTile", TypeRule::Same);
    /// Loads matrix fragments, in a scheduled kernel.
    LdMatrix = call("LdMatrix", TypeRule::Same);
    /// Adds axes of extent 1.
    Broadcast = OpDef { attrs: &[opt(FLAGS)], ..call("broadcast", TypeRule::Broadcast) };
    /// Removes axes of extent 1.
    Squeeze = OpDef { attrs: &[opt(FLAGS)], ..call("squeeze", TypeRule::Squeeze) };
    /// Broadcasts axes of extent 1 without storing the copies.
    Expand = OpDef { format: AsmFormat::Call, args: &[read("in"), opt(EXTENTS)], ..call("expand", TypeRule::Expand) };
    /// Changes the shape; the elements keep their row-major order.
    Reshape = OpDef { format: AsmFormat::Call, aliases: &["view"], ..call("reshape", TypeRule::Reshape) };
    /// Repeats the elements along axes.
    Repeat = OpDef { format: AsmFormat::Call, ..call("repeat", TypeRule::Unchecked) };
    /// Selects one index of an axis.
    Select = OpDef { attrs: &[attr(AXIS), attr(INDEX)], outs: BIND, class: OpClass::View, ..call("select", TypeRule::Select) };
    /// Shows complex numbers as pairs of real ones, along a new axis.
    ViewAsScalar = OpDef { format: AsmFormat::Call, args: &[read("in"), attr(AXIS)],
        ..call("view_as_scalar", TypeRule::Unchecked) };
    /// Selects a range of each axis.
    Slice = OpDef { args: &[read("in"), attr(RANGES)], ..call("slice", TypeRule::Slice) };
    /// Adds elements at the ends of axes.
    Pad = OpDef { args: &[read("in"), attr(WIDTHS)], ..call("pad", TypeRule::AlongAxis) };
    /// Concatenates tensors along an axis.
    Cat = OpDef { args: &[operand("parts", OperandKind::Value, AccessMode::Read, Arity::Many)], ..call("cat", TypeRule::AlongAxis) };

    // ---- products and reductions
    /// `x[…, k] · w[n, k]ᵀ + b[n]`.
    Linear = OpDef { format: AsmFormat::Wrapped,
        args: &[read("x"), read("weight"), operand("bias", OperandKind::Tensor, AccessMode::Read, Arity::Optional)],
        ..call("linear", TypeRule::Linear) };
    /// `a[…, m, k] · b[…, k, n]`.
    Matmul = OpDef { format: AsmFormat::Wrapped, args: &[read("a"), read("b")], ..call("matmul", TypeRule::Matmul) };
    /// A matrix product on tensor cores, in a scheduled kernel.
    Mma = OpDef { format: AsmFormat::Wrapped, args: &[read("a"), read("b")], ..call("mma", TypeRule::Unchecked) };
    /// Reduces the axes that are reduction axes of the result; consecutive reductions of one `group` are
    /// printed as one GroupedReductionOp.
    Reduction = OpDef { attrs: &[attr(OP), attr(INITIAL_VALUE), opt(ALLREDUCE), opt(GROUP)], ..call("reduction", TypeRule::Reduce) };
    /// Mean, sum of squares and count in one pass.
    Welford = OpDef { outs: &[write("avg"), write("var"), write("count")],
        args: &[operand("in", OperandKind::Value, AccessMode::Read, Arity::Many)], attrs: &[opt(ALLREDUCE)],
        ..call("Welford", TypeRule::Welford) };
    /// Prefix scan along an axis.
    Scan = OpDef { format: AsmFormat::Call, attrs: &[opt(DIM), opt(SCAN_OP), opt(OP_TYPE), opt(INIT)],
        ..call("scan", TypeRule::AlongAxis) };

    // ---- element by element
    /// Sum.
    Add = infix("+");
    /// Difference.
    Sub = infix("-");
    /// Product.
    Mul = infix("*");
    /// Quotient; integers truncate toward zero.
    Div = infix("/");
    /// Remainder; has the sign of the left operand.
    Mod = infix("%");
    /// Left shift.
    Shl = infix("<<");
    /// Arithmetic right shift.
    Shr = infix(">>");
    /// Equal.
    Eq = infix("==");
    /// Not equal.
    Ne = infix("!=");
    /// Less.
    Lt = infix("<");
    /// Less or equal.
    Le = infix("<=");
    /// Greater.
    Gt = infix(">");
    /// Greater or equal.
    Ge = infix(">=");
    /// Logical and.
    LogicalAnd = infix("&&");
    /// Logical or.
    LogicalOr = infix("||");
    /// Bitwise and.
    BitAnd = infix("&");
    /// Bitwise or.
    BitOr = infix("|");
    /// Bitwise exclusive or.
    BitXor = infix("^");
    /// Maximum; propagates NaNs.
    Max = binary("max");
    /// Minimum; propagates NaNs.
    Min = binary("min");
    /// Maximum; ignores NaNs.
    FMax = binary("fmax");
    /// Minimum; ignores NaNs.
    FMin = binary("fmin");
    /// Power.
    Pow = binary("pow");
    /// Two-argument arc tangent.
    Atan2 = OpDef { aliases: &["atan2f"], ..binary("atan2") };
    /// Floating-point remainder with the sign of the left operand.
    Fmod = OpDef { aliases: &["fmodf"], ..binary("fmod") };
    /// Remainder with the sign of the divisor, as in Python.
    Remainder = binary("remainder");
    /// Next representable number.
    NextAfter = binary("nextafter");
    /// Greatest common divisor.
    Gcd = binary("gcd");
    /// Quotient rounded up.
    CeilDiv = binary("ceilDiv");
    /// A complex number from a real and an imaginary part.
    Complex = binary("std::complex");
    /// Negation.
    Neg = OpDef { aliases: &["neg"], ..prefix("-") };
    /// Logical negation.
    LogicalNot = prefix("!");
    /// Bitwise complement.
    BitNot = prefix("~");
    /// Conversion to the result's element type.
    Cast = OpDef { type_rule: TypeRule::Cast, ..unary("cast") };
    /// Reinterprets the bits as another element type.
    BitCast = OpDef { type_rule: TypeRule::Cast, ..unary("bit_cast") };
    /// Absolute value.
    Abs = OpDef { aliases: &["fabs"], ..unary("abs") };
    /// Inverse cosine.
    Acos = OpDef { aliases: &["acosf"], ..unary("acos") };
    /// Inverse hyperbolic cosine.
    Acosh = OpDef { aliases: &["acoshf"], ..unary("acosh") };
    /// Inverse sine.
    Asin = OpDef { aliases: &["asinf"], ..unary("asin") };
    /// Inverse hyperbolic sine.
    Asinh = OpDef { aliases: &["asinhf"], ..unary("asinh") };
    /// Inverse tangent.
    Atan = OpDef { aliases: &["atanf"], ..unary("atan") };
    /// Inverse hyperbolic tangent.
    Atanh = OpDef { aliases: &["atanhf"], ..unary("atanh") };
    /// Rounds up.
    Ceil = OpDef { aliases: &["ceilf"], ..unary("ceil") };
    /// Cosine.
    Cos = OpDef { aliases: &["cosf"], ..unary("cos") };
    /// Hyperbolic cosine.
    Cosh = OpDef { aliases: &["coshf"], ..unary("cosh") };
    /// Exponential.
    Exp = OpDef { aliases: &["expf"], ..unary("exp") };
    /// Power of two.
    Exp2 = OpDef { aliases: &["exp2f"], ..unary("exp2") };
    /// Exponential minus one.
    Expm1 = OpDef { aliases: &["expm1f"], ..unary("expm1") };
    /// Error function.
    Erf = OpDef { aliases: &["erff"], ..unary("erf") };
    /// Complementary error function.
    Erfc = OpDef { aliases: &["erfcf"], ..unary("erfc") };
    /// Inverse error function.
    ErfInv = OpDef { aliases: &["erfinvf"], ..unary("erfinv") };
    /// Inverse complementary error function.
    ErfcInv = OpDef { aliases: &["erfcinvf"], ..unary("erfcinv") };
    /// Rounds down.
    Floor = OpDef { aliases: &["floorf"], ..unary("floor") };
    /// Fractional part.
    Frac = unary("frac");
    /// Logarithm of the absolute gamma function.
    LGamma = OpDef { aliases: &["lgammaf"], ..unary("lgamma") };
    /// Natural logarithm.
    Log = OpDef { aliases: &["logf"], ..unary("log") };
    /// Logarithm to base 10.
    Log10 = OpDef { aliases: &["log10f"], ..unary("log10") };
    /// Logarithm of one plus x.
    Log1p = OpDef { aliases: &["log1pf"], ..unary("log1p") };
    /// Logarithm to base 2.
    Log2 = OpDef { aliases: &["log2f"], ..unary("log2") };
    /// Reciprocal.
    Reciprocal = unary("reciprocal");
    /// Rectified linear unit: negative elements become zero.
    Relu = unary("relu");
    /// Reciprocal of the square root.
    Rsqrt = OpDef { aliases: &["rsqrtf"], ..unary("rsqrt") };
    /// Rounds to the nearest integer, halves to even.
    Round = OpDef { aliases: &["nearbyint", "nearbyintf", "roundf"], ..unary("round") };
    /// Logistic function.
    Sigmoid = unary("sigmoid");
    /// True if the sign bit is set.
    SignBit = unary("signbit");
    /// `x · sigmoid(x)`.
    Silu = unary("silu");
    /// Sine.
    Sin = OpDef { aliases: &["sinf"], ..unary("sin") };
    /// Hyperbolic sine.
    Sinh = OpDef { aliases: &["sinhf"], ..unary("sinh") };
    /// Square root.
    Sqrt = OpDef { aliases: &["sqrtf"], ..unary("sqrt") };
    /// Tangent.
    Tan = OpDef { aliases: &["tanf"], ..unary("tan") };
    /// Hyperbolic tangent.
    Tanh = OpDef { aliases: &["tanhf"], ..unary("tanh") };
    /// Rounds toward zero.
    Trunc = OpDef { aliases: &["truncf"], ..unary("trunc") };
    /// Smallest power of two that is not less than the operand.
    BitCeil = unary("bit_ceil");
    /// True if the operand is neither infinite nor NaN.
    IsFinite = unary("isfinite");
    /// True if the operand is infinite.
    IsInf = unary("isinf");
    /// True if the operand is NaN.
    IsNan = unary("isnan");
    /// True if the operand is minus infinity.
    IsNegInf = unary("isneginf");
    /// True if the operand is plus infinity.
    IsPosInf = unary("isposinf");
    /// True if the imaginary part is zero.
    IsReal = unary("isreal");
    /// Real part.
    Real = unary("std::real");
    /// Imaginary part.
    Imag = unary("std::imag");
    /// `b` where `a` is true, else `c`.
    Where = ternary("where");
    /// `a` clamped to the range from `b` to `c`; `c` if `b` is greater.
    Clamp = ternary("clamp");
    /// `a + c · (b − a)`; computed from `b` where `c ≥ ½`, as in nvFuser.
    Lerp = ternary("lerp");
    /// `c` where `a ≤ b`, else `a`.
    Threshold = ternary("threshold");
    /// 64 random bits of element `a`, for the seed `b` and the offset `c`: words 0 and 1 of Philox4x32-10.
    Philox = ternary("philox");

    // ---- generators
    /// A tensor filled with one value.
    Full = OpDef { format: AsmFormat::Function, args: &[attr(SHAPE), no_access("value", OperandKind::Scalar)],
        ..call("full", TypeRule::Generate) };
    /// An arithmetic progression.
    Iota = OpDef { format: AsmFormat::Function,
        args: &[no_access("length", OperandKind::Scalar), no_access("start", OperandKind::Scalar),
            no_access("step", OperandKind::Scalar), attr(DTYPE)], ..call("iota", TypeRule::Generate) };
    /// An identity matrix.
    Eye = OpDef { format: AsmFormat::Function, args: &[no_access("length", OperandKind::Scalar), attr(DTYPE)],
        ..call("eye", TypeRule::Generate) };
    /// Uniform random numbers in [0, 1).
    RngUniform = OpDef { format: AsmFormat::Function, args: &[attr(SHAPE), attr(DTYPE), SEED],
        attrs: &[opt(RNG_OFFSET)],
        ..call("rng_uniform", TypeRule::Generate) };
    /// Uniform random numbers in [low, high).
    RngUniformRange = OpDef { format: AsmFormat::Function,
        args: &[attr(SHAPE), no_access("low", OperandKind::Scalar), no_access("high", OperandKind::Scalar), attr(DTYPE), SEED],
        attrs: &[opt(RNG_OFFSET)],
        ..call("rng_uniform_range", TypeRule::Generate) };
    /// Random numbers from the standard normal distribution.
    RngNormal = OpDef { format: AsmFormat::Function, args: &[attr(SHAPE), attr(DTYPE), SEED],
        attrs: &[opt(RNG_OFFSET)],
        ..call("rng_normal_standard", TypeRule::Generate) };
    /// Random numbers from a normal distribution with the given mean and deviation.
    RngNormalGeneral = OpDef { format: AsmFormat::Function,
        args: &[attr(SHAPE), no_access("mean", OperandKind::Scalar), no_access("deviation", OperandKind::Scalar), attr(DTYPE),
            SEED], attrs: &[opt(RNG_OFFSET)],
        ..call("rng_normal_general", TypeRule::Generate) };

    /// A tensor of a scalar or of an array of scalars.
    TensorConstruct = OpDef { format: AsmFormat::Call, args: &[operand("in", OperandKind::Scalar, AccessMode::Read, Arity::One)],
        ..call("TensorConstruct", TypeRule::Unchecked) };

    /// A tensor of the elements that these bytes are.
    Constant = OpDef { format: AsmFormat::Call, args: &[attr(BYTES)], ..call("Constant", TypeRule::Generate) };

    // ---- indexing and sorting
    /// Selects indices of an axis.
    IndexSelect = OpDef { aliases: &["index_select"], args: &[read("in"), read("index")], attrs: &[attr(DIM)],
        ..call("indexSelect", TypeRule::AlongAxis) };
    /// Selects elements along an axis and broadcasts the other axes.
    TakeAlongAxis = OpDef { args: &[read("in"), read("index")], attrs: &[attr(DIM)], ..call("takeAlongAxis", TypeRule::AlongAxis) };
    /// Selects elements along an axis.
    TorchGather = OpDef { args: &[read("in"), read("index")], attrs: &[attr(DIM)], ..call("torchGather", TypeRule::AlongAxis) };
    /// Writes elements along an axis.
    Scatter = OpDef { format: AsmFormat::Call, args: &[], attrs: &[reads(IN), attr(DIM), reads(SRC), reads(IDX), opt(ACCUMULATE)],
        ..call("scatter", TypeRule::AlongAxis) };
    /// Adds rows at the given indices.
    IndexPutAccumulate = OpDef { args: &[read("in"), read("index"), read("value")], ..call("indexPutAccumulate", TypeRule::Unchecked) };
    /// Selects rows of a table.
    Embedding = OpDef { format: AsmFormat::Call,
        args: &[read("in"), read("weight"), operand("options", OperandKind::Value, AccessMode::Read, Arity::Many)],
        attrs: &[opt(PADDING_IDX), opt(MAX_NORM), opt(NORM_TYPE), opt(SCALE_GRAD_BY_FREQ), opt(SPARSE)],
        ..call("embedding", TypeRule::Embedding) };
    /// The largest or smallest elements and their indices.
    TopK = OpDef { format: AsmFormat::Call, outs: &[write("values"), write("indices")],
        args: &[read("in"), no_access("k", OperandKind::Scalar)], attrs: &[attr(DIM), attr(LARGEST), attr(SORTED)],
        ..call("topk", TypeRule::AlongAxis) };
    /// The indices that sort an axis.
    ArgSort = OpDef { format: AsmFormat::Call, attrs: &[attr(DIM), attr(DESCENDING), attr(STABLE)],
        ..call("argsort", TypeRule::AlongAxis) };

    // ---- library calls
    /// Scaled dot-product attention, its logarithm of sums, and the state of random numbers.
    Sdpa = OpDef { format: AsmFormat::Call, outs: &[operand("out", OperandKind::Tensor, AccessMode::Write, Arity::Many)],
        args: &[operand("in", OperandKind::Value, AccessMode::Read, Arity::Many)],
        attrs: &[opt_read(BIAS), opt_read(MASK), opt(DROPOUT_P), opt(IS_CAUSAL), opt(SCALE), opt(RNG_OFFSET)],
        ..call("sdpa", TypeRule::Sdpa) };
    /// Gradient of scaled dot-product attention.
    SdpaBwd = OpDef { format: AsmFormat::Call, outs: &[operand("out", OperandKind::Tensor, AccessMode::Write, Arity::Many)],
        args: &[operand("in", OperandKind::Value, AccessMode::Read, Arity::Many)],
        attrs: &[opt_read(LOGSUM_EXP), opt_read(BIAS), opt_read(MASK), opt(DROPOUT_P), opt(IS_CAUSAL),
            opt_read(PHILOX_SEED), opt_read(PHILOX_OFFSET), opt(SCALE)], ..call("sdpa_bwd", TypeRule::SdpaBwd) };
    /// One matrix product per group.
    GroupedMma = OpDef { format: AsmFormat::Call, outs: &[operand("out", OperandKind::Tensor, AccessMode::Write, Arity::Many)],
        args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(OFFSETS), opt_read(SCALE1), opt_read(SCALE2),
            opt_read(ALPHA), opt_read(BIAS), opt_read(BETA)], ..call("GroupedMmaOp", TypeRule::Scaled) };
    /// A matrix product of scaled operands.
    ScaledMma = OpDef { format: AsmFormat::Call, outs: &[operand("out", OperandKind::Tensor, AccessMode::Write, Arity::Many)],
        args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(SCALE1), reads(SCALE2), opt_read(ALPHA), opt_read(BIAS),
            opt_read(BETA)], ..call("ScaledMmaOp", TypeRule::Scaled) };
    /// One product of block-scaled fp4 matrices per group.
    CutlassGroupedMma = OpDef { format: AsmFormat::Call, args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(SCALE1), reads(SCALE2), reads(ALPHA), reads(PROBLEM_SIZES),
            reads(EXPERT_OFFSETS), reads(SF_OFFSETS)], ..call("CutlassNvfp4GroupedMmaOp", TypeRule::Unchecked) };
    /// Quantises blocks and computes their scales.
    BlockQuantize = OpDef { format: AsmFormat::Call, outs: &[write("scales"), write("quantized")],
        args: &[operand("in", OperandKind::Value, AccessMode::Read, Arity::Many)], ..call("block_quantize", TypeRule::Unchecked) };
    /// Quantises the blocks of each group and computes their scales, in the layout that a grouped matrix product requires.
    GroupedBlockQuantize = OpDef { format: AsmFormat::Call, outs: &[write("quantized"), write("scales")],
        args: &[operand("in", OperandKind::Value, AccessMode::Read, Arity::Many)],
        ..call("grouped_block_quantize", TypeRule::Unchecked) };
    /// Arranges the scales of each group in the layout that a grouped matrix product requires.
    PreprocessGroupedScales = OpDef { format: AsmFormat::Wrapped, args: &[],
        attrs: &[reads(INPUT), reads(INPUT_OFFSETS), reads(OUTPUT_OFFSETS), attr(LAYOUT)],
        ..call("preprocessGroupedMatmulInputSf", TypeRule::Unchecked) };
}

/// The names of the type rules, which operators share. `rules` has a file for each, which says what the rule is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TypeRule {
    /// Computes no tensor.
    Statement,
    /// Results that hir does not check.
    Unchecked,
    /// Copies.
    Same,
    /// Conversions of elements.
    Cast,
    /// Element by element.
    Pointwise,
    /// Broadcasts axes of extent 1.
    Expand,
    /// `x[…, k] · w[n, k]ᵀ + b[n]`.
    Linear,
    /// `a[…, m, k] · b[…, k, n]`.
    Matmul,
    /// Products with scales, or for each group.
    Scaled,
    /// Scaled dot-product attention.
    Sdpa,
    /// Its gradient.
    SdpaBwd,
    /// Reductions of axes.
    Reduce,
    /// Statistics of axes.
    Welford,
    /// New axes.
    Broadcast,
    /// Fewer axes, without those of extent 1.
    Squeeze,
    /// Another order of the axes.
    Permute,
    /// Another shape.
    Reshape,
    /// One index of an axis.
    Select,
    /// Ranges of axes.
    Slice,
    /// A chunk along the stream axis.
    Shard,
    /// Works along one axis: concatenation, scans, sorting, indexing.
    AlongAxis,
    /// Rows of a table.
    Embedding,
    /// Communications.
    Communicate,
    /// Each element depends only on its index.
    Generate,
}
