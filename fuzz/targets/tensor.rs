//! Fuzzes the readers of tensor files with arbitrary bytes.

#![no_main]

#[path = "../../tests/suite/untrusted.rs"]
mod untrusted;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(fault) = untrusted::tensor(bytes) {
        panic!("{fault}");
    }
});
