//! select-allreduce: chooses the algorithm of every Allreduce by its size and team.
//!
//! Before:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL)
//! ```
//! After, where T2 has 64 KiB a rank:
//! ```text
//! Communication 7 (type=Allreduce, team=(0 1), red_op=SUM, input=T1, output=T2, backend=NCCL, algo=one-shot)
//! ```
//!
//! `one-shot` and `two-shot` run as one kernel over peer memory, on the communicator's queue (`plan::transport`).
//!
//! `table=` is a list of rules, of which the first that fits holds: `2:8M=one-shot;2:64M=two-shot;*=nccl` means one-shot
//! for teams of two up to 8 MiB, two-shot up to 64 MiB, and NCCL for everything else. Sizes are bytes a rank, `K`, `M` and
//! `G` the powers of 1024; without a size, a rule holds for all; `*` is any team. A size that is no constant, and a size
//! that no rule covers, leave the statement as it is.

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{AxisKind, OpStmt, Parallel, Program, Stmt, TensorId},
    words::{Algorithm, CommunicationType},
};

use crate::{
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::fold::Folder,
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "select-allreduce",
    description: "choose the algorithm of every Allreduce by size and team",
    options: &[OptionSpec {
        name: "table",
        description: "rules such as `2:8M=one-shot;*=nccl`",
        kind: OptionKind::Text,
        default: Some(MEASURED),
    }],
    run,
};

/// The fastest of vLLM's one-stage and two-stage kernels, PyTorch's symmetric-memory ones and NCCL, in a CUDA graph on an
/// NVLink host of 8×H200 without multicast, at 8 KiB up to 64 MiB. Between two measured sizes the smaller one decides;
/// at 8 KiB and eight ranks NCCL's symmetric windows are within 10% of one-shot.
const MEASURED: &str =
    "2:8M=one-shot;2:64M=two-shot;4:512K=one-shot;4:16M=two-shot;8:256K=one-shot;8:16M=two-shot;*=nccl";

/// What a rule may choose.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Nccl, Algorithm::OneShot, Algorithm::TwoShot];

/// One rule of the table.
struct RuleOf {
    /// Ranks in the team; `None`: any number.
    team: Option<usize>,
    /// The most bytes a rank; `None`: any number.
    bytes: Option<u64>,
    algorithm: Algorithm,
}

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let text = arguments.text("table").unwrap_or(MEASURED);
    let rules =
        text.split(';').map(|rule| read(rule.trim()).ok_or(rule.trim())).collect::<Result<Vec<_>, _>>();
    let rules = rules.map_err(|rule| {
        let message = format!("`select-allreduce`: `{rule}` is no rule of a table");
        let label = format!(
            "expected `team:bytes=algorithm` with one of {}",
            ALGORITHMS.map(Algorithm::text).join(", ")
        );
        Diagnostic::new(Code::BadOption, program.spans.header, message, label)
            .help("for example `2:8M=one-shot;4:512K=one-shot;*=nccl`")
    })?;
    let mut changed = false;
    for id in program.stmts.ids() {
        let Stmt::Op(it) = program.stmts[id].clone() else { continue };
        let Some(algorithm) = choose(program, &it, &rules) else { continue };
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        changed |= it.get(attr::ALGO) != Some(algorithm);
        it.set(attr::ALGO, algorithm);
    }
    Ok(Change::from_flag(changed))
}

/// `2:8M=one-shot`, `4=nccl`, `*=nccl`.
fn read(rule: &str) -> Option<RuleOf> {
    let (size, algorithm) = rule.split_once('=')?;
    let (team, bytes) = match size.split_once(':') {
        Some((team, bytes)) => (team, Some(read_bytes(bytes.trim())?)),
        None => (size, None),
    };
    let team = match team.trim() {
        "*" => None,
        team => Some(team.parse().ok()?),
    };
    let algorithm = ALGORITHMS.into_iter().find(|it| it.text() == algorithm.trim())?;
    Some(RuleOf { team, bytes, algorithm })
}

fn read_bytes(text: &str) -> Option<u64> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let with_unit = units.iter().find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, *unit)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn choose(program: &mut Program, it: &OpStmt, rules: &[RuleOf]) -> Option<Algorithm> {
    if it.get(attr::TYPE) != Some(CommunicationType::Allreduce) {
        return None;
    }
    let team = it.get(attr::TEAM)?;
    let bytes = bytes_of(program, it.get(attr::OUTPUT)?)?;
    let fits = |rule: &&RuleOf| {
        rule.team.is_none_or(|size| size == team.len()) && rule.bytes.is_none_or(|most| bytes <= most)
    };
    rules.iter().find(fits).map(|rule| rule.algorithm)
}

/// The bytes that a rank holds of a tensor, where its extents are constants.
fn bytes_of(program: &mut Program, tensor: TensorId) -> Option<u64> {
    let split = program.stream_split(tensor);
    let it = program.tensors[tensor].clone();
    let mut bytes = u64::try_from(it.dtype?.size()).ok()?;
    for axis in it.loops {
        let axis = program.axes[axis].clone();
        let spread = match axis.parallel {
            Parallel::Device(_) => true,
            Parallel::Stream => split,
            Parallel::Serial | Parallel::Kernel(_) => false,
        };
        if spread || axis.kind == AxisKind::Reduction {
            continue;
        }
        let extent = Folder::default().fold(program, axis.extent);
        bytes = bytes.checked_mul(u64::try_from(program.constant(extent)?).ok()?)?;
    }
    Some(bytes)
}
