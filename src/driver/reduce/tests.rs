//! Tests reductions of bugs in passes. Real passes do not have these bugs, so the tests define faulty ones.

use grammar::{Diagnostic, Op, Program, Stmt};
use passes::{Arguments, Change, Pass, PassCall, Remarks};

use super::{
    Candidate, CommandRunner,
    failure_test::{FailureOracle, FailureTest, SameFailure},
    reduce,
};
use crate::session::Session;

const TEXT: &str = "\
%HostIrContainer { (T0_g_float[iS0{8}], T1_g_float[iS1{8}]) -> (T2_g_float[iS2{8}], T3_g_float[iS3{8}]) :
  Stream s0 = GetCurrentStream()
  FOR i4 from 0 to 3:
    SetCurrentStream(Stream i4)
    Synchronize(Stream s0)
    IF Manual ( i4 == 1 ):
      T2_g_float[iS2{8}]
         = Set( T0_g_float[iS0{8}] )
    ELSE:
      T5_g_float[iS5{8}]
         = Set( T1_g_float[iS1{8}] )
    SetCurrentStream(Stream s0)
    Synchronize(Stream i4)
  T3_g_float[iS3{8}]
     = Set( T1_g_float[iS1{8}] )
  T3_g_float[iS3{8}]
     = Set( T0_g_float[iS0{8}] )
} // %HostIrContainer
";

type Run = fn(&mut Program, &Arguments, &mut Remarks) -> Result<Change, Diagnostic>;

const fn pass(name: &'static str, run: Run) -> Pass {
    Pass { name, description: "", docs: "", options: &[], for_one_rank: false, for_conditions: false, run }
}

fn count(program: &Program, counted: fn(&Stmt) -> bool) -> usize {
    let stmts = program.body.into_iter().flat_map(|body| program.stmts_in(body));
    stmts.filter(|stmt| counted(&program.stmts[*stmt])).count()
}

/// Panics on a loop that waits for a stream.
static STUMBLER: Pass = pass("stumbler", |program, _, _| {
    let loops = count(program, |it| matches!(it, Stmt::For(_)));
    let waits = count(program, |it| matches!(it, Stmt::Op(it) if it.op == Op::Synchronize));
    let none: Option<usize> = if loops > 0 && waits > 0 { Some(program.blocks.len()) } else { None };
    let blocks: Vec<usize> = vec![0; program.blocks.len()];
    // This access is out of bounds, at an index that depends on the program.
    Ok(Change::from_flag(none.is_some_and(|at| blocks[at] == 1)))
});
/// Removes the second of two writes, as if the first were the only one.
static FORGETTER: Pass = pass("forgetter", |program, _, _| {
    let body = program.body().to_vec();
    let writes = |it: &&usize| matches!(&program.stmts[body[**it]], Stmt::Op(it) if it.op == Op::Set);
    let writes: Vec<usize> = (0..body.len()).collect::<Vec<_>>().iter().filter(writes).copied().collect();
    if let ([_, second, ..], Some(block)) = (writes.as_slice(), program.body) {
        program.blocks[block].remove(*second);
        return Ok(Change::Changed);
    }
    Ok(Change::Unchanged)
});

/// Returns the smallest program that fails like `TEXT` and the failure signatures, or what happens instead.
fn smallest(pass: &'static Pass, oracle: FailureOracle) -> Result<String, String> {
    let calls = [PassCall { pass, arguments: Arguments::defaults(pass), span: Default::default() }];
    let (session, running) =
        (Session::of_process("hir reduce", Default::default()), CommandRunner::default());
    let test =
        FailureTest { calls: &calls, checks_races: false, ..FailureTest::new(&session, &oracle, &running) };
    let start = Candidate::read(TEXT.to_owned()).map_err(|it| format!("{it:?}"))?;
    let signatures = test.failure_signatures(&start).map_err(|it| it.to_string())?;
    let reduced = reduce(start, 500, &SameFailure { test, signatures: signatures.clone() }, &mut |_, _| ());
    let signatures: Vec<String> = signatures.into_iter().collect();
    Ok(format!("{}\n{}", signatures.join("\n"), reduced.candidate.text))
}

#[test]
fn a_panic_of_a_pass() {
    let wanted = "\
stumbler: index out of bounds: the len is  but the index is 
%HostIrContainer { () -> () :
  Stream s0 = GetCurrentStream()
  FOR i4 from 0 to 0:
    Synchronize(Stream s0)
} // %HostIrContainer
";
    assert_eq!(smallest(&STUMBLER, FailureOracle::Crash), Ok(wanted.to_owned()));
}

#[test]
fn a_pass_that_changes_results() {
    let wanted = "\
wrong result T3
%HostIrContainer { (T0_g_float[iS0{1}], T1_g_float[iS1{1}]) -> (T3_g_float[iS3{1}]) :
  T3_g_float[iS3{1}]
     = Set( T1_g_float[iS1{1}] )
  T3_g_float[iS3{1}]
     = Set( T0_g_float[iS0{1}] )
} // %HostIrContainer
";
    assert_eq!(smallest(&FORGETTER, FailureOracle::WrongResult), Ok(wanted.to_owned()));
}

#[test]
fn what_does_not_fail_is_reported() {
    let crash = smallest(&FORGETTER, FailureOracle::Crash);
    assert_eq!(crash, Err("the passes do not fail".to_owned()));
    let wrong = smallest(&STUMBLER, FailureOracle::WrongResult);
    assert_eq!(
        wrong,
        Err("pass `stumbler` panicked: index out of bounds: the len is 6 but the index is 6".to_owned())
    );
    let race = smallest(&FORGETTER, FailureOracle::Race);
    assert_eq!(race, Err("the program does not fail under 10 schedules".to_owned()));
}
