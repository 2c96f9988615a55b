//! What one instruction does to memory, at once.
//!
//! Invariant: all operands are read before anything is written, so views may overlap.

use grammar::dtype::DType;

use super::{
    Fault, InstRef,
    kernels::{self, Exactness, KernelError},
    located,
    memory::{self, Block, Cell, Memory},
};
use crate::{
    io::data::Data,
    plan::{InstKind, Number, Place, Plan, View},
};

/// Why an instruction has no result, wherever it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// A kernel has none.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The program is wrong.
    #[error("{0}")]
    Program(String),
    /// The plan is wrong.
    #[error("{0}")]
    Internal(String),
}

impl StepError {
    /// The fault of an instruction.
    pub fn at(self, plans: &[Plan], at: InstRef) -> Fault {
        let (line, place) = located(plans, at);
        let (rank, message) = (at.rank, self.to_string());
        match self {
            Self::Kernel(KernelError::DivisionByZero { .. }) | Self::Program(_) => {
                Fault::Program { rank, line, place, message }
            }
            Self::Kernel(KernelError::Op(..) | KernelError::ReduceOp(..) | KernelError::Dtype(_)) => {
                Fault::Unsupported { rank, line, place, message }
            }
            Self::Internal(_) => Fault::Internal(format!("rank {rank}: {place}: {message}")),
        }
    }
}

/// The memory that instructions work on.
pub(super) enum Space<'a> {
    /// That of all ranks.
    World(&'a mut [Memory]),
    /// The private buffers of a reshard's body, whatever rank a place names.
    Private(&'a mut Memory),
}

impl Space<'_> {
    fn cell(&mut self, rank: usize, view: &View) -> Result<&mut Cell, StepError> {
        let memory = match self {
            Self::World(memories) => memories.get_mut(rank),
            Self::Private(memory) => Some(&mut **memory),
        };
        let cell = memory.filter(|it| (view.buffer as usize) < it.len()).map(|it| it.cell_mut(view.buffer));
        let reach = |cell: &Cell| {
            let last: usize =
                view.shape.iter().zip(&view.strides).map(|(n, s)| n.saturating_sub(1) * s).sum();
            view.is_empty() || view.offset + last < cell.data.len()
        };
        cell.filter(|it| reach(it))
            .ok_or_else(|| StepError::Internal(format!("{view:?} is not inside the memory of rank {rank}")))
    }

    /// The element type of a view.
    pub fn dtype(&mut self, rank: usize, view: &View) -> Result<DType, StepError> {
        Ok(self.cell(rank, view)?.data.dtype())
    }

    /// The elements of a view.
    pub fn load(&mut self, rank: usize, view: &View) -> Result<Block, StepError> {
        Ok(memory::gather(self.cell(rank, view)?, view))
    }

    /// Puts elements into a view; their type converts.
    pub fn store(
        &mut self,
        rank: usize,
        view: &View,
        block: &Block,
        exactness: &mut Exactness,
    ) -> Result<(), StepError> {
        if block.data.len() != view.len() {
            let (given, room) = (block.data.len(), view.len());
            return Err(StepError::Internal(format!("{given} elements for a view of {room}")));
        }
        exactness.count(memory::scatter(self.cell(rank, view)?, view, block));
        Ok(())
    }

    /// Runs an instruction that touches memory and nothing else.
    pub fn run(&mut self, rank: usize, kind: &InstKind, exactness: &mut Exactness) -> Result<(), StepError> {
        let (out, block) = match kind {
            InstKind::Alloc { buffer, zero } => {
                let cell = self.cell(rank, &View::contiguous(*buffer, vec![0]))?;
                let (dtype, len) = (cell.data.dtype(), cell.data.len());
                let fresh = if *zero { Cell::zeroed(dtype, len) } else { Cell::unwritten(dtype, len) };
                *cell = fresh.map_err(KernelError::from)?;
                return Ok(());
            }
            InstKind::Copy { from, to } => {
                let block = self.load(from.rank, &from.view)?;
                return self.store(to.rank, &to.view, &block, exactness);
            }
            InstKind::Fill { to, value } => {
                let mut data = self.empty(rank, to)?;
                if (0..data.len()).filter(|&it| data.set(it, *value)).count() > 0 {
                    exactness.count(data.len());
                }
                (to, Block::full(to.shape.clone(), data))
            }
            InstKind::Iota { to, start, step } => {
                let mut data = self.empty(rank, to)?;
                let value = |it: usize| Number::Int(start.wrapping_add(step.wrapping_mul(it as i64)));
                exactness.count((0..data.len()).filter(|&it| data.set(it, value(it))).count());
                (to, Block::full(to.shape.clone(), data))
            }
            InstKind::Gemm(it) => {
                let (a, b) = (self.load(rank, &it.a)?, self.load(rank, &it.b)?);
                let bias = it.bias.as_ref().map(|it| self.load(rank, it)).transpose()?;
                let dtype = self.dtype(rank, &it.out)?;
                (&it.out, kernels::gemm(&a, &b, bias.as_ref(), dtype, exactness)?)
            }
            InstKind::Map { op, out, .. } => {
                return Err(KernelError::Op(*op, self.dtype(rank, out)?).into());
            }
            InstKind::Reduce(it) => {
                let input = self.load(rank, &it.input)?;
                let dtype = self.dtype(rank, &it.out)?;
                (&it.out, kernels::reduce(it.op, it.init, &input, &it.axes, dtype, exactness)?)
            }
            InstKind::Combine { op, parts, out } => {
                let load = |it: &Place| self.load(it.rank, &it.view);
                let parts = parts.iter().map(load).collect::<Result<Vec<_>, _>>()?;
                let dtype = self.dtype(rank, out)?;
                (out, kernels::combine(*op, &parts, dtype, exactness)?)
            }
            InstKind::Collective(_)
            | InstKind::Transfer(_)
            | InstKind::Wait { .. }
            | InstKind::Signal { .. }
            | InstKind::Await { .. }
            | InstKind::Record { .. }
            | InstKind::Join { .. }
            | InstKind::Exchange { .. }
            | InstKind::Barrier
            | InstKind::Reshard(_)
            | InstKind::Finish => {
                return Err(StepError::Internal("an instruction that does not compute".to_owned()));
            }
        };
        self.store(rank, out, &block, exactness)
    }

    /// Zeros of a view's type and size.
    fn empty(&mut self, rank: usize, view: &View) -> Result<Data, StepError> {
        let dtype = self.dtype(rank, view)?;
        Ok(Data::zeros(dtype, view.len()).map_err(KernelError::from)?)
    }
}
