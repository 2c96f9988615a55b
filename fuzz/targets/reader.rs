//! Fuzzes the reader with arbitrary bytes: they are read, verified, printed and read again.

#![no_main]

#[path = "../../tests/suite/invariants.rs"]
mod invariants;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = grammar::decode(bytes.to_vec());
    assert!(*grammar::encode(&text) == *bytes, "the bytes change when they are read and written");
    if let Err(fault) = invariants::read(&text) {
        panic!("{fault}");
    }
});
