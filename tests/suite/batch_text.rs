//! What any text has to survive as a batch file: each line is a command line or is refused, with its number and a reason.

use crate::command_lines;

/// Reads a batch file and says what its options mean to other ranks.
///
/// # Errors
/// A refusal without a line of the text, or without a reason.
pub fn run(text: &str) -> Result<(), String> {
    match command_lines::parse_batch(text, &[]) {
        Ok(lines) => lines.iter().try_for_each(|it| {
            // A combination of options that is refused is none for other ranks.
            if it.options.validate().is_ok() && it.options.canonical_options().is_empty() {
                return Err(format!("line {} says nothing: {}", it.number, it.text));
            }
            Ok(())
        }),
        Err((number, why)) if (1..=text.lines().count()).contains(&number) && !why.is_empty() => Ok(()),
        Err((number, why)) => Err(format!("line {number}: {why}")),
    }
}
