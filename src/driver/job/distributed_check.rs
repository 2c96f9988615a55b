//! Handles outputs that are too large to gather on one rank: each rank keeps its part, and the ranks compare
//! digests.

use crate::run::{failure::Result, verdict::OutputVerdict};
use hir_executor::ProcessGroup;
use hir_plan::Plan;
use hir_process::exit::Exit;
use hir_tensor::dense::DenseTensor;

/// The maximum total size of all outputs, in bytes, that are gathered on rank 0 when nothing is compared with
/// them.
const MAX_GATHERED_BYTES: usize = 64 << 20;

/// Returns true if the outputs are too large to be gathered when nothing is compared with them.
pub fn exceeds_gather_limit(plans: &[Plan]) -> bool {
    let ports = plans.iter().flat_map(|it| &it.outputs);
    let sizes = ports.filter_map(|it| Some(it.shard.view.as_ref()?.len() * it.dtype.size()));
    sizes.sum::<usize>() > MAX_GATHERED_BYTES
}

/// Judges outputs that stay on their ranks: ranks that hold the same part of an output must hold the same
/// values.
///
/// # Errors
/// A rank does not answer.
pub fn judge_distributed(
    plans: &[Plan],
    mine: &[Option<DenseTensor>],
    peers: &dyn ProcessGroup,
) -> Result<OutputVerdict> {
    let digest =
        |it: &Option<DenseTensor>| it.as_ref().map_or(0, |it| it.data.digest_of_values()).to_le_bytes();
    let digests: Vec<u8> = mine.iter().flat_map(digest).collect();
    let digests = peers.all_gather(&digests)?;
    let digest = |rank: usize, at: usize| digests.get(rank).and_then(|it| it.get(8 * at..8 * at + 8));
    for (at, port) in plans.first().map_or(&[][..], |it| &it.outputs).iter().enumerate() {
        let part = |plan: &Plan| {
            plan.outputs.get(at).filter(|it| it.shard.view.is_some()).map(|it| it.shard.layout.clone())
        };
        for (rank, plan) in plans.iter().enumerate() {
            let same = |other: &usize| {
                !port.is_compared_per_rank && part(plan).is_some() && part(plan) == part(&plans[*other])
            };
            let other = (0..rank).filter(same).find(|other| digest(rank, at) != digest(*other, at));
            if let Some(other) = other {
                let text = format!(
                    "{name}: ranks {other} and {rank} hold different values; if each rank keeps its own, use {name}@local",
                    name = port.name
                );
                let verdict = OutputVerdict::without_outputs(Exit::WrongResult, text);
                return Ok(OutputVerdict { wrong_output: Some(at), ..verdict });
            }
        }
    }
    Ok(OutputVerdict::without_outputs(Exit::Success, "ran, complete, not compared"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_executor::ExecutorError;
    use hir_plan::plans_of_text;
    use hir_tensor::data::Data;

    /// A world of two ranks in one process. The other rank gathers the same bytes, or their complement.
    struct Two {
        differs: bool,
    }

    impl ProcessGroup for Two {
        fn rank(&self) -> usize {
            0
        }

        fn world(&self) -> usize {
            2
        }

        fn local_rank(&self) -> Option<usize> {
            Some(0)
        }

        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExecutorError> {
            let other = mine.iter().map(|it| if self.differs { !it } else { *it });
            Ok(vec![mine.to_vec(), other.collect()])
        }

        fn barrier(&self) -> Result<(), ExecutorError> {
            Ok(())
        }

        fn report_phase(&self, _: &str) {}
    }

    fn block() -> Vec<Option<DenseTensor>> {
        vec![Some(DenseTensor::full(vec![4], Data::F32(vec![1.0, 2.0, 3.0, 4.0])))]
    }

    #[test]
    fn replicas_that_differ_are_found_where_they_are() -> Result<()> {
        let text = "%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T0_g_float[iS0{4}] \
                    (DeviceMesh{0 1})) :\n} // %HostIrContainer\n";
        let plans = plans_of_text(text, 2).unwrap_or_default();
        assert!(!exceeds_gather_limit(&plans));
        assert!(judge_distributed(&plans, &block(), &Two { differs: false })?.is_right());
        let verdict = judge_distributed(&plans, &block(), &Two { differs: true })?;
        assert!(!verdict.is_right());
        assert_eq!(
            verdict.line.to_string(),
            "[FAILED] T0: ranks 0 and 1 hold different values; if each rank keeps its own, use T0@local"
        );
        Ok(())
    }
}
