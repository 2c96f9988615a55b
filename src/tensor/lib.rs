//! Tensors: elements and their rounding, elementwise functions, generated inputs, and the shards of ranks.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! Both executors compute with these types. The package owns what an element is and how it is rounded. It knows plans, because views
//! and shards are theirs. It must not know instructions and their order, which are the executors', nor files: reading and writing
//! tensors is part of the tools. Large tensors are computed on rayon's global pool.
//!
//! ```
//! use grammar::dtype::DType;
//! use hir_tensor::{data::Data, generate::{ExactRange, InputGenerator, InputKind}};
//!
//! // Integers so small that the sum of 1,000 of them is exact in 24 significant bits.
//! let exact = ExactRange::for_terms(1_000, 24);
//! let inputs = InputGenerator { kind: InputKind::Exact, seed: 7, exact };
//! let Ok(Data::F32(whole)) = inputs.whole(0, DType::Float, &[2, 500]) else { return };
//! let sum: f32 = whole.iter().sum();
//! assert_eq!(f64::from(sum), whole.iter().copied().map(f64::from).sum::<f64>());
//! ```

pub mod data;
pub mod dense;
pub mod elementwise;
pub mod generate;
pub mod shape_match;
pub mod shard;
