//! How processes of one job find each other.
//!
//! Invariant: nothing here knows a device; it moves opaque bytes.

pub mod environment;
