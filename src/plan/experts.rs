//! Plans `Dispatch` and `Combine`: tokens to the ranks of their experts and back, with a capacity.
//!
//! With `R` ranks, `E` experts, of which rank `r` has `r · E/R` to `(r + 1) · E/R - 1`, and `T` tokens of a rank with `K` experts
//! each, a rank sends up to `C` rows to an expert: of more, the first ones in the order of `topk_idx` are sent. The results are
//! `[E/R, R · C, H]`: for each expert of the rank, `C` rows from rank 0, then those from rank 1, and so on; rows that no token
//! fills are 0.
//!
//! Before the exchange, a rank writes the row of each token to its place, which follows from a prefix sum over `topk_idx`. The
//! exchange is an all-to-all of equal parts. Behind the Wait of a `Combine`, each token adds its rows, multiplied by
//! `topk_weights`; a row that was not sent is 0.
//!
//! A `Dispatch` to a matrix is that of nvFuser: `token_rows` plans it.

use std::sync::Arc;

use grammar::{AxisId, Code, CommunicationType, DType, Op, OpStmt, ParallelType, TensorId, attr};

use super::{
    Arg, Backend, Buffer, BufferNo, Collective, CollectiveKind, InstKind, Number, ReduceOp, RoutineKind,
    View, WorkNo,
    context::{PlanBuilder, Result},
    inst_builder::{InstBuilder, int, view},
    posted::{AfterWait, Request},
};

/// The sizes of an exchange.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub ranks: usize,
    pub experts: usize,
    /// Rows from each rank to each expert.
    pub capacity: usize,
    pub width: usize,
}

impl Sizes {
    /// Returns the rows of this rank's experts, `[E/R, R · C, H]`, as the parts of an all-to-all, `[R, E/R, C, H]`.
    fn by_rank(self, rows: &View) -> Option<View> {
        let own = self.experts / self.ranks;
        let by_source = rows.reshape(&[own, self.ranks, self.capacity, self.width])?;
        Some(by_source.permute(&[1, 0, 2, 3]))
    }
}

/// The communication of a statement.
pub(super) struct Exchange {
    pub backend: Backend,
    pub team: Arc<[usize]>,
}

impl PlanBuilder<'_> {
    /// Posts a `Dispatch` or a `Combine`.
    pub(super) fn exchange_tokens(&mut self, stmt: &OpStmt) -> Result<()> {
        let needs = |this: &Self| this.unsupported(stmt.op, "an operand or the result is missing");
        let is_dispatch = stmt.op == Op::Dispatch;
        let choices = stmt.get(if is_dispatch { attr::TOPK_IDX } else { attr::SRC_IDX });
        let operands = (stmt.get(attr::IN), choices, stmt.get(attr::TOPK_WEIGHTS), stmt.get(attr::OUT));
        let (Some(input), Some(choices), Some(weights), Some(out)) = operands else {
            return Err(needs(self));
        };
        if !self.holds_part(input) {
            return Ok(());
        }
        let mesh = &self.program.tensors[input].mesh.devices;
        let team = self.teams.team(stmt, || -> Result<_> {
            Ok(if mesh.is_empty() { (0..self.plan.world).collect() } else { mesh.to_vec() })
        })?;
        let ranks = team.len();
        let backend = self.backend(stmt)?;
        let from = self.view(input)?;
        let target = self.output_view(out)?;
        let rows_of = if is_dispatch { (out, &target) } else { (input, &from) };
        let (tokens_of, tokens) = if is_dispatch { (input, &from) } else { (out, &target) };
        let tokens = self.without_device_dims(tokens_of, tokens, 2).ok_or_else(|| needs(self))?;
        if self.dtype(input).part().is_some() {
            return Err(self.unsupported(stmt.op, "its tokens are complex"));
        }
        if self.is_matrix_of_tokens(stmt, rows_of.0)?
            && let Some(rows) = self.without_device_dims(rows_of.0, rows_of.1, 2)
        {
            let exchange = Exchange { backend, team };
            return if is_dispatch {
                let choices = self.local_rows(stmt, choices, 2)?;
                self.dispatch_rows(stmt, exchange, (&tokens, &choices), (out, &rows))
            } else {
                self.combine_rows(stmt, exchange, &rows, &tokens)
            };
        }
        let choices = self.local_rows(stmt, choices, 2)?;
        let weights = self.local_rows(stmt, weights, 2)?;
        let sizes = self.sizes(stmt, rows_of.0, rows_of.1, ranks)?;
        let rows = self.without_device_dims(rows_of.0, rows_of.1, 3).and_then(|it| sizes.by_rank(&it));
        let Some(rows) = rows else {
            return Err(self.unsupported(stmt.op, "the rows of the experts are not contiguous"));
        };
        let [count, per_token] = choices.shape[..] else { return Err(needs(self)) };
        if tokens.shape != [count, sizes.width] {
            return Err(self.shape_mismatch(stmt.op, &tokens.shape, &[count, sizes.width]));
        }
        if weights.shape != choices.shape {
            return Err(self.shape_mismatch(stmt.op, &weights.shape, &choices.shape));
        }
        let first = self.plan.buffers.len() as BufferNo;
        let mut code = InstBuilder::new(self.rank(), first);
        let dtype = self.dtype(input);
        let slots = slots(&mut code, &choices, sizes);
        let total = sizes.experts * sizes.capacity;
        // The last row takes what exceeds the capacity.
        let packed = code.temporary("rows by expert", dtype, vec![total + 1, sizes.width]);
        let parts = packed.narrow(0, 0, total);
        let mut after = InstBuilder::new(self.rank(), first);
        if is_dispatch {
            code.fill(&packed, Number::Int(0));
            let copies = code.temporary("copies of tokens", dtype, vec![count, per_token, sizes.width]);
            let repeated = tokens.unsqueeze(1).expand(&copies.shape);
            code.copy(&repeated.ok_or_else(|| needs(self))?, &copies);
            let copies = copies.reshape(&[count * per_token, sizes.width]).ok_or_else(|| needs(self))?;
            let index = slots.unsqueeze(1).expand(&copies.shape).ok_or_else(|| needs(self))?;
            let kind = RoutineKind::Scatter { dim: 0, accumulates: false };
            code.routine(kind, vec![packed.clone(), index, copies], vec![packed.clone()]);
        } else {
            let back = code.temporary("returned rows", dtype, vec![count * per_token, sizes.width]);
            let wide = if dtype == DType::Double { DType::Double } else { DType::Float };
            let weighted = code.temporary("weighted rows", wide, vec![count, per_token, sizes.width]);
            let index = slots.unsqueeze(1).expand(&back.shape).ok_or_else(|| needs(self))?;
            let kind = RoutineKind::Gather { dim: 0, first: Some(0) };
            after.routine(kind, vec![parts.clone(), index], vec![back.clone()]);
            let weights = weights.unsqueeze(2).expand(&weighted.shape).ok_or_else(|| needs(self))?;
            let back = back.reshape(&weighted.shape).ok_or_else(|| needs(self))?;
            after.map(Op::Mul, [view(&back), view(&weights)], &weighted);
            after.reduce(ReduceOp::Sum, Number::Float(0.0), &weighted, &[1], &tokens);
        }
        let (code, buffers) = (code.code, code.buffers);
        let temporaries = self.allocate_temporaries(buffers);
        code.into_iter().for_each(|kind| self.emit(kind));
        let (input, output) = if is_dispatch { (parts, rows) } else { (rows, parts) };
        let work = self.exchange(stmt, &Exchange { backend, team }, stmt.number, input, output)?;
        self.after_wait.insert(work, AfterWait { code: after.code, temporaries });
        self.wait_if_not_printed(stmt, work);
        Ok(())
    }

    /// Returns whether the rows of a `Dispatch` or `Combine` are a matrix, as those of nvFuser. Rows by expert have a third dimension, which
    /// is divided among the ranks: if each has one expert, only the number of experts tells them from a matrix of each rank.
    fn is_matrix_of_tokens(&self, stmt: &OpStmt, rows: TensorId) -> Result<bool> {
        let dims: Vec<AxisId> = self.program.dimensions(rows).collect();
        let others = dims.iter().filter(|it| !self.is_device_axis(rows, **it)).count();
        if dims.len() == 2 || others != 2 {
            return Ok(others == 2);
        }
        Ok(match stmt.get(attr::NUM_EXPERTS) {
            Some(it) => {
                let layout = self.layout(rows)?;
                let experts = dims.iter().zip(&layout.shape).find(|(it, _)| self.is_device_axis(rows, **it));
                let stated = self.int(it, "the number of experts")?;
                experts.is_none_or(|(_, experts)| i64::try_from(*experts) != Ok(stated))
            }
            // Its Dispatch says it.
            None => self.dispatch_of(stmt).is_some(),
        })
    }

    /// Posts an all-to-all of equal parts.
    pub(super) fn exchange(
        &mut self,
        stmt: &OpStmt,
        exchange: &Exchange,
        number: Option<u32>,
        input: View,
        output: View,
    ) -> Result<WorkNo> {
        let kind = CollectiveKind::new(CommunicationType::AllToAll, 0, ReduceOp::Sum);
        let algo = self.algorithm(stmt, exchange.backend, kind)?;
        let communicator = self.communicator(exchange.backend, Arc::clone(&exchange.team));
        let work = self.new_work(number, Request { algo, ..Request::default() });
        let it = Collective { communicator, kind, input: Some(input), output: Some(output), work };
        self.emit(InstKind::Collective(Box::new(it)));
        Ok(work)
    }

    /// Waits for a communication for which nvFuser prints no Wait.
    pub(super) fn wait_if_not_printed(&mut self, stmt: &OpStmt, work: WorkNo) {
        let is_wait = |it: &OpStmt| it.op == Op::Wait && it.get(attr::WORK) == stmt.number;
        if !self.program.stmts.iter().any(|(_, it)| it.op().is_some_and(is_wait)) {
            self.emit(InstKind::Wait { work });
            self.end_of_wait(work);
        }
    }

    /// Returns whether an axis of the logical domain is divided among devices only.
    fn is_device_axis(&self, tensor: TensorId, axis: AxisId) -> bool {
        let is_device = |axis: &AxisId| matches!(self.program.axes[*axis].parallel, ParallelType::Device(_));
        self.program.loop_axes_of(tensor, axis).iter().all(is_device)
    }

    /// Emits what follows the wait for a communication.
    pub(super) fn end_of_wait(&mut self, work: u32) {
        let Some(AfterWait { code, temporaries }) = self.after_wait.remove(&work) else { return };
        code.into_iter().for_each(|kind| self.emit(kind));
        temporaries.into_iter().for_each(|buffer| self.release(buffer));
    }

    /// Adds temporary buffers to the plan, and allocates them.
    pub(super) fn allocate_temporaries(&mut self, buffers: Vec<Buffer>) -> Vec<BufferNo> {
        let first = self.plan.buffers.len() as BufferNo;
        let numbers: Vec<BufferNo> = (first..first + buffers.len() as BufferNo).collect();
        for (number, buffer) in numbers.iter().zip(buffers) {
            self.plan.buffers.push(buffer);
            self.allocate_buffer(*number, false);
            self.name_counts.insert(*number, 1);
        }
        numbers
    }

    /// Returns this rank's part of a tensor, without dimensions that are device axes, if it has `rank` other ones.
    fn without_device_dims(&self, tensor: TensorId, part: &View, rank: usize) -> Option<View> {
        let mut part = part.clone();
        let dims: Vec<_> = self.program.dimensions(tensor).collect();
        for dim in (0..dims.len()).rev() {
            if part.shape.len() > rank && self.is_device_axis(tensor, dims[dim]) && part.shape[dim] == 1 {
                part = part.select(dim, 0);
            }
        }
        (part.shape.len() == rank).then_some(part)
    }

    /// Returns this rank's part of an operand with `rank` dimensions besides a device axis.
    fn local_rows(&self, stmt: &OpStmt, tensor: TensorId, rank: usize) -> Result<View> {
        if stmt.op == Op::Combine && self.binding(tensor).is_none() {
            let name = self.program.tensor_name(tensor);
            let why = format!("`{name}` has no value: nvFuser does not print these results of `Dispatch`");
            let it = *self.unsupported(stmt.op, &why);
            let help =
                "write the `topk_weights` of the Dispatch as `topk_weights`, and its `topk_idx` as `src_idx`";
            return Err(Box::new(it.help(help)));
        }
        let part = self.view(tensor)?;
        self.without_device_dims(tensor, &part, rank).ok_or_else(|| {
            let name = self.program.tensor_name(tensor);
            let why = format!(
                "`{name}` has to have {rank} dimensions besides its device axis, and a rank has {:?}",
                part.shape
            );
            self.unsupported(stmt.op, &why)
        })
    }

    fn sizes(&self, stmt: &OpStmt, tensor: TensorId, part: &View, ranks: usize) -> Result<Sizes> {
        let name = self.program.tensor_name(tensor);
        let rows = self.without_device_dims(tensor, part, 3);
        let Some([own, count, width]) = rows.as_ref().map(|it| &it.shape[..]) else {
            let why = format!(
                "`{name}` has to have the rows of each expert of a rank, `[experts, rows, columns]`, and a rank has {:?}",
                part.shape
            );
            return Err(self.unsupported(stmt.op, &why));
        };
        let experts = own * ranks;
        if let Some(stated) = stmt.get(attr::NUM_EXPERTS) {
            let stated = self.int(stated, "the number of experts")?;
            if i64::try_from(experts) != Ok(stated) {
                let message = format!(
                    "`{}` has {stated} experts, but `{name}` has {own} on each of {ranks} ranks",
                    stmt.op.name()
                );
                return Err(self.error(Code::RuntimeShape, message, "the numbers do not match"));
            }
        }
        if count % ranks != 0 {
            let message =
                format!("`{name}` has {count} rows for an expert, which {ranks} ranks cannot share equally");
            return Err(self.error(
                Code::RuntimeShape,
                message,
                "expected a multiple of the number of ranks",
            ));
        }
        Ok(Sizes { ranks, experts, capacity: count / ranks, width: *width })
    }
}

/// Returns, for each choice `[T, K]` in row-major order, its row among those by expert: expert times capacity, plus the number
/// of earlier choices of the expert; the number of all rows if that exceeds the capacity.
pub(super) fn slots(code: &mut InstBuilder, choices: &View, sizes: Sizes) -> View {
    let (count, experts) = (choices.len(), sizes.experts);
    let expert = code.temporary("experts of tokens", DType::Int64, choices.shape.clone());
    code.copy(choices, &expert);
    let expert = View::contiguous(expert.buffer, vec![count]);
    let numbers = code.temporary("experts", DType::Int64, vec![experts]);
    code.iota(&numbers, 0, 1);
    let table = vec![count, experts];
    let repeated = |it: &View, strides: [usize; 2]| {
        Arg::View(View { shape: table.clone(), strides: strides.to_vec(), ..it.clone() })
    };
    let is_chosen = code.temporary("choices", DType::Int64, table.clone());
    code.map(Op::Eq, [repeated(&expert, [1, 0]), repeated(&numbers, [0, 1])], &is_chosen);
    let mut sums = code.temporary("choices so far", DType::Int64, table.clone());
    let mut other = code.temporary("choices so far", DType::Int64, table.clone());
    code.copy(&is_chosen, &sums);
    let mut distance = 1;
    while distance < count {
        let rest = count - distance;
        code.copy(&sums.narrow(0, 0, distance), &other.narrow(0, 0, distance));
        let pair = [sums.narrow(0, 0, rest), sums.narrow(0, distance, rest)];
        code.map(Op::Add, pair.each_ref().map(view), &other.narrow(0, distance, rest));
        std::mem::swap(&mut sums, &mut other);
        distance *= 2;
    }
    code.map(Op::Mul, [view(&sums), view(&is_chosen)], &sums);
    let position = code.temporary("positions", DType::Int64, vec![count]);
    code.reduce(ReduceOp::Sum, Number::Int(0), &sums, &[1], &position);
    let fits = code.temporary("fits", DType::Bool, vec![count]);
    code.map(Op::Le, [view(&position), int(sizes.capacity as i64)], &fits);
    let slot = code.temporary("rows of tokens", DType::Int64, vec![count]);
    code.map(Op::Mul, [view(&expert), int(sizes.capacity as i64)], &slot);
    code.map(Op::Add, [view(&slot), view(&position)], &slot);
    code.map(Op::Sub, [view(&slot), int(1)], &slot);
    code.map(Op::Where, [view(&fits), view(&slot), int((experts * sizes.capacity) as i64)], &slot);
    slot
}
