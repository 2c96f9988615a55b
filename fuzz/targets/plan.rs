//! Any text: read, verified, planned for a small world and, where little memory is asked for, run.

#![no_main]

#[path = "../../tests/suite/journey.rs"]
mod journey;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = journey::run(text) {
        panic!("{fault}");
    }
});
