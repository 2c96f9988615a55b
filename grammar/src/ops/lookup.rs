//! Finds definitions by operator and by name.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::{OPS, Op, OpDef};

impl Op {
    /// Returns the operator's definition.
    pub fn def(self) -> &'static OpDef {
        &OPS[self as usize]
    }

    /// Returns the operator's name in the text.
    pub fn name(self) -> &'static str {
        self.def().mnemonic
    }

    /// Returns the operators with this name; empty if there are none. Several operators can share a name: the
    /// two ALLOCATEs differ in their keys, and the two `-` in their number of operands.
    pub fn lookup(mnemonic: &str) -> &'static [Op] {
        static NAMES: OnceLock<FxHashMap<&'static str, Vec<Op>>> = OnceLock::new();
        let names = NAMES.get_or_init(|| {
            let mut names: FxHashMap<&'static str, Vec<Op>> = FxHashMap::default();
            for row in OPS {
                for name in std::iter::once(&row.mnemonic).chain(row.aliases) {
                    names.entry(name).or_default().push(row.op);
                }
            }
            names
        });
        names.get(mnemonic).map_or(&[], Vec::as_slice)
    }
}
