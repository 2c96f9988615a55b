//! Nothing: the manifest names features of dependencies that only tests need. With equal features, `cargo run` and `cargo test` share every
//! build (`tests/suite/shared_builds.rs` compares them).
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
