//! Fuzzes the parsers of option values with arbitrary text: pipelines, schedules, bindings, inputs, outputs.

#![no_main]

#[path = "../../tests/suite/untrusted.rs"]
mod untrusted;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = untrusted::options(text) {
        panic!("{fault}");
    }
});
