//! Fuzzes the reader with arbitrary bytes: they are read, verified, printed and read again.

#![no_main]

#[path = "../../tests/suite/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(fault) = invariants::read(&String::from_utf8_lossy(bytes)) {
        panic!("{fault}");
    }
});
