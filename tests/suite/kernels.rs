//! Compiles every kernel for every architecture, if NVRTC is installed. If it is not, or does not know an
//! architecture, the trials are ignored; with `HIR_REQUIRE_NVRTC=1` they fail.

use std::sync::LazyLock;

use hir::cuda::{CudaError, instances};
use libtest_mimic::Trial;

/// Name, compute capability, and whether every supported NVRTC knows it. CUDA 12.8 is the first to know 10.0.
const ARCHITECTURES: [(&str, i32, bool); 3] =
    [("ampere", 80, true), ("hopper", 90, true), ("blackwell", 100, false)];

static KNOWN: LazyLock<Result<Vec<i32>, CudaError>> = LazyLock::new(instances::capabilities);

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let trial = |(name, capability, always): (&str, i32, bool)| {
        Trial::test(format!("kernels::all_compile_for_{name}"), move || Ok(instances::compile(capability)?))
            .with_ignored_flag(is_unknown(capability, always))
    };
    ARCHITECTURES.into_iter().map(trial).collect()
}

/// Returns true if a trial is ignored because this host cannot compile for the architecture.
fn is_unknown(capability: i32, always: bool) -> bool {
    match &*KNOWN {
        Ok(known) => !always && !known.contains(&capability),
        Err(_) => std::env::var("HIR_REQUIRE_NVRTC").as_deref() != Ok("1"),
    }
}
