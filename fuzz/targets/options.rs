//! Any text, as the values of options: pipelines, schedules, bindings, inputs, outputs.

#![no_main]

#[path = "../../tests/suite/untrusted.rs"]
mod untrusted;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = untrusted::options(text) {
        panic!("{fault}");
    }
});
