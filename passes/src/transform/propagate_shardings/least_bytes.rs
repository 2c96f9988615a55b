//! Chooses the rule with which a program communicates the fewest bytes.

use grammar::{BlockId, OpStmt, Program, Stmt, StmtId};
use rustc_hash::FxHashMap;

use super::{Preference, Propagation, TensorUses};
use crate::{
    pass::{Arguments, Remarks},
    transform::{chunk, decompose_resharding},
};

/// Returns the rule with which the decomposed program communicates the fewest bytes, and a remark that states those of all rules. What one
/// statement reshards decides what later statements have to, so that the operand that is smaller at each statement need not be less
/// in sum.
pub(super) fn choose(program: &Program, uses: &TensorUses) -> (Preference, String) {
    let rules = [Preference::LeastBytes, Preference::ActivationsStay, Preference::WeightsStay];
    let found = rules.map(|rule| (communicated_bytes(program, uses, rule), rule));
    let text = found.map(|(bytes, rule)| match (bytes, rule) {
        (Some(bytes), Preference::LeastBytes) => {
            format!("{bytes} bytes per rank if each statement reshards its smaller operand")
        }
        (Some(bytes), rule) => format!("{bytes} with `{}`", rule.name()),
        (None, rule) => format!("an unknown number with `{}`", rule.name()),
    });
    let best = found.iter().min_by_key(|it| it.0.unwrap_or(usize::MAX));
    let rule = best.map_or(Preference::LeastBytes, |it| it.1);
    (rule, format!("`prefer=least-bytes`: the program communicates {}", text.join(", ")))
}

/// The bytes that each rank sends.
type Sent = FxHashMap<usize, usize>;

/// Returns the bytes that the rank that sends most sends in all communications of a program; `None` if they are not known.
fn communicated_bytes(program: &Program, uses: &TensorUses, rule: Preference) -> Option<usize> {
    let (mut trial, mut remarks) = (program.clone(), Remarks::default());
    Propagation::of(&mut trial, uses, &mut remarks, Some(rule));
    let pass = &decompose_resharding::PASS;
    (pass.run)(&mut trial, &Arguments::defaults(pass), &mut remarks).ok()?;
    Some(sent_in_block(&trial, trial.body?)?.into_values().max().unwrap_or(0))
}

fn sent_in_block(program: &Program, block: BlockId) -> Option<Sent> {
    let mut sent = Sent::default();
    for stmt in program.block(block) {
        let (own, times) = match &program.stmts[*stmt] {
            Stmt::Op(it) => (sent_by(program, *stmt, it), 1),
            Stmt::Let(..) => continue,
            Stmt::For(it) => {
                let trips = program.constant(it.stop)?.checked_sub(program.constant(it.start)?)?;
                (sent_in_block(program, it.body)?, usize::try_from(trips.max(0)).ok()?)
            }
            Stmt::If(it) => {
                let mut most = sent_in_block(program, it.then_block)?;
                for (rank, bytes) in
                    it.else_block.map_or(Some(Sent::default()), |it| sent_in_block(program, it))?
                {
                    let known = most.entry(rank).or_default();
                    *known = bytes.max(*known);
                }
                (most, 1)
            }
        };
        for (rank, bytes) in own {
            let sum = sent.entry(rank).or_default();
            *sum = sum.saturating_add(bytes.saturating_mul(times));
        }
    }
    Some(sent)
}

/// Returns the bytes that each rank sends in the communication of a statement.
fn sent_by(program: &Program, stmt: StmtId, it: &OpStmt) -> Sent {
    let Some(candidate) = chunk::comm_candidates(program, stmt).into_iter().next() else {
        return Sent::default();
    };
    let bytes = candidate.sent_bytes(program);
    // As in the table of communications, a rank of a transfer to another mesh has its bytes, whether it sends or receives them.
    let tensors = it.tensor_operands().into_iter().take(1).chain(it.out_tensor());
    let devices = tensors.flat_map(|it| program.tensors[it].mesh.devices.iter().copied());
    devices.map(|rank| (rank, bytes)).collect()
}
