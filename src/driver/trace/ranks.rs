//! The kernels of ranks, as traces of both formats have them.

use std::{collections::HashSet, sync::Arc};

use hir_plan::timeline::overlap::union;

use super::sqlite::Damaged;

/// The kernels of a rank.
#[derive(Debug)]
pub struct RankTrace {
    /// The rank: that of the trace, or else the number of the file.
    pub rank: usize,
    /// Its kernels, by the time at which they begin.
    pub kernels: Vec<Kernel>,
}

/// A kernel, with times in microseconds.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: Arc<str>,
    /// When it begins.
    pub begin: f64,
    /// When it ends.
    pub end: f64,
    /// The collective that it executes; `None` if it computes.
    pub collective: Option<Box<Call>>,
}

/// What the trace says about a collective.
#[derive(Debug)]
pub struct Call {
    /// What it does, such as `allreduce`.
    pub name: Arc<str>,
    /// The name of its group.
    pub group: Arc<str>,
    /// The number of ranks of its group.
    pub size: Option<usize>,
    /// The bytes of its input.
    pub bytes: Option<u64>,
    /// The function that posts it, as `step (train.py)`, if the trace has stacks; `backward` for a thread of autograd.
    pub posted: Option<Arc<str>>,
    /// The line of the program, of an estimate.
    pub line: Option<u32>,
}

/// The texts of a trace, each once: it has few names and many kernels.
#[derive(Default)]
pub(super) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// Returns the text that all kernels share.
    pub fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.0.insert(new.clone());
        new
    }
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It is not the JSON of a trace.
    #[error(
        "it is neither a Chrome trace of torch.profiler ({0}): write one with `prof.export_chrome_trace(FILE)`; nor an export of Nsight Systems: write one with `nsys export --type sqlite`"
    )]
    Json(#[from] serde_json::Error),
    /// Its tables cannot be read.
    #[error(transparent)]
    Sqlite(#[from] Damaged),
    /// It has no table of kernels.
    #[error("it has no kernels of a GPU: profile with `nsys profile --trace cuda,nvtx`")]
    NoKernelTable,
    /// It has no kernel of a GPU.
    #[error(
        "it has no kernels of a GPU: profile with `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`"
    )]
    NoKernels,
}

impl RankTrace {
    /// Returns when it communicates, or computes, as disjoint intervals.
    pub fn times(&self, is_collective: bool) -> Vec<(f64, f64)> {
        let of = self.kernels.iter().filter(|it| it.collective.is_some() == is_collective);
        union(of.map(|it| (it.begin, it.end)).collect())
    }

    /// Returns the kernels that compute within an interval.
    pub fn computing(&self, (begin, end): (f64, f64)) -> impl Iterator<Item = &Kernel> {
        // Kernels before it may be long, but seldom are many of them beside each other.
        let first = self.kernels.partition_point(|it| it.begin < begin).saturating_sub(NEAR);
        let near = self.kernels.iter().skip(first).take_while(move |it| it.begin < end);
        near.filter(move |it| it.collective.is_none() && it.end > begin)
    }
}

/// The number of kernels before an interval that may reach into it.
const NEAR: usize = 64;

/// Returns what a kernel of NCCL does: `AllReduce` of `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)`.
pub(super) fn short_name(name: &str) -> &str {
    name.split(['_', '(']).nth(1).unwrap_or(name)
}
