//! Elementwise instructions that become one kernel: what one has computed the next has in a register.
//!
//! A chain is a run of instructions of one stream with nothing of that stream between them, so nothing that is ordered by
//! events, flags or works can tell whether they are one. All have one shape; everywhere a later one takes what an earlier one
//! has computed; and where two of them touch the same memory, whosever buffer it is, they touch the same elements of it: one
//! thread then does to it what the instructions do, in their order. What nothing but the chain reads is not stored.

use crate::{
    cuda::{
        error::CudaError,
        kernels::{self, DeviceView, ElementwiseOp, Launch},
    },
    plan::{BufferNo, InstKind, Plan, View},
};

use super::elementwise::elementwise_op;
use uses::UseAnalysis;

#[cfg(test)]
mod tests;
mod uses;

/// Most steps of a chain.
const MAX_OPS: usize = 8;
/// Most views that one reads and writes.
const MAX_VIEWS: usize = 12;

/// What an instruction is to a chain.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum FusionRole {
    /// Part of none.
    Unfused,
    /// The first of one; the kernel does all of it.
    Leader(Box<Launch>),
    /// Another one, done by the first, whose index in `Plan::code` this is.
    FusedInto(u32),
}

/// An instruction that may be a step.
struct Candidate<'a> {
    /// Index in `Plan::code`.
    at: u32,
    op: ElementwiseOp<'a>,
    /// Those that read the result; `None`: not only instructions of this stream, or too many.
    readers: Option<Vec<u32>>,
}

/// Tells the chains of a plan, by instruction. `locate` finds views of this rank's memory; `is_shared` tells the buffers that
/// peers touch.
pub(super) fn fusion_roles<'a>(
    plan: &'a Plan,
    locate: impl Fn(&'a View) -> Result<DeviceView<'a>, CudaError>,
    is_shared: impl Fn(BufferNo) -> bool,
) -> Vec<FusionRole> {
    let readers = UseAnalysis::of(plan, is_shared);
    let mut roles = vec![FusionRole::Unfused; plan.code.len()];
    // By stream, what has followed each other so far.
    let mut runs: Vec<Vec<Candidate>> = Vec::new();
    runs.resize_with(plan.streams.len(), Vec::new);
    for (at, inst) in (0..).zip(&plan.code) {
        let Some(run) = runs.get_mut(inst.stream as usize) else { continue };
        // Storage that comes into being is nothing that a stream does.
        if let InstKind::Alloc { zero: false, .. } = inst.kind {
            continue;
        }
        // What is not to be found is told of the instruction alone.
        let link = elementwise_op(plan, inst, &locate).ok().flatten();
        match link.filter(|it| {
            !it.out.view.is_empty() && !it.views().any(|view| view.may_partially_overlap(&it.out))
        }) {
            Some(link) => {
                let readers = readers.readers_of(at, link.out.view);
                run.push(Candidate { at, op: link, readers });
            }
            None => fuse_run(&std::mem::take(run), &mut roles),
        }
    }
    runs.iter().for_each(|run| fuse_run(run, &mut roles));
    roles
}

/// Takes chains from the front of a run, each as long as can be.
fn fuse_run(run: &[Candidate], roles: &mut [FusionRole]) {
    let mut rest = run;
    while !rest.is_empty() {
        let longest =
            (2..=rest.len().min(MAX_OPS)).rev().find_map(|len| Some((len, fused_launch(&rest[..len])?)));
        let (len, launch) = match longest {
            Some((len, launch)) => (len, Some(launch)),
            None => (1, None),
        };
        let (taken, others) = rest.split_at(len);
        rest = others;
        let (Some(launch), Some((first, later))) = (launch, taken.split_first()) else { continue };
        roles[first.at as usize] = FusionRole::Leader(Box::new(launch));
        later.iter().for_each(|it| roles[it.at as usize] = FusionRole::FusedInto(first.at));
    }
}

/// The kernel of a chain, if these are one.
fn fused_launch(steps: &[Candidate]) -> Option<Launch> {
    let mut links: Vec<ElementwiseOp> = steps.iter().map(|it| it.op.clone()).collect();
    let within = |at: &u32| steps.iter().any(|it| it.at == *at);
    for (link, step) in links.iter_mut().zip(steps) {
        let readers = step.readers.as_deref().unwrap_or_default();
        link.is_stored = readers.is_empty() || !readers.iter().all(within);
    }
    let is_one = is_connected(&links) && is_free_of_overlaps(&links) && view_count(&links) <= MAX_VIEWS;
    // What a kernel cannot hold, or lacks, is told of single instructions.
    if is_one { kernels::elementwise_launch(&links).ok().flatten() } else { None }
}

/// Whether, wherever the chain is cut in two, the second part takes something from the first.
fn is_connected(links: &[ElementwiseOp]) -> bool {
    let crosses = |cut: usize, at: usize| {
        links[at].views().any(|it| kernels::defining_op(&links[..at], it).is_some_and(|from| from < cut))
    };
    let shape = |it: &ElementwiseOp| it.out.view.shape == links[0].out.view.shape;
    links.iter().all(shape) && (1..links.len()).all(|cut| (cut..links.len()).any(|at| crosses(cut, at)))
}

/// Whether steps that touch the same memory touch the same elements of it.
fn is_free_of_overlaps(links: &[ElementwiseOp]) -> bool {
    links.iter().enumerate().all(|(at, link)| {
        let earlier = &links[..at];
        let written = |it: &ElementwiseOp| it.is_stored && it.out.may_partially_overlap(&link.out);
        // What comes from a register is not read.
        let read = |(at, it): (usize, &ElementwiseOp)| {
            it.views().any(|it| {
                kernels::defining_op(&links[..at], it).is_none() && it.may_partially_overlap(&link.out)
            })
        };
        // What is written anew is not what was there before.
        let torn = |view: &DeviceView| {
            let since = kernels::defining_op(earlier, view).map_or(0, |it| it + 1);
            earlier[since..].iter().any(|it| it.out.may_partially_overlap(view))
        };
        let clashes = link.is_stored && (earlier.iter().any(written) || earlier.iter().enumerate().any(read));
        !clashes && !link.views().any(torn)
    })
}

/// How many views a chain reads, those of one step counted apart from those of another, and writes.
fn view_count(links: &[ElementwiseOp]) -> usize {
    let from_memory = |(at, it): (usize, &ElementwiseOp)| {
        it.views().filter(|it| kernels::defining_op(&links[..at], it).is_none()).count()
    };
    let read: usize = links.iter().enumerate().map(from_memory).sum();
    read + links.iter().filter(|it| it.is_stored).count()
}
