//! What several ranks do together.

mod channel;
mod report;
