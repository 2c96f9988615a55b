//! Fuzzes the reader of batch files with arbitrary text.

#![no_main]

#[path = "../../tests/suite/batch_text.rs"]
mod batch_text;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = batch_text::run(text) {
        panic!("{fault}");
    }
});
