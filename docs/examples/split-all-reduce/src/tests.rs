//! The rewritten programs compute what they computed before, on the simulator.

use grammar::Source;
use hir::SimOutcome;
use passes::{Catalog, Settings};

use super::{PASS, unused};

/// Rewrites a program of two ranks by passes, and returns its new text with the outputs before and after.
fn rewritten(text: &str, passes: &str) -> Result<(String, [SimOutcome; 2]), String> {
    let source = Source::new("test.hir".to_owned(), text.to_owned());
    let mut program = hir::read(&source).map_err(|faults| format!("{faults:?}"))?.remove(0);
    let run = |program: &grammar::ir::Program| {
        let plans = hir::plan(program, &source, 2).map_err(|faults| format!("{faults:?}"))?;
        let report = hir::check(&plans);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        hir::simulate(&plans, 7).map_err(|fault| fault.to_string())
    };
    let before = run(&program)?;
    let mut catalog = Catalog::default();
    catalog.passes.extend([&PASS, &unused::PASS]);
    let calls = catalog.parse(passes).map_err(|fault| fault.message)?;
    passes::run(&mut program, &calls, Settings::default(), &mut |_| ())
        .map_err(|fault| format!("{fault:?}"))?;
    let after = run(&program)?;
    Ok((grammar::print(&program), [before, after]))
}

/// A program that reduces `extent` rows in a loop, in one of two branches.
fn program(extent: usize) -> String {
    let t0 = format!("T0_g_float[iS0{{{extent}}}, iS1{{4}}, ideviceIdx.x2{{2}}] (DeviceMesh{{0 1}})");
    let t1 = format!("T1_g_float[iS3{{{extent}}}, iS4{{4}}, rdeviceIdx.x5{{2}}] (DeviceMesh{{0 1}})");
    format!(
        "%HostIrContainer {{ ({t0}) -> ({t1}) :
  {t1} = ALLOCATE(mem_type=global, zero_init=false)
  FOR i0 from 0 to 2:
    IF Manual ( i0 == 1 ):
      Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input={t0}, output={t1}, backend=NCCL)
      Wait(Communication 0)
}} // %HostIrContainer

Domains:
  T0: logical(iS0{{{extent}}}, iS1{{4}}, ideviceIdx.x2{{2}})
  T1: logical(iS3{{{extent}}}, iS4{{4}}, rdeviceIdx.x5{{2}})
"
    )
}

#[test]
fn an_all_reduce_in_a_branch_in_a_loop_is_split() -> Result<(), String> {
    let (text, [before, after]) = rewritten(&program(8), "split-all-reduce,remove-dead-code")?;
    assert!(text.contains("type=ReduceScatter") && text.contains("type=Allgather"), "{text}");
    assert!(!text.contains("type=Allreduce"), "{text}");
    assert!(text.contains("outer_split(iS6{8}, 2) -> (ideviceIdx.x"), "{text}");
    assert_eq!(before.outputs, after.outputs);
    Ok(())
}

#[test]
fn rows_that_the_ranks_do_not_divide_stay() -> Result<(), String> {
    let (text, [before, after]) = rewritten(&program(7), "split-all-reduce,remove-dead-code")?;
    assert!(text.contains("type=Allreduce") && !text.contains("type=ReduceScatter"), "{text}");
    assert_eq!(before.outputs, after.outputs);
    Ok(())
}

#[test]
fn an_allocation_that_nothing_uses_is_removed_with_its_branch() -> Result<(), String> {
    let t2 = "T2_g_float[iS6{8}] (DeviceMesh{0 1})";
    let branch = format!(
        "    IF Manual ( i0 == 0 ):
      {t2} = ALLOCATE(mem_type=global, zero_init=false)
      Deallocate {{
        {t2}
      }}
    IF Manual ( i0 == 1 ):"
    );
    let text = program(8).replace("    IF Manual ( i0 == 1 ):", &branch) + "  T2: logical(iS6{8})\n";
    let (rest, [before, after]) = rewritten(&text, "remove-unused-allocations")?;
    assert_eq!((text.matches("T2").count(), rest.matches("T2").count()), (3, 0), "{rest}");
    assert_eq!((text.matches("IF ").count(), rest.matches("IF ").count()), (2, 1), "{rest}");
    assert!(rest.contains("T1_g_float") && rest.contains("ALLOCATE"), "{rest}");
    assert_eq!(before.outputs, after.outputs);
    Ok(())
}
