//! The order of the tables to which records refer.
//!
//! Threads read the files of a job and number what they meet first. The numbers here are those of the first use, rank by rank: what
//! compares or walks them gives one answer in all runs.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::record::{GroupId, Interners, NameId, Rank, RankLog, Records, Signature, SignatureId, StackId};

/// The numbers of values by their first use.
#[derive(Default)]
struct Order {
    numbers: FxHashMap<u32, u32>,
    used: Vec<u32>,
}

impl Order {
    fn number(&mut self, old: usize) -> u32 {
        let (old, next) = (old as u32, self.used.len() as u32);
        *self.numbers.entry(old).or_insert_with(|| {
            self.used.push(old);
            next
        })
    }

    fn sorted<T>(&self, values: Vec<T>) -> Vec<T> {
        let mut values: Vec<Option<T>> = values.into_iter().map(Some).collect();
        self.used.iter().filter_map(|it| values[*it as usize].take()).collect()
    }
}

/// Numbers what logs refer to by its first use. Returns records that have the tables, without logs; what no log refers to is left out.
pub(crate) fn by_first_use(logs: &mut BTreeMap<Rank, Vec<RankLog>>, tables: Interners) -> Records {
    let signatures = tables.signatures.into_values();
    let [mut groups, mut of_signatures, mut of_stacks, mut of_names]: [Order; 4] = Default::default();
    for log in logs.values_mut().flatten() {
        for it in &mut log.records {
            it.group = GroupId(groups.number(it.group.index()));
            it.signature = signature(&mut of_signatures, &signatures, it.signature);
            it.stack = StackId(of_stacks.number(it.stack.index()));
        }
        let of_status = log.status.iter_mut().filter_map(|it| it.of.as_mut());
        of_status.chain(&mut log.groups).for_each(|it| *it = GroupId(groups.number(it.index())));
    }
    let mut records = Records {
        groups: groups.sorted(tables.groups.into_values()),
        stacks: of_stacks.sorted(tables.stacks.into_values()),
        signatures: of_signatures.sorted(signatures),
        ..Records::default()
    };
    for it in records.signatures.iter_mut().flat_map(|it| &mut it.parts) {
        *it = SignatureId(of_signatures.number(it.index()));
    }
    for frame in records.stacks.iter_mut().flat_map(|it| &mut it.frames) {
        frame.file = NameId(of_names.number(frame.file.index()));
        frame.function = NameId(of_names.number(frame.function.index()));
    }
    records.names = of_names.sorted(tables.names.into_values());
    records
}

/// Numbers a signature, its parts first.
fn signature(order: &mut Order, all: &[Signature], it: SignatureId) -> SignatureId {
    for part in &all[it.index()].parts {
        signature(order, all, *part);
    }
    SignatureId(order.number(it.index()))
}
