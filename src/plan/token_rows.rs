//! Plans `Dispatch` and `Combine` as nvFuser runs them (`csrc/multidevice/dispatch_combine.cpp`): each token has one expert, and a rank
//! receives a matrix of tokens, by source rank, and of each source in the order of the experts.
//!
//! The number of tokens that a rank receives depends on the data. hir has a row for each token of all `R` ranks: the received ones are
//! first, and the other rows are 0. `Combine` sends the rows back to where they came from, without weights. What else `Dispatch` returns,
//! nvFuser does not print; the planner keeps it for the `Combine` of its rows.
//!
//! Each rank sends `T` rows to each rank, of which those of its tokens come first, and a flag for each row.

use grammar::{Code, DType, Op, OpStmt, TensorId, attr};

use super::{
    BufferNo, InstKind, Number, RoutineKind, View,
    context::{PlanBuilder, Result},
    experts::{Exchange, Sizes, slots},
    inst_builder::{InstBuilder, int, view},
    posted::{AfterWait, Dispatched},
};

impl PlanBuilder<'_> {
    /// Posts a `Dispatch` of tokens `[T, H]` to rows `[R · T, H]`.
    pub(super) fn dispatch_rows(
        &mut self,
        stmt: &OpStmt,
        exchange: Exchange,
        (tokens, choices): (&View, &View),
        (out, target): (TensorId, &View),
    ) -> Result<()> {
        let ranks = exchange.team.len();
        let ([count, width], [_, per_token]) = (&tokens.shape[..], &choices.shape[..]) else {
            return Err(self.unsupported(stmt.op, "its tokens are not a matrix"));
        };
        let (count, width) = (*count, *width);
        if *per_token != 1 || choices.shape[0] != count {
            return Err(self.shape_mismatch(stmt.op, &choices.shape, &[count, 1]));
        }
        let total = ranks * count;
        if target.shape != [total, width] {
            let name = self.program.tensor_name(out);
            let message = format!("`{name}` has shape {:?} on a rank", target.shape);
            let label = format!("expected [{total}, {width}]: a row for each token of {ranks} ranks");
            return Err(self.error(Code::RuntimeShape, message, label));
        }
        let experts = match stmt.get(attr::NUM_EXPERTS) {
            Some(it) => self.int(it, "the number of experts")?,
            None => ranks as i64,
        };
        if experts <= 0 || experts % ranks as i64 != 0 {
            let message = format!("{experts} experts cannot be on {ranks} ranks");
            return Err(self.error(
                Code::RuntimeShape,
                message,
                "expected a multiple of the number of ranks",
            ));
        }
        let dtype = self.plan.buffers[tokens.buffer as usize].dtype;
        let mut code = InstBuilder::new(self.rank(), self.plan.buffers.len() as BufferNo);
        // Selecting from a table checks that the experts exist.
        let table = code.temporary("experts", DType::Int64, vec![experts as usize]);
        code.iota(&table, 0, 1);
        let expert = code.temporary("experts of tokens", DType::Int64, vec![count]);
        let gather = RoutineKind::Gather { dim: 0, first: None };
        code.routine(gather, vec![table, choices.select(1, 0)], vec![expert.clone()]);
        let sorted = code.temporary("sorted experts", DType::Int64, vec![count]);
        let order = code.temporary("order of tokens", DType::Int64, vec![count]);
        let kind = RoutineKind::Sort { dim: 0, is_descending: false };
        code.routine(kind, vec![expert], vec![sorted.clone(), order.clone()]);
        code.map(Op::Div, [view(&sorted), int(experts / ranks as i64)], &sorted);
        let by_rank = Sizes { ranks, experts: ranks, capacity: count, width };
        let sent = slots(&mut code, &sorted.unsqueeze(1), by_rank);
        let in_order = code.temporary("tokens in order", dtype, vec![count, width]);
        let index =
            |it: &View, rows: usize| View { shape: vec![rows, width], strides: vec![1, 0], ..it.clone() };
        code.routine(gather, vec![tokens.clone(), index(&order, count)], vec![in_order.clone()]);
        let scatter = RoutineKind::Scatter { dim: 0, accumulates: false };
        let packed = code.temporary("rows by rank", dtype, vec![total, width]);
        code.fill(&packed, Number::Int(0));
        code.routine(scatter, vec![packed.clone(), index(&sent, count), in_order], vec![packed.clone()]);
        // 0 for a token, 1 for a row without one: the two groups into which the receiver sorts rows.
        let flags = code.temporary("rows without token", DType::Int64, vec![total]);
        code.fill(&flags, Number::Int(1));
        let none = code.temporary("tokens", DType::Int64, vec![count]);
        code.fill(&none, Number::Int(0));
        code.routine(scatter, vec![flags.clone(), sent.clone(), none], vec![flags.clone()]);
        let arrived = code.temporary("received rows", dtype, vec![total, width]);
        let arrived_flags = code.temporary("received rows without token", DType::Int64, vec![total]);
        let before = code.code.len();
        let groups = Sizes { ranks: 1, experts: 2, capacity: total, width };
        let received = slots(&mut code, &arrived_flags.unsqueeze(1), groups);
        let all = code.temporary("rows of tokens, then others", dtype, vec![2 * total, width]);
        code.fill(&all, Number::Int(0));
        code.routine(scatter, vec![all.clone(), index(&received, total), arrived.clone()], vec![all.clone()]);
        code.copy(&all.narrow(0, 0, total), target);
        let (mut code, buffers) = (code.code, code.buffers);
        let after = code.split_off(before);
        let temporaries = self.allocate_temporaries(buffers);
        code.into_iter().for_each(|kind| self.emit(kind));
        let work = self.exchange(stmt, &exchange, None, flags, arrived_flags)?;
        self.emit(InstKind::Wait { work });
        let work = self.exchange(stmt, &exchange, stmt.number, packed, arrived)?;
        let number = self.program.tensors[out].number;
        // Nothing can combine the rows that these replace.
        let replaced = self.dispatched.iter().position(|it| it.number == number);
        let replaced = replaced.map_or(Vec::new(), |at| self.dispatched.remove(at).temporaries);
        self.after_wait.insert(work, AfterWait { code: after, temporaries: replaced });
        self.dispatched.push(Dispatched { number, order, sent, received, temporaries });
        self.wait_if_not_printed(stmt, work);
        Ok(())
    }

    /// Returns the `Dispatch` of rows to which a `Combine` belongs. The results of a Dispatch have consecutive numbers; the indices of the
    /// tokens are the fourth one. If a pass has numbered the tensors anew, the only Dispatch whose results nothing else defines is meant.
    pub(super) fn dispatch_of(&self, stmt: &OpStmt) -> Option<usize> {
        let wanted = stmt.get(attr::SRC_IDX)?;
        let number = self.program.tensors[wanted].number;
        let own = self.dispatched.iter().position(|it| it.number + 3 == number);
        own.or_else(|| (self.dispatched.len() == 1 && self.binding(wanted).is_none()).then_some(0))
    }

    /// Posts the `Combine` of rows `[R · T, H]` to tokens `[T, H]`.
    pub(super) fn combine_rows(
        &mut self,
        stmt: &OpStmt,
        exchange: Exchange,
        rows: &View,
        tokens: &View,
    ) -> Result<()> {
        let Some(at) = self.dispatch_of(stmt) else {
            let why = if self.dispatched.is_empty() {
                "no earlier `Dispatch` has sent rows that this returns"
            } else {
                "its `src_idx` is not the fourth result of one of the `Dispatch`es before it"
            };
            return Err(self.unsupported(stmt.op, why));
        };
        let it = self.dispatched.remove(at);
        let (total, [count, width]) = (it.received.len(), [it.order.len(), tokens.shape[1]]);
        if rows.shape != [total, width] {
            return Err(self.shape_mismatch(stmt.op, &rows.shape, &[total, width]));
        }
        if tokens.shape[0] != count {
            return Err(self.shape_mismatch(stmt.op, &tokens.shape, &[count, width]));
        }
        let dtype = self.plan.buffers[rows.buffer as usize].dtype;
        let mut code = InstBuilder::new(self.rank(), self.plan.buffers.len() as BufferNo);
        let index =
            |it: &View, rows: usize| View { shape: vec![rows, width], strides: vec![1, 0], ..it.clone() };
        let gather = RoutineKind::Gather { dim: 0, first: Some(0) };
        let back = code.temporary("rows by source", dtype, vec![total, width]);
        code.routine(gather, vec![rows.clone(), index(&it.received, total)], vec![back.clone()]);
        let arrived = code.temporary("returned rows", dtype, vec![total, width]);
        let in_order = code.temporary("tokens in order", dtype, vec![count, width]);
        let before = code.code.len();
        code.routine(gather, vec![arrived.clone(), index(&it.sent, count)], vec![in_order.clone()]);
        code.fill(tokens, Number::Int(0));
        let scatter = RoutineKind::Scatter { dim: 0, accumulates: false };
        code.routine(scatter, vec![tokens.clone(), index(&it.order, count), in_order], vec![tokens.clone()]);
        let (mut code, buffers) = (code.code, code.buffers);
        let after = code.split_off(before);
        let mut temporaries = self.allocate_temporaries(buffers);
        temporaries.extend(it.temporaries);
        code.into_iter().for_each(|kind| self.emit(kind));
        let work = self.exchange(stmt, &exchange, stmt.number, back, arrived)?;
        self.after_wait.insert(work, AfterWait { code: after, temporaries });
        self.wait_if_not_printed(stmt, work);
        Ok(())
    }
}
