//! Generates random programs that are not lowered: the text of operators on sharded tensors.
//!
//! Meshes have 1 to 6 devices in one or two dimensions. Operands and results are on the same, overlapping or
//! different devices. Every dimension is whole, split, or entirely distributed over devices, wherever its
//! extent allows that. A program of `n` operators is a prefix of the one of `n + 1` operators with the same
//! seed, so a failure can be reduced to the smallest program of its seed.

mod operators;
mod shapes;

use crate::rng::Rng;
use shapes::{Mesh, mesh};

/// Returns the program of a seed.
pub fn program(seed: u64, operators: usize) -> String {
    generate(seed, operators).text()
}

/// Returns the program of a seed in which random results have neither a mesh nor device axes. Some of them are
/// no outputs.
pub fn program_without_some_shardings(seed: u64, operators: usize) -> String {
    generate(seed, operators).text_without_some_shardings(seed)
}

fn generate(seed: u64, operators: usize) -> Builder {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let meshes = (0..3).map(|_| mesh(&mut rng)).collect();
    let element = rng.choose_cloned(&["double", "double", "float", "int64_t"]);
    let mut it = Builder { rng, meshes, element, ..Builder::default() };
    for _ in 0..operators {
        it.operator();
    }
    it
}

#[derive(Clone)]
struct Tensor {
    text: String,
    /// Its text without mesh and device axes.
    unsharded: String,
    /// Its logical axes that are dimensions, as `axis =` names them.
    axes: Vec<String>,
    /// The same axes in `unsharded`.
    unsharded_axes: Vec<String>,
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
    /// Returns the text with the shardings of random results removed. A program that writes a tensor twice
    /// keeps all shardings, because propagate-shardings leaves it unchanged.
    fn text_without_some_shardings(mut self, seed: u64) -> String {
        let definitions = self.body.lines().filter(|line| line.starts_with("  T")).count();
        if definitions > self.outputs.len() {
            return self.text();
        }
        for tensor in self.outputs.clone() {
            // The choice depends on nothing but the seed and the tensor.
            let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9) ^ (tensor as u64) << 40);
            if self.tensors[tensor].is_partial || rng.chance(40) {
                continue;
            }
            let it = self.tensors[tensor].clone();
            for (old, new) in it.axes.iter().zip(&it.unsharded_axes) {
                let select = |text: &str, axis: &str| format!("select( {text}, axis = {axis},");
                self.body = self.body.replace(&select(&it.text, old), &select(&it.text, new));
            }
            self.body = self.body.replace(&it.text, &it.unsharded);
            let line = format!("  T{tensor}: ");
            let domains = self.domains.lines().filter(|it| !it.starts_with(&line));
            self.domains = domains.map(|line| format!("{line}\n")).collect();
            self.tensors[tensor].text = it.unsharded;
            if self.outputs.len() > 1 && rng.chance(50) {
                self.outputs.retain(|it| *it != tensor);
            }
        }
        self.text()
    }

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
