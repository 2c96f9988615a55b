//! Tests what the driver reports about passes that fail, and what it gives an oracle.

use std::cell::RefCell;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
};

use passes::{
    Arguments, Change, Pass, PassCall, PassEvent, Reference, Remarks, SemanticOracle, Settings, Verify,
    bisect, parse, run,
};

const TEXT: &str = "\
%HostIrContainer { (T0_g_float[iS0{8}]) -> (T1_g_float[iS1{8}]) :
  T1_g_float[iS1{8}]
     = Set( T0_g_float[iS0{8}] )
} // %HostIrContainer
";

/// A pass of this name, which rewrites the program of all ranks.
const fn pass(name: &'static str, run: Run) -> Pass {
    Pass { name, description: "", docs: "", options: &[], for_one_rank: false, for_conditions: false, run }
}

type Run = fn(&mut Program, &Arguments, &mut Remarks) -> Result<Change, Diagnostic>;

/// Empties the container but reports no change.
static LIAR: Pass = pass("liar", |program, _, _| {
    clear(program);
    Ok(Change::Unchanged)
});
/// Leaves a use of a tensor that nothing defines.
static BREAKER: Pass = pass("breaker", |program, _, _| {
    program.inputs.clear();
    Ok(Change::Changed)
});
static REFUSER: Pass = pass("refuser", refuse);
/// Removes all blocks, so that printing the program panics.
static DANGLER: Pass = pass("dangler", |program, _, _| {
    program.blocks = Default::default();
    Ok(Change::Changed)
});
/// Removes all blocks and then panics itself.
static THROWER: Pass = pass("thrower", |program, _, _| {
    program.blocks = Default::default();
    Ok(Change::from_flag(program.body().is_empty()))
});
static KEEP: Pass = pass("keep", |_, _, _| Ok(Change::Unchanged));
static CLEAR: Pass = pass("clear", |program, _, _| {
    clear(program);
    Ok(Change::Changed)
});

fn clear(program: &mut Program) {
    if let Some(body) = program.body {
        program.blocks[body].clear();
    }
}

fn refuse(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    Err(Diagnostic::new(Code::Unsupported, program.spans.header, "no", "not this one"))
}

fn call(pass: &'static Pass) -> PassCall {
    PassCall { pass, arguments: Arguments::defaults(pass), span: Default::default() }
}

/// Returns the result of a pass and the events.
fn outcome(pass: &'static Pass, settings: Settings<'_>) -> (String, String) {
    let (mut programs, _) = grammar::read(TEXT);
    let mut events = String::new();
    let mut result = Ok(());
    for program in &mut programs {
        result = run(program, &[call(pass)], settings, &mut |event| {
            events += match event {
                PassEvent::Before { .. } => "before ",
                PassEvent::After { change, .. } => match change.get() {
                    Change::Changed => "changed",
                    Change::Unchanged => "unchanged",
                },
                PassEvent::Failed { .. } => "failed",
            };
        });
    }
    (result.map_or_else(|it| format!("{it} (bug: {})", it.error.is_bug()), |()| "done".to_owned()), events)
}

#[test]
fn a_failing_pass_is_named() {
    let plain = Settings::default();
    let cases = [
        (&LIAR, "pass `liar` changed the program but reported no change (bug: true)", "before failed"),
        (
            &BREAKER,
            "pass `breaker` produced a program that the verifier rejects (bug: true)",
            "before failed",
        ),
        (&REFUSER, "pass `refuser` cannot rewrite this program (bug: false)", "before failed"),
        (
            &THROWER,
            "pass `thrower` panicked: index out of bounds: the len is 0 but the index is 0 (bug: true)",
            "before failed",
        ),
        (
            &DANGLER,
            "pass `dangler` panicked: index out of bounds: the len is 0 but the index is 0 (bug: true)",
            "before failed",
        ),
        (&CLEAR, "done", "before changed"),
    ];
    for (pass, result, events) in cases {
        assert_eq!(outcome(pass, plain), (result.to_owned(), events.to_owned()));
    }
    let off = Settings { verify: Verify::Off, roundtrip: false };
    assert_eq!(outcome(&LIAR, off), ("done".to_owned(), "before unchanged".to_owned()));
}

/// Returns the result of passes on a large program that is checked in a second thread, the passes that have passed the checks, and the
/// number of statements at the end.
fn concurrent_outcome(passes: &[&'static Pass]) -> (String, Vec<&'static str>, usize) {
    let copies =
        (1..=1000).map(|it| format!("  T{it}_g_float[iS{it}{{8}}]\n     = Set( T0_g_float[iS0{{8}}] )\n"));
    let header = "%HostIrContainer { (T0_g_float[iS0{8}]) -> (T1_g_float[iS1{8}]) :\n";
    let (mut programs, _) =
        grammar::read(&format!("{header}{}}} // %HostIrContainer\n", copies.collect::<String>()));
    let calls: Vec<PassCall> = passes.iter().map(|pass| call(pass)).collect();
    let settings = Settings { verify: Verify::Concurrent, roundtrip: false };
    let mut checked = Vec::new();
    let result = run(&mut programs[0], &calls, settings, &mut |event| {
        if let PassEvent::After { call, .. } = event {
            checked.push(call.pass.name);
        }
    });
    let text = result.map_or_else(|it| it.to_string(), |()| "done".to_owned());
    (text, checked, programs[0].body().len())
}

#[test]
fn the_first_pass_that_fails_is_named_although_the_next_one_has_run() {
    let rejected = "pass `breaker` produced a program that the verifier rejects";
    let hidden = "pass `liar` changed the program but reported no change";
    let refused = "pass `refuser` cannot rewrite this program";
    let cases: [(&[&'static Pass], &str, &[&str], usize); 7] = [
        (&[&KEEP, &CLEAR, &KEEP], "done", &["keep", "clear", "keep"], 0),
        (&[&KEEP, &BREAKER], rejected, &["keep"], 1000),
        (&[&KEEP, &BREAKER, &CLEAR, &KEEP], rejected, &["keep"], 1000),
        (&[&BREAKER, &THROWER], rejected, &[], 1000),
        (&[&BREAKER, &REFUSER], rejected, &[], 1000),
        (&[&LIAR, &KEEP], hidden, &[], 0),
        (&[&KEEP, &REFUSER, &CLEAR], refused, &["keep"], 1000),
    ];
    for (passes, result, checked, stmts) in cases {
        assert_eq!(concurrent_outcome(passes), (result.to_owned(), checked.to_vec(), stmts));
    }
}

/// An oracle that compares programs by their number of statements. An empty program is not a valid reference.
struct Length;

impl SemanticOracle for Length {
    fn reference(&self, program: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>> {
        match program.body().len() {
            0 => Err(vec![Diagnostic::new(Code::InvalidReference, program.spans.header, "empty", "here")]),
            wanted => Ok(Box::new(Statements(wanted))),
        }
    }
}

struct Statements(usize);

impl Reference for Statements {
    fn check_equivalent(&self, program: &Program, _: &Program) -> Result<(), Diagnostic> {
        if program.body().len() == self.0 {
            Ok(())
        } else {
            Err(Diagnostic::new(Code::Miscompiled, program.spans.header, "other", "here"))
        }
    }
}

#[test]
fn an_oracle_judges_the_meaning() {
    let settings = Settings { verify: Verify::Semantic(&Length), roundtrip: true };
    let wanted = "pass `clear` changed what the program means (bug: true)";
    assert_eq!(outcome(&CLEAR, settings), (wanted.to_owned(), "before failed".to_owned()));
    assert_eq!(outcome(&KEEP, settings), ("done".to_owned(), "before unchanged".to_owned()));
}

/// Copies the first statement of the body to its end.
fn grow(program: &mut Program) {
    if let Some(body) = program.body {
        let first = program.blocks[body][0];
        let copy = program.stmts[first].clone();
        let copy = program.stmts.push(copy);
        program.blocks[body].push(copy);
    }
}

static GROW: Pass = pass("grow", |program, _, _| {
    grow(program);
    Ok(Change::Changed)
});
/// The same, and the result is the program of one rank.
static SPECIALISE: Pass = Pass {
    for_one_rank: true,
    for_conditions: false,
    ..pass("specialise", |program, _, _| {
        grow(program);
        let rank = program.intern_int(0);
        program.options.insert("rank".to_owned(), rank);
        Ok(Change::Changed)
    })
};

/// An oracle that accepts all programs, and records the numbers of statements of each and of what the other ranks run.
#[derive(Default)]
struct Recorder(RefCell<Vec<[usize; 2]>>);

impl SemanticOracle for Recorder {
    fn reference(&self, _: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>> {
        Ok(Box::new(Recorded(&self.0)))
    }
}

struct Recorded<'a>(&'a RefCell<Vec<[usize; 2]>>);

impl Reference for Recorded<'_> {
    fn check_equivalent(&self, program: &Program, all_ranks: &Program) -> Result<(), Diagnostic> {
        self.0.borrow_mut().push([program, all_ranks].map(|it| it.body().len()));
        Ok(())
    }
}

#[test]
fn the_other_ranks_run_the_last_program_that_is_not_of_one_rank() {
    let (mut programs, _) = grammar::read(&TEXT.replace(" :\n", " :\n  SetCurrentStream(Stream 0)\n"));
    let recorder = Recorder::default();
    let settings = Settings { verify: Verify::Semantic(&recorder), roundtrip: false };
    let calls = [&GROW, &SPECIALISE, &SPECIALISE].map(call);
    let done =
        run(&mut programs[0], &calls, settings, &mut |_| ()).map_err(|it| format!("{it}: {:?}", it.error));
    assert_eq!(done, Ok(()));
    assert_eq!(*recorder.0.borrow(), [[3, 3], [4, 3], [5, 3]]);
}

#[test]
fn a_program_without_meaning_is_not_the_fault_of_a_pass() {
    let (mut programs, _) = grammar::read(TEXT);
    let settings = Settings { verify: Verify::Semantic(&Length), roundtrip: false };
    for program in &mut programs {
        clear(program);
        let failure = run(program, &[call(&KEEP)], settings, &mut |_| ()).map_err(|it| it.to_string());
        let wanted = "the program before pass `keep` cannot run or already fails, so no pass can be checked against it";
        assert_eq!(failure, Err(wanted.to_owned()));
    }
}

#[test]
fn bisection_finds_the_first_bad_pass() {
    let (programs, _) = grammar::read(TEXT);
    let culprit = |passes: &[&'static Pass]| {
        let calls: Vec<PassCall> = passes.iter().map(|pass| call(pass)).collect();
        let found = programs.first().map(|program| bisect(program, &calls, &Length));
        found.map(|it| match it {
            Ok(found) => found.map(|it| (it.position, it.error.to_string(), it.after.body().len())),
            Err(failure) => Some((9, failure.to_string(), 0)),
        })
    };
    let miscompiled = "pass `clear` changed what the program means".to_owned();
    assert_eq!(culprit(&[]), Some(None));
    assert_eq!(culprit(&[&KEEP, &KEEP]), Some(None));
    assert_eq!(culprit(&[&CLEAR]), Some(Some((0, miscompiled.clone(), 0))));
    assert_eq!(culprit(&[&KEEP, &KEEP, &KEEP, &CLEAR, &KEEP]), Some(Some((3, miscompiled.clone(), 0))));
    // The pass that fails comes after the one that miscompiles.
    assert_eq!(culprit(&[&KEEP, &CLEAR, &KEEP, &REFUSER]), Some(Some((1, miscompiled, 0))));
    let refused = "pass `refuser` cannot rewrite this program".to_owned();
    assert_eq!(culprit(&[&KEEP, &REFUSER, &CLEAR]), Some(Some((1, refused, 1))));
}

#[test]
fn a_pass_that_changes_nothing_says_so() {
    let (mut programs, _) = grammar::read(TEXT);
    let calls = parse("@default").unwrap_or_default();
    let mut changes = Vec::new();
    for program in &mut programs {
        let result = run(program, &calls, Settings::default(), &mut |event| {
            if let PassEvent::After { call, change, .. } = event {
                changes.push((call.pass.name, change.get()));
            }
        });
        assert!(result.is_ok());
        assert!(program.stmts.iter().all(|(_, stmt)| matches!(stmt, Stmt::Op(_))));
    }
    let passes = ["canonicalize", "common-subexpression", "remove-dead-code"];
    assert_eq!(changes, passes.map(|it| (it, Change::Unchanged)));
}
