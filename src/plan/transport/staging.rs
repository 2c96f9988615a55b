//! Staging buffers: where a transport cannot work on a member's own views, it works on dense copies of them.
//!
//! An input is copied where its elements do not lie at one stride, or where the output that others still need it for overwrites it;
//! an output where its elements do not lie at one stride.

use super::{Member, Transport};
use crate::plan::{Buffer, BufferNo, CollectiveKind, InstKind, Place, Plan, Source, View};

/// A member's views, and what copies between them and those of the program.
#[derive(Default)]
pub(super) struct Staged {
    /// The views that the transport works on.
    pub member: Member,
    /// Before anything else.
    pub before: Vec<InstKind>,
    /// When the collective is complete.
    pub after: Vec<InstKind>,
}

/// The views that a transport works on, with staging buffers added to the plan where it needs them; `me` of `n` members.
pub(super) fn stage(
    plan: &mut Plan,
    transport: &dyn Transport,
    (kind, me, n): (CollectiveKind, usize, usize),
    (input, output): (Option<&View>, Option<&View>),
) -> Staged {
    let mut it = Staged::default();
    let flat = |view: &View| view.reshape(&[view.len()]);
    if let Some(input) = input {
        let safe = output.is_none_or(|output| {
            !may_meet(input, output)
                || transport.works_in_place(kind) && is_own_place(kind, (me, n), input, output)
        });
        it.member.input = Some(flat(input).filter(|_| safe).unwrap_or_else(|| {
            let staged = buffer(plan, input, &mut it.before);
            it.before.push(copy(plan.rank, input, &shaped(&staged, input)));
            staged
        }));
    }
    if let Some(output) = output {
        it.member.output = Some(flat(output).unwrap_or_else(|| {
            let staged = buffer(plan, output, &mut it.before);
            it.after.push(copy(plan.rank, &shaped(&staged, output), output));
            staged
        }));
    }
    it
}

/// Whether what a member gets of itself lies where it gives it.
fn is_own_place(kind: CollectiveKind, (me, n): (usize, usize), input: &View, output: &View) -> bool {
    let (Some(input), Some(output)) = (input.reshape(&[input.len()]), output.reshape(&[output.len()])) else {
        return false;
    };
    let mut offset = 0;
    for delivery in kind.gets(me, n) {
        let elements = delivery.elements(input.len(), n);
        let is_own = delivery.from == Source::Combined || delivery.member() == Some(me);
        if is_own && offset + elements.len() <= output.len() {
            return input.narrow(0, elements.start, elements.len())
                == output.narrow(0, offset, elements.len());
        }
        offset += elements.len();
    }
    false
}

/// Whether two views may have an element in common: both lie in one range of one buffer.
fn may_meet(one: &View, other: &View) -> bool {
    let range = |it: &View| {
        let reach: usize =
            it.shape.iter().zip(&it.strides).map(|(n, stride)| n.saturating_sub(1) * stride).sum();
        (it.offset, it.offset + reach)
    };
    let ((first, last), (start, end)) = (range(one), range(other));
    one.buffer == other.buffer && !one.is_empty() && !other.is_empty() && first <= end && start <= last
}

/// A dense buffer for the elements of a view.
fn buffer(plan: &mut Plan, view: &View, before: &mut Vec<InstKind>) -> View {
    let number = plan.buffers.len() as BufferNo;
    let Buffer { name, dtype, .. } = &plan.buffers[view.buffer as usize];
    let it = Buffer { name: format!("{name}.staged"), dtype: *dtype, len: view.len() };
    plan.buffers.push(it);
    before.push(InstKind::Alloc { buffer: number, zero: false });
    View::contiguous(number, vec![view.len()])
}

/// A staging buffer in the shape of the view that it stands for.
fn shaped(staged: &View, view: &View) -> View {
    View::contiguous(staged.buffer, view.shape.clone())
}

fn copy(rank: usize, from: &View, to: &View) -> InstKind {
    let place = |view: &View| Box::new(Place { rank, view: view.clone() });
    InstKind::Copy { from: place(from), to: place(to) }
}
