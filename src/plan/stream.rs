//! The streams of a plan.

use std::fmt;

use super::{Communicator, Inst, Plan, inst::team_text};

/// A stream of a plan. Its text is its name in reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PlanStream {
    /// The stream that is current at program entry.
    Entry,
    /// The stream with an index of the program.
    Indexed(i64),
    /// The queue of a communicator, on which transports execute collectives.
    Queue(Communicator),
    /// The end of a collective that nothing waits for.
    Unwaited,
}

impl PlanStream {
    /// Returns whether statements of the program can be issued on the stream.
    pub fn is_in_program(&self) -> bool {
        match self {
            Self::Entry | Self::Indexed(_) => true,
            Self::Queue(_) | Self::Unwaited => false,
        }
    }
}

impl fmt::Display for PlanStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry => f.write_str("main"),
            Self::Indexed(index) => write!(f, "stream {index}"),
            Self::Queue(Communicator { backend, team, .. }) => {
                write!(f, "{} queue of {}", backend.name(), team_text(team))
            }
            Self::Unwaited => f.write_str("a stream for which nothing waits"),
        }
    }
}

impl Plan {
    /// Returns the stream on which an instruction is issued.
    pub fn stream_of(&self, inst: &Inst) -> Option<&PlanStream> {
        self.streams.get(inst.stream as usize)
    }

    /// Returns the name of the stream on which an instruction is issued.
    pub fn stream_name(&self, inst: &Inst) -> String {
        self.stream_of(inst).map_or("no stream".to_owned(), ToString::to_string)
    }
}
