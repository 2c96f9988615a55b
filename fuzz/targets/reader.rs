//! Any bytes: read, verified, printed and read again.

#![no_main]

#[path = "../../tests/suite/journey.rs"]
mod journey;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(fault) = journey::read(&String::from_utf8_lossy(bytes)) {
        panic!("{fault}");
    }
});
