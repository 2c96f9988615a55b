//! Lowers elementwise instructions that are not fused, and copies.

use std::sync::Arc;

use super::{Command, ExecutableBuilder, Site};
use crate::{
    ExecutorError, Result,
    device::Copy2d,
    kernels::{self, DeviceView, ElementwiseArg, ElementwiseOp, ScalarFunction},
};
use hir_plan::{Arg, Inst, InstKind, Number, View, ViewOnRank};

/// Returns the elementwise operation of an instruction of a rank; `None` if it has none. `locate` maps views of the
/// rank's memory.
///
/// # Errors
/// Those of `locate`.
pub(super) fn elementwise_op<'a>(
    rank: usize,
    inst: &'a Inst,
    locate: &impl Fn(&'a View) -> Result<DeviceView<'a>>,
) -> Result<Option<ElementwiseOp<'a>>> {
    let view = |view| locate(view).map(ElementwiseArg::View);
    Ok(Some(match &inst.kind {
        InstKind::Map { op, args, out } => {
            let arg = |arg: &'a Arg| match arg {
                Arg::View(it) => view(it),
                Arg::Number(number) => Ok(ElementwiseArg::Number(*number)),
            };
            ElementwiseOp::new(
                ScalarFunction::Op(*op),
                args.iter().map(arg).collect::<Result<_, _>>()?,
                locate(out)?,
            )
        }
        InstKind::Fill { to, value } => {
            ElementwiseOp::new(ScalarFunction::Convert, vec![ElementwiseArg::Number(*value)], locate(to)?)
        }
        InstKind::Iota { to, start, step } => {
            let numbers = [*start, *step].map(|it| ElementwiseArg::Number(Number::Int(it)));
            ElementwiseOp::new(ScalarFunction::Iota, numbers.to_vec(), locate(to)?)
        }
        InstKind::Copy { from, to } if (from.rank, to.rank) == (rank, rank) => {
            ElementwiseOp::new(ScalarFunction::Convert, vec![view(&from.view)?], locate(&to.view)?)
        }
        // `ExecutableBuilder::lower_inst` lowers all other instructions.
        _ => return Ok(None),
    }))
}

/// Bytes of an access from which on the kernel for all copies is as fast as memory.
const WIDE_BYTES: usize = 8;

impl ExecutableBuilder<'_> {
    /// Lowers one operation. It goes through scratch memory if the result would overwrite operands that are
    /// still to be read.
    pub(super) fn lower_elementwise(&mut self, site: Site<'_>, op: &ElementwiseOp) -> Result<()> {
        let ElementwiseOp { out, .. } = op;
        let dense = View::contiguous(0, out.view.shape.clone());
        let ops = if op.views().any(|it| it.may_partially_overlap(out)) {
            let address = self.scratch_buffer(site, 0, dense.len() * out.dtype.size())?;
            let between = DeviceView { address, dtype: out.dtype, view: &dense };
            let back = ElementwiseOp::convert(between, *out);
            vec![ElementwiseOp { out: between, ..op.clone() }, back]
        } else {
            vec![op.clone()]
        };
        for op in ops {
            let launch = kernels::elementwise_launch(&[op]);
            let launch = launch.map_err(|it| self.unsupported(site, it))?;
            self.push_launch(site, launch);
        }
        Ok(())
    }

    /// Lowers a constant: uploads its bytes now, to memory that the executable keeps, from where each run copies them.
    pub(super) fn lower_constant(&mut self, site: Site<'_>, to: &View, bytes: &Arc<[u8]>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // Iterations and ranks of a program share the bytes of a constant.
        let key = Arc::as_ptr(bytes).cast::<u8>() as usize;
        let address = match self.constants.get(&key) {
            Some(known) => *known,
            None => {
                let address = self.memory.allocate_scratch(self.device, bytes.len())?;
                self.device.upload(address, bytes, site.stream.stream)?;
                self.constants.insert(key, address);
                address
            }
        };
        let (dense, target) = (View::contiguous(0, to.shape.clone()), self.local_view(to)?);
        let source = DeviceView { address, dtype: target.dtype, view: &dense };
        if to.is_contiguous() {
            self.push(site, Command::Copy { to: target.address, from: address, bytes: bytes.len() });
            return Ok(());
        }
        let op = ElementwiseOp::convert(source, target);
        self.lower_elementwise(site, &op)
    }

    /// Lowers a copy: to a memory copy if the types are equal and the elements lie in rows, else to a kernel.
    pub(super) fn lower_copy(&mut self, site: Site<'_>, from: &ViewOnRank, to: &ViewOnRank) -> Result<()> {
        let (source, target) =
            (self.device_view(from.rank, &from.view)?, self.device_view(to.rank, &to.view)?);
        if from.view.is_empty() || (source.dtype == target.dtype && source.has_same_elements(&target)) {
            return Ok(());
        }
        if from.view.shape != to.view.shape {
            let message = format!("a copy from shape {:?} to shape {:?}", from.view.shape, to.view.shape);
            return Err(self.unsupported(site, message));
        }
        if source.dtype == target.dtype && !source.may_partially_overlap(&target) {
            let size = source.dtype.size();
            let merged =
                kernels::merge_dims_in_any_order(&to.view.shape, &[&from.view.strides, &to.view.strides]);
            let [out_of, into] = merged.strides.as_slice() else {
                return Err(ExecutorError::Internal("a copy of two views".to_owned()));
            };
            let is_local = from.rank == self.plan.rank && to.rank == self.plan.rank;
            let width =
                merged.width(WIDE_BYTES.div_ceil(size), &[source.address, target.address], &[size, size]);
            // The kernel for all copies would access few bytes at a time.
            if is_local
                && merged.extents.len() > 1
                && width * size < WIDE_BYTES
                && let Some(launch) = kernels::shifted_rows_launch([&source, &target], &merged)
            {
                self.push_launch(site, Some(launch));
                return Ok(());
            }
            match (merged.extents.as_slice(), into.as_slice(), out_of.as_slice()) {
                ([_], [1], [1]) | ([1], _, _) => {
                    let bytes = merged.extents[0] * size;
                    let command = Command::Copy { to: target.address, from: source.address, bytes };
                    self.push(site, command);
                    return Ok(());
                }
                // A stride of 0 repeats a row, which a pitch cannot express.
                ([height, width], [to_row, 1], [from_row, 1]) if to_row >= width && from_row >= width => {
                    let rows = Copy2d {
                        from: source.address,
                        from_pitch: from_row * size,
                        to: target.address,
                        to_pitch: to_row * size,
                        width: width * size,
                        height: *height,
                    };
                    // The kernel of a copy takes 0.6 times as long, if its accesses are wide.
                    let bytes = [source.address as usize, target.address as usize].into_iter().chain([
                        rows.from_pitch,
                        rows.to_pitch,
                        rows.width,
                    ]);
                    let is_wide = is_local && bytes.into_iter().all(|it| it.is_multiple_of(16));
                    if !is_wide && rows.from_pitch.max(rows.to_pitch) < 1 << 31 {
                        self.push(site, Command::Copy2d(rows));
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.lower_elementwise(site, &ElementwiseOp::convert(source, target))
    }
}
