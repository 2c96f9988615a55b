//! The statements between two loops: allocations, a capture of the stream that the first loop returns to, and
//! a loop that forks the same streams again.

use grammar::{
    attr,
    ir::{For, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
};

use super::{StreamFrame, have_same_bounds};
use crate::rewrite::{builder, substitute::Substitution};

/// The statements between two loops that a merge moves or removes.
pub(super) struct StmtsBetween {
    /// The index of the second loop, counted from the statement after the first loop.
    pub(super) next: usize,
    /// The allocations, which move before the first loop.
    pub(super) moved: Vec<StmtId>,
    /// The name of a captured stream, and its older name.
    pub(super) captured: Option<(u32, u32)>,
    /// Whether a loop that forks streams again is removed.
    pub(super) forks: bool,
}

impl StmtsBetween {
    /// Analyzes the statements after the first loop. Returns `None` if one of them has to stay between the
    /// loops.
    pub(super) fn of(
        program: &mut Program,
        frame: &StreamFrame,
        earlier: Option<StmtId>,
        first: &For,
        stmts: &[StmtId],
    ) -> Option<Self> {
        let mut this = Self { next: 0, moved: Vec::new(), captured: None, forks: false };
        loop {
            match program.stmts[*stmts.get(this.next)?].clone() {
                Stmt::Op(it)
                    if it.op == Op::Allocate
                        && frame.stream.is_none()
                        && it.get(attr::ZERO_INIT) != Some(true) =>
                {
                    this.moved.push(stmts[this.next]);
                }
                Stmt::Op(it) if it.op == Op::GetCurrentStream && this.captured.is_none() => {
                    let [Operand::Stream(stream)] = it.outs[..] else { return None };
                    let Stream::Named(new) = program.streams[stream] else { return None };
                    let Some((Op::SetCurrentStream, Stream::Named(old))) = frame.end.first() else {
                        return None;
                    };
                    if capture_count(program, new) != 1 || capture_count(program, *old) != 1 {
                        return None;
                    }
                    this.captured = Some((new, *old));
                }
                Stmt::For(it) if this.forks_again(program, earlier, first, &it) => this.forks = true,
                Stmt::For(_) => return Some(this),
                Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => return None,
            }
            this.next += 1;
        }
    }

    /// Returns whether a loop makes the streams wait for the same streams as the loop before the first one
    /// does.
    fn forks_again(&self, program: &mut Program, earlier: Option<StmtId>, first: &For, it: &For) -> bool {
        let earlier = earlier.map(|before| program.stmts[before].clone());
        let Some(Stmt::For(earlier)) = earlier else { return false };
        if !have_same_bounds(program, &earlier, it) || !have_same_bounds(program, first, it) {
            return false;
        }
        let index = builder::symbol(program, earlier.index);
        let renamed = Substitution::of_symbol(it.index, index).block(program, it.body);
        let (Some(one), Some(two)) =
            (StreamFrame::of(program, earlier.body), StreamFrame::of(program, renamed))
        else {
            return false;
        };
        let joins = one.begin.len() == 2 && one.begin[1].0 == Op::Synchronize;
        one.is_only_streams && two.is_only_streams && joins && one.begin == self.with_older_name(&two.begin)
    }

    /// Returns the stream statements with the older name of the captured stream.
    pub(super) fn with_older_name(&self, list: &[(Op, Stream)]) -> Vec<(Op, Stream)> {
        let old = |stream: &Stream| match (self.captured, stream) {
            (Some((new, old)), Stream::Named(number)) if *number == new => Stream::Named(old),
            _ => stream.clone(),
        };
        list.iter().map(|(op, stream)| (*op, old(stream))).collect()
    }
}

/// Returns the number of statements that capture a stream under this name.
fn capture_count(program: &Program, number: u32) -> usize {
    let mut count = 0;
    program.body.into_iter().for_each(|body| {
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                let named = |it: &Operand| matches!(it, Operand::Stream(stream) if program.streams[*stream] == Stream::Named(number));
                count += usize::from(it.outs.iter().any(named));
            }
        });
    });
    count
}
