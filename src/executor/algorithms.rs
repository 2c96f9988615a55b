//! Algorithms of matrix products: those that are used, and those that are measured.

use serde::{Deserialize, Serialize};

/// An algorithm: the words of a `cublasLtMatmulAlgo_t`. NVIDIA documents that they may be stored and restored for the
/// same version of cuBLASLt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatmulAlgorithm(pub [u64; 8]);

/// What the times of algorithms depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name of the GPU.
    pub gpu: String,
    /// The version of CUDA that the driver supports.
    pub driver: String,
    /// The version of cuBLASLt.
    pub cublaslt: String,
}

/// The products of all ranks for which algorithms were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmUse {
    /// Number of different products of all ranks.
    pub products: usize,
    /// Number of those for which an algorithm was given.
    pub given: usize,
    /// The first product whose algorithm some rank refuses, and why.
    pub refused: Option<(String, String)>,
}

/// How candidates are measured.
#[derive(Clone, Copy, Debug)]
pub struct TuneOptions {
    /// Minimum number of runs before the timed ones.
    pub warmup: usize,
    /// Number of timed runs of a candidate.
    pub rounds: usize,
    /// True to measure captured graphs.
    pub graph: bool,
}

/// A product and the algorithm that was chosen for it. Times are microseconds of a run of the whole program.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedProduct {
    /// Identifies the product.
    pub key: String,
    /// Number of algorithms that were measured.
    pub measured: usize,
    /// The position of the chosen algorithm among all candidates.
    pub choice: usize,
    /// The chosen algorithm.
    pub algorithm: MatmulAlgorithm,
    /// The time with the algorithm that cuBLASLt expects to be the fastest.
    pub first: f64,
    /// The time with the chosen algorithm.
    pub best: f64,
}

/// The result of tuning a program; the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// In the order in which they were tuned.
    pub products: Vec<TunedProduct>,
    /// Microseconds of the whole program with cuBLASLt's own choices and with the chosen algorithms, measured in turns
    /// at the end; `None` if all choices are cuBLASLt's own. If the second time is not shorter, the products keep
    /// cuBLASLt's choices.
    pub whole: Option<[f64; 2]>,
    /// Algorithms that were dropped.
    pub notes: Vec<String>,
}

impl Tuning {
    /// Returns true if the whole program is not faster with the algorithms that were the fastest one by one.
    pub fn gains_nothing(&self) -> bool {
        self.whole.is_some_and(|[before, after]| after >= before)
    }
}
