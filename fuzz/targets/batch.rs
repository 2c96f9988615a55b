//! Fuzzes the reader of batch files with arbitrary text.

#![no_main]
#![allow(dead_code, reason = "a part of hir-run")]

#[path = "../../tests/suite/batch_text.rs"]
mod batch_text;
#[path = "../../src/bin/hir-run/command_lines.rs"]
mod command_lines;
#[path = "../../src/bin/hir-run/options.rs"]
mod options;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(fault) = batch_text::run(text) {
        panic!("{fault}");
    }
});
