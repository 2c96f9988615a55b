//! Elementwise instructions that become one kernel: what one has computed the next has in a register.
//!
//! A chain is a run of instructions of one stream with nothing of that stream between them, so nothing that is ordered by
//! events, flags or works can tell whether they are one. All have one shape; everywhere a later one takes what an earlier one
//! has computed; and where two of them touch the same memory, whosever buffer it is, they touch the same elements of it: one
//! thread then does to it what the instructions do, in their order. What nothing but the chain reads is not stored.

use crate::{
    cuda::{
        error::CudaError,
        kernels::{self, Launch, Link, Located},
    },
    plan::{BufferNo, InstKind, Plan, View},
};

use super::elementwise::link;
use readers::Readers;

mod readers;
#[cfg(test)]
mod tests;

/// Most steps of a chain.
const STEPS: usize = 8;
/// Most views that one reads and writes.
const PLACES: usize = 12;

/// What an instruction is to a chain.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Role {
    /// Part of none.
    Alone,
    /// The first of one; the kernel does all of it.
    First(Box<Launch>),
    /// Another one, done by the first, whose index in `Plan::code` this is.
    Later(u32),
}

/// An instruction that may be a step.
struct Candidate<'a> {
    /// Index in `Plan::code`.
    at: u32,
    link: Link<'a>,
    /// Those that read the result; `None`: not only instructions of this stream, or too many.
    readers: Option<Vec<u32>>,
}

/// Tells the chains of a plan, by instruction. `locate` finds views of this rank's memory; `is_shared` tells the buffers that
/// peers touch.
pub(super) fn chains<'a>(
    plan: &'a Plan,
    locate: impl Fn(&'a View) -> Result<Located<'a>, CudaError>,
    is_shared: impl Fn(BufferNo) -> bool,
) -> Vec<Role> {
    let readers = Readers::of(plan, is_shared);
    let mut roles = vec![Role::Alone; plan.code.len()];
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
        let link = link(plan, inst, &locate).ok().flatten();
        match link.filter(|it| !it.out.view.is_empty() && !it.views().any(|view| view.overlaps(&it.out))) {
            Some(link) => {
                let readers = readers.after(at, link.out.view);
                run.push(Candidate { at, link, readers });
            }
            None => split(&std::mem::take(run), &mut roles),
        }
    }
    runs.iter().for_each(|run| split(run, &mut roles));
    roles
}

/// Takes chains from the front of a run, each as long as can be.
fn split(run: &[Candidate], roles: &mut [Role]) {
    let mut rest = run;
    while !rest.is_empty() {
        let longest = (2..=rest.len().min(STEPS)).rev().find_map(|len| Some((len, fused(&rest[..len])?)));
        let (len, launch) = match longest {
            Some((len, launch)) => (len, Some(launch)),
            None => (1, None),
        };
        let (taken, others) = rest.split_at(len);
        rest = others;
        let (Some(launch), Some((first, later))) = (launch, taken.split_first()) else { continue };
        roles[first.at as usize] = Role::First(Box::new(launch));
        later.iter().for_each(|it| roles[it.at as usize] = Role::Later(first.at));
    }
}

/// The kernel of a chain, if these are one.
fn fused(steps: &[Candidate]) -> Option<Launch> {
    let mut links: Vec<Link> = steps.iter().map(|it| it.link.clone()).collect();
    let within = |at: &u32| steps.iter().any(|it| it.at == *at);
    for (link, step) in links.iter_mut().zip(steps) {
        let readers = step.readers.as_deref().unwrap_or_default();
        link.stored = readers.is_empty() || !readers.iter().all(within);
    }
    let is_one = is_connected(&links) && is_free_of_overlaps(&links) && places(&links) <= PLACES;
    // What a kernel cannot hold, or lacks, is told of single instructions.
    if is_one { kernels::chain(&links).ok().flatten() } else { None }
}

/// Whether, wherever the chain is cut in two, the second part takes something from the first.
fn is_connected(links: &[Link]) -> bool {
    let crosses = |cut: usize, at: usize| {
        links[at].views().any(|it| kernels::writer(&links[..at], it).is_some_and(|from| from < cut))
    };
    let shape = |it: &Link| it.out.view.shape == links[0].out.view.shape;
    links.iter().all(shape) && (1..links.len()).all(|cut| (cut..links.len()).any(|at| crosses(cut, at)))
}

/// Whether steps that touch the same memory touch the same elements of it.
fn is_free_of_overlaps(links: &[Link]) -> bool {
    links.iter().enumerate().all(|(at, link)| {
        let earlier = &links[..at];
        let written = |it: &Link| it.stored && it.out.overlaps(&link.out);
        // What comes from a register is not read.
        let read = |(at, it): (usize, &Link)| {
            it.views().any(|it| kernels::writer(&links[..at], it).is_none() && it.overlaps(&link.out))
        };
        // What is written anew is not what was there before.
        let torn = |view: &Located| {
            let since = kernels::writer(earlier, view).map_or(0, |it| it + 1);
            earlier[since..].iter().any(|it| it.out.overlaps(view))
        };
        let clashes = link.stored && (earlier.iter().any(written) || earlier.iter().enumerate().any(read));
        !clashes && !link.views().any(torn)
    })
}

/// How many views a chain reads, those of one step counted apart from those of another, and writes.
fn places(links: &[Link]) -> usize {
    let from_memory = |(at, it): (usize, &Link)| {
        it.views().filter(|it| kernels::writer(&links[..at], it).is_none()).count()
    };
    let read: usize = links.iter().enumerate().map(from_memory).sum();
    read + links.iter().filter(|it| it.stored).count()
}
