//! The scalars of one rank at one point of execution: loop indices, `rank`, definitions and bindings.
//!
//! `arithmetic` evaluates integers and booleans. This module adds floating-point numbers and the
//! reasons why a scalar has no value.

use std::cell::{Cell, RefCell};

use crate::{
    arithmetic::{self, Constant},
    dtype::{Class, DType},
    ir::{Expr, ExprId, Function, InfixOp, ParallelType, PrefixOp, Program, SymbolId},
    list_text,
    ops::Op,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The value of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
}

impl Value {
    /// Returns the value as a `Constant`; `None` for floating-point numbers.
    fn constant(self) -> Option<Constant> {
        match self {
            Self::Int(it) => Some(Constant::Int(it)),
            Self::Bool(it) => Some(Constant::Bool(it)),
            Self::Float(_) => None,
        }
    }

    /// Returns the value as a floating-point number.
    pub fn real(self) -> f64 {
        match self {
            Self::Int(it) => it as f64,
            Self::Bool(it) => f64::from(u8::from(it)),
            Self::Float(it) => it,
        }
    }
}

impl From<Constant> for Value {
    fn from(constant: Constant) -> Self {
        match constant {
            Constant::Int(it) => Self::Int(it),
            Constant::Bool(it) => Self::Bool(it),
        }
    }
}

/// The reason why a scalar has no value.
#[derive(Clone, Debug, PartialEq)]
pub enum ScalarError {
    /// A symbol has no definition or binding.
    Unbound(SymbolId),
    /// An overflow, a division by zero, or an operand of the wrong type.
    Arithmetic(String),
}

/// The values of symbols on one rank.
#[derive(Clone)]
pub struct Scalars<'p> {
    program: &'p Program,
    /// Loop indices, definitions in the body, and symbols bound from shapes. They shadow definitions.
    local: FxHashMap<SymbolId, Value>,
    rank: Option<SymbolId>,
    device: Option<SymbolId>,
    streams: Option<SymbolId>,
    /// The scalars whose definitions in the body have values that can differ between ranks.
    rank_dependent: FxHashSet<SymbolId>,
    /// The extents of device axes, as determined by the mesh.
    devices: FxHashMap<SymbolId, i64>,
    me: i64,
    /// Definitions evaluated since the last binding, so that each is evaluated once.
    known: RefCell<FxHashMap<SymbolId, Value>>,
    /// The current depth of evaluation.
    depth: Cell<usize>,
}

/// The maximum nesting depth of expressions, including definitions.
const MAX_DEPTH: usize = 1_000;

/// The default value of `numberOfStreams`, as in nvFuser.
const DEFAULT_STREAMS: i64 = 4;

impl<'p> Scalars<'p> {
    /// Returns the values that the definitions of a program have on a rank.
    pub fn new(program: &'p Program, rank: usize) -> Self {
        Self {
            program,
            local: FxHashMap::default(),
            rank: program.find_symbol("rank"),
            // Drafts of 2025 use this name for the rank.
            device: program.find_symbol("deviceIdx.x"),
            streams: program.find_symbol("numberOfStreams"),
            rank_dependent: FxHashSet::default(),
            devices: device_extents(program),
            me: rank as i64,
            known: RefCell::default(),
            depth: Cell::default(),
        }
    }

    /// Binds a symbol to a value, or removes its value, and returns the previous value.
    pub fn bind(&mut self, symbol: SymbolId, value: Option<Value>) -> Option<Value> {
        self.known.borrow_mut().clear();
        match value {
            Some(value) => self.local.insert(symbol, value),
            None => self.local.remove(&symbol),
        }
    }

    /// Evaluates an integer expression.
    pub fn int(&self, expr: ExprId) -> Result<i64, ScalarError> {
        match self.eval(expr)? {
            Value::Int(value) => Ok(value),
            Value::Bool(value) => Err(ScalarError::Arithmetic(format!("`{value}` is not an integer"))),
            Value::Float(value) => Err(ScalarError::Arithmetic(format!("`{value:?}` is not an integer"))),
        }
    }

    /// Evaluates a predicate.
    pub fn truth(&self, expr: ExprId) -> Result<bool, ScalarError> {
        match self.eval(expr)? {
            Value::Bool(value) => Ok(value),
            Value::Int(value) => Ok(value != 0),
            Value::Float(_) => Err(ScalarError::Arithmetic("a real number is not a truth value".to_owned())),
        }
    }

    /// Evaluates a scalar expression.
    pub fn eval(&self, expr: ExprId) -> Result<Value, ScalarError> {
        let depth = self.depth.get();
        if depth >= MAX_DEPTH {
            let message = format!("definitions are nested more than {MAX_DEPTH} deep, or are cyclic");
            return Err(ScalarError::Arithmetic(message));
        }
        self.depth.set(depth + 1);
        let value = self.node(expr);
        self.depth.set(depth);
        value
    }

    fn node(&self, expr: ExprId) -> Result<Value, ScalarError> {
        match &self.program.exprs[expr] {
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Float(dtype, text) => number(text)
                .map(|value| match dtype.class() {
                    Class::Int => Value::Int(value as i64),
                    Class::Bool => Value::Bool(value != 0.0),
                    Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => {
                        Value::Float(value)
                    }
                })
                .ok_or_else(|| ScalarError::Arithmetic(format!("`{text}` is not a number"))),
            Expr::Symbol(symbol) => self.symbol(*symbol),
            Expr::Prefix(op, operand) => prefix(*op, self.eval(*operand)?),
            Expr::Infix(op, lhs, rhs) => infix(*op, self.eval(*lhs)?, self.eval(*rhs)?),
            Expr::Call(Function::Element, args) => match self.element(args)? {
                Some(element) => self.eval(element),
                None => Err(ScalarError::Arithmetic("this is not an array of scalars".to_owned())),
            },
            Expr::Call(function, args) => {
                let args = args.iter().map(|arg| self.eval(*arg)).collect::<Result<Vec<_>, _>>()?;
                call(function, &args)
            }
        }
    }

    /// Returns an element of an array of scalars or arrays; `None` for other expressions.
    fn element(&self, operands: &[ExprId]) -> Result<Option<ExprId>, ScalarError> {
        let [array, at] = operands else { return Ok(None) };
        let Some(items) = self.items(*array)? else { return Ok(None) };
        let index = self.int(*at)?;
        let item = usize::try_from(index).ok().and_then(|it| items.get(it));
        item.copied().map(Some).ok_or_else(|| {
            ScalarError::Arithmetic(format!(
                "index {index} is outside of an array of {} elements",
                items.len()
            ))
        })
    }

    /// Returns the items of an array: of a constructor, of a definition, or of an array of arrays.
    fn items(&self, array: ExprId) -> Result<Option<&[ExprId]>, ScalarError> {
        let mut array = array;
        for _ in 0..MAX_DEPTH {
            array = match &self.program.exprs[array] {
                Expr::Call(Function::Array, items) => return Ok(Some(items)),
                Expr::Call(Function::Element, args) => match self.element(args)? {
                    Some(it) => it,
                    None => return Ok(None),
                },
                Expr::Symbol(symbol) => match self.program.definitions.get(symbol) {
                    Some(definition) => *definition,
                    None => return Ok(None),
                },
                _ => return Ok(None),
            };
        }
        Ok(None)
    }

    fn symbol(&self, symbol: SymbolId) -> Result<Value, ScalarError> {
        if let Some(value) = self.local.get(&symbol) {
            return Ok(*value);
        }
        if let Some(definition) = self.program.definitions.get(&symbol) {
            if let Some(value) = self.known.borrow().get(&symbol) {
                return Ok(*value);
            }
            let value = self.eval(*definition)?;
            self.known.borrow_mut().insert(symbol, value);
            return Ok(value);
        }
        if Some(symbol) == self.rank || Some(symbol) == self.device {
            return Ok(Value::Int(self.me));
        }
        if Some(symbol) == self.streams {
            return match self.program.options.get("numberOfStreams") {
                Some(option) => self.eval(*option),
                None => Ok(Value::Int(DEFAULT_STREAMS)),
            };
        }
        self.devices.get(&symbol).copied().map(Value::Int).ok_or(ScalarError::Unbound(symbol))
    }

    /// Returns whether a symbol has a value independently of the enclosing loops.
    pub fn is_known(&self, symbol: SymbolId) -> bool {
        self.program.definitions.contains_key(&symbol)
            || self.devices.contains_key(&symbol)
            || [self.rank, self.device, self.streams].contains(&Some(symbol))
    }

    /// Returns whether the value of an expression can differ between ranks.
    pub fn depends_on_rank(&self, expr: ExprId) -> bool {
        self.program.depends_on(expr, &|symbol| {
            [self.rank, self.device].contains(&Some(symbol)) || self.rank_dependent.contains(&symbol)
        })
    }

    /// Records whether the value that a definition in the body gives a scalar can differ between ranks.
    pub fn set_rank_dependence(&mut self, symbol: SymbolId, is_dependent: bool) {
        if is_dependent {
            self.rank_dependent.insert(symbol)
        } else {
            self.rank_dependent.remove(&symbol)
        };
    }
}

/// Returns the symbols that are extents of device axes, with the number of devices along the axis. Symbols
/// for which two meshes imply different values are omitted.
fn device_extents(program: &Program) -> FxHashMap<SymbolId, i64> {
    let mut found: FxHashMap<SymbolId, Option<i64>> = FxHashMap::default();
    for (_, tensor) in program.tensors.iter().filter(|(_, it)| it.unit.is_none() && !it.mesh.is_empty()) {
        for axis in tensor.loop_domain.iter().map(|id| &program.axes[*id]) {
            if let (ParallelType::Device(dim), Expr::Symbol(symbol)) =
                (axis.parallel, &program.exprs[axis.extent])
            {
                let extent = tensor.mesh.extent(dim) as i64;
                let known = found.entry(*symbol).or_insert(Some(extent));
                *known = known.filter(|it| *it == extent);
            }
        }
    }
    found.into_iter().filter_map(|(symbol, extent)| Some((symbol, extent?))).collect()
}

/// Parses a literal as printed: `0`, `1.5`, `-inf`, `nan`.
fn number(text: &str) -> Option<f64> {
    text.trim_end_matches('f').parse().ok().or_else(|| text.parse().ok())
}

fn overflow() -> ScalarError {
    ScalarError::Arithmetic("the result does not fit 64 bits".to_owned())
}

fn prefix(op: PrefixOp, operand: Value) -> Result<Value, ScalarError> {
    let value = operand.constant().and_then(|it| arithmetic::fold_prefix(op, it));
    match (value, op, operand) {
        (Some(value), ..) => Ok(value.into()),
        (None, PrefixOp::Neg, Value::Float(it)) => Ok(Value::Float(-it)),
        (None, PrefixOp::Neg, Value::Int(_)) => Err(overflow()),
        (None, ..) => Err(ScalarError::Arithmetic(format!("`{op}` does not take this operand"))),
    }
}

fn infix(op: InfixOp, lhs: Value, rhs: Value) -> Result<Value, ScalarError> {
    let Some((a, b)) = lhs.constant().zip(rhs.constant()) else {
        return reals(op, lhs.real(), rhs.real());
    };
    let value = arithmetic::fold_infix(op, a, b).map(Value::from);
    value.ok_or_else(|| match (op, a.as_int(), b.as_int()) {
        (InfixOp::Div | InfixOp::Rem, a, 0) => {
            ScalarError::Arithmetic(format!("`{a} {op} 0` divides by zero"))
        }
        _ => overflow(),
    })
}

fn reals(op: InfixOp, a: f64, b: f64) -> Result<Value, ScalarError> {
    Ok(match op {
        InfixOp::Add => Value::Float(a + b),
        InfixOp::Sub => Value::Float(a - b),
        InfixOp::Mul => Value::Float(a * b),
        InfixOp::Div => Value::Float(a / b),
        InfixOp::Rem => Value::Float(a % b),
        InfixOp::Eq => Value::Bool(a == b),
        InfixOp::Ne => Value::Bool(a != b),
        InfixOp::Lt => Value::Bool(a < b),
        InfixOp::Le => Value::Bool(a <= b),
        InfixOp::Gt => Value::Bool(a > b),
        InfixOp::Ge => Value::Bool(a >= b),
        InfixOp::Shl
        | InfixOp::Shr
        | InfixOp::And
        | InfixOp::Or
        | InfixOp::BitAnd
        | InfixOp::BitOr
        | InfixOp::BitXor => {
            return Err(ScalarError::Arithmetic(format!("`{op}` does not take real numbers")));
        }
    })
}

/// Evaluates an integer function. The result may overflow.
fn integers(op: Op, args: &[Value]) -> Result<Value, ScalarError> {
    let args: Vec<Constant> = args.iter().filter_map(|it| it.constant()).collect();
    arithmetic::fold_call(op, &args).map(Value::from).ok_or_else(overflow)
}

fn call(function: &Function, args: &[Value]) -> Result<Value, ScalarError> {
    match (function, args) {
        (Function::Op(op), _) => operator(*op, args),
        (Function::Cast(to), [operand]) => convert(*to, *operand),
        (Function::Cast(_) | Function::Array | Function::Element | Function::Member(_), _) => None,
    }
    .unwrap_or_else(|| {
        let kind = |value: &Value| match value {
            Value::Int(_) => "an integer",
            Value::Bool(_) => "a truth value",
            Value::Float(_) => "a real number",
        };
        let operands = list_text(args.iter().map(kind), args.len(), "and");
        Err(ScalarError::Arithmetic(format!("hir does not compute `{function}` of {operands}")))
    })
}

/// Evaluates an operator; returns `None` if it is not defined for these operands.
fn operator(op: Op, args: &[Value]) -> Option<Result<Value, ScalarError>> {
    Some(match (op, args) {
        (Op::CeilDiv, [Value::Int(a), Value::Int(0)]) => {
            Err(ScalarError::Arithmetic(format!("`ceilDiv({a}, 0)` divides by zero")))
        }
        (Op::CeilDiv | Op::Max | Op::Min, [Value::Int(_), Value::Int(_)]) | (Op::Abs, [Value::Int(_)]) => {
            integers(op, args)
        }
        (Op::FMax, [Value::Int(_), Value::Int(_)]) => integers(Op::Max, args),
        (Op::FMin, [Value::Int(_), Value::Int(_)]) => integers(Op::Min, args),
        (Op::Gcd, [Value::Int(a), Value::Int(b)]) => {
            let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
            while b != 0 {
                (a, b) = (b, a % b);
            }
            i64::try_from(a).map(Value::Int).map_err(|_| overflow())
        }
        (Op::Pow, [Value::Int(a), Value::Int(b)]) => {
            u32::try_from(*b).ok().and_then(|b| a.checked_pow(b)).map(Value::Int).ok_or_else(overflow)
        }
        (Op::Where, [cond, a, b]) => Ok(if matches!(cond, Value::Bool(true)) { *a } else { *b }),
        (Op::Ceil, [Value::Float(a)]) => Ok(Value::Float(a.ceil())),
        (Op::Floor, [Value::Float(a)]) => Ok(Value::Float(a.floor())),
        (Op::Sqrt, [Value::Float(a)]) => Ok(Value::Float(a.sqrt())),
        (Op::Exp, [Value::Float(a)]) => Ok(Value::Float(a.exp())),
        (Op::Reciprocal, [Value::Float(a)]) => Ok(Value::Float(a.recip())),
        _ => return None,
    })
}

/// Evaluates a conversion. Host scalars are integers, booleans or doubles.
fn convert(to: DType, operand: Value) -> Option<Result<Value, ScalarError>> {
    let to_float = match to.class() {
        Class::Float | Class::SmallFloat => true,
        Class::Int | Class::Bool => false,
        Class::Complex | Class::Composite => return None,
    };
    Some(Ok(match (operand, to_float) {
        (Value::Int(it), true) => Value::Float(it as f64),
        (Value::Float(it), false) => Value::Int(it as i64),
        (Value::Bool(it), false) => Value::Int(i64::from(it)),
        (Value::Bool(it), true) => Value::Float(f64::from(u8::from(it))),
        (it @ Value::Int(_), false) | (it @ Value::Float(_), true) => it,
    }))
}

/// Returns false if the option `numberOfStreams` of a program is certainly no positive integer.
pub(crate) fn has_streams(program: &Program) -> bool {
    let Some(count) = program.options.get("numberOfStreams") else { return true };
    may_be_integer(program, *count)
        && match Scalars::new(program, 0).eval(*count) {
            Ok(Value::Int(count)) => count > 0,
            Ok(_) => false,
            Err(_) => true,
        }
}

/// Returns false for a truth value and a floating-point number, with or without a sign.
pub(crate) fn may_be_integer(program: &Program, value: ExprId) -> bool {
    match &program.exprs[value] {
        Expr::Bool(_) | Expr::Float(..) => false,
        Expr::Infix(op, ..) if op.is_boolean() => false,
        Expr::Prefix(PrefixOp::Not, _) => false,
        Expr::Prefix(PrefixOp::Neg, of) => may_be_integer(program, *of),
        Expr::Int(_) | Expr::Symbol(_) | Expr::Prefix(..) | Expr::Infix(..) | Expr::Call(..) => true,
    }
}
