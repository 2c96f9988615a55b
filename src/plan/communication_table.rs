//! The table of a program's communications: which line posts what, between which ranks, and how much each rank sends.

use std::fmt::Write as _;

use grammar::{OpClass, OpStmt, Program, Stmt, TensorId, attr, count_text};
use rustc_hash::FxHashMap;

use super::{Communication, Direction, Inst, InstKind, Plan, limits::size_text, sync::ranks_text};

/// The communications of one kind that one line of the text posts for one result.
struct Row {
    line: u32,
    kind: &'static str,
    purpose: String,
    teams: Vec<Vec<usize>>,
    /// What each rank posts.
    ranks: FxHashMap<usize, Posted>,
}

/// What a rank posts.
#[derive(Clone, Copy, Default)]
struct Posted {
    count: usize,
    bytes: f64,
}

/// Returns the table of the communications of all ranks.
///
/// The bytes are those that a rank sends if the collective moves as little as possible: `2 (n-1) / n` of the data for an
/// all-reduce of `n` ranks, `(n-1) / n` for an all-gather, a reduce-scatter or an all-to-all, and all of it for a message.
/// Each line of the table is about the rank that sends most, and so is the total. What a rank does alone is no communication.
pub fn communication_table(program: &Program, plans: &[Plan]) -> String {
    let mut rows: Vec<Row> = Vec::new();
    let mut known: FxHashMap<(u32, &'static str, String), usize> = FxHashMap::default();
    let mut total: FxHashMap<usize, Posted> = FxHashMap::default();
    for plan in plans {
        for inst in &plan.code {
            each_communication(plan, inst, &mut |origin, kind, team, bytes| {
                let origin = &plan.origins[origin as usize];
                let Some(Stmt::Op(it)) = origin.stmt.map(|stmt| &program.stmts[stmt]) else { return };
                // Copies between ranks of other statements are no communications of the program.
                if it.op.def().class != OpClass::Communicate && !matches!(inst.kind, InstKind::Reshard(_)) {
                    return;
                }
                let purpose = purpose(program, it);
                let at = *known.entry((origin.line, kind, purpose.clone())).or_insert_with(|| {
                    let (teams, ranks) = (Vec::new(), FxHashMap::default());
                    rows.push(Row { line: origin.line, kind, purpose, teams, ranks });
                    rows.len() - 1
                });
                let row = &mut rows[at];
                if !row.teams.contains(&team) {
                    row.teams.push(team);
                }
                for it in [row.ranks.entry(plan.rank).or_default(), total.entry(plan.rank).or_default()] {
                    it.count += 1;
                    it.bytes += bytes;
                }
            });
        }
    }
    rows.sort_by_key(|it| it.line);
    table_text(&rows, most(total.values()))
}

/// Calls `visit` with the origin, the kind, the ranks and the sent bytes of each communication of an instruction.
fn each_communication(plan: &Plan, inst: &Inst, visit: &mut dyn FnMut(u32, &'static str, Vec<usize>, f64)) {
    let moved = || {
        let it = plan.traffic(inst);
        it.bytes as f64 * it.bus_factor
    };
    match (inst.kind.communication(), &inst.kind) {
        (Some(Communication::Collective(it)), _) => {
            let team = plan.communicators[it.communicator as usize].team.to_vec();
            if team.len() > 1 {
                visit(inst.origin, it.kind.of.text(), team, moved());
            }
        }
        (Some(Communication::P2pGroup(it)), _) => {
            for op in it.ops.iter().filter(|it| it.direction == Direction::Send && it.peer != plan.rank) {
                let bytes = plan.bytes_of(&op.view) as f64;
                visit(op.origin, "SendRecv", pair(plan.rank, op.peer), bytes);
            }
        }
        (None, InstKind::Copy { from, to }) if from.rank != to.rank => {
            visit(inst.origin, "copy", pair(from.rank, to.rank), moved());
        }
        (None, InstKind::PeerReduce { parts, .. }) => {
            let mut team: Vec<usize> = parts.iter().map(|it| it.rank).collect();
            team.sort_unstable();
            team.dedup();
            if team != [plan.rank] {
                visit(inst.origin, "reduction of copies", team, moved());
            }
        }
        (None, InstKind::Reshard(it)) => visit(inst.origin, "not lowered", it.team.to_vec(), 0.0),
        // Signals move no data.
        (None, _) => (),
    }
}

fn pair(a: usize, b: usize) -> Vec<usize> {
    vec![a.min(b), a.max(b)]
}

/// Returns what a communication is for: the tensors that it reads and writes.
fn purpose(program: &Program, it: &OpStmt) -> String {
    let name = |tensor: TensorId| program.tensor_name(tensor);
    match (it.get(attr::INPUT), it.get(attr::OUTPUT), it.get(attr::RED_OP)) {
        (Some(from), Some(to), Some(op)) => format!("{} = {} of {}", name(to), op.text(), name(from)),
        (Some(from), Some(to), None) => format!("{} from {}", name(to), name(from)),
        _ => match (it.out_tensor(), it.get(attr::BUFFER)) {
            (Some(out), _) => format!("{} of `{}`", name(out), it.op.name()),
            (None, Some(buffer)) => name(buffer),
            (None, None) => it.op.name().to_owned(),
        },
    }
}

/// Returns the largest number and the largest sum of bytes of all ranks.
fn most<'p>(all: impl Iterator<Item = &'p Posted>) -> Posted {
    all.fold(Posted::default(), |a, b| Posted { count: a.count.max(b.count), bytes: a.bytes.max(b.bytes) })
}

fn table_text(rows: &[Row], total: Posted) -> String {
    if rows.is_empty() {
        return "no communication\n".to_owned();
    }
    let bytes_text = |row: &Row, posted: Posted| match row.kind {
        "not lowered" => "-".to_owned(),
        _ => size_text(posted.bytes.round() as usize),
    };
    let team_text = |teams: &[Vec<usize>]| {
        let first = teams.first().map_or(String::new(), |team| ranks_text(team));
        match teams.len() {
            0 | 1 => first,
            count => format!("{first} ({count} teams)"),
        }
    };
    let header = ["line", "kind", "team", "count", "bytes per rank", "for"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let posted = most(row.ranks.values());
        [
            row.line.to_string(),
            row.kind.to_owned(),
            team_text(&row.teams),
            posted.count.to_string(),
            bytes_text(row, posted),
            row.purpose.clone(),
        ]
    });
    let cells: Vec<[String; 6]> = std::iter::once(header).chain(cells).collect();
    let widths: [usize; 6] =
        std::array::from_fn(|at| cells.iter().map(|it| it[at].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &cells {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Numbers are aligned at the right.
            let _ = match at {
                0 | 3 | 4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    let communications = count_text(total.count, "communication");
    let _ = writeln!(out, "total: {communications}, {} per rank", size_text(total.bytes.round() as usize));
    out
}
