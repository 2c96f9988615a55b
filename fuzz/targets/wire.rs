//! Any bytes, as what a process of a job receives: before and after its peer has authenticated, at both ends.

#![no_main]

#[path = "../../tests/suite/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(fault) = wire::run(bytes) {
        panic!("{fault}");
    }
});
