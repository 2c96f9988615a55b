//! The memory that simulated ranks and the outputs of other runs need, compared with the limit.

use grammar::{Code, Diagnostic, Span, count_text};
use hir_plan::{IoBinding, Plan, limits::size_text};

use super::{
    failure::{JobFailure, Result},
    prepare::Prepared,
};

impl Prepared {
    /// Checks that the simulator may allocate the memory of all ranks of these plans. `own_inputs` says whether each rank
    /// has inputs of its own, also where ranks hold the same part. Beside the run, the outputs of `others` other runs are held, with which it
    /// is compared, and `written` bytes of tensors for files.
    ///
    /// # Errors
    /// The plans need more bytes than the limit.
    pub fn check_memory(
        &self,
        plans: &[Plan],
        limit: usize,
        own_inputs: bool,
        others: usize,
        written: usize,
    ) -> Result<()> {
        let mut found = hir_sim::footprint(plans);
        let held = output_bytes(plans, expected).saturating_mul(others);
        found.bytes = found.bytes.saturating_add(held).saturating_add(written);
        if own_inputs {
            found.bytes = found.bytes.saturating_add(hir_sim::own_input_bytes(plans));
        }
        match over_limit(self.header, found, limit) {
            Some(fault) => Err(JobFailure::Rejected(self.sources[0].clone(), vec![fault])),
            None => Ok(()),
        }
    }
}

/// Bytes of an output of another run, for an element of `size` bytes, without its shadow: its value, a copy while it is compared, and what is
/// left of its assembly.
fn expected(size: usize) -> usize {
    2 * size + 4
}

/// Returns the sum over all elements of all outputs of what `bytes` returns for the size of an element in bytes: of the parts of all ranks if
/// each is compared separately, and of the whole otherwise.
pub(super) fn output_bytes(plans: &[Plan], bytes: impl Fn(usize) -> usize) -> usize {
    let of = |it: &IoBinding, elements: usize| elements.saturating_mul(bytes(it.dtype.size().max(1)));
    let part = |it: &IoBinding| of(it, it.shard.view.as_ref().map_or(0, hir_plan::View::len));
    let whole = |it: &IoBinding| of(it, it.shard.layout.shape.iter().copied().fold(1, usize::saturating_mul));
    let parts = plans.iter().flat_map(|it| &it.outputs).filter(|it| it.is_compared_per_rank).map(part);
    let wholes = plans.first().map_or(&[][..], |it| &it.outputs).iter().filter(|it| !it.is_compared_per_rank);
    parts.chain(wholes.map(whole)).fold(0, usize::saturating_add)
}

/// Returns a diagnostic if the simulated ranks would need more bytes than `limit`.
pub(crate) fn memory_limit_diagnostic(header: Span, plans: &[Plan], limit: usize) -> Option<Diagnostic> {
    over_limit(header, hir_sim::footprint(plans), limit)
}

fn over_limit(header: Span, found: hir_sim::Footprint, limit: usize) -> Option<Diagnostic> {
    if found.bytes <= limit {
        return None;
    }
    // Rounded, both may be equal.
    let exact = size_text(found.bytes) == size_text(limit);
    let text = |bytes| if exact { count_text(bytes, "byte") } else { size_text(bytes) };
    let message =
        format!("the simulated ranks need {} of memory, but the limit is {}", text(found.bytes), text(limit));
    let label = match found.largest {
        Some((bytes, name, rank)) => format!("`{name}` has {} on rank {rank}", size_text(bytes)),
        None => "this program".to_owned(),
    };
    let it = Diagnostic::new(Code::OverBudget, header, message, label);
    Some(it.help("bind smaller extents with `--set`, or allow more with `--memory-limit=GIB`"))
}
