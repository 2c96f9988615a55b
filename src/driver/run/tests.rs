//! Tests that the oracle reports the pass, the schedule and the location of a miscompilation.

use grammar::{Diagnostic, Expr, LineIndex, Op, Program, Stmt};
use passes::{Arguments, Change, Pass, PassCall, Remarks, Settings, Verify};

use super::oracle::SimulationOracle;
use hir_plan::limits::Limits;
use hir_sim::WorkBudget;

/// Rank 0 sends T0 to rank 1, which copies it on another stream.
const TEXT: &str = "\
%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0})) -> (T2_g_float[iS2{4}] (DeviceMesh{1})) :
  T1_g_float[iS1{4}] (DeviceMesh{1}) = ALLOCATE(mem_type=global, zero_init=false)
  T2_g_float[iS2{4}] (DeviceMesh{1}) = ALLOCATE(mem_type=global, zero_init=false)
  Stream s0 = GetCurrentStream()
  IF Manual ( rank == 0 ):
    P2PCommunication 3 (type=send, buffer=T0_g_float[iS0{4}] (DeviceMesh{0}), peer=1, backend=NCCL)
    Wait(Communication 3)
  ELSE:
    P2PCommunication 4 (type=recv, buffer=T1_g_float[iS1{4}] (DeviceMesh{1}), peer=0, backend=NCCL)
    Wait(Communication 4)
  SetCurrentStream(Stream 1)
  Synchronize(Stream s0)
  T2_g_float[iS2{4}] (DeviceMesh{1})
     = Set( T1_g_float[iS1{4}] (DeviceMesh{1}) )
  SetCurrentStream(Stream s0)
  Synchronize(Stream 1)
} // %HostIrContainer
";

type Run = fn(&mut Program, &Arguments, &mut Remarks) -> Result<Change, Diagnostic>;

const fn pass(name: &'static str, run: Run) -> Pass {
    Pass { name, description: "", docs: "", options: &[], for_one_rank: false, for_conditions: false, run }
}

static KEEP: Pass = pass("keep", |_, _, _| Ok(Change::Unchanged));
/// Removes every Synchronize.
static RACER: Pass = pass("racer", |program, _, _| Ok(drop_all(program, &[Op::Synchronize])));
/// Removes the send and keeps the receive.
static SILENCER: Pass = pass("silencer", |program, _, _| {
    let Some(first) = branches(program).first().copied() else { return Ok(Change::Unchanged) };
    if let Stmt::If(it) = &program.stmts[first] {
        let then = it.then_block;
        program.blocks[then].clear();
    }
    Ok(Change::Changed)
});
/// Removes every copy.
static SLACKER: Pass = pass("slacker", |program, _, _| Ok(drop_all(program, &[Op::Set])));
/// Returns the output a second time.
static RENAMER: Pass = pass("renamer", |program, _, _| {
    let mut again = program.outputs.clone();
    program.outputs.append(&mut again);
    Ok(Change::Changed)
});
/// Keeps only the code of rank 1 and sets `%options rank=1`.
static SPECIALIST: Pass = Pass {
    for_one_rank: true,
    for_conditions: false,
    ..pass("specialist", |program, _, _| {
        let own = program.intern_int(1);
        program.options.insert("rank".to_owned(), own);
        let branches = branches(program);
        for branch in branches {
            if let Stmt::If(it) = program.stmts[branch].clone() {
                let kept = it.else_block.map(|other| program.blocks[other].clone()).unwrap_or_default();
                if let Some(body) = program.body {
                    let at = program.blocks[body].iter().position(|it| *it == branch).unwrap_or(0);
                    program.blocks[body].splice(at..=at, kept);
                }
            }
        }
        Ok(Change::Changed)
    })
};

fn drop_all(program: &mut Program, ops: &[Op]) -> Change {
    let is_removed = |stmt: &Stmt| matches!(stmt, Stmt::Op(it) if ops.contains(&it.op));
    for block in program.blocks.ids().collect::<Vec<_>>() {
        let kept =
            program.blocks[block].iter().copied().filter(|it| !is_removed(&program.stmts[*it])).collect();
        program.blocks[block] = kept;
    }
    Change::Changed
}

fn branches(program: &Program) -> Vec<grammar::ir::StmtId> {
    let is_branch = |it: &&grammar::ir::StmtId| matches!(program.stmts[**it], Stmt::If(_));
    program.body().iter().filter(is_branch).copied().collect()
}

fn calls(passes: &[&'static Pass]) -> Vec<PassCall> {
    let call = |pass: &&'static Pass| PassCall {
        pass,
        arguments: Arguments::defaults(pass),
        span: Default::default(),
    };
    passes.iter().map(call).collect()
}

/// Formats a failure: its text, and the message, line and notes of each diagnostic.
fn format_failure(failure: &passes::PipelineError) -> String {
    let lines = LineIndex::new(TEXT);
    let about = |it: &Diagnostic| {
        format!("\n{} (line {})\n{}", it.message, lines.line(it.span().start), it.notes.join("\n"))
    };
    failure.to_string() + &failure.error.diagnostics().iter().map(about).collect::<String>()
}

/// Runs a pipeline with verification after every pass, and formats the result.
fn run(passes: &[&'static Pass]) -> String {
    let (mut programs, _) = grammar::read(TEXT);
    let lines = LineIndex::new(TEXT);
    let oracle = SimulationOracle {
        lines: &lines,
        ranks: None,
        limits: Limits::default(),
        work: &WorkBudget::default(),
    };
    let settings = Settings { verify: Verify::Semantic(&oracle), roundtrip: true };
    let result = passes::run(&mut programs[0], &calls(passes), settings, &mut |_| ());
    result.map_or_else(|failure| format_failure(&failure), |()| "done".to_owned())
}

#[test]
fn a_lost_wait_is_a_race() {
    assert_eq!(
        run(&[&KEEP, &RACER, &KEEP]),
        "pass `racer` changed what the program means\n\
         T2: element [0] was never written (rank 1; on rank 1, line 13 on stream 1 read elements of T1 before anything \
         wrote them) (line 13)\n\
         seen under `--schedule=adversarial`"
    );
}

#[test]
fn a_lost_send_is_a_deadlock() {
    assert_eq!(
        run(&[&SILENCER]),
        "pass `silencer` changed what the program means\n\
         deadlock: rank 0 never sends what rank 1 receives in P2PCommunication 4 (recv, line 9) (line 9)\n\
         rank 1 posts 1 receive from rank 0, but rank 0 posts 0 sends to rank 1\n\
         rank 1: P2PCommunication 4 (recv, line 9) on NCCL (0 1): waits for rank 0 to send; rank 0 has finished\n\
         seen under `--schedule=program`"
    );
}

#[test]
fn a_lost_copy_leaves_the_output_unwritten() {
    assert_eq!(
        run(&[&SLACKER]),
        "pass `slacker` changed what the program means\n\
         T2: element [0] was never written (rank 1) (line 1)\n\
         seen under `--schedule=program`"
    );
}

#[test]
fn an_output_more_is_another_meaning() {
    assert_eq!(
        run(&[&RENAMER]),
        "pass `renamer` changed what the program means\n\
         its outputs have element types float, float; they had float (line 1)\n"
    );
}

#[test]
fn the_program_of_one_rank_runs_beside_the_others() {
    assert_eq!(run(&[&SPECIALIST]), "done");
    // A pass that would rewrite this rank alone is refused before it runs.
    assert_eq!(
        run(&[&SPECIALIST, &SLACKER]),
        "pass `slacker` cannot rewrite this program\n\
         `slacker` has to rewrite the programs of all ranks in the same way, and this is the program of rank 1 only \
         (line 1)\n"
    );
}

#[test]
fn bisection_names_the_pass_and_shows_its_change() {
    let (programs, _) = grammar::read(TEXT);
    let lines = LineIndex::new(TEXT);
    let oracle = SimulationOracle {
        lines: &lines,
        ranks: Some(2),
        limits: Limits::default(),
        work: &WorkBudget::default(),
    };
    let found = |passes: &[&'static Pass]| {
        let found = passes::bisect(&programs[0], &calls(passes), &oracle).ok().flatten();
        found.map(|it| {
            let gone = it.before.body().len() - it.after.body().len();
            (it.position, it.error.pass.unwrap_or_default(), gone)
        })
    };
    assert_eq!(found(&[&KEEP, &KEEP, &RACER, &KEEP, &KEEP, &KEEP]), Some((2, "racer", 2)));
    assert_eq!(found(&[&KEEP, &SLACKER, &RACER]), Some((1, "slacker", 1)));
    assert_eq!(found(&[&KEEP, &KEEP]), None);
}

#[test]
fn options_of_one_rank_are_text() {
    let (mut programs, _) = grammar::read(TEXT);
    let program = &mut programs[0];
    assert!((SPECIALIST.run)(program, &Arguments::default(), &mut Remarks::default()).is_ok());
    let text = grammar::print(program);
    assert!(text.starts_with("%options rank=1\n"), "{text}");
    let again = grammar::read(&text).0;
    let rank = again[0].options.get("rank").map(|it| again[0].exprs[*it].clone());
    assert_eq!(rank, Some(Expr::Int(1)));
}
