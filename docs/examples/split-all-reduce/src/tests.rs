//! The rewritten programs compute what they computed before, on the simulator.

use std::collections::HashMap;

use grammar::{Backend, CommunicationType, Op, Program, Source, Stmt, StmtId, attr};
use hir::SimOutcome;
use hir_ir::{
    blocks::nested_blocks,
    build,
    edit::{StmtEdit, rewrite},
};
use passes::{
    Catalog, Settings,
    analysis::name_uses::NameUses,
    rewrite::{collective::Collective, substitute::Substitution},
};

use super::{PASS, unused};

/// Rewrites a program of two ranks by passes, and returns its new text with the outputs before and after.
fn rewritten(text: &str, passes: &str) -> Result<(String, [SimOutcome; 2]), String> {
    let source = Source::new("test.hir".to_owned(), text.to_owned());
    let mut program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
    let run = |program: &grammar::ir::Program| {
        let plans = hir::plan(program, &source, 2).map_err(|faults| faults[0].message.clone())?;
        let report = hir::check(&plans);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        hir::simulate(&plans, 7).map_err(|fault| fault.to_string())
    };
    let before = run(&program)?;
    let mut catalog = Catalog::default();
    catalog.passes.extend([&PASS, &unused::PASS]);
    let calls = catalog.parse(passes).map_err(|fault| fault.message)?;
    passes::run(&mut program, &calls, Settings::default(), &mut |_| ()).map_err(|fault| fault.to_string())?;
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

/// Lets the all-reduce of a program write into the copy of its result.
fn write_into_copy(program: &mut Program) -> Option<bool> {
    let body = program.body?;
    let mut found: Option<(StmtId, StmtId)> = None;
    for block in nested_blocks(program, body) {
        let stmts = program.block(block);
        for (at, post) in stmts.iter().enumerate() {
            let Some(it) = program.stmts[*post].op().filter(|it| it.op == Op::Communication) else {
                continue;
            };
            let is_wait = |id: &&StmtId| {
                let wait = program.stmts[**id].op();
                wait.is_some_and(|wait| wait.op == Op::Wait && wait.get(attr::WORK) == it.number)
            };
            let Some(wait) = stmts[at..].iter().find(is_wait) else { continue };
            // Compare what is found with the conditions, and keep the ids.
            let is_copy = |id: &&StmtId| program.stmts[**id].op().is_some_and(|it| it.op == Op::Set);
            let behind = stmts.iter().skip_while(|it| *it != wait);
            found = behind.copied().find(|id| is_copy(&id)).map(|copy| (*post, copy));
        }
    }
    let (post, user) = found?;
    let (it, span) = (program.stmts[post].op()?.clone(), program.stmt_span(post));
    let result = program.stmts[user].op()?.out_tensor()?;
    let ((number, team), input) = it.number.zip(it.get(attr::TEAM)).zip(it.get(attr::INPUT))?;
    let (kind, red_op, backend) = (CommunicationType::Allreduce, it.get(attr::RED_OP), Backend::Nccl);
    let collective = Collective { kind, team, root: None, red_op, input, output: result };
    let mut edits: HashMap<StmtId, StmtEdit> = HashMap::new();
    let new = [build::allocate(program, result), collective.stmt(number, backend, team.len())];
    let new = new.into_iter().map(|stmt| build::add(program, stmt, span)).collect();
    edits.insert(post, StmtEdit::Splice(build::block(program, new)));
    edits.insert(user, StmtEdit::Remove);
    let changed = rewrite(program, body, &mut |_, id| edits.remove(&id).unwrap_or(StmtEdit::Keep));
    Some(changed)
}

#[test]
fn an_all_reduce_writes_into_the_copy_of_its_result() -> Result<(), String> {
    let (out, axes) = ("T2_g_float[iS6{8}, iS7{4}] (DeviceMesh{0 1})", "  T2: logical(iS6{8}, iS7{4})\n");
    let text = program(8).replace(
        "-> (T1_g_float[iS3{8}, iS4{4}, rdeviceIdx.x5{2}] (DeviceMesh{0 1}))",
        &format!("-> ({out})"),
    );
    let copy = format!(
        "      Wait(Communication 0)\n  {out} = Set( T1_g_float[iS3{{8}}, iS4{{4}}, rdeviceIdx.x5{{2}}] (DeviceMesh{{0 1}}) )"
    );
    let text = text.replace("    IF Manual ( i0 == 1 ):\n", "").replace("  FOR i0 from 0 to 2:\n", "");
    let text = text.replace("      Wait(Communication 0)", &copy) + axes;
    let source = Source::new("test.hir".to_owned(), text);
    let mut program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
    assert_eq!(write_into_copy(&mut program), Some(true));
    let text = grammar::print(&program);
    assert!(text.contains("output=T2_g_float") && !text.contains("Set("), "{text}");
    Ok(())
}

/// Lets the users of copies use their operands, and removes the copies.
fn use_operands_of_copies(program: &mut Program) -> Option<bool> {
    let body = program.body?;
    let uses = NameUses::of(program, body);
    let mut same = Substitution::default();
    for block in nested_blocks(program, body) {
        let copies = program.block(block).iter().filter_map(|id| program.stmts[*id].op());
        for it in copies.filter(|it| it.op == Op::Set) {
            let (copy, operand) = (it.out_tensor()?, Program::tensors_of(&it.args).next()?);
            let has_same_type = program.tensors[operand].dtype == program.tensors[copy].dtype;
            if has_same_type && !uses.is_program_io(copy) {
                same.tensors.insert(copy, operand);
            }
        }
    }
    let changed = rewrite(program, body, &mut |program, id| match &mut program.stmts[id] {
        Stmt::Op(it) if it.out_tensor().is_some_and(|it| same.tensors.contains_key(&it)) => StmtEdit::Remove,
        Stmt::Op(it) => {
            it.tensors_mut(&mut |tensor| *tensor = same.tensor(*tensor));
            StmtEdit::Changed
        }
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    });
    Some(changed)
}

#[test]
fn users_of_a_copy_use_its_operand() -> Result<(), String> {
    let tensors = (0..4).map(|it| format!("%tensor T{it}_g_float[iS{it}{{8}}]\n")).collect::<String>();
    let text = "%HostIrContainer { (T0) -> (T3) :\n  T1 = relu( T0 )\n  T2 = Set( T1 )\n  T3 = relu( T2 )\n\
                } // %HostIrContainer\n";
    let text = tensors + text;
    let source = Source::new("test.hir".to_owned(), text);
    let mut program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
    assert_eq!(use_operands_of_copies(&mut program), Some(true));
    let text = grammar::print(&program);
    assert!(!text.contains("T2_g") && text.contains("relu(T1_g"), "{text}");
    Ok(())
}
