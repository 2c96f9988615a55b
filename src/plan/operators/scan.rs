//! `scan`: `out[i]` combines the elements 0 to `i` along a dimension.

use grammar::{DType, Op, attr};

use super::{OperatorCall, OperatorFault, Result, expect_shape, sum_dtype};
use crate::{
    ReduceOp, RoutineKind,
    inst_builder::{InstBuilder, view},
};

impl OperatorCall<'_> {
    /// Products: in step `s`, each element is combined with the one 2^s before it (Hillis and Steele, "Data parallel algorithms", 1986).
    pub(super) fn scan(&self, code: &mut InstBuilder) -> Result<()> {
        let (input, out) = (self.operand(0)?, self.result(0)?);
        expect_shape(input, &out.shape)?;
        let dim = self.dim(input.shape.len())?;
        let name = self.stmt.get(attr::SCAN_OP).or_else(|| self.stmt.get(attr::OP_TYPE));
        let name: &str = name.map_or("add", |it| it);
        let op = match name {
            "add" => ReduceOp::Sum,
            "mul" => ReduceOp::Product,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            "fmax" => ReduceOp::FMax,
            "fmin" => ReduceOp::FMin,
            _ => return Err(OperatorFault::Unsupported(format!("it combines elements with `{name}`"))),
        };
        let dtype = match self.result_dtype(0) {
            DType::Bool => return Err(self.unsupported("its result is bool")),
            dtype => sum_dtype(dtype),
        };
        if op != ReduceOp::Product {
            let is_in_place = input.may_alias(out);
            let target =
                if is_in_place { code.temporary("scan", dtype, out.shape.clone()) } else { out.clone() };
            let kind = RoutineKind::Scan { dim, op };
            code.routine(kind, vec![input.clone()], vec![target.clone()]);
            if is_in_place {
                code.copy(&target, out);
            }
            return Ok(());
        }
        let extent = out.shape[dim];
        let mut from = code.temporary("scan", dtype, out.shape.clone());
        let mut to = code.temporary("scan", dtype, out.shape.clone());
        code.copy(input, &from);
        let mut distance = 1;
        while distance < extent {
            let rest = extent - distance;
            code.copy(&from.narrow(dim, 0, distance), &to.narrow(dim, 0, distance));
            let pair = [from.narrow(dim, 0, rest), from.narrow(dim, distance, rest)];
            code.map(Op::Mul, pair.each_ref().map(view), &to.narrow(dim, distance, rest));
            std::mem::swap(&mut from, &mut to);
            distance *= 2;
        }
        code.copy(&from, out);
        Ok(())
    }
}
