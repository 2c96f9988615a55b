//! Reads the attributes that select how a communication is executed: backend, algorithm and protocol. A value
//! that no executor supports is an error.

use std::fmt::Display;

use grammar::{
    Algorithm, Code, CommunicationType, Diagnostic, OpStmt, P2pProtocol, algorithm_table,
    attr::{self, AttrValue, Key},
    words::{self, MulticastProtocol},
};

use super::{
    Backend, CollectiveKind,
    context::{PlanBuilder, Result},
    transport,
};

const NO_EXECUTOR: &str = "hir does not implement it for this backend and type";

impl PlanBuilder<'_> {
    /// Returns the backend of a communication.
    pub(super) fn backend(&self, stmt: &OpStmt) -> Result<Backend> {
        match stmt.get(attr::BACKEND) {
            Some(words::Backend::Cuda) => Ok(Backend::Cuda),
            Some(words::Backend::Ucc) => Ok(Backend::Ucc),
            // Dialects before February 2025 do not print the backend. Their default is NCCL.
            Some(words::Backend::Nccl) | None => Ok(Backend::Nccl),
            Some(it @ (words::Backend::Gloo | words::Backend::Nixl)) => {
                let fits = [words::Backend::Nccl, words::Backend::Ucc, words::Backend::Cuda];
                Err(self.unsupported_attr(attr::BACKEND, it, "hir does not implement it", &fits))
            }
        }
    }

    /// Returns the error for an attribute value that the language accepts but no executor supports. `fits`
    /// lists the supported values.
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
        self.error(Code::Unsupported, format!("hir cannot run `{}={word}`: {why}", key.name()), label)
    }

    /// Returns the transport's algorithm of a collective, or `None` if the statement has no `algo=` or
    /// selects the library's own algorithm.
    ///
    /// # Errors
    /// The backend does not support the algorithm for this kind of collective.
    pub(super) fn algorithm(
        &self,
        stmt: &OpStmt,
        backend: Backend,
        kind: CollectiveKind,
    ) -> Result<Option<Algorithm>> {
        let Some(algo) = stmt.get(attr::ALGO) else { return Ok(None) };
        let fits = transport::algorithms(backend, kind);
        if !fits.contains(&algo) {
            return Err(self.unsupported_attr(attr::ALGO, algo, NO_EXECUTOR, &fits));
        }
        // `algo=nccl` means the same as no `algo=`.
        Ok(Some(algo).filter(|it| *it != Algorithm::Nccl))
    }

    /// Returns whether the kernel of a collective shall compute what follows the collective.
    ///
    /// # Errors
    /// The algorithm has no such kernel.
    pub(super) fn fuses_epilogue(
        &self,
        stmt: &OpStmt,
        algo: Option<Algorithm>,
        kind: CollectiveKind,
    ) -> Result<bool> {
        let wanted = stmt.get(attr::EPILOGUE) == Some(true);
        if wanted && !algo.is_some_and(|it| algorithm_table::has_epilogue(it, kind.of)) {
            let message = "hir cannot run `epilogue=true` here: no kernel computes whole rows of the result";
            let it = self.error(Code::Unsupported, message.to_owned(), "the algorithm has no such kernel");
            let help = "select `algo=one-shot-ll` or `algo=one-shot` for an Allreduce or ReduceScatter, or omit `epilogue=`";
            return Err(Box::new(it.help(help)));
        }
        Ok(wanted)
    }

    /// Reports an error for a `protocol=` that the collective does not support.
    pub(super) fn check_multicast_protocol(&self, stmt: &OpStmt, backend: Backend) -> Result<()> {
        let Some(protocol) = stmt.get(attr::MULTICAST_PROTOCOL) else { return Ok(()) };
        let copies =
            matches!(stmt.get(attr::TYPE), Some(CommunicationType::Broadcast | CommunicationType::Allgather));
        let fits: &[MulticastProtocol] = match backend {
            Backend::Cuda if copies => &[MulticastProtocol::BatchMemcpy],
            Backend::Cuda | Backend::Nccl | Backend::Ucc => &[],
        };
        if fits.contains(&protocol) {
            Ok(())
        } else {
            Err(self.unsupported_attr(attr::MULTICAST_PROTOCOL, protocol, NO_EXECUTOR, fits))
        }
    }

    /// Returns which side of a transfer copies, for backends without a library: the statement's own
    /// `protocol=`, else the program's option, else get (nvFuser's default).
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
