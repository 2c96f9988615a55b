//! Random rewrites of programs: some keep the results of all inputs, others only those of a field, which has no exceptions.

use super::{
    originals::partial,
    terms::{EXTENT, Id, Node, Op, Terms, Type},
};
use crate::rng::Rng;

/// A rewrite of the value of one node. It returns `None` if it does not apply there.
pub struct Rewrite {
    pub name: &'static str,
    /// True if the results are the same for all inputs, also where they are infinite or NaN.
    pub is_right: bool,
    apply: fn(&mut Terms, Id, &mut Rng) -> Option<()>,
}

const fn right(name: &'static str, apply: fn(&mut Terms, Id, &mut Rng) -> Option<()>) -> Rewrite {
    Rewrite { name, is_right: true, apply }
}

const fn field(name: &'static str, apply: fn(&mut Terms, Id, &mut Rng) -> Option<()>) -> Rewrite {
    Rewrite { name, is_right: false, apply }
}

/// All rewrites.
pub const REWRITES: &[Rewrite] = &[
    right("commute", commute),
    right("copy", copy),
    right("reassociate", reassociate),
    right("transpose-twice", transpose_twice),
    right("transpose-operands", transpose_operands),
    right("split-rows", split_rows),
    right("swap-branches", swap_branches),
    right("function-of-where", function_of_where),
    right("recompute", recompute),
    right("turn-comparison", turn_comparison),
    right("sum-by-matmul", sum_by_matmul),
    right("through-double", through_double),
    right("guard-operand", guard_operand),
    right("broadcast-of-ranks", broadcast_of_ranks),
    right("rows-of-ranks", rows_of_ranks),
    right("shard-rows", shard_rows),
    field("fmax-of-ranks", fmax_of_ranks),
    field("sum-of-ranks", sum_of_ranks),
    field("where-by-mask", where_by_mask),
    field("where-by-mask", where_by_mask),
    field("masked-sum", masked_sum),
    field("add-zero-times", add_zero_times),
    field("add-zero-times", add_zero_times),
    field("add-self-difference", add_self_difference),
    field("add-and-subtract", add_and_subtract),
    field("times-self-quotient", times_self_quotient),
    field("max-is-fmax", max_is_fmax),
    field("max-is-fmax", max_is_fmax),
    field("max-by-where", max_by_where),
    field("through-half", through_half),
    field("through-half", through_half),
    field("quotient-by-product", quotient_by_product),
    field("remove-guard", remove_guard),
    field("distribute", distribute),
    field("times-identity", times_identity),
    field("negate-comparison", negate_comparison),
    field("mask-by-exp", mask_by_exp),
    field("scale-by-one", scale_by_one),
    field(REORDER, reorder_sum),
    field(REORDER, reorder_sum),
];

/// The name of the rewrite that sums in another order, so that rounding decides about exceptions.
pub const REORDER: &str = "reorder-sum";

/// Makes one random rewrite where it applies, and returns it; `None` if no attempt applies.
pub fn rewrite(terms: &mut Terms, rng: &mut Rng) -> Option<&'static Rewrite> {
    for _ in 0..20 {
        let chosen = &REWRITES[rng.below(REWRITES.len())];
        let nodes = terms.needed_by(&terms.outputs);
        for at in rng.permutation(nodes.len()).into_iter().map(|it| nodes[it]) {
            let is_free = !matches!(terms.nodes[at].op, Op::Input(_) | Op::Const(_)) && !terms.is_shard(at);
            if is_free && (chosen.apply)(terms, at, rng).is_some() {
                return Some(chosen);
            }
        }
    }
    None
}

/// Moves the node to a new number, so that it is an operand of what takes its place.
fn moved(terms: &mut Terms, at: Id) -> Id {
    terms.add(terms.nodes[at].clone())
}

/// Returns nothing unless the node is a whole tensor of numbers.
fn number(terms: &Terms, at: Id) -> Option<()> {
    (terms.nodes[at].dtype == terms.base && terms.nodes[at].rows == EXTENT).then_some(())
}

fn set(terms: &mut Terms, at: Id, op: Op, of: &[Id]) -> Option<()> {
    terms.nodes[at].op = op;
    terms.nodes[at].of = of.to_vec();
    Some(())
}

/// Returns a node of operands that the node may have without a cycle: an input, or a node that it needs.
fn operand(terms: &Terms, at: Id, rng: &mut Rng) -> Id {
    let below = terms.needed_by(&[at]);
    let is_number = |it: &Id| number(terms, *it).is_some() && *it != at && !terms.is_shard(*it);
    let fit: Vec<Id> = below.into_iter().filter(is_number).collect();
    if fit.is_empty() || rng.chance(60) { rng.below(terms.inputs) } else { rng.choose_cloned(&fit) }
}

fn commute(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let commutes = match terms.nodes[at].op {
        Op::Infix(sign) => ["+", "*", "==", "!=", "&&", "||"].contains(&sign),
        Op::Call(name) => ["max", "min", "fmax", "fmin"].contains(&name),
        _ => false,
    };
    commutes.then(|| terms.nodes[at].of.reverse())
}

fn copy(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let old = moved(terms, at);
    set(terms, at, Op::Copy, &[old])
}

fn reassociate(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let outer = terms.nodes[at].clone();
    let (Op::Infix("+" | "*"), &[inner, last]) = (&outer.op, &outer.of[..]) else { return None };
    let inner = terms.nodes[inner].clone();
    if inner.op != outer.op {
        return None;
    }
    let of = [inner.of[1], last];
    let sum = terms.op(outer.op.clone(), &of);
    set(terms, at, outer.op, &[inner.of[0], sum])
}

/// Makes `a + (b - c)` of `(a + b) - c`.
fn reorder_sum(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let outer = terms.nodes[at].clone();
    let (Op::Infix("+" | "-"), &[inner, last]) = (&outer.op, &outer.of[..]) else { return None };
    let inner = terms.nodes[inner].clone();
    if inner.op != Op::Infix("+") {
        return None;
    }
    let rest = terms.op(outer.op, &[inner.of[1], last]);
    set(terms, at, inner.op, &[inner.of[0], rest])
}

fn transpose_twice(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let node = terms.nodes[at].clone();
    if node.rows != EXTENT {
        return None;
    }
    let old = moved(terms, at);
    let once = terms.add(Node { op: Op::Transpose, of: vec![old], ..node });
    set(terms, at, Op::Transpose, &[once])
}

/// Computes an operator by element from other operands: `part` makes them.
fn elementwise(terms: &mut Terms, at: Id, rows: usize, part: &dyn Fn(&Node) -> Op) -> Option<Id> {
    let mut node = terms.nodes[at].clone();
    for of in &mut node.of {
        let mut operand = Node { rows, ..terms.nodes[*of].clone() };
        if !matches!(operand.op, Op::Const(_)) {
            operand.op = part(&operand);
            operand.of = vec![*of];
        }
        *of = terms.add(operand);
    }
    node.rows = rows;
    Some(terms.add(node))
}

fn transpose_operands(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    if !terms.nodes[at].op.is_elementwise() || terms.nodes[at].rows != EXTENT {
        return None;
    }
    let other = elementwise(terms, at, EXTENT, &|_| Op::Transpose)?;
    set(terms, at, Op::Transpose, &[other])
}

fn split_rows(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    if !terms.nodes[at].op.is_elementwise() || terms.nodes[at].rows != EXTENT {
        return None;
    }
    let half = |terms: &mut Terms, number| elementwise(terms, at, EXTENT / 2, &move |_| Op::Half(number));
    let halves = [half(terms, 0)?, half(terms, 1)?];
    set(terms, at, Op::Cat, &halves)
}

fn swap_branches(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Where, &[condition, one, other]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    let not = terms.op(Op::Not, &[condition]);
    set(terms, at, Op::Where, &[not, other, one])
}

/// A function of a choice is a choice of functions.
fn function_of_where(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let node = terms.nodes[at].clone();
    let (Op::Unary(_), &[chosen]) = (&node.op, &node.of[..]) else { return None };
    let inner = terms.nodes[chosen].clone();
    let (Op::Where, &[condition, one, other]) = (&inner.op, &inner.of[..]) else { return None };
    let [one, other] = [one, other].map(|it| terms.op(node.op.clone(), &[it]));
    set(terms, at, Op::Where, &[condition, one, other])
}

fn recompute(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let operand = rng.below(terms.nodes[at].of.len());
    let of = *terms.nodes[at].of.get(operand)?;
    if matches!(terms.nodes[of].op, Op::Input(_) | Op::Const(_)) {
        return None;
    }
    let again = moved(terms, of);
    terms.nodes[at].of[operand] = again;
    Some(())
}

fn turn_comparison(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let turned = match terms.nodes[at].op {
        Op::Infix("<") => ">",
        Op::Infix(">") => "<",
        Op::Infix("<=") => ">=",
        Op::Infix(">=") => "<=",
        _ => return None,
    };
    terms.nodes[at].op = Op::Infix(turned);
    terms.nodes[at].of.reverse();
    Some(())
}

fn sum_by_matmul(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Rows("add"), &[of]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else { return None };
    let one = terms.number("1");
    set(terms, at, Op::Matmul, &[of, one])
}

fn through_double(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let old = moved(terms, at);
    let double = terms.cast(old, Type::Double, false);
    (terms.base != Type::Double).then_some(())?;
    set(terms, at, Op::Cast(false), &[double])
}

/// A function whose result is chosen where a condition holds takes a harmless operand where it does not.
fn guard_operand(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Where, &[condition, value, other]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    let function = terms.nodes[value].clone();
    let (Op::Unary(_), &[of]) = (&function.op, &function.of[..]) else { return None };
    let one = terms.number("1");
    let guarded = terms.op(Op::Where, &[condition, of, one]);
    let value = terms.op(function.op, &[guarded]);
    set(terms, at, Op::Where, &[condition, value, other])
}

/// Returns nothing unless the node is a whole tensor of numbers of two ranks.
fn of_ranks(terms: &Terms, at: Id) -> Option<()> {
    (terms.ranks == 2).then_some(())?;
    number(terms, at)
}

fn broadcast_of_ranks(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    of_ranks(terms, at)?;
    let old = moved(terms, at);
    set(terms, at, Op::Broadcast, &[old])
}

fn rows_of_ranks(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    of_ranks(terms, at)?;
    let Op::Rows(op @ ("add" | "max" | "min")) = terms.nodes[at].op else { return None };
    terms.nodes[at].op = Op::RowsOfRanks(op);
    Some(())
}

/// NCCL's maximum need not be that of `fmax`.
fn fmax_of_ranks(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    of_ranks(terms, at)?;
    let Op::Rows(op @ ("fmax" | "fmin")) = terms.nodes[at].op else { return None };
    terms.nodes[at].op = Op::RowsOfRanks(op);
    Some(())
}

/// Each rank computes an operator for its rows.
fn shard_rows(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    of_ranks(terms, at)?;
    let mut node = terms.nodes[at].clone();
    node.op.is_elementwise().then_some(())?;
    for (place, of) in terms.nodes[at].of.clone().into_iter().enumerate() {
        if !terms.is_inline(&node, place) {
            let operand = terms.nodes[of].clone();
            node.of[place] = terms.add(Node { op: Op::Shard, of: vec![of], ..operand });
        }
    }
    let own = terms.add(node);
    set(terms, at, Op::Gather, &[own])
}

/// What both ranks have, twice and less once.
fn sum_of_ranks(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    of_ranks(terms, at)?;
    let old = moved(terms, at);
    let twice = terms.op(Op::SumOfRanks, &[old]);
    set(terms, at, Op::Infix("-"), &[twice, old])
}

fn where_by_mask(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Where, &[condition, one, other]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    let mask = terms.cast(condition, terms.base, false);
    if terms.nodes[other].op == Op::Const("0") {
        return set(terms, at, Op::Infix("*"), &[mask, one]);
    }
    let rest = if rng.chance(50) {
        let not = terms.op(Op::Not, &[condition]);
        terms.cast(not, terms.base, false)
    } else {
        let number = terms.number("1");
        terms.op(Op::Infix("-"), &[number, mask])
    };
    let one = terms.op(Op::Infix("*"), &[mask, one]);
    let other = terms.op(Op::Infix("*"), &[rest, other]);
    set(terms, at, Op::Infix("+"), &[one, other])
}

/// A sum of what a condition selects is a product with ones of what a mask multiplies.
fn masked_sum(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Rows("add"), &[of]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else { return None };
    let selected = terms.nodes[of].clone();
    let (Op::Where, &[condition, value, other]) = (&selected.op, &selected.of[..]) else { return None };
    if terms.nodes[other].op != Op::Const("0") {
        return None;
    }
    let mask = terms.cast(condition, terms.base, false);
    let product = terms.op(Op::Infix("*"), &[mask, value]);
    let one = terms.number("1");
    set(terms, at, Op::Matmul, &[product, one])
}

/// Prepares a value of which the node's own is a part: its new number, and a function that is not finite everywhere.
fn with_partial(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<[Id; 2]> {
    number(terms, at)?;
    let operand = operand(terms, at, rng);
    let old = moved(terms, at);
    Some([old, partial(terms, operand, rng)])
}

fn add_zero_times(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let [old, function] = with_partial(terms, at, rng)?;
    let zero = terms.number("0");
    let product = terms.op(Op::Infix("*"), &[function, zero]);
    set(terms, at, Op::Infix("+"), &[old, product])
}

fn add_self_difference(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let [old, function] = with_partial(terms, at, rng)?;
    let difference = terms.op(Op::Infix("-"), &[function, function]);
    set(terms, at, Op::Infix("+"), &[old, difference])
}

fn add_and_subtract(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let [old, function] = with_partial(terms, at, rng)?;
    let sum = terms.op(Op::Infix("+"), &[old, function]);
    set(terms, at, Op::Infix("-"), &[sum, function])
}

fn times_self_quotient(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let [old, function] = with_partial(terms, at, rng)?;
    let quotient = terms.op(Op::Infix("/"), &[function, function]);
    set(terms, at, Op::Infix("*"), &[old, quotient])
}

fn scale_by_one(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    let [old, function] = with_partial(terms, at, rng)?;
    let [zero, one] = ["0", "1"].map(|it| terms.number(it));
    let product = terms.op(Op::Infix("*"), &[function, zero]);
    let scale = terms.op(Op::Infix("+"), &[product, one]);
    set(terms, at, Op::Infix("*"), &[old, scale])
}

fn max_is_fmax(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let other = |name: &str| match name {
        "max" => Some("fmax"),
        "fmax" => Some("max"),
        "min" => Some("fmin"),
        "fmin" => Some("min"),
        _ => None,
    };
    terms.nodes[at].op = match terms.nodes[at].op {
        Op::Call(name) => Op::Call(other(name)?),
        Op::Rows(name) => Op::Rows(other(name)?),
        _ => return None,
    };
    Some(())
}

fn max_by_where(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Call("max" | "fmax"), &[one, other]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    let condition = terms.op(Op::Infix(">"), &[one, other]);
    set(terms, at, Op::Where, &[condition, one, other])
}

fn through_half(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    number(terms, at)?;
    if terms.base == Type::Half {
        return None;
    }
    let old = moved(terms, at);
    let is_fused = matches!(terms.nodes[old].op, Op::Infix(_)) && rng.chance(50);
    let half = terms.cast(old, Type::Half, is_fused);
    set(terms, at, Op::Cast(false), &[half])
}

fn quotient_by_product(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Infix("/"), &[dividend, divisor]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    let reciprocal = terms.op(Op::Unary("reciprocal"), &[divisor]);
    set(terms, at, Op::Infix("*"), &[dividend, reciprocal])
}

fn remove_guard(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Unary(_), &[guarded]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else { return None };
    let inner = terms.nodes[guarded].clone();
    let operand = match inner.op {
        Op::Call("max" | "min" | "fmax" | "fmin") => inner.of[0],
        Op::Where => inner.of[1],
        _ => return None,
    };
    terms.nodes[at].of = vec![operand];
    Some(())
}

fn distribute(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let outer = terms.nodes[at].clone();
    let (Op::Infix("*") | Op::Matmul, &[one, other]) = (&outer.op, &outer.of[..]) else { return None };
    let (sum, is_first) = if matches!(terms.nodes[one].op, Op::Infix("+" | "-")) {
        (terms.nodes[one].clone(), true)
    } else {
        (terms.nodes[other].clone(), false)
    };
    let (Op::Infix("+" | "-"), &[left, right]) = (&sum.op, &sum.of[..]) else { return None };
    let of = |it| if is_first { [it, other] } else { [one, it] };
    let [left, right] = [left, right].map(|it| terms.op(outer.op.clone(), &of(it)));
    set(terms, at, sum.op, &[left, right])
}

fn times_identity(terms: &mut Terms, at: Id, rng: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let old = moved(terms, at);
    let eye = terms.op(Op::Eye, &[]);
    set(terms, at, Op::Matmul, &if rng.chance(50) { [old, eye] } else { [eye, old] })
}

fn negate_comparison(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    let node = terms.nodes[at].clone();
    let opposite = match node.op {
        Op::Infix("<") => ">=",
        Op::Infix(">") => "<=",
        Op::Infix("<=") => ">",
        Op::Infix(">=") => "<",
        _ => return None,
    };
    let comparison = terms.add(Node { op: Op::Infix(opposite), ..node });
    set(terms, at, Op::Not, &[comparison])
}

/// A choice between an exponential and zero is the exponential of a sum with minus infinity.
fn mask_by_exp(terms: &mut Terms, at: Id, _: &mut Rng) -> Option<()> {
    number(terms, at)?;
    let (Op::Where, &[condition, value, other]) = (&terms.nodes[at].op, &terms.nodes[at].of[..]) else {
        return None;
    };
    if terms.nodes[other].op != Op::Const("0") {
        return None;
    }
    let [zero, infinity] = ["0", "-inf"].map(|it| terms.number(it));
    let mask = terms.op(Op::Where, &[condition, zero, infinity]);
    let function = terms.nodes[value].clone();
    if let (Op::Unary("exp"), &[of]) = (&function.op, &function.of[..]) {
        let sum = terms.op(Op::Infix("+"), &[of, mask]);
        return set(terms, at, Op::Unary("exp"), &[sum]);
    }
    let factor = terms.op(Op::Unary("exp"), &[mask]);
    set(terms, at, Op::Infix("*"), &[value, factor])
}
