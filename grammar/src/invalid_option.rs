//! The error of a text on a command line.

use std::fmt;

/// Why options are refused, in words for the person who wrote them. No caller distinguishes the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOption(String);

impl<T: Into<String>> From<T> for InvalidOption {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for InvalidOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOption {}
