//! Operators that work element by element.

use grammar::{DType, Op, Operand};
use hir_ir::build::apply;

use super::{Imported, Importer, Results, numbers::wrapped, types::type_of};
use crate::{
    tree::{Attribute, Operation},
    value::{AxisSet, Scalar, Splat, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn binary(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [a, b] = self.equal_operands(op, operands)?;
        Ok(vec![self.binary_values(short_name(op), a, b)?])
    }

    /// Returns two operands, which have one type.
    fn equal_operands(&self, op: &Operation<'_>, operands: Vec<Value>) -> Imported<[Value; 2]> {
        let [a, b] = self.operands(op, operands)?;
        if a.dtype() != b.dtype() || a.shape() != b.shape() {
            let message =
                format!("`{}` has operands of types `{}` and `{}`", op.name, type_of(&a), type_of(&b));
            return Err(self.bad_module(message, "expected operands of one type"));
        }
        Ok([a, b])
    }

    /// Returns the result of an operator of two values of one type.
    pub(super) fn binary_values(&mut self, name: &str, a: Value, b: Value) -> Imported<Value> {
        let dtype = a.dtype();
        let is_bool = dtype == DType::Bool;
        if matches!(name, "divide" | "remainder") && dtype.is_integral() && self.may_be_zero(&b) {
            return self.division(name, a, b);
        }
        let op = match name {
            // On bool, StableHLO's arithmetic is logic.
            "and" | "multiply" | "minimum" if is_bool => Op::LogicalAnd,
            "or" | "add" | "maximum" if is_bool => Op::LogicalOr,
            "xor" if is_bool => Op::Ne,
            "add" => Op::Add,
            "subtract" => Op::Sub,
            "multiply" => Op::Mul,
            "divide" => Op::Div,
            "remainder" if dtype.is_integral() => Op::Mod,
            "remainder" => Op::Fmod,
            "maximum" => Op::Max,
            "minimum" => Op::Min,
            "power" => Op::Pow,
            "atan2" => Op::Atan2,
            "and" => Op::BitAnd,
            "or" => Op::BitOr,
            "xor" => Op::BitXor,
            "shift_left" => Op::Shl,
            "shift_right_arithmetic" => return self.shift_right_arithmetic(a, b),
            "shift_right_logical" => return self.shift_right_logical(a, b),
            "next_after" if matches!(dtype, DType::Half | DType::BFloat) => return self.next_after(a, b),
            "next_after" => Op::NextAfter,
            _ => return Err(self.unsupported(name)),
        };
        self.folded_or_mapped(op, a, b, dtype)
    }

    /// Whether a divisor may have an element that is 0.
    fn may_be_zero(&self, divisor: &Value) -> bool {
        match divisor {
            Value::Splat(it) => {
                self.range(it).is_none_or(|(low, high)| low <= 0 && high >= 0)
                    && !matches!(it.scalar, Scalar::Int(..0))
            }
            Value::Tensor(_) => true,
        }
    }

    /// Returns the quotient or the remainder of integers, of which a divisor may be 0: Host IR ends there, StableHLO leaves the element to the
    /// implementation, and programs divide first and select afterwards. As with XLA, the quotient has all bits set (LLVM's lowering in
    /// `xla/service/elemental_ir_emitter.cc`), and the remainder is the dividend.
    fn division(&mut self, name: &str, a: Value, b: Value) -> Imported<Value> {
        let (dtype, shape) = (a.dtype(), a.shape().to_vec());
        let number = |it: i64| {
            let scalar = Scalar::Int(wrapped(it, dtype).unwrap_or(it));
            Value::Splat(Splat { scalar, shape: shape.clone(), dtype })
        };
        let is_zero = self.folded_or_mapped(Op::Eq, b.clone(), number(0), DType::Bool)?;
        let divisor = self.select_values(is_zero.clone(), number(1), b)?;
        let (op, of_zero) = if name == "divide" { (Op::Div, number(-1)) } else { (Op::Mod, a.clone()) };
        let result = self.folded_or_mapped(op, a, divisor, dtype)?;
        self.select_values(is_zero, of_zero, result)
    }

    pub(crate) fn unary(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [a] = self.operands(op, operands)?;
        let (dtype, shape) = (a.dtype(), a.shape().to_vec());
        let (op, dtype) = match short_name(op) {
            "negate" if dtype.is_integral() => {
                let zero = Value::Splat(Splat { scalar: Scalar::Int(0), shape, dtype });
                return Ok(vec![self.folded_or_mapped(Op::Sub, zero, a, dtype)?]);
            }
            "negate" => (Op::Neg, dtype),
            "not" if dtype == DType::Bool => (Op::LogicalNot, dtype),
            "not" => (Op::BitNot, dtype),
            "exponential" => (Op::Exp, dtype),
            "exponential_minus_one" => (Op::Expm1, dtype),
            "log_plus_one" => (Op::Log1p, dtype),
            "logistic" => (Op::Sigmoid, dtype),
            "cosine" => (Op::Cos, dtype),
            "sine" => (Op::Sin, dtype),
            "round_nearest_even" => (Op::Round, dtype),
            "cbrt" => return Ok(vec![self.cube_root(a)?]),
            "round_nearest_afz" => return Ok(vec![self.rounded_away(a)?]),
            "is_inf" => (Op::IsInf, DType::Bool),
            "is_pos_inf" => (Op::IsPosInf, DType::Bool),
            "is_neg_inf" => (Op::IsNegInf, DType::Bool),
            "is_finite" => (Op::IsFinite, DType::Bool),
            "erf_inv" => (Op::ErfInv, dtype),
            "sign" => return Ok(vec![self.sign(a)?]),
            "square" => return Ok(vec![self.map(Op::Mul, vec![a.clone(), a], dtype)?]),
            // The others have the names of Host IR.
            other => (*Op::lookup(other).first().ok_or_else(|| self.unsupported(op.name))?, dtype),
        };
        Ok(vec![self.map(op, vec![a], dtype)?])
    }

    /// Returns 1, -1, or the value itself if it is neither greater nor less than 0.
    pub(super) fn sign(&mut self, value: Value) -> Imported<Value> {
        let (dtype, shape) = (value.dtype(), value.shape().to_vec());
        let number = |it: i64| if dtype.is_integral() { Scalar::Int(it) } else { Scalar::Float(it as f64) };
        let splat = |it: i64| Value::Splat(Splat { scalar: number(it), shape: shape.clone(), dtype });
        let is_positive = self.folded_or_mapped(Op::Gt, value.clone(), splat(0), DType::Bool)?;
        let is_negative = self.folded_or_mapped(Op::Lt, value.clone(), splat(0), DType::Bool)?;
        let rest = self.select_values(is_negative, splat(-1), value)?;
        self.select_values(is_positive, splat(1), rest)
    }

    pub(crate) fn compare(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [a, b] = self.equal_operands(op, operands)?;
        let mut words = op.positional.iter().filter_map(Attribute::word);
        if let Some(stated) = op.keyword(&["compare_type"]).or_else(|| words.nth(1)) {
            let dtype = a.dtype();
            let is_unsigned =
                matches!(dtype, DType::Bool | DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64);
            let is_own = match stated {
                "NOTYPE" => true,
                "FLOAT" | "TOTALORDER" => !dtype.is_integral(),
                "UNSIGNED" => is_unsigned,
                "SIGNED" => dtype.is_integral() && !is_unsigned,
                _ => false,
            };
            if !is_own {
                let message = format!("`{stated}` is not a comparison of `{}`", type_of(&a));
                return Err(
                    self.bad_module(message, "expected `FLOAT`, `SIGNED` or `UNSIGNED`, as the elements are")
                );
            }
        }
        let (a, b) = match comparison(op) {
            Some((_, true)) => (self.total_order(a)?, self.total_order(b)?),
            _ => (a, b),
        };
        let op = match comparison(op) {
            Some(("EQ", _)) => Op::Eq,
            Some(("NE", _)) => Op::Ne,
            Some(("LT", _)) => Op::Lt,
            Some(("LE", _)) => Op::Le,
            Some(("GT", _)) => Op::Gt,
            Some(("GE", _)) => Op::Ge,
            _ => return Err(self.missing(op, "comparison_direction")),
        };
        Ok(vec![self.folded_or_mapped(op, a, b, DType::Bool)?])
    }

    pub(crate) fn select(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [pred, a, b] = self.operands(op, operands)?;
        Ok(vec![self.select_values(pred, a, b)?])
    }

    pub(super) fn select_values(&mut self, pred: Value, a: Value, b: Value) -> Imported<Value> {
        if let Some(Scalar::Bool(it)) = pred.constant() {
            return Ok(if *it { a } else { b });
        }
        if a.dtype().part().is_some() {
            let others = b;
            let both = self.parts_of(&others)?;
            let mut both = both.into_iter();
            return self.each_part(a, |it, own| {
                let other = both.next().unwrap_or_else(|| own.clone());
                it.select_values(pred.clone(), own, other)
            });
        }
        let (shape, dtype) = (a.shape().to_vec(), a.dtype());
        if let (Value::Splat(p), Value::Splat(x), Value::Splat(y)) = (&pred, &a, &b)
            && dtype.is_integral()
            && let Some(scalar) = self.chosen([p, x, y])
        {
            return Ok(Value::Splat(Splat { scalar, shape, dtype }));
        }
        // A condition of one element selects all elements.
        let pred = self.of_shape(pred, &shape)?;
        self.map(Op::Where, vec![pred, a, b], dtype)
    }

    pub(crate) fn clamp(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [low, value, high] = self.operands(op, operands)?;
        let shape = value.shape().to_vec();
        let (low, high) = (self.of_shape(low, &shape)?, self.of_shape(high, &shape)?);
        let raised = self.binary_values("maximum", value, low)?;
        Ok(vec![self.binary_values("minimum", raised, high)?])
    }

    /// Repeats a value of one element; any other value stays as it is.
    fn of_shape(&mut self, value: Value, shape: &[i64]) -> Imported<Value> {
        Ok(match value {
            Value::Splat(it) if it.shape.is_empty() => Value::Splat(Splat { shape: shape.to_vec(), ..it }),
            Value::Tensor(it) if it.shape.is_empty() => self.broadcast_tensor(it, &[], shape),
            it => it,
        })
    }

    pub(crate) fn convert(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [a] = self.operands(op, operands)?;
        let dtype = self.result_type(op, 0)?.dtype;
        Ok(vec![self.converted(a, dtype)?])
    }

    /// Returns a value with another element type.
    pub(super) fn converted(&mut self, value: Value, dtype: DType) -> Imported<Value> {
        if value.dtype() == dtype {
            return Ok(value);
        }
        if let Value::Splat(it) = &value
            && let Some(scalar) = self.converted_scalar(it.scalar, it.dtype, dtype)
        {
            return Ok(Value::Splat(Splat { scalar, shape: it.shape.clone(), dtype }));
        }
        if dtype == DType::Bool {
            let scalar = if value.dtype().is_integral() { Scalar::Int(0) } else { Scalar::Float(0.0) };
            let zero = Splat { scalar, shape: value.shape().to_vec(), dtype: value.dtype() };
            return self.map(Op::Ne, vec![value, Value::Splat(zero)], DType::Bool);
        }
        let value = Value::Tensor(self.materialized(value));
        if matches!(dtype, DType::E4M3 | DType::E5M2) {
            return self.narrowed(value, dtype);
        }
        self.map(Op::Cast, vec![value], dtype)
    }

    /// Adds a statement that computes each element of the result from those of the operands.
    pub(super) fn map(&mut self, op: Op, mut operands: Vec<Value>, dtype: DType) -> Imported<Value> {
        let is_exact = matches!(op, Op::BitCast | Op::Cast) || dtype == DType::E4M3 && op == Op::Where;
        if matches!(dtype, DType::E4M3 | DType::E5M2) && !is_exact {
            // Statements saturate; StableHLO has infinity or NaN.
            for it in operands.iter_mut().filter(|it| it.dtype() == dtype) {
                *it = self.converted(it.clone(), DType::Float)?;
            }
            let wide = self.map(op, operands, DType::Float)?;
            return self.converted(wide, dtype);
        }
        let shape = operands.last().map(|it| it.shape().to_vec()).unwrap_or_default();
        if operands.iter().any(|it| it.shape() != shape) {
            let message = format!("the operands of `{}` have different shapes", op.name());
            return Err(self.bad_module(message, "expected operands of one shape"));
        }
        let axes: AxisSet = operands.iter().fold(0, |axes, it| axes | it.axes());
        let is_tensor = |it: &Value| matches!(it, Value::Tensor(_));
        let of_tensors = operands.iter().filter(|it| is_tensor(it)).fold(0, |axes, it| axes | it.axes());
        // A statement needs an operand with all dimensions of its result, and logical operators need tensors.
        let needs_all = !operands.iter().any(is_tensor) || matches!(op, Op::LogicalAnd | Op::LogicalOr);
        for it in &mut operands {
            if !is_tensor(it) && (needs_all || it.axes() & !of_tensors != 0) {
                *it = Value::Tensor(self.materialized(it.clone()));
            }
        }
        let mut args: Vec<Operand> = Vec::with_capacity(operands.len());
        for it in operands {
            let operand_type = it.dtype();
            args.push(match it {
                Value::Tensor(it) => self.with_axes(it, axes).id.into(),
                Value::Splat(it) => it.scalar.expr(operand_type, &mut self.out).into(),
            });
        }
        Ok(Value::Tensor(self.emit(axes, &shape, dtype, apply(op, args))))
    }
}

/// Returns the direction of a comparison, such as `LT`, and whether it compares by the total order of IEEE 754.
pub(super) fn comparison<'s>(op: &Operation<'s>) -> Option<(&'s str, bool)> {
    let mut words = op.positional.iter().filter_map(Attribute::word);
    let direction = op.keyword(&["comparison_direction"]).or_else(|| words.next())?;
    let order = op.keyword(&["compare_type"]).or_else(|| words.next());
    Some((direction, order == Some("TOTALORDER")))
}

/// Returns the name of an operation without its dialect.
pub(super) fn short_name<'s>(op: &Operation<'s>) -> &'s str {
    op.name.rsplit('.').next().unwrap_or_default()
}
