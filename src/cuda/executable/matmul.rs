//! Lowers matrix products.

use rustc_hash::FxHashMap;

use super::{Command, ExecutableBuilder, Site, command::MatmulProduct};
use crate::{
    ExecutorError, Result,
    epilogue::added_to,
    kernels::{self, DeviceView, ElementwiseOp},
    matmul::{BIAS_ALIGNMENT, CublasLtHandle, MatmulDesc, WORKSPACE},
    unsupported::Unsupported,
};
use hir_executor::MatmulAlgorithm;
use hir_plan::{Gemm, InstKind, View};

/// Returns the layout of a copy of an operand without gaps, which `MatmulDesc::is_operand` accepts. If the rows are contiguous
/// in the operand, instead of the columns, they stay contiguous.
fn compact_view(operand: &DeviceView, is_right: bool) -> View {
    let mut it = View::contiguous(0, operand.view.shape.clone());
    if let [.., row, column] = operand.view.strides[..]
        && let [.., rows, _] = operand.view.shape[..]
        && if operand.dtype.size() > 1 { row == 1 && column != 1 } else { is_right }
    {
        let dims = it.strides.len();
        (it.strides[dims - 2], it.strides[dims - 1]) = (1, rows);
    }
    it
}

/// The distinct matrix products of a plan, and their numbers by key.
#[derive(Default)]
pub(super) struct Products {
    pub list: Vec<MatmulProduct>,
    numbers: FxHashMap<String, usize>,
}

impl Products {
    /// Adds a command to its product.
    fn add(&mut self, key: String, first: MatmulAlgorithm, command: usize) {
        let number = *self.numbers.entry(key).or_insert_with_key(|key| {
            self.list.push(MatmulProduct { key: key.clone(), first, commands: Vec::new() });
            self.list.len() - 1
        });
        self.list[number].commands.push(command);
    }
}

impl ExecutableBuilder<'_> {
    /// Lowers a matrix product whose epilogue computes the instruction `follower`, a `relu` or a sum. Returns false, without adding a command,
    /// if cuBLASLt does not support this product.
    pub(super) fn lower_with_epilogue(&mut self, site: Site<'_>, follower: u32) -> Result<bool> {
        let plan = self.plan;
        let (InstKind::Gemm(gemm), InstKind::Map { args, out, .. }) =
            (&site.inst.kind, &plan.code[follower as usize].kind)
        else {
            return Err(ExecutorError::Internal("a product and its epilogue".to_owned()));
        };
        match added_to(gemm, args) {
            Some(bias) => {
                let sum = Gemm { bias: Some(bias.clone()), out: View::clone(out), ..Gemm::clone(gemm) };
                self.lower_matmul(site, &sum, None)
            }
            None => self.lower_matmul(site, gemm, Some(out)),
        }
    }

    /// Lowers a matrix product to cuBLASLt, or to a generic kernel if cuBLASLt does not support it. An operand whose
    /// strides do not form matrices is copied before the product, and such a result after it. With the generic kernel,
    /// a transformer block of 8,192 rows took 171 ms instead of 12 (`benches/gpu/NOTES.md`).
    ///
    /// With `relu`, the epilogue stores the `relu` of the product in that view, and the product nowhere. Returns false,
    /// without adding a command, if cuBLASLt does not support this.
    pub(super) fn lower_matmul(&mut self, site: Site<'_>, it: &Gemm, relu: Option<&View>) -> Result<bool> {
        let (a, b) = (self.local_view(&it.a)?, self.local_view(&it.b)?);
        let out = self.local_view(relu.unwrap_or(&it.out))?;
        let bias = it.bias.as_ref().map(|it| self.local_view(it)).transpose()?;
        // A product reads an operand, or a bias that is repeated, again after it has written elements of the result.
        if a.may_alias(&out) || b.may_alias(&out) {
            let message = "the result of a matrix product overlaps an operand";
            return Err(self.unsupported(site, message));
        }
        if bias.is_some_and(|it| it.may_partially_overlap(&out)) {
            let message = "the result of a matrix product overlaps its bias";
            return Err(self.unsupported(site, message));
        }
        if out.view.is_empty() {
            return Ok(true);
        }
        // The layouts of the copies.
        let mut copies: [Option<View>; 3] = [None, None, None];
        if MatmulDesc::check_types(a.dtype, b.dtype, out.dtype).is_ok() {
            copies = [
                (!MatmulDesc::is_operand(&a, false)).then(|| compact_view(&a, false)),
                (!MatmulDesc::is_operand(&b, true)).then(|| compact_view(&b, true)),
                (!MatmulDesc::is_result(&out)).then(|| View::contiguous(0, out.view.shape.clone())),
            ];
        }
        // What cuBLASLt gets.
        let mut given = [a, b, out];
        for ((number, it), copy) in given.iter_mut().enumerate().zip(&copies) {
            if let Some(view) = copy {
                let address = self.scratch_buffer(site, number + 1, view.len() * it.dtype.size())?;
                *it = DeviceView { address, dtype: it.dtype, view };
            }
        }
        let why = match MatmulDesc::of(&given[0], &given[1], bias.as_ref(), &given[2]) {
            Ok(mut desc) => {
                desc.has_relu = relu.is_some();
                let cublaslt = match *self.cublaslt {
                    Some(it) => it,
                    None => *self.cublaslt.insert(CublasLtHandle::new()?),
                };
                let addresses = given.map(|it| it.address);
                let mut address = bias.as_ref().map_or(0, |it| it.address);
                let unaligned = desc.bias_vector_bytes().filter(|_| !address.is_multiple_of(BIAS_ALIGNMENT));
                let bias_copy = match unaligned {
                    Some(bytes) => {
                        let to = self.scratch_buffer(site, 0, bytes)?;
                        let from = std::mem::replace(&mut address, to);
                        Some(Command::Copy { to, from, bytes })
                    }
                    None => None,
                };
                let on = site.inst.stream as usize;
                let product =
                    cublaslt.prepare(&desc, addresses, address, |bytes| self.workspace(on, bytes))?;
                if let Some(product) = product {
                    if let Some(copy) = bias_copy {
                        self.push(site, copy);
                    }
                    let convert = |from, to| ElementwiseOp::convert(from, to);
                    if copies[0].is_some() {
                        self.lower_elementwise(site, &convert(a, given[0]))?;
                    }
                    if copies[1].is_some() {
                        self.lower_elementwise(site, &convert(b, given[1]))?;
                    }
                    if !self.matmul_descs.contains(&desc) {
                        self.first_calls.push(self.commands.len());
                        self.matmul_descs.push(desc);
                    }
                    let key = desc.key(addresses, address);
                    self.products.add(key, product.first_algorithm(), self.commands.len());
                    self.push(site, Command::Matmul(Box::new(product)));
                    let sizes = given.iter().zip(&copies).filter(|it| it.1.is_some());
                    let copied: usize = sizes.map(|(it, _)| it.view.len() * it.dtype.size()).sum();
                    if copied > 0 {
                        self.note(
                            site,
                            format_args!("the matrix product runs on copies of {copied} bytes in all: strides do not form matrices"),
                        );
                    }
                    if copies[2].is_some() {
                        self.lower_elementwise(site, &convert(given[2], out))?;
                    }
                    return Ok(true);
                }
                "cuBLASLt has no algorithm for it".into()
            }
            Err(why) => why,
        };
        if relu.is_some() {
            return Ok(false);
        }
        let refuse = |reason: Unsupported| self.unsupported(site, reason);
        let launch = kernels::matmul_launch(&a, &b, bias.as_ref(), &out).map_err(refuse)?;
        self.note(site, format_args!("the matrix product runs on a generic kernel: {why}"));
        self.push_launch(site, launch);
        Ok(true)
    }

    /// Returns a workspace of a stream, of at least so many bytes, with its size. The products on one stream share it; streams run concurrently.
    /// Where other algorithms may be chosen later, it suffices for all.
    fn workspace(&mut self, stream: usize, bytes: usize) -> Result<(u64, usize)> {
        let bytes = if self.memory.is_callers() { bytes } else { WORKSPACE };
        let known = &mut self.workspaces[stream];
        if known.1 < bytes {
            *known = (self.memory.allocate_temporary(self.device, bytes)?, bytes);
        }
        Ok(*known)
    }
}
