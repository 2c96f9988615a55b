//! Proposes values for unbound scalars, most likely first.

use grammar::{ExprId, LineIndex, Program, TensorId};
use indexmap::{IndexMap, IndexSet};

use super::{
    UnboundScalar, peers,
    uses::{Loop, ScalarRole},
};

/// The smallest extent that is proposed, unless a larger one is needed.
const MIN_EXTENT: i64 = 8;

/// The maximum number of extents that are tried for all scalars at once.
const MAX_EXTENTS: usize = 12;

/// Proposed values.
pub(super) struct Candidates {
    /// Values for each name, best first; never empty.
    pub(super) options: IndexMap<String, Vec<String>>,
    /// Values that are tried for all unbound extents together.
    pub(super) extents: Vec<i64>,
    /// The names that are extents.
    sizes: IndexSet<String>,
}

impl Candidates {
    pub(super) fn of(programs: &[(&Program, &LineIndex)], missing: &[UnboundScalar]) -> Self {
        let world = programs.len();
        let mut extents = IndexSet::from([common_extent(missing)]);
        for (program, _) in programs.iter().take(1) {
            let constants = program.axes.iter().filter_map(|(_, it)| program.constant(it.extent));
            extents.extend(constants.filter(|it| *it > 0));
        }
        let extents: Vec<i64> = extents.into_iter().take(MAX_EXTENTS).collect();
        let mut known =
            ProposedValues { world, extents: &extents, peers: IndexMap::new(), indices: Vec::new() };
        let mut options: IndexMap<String, Vec<String>> = IndexMap::new();
        // Peers come first, because an index that is also a peer, or is used with one, depends on it.
        let mut order: Vec<&UnboundScalar> = missing.iter().collect();
        order.sort_by_key(|it| it.role().priority());
        for it in order {
            let found = known.of(programs[it.rank].0, it);
            options.entry(it.name.clone()).or_insert(found);
        }
        // The options are listed in text order.
        let ordered = missing.iter().filter_map(|it| options.get_key_value(&it.name));
        let options: IndexMap<String, Vec<String>> =
            ordered.map(|(name, all)| (name.clone(), all.clone())).collect();
        let is_size =
            |it: &&UnboundScalar| matches!(it.role(), ScalarRole::Extent { .. } | ScalarRole::LoopBound);
        let sizes = missing.iter().filter(is_size).map(|it| it.name.clone()).collect();
        Self { options, extents, sizes }
    }

    /// Returns the first value of each name.
    pub(super) fn first(&self) -> IndexMap<String, String> {
        self.options.iter().filter_map(|(name, all)| Some((name.clone(), all.first()?.clone()))).collect()
    }

    /// Returns the values with all extents replaced by one number.
    pub(super) fn with_extents(
        &self,
        values: &IndexMap<String, String>,
        extent: i64,
    ) -> IndexMap<String, String> {
        let mut values = values.clone();
        for name in &self.sizes {
            values.insert(name.clone(), extent.to_string());
        }
        values
    }
}

/// The values proposed so far.
struct ProposedValues<'a> {
    world: usize,
    extents: &'a [i64],
    /// Peers by name.
    peers: IndexMap<String, String>,
    /// Indices of a tensor in a loop.
    indices: Vec<(TensorId, Option<Loop>, String)>,
}

impl ProposedValues<'_> {
    /// Returns the proposed values for one scalar.
    fn of(&mut self, program: &Program, it: &UnboundScalar) -> Vec<String> {
        let around = it.uses.iter().find_map(|it| it.around);
        let index = around.map(|it| program.symbols[it.index].clone());
        let numbers = || ["0", "1"].map(str::to_owned);
        let extents = || self.extents.iter().map(ToString::to_string);
        let mut found: Vec<String> = match it.role() {
            ScalarRole::Peer { send, partner, whole: true } => {
                let own = self.peer(program, *send, *partner, index.as_deref());
                self.peers.insert(it.name.clone(), own.clone());
                [own].into_iter().chain(index).chain(numbers()).collect()
            }
            ScalarRole::Index { .. } => self.index(program, it, index).into_iter().chain(numbers()).collect(),
            ScalarRole::Root { .. } => numbers().into_iter().chain(index).collect(),
            ScalarRole::Stream => index.into_iter().chain(numbers()).collect(),
            ScalarRole::Range { end } => {
                let next = index.as_ref().map(|it| format!("{it} + 1"));
                let (first, second) = if *end { (next, index) } else { (index, next) };
                let numbers = numbers().into_iter().chain(extents());
                first.into_iter().chain(second).chain(numbers).collect()
            }
            ScalarRole::Extent { .. } | ScalarRole::LoopBound => {
                extents().chain([4, 2, 1].map(|it| it.to_string())).collect()
            }
            ScalarRole::Condition if it.name.starts_with('b') => ["true", "false"].map(str::to_owned).into(),
            ScalarRole::Peer { whole: false, .. } | ScalarRole::Condition | ScalarRole::Operand => {
                match it.name.chars().next() {
                    Some('b') => ["true", "false"].map(str::to_owned).into(),
                    Some('d' | 'f') => vec!["1.0".to_owned()],
                    Some(_) | None => {
                        ["1".to_owned()].into_iter().chain(numbers()).chain(index).chain(extents()).collect()
                    }
                }
            }
        };
        let mut seen = IndexSet::new();
        found.retain(|it| seen.insert(it.clone()));
        let first = found.first().cloned().unwrap_or_default();
        for using in &it.uses {
            if let ScalarRole::Index { tensor, .. } = using.role {
                self.indices.push((tensor, using.around, first.clone()));
            }
        }
        found
    }

    /// Returns the inverse of the partner's peer; if it is not known, a shift by one, or by the loop index.
    fn peer(&self, program: &Program, send: bool, partner: Option<ExprId>, index: Option<&str>) -> String {
        let world = self.world;
        if let Some(partner) = partner {
            let text = grammar::expr_text(program, partner);
            let mut copy = program.clone();
            let proposed = self.peers.get(&text).and_then(|it| grammar::read_scalar(&mut copy, it));
            if let Some(mirror) = peers::mirror(&copy, proposed.unwrap_or(partner)) {
                return mirror;
            }
        }
        match (index, send) {
            _ if world < 2 => "0".to_owned(),
            (Some(index), false) => format!("( rank + {index} ) % {world}"),
            (Some(index), true) => format!("( {world} + ( rank - {index} ) ) % {world}"),
            (None, false) => format!("( rank + 1 ) % {world}"),
            (None, true) => format!("( rank + {} ) % {world}", world - 1),
        }
    }

    /// Returns the index with which the same tensor is split elsewhere in the loop, or else the loop index.
    fn index(&self, program: &Program, it: &UnboundScalar, index: Option<String>) -> Option<String> {
        let used = it.uses.iter().filter_map(|using| match using.role {
            ScalarRole::Index { tensor, extent } => Some((tensor, extent, using.around)),
            _ => None,
        });
        let used: Vec<(TensorId, ExprId, Option<Loop>)> = used.collect();
        let beside = self
            .indices
            .iter()
            .find(|(tensor, around, _)| used.iter().any(|(own, _, here)| own == tensor && here == around));
        if let Some((_, _, value)) = beside {
            return Some(value.clone());
        }
        let fits = |(_, extent, around): &(TensorId, ExprId, Option<Loop>)| {
            let stop = around.map(|it| it.stop);
            let (axis, loops) = (program.constant(*extent), stop.and_then(|it| program.constant(it)));
            stop == Some(*extent) || axis.zip(loops).is_none_or(|(axis, loops)| loops <= axis)
        };
        index.filter(|_| used.iter().all(fits))
    }
}

/// Returns the smallest number from `MIN_EXTENT` on that is divisible by all divisors of extents.
fn common_extent(missing: &[UnboundScalar]) -> i64 {
    let uses = missing.iter().flat_map(|it| &it.uses);
    let divisors = uses.flat_map(|it| match &it.role {
        ScalarRole::Extent { divisors, .. } => divisors.as_slice(),
        _ => &[],
    });
    let common = divisors.fold(1i64, |common, divisor| {
        let multiple = common / gcd(common, *divisor);
        multiple.checked_mul(*divisor).filter(|it| *it <= 1 << 12).unwrap_or(common)
    });
    (MIN_EXTENT + common - 1) / common * common
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
