//! What renumber renames, and that numbers alone make no difference to it.

use grammar::{
    ir::{Attr, Program, Stmt, Stream},
    print,
};

use super::{corpus, transform};
use crate::{Arguments, Remarks, transform::renumber};

#[test]
fn everything_is_numbered_by_appearance() {
    let before = "\
%HostIrContainer { (T7_g_float[iS30{i9}, iS12{4}]) -> (T3_g_float[iS5{i9}, iS6{4}]) :
  FOR i84 from 0 to i85:
    i86 = i84 + i1;
    T3_g_float[iS5{i9}, iS6{4}] = ALLOCATE(mem_type=global, zero_init=false)
    Communication 35 (type=Broadcast, team=(0 1), root=i86, input=T7_g_float[iS30{i9}, iS12{4}], output=T3_g_float[iS5{i9}, iS6{4}])
    Wait(Communication 35)
    FOR streamIdx from 0 to i87:
      Synchronize(Stream ( streamIdx + b3 ))
} // %HostIrContainer

Index definitions:
  i87 = i85 * 2;
  i85 = 8;
  i2 = i87;
";
    // i9, i1 and b3 are the user's to set.
    let after = "\
%HostIrContainer { (T0_g_float[iS0{i9}, iS1{4}]) -> (T1_g_float[iS2{i9}, iS3{4}]) :
  FOR i0 from 0 to i2:
    i3 = i0 + i1;
    T1_g_float[iS2{i9}, iS3{4}] = ALLOCATE(mem_type=global, zero_init=false)
    Communication 0 (type=Broadcast, team=(0 1), root=i3, input=T0_g_float[iS0{i9}, iS1{4}], output=T1_g_float[iS2{i9}, iS3{4}])
    Wait(Communication 0)
    FOR streamIdx from 0 to i4:
      Synchronize(Stream ( streamIdx + b3 ))
} // %HostIrContainer

Index definitions:
  i2 = 8;
  i4 = i2 * 2;
  i5 = i4;
";
    assert_eq!(transform("renumber", before), Ok(after.to_owned()));
    assert_eq!(transform("renumber", after), Ok(after.to_owned()));
}

#[test]
fn an_index_used_outside_of_its_loop_is_the_users() {
    let text = "\
%HostIrContainer { () -> () :
  FOR i84 from 0 to 4:
    Synchronize(Stream i84)
  Synchronize(Stream i84)
} // %HostIrContainer
";
    assert_eq!(transform("renumber", text), Ok(text.to_owned()));
}

#[test]
fn a_permuted_result_keeps_the_order_of_its_numbers() {
    let text = |operand: &str, result: &str| {
        format!(
            "%HostIrContainer {{ (T0_g_float[{operand}]) -> (T1_g_float[{result}]) :\n  T1_g_float[{result}]\n     \
             = Set.Permute( T0_g_float[{operand}] )\n}} // %HostIrContainer\n"
        )
    };
    let cases = [
        // Result axes of their own.
        (
            text("iS7{2}, iS8{3}, iS9{4}", "iS30{4}, iS10{2}, iS20{3}"),
            text("iS0{2}, iS1{3}, iS2{4}", "iS5{4}, iS3{2}, iS4{3}"),
        ),
        // The operand's axes in the order of their numbers, which is not that of their places.
        (text("iS5{2}, iS3{2}", "iS3{2}, iS5{2}"), text("iS1{2}, iS0{2}", "iS0{2}, iS1{2}")),
    ];
    for (before, after) in cases {
        assert_eq!(transform("renumber", &before), Ok(after.clone()));
        assert_eq!(transform("renumber", &after), Ok(after));
    }
}

/// Other numbers for everything, in another order where the order says nothing.
fn scramble(program: &mut Program) {
    for id in program.tensors.ids() {
        program.tensors[id].number = 9_000 - program.tensors[id].number;
    }
    for id in program.axes.ids() {
        program.axes[id].number = 3 * program.axes[id].number + 7;
    }
    for id in program.streams.ids() {
        if let Stream::Named(number) = &mut program.streams[id] {
            *number = 90 - *number;
        }
    }
    for id in program.units.ids() {
        program.units[id].number += 20_000;
    }
    for id in program.stmts.ids() {
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        it.number = it.number.map(|number| 9_000 - number);
        for (_, attr) in &mut it.attrs {
            if let Attr::Work(number) = attr {
                *number = 9_000 - *number;
            }
        }
    }
}

#[test]
fn numbers_alone_make_no_difference() {
    for (path, text) in corpus() {
        let once = transform("renumber", &text);
        assert!(once.is_ok(), "{path}: {once:?}");
        let Ok(once) = once else { continue };
        assert_eq!(transform("renumber", &once).as_ref(), Ok(&once), "{path}, twice");
        let (mut programs, _) = grammar::read(&text);
        // The largest numbers leave no room for others.
        if programs.iter().any(|it| it.tensors.iter().any(|(_, tensor)| tensor.number > 9_000)) {
            continue;
        }
        let mut scrambled = String::new();
        for program in &mut programs {
            scramble(program);
            assert!((renumber::PASS.run)(program, &Arguments::default(), &mut Remarks::default()).is_ok());
            scrambled += &print(program);
        }
        // Positions name tensors by number in the text itself, out of scramble's reach.
        if !text.contains("compute_with") {
            assert_eq!(scrambled, once, "{path}, scrambled");
        }
    }
}
