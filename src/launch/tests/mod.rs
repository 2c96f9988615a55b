//! Tests of several ranks together.

mod channel;
