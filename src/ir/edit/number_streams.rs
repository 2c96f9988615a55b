//! Numbers the captured streams.

use grammar::{Operand, Program, Stream};
use rustc_hash::FxHashMap;

/// Numbers the captured streams in the order in which the program mentions them, as the reader does. Who inserts, moves or
/// removes statements that mention streams calls this, so that the printed program reads back as printed.
pub fn number_streams(program: &mut Program) {
    let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
    let mut number = |old: u32| {
        let next = numbers.len() as u32;
        *numbers.entry(old).or_insert(next)
    };
    let ops = program.bodies().flat_map(|body| program.ops_in(body));
    for operand in ops.flat_map(|(_, it)| it.outs.iter().chain(&it.args)) {
        if let Operand::Stream(stream) = operand
            && let Stream::Named(name) = program.streams[*stream]
        {
            number(name);
        }
    }
    for id in program.streams.ids() {
        if let Stream::Named(name) = &mut program.streams[id] {
            *name = number(*name);
        }
    }
}
