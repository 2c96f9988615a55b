//! Attributes of operators are set and verified by the rows of the operator table.

use grammar::{
    attr,
    ir::{OpStmt, Program, Stmt},
    words::{Backend, P2pType, PyBool, RedOp},
};

const TEXT: &str = "%HostIrContainer { (T0_g_float[iS0{2}]) -> (T1_g_float[iS1{2}]) :
  Communication 3 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{2}], output=T1_g_float[iS1{2}], backend=NCCL)
  Wait(Communication 3)
} // %HostIrContainer
";

fn with_first(change: fn(&mut OpStmt)) -> (String, usize) {
    let (mut programs, faults) = grammar::read(TEXT);
    assert!(faults.is_empty(), "{faults:?}");
    let program: &mut Program = &mut programs[0];
    let first = program.body()[0];
    let Stmt::Op(it) = &mut program.stmts[first] else { return (String::new(), 0) };
    change(it);
    (grammar::summary(program, first), grammar::verify(program).len())
}

#[test]
fn an_attribute_is_set_in_the_order_of_the_row() {
    let (text, faults) = with_first(|it| {
        assert_eq!((it.get(attr::BACKEND), it.get(attr::PEER)), (Some(Backend::Nccl), None));
        it.set(attr::BACKEND, Backend::Ucc);
        it.attrs.retain(|(name, _)| *name != attr::RED_OP);
        it.set(attr::RED_OP, RedOp::Max);
        it.set(attr::TEAM, vec![1, 0]);
    });
    assert!(text.contains("(type=Allreduce, team=(1 0), red_op=MAX, input="), "{text}");
    assert!(text.contains("backend=UCC"), "{text}");
    assert_eq!(faults, 0);
}

#[test]
fn the_verifier_refuses_an_attribute_that_the_operator_does_not_have() {
    assert_eq!(with_first(|it| it.attrs.push(attr::STABLE.with(PyBool::True))).1, 1);
    assert_eq!(with_first(|it| it.attrs.push(attr::P2P_TYPE.with(P2pType::Send))).1, 1);
}
