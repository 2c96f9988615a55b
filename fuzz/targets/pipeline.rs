//! A pipeline on the first line, and a program that it is run on.

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
