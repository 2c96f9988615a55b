//! Numbers the captured streams.

use grammar::ir::{Operand, Program, Stmt, Stream};
use indexmap::IndexSet;

/// Numbers the captured streams in the order in which the program mentions them, as the reader does. A pass that
/// inserts or removes statements that mention streams calls this, so that the printed program reads back as printed.
pub fn number_streams(program: &mut Program) {
    let mut order: IndexSet<u32> = IndexSet::new();
    let bodies = program.body.into_iter().chain(program.units.iter().filter_map(|(_, unit)| unit.body));
    for body in bodies {
        program.walk(body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            for operand in it.outs.iter().chain(&it.args) {
                if let Operand::Stream(stream) = operand
                    && let Stream::Named(number) = program.streams[*stream]
                {
                    order.insert(number);
                }
            }
        });
    }
    for id in program.streams.ids() {
        if let Stream::Named(number) = &mut program.streams[id] {
            *number = order.insert_full(*number).0 as u32;
        }
    }
}
