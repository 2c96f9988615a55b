//! The order of communications of several communicators: a communication waits for those of others with which ranks could start it in another
//! order (`analysis::communicators`).

use grammar::{BlockId, Program, Stmt, StmtId};
use hir_ir::{blocks::nested_blocks, streams::sets_stream};

use crate::analysis::{
    communicators::{Communicators, Post},
    wait_order::{awaited_work, posted_work},
};

/// What a pass does with the order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PassOrder {
    /// It makes the order.
    Makes,
    /// It makes another order on purpose.
    Changes,
    /// It has other purposes.
    Keeps,
}

/// Whether communications are in order, before and after each pass of a list.
pub struct CommunicatorOrder {
    is_ordered: bool,
    /// Whether the list has made the order.
    is_wanted: bool,
    /// How often the rest of the list makes it.
    is_made_later: usize,
    communicators: Option<Communicators>,
}

impl CommunicatorOrder {
    /// Finds out whether a program has the order, before a list that makes it so often.
    pub fn of(program: &Program, is_made_later: usize) -> Self {
        let communicators = Communicators::of(program);
        let is_ordered = communicators.as_ref().is_none_or(|it| ordered_blocks(program, it).is_empty());
        Self { is_ordered, is_wanted: false, is_made_later, communicators }
    }

    /// Makes the order again behind a pass, if the list has made it, or the program had it before. A pass that makes another order may do so if
    /// the list makes that of communicators later.
    pub fn keep(&mut self, program: &mut Program, pass: PassOrder) {
        self.communicators = Communicators::updated(program, self.communicators.take());
        let ordered = self.communicators.as_ref().map(|it| ordered_blocks(program, it)).unwrap_or_default();
        let makes = pass == PassOrder::Makes;
        self.is_wanted |= makes;
        self.is_made_later -= usize::from(makes);
        let keeps = pass != PassOrder::Changes || self.is_made_later == 0;
        if self.is_wanted || self.is_ordered && keeps {
            ordered.into_iter().for_each(|(block, stmts)| program.blocks[block] = stmts);
        } else {
            self.is_ordered = ordered.is_empty();
        }
    }
}

/// Returns the blocks that are not in order, with their statements in order.
pub fn ordered_blocks(program: &Program, communicators: &Communicators) -> Vec<(BlockId, Vec<StmtId>)> {
    let blocks = program.body.into_iter().flat_map(|body| nested_blocks(program, body));
    let ordered = blocks.map(|it| (it, order_block(program, program.block(it), communicators)));
    ordered.filter(|(block, stmts)| *stmts != program.blocks[*block]).collect()
}

/// Returns the statements of a block in their new order.
fn order_block(program: &Program, stmts: &[StmtId], communicators: &Communicators) -> Vec<StmtId> {
    let mut rest: Vec<StmtId> = stmts.iter().rev().copied().collect();
    let mut ordered: Vec<StmtId> = Vec::with_capacity(stmts.len());
    let mut pending: Vec<Post> = Vec::new();
    let mut is_in_group = false;
    while let Some(stmt) = rest.pop() {
        let posts = communicators.posts(program, stmt, &mut is_in_group);
        for post in posts.iter().filter(|it| it.begins) {
            let conflicting = pending.iter().filter(|it| communicators.conflict(post, it));
            for number in conflicting.filter_map(|it| it.number).collect::<Vec<u32>>() {
                let is_wait = |it: &StmtId| awaited_at(program, *it) == Some(number);
                let Some(at) = rest.iter().rposition(is_wait) else { continue };
                // A Wait behind a later post of its number waits for that one.
                let posts_again =
                    |it| program.stmts_at(it).any(|it| posted_work(program, it) == Some(number));
                let is_branch = program.stmts[rest[at]].op().is_none();
                let binds = |it: StmtId| is_branch && matches!(program.stmts[it], Stmt::Let(..));
                let stops = |it: &StmtId| sets_stream(program, *it) || posts_again(*it) || binds(*it);
                if !rest[at..].iter().chain([&stmt]).any(stops) {
                    ordered.push(rest.remove(at));
                    pending.retain(|it| it.number != Some(number));
                }
            }
        }
        pending.extend(posts.into_iter().filter(|it| it.runs));
        if let Some(number) = awaited_at(program, stmt) {
            pending.retain(|it| it.number != Some(number));
        }
        ordered.push(stmt);
    }
    ordered
}

/// Returns the number for which a statement waits, or a branch that does nothing else: on the ranks that have posted it.
fn awaited_at(program: &Program, stmt: StmtId) -> Option<u32> {
    match &program.stmts[stmt] {
        Stmt::If(it) if it.else_block.is_none() => match program.block(it.then_block) {
            [wait] => awaited_work(program, *wait),
            _ => None,
        },
        _ => awaited_work(program, stmt),
    }
}
