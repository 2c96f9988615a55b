//! Any text: read, verified, planned for a small world and, where little memory is asked for, run.

#![no_main]

#[path = "../../tests/suite/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = invariants::run(text) {
        panic!("{fault}");
    }
});
