//! What the cache of a GPU does not hold when an instruction accesses it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::work::accessed_bytes;
use crate::{InstKind, Plan, View};

/// Bytes of other data after which the cache of a GPU does not hold an operand any more: the cache of H100 and H200 has 50 MB, and
/// on them, kernels that access 34 MB again and again are as fast as their cache, and those that access 134 MB as their memory.
pub(super) const CACHE_BYTES: usize = 40_000_000;

/// The accesses of a plan to data that the cache does not hold: since the rank accessed it, it has accessed more than `CACHE_BYTES`.
/// Before the run there was another one.
#[derive(Default)]
pub(super) struct Misses {
    /// The products whose larger operand is not in the cache.
    pub products: FxHashSet<usize>,
    /// By instruction: the bytes on its own GPU that it accesses, and how many of them are not in the cache.
    bytes: Vec<(usize, usize)>,
}

impl Misses {
    pub fn of(plan: &Plan) -> Self {
        let bytes = |view: &View| accessed_bytes(plan, view);
        let mut found = Self { bytes: vec![(0, 0); plan.code.len()], ..Self::default() };
        // By buffer: how much had been accessed after its last access.
        let mut last: FxHashMap<u32, usize> = FxHashMap::default();
        let mut accessed = 0_usize;
        for is_second in [false, true] {
            for (at, inst) in plan.code.iter().enumerate() {
                let is_missed = |buffer: u32| {
                    last.get(&buffer).is_none_or(|it| accessed.saturating_sub(*it) > CACHE_BYTES)
                };
                if let InstKind::Gemm(it) = &inst.kind {
                    let larger = if bytes(&it.a) > bytes(&it.b) { &it.a } else { &it.b };
                    if is_second && is_missed(larger.buffer) {
                        found.products.insert(at);
                    }
                }
                let accesses = inst.kind.accesses(plan.rank);
                let own = || accesses.iter().filter(|it| it.rank == plan.rank);
                let sum = |all: &mut dyn Iterator<Item = &View>| {
                    all.fold(0_usize, |sum, it| sum.saturating_add(bytes(it)))
                };
                let all = sum(&mut own().map(|it| it.view));
                let missed = sum(&mut own().map(|it| it.view).filter(|it| is_missed(it.buffer)));
                found.bytes[at] = (all, missed);
                accessed = accessed.saturating_add(all);
                last.extend(own().map(|it| (it.view.buffer, accessed)));
            }
        }
        found
    }

    /// Returns the part, from 0 to 1, of what some instructions access together that is not in the cache.
    pub fn part(&self, insts: &[usize]) -> f64 {
        let of = insts.iter().filter_map(|it| self.bytes.get(*it));
        let (all, missed) = of.fold((0.0, 0.0), |sum, it| (sum.0 + it.0 as f64, sum.1 + it.1 as f64));
        if all > 0.0 { missed / all } else { 0.0 }
    }
}
