//! Tests of the language through what the package exports: its unit tests are those of parts that do not read a text.

mod advice;
mod attributes;
mod dialect_version;
mod dump_cleanup;
mod fusions;
mod parse;
mod pasted_logs;
mod places;
mod reference;
mod round_trip;
mod sarif;
mod tensor;
