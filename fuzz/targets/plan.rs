//! Fuzzes planning and simulation with arbitrary text: it is read, verified, planned for a small world and,
//! if it needs little memory, run.

#![no_main]

#[path = "../../tests/suite/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = invariants::run(text) {
        panic!("{fault}");
    }
});
