//! Checks the order of the tapes: that no rank waits forever, and that every two conflicting accesses of a buffer are ordered.
//!
//! Streams and queues of communicators are chains: their steps run one after another. The steps of all chains are visited in an order
//! that satisfies all dependences, each with a vector clock: how many steps of every chain come before it. The dependences are those that
//! CUDA and NCCL document. A step waits for the one before it on its stream; `Synchronize` for what was issued on another stream; a
//! communication for its posting stream and for the one before it on its communicator; `Wait` for the end of a communication, which
//! comes after the beginning of those of its members whose data the rank receives. Hosts order nothing. A communication ends when all
//! its members have begun it; if no chain can proceed then, the ranks wait forever.

use grammar::{
    arena::Id,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
    words::Backend,
};
use rustc_hash::FxHashMap;

use crate::{
    tape::{Channel, StepKind, Tape, Transfer, TransferKind},
    view::View,
};

/// How many steps of each chain come before.
type Clock = Vec<u32>;

/// An access of a rank's buffer, from its beginning to its end on a chain.
struct Access {
    view: View,
    writes: bool,
    chain: usize,
    /// The number of its last step on the chain.
    end: u32,
    /// `None`: the caller of the program.
    stmt: Option<StmtId>,
}

/// A chain with the steps that are left.
struct Chain {
    rank: usize,
    /// By position in the tape; of a queue, those of its posts.
    steps: Vec<usize>,
    next: usize,
    clock: Clock,
    /// For a queue: whether the communication at `next` has begun.
    has_begun: bool,
}

/// What ranks have begun of a communication: the clock at its beginning, by member.
type Begun = FxHashMap<(Channel, usize), Vec<Option<Clock>>>;

struct Order<'a> {
    program: &'a Program,
    tapes: &'a [Tape],
    chains: Vec<Chain>,
    /// By rank: the chains of streams.
    streams: Vec<FxHashMap<usize, usize>>,
    /// By rank and step: the clocks of posts on their stream, and at the end of the communication.
    posted: FxHashMap<(usize, usize), Clock>,
    ended: FxHashMap<(usize, usize), Clock>,
    begun: Begun,
    /// By rank and buffer: the accesses that later ones may conflict with.
    accesses: Vec<Vec<Vec<Access>>>,
}

/// Checks that all conflicting accesses are ordered and that all ranks end. Returns the number of accesses.
pub(crate) fn check_order(program: &Program, tapes: &[Tape]) -> Result<usize, Box<Diagnostic>> {
    let mut it = Order::new(program, tapes);
    let exchanges =
        |tape: &Tape| tape.steps.iter().filter(|it| matches!(it.kind, StepKind::Exchange)).count();
    if let Some(rank) = tapes.iter().position(|it| exchanges(it) != exchanges(&tapes[0])) {
        let message = format!("rank {rank} exchanges memory handles another number of times than rank 0");
        return Err(Box::new(Diagnostic::new(
            Code::CheckedDeadlock,
            program.spans.header,
            message,
            "its host waits forever",
        )));
    }
    let mut count = 0;
    loop {
        let mut proceeds = false;
        for chain in 0..it.chains.len() {
            while let Some(accesses) = it.step(chain)? {
                (proceeds, count) = (true, count + accesses);
            }
        }
        if !proceeds {
            break;
        }
    }
    let stuck = it.chains.iter().find_map(|it| Some((it.rank, *it.steps.get(it.next)?)));
    if let Some((rank, step)) = stuck {
        let place = program.stmt_span(tapes[rank].steps[step].stmt);
        let message = format!("rank {rank} waits here forever");
        let it = Diagnostic::new(Code::CheckedDeadlock, place, message, "never ends");
        return Err(Box::new(it.help("`hir check` explains the deadlock")));
    }
    it.exit()?;
    Ok(count)
}

impl<'a> Order<'a> {
    fn new(program: &'a Program, tapes: &'a [Tape]) -> Self {
        let (mut chains, mut streams): (Vec<Chain>, Vec<FxHashMap<usize, usize>>) = (Vec::new(), Vec::new());
        for (rank, tape) in tapes.iter().enumerate() {
            let mut own = FxHashMap::default();
            let mut queues: FxHashMap<Channel, usize> = FxHashMap::default();
            let mut add = |step: Option<usize>, known: Option<usize>| {
                let chain = known.unwrap_or(chains.len());
                if chain == chains.len() {
                    chains.push(Chain {
                        rank,
                        steps: Vec::new(),
                        next: 0,
                        clock: Vec::new(),
                        has_begun: false,
                    });
                }
                chains[chain].steps.extend(step);
                chain
            };
            own.insert(0, add(None, None));
            own.entry(tape.last_stream).or_insert_with(|| add(None, None));
            for (at, step) in tape.steps.iter().enumerate() {
                let known = own.get(&step.stream).copied();
                own.insert(step.stream, add(Some(at), known));
                if let StepKind::Post(transfers) = &step.kind
                    && let Some(first) = transfers.first()
                {
                    // Transfers between two ranks share one communicator of all ranks. Those of the CUDA backend are copies
                    // of their own, of which one number on one stream is not posted again before its Wait.
                    let queue = match &first.channel {
                        Channel::Pair(Backend::Cuda, ..) => {
                            Channel::Pair(Backend::Cuda, step.stmt.index(), step.stream)
                        }
                        Channel::Pair(backend, ..) => Channel::Pair(*backend, 0, 0),
                        team @ Channel::Team(..) => team.clone(),
                    };
                    let known = queues.get(&queue).copied();
                    queues.insert(queue, add(Some(at), known));
                }
            }
            streams.push(own);
        }
        let len = chains.len();
        chains.iter_mut().for_each(|it| it.clock = vec![0; len]);
        let mut accesses: Vec<Vec<Vec<Access>>> =
            tapes.iter().map(|it| it.buffers.iter().map(|_| Vec::new()).collect()).collect();
        for (rank, tape) in tapes.iter().enumerate() {
            let chain = streams[rank][&0];
            // The caller writes the inputs before the program, on the stream that is current at entry.
            chains[chain].clock[chain] = 1;
            for (view, _) in tape.inputs.iter().flatten() {
                let it = Access { view: view.clone(), writes: true, chain, end: 1, stmt: None };
                accesses[rank][view.buffer].push(it);
            }
        }
        let (posted, ended, begun) = Default::default();
        Self { program, tapes, chains, streams, posted, ended, begun, accesses }
    }

    /// Executes the next step of a chain, and returns the number of its accesses; `None` if it has to wait, or has none.
    fn step(&mut self, chain: usize) -> Result<Option<usize>, Box<Diagnostic>> {
        let (rank, next) = (self.chains[chain].rank, self.chains[chain].next);
        let Some(at) = self.chains[chain].steps.get(next).copied() else { return Ok(None) };
        let tapes = self.tapes;
        let step = &tapes[rank].steps[at];
        if self.streams[rank].get(&step.stream) != Some(&chain) {
            let StepKind::Post(transfers) = &step.kind else { return Ok(None) };
            return self.communicate(chain, at, transfers);
        }
        let mut accesses: Vec<(&View, bool)> = Vec::new();
        let whole;
        match &step.kind {
            StepKind::Synchronize(stream) => {
                if let Some(other) = self.streams[rank].get(stream).map(|it| &self.chains[*it]) {
                    if other.steps.get(other.next).is_some_and(|it| *it < at) {
                        return Ok(None);
                    }
                    let clock = other.clock.clone();
                    join(&mut self.chains[chain].clock, &clock);
                }
            }
            StepKind::Wait(post) => {
                let Some(clock) = self.ended.get(&(rank, *post)) else { return Ok(None) };
                join(&mut self.chains[chain].clock, clock);
            }
            StepKind::Zero(buffer) => {
                whole = View::contiguous(*buffer, vec![tapes[rank].buffers[*buffer]]);
                accesses.push((&whole, true));
            }
            StepKind::Compute(it) => {
                accesses.extend(it.args.iter().filter_map(|it| Some((it.view.as_ref()?, false))));
                accesses.extend(it.outs.iter().filter_map(|it| Some((it.view.as_ref()?, true))));
            }
            StepKind::Post(_) | StepKind::Exchange => (),
        }
        let it = &mut self.chains[chain];
        it.next += 1;
        it.clock[chain] += 1;
        let (clock, end) = (it.clock.clone(), it.clock[chain]);
        for (view, writes) in &accesses {
            self.access(rank, &clock, (view, *writes), (chain, end, false), Some(step.stmt))?;
        }
        if matches!(step.kind, StepKind::Post(_)) {
            self.posted.insert((rank, at), clock);
        }
        Ok(Some(accesses.len()))
    }

    /// Begins or ends the next communication of a queue.
    fn communicate(
        &mut self,
        chain: usize,
        at: usize,
        transfers: &[Transfer],
    ) -> Result<Option<usize>, Box<Diagnostic>> {
        let rank = self.chains[chain].rank;
        let stmt = Some(self.tapes[rank].steps[at].stmt);
        if !self.chains[chain].has_begun {
            let Some(clock) = self.posted.remove(&(rank, at)) else { return Ok(None) };
            let it = &mut self.chains[chain];
            join(&mut it.clock, &clock);
            it.clock[chain] += 1;
            it.has_begun = true;
            let (clock, end) = (it.clock.clone(), it.clock[chain] + 1);
            for it in transfers {
                let members = || vec![None; it.channel.ranks().len()];
                self.begun.entry((it.channel.clone(), it.number)).or_insert_with(members)[it.me] =
                    Some(clock.clone());
            }
            let views = transfers.iter().flat_map(|it| {
                it.input.iter().map(|view| (view, false)).chain(it.output.iter().map(|view| (view, true)))
            });
            let views: Vec<(&View, bool)> = views.collect();
            for (view, writes) in &views {
                self.access(rank, &clock, (view, *writes), (chain, end, transfers.len() > 1), stmt)?;
            }
            return Ok(Some(views.len()));
        }
        let mut clocks = Vec::new();
        for it in transfers {
            let members = &self.begun[&(it.channel.clone(), it.number)];
            if members.iter().any(Option::is_none) {
                return Ok(None);
            }
            let sources = match it.kind {
                TransferKind::Pair if it.me == 0 => Vec::new(),
                kind => kind.sources(it.me, members.len()),
            };
            clocks.extend(sources.into_iter().filter_map(|at| members[at].clone()));
        }
        let it = &mut self.chains[chain];
        clocks.iter().for_each(|clock| join(&mut it.clock, clock));
        it.clock[chain] += 1;
        (it.next, it.has_begun) = (it.next + 1, false);
        let clock = it.clock.clone();
        self.ended.insert((rank, at), clock);
        Ok(Some(0))
    }

    /// Checks an access against those before it. `clock` is that of its beginning.
    fn access(
        &mut self,
        rank: usize,
        clock: &Clock,
        (view, writes): (&View, bool),
        (chain, end, is_group): (usize, u32, bool),
        stmt: Option<StmtId>,
    ) -> Result<(), Box<Diagnostic>> {
        let own = &mut self.accesses[rank][view.buffer];
        // A collective may be in place; what a group reads and writes at the same time conflicts.
        let is_same = |it: &Access| it.chain == chain && it.end == end && !is_group;
        let is_before = |it: &Access| it.end <= clock[it.chain] || is_same(it);
        let conflicts = |it: &&Access| (writes || it.writes) && !is_before(it) && overlap(&it.view, view);
        if let Some(other) = own.iter().find(conflicts) {
            let name =
                |it: Option<StmtId>| it.map_or("the caller".to_owned(), |_| "this statement".to_owned());
            let verb = |writes: bool| if writes { "writes" } else { "reads" };
            let place =
                |it: Option<StmtId>| it.map_or(self.program.spans.header, |it| self.program.stmt_span(it));
            let message = format!("on rank {rank}, nothing orders two accesses to the same elements");
            let label = |stmt, writes| format!("{} {} them", name(stmt), verb(writes));
            let it = Diagnostic::new(Code::Race, place(other.stmt), message, label(other.stmt, other.writes));
            let it = it.label(place(stmt), label(stmt, writes));
            return Err(Box::new(
                it.help("`hir check` explains the race, and `hir opt --fix=check` removes it"),
            ));
        }
        // Later accesses are compared with this one instead of those that it follows and covers.
        own.retain(|it| !(is_before(it) && (writes || !it.writes) && (it.view == *view)));
        own.push(Access { view: view.clone(), writes, chain, end, stmt });
        Ok(())
    }

    /// Checks that the caller may read the outputs and overwrite the inputs when the program ends.
    fn exit(&mut self) -> Result<(), Box<Diagnostic>> {
        for (rank, tape) in self.tapes.iter().enumerate() {
            let chain = self.streams[rank][&tape.last_stream];
            let clock = self.chains[chain].clock.clone();
            let outputs = tape.outputs.iter().flatten().map(|it| (&it.0, false));
            let inputs = tape.inputs.iter().flatten().map(|it| (&it.0, true));
            for it in outputs.chain(inputs) {
                self.access(rank, &clock, it, (chain, clock[chain] + 1, false), None)?;
            }
        }
        Ok(())
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    clock.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

/// Returns whether two views of one buffer have an element in common.
fn overlap(a: &View, b: &View) -> bool {
    let bounds = |it: &View| {
        let reach =
            it.shape.iter().zip(&it.strides).map(|(extent, stride)| extent.saturating_sub(1) * stride);
        (it.offset, it.offset + reach.sum::<usize>())
    };
    let is_apart = bounds(a).1 < bounds(b).0 || bounds(b).1 < bounds(a).0;
    if a.len() == 0 || b.len() == 0 || is_apart {
        return false;
    }
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let known: rustc_hash::FxHashSet<usize> = few.offsets().into_iter().collect();
    a == b || many.offsets().into_iter().any(|it| known.contains(&it))
}
