//! What a communication asks for by word: backend, algorithm and protocol. A word that no executor can honour is refused.

use std::fmt::Display;

use grammar::{
    attr::{self, AttrValue, Key},
    codes::Code,
    diagnostic::Diagnostic,
    ir::OpStmt,
    words::{self, Algorithm, CommunicationType, MulticastProtocol, P2pProtocol},
};

use super::{
    Backend, CollectiveKind,
    context::{PlanBuilder, Result},
    transport,
};

const NO_EXECUTOR: &str = "no executor has it for this backend and type";

impl PlanBuilder<'_> {
    /// Who moves the data.
    pub(super) fn backend(&self, stmt: &OpStmt) -> Result<Backend> {
        match stmt.get(attr::BACKEND) {
            Some(words::Backend::Cuda) => Ok(Backend::Cuda),
            Some(words::Backend::Ucc) => Ok(Backend::Ucc),
            // Dialects before February 2025 print no backend: NCCL is the default.
            Some(words::Backend::Nccl) | None => Ok(Backend::Nccl),
            Some(it @ words::Backend::Gloo) => {
                let fits = [words::Backend::Nccl, words::Backend::Ucc, words::Backend::Cuda];
                Err(self.unsupported_attr(attr::BACKEND, it, "no executor has it", &fits))
            }
        }
    }

    /// The error for a word that reads and prints, and that no executor can honour; `fits` are those that one can.
    pub(super) fn unsupported_attr<T: AttrValue + Display>(
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
        self.error(Code::Unsupported, format!("`{}={word}` does not run: {why}", key.name()), label)
    }

    /// The transport's algorithm of a collective; `None`: the statement names none, or that of the library.
    ///
    /// # Errors
    /// An algorithm that the backend does not have for this kind.
    pub(super) fn algorithm(
        &self,
        stmt: &OpStmt,
        backend: Backend,
        kind: CollectiveKind,
    ) -> Result<Option<Algorithm>> {
        let Some(algo) = stmt.get(attr::ALGO) else { return Ok(None) };
        let fits = transport::algorithms(backend, kind);
        match fits.contains(&algo) {
            // The library's own way has no name where the statement has no word.
            true => Ok(Some(algo).filter(|it| *it != Algorithm::Nccl)),
            false => Err(self.unsupported_attr(attr::ALGO, algo, NO_EXECUTOR, &fits)),
        }
    }

    /// Refuses a `protocol=` that a collective does not have.
    pub(super) fn check_multicast_protocol(&self, stmt: &OpStmt, backend: Backend) -> Result<()> {
        let Some(protocol) = stmt.get(attr::MULTICAST_PROTOCOL) else { return Ok(()) };
        let copies =
            matches!(stmt.get(attr::TYPE), Some(CommunicationType::Broadcast | CommunicationType::Allgather));
        let fits: &[MulticastProtocol] = match backend {
            Backend::Cuda if copies => &[MulticastProtocol::BatchMemcpy],
            Backend::Cuda | Backend::Nccl | Backend::Ucc => &[],
        };
        match fits.contains(&protocol) {
            true => Ok(()),
            false => Err(self.unsupported_attr(attr::MULTICAST_PROTOCOL, protocol, NO_EXECUTOR, fits)),
        }
    }

    /// Which side of a transfer copies, where no library does: the statement's own word, the program's option, or get,
    /// nvFuser's default.
    pub(super) fn protocol(&self, stmt: &OpStmt, backend: Backend) -> Result<Option<P2pProtocol>> {
        let own = stmt.get(attr::PROTOCOL);
        match (backend, own) {
            (Backend::Cuda, _) => Ok(Some(own.or(self.program.p2p_protocol()).unwrap_or(P2pProtocol::Get))),
            (Backend::Nccl | Backend::Ucc, None) => Ok(None),
            (Backend::Nccl | Backend::Ucc, Some(own)) => {
                Err(self.unsupported_attr(attr::PROTOCOL, own, "only the CUDA backend has protocols", &[]))
            }
        }
    }
}
