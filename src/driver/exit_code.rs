//! The exit code of each `JobFailure`. Verdicts and messages between ranks have the exit code that they stand for.

use grammar::{Code, Diagnostic, codes::Check};
use hir_executor::ExecutorError;
use hir_process::exit::Exit;
use hir_sim::SimError;

use crate::{
    run::{RunError, failure::JobFailure},
    tensor_file::IoError,
};

/// Returns the exit code of a program that is rejected with these diagnostics: a program that needs more than a
/// limit allows is not wrong, and one that cannot be planned because it does not end is what the check would find.
pub fn exit_of_rejection(diagnostics: &[Diagnostic]) -> Exit {
    match diagnostics.iter().find(|it| it.is_error()) {
        Some(it) if it.code == Code::OverBudget => Exit::Environment,
        Some(it) if it.code.check() == Some(Check::Deadlock) => Exit::Check,
        Some(_) | None => Exit::Rejected,
    }
}

/// Returns the exit code of a failure.
pub fn exit_code(failure: &JobFailure) -> Exit {
    match failure {
        JobFailure::Rejected(_, diagnostics) => exit_of_rejection(diagnostics),
        JobFailure::Faulty(_, fault) => exit_of_rejection(std::slice::from_ref(fault)),
        JobFailure::BadOption(..) | JobFailure::Usage(_) => Exit::Usage,
        JobFailure::Unsuitable(_) => Exit::Rejected,
        JobFailure::NotCertified(_, fault) => Exit::from_code(hir_certify::exit_code(fault)),
        JobFailure::CannotRead { .. } | JobFailure::CannotWrite { .. } | JobFailure::Environment(_) => {
            Exit::Environment
        }
        JobFailure::WrongResult(_) => Exit::WrongResult,
        JobFailure::Run(fault) => exit_code_of_run(fault),
        #[cfg(feature = "launch")]
        JobFailure::Launch(fault) => fault.exit().into(),
        JobFailure::Executor(fault) => match fault {
            ExecutorError::Environment(_) | ExecutorError::OutOfMemory { .. } => Exit::Environment,
            ExecutorError::Call { .. } => Exit::Device,
            ExecutorError::Unsupported { .. } | ExecutorError::LoopLimit { .. } => Exit::Rejected,
            ExecutorError::Internal(_) => Exit::InternalError,
        },
        JobFailure::OtherRank { exit, .. } => (*exit).into(),
        JobFailure::Internal(_) => Exit::InternalError,
    }
}

fn exit_code_of_run(fault: &RunError) -> Exit {
    match fault {
        RunError::Io(it) | RunError::InvalidFlagValue { error: it, .. } => match it {
            IoError::Flag { .. }
            | IoError::UnsupportedByFormat { .. }
            | IoError::Dtype { .. }
            | IoError::Unsupported(_) => Exit::Usage,
            IoError::Read { .. } | IoError::Write { .. } | IoError::Format { .. } => Exit::Environment,
        },
        RunError::Tensor(_) => Exit::Usage,
        RunError::Dtype(_) => Exit::Rejected,
        RunError::Shard(_) => Exit::InternalError,
        RunError::OverBudget(_) | RunError::Threads(_) => Exit::Environment,
        RunError::Fault(fault) => match fault {
            SimError::Deadlock(_) | SimError::SemaphoreLost { .. } => Exit::Hang,
            SimError::Program { .. } | SimError::Unsupported { .. } => Exit::Rejected,
            SimError::StepNotReady(_) => Exit::Usage,
            SimError::Internal(_) => Exit::InternalError,
        },
    }
}
