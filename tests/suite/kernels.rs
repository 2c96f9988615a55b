//! Compiles kernels for several architectures, if NVRTC is installed. If it is not, or does not know an
//! architecture, the trials are ignored; with `HIR_REQUIRE_NVRTC=1` they fail.
//!
//! All parts (`part`) together compile every instance of every template for one architecture, and one in five for the
//! others: what depends on the architecture are the instructions of the prelude, which many instances share.

use std::sync::LazyLock;

use hir_cuda::instances;
use hir_executor::ExecutorError;
use libtest_mimic::Trial;

use crate::part;

/// An architecture.
struct Architecture {
    name: &'static str,
    /// The compute capability: 90 for 9.0.
    capability: i32,
    /// Whether every supported NVRTC knows it. CUDA 12.8 is the first to know 10.0.
    is_known: bool,
    /// All parts together compile one in so many instances.
    step: usize,
}

const ARCHITECTURES: [Architecture; 3] = [
    Architecture { name: "ampere", capability: 80, is_known: true, step: 5 },
    Architecture { name: "hopper", capability: 90, is_known: true, step: 1 },
    Architecture { name: "blackwell", capability: 100, is_known: false, step: 5 },
];

static KNOWN: LazyLock<Result<Vec<i32>, ExecutorError>> = LazyLock::new(instances::capabilities);

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trial = |it: Architecture| {
        let (ignored, (first, step)) = (is_unknown(&it), part::stride_of_half(it.step));
        let compile = move || Ok(instances::compile(it.capability, first, step)?);
        Trial::test(format!("kernels::compile_for_{}", it.name), compile).with_ignored_flag(ignored)
    };
    ARCHITECTURES.into_iter().map(trial).collect()
}

/// Returns true if a trial is ignored because this host cannot compile for the architecture.
fn is_unknown(it: &Architecture) -> bool {
    match &*KNOWN {
        Ok(known) => !it.is_known && !known.contains(&it.capability),
        Err(_) => std::env::var("HIR_REQUIRE_NVRTC").as_deref() != Ok("1"),
    }
}
