//! Tests that the numbers in the input do not affect renumber.

use grammar::{
    ir::{Attr, Program, Stmt, Stream},
    print,
};

use super::{corpus, transform};
use passes::{Arguments, PASSES, Remarks};

/// Changes all numbers. Their order changes where it has no meaning.
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
        // The formula above does not work for larger numbers.
        if programs.iter().any(|it| it.tensors.iter().any(|(_, tensor)| tensor.number > 9_000)) {
            continue;
        }
        let mut scrambled = String::new();
        for program in &mut programs {
            scramble(program);
            let renumber = PASSES.iter().find(|it| it.name == "renumber");
            assert!(renumber.is_some_and(|it| {
                (it.run)(program, &Arguments::default(), &mut Remarks::default()).is_ok()
            }));
            scrambled += &print(program);
        }
        // Positions are text that names tensors by number, and `scramble` cannot change them.
        if !text.contains("compute_with") {
            assert_eq!(scrambled, once, "{path}, scrambled");
        }
    }
}
