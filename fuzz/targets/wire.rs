//! Fuzzes what a process of a job receives with arbitrary bytes: at both ends of a connection, before and
//! after it is authenticated.

#![no_main]

#[path = "../../tests/suite/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(fault) = wire::run(bytes) {
        panic!("{fault}");
    }
});
