//! Random programs that nothing has lowered yet: operators on sharded tensors, as text.
//!
//! Meshes have 1 to 6 devices in one or two dimensions; operands and results are on the same, overlapping or other
//! devices; every dimension is whole, split, or on the devices altogether, wherever its extent allows that. A program of
//! `n` operators is the beginning of the one of `n + 1` with the same seed, so a failure has a smallest program.

#[path = "programs/operators.rs"]
mod operators;
#[path = "programs/shapes.rs"]
mod shapes;

use crate::rng::Rng;
use shapes::{Mesh, mesh};

/// The program of a seed.
pub fn program(seed: u64, operators: usize) -> String {
    let mut dice = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let meshes = (0..3).map(|_| mesh(&mut dice)).collect();
    let element = dice.choose_cloned(&["double", "double", "float", "int64_t"]);
    let mut it = Builder { dice, meshes, element, ..Builder::default() };
    for _ in 0..operators {
        it.operator();
    }
    it.text()
}

#[derive(Clone)]
struct Tensor {
    text: String,
    /// Its logical axes that are dimensions, as `axis =` names them.
    axes: Vec<String>,
    /// Extents of the dimensions; those that count partial sums make a tensor that only reductions read.
    extents: Vec<usize>,
    is_partial: bool,
    /// All axes are iterations.
    is_plain: bool,
    /// It may be a view of another tensor, or another one of it: a second value would be that of both.
    is_shared: bool,
    element: &'static str,
    mesh: Mesh,
}

#[derive(Default)]
struct Builder {
    dice: Rng,
    meshes: Vec<Mesh>,
    element: &'static str,
    axes: usize,
    tensors: Vec<Tensor>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    body: String,
    domains: String,
}

impl Builder {
    fn text(&self) -> String {
        let list = |which: &[usize]| {
            which.iter().map(|it| self.tensors[*it].text.as_str()).collect::<Vec<_>>().join(", ")
        };
        format!(
            "%HostIrContainer {{ ({}) -> ({}) :\n{}}} // %HostIrContainer\n\nDomains:\n{}",
            list(&self.inputs),
            list(&self.outputs),
            self.body,
            self.domains
        )
    }
}
