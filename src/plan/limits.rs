//! What a plan may ask for. Only a mistake or an attack reaches these bounds.
//!
//! Invariant: products of extents, offsets and strides of a plan that is within them fit 64 bits.

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use super::comm::largest_rank;

/// Most instructions of a rank: a loop of a hundred million iterations is unrolled up to here.
pub const INSTRUCTIONS: usize = 1_000_000;

/// Most instructions of all ranks together.
pub const WORLD_INSTRUCTIONS: usize = 16 * INSTRUCTIONS;

/// Most elements of a tensor, all shards together.
pub const ELEMENTS: usize = 1 << 40;

/// Most ranks of a world: more than any job has.
pub const RANKS: usize = 1 << 16;

/// Whether a world of `ranks` is planned.
///
/// # Errors
/// A world that is too large, or lacks ranks that the program names; at the program's header.
pub fn check_world(program: &Program, ranks: usize) -> Result<(), Diagnostic> {
    let last = largest_rank(program);
    let (code, message) = match ranks {
        _ if ranks > RANKS => (Code::TooLarge, format!("a world of {ranks} ranks is more than {RANKS}")),
        _ if ranks <= last => (Code::WorldTooSmall, format!("a world of {ranks} ranks has no rank {last}")),
        _ => return Ok(()),
    };
    Err(Diagnostic::new(
        code,
        program.spans.header,
        message,
        format!("its meshes and teams name rank {last}"),
    ))
}
