//! What a communication asks for by word: backend, algorithm and protocol. A word that no executor can honour is refused.

use std::fmt::Display;

use grammar::{
    attr::{self, Key, Value},
    codes::Code,
    diagnostic::Diagnostic,
    ir::OpStmt,
    words::{self, Algorithm, CommunicationType, MulticastProtocol, P2pProtocol},
};

use super::{
    Backend,
    build::{Builder, Result},
};

const NO_EXECUTOR: &str = "no executor has it for this backend and type";

impl Builder<'_> {
    /// Whose queue a communication is on; `None`: the CUDA backend, which has none.
    pub(super) fn backend(&self, stmt: &OpStmt) -> Result<Option<Backend>> {
        match stmt.get(attr::BACKEND) {
            Some(words::Backend::Cuda) => Ok(None),
            Some(words::Backend::Ucc) => Ok(Some(Backend::Ucc)),
            // Dialects before February 2025 print no backend: NCCL is the default.
            Some(words::Backend::Nccl) | None => Ok(Some(Backend::Nccl)),
            Some(it @ words::Backend::Gloo) => {
                let fits = [words::Backend::Nccl, words::Backend::Ucc, words::Backend::Cuda];
                Err(self.refused(attr::BACKEND, it, "no executor has it", &fits))
            }
        }
    }

    /// The error for a word that reads and prints, and that no executor can honour; `fits` are those that one can.
    pub(super) fn refused<T: Value + Display>(
        &self,
        key: Key<T>,
        word: T,
        why: &str,
        fits: &[T],
    ) -> Box<Diagnostic> {
        let label = match fits {
            [] => format!("expected no `{}=`", key.name()),
            [only] => format!("expected {only}, or no `{}=`", key.name()),
            all => format!("expected one of {}", all.iter().map(T::to_string).collect::<Vec<_>>().join(", ")),
        };
        self.fault(Code::Unsupported, format!("`{}={word}` does not run: {why}", key.name()), label)
    }

    /// The algorithm of a collective, where its backend has it.
    pub(super) fn algorithm(&self, stmt: &OpStmt, backend: Option<Backend>) -> Result<Option<Algorithm>> {
        let Some(algo) = stmt.get(attr::ALGO) else { return Ok(None) };
        let is_allreduce = stmt.get(attr::TYPE) == Some(CommunicationType::Allreduce);
        let fits: &[Algorithm] = match backend {
            Some(Backend::Nccl) if is_allreduce => &[Algorithm::Nccl, Algorithm::OneShot, Algorithm::TwoShot],
            Some(Backend::Nccl) => &[Algorithm::Nccl],
            None if is_allreduce => &[Algorithm::OneShot],
            None | Some(Backend::Ucc) => &[],
        };
        match fits.contains(&algo) {
            true => Ok(Some(algo)),
            false => Err(self.refused(attr::ALGO, algo, NO_EXECUTOR, fits)),
        }
    }

    /// Refuses a `protocol=` that a collective does not have.
    pub(super) fn multicast(&self, stmt: &OpStmt, backend: Option<Backend>) -> Result<()> {
        let Some(protocol) = stmt.get(attr::MULTICAST_PROTOCOL) else { return Ok(()) };
        let copies =
            matches!(stmt.get(attr::TYPE), Some(CommunicationType::Broadcast | CommunicationType::Allgather));
        let fits: &[MulticastProtocol] = match backend {
            None if copies => &[MulticastProtocol::BatchMemcpy],
            None | Some(Backend::Nccl | Backend::Ucc) => &[],
        };
        match fits.contains(&protocol) {
            true => Ok(()),
            false => Err(self.refused(attr::MULTICAST_PROTOCOL, protocol, NO_EXECUTOR, fits)),
        }
    }

    /// Whether a transfer is a put: the statement's own word, the program's option, or get, nvFuser's default.
    pub(super) fn is_put(&self, stmt: &OpStmt) -> bool {
        stmt.get(attr::PROTOCOL).or(self.program.p2p_protocol()) == Some(P2pProtocol::Put)
    }
}
