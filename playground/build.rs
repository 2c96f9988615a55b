//! The stack of the module. The nesting of texts is limited, and needs less than the 32 MiB that the tools have.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo on standard output")]

fn main() {
    if std::env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|it| it == "wasm") {
        println!("cargo::rustc-cdylib-link-arg=-zstack-size=33554432");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
