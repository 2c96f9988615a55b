//! Fuzzes the passes. The first line of the input is a pipeline, and the rest is the program that it runs on.

#![no_main]

#[path = "../../tests/suite/invariants.rs"]
mod invariants;
#[path = "../../tests/suite/untrusted.rs"]
mod untrusted;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = untrusted::pipeline(text, invariants::lower) {
        panic!("{fault}");
    }
});
