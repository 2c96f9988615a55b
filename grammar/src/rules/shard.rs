//! `ShardByStream`.

use super::*;

/// A chunk of the operand along its stream axis.
pub(super) struct Shard;

impl Rule for Shard {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.ranks(args, 0);
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let stream = |tensor: TensorId| {
            let loops = &check.program.tensors[tensor].loop_domain;
            loops.iter().any(|axis| check.program.axes[*axis].parallel == ParallelType::Stream)
        };
        if let Some(lacking) = [first, out].into_iter().find(|tensor| !stream(*tensor)) {
            let message =
                format!("`ShardByStream`: `{}` has no stream axis", check.program.tensor_name(lacking));
            let label = "expected an axis such as `istreamIdx0{4}`";
            check.acc.push(Diagnostic::new(Code::BadSharding, check.place(lacking), message, label));
        }
        check.equal_types(&[first, out]);
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equal(args[0], out);
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::StreamChunk)
    }
}
