//! The op table: every operator that a host program or a HostUnit may hold, one row each.
//!
//! A row gives the spelling, the operands, the attributes, the type rule, the effect and a line of documentation.
//! Reader, printer, verifier, planner and passes ask the row; none of them lists operators. To add an operator, add
//! its row, an arm in the planner when no existing effect and rule covers it, and one test file. Attributes are declared
//! in `attr`, each key with the type of its value, and the words that some of them take in `words`.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use crate::{
    attr::{AttrName, Key, Kind, Value, *},
    ids::TensorId,
};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The operator.
    pub op: Op,
    /// Its spelling.
    pub mnemonic: &'static str,
    /// Spellings of other generations that mean the same.
    pub aliases: &'static [&'static str],
    /// How the statement is laid out.
    pub syntax: Syntax,
    /// What stands left of `=`.
    pub outs: &'static [Param],
    /// Positional operands.
    pub args: &'static [Param],
    /// Keyed operands and attributes.
    pub attrs: &'static [Param],
    /// The type rule that the verifier applies.
    pub rule: Rule,
    /// What happens at run time.
    pub effect: Effect,
    /// One line for `--list-ops`.
    pub doc: &'static str,
}

/// An operand or attribute of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its key in the text; for positional operands a name for messages.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// How the operator uses it.
    pub mode: Mode,
    /// How often it occurs.
    pub count: Count,
}

/// How an operator uses an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Reads its elements.
    Read,
    /// Writes its elements.
    Write,
    /// Reads or writes, as the `type=` of the same statement says (send reads, recv writes).
    Transfer,
    /// Gives the name a storage or a view; moves no data.
    Bind,
    /// Looks at the name, shape or value only.
    Mention,
}

/// How often a parameter occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Exactly once.
    One,
    /// At most once.
    Optional,
    /// Any number of times, the last parameter only.
    Many,
}

/// How a statement is laid out in canonical text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syntax {
    /// `out = name(a, key=value)`, one line.
    Call,
    /// `out⏎   = name( a, key = value )`.
    Padded,
    /// `out⏎   = name(a,⏎            b)`.
    Wrapped,
    /// `out⏎   = name(a, b);`.
    Function,
    /// `out⏎   = a⏎   + b;`.
    Infix,
    /// `out⏎   = -a;`.
    Prefix,
    /// `name # (key=value)`.
    Numbered,
    /// `name(a)`, without a result.
    Statement,
    /// `name` or `name #`.
    Bare,
    /// `name {⏎  a⏎}`.
    Block,
    /// `PostOnStream (HostUnit5, Inputs:{a}, Outputs:{b})`.
    Post,
    /// `LaunchKernel(⏎  Group ID: 0,⏎  Inputs: {a},⏎  Outputs: {b},⏎)`.
    Launch,
}

/// Type rules, shared between rows. `verify::types` holds one function for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Nothing to check.
    Free,
    /// Same shape and element type.
    Same,
    /// Same shape; element types may differ.
    Cast,
    /// Operands broadcast to the result's shape, all of one element type but for conditions and comparisons.
    Pointwise,
    /// `x[…, k] · w[n, k]ᵀ + b[n]`.
    Linear,
    /// `a[…, m, k] · b[…, k, n]`.
    Matmul,
    /// The result has the operand's axes, some of them reductions.
    Reduce,
    /// The result has one axis a flag; the flagged ones are new.
    Broadcast,
    /// The operand has one axis a flag; the flagged ones, of extent 1, go.
    Squeeze,
    /// The same axes in another order.
    Permute,
    /// The same number of elements.
    Reshape,
    /// One axis less.
    Select,
    /// The same number of axes, none longer than the operand's.
    Slice,
    /// A chunk of the operand along its stream axis.
    Shard,
    /// The sizes and element types that the communication type asks for.
    Communicate,
    /// Without tensor operands: every element follows from its index in the whole tensor.
    Generate,
}

/// What an operator does at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Computes its results from its operands, on the current stream.
    Compute,
    /// As `Compute`, element by element: the operator names the function.
    Map,
    /// Binds its result to a view of its operand.
    View,
    /// Binds its result to storage.
    Allocate,
    /// Drops a name.
    Deallocate,
    /// Posts data movement between ranks; its number names the work.
    Communicate,
    /// Makes the current stream wait for posted work.
    Wait,
    /// Chooses, captures or joins streams.
    Stream,
    /// Brackets communications that are one posting.
    Group,
    /// Lets peers see buffers; blocks the host.
    Share,
    /// Runs a HostUnit on the current stream.
    Unit,
    /// Runs a kernel that the text does not hold.
    Opaque,
}

const fn param(name: &'static str, kind: Kind, mode: Mode, count: Count) -> Param {
    Param { name, kind, mode, count }
}

/// A positional operand that the operator only looks at.
const fn mention(name: &'static str, kind: Kind) -> Param {
    param(name, kind, Mode::Mention, Count::One)
}

const fn keyed<T: Value>(key: Key<T>, mode: Mode, count: Count) -> Param {
    param(key.name().0, T::KIND, mode, count)
}

const fn attr<T: Value>(key: Key<T>) -> Param {
    keyed(key, Mode::Mention, Count::One)
}

const fn opt<T: Value>(key: Key<T>) -> Param {
    keyed(key, Mode::Mention, Count::Optional)
}

const fn reads<T: Value>(key: Key<T>) -> Param {
    keyed(key, Mode::Read, Count::One)
}

const fn writes<T: Value>(key: Key<T>) -> Param {
    keyed(key, Mode::Write, Count::One)
}

const fn opt_read(key: Key<TensorId>) -> Param {
    keyed(key, Mode::Read, Count::Optional)
}

const fn read(name: &'static str) -> Param {
    param(name, Kind::Tensor, Mode::Read, Count::One)
}

const fn value(name: &'static str) -> Param {
    param(name, Kind::Value, Mode::Read, Count::One)
}

const fn write(name: &'static str) -> Param {
    param(name, Kind::Tensor, Mode::Write, Count::One)
}

/// Where random numbers begin; a tensor or a scalar.
const SEED: Param = param("seed", Kind::Value, Mode::Read, Count::Optional);

const RESULT: &[Param] = &[write("out")];
const BIND: &[Param] = &[param("out", Kind::Tensor, Mode::Bind, Count::One)];
const OPERAND: &[Param] = &[read("in")];
const TWO: &[Param] = &[value("lhs"), value("rhs")];
const THREE: &[Param] = &[value("a"), value("b"), value("c")];

/// A row with nothing in it, to be filled in.
const ROW: Row = Row {
    op: Op::Set,
    mnemonic: "",
    aliases: &[],
    syntax: Syntax::Padded,
    outs: RESULT,
    args: OPERAND,
    attrs: &[],
    rule: Rule::Free,
    effect: Effect::Compute,
    doc: "",
};
const STATEMENT: Row = Row { syntax: Syntax::Statement, outs: &[], args: &[], ..ROW };

const fn call(mnemonic: &'static str) -> Row {
    Row { mnemonic, ..ROW }
}

const fn unary(mnemonic: &'static str) -> Row {
    Row { mnemonic, syntax: Syntax::Function, rule: Rule::Pointwise, effect: Effect::Map, ..ROW }
}

const fn prefix(mnemonic: &'static str) -> Row {
    Row { syntax: Syntax::Prefix, ..unary(mnemonic) }
}

const fn binary(mnemonic: &'static str) -> Row {
    Row { args: TWO, ..unary(mnemonic) }
}

const fn infix(mnemonic: &'static str) -> Row {
    Row { syntax: Syntax::Infix, ..binary(mnemonic) }
}

const fn ternary(mnemonic: &'static str) -> Row {
    Row { args: THREE, ..unary(mnemonic) }
}

/// Writes the operator enum and the table from one list.
macro_rules! table {
    ($($(#[doc = $doc:literal])+ $op:ident = $row:expr;)*) => {
        /// An operator; `row` tells everything about it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op { $($(#[doc = $doc])+ $op,)* }

        /// The table, in the order of `Op`.
        pub static OPS: &[Row] = &[$(Row { op: Op::$op, doc: concat!($($doc),+), ..$row }),*];
    };
}

table! {
    // ---- streams and synchronisation
    /// Makes a stream current: what follows is issued on it.
    SetCurrentStream = Row { mnemonic: "SetCurrentStream", args: &[mention("stream", Kind::Stream)],
        effect: Effect::Stream, ..STATEMENT };
    /// Names the stream that is current.
    GetCurrentStream = Row { mnemonic: "GetCurrentStream", syntax: Syntax::Call,
        outs: &[param("stream", Kind::Stream, Mode::Bind, Count::One)], args: &[], effect: Effect::Stream,
        ..ROW };
    /// Makes the current stream wait for what was issued on another one so far.
    Synchronize = Row { mnemonic: "Synchronize", args: &[mention("stream", Kind::Stream)],
        effect: Effect::Stream, ..STATEMENT };
    /// Makes the current stream wait for a posted communication.
    Wait = Row { mnemonic: "Wait", args: &[attr(WORK)], effect: Effect::Wait, ..STATEMENT };

    // ---- communication
    /// A collective of a team; `root` counts within the team.
    Communication = Row { mnemonic: "Communication", syntax: Syntax::Numbered,
        attrs: &[attr(TYPE), attr(TEAM), opt(ROOT), opt(RED_OP), reads(INPUT), writes(OUTPUT), opt(BACKEND),
            opt(ALGO), opt(MULTICAST_PROTOCOL)], rule: Rule::Communicate, effect: Effect::Communicate, ..STATEMENT };
    /// One side of a transfer between two ranks; `peer` is a world rank.
    P2PCommunication = Row { mnemonic: "P2PCommunication", syntax: Syntax::Numbered,
        attrs: &[attr(P2P_TYPE), keyed(BUFFER, Mode::Transfer, Count::One), attr(PEER), opt(BACKEND),
            opt(PROTOCOL)], effect: Effect::Communicate, ..STATEMENT };
    /// Every member sends to one member and receives from one; peers count within the team.
    CollectivePermute = Row { mnemonic: "CollectivePermute", syntax: Syntax::Numbered,
        attrs: &[attr(TEAM), attr(SEND_PEER), attr(RECV_PEER), reads(INPUT), writes(OUTPUT), opt(BACKEND)],
        rule: Rule::Communicate, effect: Effect::Communicate, ..STATEMENT };
    /// Opens a bracket of P2PCommunications that are posted as one.
    StartCoalescing = Row { mnemonic: "StartCoalescing", syntax: Syntax::Bare, effect: Effect::Group, ..STATEMENT };
    /// Closes the bracket and posts it; its number names the whole.
    EndCoalescing = Row { mnemonic: "EndCoalescing", syntax: Syntax::Bare, effect: Effect::Group, ..STATEMENT };
    /// Exchanges handles of the listed transfers' buffers with their peers; blocks the host.
    ShareMemHandles = Row { mnemonic: "ShareMemHandles", args: &[attr(TRANSFERS)], effect: Effect::Share,
        ..STATEMENT };
    /// Sends every token to the ranks of its experts.
    Dispatch = Row { mnemonic: "Dispatch", syntax: Syntax::Numbered,
        attrs: &[attr(NUM_EXPERTS), opt(BACKEND), reads(IN), reads(TOPK_IDX), reads(TOPK_WEIGHTS),
            writes(OUT)], effect: Effect::Communicate, ..STATEMENT };
    /// Brings every token back from its experts.
    Combine = Row { mnemonic: "Combine", syntax: Syntax::Numbered,
        attrs: &[opt(BACKEND), reads(IN), reads(TOPK_WEIGHTS), reads(SRC_IDX), writes(OUT)],
        effect: Effect::Communicate, ..STATEMENT };

    // ---- memory, views, launches
    /// Binds storage to a name, unless the name is bound already.
    AllocateOnce = Row { mnemonic: "ALLOCATE", syntax: Syntax::Call, outs: BIND, args: &[],
        attrs: &[attr(BUFFER), attr(MEM_TYPE), attr(SIZE), attr(ZERO_INIT), opt(RESETS_TO_ZERO), opt(ALIAS)],
        effect: Effect::Allocate, ..ROW };
    /// Binds fresh storage to a name, every time.
    Allocate = Row { mnemonic: "ALLOCATE", syntax: Syntax::Call, outs: BIND, args: &[],
        attrs: &[attr(MEM_TYPE), attr(ZERO_INIT)], effect: Effect::Allocate, ..ROW };
    /// Drops a name; the storage lives on while a view or posted work holds it.
    Deallocate = Row { mnemonic: "Deallocate", syntax: Syntax::Block,
        args: &[mention("tensor", Kind::Tensor)], effect: Effect::Deallocate, ..STATEMENT };
    /// Binds a name to one index of an axis of another tensor.
    HirAliasSelect = Row { mnemonic: "HirAliasSelect", outs: BIND, args: &[mention("in", Kind::Tensor)],
        attrs: &[attr(AXIS), attr(INDEX)], rule: Rule::Select, effect: Effect::View, ..ROW };
    /// Binds a name to one stream's chunk of another tensor.
    ShardByStream = Row { mnemonic: "ShardByStream", syntax: Syntax::Call, outs: BIND,
        args: &[mention("in", Kind::Tensor)], attrs: &[attr(STREAM_INDEX)], rule: Rule::Shard,
        effect: Effect::View, ..ROW };
    /// Binds a name to all ranks' shards of a symmetric tensor, as one.
    SymmetricContiguousView = Row { mnemonic: "SymmetricContiguousView", syntax: Syntax::Call, outs: BIND,
        args: &[mention("in", Kind::Tensor)], effect: Effect::View, ..ROW };
    /// Runs a kernel that the text does not hold; `kernel=` may name one.
    LaunchKernel = Row { mnemonic: "LaunchKernel", syntax: Syntax::Launch,
        attrs: &[opt(GROUP_ID), reads(INPUTS), writes(OUTPUTS), opt(KERNEL)], effect: Effect::Opaque,
        ..STATEMENT };
    /// Runs a HostUnit.
    PostOnStream = Row { mnemonic: "PostOnStream", syntax: Syntax::Post, args: &[attr(UNIT)],
        attrs: &[reads(INPUTS), writes(OUTPUTS)], effect: Effect::Unit, ..STATEMENT };

    // ---- copies and shapes
    /// Copies; becomes a resharding when the shardings differ.
    Set = Row { attrs: &[opt(CACHE_OP)], rule: Rule::Same, ..call("Set") };
    /// Copies with the axes in another order.
    Permute = Row { attrs: &[opt(CACHE_OP)], rule: Rule::Permute, ..call("Set.Permute") };
    /// Copies at the border of a segment.
    SegmenterSet = Row { attrs: &[opt(CACHE_OP)], rule: Rule::Same, ..call("SegmenterSet") };
    /// Copies to shared memory, in a scheduled kernel.
    CpAsync = Row { rule: Rule::Same, ..call("CpAsync") };
    /// Copies to shared memory in bulk, in a scheduled kernel.
    CpAsyncBulk = Row { rule: Rule::Same, ..call("CpAsyncBulk") };
    /// Copies a tile to shared memory, in a scheduled kernel.
    CpAsyncBulkTensorTile = Row { rule: Rule::Same, ..call("CpAsyncBulkTensorTile") };
    /// Loads matrix fragments, in a scheduled kernel.
    LdMatrix = Row { rule: Rule::Same, ..call("LdMatrix") };
    /// Adds axes of extent 1.
    Broadcast = Row { attrs: &[opt(FLAGS)], rule: Rule::Broadcast, ..call("broadcast") };
    /// Drops axes of extent 1.
    Squeeze = Row { attrs: &[opt(FLAGS)], rule: Rule::Squeeze, ..call("squeeze") };
    /// Repeats axes of extent 1 without storing the copies.
    Expand = Row { syntax: Syntax::Call, args: &[read("in"), opt(EXTENTS)], rule: Rule::Pointwise,
        ..call("expand") };
    /// The same elements in row-major order, in another shape.
    Reshape = Row { syntax: Syntax::Call, aliases: &["view"], rule: Rule::Reshape, ..call("reshape") };
    /// Repeats axes.
    Repeat = Row { syntax: Syntax::Call, ..call("repeat") };
    /// One index of an axis.
    Select = Row { attrs: &[attr(AXIS), attr(INDEX)], rule: Rule::Select, outs: BIND, effect: Effect::View,
        ..call("select") };
    /// A range of every axis.
    Slice = Row { args: &[read("in"), attr(RANGES)], rule: Rule::Slice, ..call("slice") };
    /// Adds elements at the ends of axes.
    Pad = Row { args: &[read("in"), attr(WIDTHS)], ..call("pad") };
    /// Joins tensors along an axis.
    Cat = Row { args: &[param("parts", Kind::Value, Mode::Read, Count::Many)], ..call("cat") };

    // ---- products and reductions
    /// `x[…, k] · w[n, k]ᵀ + b[n]`.
    Linear = Row { syntax: Syntax::Wrapped,
        args: &[read("x"), read("weight"), param("bias", Kind::Tensor, Mode::Read, Count::Optional)],
        rule: Rule::Linear, ..call("linear") };
    /// `a[…, m, k] · b[…, k, n]`.
    Matmul = Row { syntax: Syntax::Wrapped, args: &[read("a"), read("b")], rule: Rule::Matmul, ..call("matmul") };
    /// A product on tensor cores, in a scheduled kernel.
    Mma = Row { syntax: Syntax::Wrapped, args: &[read("a"), read("b")], ..call("mma") };
    /// Combines the elements along the axes that are reductions in the result; those with one `group` in a row are printed as a GroupedReductionOp.
    Reduction = Row { attrs: &[attr(OP), attr(INITIAL_VALUE), opt(ALLREDUCE), opt(GROUP)], rule: Rule::Reduce,
        ..call("reduction") };
    /// Mean, sum of squares and count in one pass.
    Welford = Row { outs: &[write("avg"), write("var"), write("count")],
        args: &[param("in", Kind::Value, Mode::Read, Count::Many)], attrs: &[opt(ALLREDUCE)],
        ..call("Welford") };
    /// Running combination along an axis.
    Scan = Row { syntax: Syntax::Call, attrs: &[opt(DIM), opt(SCAN_OP), opt(OP_TYPE), opt(INIT)],
        ..call("scan") };

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
    /// Both.
    LogicalAnd = infix("&&");
    /// Either.
    LogicalOr = infix("||");
    /// Bits of both.
    BitAnd = infix("&");
    /// Bits of either.
    BitOr = infix("|");
    /// Bits of one.
    BitXor = infix("^");
    /// Maximum; a NaN wins.
    Max = binary("max");
    /// Minimum; a NaN wins.
    Min = binary("min");
    /// Maximum; a number wins over a NaN.
    FMax = binary("fmax");
    /// Minimum; a number wins over a NaN.
    FMin = binary("fmin");
    /// Power.
    Pow = binary("pow");
    /// Angle of a point.
    Atan2 = Row { aliases: &["atan2f"], ..binary("atan2") };
    /// Floating-point remainder with the sign of the left operand.
    Fmod = Row { aliases: &["fmodf"], ..binary("fmod") };
    /// IEEE remainder.
    Remainder = binary("remainder");
    /// Next representable number.
    NextAfter = binary("nextafter");
    /// Greatest common divisor.
    Gcd = binary("gcd");
    /// Quotient rounded up.
    CeilDiv = binary("ceilDiv");
    /// A complex number of two real ones.
    Complex = binary("std::complex");
    /// Negation.
    Neg = Row { aliases: &["neg"], ..prefix("-") };
    /// Logical negation.
    LogicalNot = prefix("!");
    /// Bitwise complement.
    BitNot = prefix("~");
    /// Conversion to the result's element type.
    Cast = Row { rule: Rule::Cast, ..unary("cast") };
    /// The same bits as another element type.
    BitCast = Row { rule: Rule::Cast, ..unary("bit_cast") };
    /// Absolute value.
    Abs = Row { aliases: &["fabs"], ..unary("abs") };
    /// Inverse cosine.
    Acos = Row { aliases: &["acosf"], ..unary("acos") };
    /// Inverse hyperbolic cosine.
    Acosh = Row { aliases: &["acoshf"], ..unary("acosh") };
    /// Inverse sine.
    Asin = Row { aliases: &["asinf"], ..unary("asin") };
    /// Inverse hyperbolic sine.
    Asinh = Row { aliases: &["asinhf"], ..unary("asinh") };
    /// Inverse tangent.
    Atan = Row { aliases: &["atanf"], ..unary("atan") };
    /// Inverse hyperbolic tangent.
    Atanh = Row { aliases: &["atanhf"], ..unary("atanh") };
    /// Rounds up.
    Ceil = Row { aliases: &["ceilf"], ..unary("ceil") };
    /// Cosine.
    Cos = Row { aliases: &["cosf"], ..unary("cos") };
    /// Hyperbolic cosine.
    Cosh = Row { aliases: &["coshf"], ..unary("cosh") };
    /// Exponential.
    Exp = Row { aliases: &["expf"], ..unary("exp") };
    /// Power of two.
    Exp2 = Row { aliases: &["exp2f"], ..unary("exp2") };
    /// Exponential minus one.
    Expm1 = Row { aliases: &["expm1f"], ..unary("expm1") };
    /// Error function.
    Erf = Row { aliases: &["erff"], ..unary("erf") };
    /// Complementary error function.
    Erfc = Row { aliases: &["erfcf"], ..unary("erfc") };
    /// Inverse error function.
    ErfInv = Row { aliases: &["erfinvf"], ..unary("erfinv") };
    /// Inverse complementary error function.
    ErfcInv = Row { aliases: &["erfcinvf"], ..unary("erfcinv") };
    /// Rounds down.
    Floor = Row { aliases: &["floorf"], ..unary("floor") };
    /// Fractional part.
    Frac = unary("frac");
    /// Logarithm of the absolute gamma function.
    LGamma = Row { aliases: &["lgammaf"], ..unary("lgamma") };
    /// Natural logarithm.
    Log = Row { aliases: &["logf"], ..unary("log") };
    /// Logarithm to base 10.
    Log10 = Row { aliases: &["log10f"], ..unary("log10") };
    /// Logarithm of one plus x.
    Log1p = Row { aliases: &["log1pf"], ..unary("log1p") };
    /// Logarithm to base 2.
    Log2 = Row { aliases: &["log2f"], ..unary("log2") };
    /// Reciprocal.
    Reciprocal = unary("reciprocal");
    /// Zero where negative.
    Relu = unary("relu");
    /// Reciprocal of the square root.
    Rsqrt = Row { aliases: &["rsqrtf"], ..unary("rsqrt") };
    /// Rounds to the nearest integer, halves to even.
    Round = Row { aliases: &["nearbyint", "nearbyintf", "roundf"], ..unary("round") };
    /// Logistic function.
    Sigmoid = unary("sigmoid");
    /// Whether the sign bit is set.
    SignBit = unary("signbit");
    /// `x · sigmoid(x)`.
    Silu = unary("silu");
    /// Sine.
    Sin = Row { aliases: &["sinf"], ..unary("sin") };
    /// Hyperbolic sine.
    Sinh = Row { aliases: &["sinhf"], ..unary("sinh") };
    /// Square root.
    Sqrt = Row { aliases: &["sqrtf"], ..unary("sqrt") };
    /// Tangent.
    Tan = Row { aliases: &["tanf"], ..unary("tan") };
    /// Hyperbolic tangent.
    Tanh = Row { aliases: &["tanhf"], ..unary("tanh") };
    /// Rounds toward zero.
    Trunc = Row { aliases: &["truncf"], ..unary("trunc") };
    /// Smallest power of two that is not less.
    BitCeil = unary("bit_ceil");
    /// Whether it is neither infinite nor NaN.
    IsFinite = unary("isfinite");
    /// Whether it is infinite.
    IsInf = unary("isinf");
    /// Whether it is NaN.
    IsNan = unary("isnan");
    /// Whether it is minus infinity.
    IsNegInf = unary("isneginf");
    /// Whether it is plus infinity.
    IsPosInf = unary("isposinf");
    /// Whether its imaginary part is zero.
    IsReal = unary("isreal");
    /// Real part.
    Real = unary("std::real");
    /// Imaginary part.
    Imag = unary("std::imag");
    /// `b` where `a` holds, else `c`.
    Where = ternary("where");
    /// `a` bounded by `b` and `c`.
    Clamp = ternary("clamp");
    /// `a + c · (b − a)`; from `b` where `c ≥ ½`, as nvFuser computes it.
    Lerp = ternary("lerp");
    /// `c` where `a ≤ b`, else `a`.
    Threshold = ternary("threshold");

    // ---- generators
    /// One value everywhere.
    Full = Row { syntax: Syntax::Function, args: &[attr(SHAPE), mention("value", Kind::Scalar)],
        rule: Rule::Generate, ..call("full") };
    /// An arithmetic progression.
    Iota = Row { syntax: Syntax::Function,
        args: &[mention("length", Kind::Scalar), mention("start", Kind::Scalar),
            mention("step", Kind::Scalar), attr(DTYPE)], rule: Rule::Generate, ..call("iota") };
    /// Ones on the diagonal.
    Eye = Row { syntax: Syntax::Function, args: &[mention("length", Kind::Scalar), attr(DTYPE)],
        rule: Rule::Generate, ..call("eye") };
    /// Random numbers from [0, 1).
    RngUniform = Row { syntax: Syntax::Function, args: &[attr(SHAPE), attr(DTYPE), SEED],
        ..call("rng_uniform") };
    /// Random numbers from [low, high).
    RngUniformRange = Row { syntax: Syntax::Function,
        args: &[attr(SHAPE), mention("low", Kind::Scalar), mention("high", Kind::Scalar), attr(DTYPE), SEED],
        ..call("rng_uniform_range") };
    /// Random numbers of the standard normal distribution.
    RngNormal = Row { syntax: Syntax::Function, args: &[attr(SHAPE), attr(DTYPE), SEED],
        ..call("rng_normal_standard") };
    /// Normally distributed random numbers.
    RngNormalGeneral = Row { syntax: Syntax::Function,
        args: &[attr(SHAPE), mention("mean", Kind::Scalar), mention("deviation", Kind::Scalar), attr(DTYPE),
            SEED], ..call("rng_normal_general") };

    /// The elements of a scalar or of an array of scalars.
    TensorConstruct = Row { syntax: Syntax::Call, args: &[param("in", Kind::Scalar, Mode::Read, Count::One)],
        ..call("TensorConstruct") };

    // ---- indexing and sorting
    /// Picks indices of an axis.
    IndexSelect = Row { aliases: &["index_select"], args: &[read("in"), read("index")], attrs: &[attr(DIM)],
        ..call("indexSelect") };
    /// Picks elements along an axis, broadcasting the others.
    TakeAlongAxis = Row { args: &[read("in"), read("index")], attrs: &[attr(DIM)], ..call("takeAlongAxis") };
    /// Picks elements along an axis.
    TorchGather = Row { args: &[read("in"), read("index")], attrs: &[attr(DIM)], ..call("torchGather") };
    /// Writes elements along an axis.
    Scatter = Row { syntax: Syntax::Call, args: &[], attrs: &[reads(IN), attr(DIM), reads(SRC), reads(IDX)],
        ..call("scatter") };
    /// Adds rows at indices.
    IndexPutAccumulate = Row { args: &[read("in"), read("index"), read("value")], ..call("indexPutAccumulate") };
    /// Rows of a table.
    Embedding = Row { syntax: Syntax::Call,
        args: &[read("in"), read("weight"), param("options", Kind::Value, Mode::Read, Count::Many)],
        attrs: &[opt(PADDING_IDX), opt(MAX_NORM), opt(NORM_TYPE), opt(SCALE_GRAD_BY_FREQ), opt(SPARSE)],
        ..call("embedding") };
    /// Largest or smallest elements and their places.
    TopK = Row { syntax: Syntax::Call, outs: &[write("values"), write("indices")],
        args: &[read("in"), mention("k", Kind::Scalar)], attrs: &[attr(DIM), attr(LARGEST), attr(SORTED)],
        ..call("topk") };
    /// The order that sorts an axis.
    ArgSort = Row { syntax: Syntax::Call, attrs: &[attr(DIM), attr(DESCENDING), attr(STABLE)],
        ..call("argsort") };

    // ---- library calls
    /// Scaled dot-product attention.
    Sdpa = Row { syntax: Syntax::Call, outs: &[param("out", Kind::Tensor, Mode::Write, Count::Many)],
        args: &[param("in", Kind::Value, Mode::Read, Count::Many)],
        attrs: &[opt_read(BIAS), opt_read(MASK), opt(DROPOUT_P), opt(IS_CAUSAL), opt(SCALE)],
        ..call("sdpa") };
    /// Gradient of scaled dot-product attention.
    SdpaBwd = Row { syntax: Syntax::Call, outs: &[param("out", Kind::Tensor, Mode::Write, Count::Many)],
        args: &[param("in", Kind::Value, Mode::Read, Count::Many)],
        attrs: &[opt_read(LOGSUM_EXP), opt(DROPOUT_P), opt(IS_CAUSAL), opt_read(PHILOX_SEED),
            opt_read(PHILOX_OFFSET), opt(SCALE)], ..call("sdpa_bwd") };
    /// One matrix product a group.
    GroupedMma = Row { syntax: Syntax::Call, outs: &[param("out", Kind::Tensor, Mode::Write, Count::Many)],
        args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(OFFSETS), opt_read(SCALE1), opt_read(SCALE2),
            opt_read(ALPHA), opt_read(BIAS), opt_read(BETA)], ..call("GroupedMmaOp") };
    /// A matrix product of scaled operands.
    ScaledMma = Row { syntax: Syntax::Call, outs: &[param("out", Kind::Tensor, Mode::Write, Count::Many)],
        args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(SCALE1), reads(SCALE2), opt_read(ALPHA), opt_read(BIAS),
            opt_read(BETA)], ..call("ScaledMmaOp") };
    /// One product of block-scaled fp4 matrices a group.
    CutlassGroupedMma = Row { syntax: Syntax::Call, args: &[],
        attrs: &[reads(MAT1), reads(MAT2), reads(SCALE1), reads(SCALE2), reads(ALPHA), reads(PROBLEM_SIZES),
            reads(EXPERT_OFFSETS), reads(SF_OFFSETS)], ..call("CutlassNvfp4GroupedMmaOp") };
    /// Quantises blocks and their scales.
    BlockQuantize = Row { syntax: Syntax::Call, outs: &[write("scales"), write("quantized")],
        args: &[param("in", Kind::Value, Mode::Read, Count::Many)], ..call("block_quantize") };
    /// Lays the scales of each group out as a grouped matrix product wants them.
    PreprocessGroupedScales = Row { syntax: Syntax::Wrapped, args: &[],
        attrs: &[reads(INPUT), reads(INPUT_OFFSETS), reads(OUTPUT_OFFSETS), attr(LAYOUT)],
        ..call("preprocessGroupedMatmulInputSf") };
}

impl Param {
    /// The key, of an attribute.
    pub(crate) const fn key(&self) -> AttrName {
        AttrName(self.name)
    }
}

impl Row {
    /// What the row says of an attribute.
    pub(crate) fn param<T>(&self, key: Key<T>) -> Option<&'static Param> {
        self.attrs.iter().find(|it| it.key() == key)
    }
}

impl Op {
    /// The operator's row.
    pub fn row(self) -> &'static Row {
        &OPS[self as usize]
    }

    /// The operator's spelling.
    pub fn name(self) -> &'static str {
        self.row().mnemonic
    }

    /// Operators with this spelling (two ALLOCATEs differ in their keys, `-` in its operands); none: unknown.
    pub fn lookup(mnemonic: &str) -> &'static [Op] {
        static NAMES: OnceLock<FxHashMap<&'static str, Vec<Op>>> = OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let mut names: FxHashMap<&'static str, Vec<Op>> = FxHashMap::default();
            for row in OPS {
                for name in std::iter::once(&row.mnemonic).chain(row.aliases) {
                    names.entry(name).or_default().push(row.op);
                }
            }
            names
        });
        names.get(mnemonic).map_or(&[], Vec::as_slice)
    }
}
