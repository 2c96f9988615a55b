//! What the driver reports about passes that go wrong.

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
};

use crate::{Arguments, Change, Event, Pass, PassCall, SemanticOracle, Settings, Verify, parse, run};

const TEXT: &str = "\
%HostIrContainer { (T0_g_float[iS0{8}]) -> (T1_g_float[iS1{8}]) :
  T1_g_float[iS1{8}]
     = Set( T0_g_float[iS0{8}] )
} // %HostIrContainer
";

/// Empties the container without saying so.
static LIAR: Pass = Pass {
    name: "liar",
    description: "",
    options: &[],
    run: |program, _| {
        clear(program);
        Ok(Change::Unchanged)
    },
};
/// Reads a tensor that nothing defines.
static BREAKER: Pass = Pass {
    name: "breaker",
    description: "",
    options: &[],
    run: |program, _| {
        program.inputs.clear();
        Ok(Change::Changed)
    },
};
static REFUSER: Pass = Pass { name: "refuser", description: "", options: &[], run: refuse };
static CLEAR: Pass = Pass {
    name: "clear",
    description: "",
    options: &[],
    run: |program, _| {
        clear(program);
        Ok(Change::Changed)
    },
};

fn clear(program: &mut Program) {
    if let Some(body) = program.body {
        program.blocks[body].clear();
    }
}

fn refuse(program: &mut Program, _: &Arguments) -> Result<Change, Diagnostic> {
    Err(Diagnostic::new(Code::Unsupported, program.spans.header, "no", "not this one"))
}

/// What a pass comes to, and the events on the way.
fn outcome(pass: &'static Pass, settings: Settings<'_>) -> (String, String) {
    let (mut programs, _) = grammar::read(TEXT);
    let mut events = String::new();
    let mut result = Ok(());
    let call = PassCall { pass, arguments: Arguments::defaults(pass), span: Default::default() };
    for program in &mut programs {
        result = run(program, std::slice::from_ref(&call), settings, &mut |event| {
            events += match event {
                Event::Before { .. } => "before ",
                Event::After { change: Change::Changed, .. } => "changed",
                Event::After { change: Change::Unchanged, .. } => "unchanged",
                Event::Failed { .. } => "failed",
            };
        });
    }
    (result.map_or_else(|it| format!("{it} (bug: {})", it.fault.is_bug()), |()| "done".to_owned()), events)
}

#[test]
fn a_failing_pass_is_named() {
    let plain = Settings::default();
    let cases = [
        (&LIAR, "pass `liar` changed the program and said that it did not (bug: true)", "before failed"),
        (&BREAKER, "pass `breaker` left a program that the verifier rejects (bug: true)", "before failed"),
        (&REFUSER, "pass `refuser` cannot rewrite this program (bug: false)", "before failed"),
        (&CLEAR, "done", "before changed"),
    ];
    for (pass, result, events) in cases {
        assert_eq!(outcome(pass, plain), (result.to_owned(), events.to_owned()));
    }
    let off = Settings { verify: Verify::Off, roundtrip: false };
    assert_eq!(outcome(&LIAR, off), ("done".to_owned(), "before unchanged".to_owned()));
}

#[test]
fn an_oracle_judges_the_meaning() {
    struct SameLength;
    impl SemanticOracle for SameLength {
        fn same_meaning(&self, before: &Program, after: &Program) -> Result<(), Diagnostic> {
            match before.body().len() == after.body().len() {
                true => Ok(()),
                false => Err(Diagnostic::new(Code::Disagreement, after.spans.header, "other", "here")),
            }
        }
    }
    let settings = Settings { verify: Verify::Semantic(&SameLength), roundtrip: true };
    let wanted = "pass `clear` changed what the program means (bug: true)";
    assert_eq!(outcome(&CLEAR, settings), (wanted.to_owned(), "before failed".to_owned()));
}

#[test]
fn a_pass_that_changes_nothing_says_so() {
    let (mut programs, _) = grammar::read(TEXT);
    let calls = parse("@default").unwrap_or_default();
    let mut changes = Vec::new();
    for program in &mut programs {
        let result = run(program, &calls, Settings::default(), &mut |event| {
            if let Event::After { call, change, .. } = event {
                changes.push((call.pass.name, change));
            }
        });
        assert!(result.is_ok());
        assert!(program.stmts.iter().all(|(_, stmt)| matches!(stmt, Stmt::Op(_))));
    }
    assert_eq!(changes, [("canonicalize", Change::Unchanged), ("remove-dead-code", Change::Unchanged)]);
}
