//! `StreamFacts` compared with plans, which have the stream of each instruction of each rank.

#![allow(clippy::panic, reason = "a failed step ends the test")]

mod judge;
mod random_program;

use std::cell::{Cell, RefCell};

use grammar::{expr_text, ir::Stmt};
use hir_ir::streams::StreamValue;
use judge::{Checked, STUCK, Tally, judge};
use proptest::{
    collection::vec,
    prelude::{ProptestConfig, any},
    test_runner::{RngSeed, TestCaseError, TestError, TestRunner},
};
use random_program::{container, random_text};

#[test]
fn facts_hold_in_the_plans_of_random_programs() {
    const PROGRAMS: u32 = 3000;
    let config = ProptestConfig {
        cases: PROGRAMS,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(14),
        max_shrink_iters: 5000,
        ..ProptestConfig::default()
    };
    let (tally, is_stuck) = (RefCell::new(Tally::default()), Cell::new(false));
    let result = TestRunner::new(config).run(&vec(any::<u32>(), 0..160), |choices| {
        // An analysis that does not end still runs: smaller programs are not tried.
        if is_stuck.get() {
            return Ok(());
        }
        let text = random_text(choices);
        let judged = judge(&text, &mut tally.borrow_mut());
        judged.map(|_| ()).map_err(|fault| {
            is_stuck.set(fault.starts_with(STUCK));
            TestCaseError::fail(format!("{fault}\n{text}"))
        })
    });
    if let Err(TestError::Fail(fault, _) | TestError::Abort(fault)) = result {
        panic!("{fault}");
    }
    let Tally { claims, planned, nested } = tally.into_inner();
    assert!(planned > PROGRAMS as usize / 2, "{planned} of {PROGRAMS} programs have plans");
    assert!(nested > PROGRAMS as usize / 10, "{nested} capture a name in loops or branches only");
    for kind in ["entry", "index", "captured", "joined", "setter"] {
        assert!(claims.get(kind).is_some_and(|it| *it > 3000), "{kind}: {claims:?}");
    }
}

/// Checks the facts of a program, and compares the stream of the computation of each of some tensors.
fn check(body: &str, expected: &[(u32, &str)]) -> Checked {
    let judged = judge(&container(9, body), &mut Tally::default())?;
    let (program, facts) = judged.ok_or("a name is not captured")?;
    for (tensor, stream) in expected {
        let is_result = |it: &Stmt| {
            let out = it.op().and_then(|it| it.out_tensor());
            out.is_some_and(|it| program.tensors[it].number == *tensor)
        };
        let stmt = program.stmts.iter().find(|(_, it)| is_result(it)).map(|(id, _)| id);
        let text = match stmt.and_then(|it| facts.current(it)).ok_or("there is no value")? {
            StreamValue::Entry => "entry".to_owned(),
            StreamValue::Index(it) => expr_text(&program, it),
            StreamValue::Captured(name) => format!("s{name}"),
            StreamValue::Joined(_) => "one of several".to_owned(),
        };
        assert_eq!(text, *stream, "T{tensor} in {body}");
    }
    Ok(())
}

#[test]
fn branches_that_set_the_same_stream_are_one() -> Checked {
    check(
        "
  Stream s0 = GetCurrentStream()
  IF Manual ( rank == 0 ):
    SetCurrentStream(Stream 1)
  ELSE:
    SetCurrentStream(Stream 1)
  Synchronize(Stream s0)
  T2 = neg(T0)
  SetCurrentStream(Stream s0)
  Synchronize(Stream 1)
  T1 = abs(T2)
",
        &[(2, "1"), (1, "entry")],
    )
}

#[test]
fn a_branch_without_another_may_be_left_out() -> Checked {
    check(
        "
  IF Manual ( rank == 0 ):
    SetCurrentStream(Stream 1)
    T2 = neg(T0)
  T1 = neg(T0)
",
        &[(2, "1"), (1, "one of several")],
    )
}

#[test]
fn branches_capture_different_streams() -> Checked {
    check(
        "
  Stream s0 = GetCurrentStream()
  T2 = neg(T0)
  IF Manual ( rank == 0 ):
    Stream s1 = GetCurrentStream()
  ELSE:
    SetCurrentStream(Stream 1)
    Stream s1 = GetCurrentStream()
    SetCurrentStream(Stream s0)
  SetCurrentStream(Stream s1)
  Synchronize(Stream s0)
  T3 = abs(T2)
  SetCurrentStream(Stream s0)
  T1 = exp(T0)
  Synchronize(Stream s1)
",
        &[(2, "entry"), (3, "s1"), (1, "entry")],
    )
}

#[test]
fn one_path_captures_before_the_others() -> Checked {
    let then = "
  IF Manual ( rank == 0 ):
    Stream s0 = GetCurrentStream()
";
    let other = "
  IF Manual ( rank == 0 ):
    T3 = neg(T0)
  ELSE:
    Stream s0 = GetCurrentStream()
";
    let nested = "
  IF Manual ( rank == 0 ):
    Stream s0 = GetCurrentStream()
  ELSE:
    IF Manual ( rank == 7 ):
      Stream s0 = GetCurrentStream()
";
    let rest = "
  SetCurrentStream(Stream 1)
  Stream s0 = GetCurrentStream()
  SetCurrentStream(Stream 2)
  T2 = neg(T0)
  SetCurrentStream(Stream s0)
  T1 = neg(T0)
";
    [then, other, nested].iter().try_for_each(|it| check(&format!("{it}{rest}"), &[(2, "2"), (1, "s0")]))
}

#[test]
fn the_first_iteration_captures() -> Checked {
    check(
        "
  FOR i5 from 0 to 3:
    SetCurrentStream(Stream i5)
    Stream s0 = GetCurrentStream()
    T2 = neg(T0)
  T3 = neg(T0)
  SetCurrentStream(Stream s0)
  T1 = neg(T0)
",
        &[(2, "i5"), (3, "one of several"), (1, "s0")],
    )
}

#[test]
fn a_nested_loop_captures() -> Checked {
    check(
        "
  FOR i5 from 0 to 2:
    FOR i6 from 0 to 2:
      SetCurrentStream(Stream ( i5 + i6 ))
      IF Manual ( i6 == 1 ):
        Stream s0 = GetCurrentStream()
      T2 = neg(T0)
    SetCurrentStream(Stream s0)
    T3 = neg(T0)
  T4 = neg(T0)
  SetCurrentStream(Stream s0)
  T1 = neg(T0)
",
        &[(2, "( i5 + i6 )"), (3, "s0"), (4, "s0"), (1, "s0")],
    )
}

#[test]
fn a_scalar_definition_leaves_a_captured_stream() -> Checked {
    check(
        "
  i7 = 1;
  SetCurrentStream(Stream i7)
  Stream s0 = GetCurrentStream()
  T2 = neg(T0)
  i7 = 2;
  T3 = neg(T0)
  SetCurrentStream(Stream s0)
  T1 = neg(T0)
",
        &[(2, "i7"), (3, "one of several"), (1, "s0")],
    )
}

/// The loop sets no stream, but changes a scalar of the current one's index.
#[test]
fn a_loop_changes_the_index_of_the_current_stream() -> Checked {
    check(
        "
  i7 = 1;
  SetCurrentStream(Stream ( i7 % 2 ))
  FOR i5 from 0 to 2:
    T2 = neg(T0)
    i7 = ( i7 + 1 );
  T1 = neg(T0)
",
        &[(2, "one of several"), (1, "one of several")],
    )
}

/// As above. The inner loop has the index of the outer one.
#[test]
fn a_nested_loop_changes_the_index_of_the_current_stream() -> Checked {
    check(
        "
  FOR i5 from 0 to 2:
    SetCurrentStream(Stream i5)
    FOR i6 from 0 to 2:
      T2 = neg(T0)
      FOR i5 from 0 to 2:
        T3 = neg(T0)
  T1 = neg(T0)
",
        &[(2, "one of several"), (3, "one of several"), (1, "one of several")],
    )
}

/// The branch ends with the stream of the same text, but of another value of its scalar.
#[test]
fn a_branch_sets_the_same_index_of_another_value() -> Checked {
    check(
        "
  i7 = 1;
  SetCurrentStream(Stream i7)
  T2 = neg(T0)
  IF Manual ( rank == 0 ):
    i7 = 2;
    SetCurrentStream(Stream i7)
  T1 = neg(T0)
",
        &[(2, "i7"), (1, "i7")],
    )
}

/// Behind the branch, each iteration has another stream than the one that the first iteration has captured there.
#[test]
fn a_loop_captures_behind_a_branch() -> Checked {
    check(
        "
  FOR i5 from 0 to 3:
    IF Manual ( i5 == 0 ):
      SetCurrentStream(Stream 1)
    ELSE:
      SetCurrentStream(Stream 2)
    T2 = neg(T0)
    Stream s0 = GetCurrentStream()
    SetCurrentStream(Stream s0)
    T1 = neg(T0)
",
        &[(2, "one of several"), (1, "s0")],
    )
}
