//! Chooses the rule with which a program communicates the fewest bytes.

use grammar::ir::{BlockId, Program, Stmt};

use super::{Preference, Propagation, TensorUses};
use crate::{
    pass::{Arguments, Remarks},
    transform::{
        chunk::{self, CommKind},
        decompose_resharding,
    },
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
        (Some(bytes), rule) => format!("{bytes} with `{}`", rule.word()),
        (None, rule) => format!("an unknown number with `{}`", rule.word()),
    });
    let best = found.iter().min_by_key(|it| it.0.unwrap_or(usize::MAX));
    let rule = best.map_or(Preference::LeastBytes, |it| it.1);
    (rule, format!("`prefer=least-bytes`: the program communicates {}", text.join(", ")))
}

/// Returns the bytes that each rank receives in all communications of a program; `None` if they are not known. Of n bytes of a
/// result, a collective of d devices receives n - n/d; an all-reduce does so twice, as a reduce-scatter and an all-gather.
fn communicated_bytes(program: &Program, uses: &TensorUses, rule: Preference) -> Option<usize> {
    let (mut trial, mut remarks) = (program.clone(), Remarks::default());
    Propagation::of(&mut trial, uses, &mut remarks, Some(rule));
    let pass = &decompose_resharding::PASS;
    (pass.run)(&mut trial, &Arguments::defaults(pass), &mut remarks).ok()?;
    bytes_of_block(&trial, trial.body?)
}

fn bytes_of_block(program: &Program, block: BlockId) -> Option<usize> {
    program.block(block).iter().try_fold(0, |sum: usize, stmt| {
        let own = match &program.stmts[*stmt] {
            Stmt::Op(_) => chunk::comm_candidates(program, *stmt).first().map_or(0, |it| {
                // Communications that are not split into as many chunks as there are devices are of the whole mesh.
                let of_axis = it.count.and_then(|it| usize::try_from(it).ok());
                let devices = of_axis.unwrap_or(program.tensors[it.subject].mesh.devices.len());
                let bytes = it.bytes(program);
                let received = bytes - bytes / devices.max(1);
                if it.kind == CommKind::Allreduce { 2 * received } else { received }
            }),
            Stmt::Let(..) => 0,
            Stmt::For(it) => {
                let trips = program.constant(it.stop)?.checked_sub(program.constant(it.start)?)?;
                bytes_of_block(program, it.body)?.saturating_mul(usize::try_from(trips.max(0)).ok()?)
            }
            Stmt::If(it) => [Some(it.then_block), it.else_block]
                .into_iter()
                .flatten()
                .try_fold(0, |most: usize, block| Some(most.max(bytes_of_block(program, block)?)))?,
        };
        Some(sum.saturating_add(own))
    })
}
