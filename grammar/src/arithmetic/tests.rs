use super::{
    Constant::{self, Bool, Int},
    InfixOp, PrefixOp, fold_call, fold_infix, fold_prefix,
};
use crate::ops::Op;

#[test]
fn division_truncates_toward_zero() {
    assert_eq!(fold_infix(InfixOp::Div, Int(-7), Int(2)), Some(Int(-3)));
    assert_eq!(fold_infix(InfixOp::Rem, Int(-7), Int(2)), Some(Int(-1)));
    assert_eq!(fold_call(Op::CeilDiv, &[Int(7), Int(2)]), Some(Int(4)));
}

#[test]
fn what_does_not_fit_has_no_value() {
    let none: &[Option<Constant>] = &[
        fold_infix(InfixOp::Add, Int(i64::MAX), Int(1)),
        fold_infix(InfixOp::Div, Int(1), Int(0)),
        fold_infix(InfixOp::Rem, Int(1), Int(0)),
        fold_infix(InfixOp::Div, Int(i64::MIN), Int(-1)),
        fold_infix(InfixOp::Shl, Int(1), Int(64)),
        fold_infix(InfixOp::Shr, Int(1), Int(-1)),
        fold_prefix(PrefixOp::Neg, Int(i64::MIN)),
        fold_call(Op::Abs, &[Int(i64::MIN)]),
        fold_call(Op::CeilDiv, &[Int(1), Int(0)]),
        fold_call(Op::CeilDiv, &[Int(i64::MAX), Int(2)]),
    ];
    assert!(none.iter().all(Option::is_none), "{none:?}");
}

#[test]
fn truth_values_stay_truth_values_among_themselves() {
    assert_eq!(fold_infix(InfixOp::BitAnd, Bool(true), Bool(false)), Some(Bool(false)));
    assert_eq!(fold_infix(InfixOp::BitOr, Bool(true), Int(2)), Some(Int(3)));
    assert_eq!(fold_infix(InfixOp::Add, Bool(true), Bool(true)), Some(Int(2)));
    assert_eq!(fold_prefix(PrefixOp::Not, Int(3)), Some(Bool(false)));
    assert_eq!(fold_prefix(PrefixOp::BitNot, Bool(true)), None);
}
