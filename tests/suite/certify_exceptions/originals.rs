//! Random originals: programs whose operators make exceptions, and masks, guards and maxima that drop them.

use super::terms::{EXTENT, Id, Node, Op, Terms, Type};
use crate::rng::Rng;

/// Returns the program of a random number generator.
pub fn original(rng: &mut Rng) -> Terms {
    let base = rng.choose_cloned(&[
        Type::Float,
        Type::Float,
        Type::Float,
        Type::Float,
        Type::Half,
        Type::Bfloat,
        Type::Double,
    ]);
    let ranks = 1 + usize::from(rng.chance(40));
    let mut terms = Terms { nodes: Vec::new(), outputs: Vec::new(), inputs: 3, base, ranks };
    for number in 0..terms.inputs {
        terms.add(Node { op: Op::Input(number), of: Vec::new(), dtype: base, rows: EXTENT });
    }
    let depth = 1 + rng.below(3);
    let output = term(&mut terms, depth, rng);
    let is_computed = !matches!(terms.nodes[output].op, Op::Input(_) | Op::Const(_));
    let output = if is_computed { output } else { terms.op(Op::Infix("+"), &[0, 1]) };
    terms.outputs = vec![output];
    terms
}

fn term(terms: &mut Terms, depth: usize, rng: &mut Rng) -> Id {
    if depth == 0 {
        return if rng.chance(88) {
            rng.below(terms.inputs)
        } else {
            let text = rng.choose_cloned(&["0", "1", "2", "-1", "0.5", "100", "inf", "-inf"]);
            terms.number(text)
        };
    }
    match rng.below(22) {
        0..=3 => {
            let guarded = term(terms, depth - 1, rng);
            let condition = condition(terms, guarded, rng);
            let value = partial(terms, guarded, rng);
            let other = if rng.chance(30) { terms.number("0") } else { term(terms, depth - 1, rng) };
            let of = if rng.chance(70) { [condition, value, other] } else { [condition, other, value] };
            terms.op(Op::Where, &of)
        }
        4 | 5 => {
            let operand = term(terms, depth - 1, rng);
            partial(terms, operand, rng)
        }
        6..=8 => {
            let of = [term(terms, depth - 1, rng), term(terms, depth - 1, rng)];
            let sign = rng.choose_cloned(&["+", "-", "*"]);
            terms.op(Op::Infix(sign), &of)
        }
        9 => {
            let of = [term(terms, depth - 1, rng), term(terms, depth - 1, rng)];
            terms.op(Op::Infix("/"), &of)
        }
        10 | 11 => {
            let operand = term(terms, depth - 1, rng);
            let of = [partial(terms, operand, rng), term(terms, depth - 1, rng)];
            let name = rng.choose_cloned(&["max", "min", "fmax", "fmin"]);
            terms.op(Op::Call(name), &of)
        }
        12 => {
            let operand = term(terms, depth - 1, rng);
            let name = rng.choose_cloned(&["add", "add", "max", "fmax", "min", "fmin"]);
            terms.op(Op::Rows(name), &[operand])
        }
        13 => {
            let of = [term(terms, depth - 1, rng), term(terms, depth - 1, rng)];
            if rng.chance(60) { terms.op(Op::Matmul, &of) } else { terms.op(Op::Transpose, &of[..1]) }
        }
        14 => {
            let operand = term(terms, depth - 1, rng);
            let largest = terms.op(Op::Rows("max"), &[operand]);
            let shifted = terms.op(Op::Infix("-"), &[operand, largest]);
            let exp = terms.op(Op::Unary("exp"), &[shifted]);
            let sum = terms.op(Op::Rows("add"), &[exp]);
            terms.op(Op::Infix("/"), &[exp, sum])
        }
        15 => {
            let operand = term(terms, depth - 1, rng);
            let least = terms.number("0.5");
            let clamped = terms.op(Op::Call("max"), &[operand, least]);
            partial(terms, clamped, rng)
        }
        16 => {
            let operand = term(terms, depth - 1, rng);
            let condition = condition(terms, operand, rng);
            let value = partial(terms, operand, rng);
            let zero = terms.number("0");
            let selected = terms.op(Op::Where, &[condition, value, zero]);
            terms.op(Op::Rows("add"), &[selected])
        }
        17 | 18 => {
            let of = [0; 3].map(|_| term(terms, depth - 1, rng));
            let sum = terms.op(Op::Infix("+"), &of[..2]);
            let op = rng.choose_cloned(&[Op::Infix("+"), Op::Infix("*"), Op::Matmul]);
            terms.op(op, &[sum, of[2]])
        }
        // The order of a sum decides whether it is 0 or negative.
        19 | 20 => {
            let of = [0; 3].map(|_| rng.below(terms.inputs));
            let sum = terms.op(Op::Infix("+"), &of[..2]);
            let last = if rng.chance(60) { of[1] } else { of[2] };
            let difference = terms.op(Op::Infix(rng.choose_cloned(&["-", "-", "+"])), &[sum, last]);
            partial(terms, difference, rng)
        }
        _ => {
            let operand = term(terms, depth - 1, rng);
            let condition = condition(terms, operand, rng);
            let [zero, infinity] = ["0", "-inf"].map(|it| terms.number(it));
            let mask = terms.op(Op::Where, &[condition, zero, infinity]);
            let masked = terms.op(Op::Infix("+"), &[operand, mask]);
            terms.op(Op::Unary("exp"), &[masked])
        }
    }
}

/// Adds a comparison that is false where many functions of a number are not finite.
fn condition(terms: &mut Terms, of: Id, rng: &mut Rng) -> Id {
    let zero = terms.number("0");
    let sign = rng.choose_cloned(&[">", ">", "!=", "<", ">="]);
    terms.op(Op::Infix(sign), &[of, zero])
}

/// Adds a function that is not finite for some finite numbers.
pub fn partial(terms: &mut Terms, of: Id, rng: &mut Rng) -> Id {
    match rng.below(12) {
        0 | 1 => terms.op(Op::Unary("log"), &[of]),
        2 => terms.op(Op::Unary("sqrt"), &[of]),
        3 => terms.op(Op::Unary("rsqrt"), &[of]),
        4 => terms.op(Op::Unary("reciprocal"), &[of]),
        5 | 6 => {
            let hundred = terms.number("100");
            let scaled = terms.op(Op::Infix("*"), &[of, hundred]);
            terms.op(Op::Unary("exp"), &[scaled])
        }
        7 => {
            let exponent = rng.choose_cloned(&["0.5", "-1", "-2"]);
            let exponent = terms.number(exponent);
            terms.op(Op::Call("pow"), &[of, exponent])
        }
        8 => {
            let dividend = rng.below(terms.inputs);
            terms.op(Op::Infix("/"), &[dividend, of])
        }
        9 if terms.base != Type::Half => {
            let large = terms.number("60000");
            let scaled = terms.op(Op::Infix("*"), &[of, large]);
            let is_fused = rng.chance(50);
            let half = terms.cast(scaled, Type::Half, is_fused);
            terms.cast(half, terms.base, false)
        }
        _ => {
            let name = rng.choose_cloned(&["tanh", "sigmoid", "exp", "log"]);
            terms.op(Op::Unary(name), &[of])
        }
    }
}
