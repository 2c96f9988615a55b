//! `GroupedMmaOp`: one matrix product for each group.

use grammar::attr;

use super::{OperatorCall, Result, misfit};
use crate::{GroupedDim, RoutineKind, inst_builder::InstBuilder};

impl OperatorCall<'_> {
    /// `offsets` has the index behind the last one of each group, as in `torch._grouped_mm`.
    pub(super) fn grouped_mma(&self, code: &mut InstBuilder) -> Result<()> {
        let stmt = self.stmt;
        let extra = [attr::SCALE1, attr::SCALE2, attr::ALPHA, attr::BIAS, attr::BETA];
        if let Some(key) = extra.iter().find(|it| stmt.get(**it).is_some()) {
            return Err(self.unsupported(&format!("it has `{}`", key.name())));
        }
        let needs = || self.unsupported("it needs `mat1=`, `mat2=` and `offsets=`");
        let a = self.keyed(stmt.get(attr::MAT1)).ok_or_else(needs)?;
        let b = self.keyed(stmt.get(attr::MAT2)).ok_or_else(needs)?;
        let ends = self.keyed(stmt.get(attr::OFFSETS)).ok_or_else(needs)?;
        let out = self.result(0)?;
        let [groups] = ends.shape[..] else { return Err(misfit(ends, &[1])) };
        let (dim, wanted) = match (&a.shape[..], &b.shape[..]) {
            ([m, k], [g, depth, n]) if k == depth && *g == groups => (GroupedDim::Rows, vec![*m, *n]),
            ([m, k], [depth, n]) if k == depth => (GroupedDim::Depth, vec![groups, *m, *n]),
            ([g, m, k], [depth, n]) if k == depth && *g == groups => (GroupedDim::Columns, vec![*m, *n]),
            _ => return Err(misfit(b, &a.shape)),
        };
        if out.shape != wanted {
            return Err(misfit(out, &wanted));
        }
        let inputs = vec![a.clone(), b.clone(), ends.clone()];
        code.routine(RoutineKind::GroupedGemm(dim), inputs, vec![out.clone()]);
        Ok(())
    }
}
