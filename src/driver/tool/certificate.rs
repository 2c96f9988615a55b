//! The file of `--certificate`.

use std::path::Path;

use grammar::{Code, Diagnostic, Program, Source};
use hir_certify::{Settings, certify};

/// The number of evaluations before a certificate is written. Those who check it choose their own.
const RUNS: u32 = 3;

/// Returns the certificate that a program computes after passes what it computes before: the texts of both. Its name is that of the file to
/// which it is written.
///
/// # Errors
/// `hir_certify` does not certify it, for this reason, whose places are in the source.
pub fn certificate(
    path: &Path,
    ranks: Option<usize>,
    original: &str,
    lowered: &Program,
) -> Result<Source, (Source, Box<Diagnostic>)> {
    let option = ranks.map_or(String::new(), |it| format!(" --ranks {it}"));
    let text = format!(
        "// `hir certify FILE{option}` certifies that the second program computes what the first one computes.\n{original}\n{}",
        grammar::print(lowered)
    );
    let source = Source::new(path.display().to_string(), text);
    let settings = Settings { ranks, runs: RUNS, seed: None };
    let (programs, faults) = source.programs();
    let result = match (programs.as_slice(), faults.into_iter().find(Diagnostic::is_error)) {
        ([before, after], None) => certify(before, after, &settings).map_err(|fault| fault.diagnostic),
        (_, Some(fault)) => Err(Box::new(fault)),
        (_, None) => {
            let message = format!("expected two programs, found {}", programs.len());
            Err(Box::new(Diagnostic::without_place(Code::NotCertifiable, message)))
        }
    };
    match result {
        Ok(_) => Ok(source),
        Err(fault) => Err((source, fault)),
    }
}
