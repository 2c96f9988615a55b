//! hir with two more passes: `split-all-reduce` and `remove-unused-allocations`.
//!
//! ```text
//! split-all-reduce opt program.hir --passes split-all-reduce,remove-redundant-sync --verify-each=check
//! ```

fn main() -> std::process::ExitCode {
    hir::main_with_passes([&split_all_reduce::PASS, &split_all_reduce::unused::PASS])
}
