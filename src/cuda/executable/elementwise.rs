//! Elementwise instructions: the step that each is, and those that stay alone, among them copies.

use super::{Action, Builder, Rows};
use crate::{
    cuda::{
        error::CudaError,
        executable::Lane,
        kernels::{self, Argument, Function, Link, Located},
    },
    plan::{Arg, Inst, InstKind, Number, Place, Plan, View},
};

/// The step that an instruction of a plan is; `None` where it is none. `locate` finds views of this rank's memory.
///
/// # Errors
/// Those of `locate`.
pub(super) fn link<'a>(
    plan: &Plan,
    inst: &'a Inst,
    locate: &impl Fn(&'a View) -> Result<Located<'a>, CudaError>,
) -> Result<Option<Link<'a>>, CudaError> {
    let view = |view| locate(view).map(Argument::View);
    Ok(Some(match &inst.kind {
        InstKind::Map { op, args, out } => {
            let arg = |arg: &'a Arg| match arg {
                Arg::View(it) => view(it),
                Arg::Number(number) => Ok(Argument::Number(*number)),
            };
            Link::new(Function::Op(*op), args.iter().map(arg).collect::<Result<_, _>>()?, locate(out)?)
        }
        InstKind::Fill { to, value } => {
            Link::new(Function::Move, vec![Argument::Number(*value)], locate(to)?)
        }
        InstKind::Iota { to, start, step } => {
            let numbers = [*start, *step].map(|it| Argument::Number(Number::Int(it)));
            Link::new(Function::Iota, numbers.to_vec(), locate(to)?)
        }
        InstKind::Copy { from, to } if (from.rank, to.rank) == (plan.rank, plan.rank) => {
            Link::new(Function::Move, vec![view(&from.view)?], locate(&to.view)?)
        }
        // `Builder::instruction` has the commands of all others.
        _ => return Ok(None),
    }))
}

impl Builder<'_> {
    /// A step alone; through memory of its own where the result would overwrite operands that are still to be read.
    pub(super) fn map(&mut self, at: u32, inst: &Inst, lane: Lane, link: &Link) -> Result<(), CudaError> {
        let Link { out, .. } = link;
        let dense = View::contiguous(0, out.view.shape.clone());
        let links = match link.views().any(|it| it.overlaps(out)) {
            false => vec![link.clone()],
            true => {
                let address = self.room(lane, 0, dense.len() * out.dtype.size())?;
                let between = Located { address, dtype: out.dtype, view: &dense };
                let back = Link::new(Function::Move, vec![Argument::View(between)], *out);
                vec![Link { out: between, ..link.clone() }, back]
            }
        };
        for link in links {
            let launch = kernels::chain(&[link]);
            let launch = launch.map_err(|it| CudaError::unsupported(self.plan, inst, it))?;
            self.launch(at, lane, launch);
        }
        Ok(())
    }

    /// Equal types move by the copy engine where their elements lie in rows, everything else by a kernel.
    pub(super) fn copy(
        &mut self,
        at: u32,
        inst: &Inst,
        lane: Lane,
        from: &Place,
        to: &Place,
    ) -> Result<(), CudaError> {
        let (source, target) = (self.located(from.rank, &from.view)?, self.located(to.rank, &to.view)?);
        if from.view.is_empty() || (source.dtype == target.dtype && source.coincides(&target)) {
            return Ok(());
        }
        if from.view.shape != to.view.shape {
            let message = format!("a copy from shape {:?} to {:?}", from.view.shape, to.view.shape);
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        if source.dtype == target.dtype && !source.overlaps(&target) {
            let size = source.dtype.size();
            let merged = kernels::merged(&to.view.shape, &[&to.view.strides, &from.view.strides]);
            let [into, out_of] = merged.strides.as_slice() else {
                return Err(CudaError::Internal("a copy of two views".to_owned()));
            };
            match (merged.extents.as_slice(), into.as_slice(), out_of.as_slice()) {
                ([_], [1], [1]) | ([1], _, _) => {
                    let bytes = merged.extents[0] * size;
                    let action = Action::Copy { to: target.address, from: source.address, bytes };
                    self.push(at, lane, action);
                    return Ok(());
                }
                // A stride of 0 repeats a row, which pitches cannot say.
                ([height, width], [to_row, 1], [from_row, 1]) if to_row >= width && from_row >= width => {
                    let rows = Rows {
                        from: source.address,
                        from_pitch: from_row * size,
                        to: target.address,
                        to_pitch: to_row * size,
                        width: width * size,
                        height: *height,
                    };
                    if rows.from_pitch.max(rows.to_pitch) < 1 << 31 {
                        self.push(at, lane, Action::Rows(rows));
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.map(at, inst, lane, &Link::new(Function::Move, vec![Argument::View(source)], target))
    }
}
