//! Matrix products.

use super::{Action, Builder};
use crate::{
    cuda::{
        error::CudaError,
        executable::Lane,
        gemm::{BIAS_ALIGNMENT, Form, Products, WORKSPACE},
        kernels,
    },
    plan::{Gemm, Inst},
};

impl Builder<'_> {
    /// By cuBLASLt, or by a plain kernel where it lacks the product.
    pub(super) fn gemm(&mut self, at: u32, inst: &Inst, lane: Lane, it: &Gemm) -> Result<(), CudaError> {
        let (a, b, out) = (self.here(&it.a)?, self.here(&it.b)?, self.here(&it.out)?);
        let bias = it.bias.as_ref().map(|it| self.here(it)).transpose()?;
        if a.overlaps(&out) || b.overlaps(&out) {
            return Err(CudaError::unsupported(self.plan, inst, "a matrix product onto its own operand"));
        }
        if out.view.is_empty() {
            return Ok(());
        }
        let why = match Form::of(&a, &b, bias.as_ref(), &out) {
            Ok(form) => {
                let products = match *self.products {
                    Some(it) => it,
                    None => *self.products.insert(Products::new()?),
                };
                let workspace = self.workspace(inst.stream as usize)?;
                let addresses = [a.address, b.address, out.address];
                let mut address = bias.as_ref().map_or(0, |it| it.address);
                if let Some(bytes) = form.vector_bytes().filter(|_| !address.is_multiple_of(BIAS_ALIGNMENT)) {
                    let room = self.room(lane, 0, bytes)?;
                    self.push(at, lane, Action::Copy { to: room, from: address, bytes });
                    address = room;
                }
                if let Some(product) = products.prepare(&form, addresses, address, workspace)? {
                    if !self.forms.contains(&form) {
                        self.firsts.push(self.steps.len());
                        self.forms.push(form);
                    }
                    self.push(at, lane, Action::Product(Box::new(product)));
                    return Ok(());
                }
                "cuBLASLt has no algorithm for it".to_owned()
            }
            Err(why) => why,
        };
        if bias.is_some_and(|it| it.overlaps(&out)) {
            let message = format!("a matrix product onto its bias, which cuBLASLt does not do: {why}");
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        let launch = kernels::product(&a, &b, bias.as_ref(), &out).map_err(refuse)?;
        self.notes
            .push(format!("{}: the matrix product runs on a plain kernel: {why}", self.plan.place(inst)));
        self.launch(at, lane, launch);
        Ok(())
    }

    /// Products on one stream share room; streams run side by side.
    fn workspace(&mut self, stream: usize) -> Result<u64, CudaError> {
        if let Some(address) = self.workspaces[stream] {
            return Ok(address);
        }
        let address = self.memory.scratch(self.device, WORKSPACE)?;
        self.workspaces[stream] = Some(address);
        Ok(address)
    }
}
