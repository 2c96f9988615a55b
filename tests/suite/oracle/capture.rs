//! What a capture into a CUDA graph does with a program: CUDA programming guide, Creating a Graph Using Stream Capture. One pass over what a host
//! issues decides.

use std::collections::{BTreeMap, BTreeSet};

use super::program::{Program, Role, Stmt};

/// A stream of the program, or the one of a communicator, for which the ranks stand.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Stream {
    Of(usize),
    Communicator(Vec<usize>, bool),
}

/// The streams that take part, each with the works that it follows.
#[derive(Default)]
struct Capture {
    known: BTreeMap<Stream, BTreeSet<usize>>,
    works: usize,
    fails: bool,
}

/// Returns whether a capture of a rank fails, or misses something. `pairs` is whether each pair of ranks has a communicator.
pub fn fails(program: &Program, rank: usize, pairs: bool) -> bool {
    let mut capture =
        Capture { known: BTreeMap::from([(Stream::Of(0), BTreeSet::new())]), ..Capture::default() };
    // By number: the works behind a communication; none if the capture does not have it.
    let mut posted: BTreeMap<usize, Option<BTreeSet<usize>>> = BTreeMap::new();
    let all = (0..program.ranks).collect::<Vec<_>>();
    for it in program.executed(rank) {
        let stream = Stream::Of(it.stream);
        let peer = |of: super::program::Scalar| of.value(rank, it.index, program.ranks);
        let pair = |peer: usize| vec![rank.min(peer), rank.max(peer)];
        let is_symmetric = |tensor: usize| program.tensors[tensor].1 == Role::Symmetric;
        let mut posts = |number, comm: Stream| {
            let works = capture.post(&stream, comm);
            posted.insert(number, works);
        };
        match it.stmt {
            Stmt::HostSync => capture.fails = true,
            Stmt::Allocate { tensor, .. } | Stmt::Free(tensor) if is_symmetric(*tensor) => {
                capture.fails = true
            }
            Stmt::Allocate { zero: false, .. } | Stmt::Free(_) | Stmt::Select { .. } | Stmt::Share(_) => (),
            // It takes symmetric memory, whose allocation fails.
            Stmt::View { .. } => capture.fails = true,
            Stmt::Allocate { .. } | Stmt::Compute { .. } => capture.execute(&stream),
            Stmt::Sync(awaited) => {
                let awaited = Stream::Of(program.stream(*awaited, rank, it.index));
                let works = capture.known.get(&awaited).cloned();
                capture.join(&stream, works);
            }
            Stmt::Collective { number, kind, team, .. } if team.contains(&rank) => {
                let is_single = *kind == super::program::Kind::SendRecv && pairs;
                posts(*number, Stream::Communicator(team.clone(), is_single && team.len() == program.ranks));
            }
            Stmt::Collective { .. } => (),
            Stmt::Post(side) if side.puts.is_none() => {
                let single = Stream::Communicator(pair(peer(side.peer)), true);
                posts(side.number, if pairs { single } else { Stream::Communicator(all.clone(), false) });
            }
            Stmt::Post(side) => {
                capture.execute(&stream);
                // What its own copy has is work of the stream.
                if side.puts == Some(side.sends) {
                    posted.remove(&side.number);
                } else {
                    posted.insert(side.number, Some(BTreeSet::new()));
                }
            }
            Stmt::Group { number, .. } => posts(*number, Stream::Communicator(all.clone(), false)),
            Stmt::Wait(number) => {
                if let Some(works) = posted.get(number).cloned() {
                    // A wait for a semaphore is work of the stream.
                    if works.as_ref().is_some_and(BTreeSet::is_empty) {
                        capture.execute(&stream);
                    } else {
                        capture.join(&stream, works);
                    }
                }
            }
        }
    }
    let end = capture.known.get(&Stream::Of(0)).cloned().unwrap_or_default();
    capture.fails || capture.known.values().any(|it| !it.is_subset(&end))
}

impl Capture {
    fn execute(&mut self, stream: &Stream) {
        self.works += 1;
        match self.known.get_mut(stream) {
            Some(known) => _ = known.insert(self.works),
            None => self.fails = true,
        }
    }

    /// A stream waits for works.
    fn join(&mut self, stream: &Stream, works: Option<BTreeSet<usize>>) {
        match works {
            Some(works) => self.known.entry(stream.clone()).or_default().extend(works),
            None => self.fails |= self.known.contains_key(stream),
        }
    }

    fn post(&mut self, stream: &Stream, comm: Stream) -> Option<BTreeSet<usize>> {
        let Some(known) = self.known.get(stream).cloned() else {
            self.fails = true;
            return None;
        };
        self.join(&comm, Some(known));
        self.execute(&comm);
        self.known.get(&comm).cloned()
    }
}
