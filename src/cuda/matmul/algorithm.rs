//! Algorithms of cuBLASLt: which ones it offers for a product, and whether one that was stored is still valid.

use std::{ffi::c_int, mem::MaybeUninit};

use cudarc::cublaslt::sys;
use hir_executor::MatmulAlgorithm;

use super::{CublasLtHandle, PreparedMatmul, alignment};
use crate::{ExecutorError, Result};

type Found = sys::cublasLtMatmulHeuristicResult_t;
const NOT_SUPPORTED: u32 = sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as u32;

impl CublasLtHandle {
    /// Returns at most `wanted` algorithms for a product with the bytes of workspace that each needs, in the order in which cuBLASLt expects them
    /// to be fast; none if it does not support the product.
    pub(super) fn find_algorithms(
        &self,
        operation: sys::cublasLtMatmulDesc_t,
        layouts: [sys::cublasLtMatrixLayout_t; 4],
        addresses: [u64; 4],
        wanted: usize,
    ) -> Result<Vec<(MatmulAlgorithm, usize)>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let attributes = [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, address) in attributes.into_iter().zip(addresses) {
            self.prefer(attribute, &alignment(address))?;
        }
        let mut found = vec![MaybeUninit::<Found>::zeroed(); wanted];
        let mut count: c_int = 0;
        // SAFETY: all descriptors are live; `found` holds as many results as are requested.
        let status = unsafe {
            (self.library.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                operation,
                layouts[0],
                layouts[1],
                layouts[2],
                layouts[3],
                self.preference,
                wanted as c_int,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        if status == NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        self.library.check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let algorithm = |it: &MaybeUninit<Found>| {
            // SAFETY: the library has written this result. Its algorithm is plain words. Its status is read as a
            // number, because a newer library may have others than the enum.
            unsafe {
                let status = (&raw const (*it.as_ptr()).state).cast::<u32>().read();
                let bytes = (&raw const (*it.as_ptr()).workspaceSize).read();
                (status == 0).then(|| (MatmulAlgorithm((&raw const (*it.as_ptr()).algo).read().data), bytes))
            }
        };
        Ok(found.iter().take(count.max(0) as usize).filter_map(algorithm).collect())
    }
}

impl PreparedMatmul {
    /// Returns the algorithms to choose from, at most `wanted`. The first one is that of `prepare`.
    pub fn candidates(&self, wanted: usize) -> Result<Vec<MatmulAlgorithm>> {
        let found = self.cublaslt.find_algorithms(self.operation, self.layouts, self.addresses, wanted)?;
        let mut candidates = vec![self.first];
        for (it, _) in found {
            if !candidates.contains(&it) && candidates.len() < wanted {
                candidates.push(it);
            }
        }
        Ok(candidates)
    }

    /// Checks that cuBLASLt accepts an algorithm for this product, with the workspace that it has.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, algorithm: MatmulAlgorithm) -> Result<()> {
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let mut result = MaybeUninit::<Found>::zeroed();
        let library = self.cublaslt.library;
        // SAFETY: all descriptors are live, and the pointers are to an algorithm and a result. The library validates
        // the algorithm, which may come from a file.
        let (status, bytes) = unsafe {
            let status = (library.cublasLtMatmulAlgoCheck)(
                self.cublaslt.handle,
                self.operation,
                self.layouts[0],
                self.layouts[1],
                self.layouts[2],
                self.layouts[3],
                &raw const algorithm,
                result.as_mut_ptr(),
            );
            (status, (&raw const (*result.as_ptr()).workspaceSize).read())
        };
        library.check("cublasLtMatmulAlgoCheck", status)?;
        let most = self.workspace_bytes;
        if bytes > most {
            let text = format!("it needs a workspace of {bytes} bytes, more than {most}");
            return Err(ExecutorError::failed_call("cublasLtMatmulAlgoCheck", NOT_SUPPORTED, &text));
        }
        Ok(())
    }

    /// Returns the algorithm that `prepare` has chosen.
    pub fn first_algorithm(&self) -> MatmulAlgorithm {
        self.first
    }

    /// Makes later calls use an algorithm that `check` has accepted.
    pub fn set_algorithm(&mut self, algorithm: MatmulAlgorithm) {
        self.algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
    }
}
