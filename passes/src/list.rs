//! Every pass and every pipeline, by name.

use crate::{
    canonicalize, inline_definitions,
    pass::{Pass, Pipeline},
    remove_dead_code, renumber,
};

/// All passes, in the order of `--list-passes`.
pub static PASSES: &[Pass] =
    &[canonicalize::PASS, remove_dead_code::PASS, inline_definitions::PASS, renumber::PASS];

/// All pipelines.
pub static PIPELINES: &[Pipeline] = &[Pipeline {
    name: "@default",
    description: "what every program can do with",
    // Folded predicates and dropped branches leave results that nobody reads any more, hence the order.
    passes: "canonicalize,remove-dead-code",
}];
