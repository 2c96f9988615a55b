//! Checks the reader of batch files on arbitrary text: each line is a command line, or is refused with its
//! number and a reason.

use hir_driver::run::batch_file;

/// Reads a batch file, and computes the canonical form of its options.
///
/// # Errors
/// Returns an error for a refusal without a line of the text or without a reason.
pub fn run(text: &str) -> Result<(), String> {
    match batch_file::parse_batch(text, &[]) {
        Ok(lines) => lines.iter().try_for_each(|it| {
            // Combinations of options that are refused have no canonical form.
            if it.options.validate().is_ok() && it.options.canonical_options().is_empty() {
                return Err(format!("line {} has no canonical options: {}", it.number, it.text));
            }
            Ok(())
        }),
        Err(it) if (1..=text.lines().count()).contains(&it.number) && !it.reason.to_string().is_empty() => {
            Ok(())
        }
        Err(it) => Err(format!("line {it}")),
    }
}
