//! Programs of three ranks with several communicators: a GPU runs one kernel of NCCL at a time, which ends when all members run it.

use std::fmt::Write as _;

use grammar::Named;
use hir_check::{Checks, Finding, SequencedProgram, order_of_sequence};
use hir_plan::sync::LaunchOrder;

use super::{
    Verdict, plans_of, same_verdict,
    sends::RANKS,
    starts::{self, Step},
    text::stream_name,
};
use crate::rng::Rng;

const STREAMS: usize = 3;
/// Kernels of more runs cannot wait for each other in a cycle: each rank waits in one of them.
const RUNS: usize = RANKS;
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

impl Statement {
    /// Returns the statement in a run that other all-reduces precede.
    fn behind(self, count: usize) -> Self {
        match self {
            Self::Post { number, stream } => Self::Post { number: number + count, stream },
            Self::Wait { number, stream } => Self::Wait { number: number + count, stream },
            Self::Synchronize { .. } => self,
        }
    }
}

/// A program: the teams of its all-reduces, and the statements of each rank.
type Program = (Vec<usize>, [Vec<Statement>; RANKS]);

/// Compares the verdicts on a random program with each launch order, in one run and in any number of runs.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let program = program(rng);
    let text = text(&program);
    let world = plans_of(&text, RANKS)?;
    let is_fault = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
    let models = LaunchOrder::ALL.iter().flat_map(|&nccl| [(nccl, 1), (nccl, RUNS)]);
    let each = models.map(|(nccl, runs)| {
        let repeat = runs > 1;
        let checks = Checks { race: false, memory: false, repeat, nccl, ..Checks::ALL_FAULTS };
        let expected = stuck(&vec![&program; runs], nccl);
        let model = format!("{} repeat={repeat}", nccl.name());
        same_verdict((&text, &world), (checks, &model), is_fault, expected)
    });
    each.collect()
}

/// Compares the verdicts on two random programs that follow each other in any order and number.
pub fn compare_programs(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let programs = [program(rng), program(rng)];
    let alone = |it: &Program| stuck(&[it; RUNS], LaunchOrder::Explicit).is_some();
    if programs.iter().any(alone) {
        return Ok(vec![None]);
    }
    let texts = programs.each_ref().map(text);
    let worlds = [plans_of(&texts[0], RANKS)?, plans_of(&texts[1], RANKS)?];
    let all = worlds.each_ref().map(SequencedProgram::new);
    let checks = Checks { nccl: LaunchOrder::Explicit, ..Checks::ALL_FAULTS };
    let found = order_of_sequence(&all, checks).map_err(|it| it.to_string())?.is_some();
    let mut sequences = (0..1_usize << RUNS).map(|bits| {
        let runs: Vec<&Program> = (0..RUNS).map(|run| &programs[bits >> run & 1]).collect();
        stuck(&runs, LaunchOrder::Explicit)
    });
    match (found, sequences.find_map(|it| it)) {
        (true, None) => Err(format!("FALSE ALARM\n{}\n{}", texts[0], texts[1])),
        (false, Some(reason)) => Err(format!("MISSED: {reason}\n{}\n{}", texts[0], texts[1])),
        (found, _) => Ok(vec![Some(found)]),
    }
}

fn program(rng: &mut Rng) -> Program {
    let teams: Vec<usize> = (0..2 + rng.below(2)).map(|_| rng.below(TEAMS.len())).collect();
    let common = statements(rng, teams.len());
    let ranks: [Vec<Statement>; RANKS] = match rng.below(3) {
        0 => [common.clone(), common.clone(), common],
        1 => [statements(rng, teams.len()), common.clone(), common],
        _ => std::array::from_fn(|_| statements(rng, teams.len())),
    };
    (teams, ranks)
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

/// Returns the text of a program.
fn text((teams, ranks): &Program) -> String {
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
    for (rank, statements) in ranks.iter().enumerate() {
        let _ = writeln!(text, "  IF Manual ( rank == {rank} ):");
        for it in statements {
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

fn any_of(conditions: &[String]) -> String {
    let mut all = conditions.iter();
    let first = all.next().cloned().unwrap_or_default();
    all.fold(first, |any, it| format!("( {any} ) || ( {it} )"))
}

/// Returns a state in which some rank does not finish and none proceeds, if there is one, of programs that each rank executes one after the
/// other. Stream 0 is the one that is current at entry and at exit.
fn stuck(runs: &[&Program], order: LaunchOrder) -> Option<String> {
    let mut teams: Vec<usize> = Vec::new();
    let mut ranks: [Vec<Statement>; RANKS] = std::array::from_fn(|_| Vec::new());
    for (of_run, statements) in runs {
        for (rank, statements) in statements.iter().enumerate() {
            ranks[rank].extend(statements.iter().map(|it| it.behind(teams.len())));
        }
        teams.extend(of_run);
    }
    let (teams, ranks) = (&teams[..], &ranks);
    let issued: [Vec<usize>; RANKS] = std::array::from_fn(|rank| issued(teams, &ranks[rank], rank));
    let alike = |rank: usize, team: usize| {
        issued[rank].iter().enumerate().filter(move |it| teams[*it.1] == team).map(|it| it.0)
    };
    // All members run the kernels with the same position among those of the communicator.
    let partners = |rank: usize, at: usize| {
        let team = teams[issued[rank][at]];
        let position = alike(rank, team).position(|it| it == at).unwrap_or_default();
        let members = TEAMS[team].iter();
        members.map(|member| Some((*member, alike(*member, team).nth(position)?))).collect()
    };
    let partners = std::array::from_fn(|rank| (0..issued[rank].len()).map(|at| partners(rank, at)).collect());
    let steps = std::array::from_fn(|rank| {
        let kernel = |number: usize| issued[rank].iter().position(|it| *it == number);
        let step = |it: &Statement| match *it {
            Statement::Post { number, stream } => Some((stream, Step::Post(kernel(number)?))),
            Statement::Wait { number, stream } => Some((stream, Step::Wait(kernel(number)?))),
            Statement::Synchronize { awaited, stream } => Some((stream, Step::Synchronize(awaited))),
        };
        ranks[rank].iter().filter_map(step).collect()
    });
    let is_one_queue =
        |rank: usize, one: usize, other: usize| teams[issued[rank][one]] == teams[issued[rank][other]];
    starts::stuck::<STREAMS>(&steps, &partners, order, is_one_queue)
}

/// Returns the kernels of a rank in issue order.
fn issued(teams: &[usize], statements: &[Statement], rank: usize) -> Vec<usize> {
    let post = |it: &Statement| match *it {
        Statement::Post { number, .. } if TEAMS[teams[number]].contains(&rank) => Some(number),
        Statement::Post { .. } | Statement::Wait { .. } | Statement::Synchronize { .. } => None,
    };
    statements.iter().filter_map(post).collect()
}
