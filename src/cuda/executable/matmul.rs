//! Matrix products.

use super::{Command, ExecutableBuilder};
use crate::{
    cuda::{
        error::CudaError,
        executable::LogicalStream,
        kernels,
        matmul::{BIAS_ALIGNMENT, CublasLtHandle, MatmulDesc, WORKSPACE},
    },
    plan::{Gemm, Inst},
};

impl ExecutableBuilder<'_> {
    /// By cuBLASLt, or by a plain kernel where it lacks the product.
    pub(super) fn lower_matmul(
        &mut self,
        at: u32,
        inst: &Inst,
        lane: LogicalStream,
        it: &Gemm,
    ) -> Result<(), CudaError> {
        let (a, b, out) = (self.local_view(&it.a)?, self.local_view(&it.b)?, self.local_view(&it.out)?);
        let bias = it.bias.as_ref().map(|it| self.local_view(it)).transpose()?;
        if a.may_partially_overlap(&out) || b.may_partially_overlap(&out) {
            return Err(CudaError::unsupported(self.plan, inst, "a matrix product onto its own operand"));
        }
        if out.view.is_empty() {
            return Ok(());
        }
        let why = match MatmulDesc::of(&a, &b, bias.as_ref(), &out) {
            Ok(form) => {
                let products = match *self.cublaslt {
                    Some(it) => it,
                    None => *self.cublaslt.insert(CublasLtHandle::new()?),
                };
                let workspace = self.workspace(inst.stream as usize)?;
                let addresses = [a.address, b.address, out.address];
                let mut address = bias.as_ref().map_or(0, |it| it.address);
                if let Some(bytes) =
                    form.bias_vector_bytes().filter(|_| !address.is_multiple_of(BIAS_ALIGNMENT))
                {
                    let room = self.scratch_buffer(lane, 0, bytes)?;
                    self.push(at, lane, Command::Copy { to: room, from: address, bytes });
                    address = room;
                }
                if let Some(product) = products.prepare(&form, addresses, address, workspace)? {
                    if !self.matmul_descs.contains(&form) {
                        self.first_calls.push(self.commands.len());
                        self.matmul_descs.push(form);
                    }
                    self.push(at, lane, Command::Matmul(Box::new(product)));
                    return Ok(());
                }
                "cuBLASLt has no algorithm for it".to_owned()
            }
            Err(why) => why,
        };
        if bias.is_some_and(|it| it.may_partially_overlap(&out)) {
            let message = format!("a matrix product onto its bias, which cuBLASLt does not do: {why}");
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        let launch = kernels::matmul_launch(&a, &b, bias.as_ref(), &out).map_err(refuse)?;
        self.notes
            .push(format!("{}: the matrix product runs on a plain kernel: {why}", self.plan.location(inst)));
        self.push_launch(at, lane, launch);
        Ok(())
    }

    /// Products on one stream share room; streams run side by side.
    fn workspace(&mut self, stream: usize) -> Result<u64, CudaError> {
        if let Some(address) = self.workspaces[stream] {
            return Ok(address);
        }
        let address = self.memory.allocate_scratch(self.device, WORKSPACE)?;
        self.workspaces[stream] = Some(address);
        Ok(address)
    }
}
