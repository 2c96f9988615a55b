//! Matrix products by cuBLASLt. Descriptors and the algorithm are chosen once for each instruction.
//!
//! cuBLASLt matrices are column-major. A row-major `out[m, n] = a[m, k] · b[k, n]` is `outᵀ = bᵀ · aᵀ` in
//! column-major order on the same bytes, so the operands are swapped. Sums are accumulated in binary32
//! (binary64 for binary64), the bias and the `relu` of an epilogue are applied before the only rounding, and
//! partial sums of a split product are never rounded to the result's type.

use std::{ffi::c_void, mem::size_of};

use cudarc::cublaslt::sys;
use grammar::DType;
use hir_executor::MatmulAlgorithm;

use super::{
    Result,
    device::Stream,
    library::{self, CublasLt},
};

mod algorithm;
mod desc;
mod key;

pub(super) use desc::MatmulDesc;
use desc::{Bias, Matrix};

/// Alignment of an epilogue's bias in bytes. The algorithm heuristic takes the alignment of the operands into
/// account, but not that of the bias.
pub(super) const BIAS_ALIGNMENT: u64 = 16;
/// Bytes of workspace for an algorithm, as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

/// The cuBLASLt handle of this process.
#[derive(Clone, Copy)]
pub(super) struct CublasLtHandle {
    library: &'static CublasLt,
    handle: sys::cublasLtHandle_t,
    preference: sys::cublasLtMatmulPreference_t,
}

/// A matrix product that is ready to be issued.
#[derive(Clone, Copy)]
pub(super) struct PreparedMatmul {
    cublaslt: CublasLtHandle,
    operation: sys::cublasLtMatmulDesc_t,
    /// In cuBLASLt's order: the plan's right operand comes first.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    addresses: [u64; 4],
    /// The address of a bias that is a vector.
    bias: Option<u64>,
    /// The algorithm that cuBLASLt expects to be the fastest.
    first: MatmulAlgorithm,
    algorithm: sys::cublasLtMatmulAlgo_t,
    is_double: bool,
    accumulates: bool,
    workspace: u64,
    workspace_bytes: usize,
}

impl CublasLtHandle {
    /// Opens cuBLASLt and creates a handle.
    pub fn new() -> Result<Self> {
        let library = library::cublaslt()?;
        let mut handle = std::ptr::null_mut();
        let mut preference = std::ptr::null_mut();
        // SAFETY: the pointers are to live handles and a context is current; neither object is destroyed.
        unsafe {
            library.check("cublasLtCreate", (library.cublasLtCreate)(&raw mut handle))?;
            let status = (library.cublasLtMatmulPreferenceCreate)(&raw mut preference);
            library.check("cublasLtMatmulPreferenceCreate", status)?;
        }
        let it = Self { library, handle, preference };
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        it.prefer(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(WORKSPACE as u64))?;
        let in_computed_type = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        it.prefer(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_computed_type)?;
        Ok(it)
    }

    /// Returns the version of cuBLASLt.
    pub fn library_version() -> Result<String> {
        // SAFETY: no arguments.
        let version = unsafe { (library::cublaslt()?.cublasLtGetVersion)() };
        Ok(library::version_text(version))
    }

    /// Returns the version and the path of cuBLASLt.
    pub fn describe_library(&self) -> String {
        let version = Self::library_version().unwrap_or_default();
        format!("cuBLASLt {version} ({})", self.library.path)
    }

    fn prefer<T: Copy>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let pointer: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: the preference is live; callers pass a value of the attribute's type, and its size is
        // passed.
        let status = unsafe {
            (self.library.cublasLtMatmulPreferenceSetAttribute)(
                self.preference,
                attribute,
                pointer,
                size_of::<T>(),
            )
        };
        self.library.check("cublasLtMatmulPreferenceSetAttribute", status)
    }

    /// Prepares a product; returns `None` if cuBLASLt has no algorithm for it. `workspace` returns the address and the size of a workspace for
    /// an algorithm that needs so many bytes.
    pub fn prepare(
        &self,
        desc: &MatmulDesc,
        addresses: [u64; 3],
        bias: u64,
        workspace: impl FnOnce(usize) -> Result<(u64, usize)>,
    ) -> Result<Option<PreparedMatmul>> {
        use sys::cublasComputeType_t as Compute;
        use sys::cudaDataType_t as Type;
        let kind = |dtype: DType| match dtype {
            DType::BFloat => Type::CUDA_R_16BF,
            DType::Half => Type::CUDA_R_16F,
            DType::Double => Type::CUDA_R_64F,
            DType::E4M3 => Type::CUDA_R_8F_E4M3,
            _ => Type::CUDA_R_32F,
        };
        let double = desc.operand_dtype == DType::Double;
        let (compute, scale) = if double {
            (Compute::CUBLAS_COMPUTE_64F, Type::CUDA_R_64F)
        } else {
            (Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F)
        };
        let mut operation = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; the descriptor is never destroyed.
        let status = unsafe { (self.library.cublasLtMatmulDescCreate)(&raw mut operation, compute, scale) };
        self.library.check("cublasLtMatmulDescCreate", status)?;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // CUBLAS_OP_T is 1, CUBLAS_OP_N is 0.
        self.set_desc(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(desc.b.is_transposed))?;
        self.set_desc(operation, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(desc.a.is_transposed))?;
        use sys::cublasLtEpilogue_t as Epilogue;
        let epilogue = match (desc.bias == Bias::Vector, desc.has_relu) {
            (false, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => Epilogue::CUBLASLT_EPILOGUE_RELU,
            (true, false) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        self.set_desc(operation, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        let bias_vector = (desc.bias == Bias::Vector).then_some(bias);
        if let Some(bias) = bias_vector {
            self.set_desc(operation, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let added = match desc.bias {
            Bias::Matrix(it) => it,
            Bias::None | Bias::Vector => desc.out,
        };
        let (operand, result) = (kind(desc.operand_dtype), kind(desc.result_dtype));
        let batch = desc.out.batch;
        let layouts = [
            self.layout(desc.b, operand, batch)?,
            self.layout(desc.a, operand, batch)?,
            self.layout(added, result, batch)?,
            self.layout(desc.out, result, batch)?,
        ];
        let [a, b, out] = addresses;
        let accumulates = matches!(desc.bias, Bias::Matrix(_));
        let addresses = [b, a, if accumulates { bias } else { out }, out];
        let found = self.find_algorithms(operation, layouts, addresses, 1)?;
        let Some((first, needed)) = found.first().copied() else { return Ok(None) };
        let (workspace, workspace_bytes) = workspace(needed)?;
        Ok(Some(PreparedMatmul {
            cublaslt: *self,
            operation,
            layouts,
            addresses,
            bias: bias_vector,
            first,
            algorithm: sys::cublasLtMatmulAlgo_t { data: first.0 },
            is_double: double,
            accumulates,
            workspace,
            workspace_bytes,
        }))
    }

    fn set_desc<T: Copy>(
        &self,
        operation: sys::cublasLtMatmulDesc_t,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<()> {
        let pointer: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: the descriptor is live; callers pass a value of the attribute's type, and its size is
        // passed.
        let status = unsafe {
            (self.library.cublasLtMatmulDescSetAttribute)(operation, attribute, pointer, size_of::<T>())
        };
        self.library.check("cublasLtMatmulDescSetAttribute", status)
    }

    fn layout(
        &self,
        matrix: Matrix,
        kind: sys::cudaDataType_t,
        batch: usize,
    ) -> Result<sys::cublasLtMatrixLayout_t> {
        let mut layout = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; the layout is never destroyed.
        let status = unsafe {
            (self.library.cublasLtMatrixLayoutCreate)(
                &raw mut layout,
                kind,
                matrix.rows,
                matrix.columns,
                matrix.leading_dimension,
            )
        };
        self.library.check("cublasLtMatrixLayoutCreate", status)?;
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        if batch > 1 {
            let stride = if matrix.batch == 1 { 0 } else { matrix.batch_stride };
            self.extend(layout, Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(batch as i32))?;
            self.extend(layout, Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride)?;
        }
        Ok(layout)
    }

    fn extend<T: Copy>(
        &self,
        layout: sys::cublasLtMatrixLayout_t,
        attribute: sys::cublasLtMatrixLayoutAttribute_t,
        value: &T,
    ) -> Result<()> {
        let pointer: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: the layout is live; callers pass a value of the attribute's type, and its size is passed.
        let status = unsafe {
            (self.library.cublasLtMatrixLayoutSetAttribute)(layout, attribute, pointer, size_of::<T>())
        };
        self.library.check("cublasLtMatrixLayoutSetAttribute", status)
    }
}

/// Returns the largest power of two, up to 256, that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

impl MatmulDesc {
    /// Returns the text that identifies the product with these addresses of a, b, the result and the bias.
    pub fn key(&self, addresses: [u64; 3], bias: u64) -> String {
        let [a, b, out] = addresses;
        key::text(self, [a, b, out, bias])
    }
}

impl PreparedMatmul {
    /// Returns the addresses of the matrices, of the bias, and of the workspace.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + use<> {
        self.addresses.into_iter().chain(self.bias).chain([self.workspace])
    }

    /// Replaces an address, by its position in `addresses`. The new one has to be as well aligned.
    pub fn set_address(&mut self, position: usize, address: u64) -> Result<()> {
        let has_bias = self.bias.is_some() && position == self.addresses.len();
        match self.addresses.get_mut(position) {
            Some(it) => *it = address,
            None if !has_bias => self.workspace = address,
            None => {
                self.bias = Some(address);
                let which = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                self.cublaslt.set_desc(self.operation, which, &address)?;
            }
        }
        Ok(())
    }

    /// Issues the product on a stream.
    pub fn issue(&self, stream: Stream) -> Result<()> {
        let (one, zero) = (1f32, 0f32);
        let (one_double, zero_double) = (1f64, 0f64);
        let scale = |single: &f32, double: &f64| -> *const c_void {
            if self.is_double { std::ptr::from_ref(double).cast() } else { std::ptr::from_ref(single).cast() }
        };
        let beta = if self.accumulates { scale(&one, &one_double) } else { scale(&zero, &zero_double) };
        let [b, a, added, out] = self.addresses;
        let library = self.cublaslt.library;
        // SAFETY: descriptors and memory outlive the call. The descriptors cover the views, which lie inside
        // their buffers. The scales are read before the call returns.
        let status = unsafe {
            (library.cublasLtMatmul)(
                self.cublaslt.handle,
                self.operation,
                scale(&one, &one_double),
                b as *const c_void,
                self.layouts[0],
                a as *const c_void,
                self.layouts[1],
                beta,
                added as *const c_void,
                self.layouts[2],
                out as *mut c_void,
                self.layouts[3],
                &raw const self.algorithm,
                self.workspace as *mut c_void,
                self.workspace_bytes,
                stream.0.cast(),
            )
        };
        library.check("cublasLtMatmul", status)
    }
}
