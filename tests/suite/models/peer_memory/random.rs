//! Random programs over peer memory.

use super::{
    super::sends::{self, Kernels, RANKS},
    OPERANDS, Program, STREAMS, SYMMETRIC, Statement, Transfer, WIDE,
    collective::Collective,
};
use crate::rng::Rng;

/// Returns random statements of each rank that post both sides of some transfers, and wait for most of them.
pub(super) fn program(rng: &mut Rng) -> Program {
    let mut transfers: Vec<Transfer> = Vec::new();
    let mut numbers = [0; RANKS];
    let (locals, kinds, least) = (rng.below(2), rng.below(4), 2 + rng.below(3));
    let rounds = [1, 1, 1, 2, 3][rng.below(5)];
    let has_all = |it: &[Transfer]| (0..RANKS).all(|rank| it.iter().any(|it| it.ranks.contains(&rank)));
    // Few programs with transfers have no fault but one in a collective.
    let (transfers_too, has_sends) = (rng.below(5) > 0, rng.below(3) == 0);
    let transfers_too = transfers_too && (!has_sends || rng.below(2) == 0);
    // A rank without handles does not take part in an exchange, so others wait for it forever.
    while transfers_too && (transfers.len() < least || !has_all(&transfers) && rng.below(8) > 0) {
        let from = rng.below(RANKS);
        let ranks = [from, (from + 1 + rng.below(RANKS - 1)) % RANKS];
        let last = transfers.iter().rposition(|it| it.ranks == ranks).filter(|_| rng.below(2) == 0);
        let puts = if kinds < 2 { kinds == 0 } else { rng.below(2) == 0 };
        transfers.push(match last {
            Some(at) => Transfer { ranks, repeats: Some(at), ..transfers[at] },
            None => {
                let numbers = ranks.map(|rank| {
                    numbers[rank] += 1;
                    numbers[rank] - 1
                });
                let of = OPERANDS.len() - locals;
                let tensors = [OPERANDS[rng.below(of)], OPERANDS[1 + rng.below(of - 1)]];
                Transfer { ranks, tensors, numbers, puts, repeats: None, round: rng.below(rounds) }
            }
        });
    }
    let count = if transfers_too { rng.below(6).saturating_sub(3) } else { 1 + rng.below(3) };
    let collectives: Vec<Collective> =
        (0..count).map(|_| Collective::random(rng, &OPERANDS[..OPERANDS.len() - locals])).collect();
    // Few programs with sends and receives have no fault otherwise.
    let waits_at_once = has_sends && rng.below(2) == 0;
    let streams = if waits_at_once { 1 } else { 1 + rng.below(STREAMS) };
    let (is_shared_first, forgets) = (rng.below(3) > 0, rng.below(3) == 0);
    let sends = if has_sends { 1 + rng.below(4) } else { 0 };
    let sends: Vec<sends::Transfer> = (0..sends).map(|_| sends::Transfer::random(rng, RANKS)).collect();
    let mut kernels = Kernels { ranks: RANKS, ..Kernels::default() };
    // A send that is posted elsewhere than its receive often blocks both.
    let (shuffles, groups) = (rng.below(8) == 0, rng.below(3));
    let of = OPERANDS.len() - locals;
    let operand = |rng: &mut Rng, reads| {
        if reads { OPERANDS[rng.below(of)] } else { OPERANDS[1 + rng.below(of - 1)] }
    };
    let statements = std::array::from_fn(|rank| {
        let mut left: Vec<usize> = (0..sends.len()).filter(|it| sends[*it].has(rank)).collect();
        let mut post = |rng: &mut Rng| {
            if left.is_empty() {
                return None;
            }
            kernels.post(rng, (&sends, &mut left), (rank, shuffles, groups), &operand);
            Some((kernels.of[rank].len() - 1, left.is_empty()))
        };
        let is_empty = !sends.iter().any(|it| it.has(rank));
        statements(
            rng,
            &transfers,
            rank,
            (is_shared_first, forgets, waits_at_once),
            (streams, &collectives),
            (is_empty, &mut post),
        )
    });
    Program { transfers, collectives, kernels, statements }
}

/// Returns the number of the next kernel of a rank that sends or receives with NCCL, and whether it is the last one.
type PostKernel<'a> = &'a mut dyn FnMut(&mut Rng) -> Option<(usize, bool)>;

/// Returns the statements of a rank, on one stream or two. Handles are exchanged at the beginning, or before the first transfer of the round.
fn statements(
    rng: &mut Rng,
    transfers: &[Transfer],
    rank: usize,
    (is_shared_first, forgets, waits_at_once): (bool, bool, bool),
    (streams, collectives): (usize, &[Collective]),
    (mut has_all_kernels, post_kernel): (bool, PostKernel<'_>),
) -> Vec<Statement> {
    let mut left: Vec<usize> =
        (0..transfers.len()).filter(|it| transfers[*it].ranks.contains(&rank)).collect();
    let mut rounds: Vec<usize> = left.iter().map(|it| transfers[*it].round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let mut all = Vec::new();
    if is_shared_first {
        all.extend(rounds.drain(..).map(|round| Statement::Share { round }));
    }
    // Programs without transfers have few faults besides that of one statement.
    let is_joined = |rng: &mut Rng| transfers.is_empty() || rng.below(4) > 0;
    if is_joined(rng) {
        all.push(Statement::Synchronize { awaited: 0, stream: 1 });
    }
    let waits = if waits_at_once { 0 } else { rng.below(4) };
    let (mut pending, syncs, hosts) = (Vec::new(), rng.below(3), rng.below(4));
    // Transfers in the order of the program deadlock less often.
    let is_in_order = rng.below(3) > 0;
    let (mut open, mut kernels) = (Vec::new(), Vec::new());
    let [mut of_cuda, mut of_nccl] = [false, true].map(|is_nccl| {
        (0..collectives.len()).filter(move |it| collectives[*it].is_nccl == is_nccl).peekable()
    });
    while !left.is_empty()
        || of_cuda.peek().is_some()
        || of_nccl.peek().is_some()
        || !has_all_kernels
        || (!pending.is_empty() && rng.below(8) > 0)
    {
        let stream = rng.below(streams);
        match rng.below(11) {
            0..=1 if !left.is_empty() => {
                // The order between two ranks is the same on both.
                let ranks = transfers[left[if is_in_order { 0 } else { rng.below(left.len()) }]].ranks;
                let first = left.iter().position(|it| transfers[*it].ranks == ranks);
                let transfer = left.remove(first.unwrap_or_default());
                let round = transfers[transfer].round;
                if rounds.contains(&round) {
                    rounds.retain(|it| *it != round);
                    all.push(Statement::Share { round });
                }
                all.push(Statement::Post { transfer, stream });
                // A Wait is for the last post of its number.
                pending.retain(|it: &(usize, usize)| transfers[transfer].repeats != Some(it.0));
                // Without a Wait for symmetric memory, often only two runs have a fault.
                let own = usize::from(transfers[transfer].ranks[1] == rank);
                if forgets && transfers[transfer].tensors[own] == SYMMETRIC {
                    continue;
                }
                if waits == 0 || waits == 1 && rng.below(2) == 0 {
                    all.push(Statement::Wait { transfer, stream });
                } else {
                    pending.push((transfer, stream));
                }
            }
            2..=3 if !pending.is_empty() => {
                let (transfer, on) = pending.swap_remove(rng.below(pending.len()));
                all.push(Statement::Wait { transfer, stream: if rng.below(3) == 0 { stream } else { on } });
            }
            4 if rng.below(2) == 0 => {
                let (out, from) = match rng.below(4) {
                    0 => (WIDE, WIDE),
                    _ => (OPERANDS[1 + rng.below(OPERANDS.len() - 1)], OPERANDS[rng.below(OPERANDS.len())]),
                };
                all.push(Statement::Compute { out, from, stream });
            }
            5 if streams > 1 && rng.below(2) < syncs => {
                all.push(Statement::Synchronize { awaited: 1 - stream, stream });
            }
            7 if left.is_empty() || rng.below(3) == 0 => {
                let next = if rng.below(2) == 0 { of_cuda.next() } else { of_nccl.next() };
                let Some(collective) = next else { continue };
                all.push(Statement::PostCollective { collective, stream });
                if forgets && collectives[collective].uses(SYMMETRIC) {
                    continue;
                }
                if waits < 2 {
                    all.push(Statement::WaitCollective { collective, stream });
                } else {
                    open.push((collective, stream));
                }
            }
            8 if !open.is_empty() => {
                let (collective, on) = open.swap_remove(rng.below(open.len()));
                all.push(Statement::WaitCollective {
                    collective,
                    stream: if rng.below(3) == 0 { stream } else { on },
                });
            }
            9 => {
                let Some((kernel, is_last)) = post_kernel(rng) else { continue };
                has_all_kernels = is_last;
                all.push(Statement::PostKernel { kernel, stream });
                if waits < 2 {
                    all.push(Statement::WaitKernel { kernel, stream });
                } else {
                    kernels.push((kernel, stream));
                }
            }
            10 if !kernels.is_empty() => {
                let (kernel, on) = kernels.swap_remove(rng.below(kernels.len()));
                all.push(Statement::WaitKernel {
                    kernel,
                    stream: if rng.below(3) == 0 { stream } else { on },
                });
            }
            6 if hosts == 0 && rng.below(3) == 0 => all.push(Statement::HostWait { stream }),
            _ => (),
        }
    }
    if is_joined(rng) {
        all.push(Statement::Synchronize { awaited: 1, stream: 0 });
    }
    all
}
