//! Finds the coalescing brackets (StartCoalescing to EndCoalescing) of a block.

use grammar::{BlockId, OpClass, Program, Stmt};
use rustc_hash::FxHashMap;

/// The coalescing brackets of each block, as the indices of their first and last statements.
#[derive(Default)]
pub struct CoalescingBrackets(FxHashMap<BlockId, Vec<(usize, usize)>>);

impl CoalescingBrackets {
    /// Returns the bracket that contains the statement at index `at`.
    pub fn around(&mut self, program: &Program, block: BlockId, at: usize) -> Option<(usize, usize)> {
        let all = self.0.entry(block).or_insert_with(|| brackets(program, block));
        let next = all.partition_point(|(_, end)| *end < at);
        all.get(next).copied().filter(|(start, _)| *start <= at)
    }
}

/// Returns the brackets of a block, in program order.
pub(super) fn brackets(program: &Program, block: BlockId) -> Vec<(usize, usize)> {
    let (mut open, mut found) = (None, Vec::new());
    for (at, stmt) in program.block(block).iter().enumerate() {
        if let Stmt::Op(it) = &program.stmts[*stmt]
            && it.op.def().class == OpClass::Coalescing
        {
            match open.take() {
                None => open = Some(at),
                Some(start) => found.push((start, at)),
            }
        }
    }
    found
}
