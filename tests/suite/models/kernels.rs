//! Programs of three ranks with several communicators: a GPU runs one kernel of NCCL at a time, which ends when all members run it.

use std::{collections::BTreeSet, fmt::Write as _};

use hir::{
    check::{Checks, Finding},
    plan::sync::LaunchOrder,
};

use super::{Verdict, plans_of, same_verdict};
use crate::rng::Rng;

const RANKS: usize = 3;
const STREAMS: usize = 3;
const TEAMS: [&[usize]; 5] = [&[0, 1], &[1, 0], &[1, 2], &[0, 2], &[0, 1, 2]];

/// A statement of a rank, on the stream with a number.
#[derive(Clone, Copy, Debug)]
enum Statement {
    /// An all-reduce with a number.
    Post {
        number: usize,
        stream: usize,
    },
    Wait {
        number: usize,
        stream: usize,
    },
    Synchronize {
        awaited: usize,
        stream: usize,
    },
}

/// Compares the verdicts on a random program with each launch order.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let teams: Vec<usize> = (0..2 + rng.below(2)).map(|_| rng.below(TEAMS.len())).collect();
    let common = statements(rng, teams.len());
    let ranks: [Vec<Statement>; RANKS] = match rng.below(2) {
        0 => [common.clone(), common.clone(), common],
        _ => [statements(rng, teams.len()), common.clone(), common],
    };
    let text = text(&teams, &ranks);
    let world = plans_of(&text, RANKS)?;
    let is_fault = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
    let each = LaunchOrder::ALL.map(|nccl| {
        let checks = Checks { race: false, memory: false, nccl, ..Checks::ALL_FAULTS };
        let expected = stuck(&teams, &ranks, nccl);
        same_verdict((&text, &world), (checks, nccl.name()), is_fault, expected)
    });
    each.into_iter().collect()
}

/// Returns random statements that post each all-reduce, and wait for it.
fn statements(rng: &mut Rng, count: usize) -> Vec<Statement> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let (mut all, mut pending) = (Vec::new(), Vec::new());
    while !numbers.is_empty() || !pending.is_empty() {
        let stream = rng.below(STREAMS);
        match rng.below(3) {
            0 if !numbers.is_empty() => {
                let number = numbers.swap_remove(rng.below(numbers.len()));
                pending.push(number);
                all.push(Statement::Post { number, stream });
            }
            1 if !pending.is_empty() => {
                let number = pending.swap_remove(rng.below(pending.len()));
                all.push(Statement::Wait { number, stream });
            }
            2 => {
                let awaited = (stream + 1 + rng.below(STREAMS - 1)) % STREAMS;
                all.push(Statement::Synchronize { awaited, stream });
            }
            _ => (),
        }
    }
    all
}

/// Returns the text of a program in which rank 0 has statements of its own.
fn text(teams: &[usize], ranks: &[Vec<Statement>; RANKS]) -> String {
    let tensors = teams.len() + 1;
    let mut text = String::new();
    for tensor in 0..tensors {
        let _ = writeln!(text, "%tensor T{tensor}_g_float[iS{tensor}{{4}}] (DeviceMesh{{0 1 2}})");
    }
    let outputs: Vec<String> = (1..tensors).map(|it| format!("T{it}")).collect();
    let _ = writeln!(
        text,
        "%HostIrContainer {{ (T0) -> ({}) :\n  Stream s0 = GetCurrentStream()",
        outputs.join(", ")
    );
    for output in outputs {
        let _ = writeln!(text, "  {output} = ALLOCATE(mem_type=global, zero_init=true)");
    }
    for (condition, rank) in [("rank == 0", 0), ("rank > 0", 1)] {
        let _ = writeln!(text, "  IF Manual ( {condition} ):");
        for it in &ranks[rank] {
            let (stream, statement, number) = match *it {
                Statement::Post { number, stream } => {
                    let team: Vec<String> = TEAMS[teams[number]].iter().map(usize::to_string).collect();
                    let post = format!(
                        "Communication {number} (type=Allreduce, team=({}), red_op=SUM, input=T0, output=T{}, backend=NCCL)",
                        team.join(" "),
                        number + 1
                    );
                    (stream, post, Some(number))
                }
                Statement::Wait { number, stream } => {
                    (stream, format!("Wait(Communication {number})"), Some(number))
                }
                Statement::Synchronize { awaited, stream } => {
                    (stream, format!("Synchronize(Stream {})", stream_name(awaited)), None)
                }
            };
            let _ = writeln!(text, "    SetCurrentStream(Stream {})", stream_name(stream));
            let indentation = match number {
                Some(number) => {
                    let members: Vec<String> =
                        TEAMS[teams[number]].iter().map(|it| format!("rank == {it}")).collect();
                    let _ = writeln!(text, "    IF Manual ( {} ):", any_of(&members));
                    "      "
                }
                None => "    ",
            };
            let _ = writeln!(text, "{indentation}{statement}");
        }
        text += "    SetCurrentStream(Stream s0)\n";
    }
    text + "} // %HostIrContainer\n"
}

fn stream_name(stream: usize) -> String {
    if stream == 0 { "s0".to_owned() } else { stream.to_string() }
}

fn any_of(conditions: &[String]) -> String {
    let mut all = conditions.iter();
    let first = all.next().cloned().unwrap_or_default();
    all.fold(first, |any, it| format!("( {any} ) || ( {it} )"))
}

/// A work of a stream: what it needs of other streams, and the kernel that it posts or waits for.
#[derive(Clone, Copy)]
struct Work {
    needs: [usize; STREAMS],
    posts: Option<usize>,
    awaits: Option<usize>,
}

/// The state of a rank: the works that each stream has executed, the kernels that have begun, and those that have ended, as bits.
type RankState = ([usize; STREAMS], u32, u32);

/// Returns a state in which some rank does not finish and none proceeds, if there is one.
fn stuck(teams: &[usize], ranks: &[Vec<Statement>; RANKS], order: LaunchOrder) -> Option<String> {
    let queues: Vec<Vec<Vec<Work>>> = (0..RANKS).map(|rank| works(teams, &ranks[rank], rank)).collect();
    let issued: Vec<Vec<usize>> = (0..RANKS).map(|rank| issued(teams, &ranks[rank], rank)).collect();
    let mut start: [RankState; RANKS] = Default::default();
    settle(teams, &queues, &issued, &mut start);
    let (mut open, mut known) = (vec![start], BTreeSet::from([start]));
    while let Some(state) = open.pop() {
        let mut is_last = true;
        for rank in 0..RANKS {
            let (done, begun, ended) = state[rank];
            for (at, number) in issued[rank].iter().enumerate() {
                let is_posted = (0..STREAMS)
                    .any(|it| queues[rank][it][..done[it]].iter().any(|it| it.posts == Some(*number)));
                let earlier = &issued[rank][..at];
                let follows = earlier.iter().all(|it| teams[*it] != teams[*number] || ended >> it & 1 == 1);
                let is_first = earlier.iter().all(|it| begun >> it & 1 == 1);
                let may_start = is_posted && follows && (order == LaunchOrder::Explicit || is_first);
                if may_start && begun == ended && begun >> number & 1 == 0 {
                    is_last = false;
                    let mut next = state;
                    next[rank].1 |= 1 << number;
                    settle(teams, &queues, &issued, &mut next);
                    if known.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        let is_finished = (0..RANKS).all(|rank| {
            (0..STREAMS).all(|it| state[rank].0[it] == queues[rank][it].len())
                && state[rank].2.count_ones() as usize == issued[rank].len()
        });
        if is_last && !is_finished {
            return Some(format!("executed works, begun and ended kernels by rank: {state:?}"));
        }
    }
    None
}

/// Executes the works of all streams, and ends kernels, as far as possible. This prevents nothing, so that only the starts of kernels
/// have alternatives.
fn settle(teams: &[usize], queues: &[Vec<Vec<Work>>], issued: &[Vec<usize>], state: &mut [RankState; RANKS]) {
    let mut proceeds = true;
    while std::mem::take(&mut proceeds) {
        for rank in 0..RANKS {
            for (stream, queue) in queues[rank].iter().enumerate() {
                let (done, _, ended) = state[rank];
                let Some(work) = queue.get(done[stream]) else { continue };
                let is_awaited = work.awaits.is_none_or(|it| ended >> it & 1 == 1);
                if is_awaited && (0..STREAMS).all(|it| done[it] >= work.needs[it]) {
                    state[rank].0[stream] += 1;
                    proceeds = true;
                }
            }
            for (at, number) in issued[rank].iter().enumerate() {
                let is_running = (state[rank].1 & !state[rank].2) >> number & 1 == 1;
                if is_running && is_with_all(teams, issued, state, (rank, at)) {
                    state[rank].2 |= 1 << number;
                    proceeds = true;
                }
            }
        }
    }
}

/// Returns whether all members run, or have run, the kernel that matches the kernel `at` of a rank: that with the same position among
/// those of the communicator.
fn is_with_all(
    teams: &[usize],
    issued: &[Vec<usize>],
    state: &[RankState; RANKS],
    (rank, at): (usize, usize),
) -> bool {
    let number = issued[rank][at];
    let alike = |other: usize| issued[other].iter().copied().filter(|it| teams[*it] == teams[number]);
    let position = alike(rank).position(|it| it == number).unwrap_or_default();
    TEAMS[teams[number]]
        .iter()
        .all(|member| alike(*member).nth(position).is_some_and(|it| state[*member].1 >> it & 1 == 1))
}

/// Returns the kernels of a rank in issue order.
fn issued(teams: &[usize], statements: &[Statement], rank: usize) -> Vec<usize> {
    let post = |it: &Statement| match *it {
        Statement::Post { number, .. } if TEAMS[teams[number]].contains(&rank) => Some(number),
        Statement::Post { .. } | Statement::Wait { .. } | Statement::Synchronize { .. } => None,
    };
    statements.iter().filter_map(post).collect()
}

/// Returns the works of each stream of a rank.
fn works(teams: &[usize], statements: &[Statement], rank: usize) -> Vec<Vec<Work>> {
    let mut queues = vec![Vec::new(); STREAMS];
    for statement in statements {
        let mut work = Work { needs: [0; STREAMS], posts: None, awaits: None };
        let stream = match *statement {
            Statement::Post { number, stream } | Statement::Wait { number, stream }
                if !TEAMS[teams[number]].contains(&rank) =>
            {
                let _ = stream;
                continue;
            }
            Statement::Post { number, stream } => {
                work.posts = Some(number);
                stream
            }
            Statement::Wait { number, stream } => {
                work.awaits = Some(number);
                stream
            }
            Statement::Synchronize { awaited, stream } => {
                work.needs[awaited] = queues[awaited].len();
                stream
            }
        };
        queues[stream].push(work);
    }
    queues
}
