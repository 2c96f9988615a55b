use super::{
    Constant::{self, Bool, Int},
    call, infix, prefix,
};

#[test]
fn division_truncates_toward_zero() {
    assert_eq!(infix("/", Int(-7), Int(2)), Some(Int(-3)));
    assert_eq!(infix("%", Int(-7), Int(2)), Some(Int(-1)));
    assert_eq!(call("ceilDiv", &[Int(7), Int(2)]), Some(Int(4)));
}

#[test]
fn what_does_not_fit_has_no_value() {
    let none: &[Option<Constant>] = &[
        infix("+", Int(i64::MAX), Int(1)),
        infix("/", Int(1), Int(0)),
        infix("%", Int(1), Int(0)),
        infix("/", Int(i64::MIN), Int(-1)),
        infix("<<", Int(1), Int(64)),
        infix(">>", Int(1), Int(-1)),
        prefix("-", Int(i64::MIN)),
        call("abs", &[Int(i64::MIN)]),
        call("ceilDiv", &[Int(1), Int(0)]),
        call("ceilDiv", &[Int(i64::MAX), Int(2)]),
    ];
    assert!(none.iter().all(Option::is_none), "{none:?}");
}

#[test]
fn truth_values_stay_truth_values_among_themselves() {
    assert_eq!(infix("&", Bool(true), Bool(false)), Some(Bool(false)));
    assert_eq!(infix("|", Bool(true), Int(2)), Some(Int(3)));
    assert_eq!(infix("+", Bool(true), Bool(true)), Some(Int(2)));
    assert_eq!(prefix("!", Int(3)), Some(Bool(false)));
    assert_eq!(prefix("~", Bool(true)), None);
}
