//! The bounds of the search for edits.

/// The maximum number of rounds, each of which makes one edit, or the edits of many races. `MAX_INSTRUCTIONS` bounds the time.
pub(super) const MAX_ROUNDS: usize = 1024;
/// The maximum number of texts that are tried before one edit is made.
pub(super) const MAX_ATTEMPTS: usize = 256;
/// The maximum total number of instructions of all texts that are tried.
pub(super) const MAX_INSTRUCTIONS: usize = 2_000_000;
/// The maximum total number of instructions of the texts from which an edit is removed that was made together with others.
pub(super) const MAX_REMOVAL_INSTRUCTIONS: usize = 50_000;
/// The maximum number of instructions of a text whose time is estimated, to find edits that make it shorter.
pub(super) const MAX_SMALL: usize = 20_000;

/// A bound at which the search ended while edits were not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixLimit {
    /// The number of rounds.
    Rounds,
    /// The number of texts that are tried before one edit is made.
    Attempts,
    /// The number of instructions of all texts that are tried.
    Instructions,
}

impl FixLimit {
    /// Says that the search ended at the bound, and what to do. `is_edited` tells whether edits were made.
    pub fn text(self, is_edited: bool) -> String {
        let bound = match self {
            Self::Rounds => format!("{MAX_ROUNDS} rounds"),
            Self::Attempts => format!("{MAX_ATTEMPTS} texts that are tried for one edit"),
            Self::Instructions => format!("{MAX_INSTRUCTIONS} instructions of all texts that are tried"),
        };
        // The same text would meet the same bound.
        let what_to_do = match self {
            Self::Rounds | Self::Instructions if is_edited => "run `--fix=check` again on the edited text",
            Self::Rounds | Self::Attempts | Self::Instructions => {
                "make an edit that a help suggests, and run `--fix=check` again"
            }
        };
        format!("the search for edits ended at its bound of {bound}: {what_to_do}")
    }
}
