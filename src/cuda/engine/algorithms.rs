//! The algorithms that matrix products use. All ranks use the same algorithm for the same product.
//!
//! The first call of an algorithm may load a kernel, which waits for the GPU, so it is made while all streams of all
//! ranks are idle. It writes garbage to the result of the product, which the next run overwrites.

use cudarc::driver::sys;
use hir_executor::{AlgorithmUse, Machine, MatmulAlgorithm};

use super::{Engine, ProcessGroup, Stream};
use crate::{
    Result, discover,
    exchange::gather,
    executable::Command,
    library::Driver,
    matmul::{CublasLtHandle, PreparedMatmul},
};

/// Describes the machine with this GPU.
///
/// # Errors
/// cuBLASLt is missing, or a call of the driver fails.
pub(crate) fn machine(driver: &Driver, device: sys::CUdevice) -> Result<Machine> {
    let version = discover::driver_version(driver)?;
    Ok(Machine {
        gpu: discover::name(driver, device)?,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        cublaslt: CublasLtHandle::library_version()?,
    })
}

impl Engine {
    /// Makes every product use the algorithm that is given for it, and the others the one that cuBLASLt expects to be
    /// the fastest. All ranks have to call this with the same list, while nothing runs, and load inputs afterwards.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer. An algorithm that some rank refuses is not an error: the result names it
    /// on all ranks, and the product keeps its own.
    pub(super) fn use_algorithms(
        &mut self,
        peers: &dyn ProcessGroup,
        given: &[(String, MatmulAlgorithm)],
    ) -> Result<AlgorithmUse> {
        peers.report_phase("setting the algorithms of matrix products");
        self.use_own_algorithms();
        let mut mine: Vec<(String, bool, Option<String>)> = Vec::new();
        for product in 0..self.executable.products.len() {
            let key = self.executable.products[product].key.clone();
            let entry = given.iter().find(|it| it.0 == key);
            let refusal = match entry {
                Some((_, algorithm)) => self.try_algorithm(product, *algorithm)?,
                None => None,
            };
            if let (Some((_, algorithm)), None) = (entry, &refusal) {
                self.set_algorithm(product, *algorithm);
            }
            mine.push((key, entry.is_some(), refusal));
        }
        let (mut seen, mut found) = (Vec::new(), AlgorithmUse::default());
        for (rank, products) in gather(peers, &mine)?.into_iter().enumerate() {
            for (key, is_given, refusal) in products {
                if found.refused.is_none() {
                    found.refused = refusal.map(|it| (key.clone(), format!("rank {rank}: {it}")));
                }
                if !seen.contains(&key) {
                    found.products += 1;
                    found.given += usize::from(is_given);
                    seen.push(key);
                }
            }
        }
        Ok(found)
    }

    /// Makes every product use the algorithm that cuBLASLt expects to be the fastest.
    pub(super) fn use_own_algorithms(&mut self) {
        for product in 0..self.executable.products.len() {
            self.set_algorithm(product, self.executable.products[product].first);
        }
    }

    /// Sets the algorithm of all commands of a product.
    pub(super) fn set_algorithm(&mut self, product: usize, algorithm: MatmulAlgorithm) {
        for at in &self.executable.products[product].commands {
            if let Command::Matmul(it) = &mut self.executable.commands[*at].command {
                it.set_algorithm(algorithm);
            }
        }
    }

    /// Checks an algorithm for a product and calls it once on idle streams. Returns why it cannot be used, if so.
    ///
    /// # Errors
    /// The device fails.
    pub(super) fn try_algorithm(&self, product: usize, algorithm: MatmulAlgorithm) -> Result<Option<String>> {
        let Some((mut call, stream)) = self.product_call(product) else { return Ok(None) };
        call.set_algorithm(algorithm);
        if let Err(fault) = call.check(algorithm).and_then(|()| call.issue(stream)) {
            return Ok(Some(fault.to_string()));
        }
        self.device.synchronize(stream)?;
        Ok(None)
    }

    /// Returns the first call of a product, and its stream.
    pub(super) fn product_call(&self, product: usize) -> Option<(PreparedMatmul, Stream)> {
        let at = *self.executable.products[product].commands.first()?;
        let scheduled = &self.executable.commands[at];
        let Command::Matmul(it) = &scheduled.command else { return None };
        Some((**it, scheduled.stream.stream))
    }
}
