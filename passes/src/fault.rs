//! What a pipeline stops at, and who is to blame.

use std::fmt::{self, Display};

use grammar::diagnostic::Diagnostic;

/// A pipeline that did not come to its end.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The pass; `None`: the program that the pipeline was given.
    pub pass: Option<&'static str>,
    /// What is wrong.
    pub fault: Fault,
}

/// What a pipeline stops at.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The pass cannot rewrite this program.
    Rejected(Diagnostic),
    /// The pass, or a check of what it left, panicked with this message.
    Panicked(String),
    /// The verifier rejects what the pass left.
    Broken(Vec<Diagnostic>),
    /// The pass said that it changed nothing, and the text differs.
    Undeclared,
    /// The printed program does not read back as itself: the first line that differs, as printed and as read back.
    Lossy(String, String),
    /// The program before the first pass means nothing that passes could keep.
    Unjudged(Vec<Diagnostic>),
    /// The program does not mean what it meant.
    Miscompiled(Diagnostic),
}

impl Fault {
    /// Whether the pass or the printer is to blame, and not the program.
    pub fn is_bug(&self) -> bool {
        match self {
            Self::Rejected(_) | Self::Unjudged(_) => false,
            Self::Panicked(_)
            | Self::Broken(_)
            | Self::Undeclared
            | Self::Lossy(..)
            | Self::Miscompiled(_) => true,
        }
    }

    /// What is wrong where, in the text that the program was read from.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::Rejected(it) | Self::Miscompiled(it) => std::slice::from_ref(it),
            Self::Broken(all) | Self::Unjudged(all) => all,
            Self::Panicked(_) | Self::Undeclared | Self::Lossy(..) => &[],
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pass, &self.fault) {
            (Some(pass), Fault::Unjudged(_)) => {
                return write!(
                    f,
                    "the program before pass `{pass}` cannot run or goes wrong already: no pass can be judged by it"
                );
            }
            (Some(pass), _) => write!(f, "pass `{pass}` ")?,
            (None, _) => f.write_str("the program as read ")?,
        }
        match &self.fault {
            Fault::Rejected(_) => f.write_str("cannot rewrite this program"),
            Fault::Panicked(message) => write!(f, "panicked: {message}"),
            Fault::Broken(_) => f.write_str("left a program that the verifier rejects"),
            Fault::Undeclared => f.write_str("changed the program and said that it did not"),
            Fault::Lossy(printed, read) => {
                write!(f, "does not read back as it is printed: `{printed}` became `{read}`")
            }
            Fault::Unjudged(_) => f.write_str("cannot run or goes wrong already"),
            Fault::Miscompiled(_) => f.write_str("changed what the program means"),
        }
    }
}

impl std::error::Error for Failure {}
