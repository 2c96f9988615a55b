//! Generates random programs that are not lowered: the text of operators on sharded tensors.
//!
//! Meshes have 1 to 6 devices in one or two dimensions. Operands and results are on the same, overlapping or
//! different devices. Every dimension is whole, split, or entirely distributed over devices, wherever its
//! extent allows that. A program of `n` operators is a prefix of the one of `n + 1` operators with the same
//! seed, so a failure can be reduced to the smallest program of its seed.

#[path = "programs/operators.rs"]
mod operators;
#[path = "programs/shapes.rs"]
mod shapes;

use crate::rng::Rng;
use shapes::{Mesh, mesh};

/// Returns the program of a seed.
pub fn program(seed: u64, operators: usize) -> String {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let meshes = (0..3).map(|_| mesh(&mut rng)).collect();
    let element = rng.choose_cloned(&["double", "double", "float", "int64_t"]);
    let mut it = Builder { rng, meshes, element, ..Builder::default() };
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
    /// Extents of the dimensions. If one counts partial sums, the tensor is partial, and only reductions read
    /// it.
    extents: Vec<usize>,
    is_partial: bool,
    /// Set if all axes are iteration axes.
    is_plain: bool,
    /// Set if the tensor may be a view of another tensor, or another tensor a view of it. Writing it again
    /// would then write both.
    is_shared: bool,
    element: &'static str,
    mesh: Mesh,
}

#[derive(Default)]
struct Builder {
    rng: Rng,
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
