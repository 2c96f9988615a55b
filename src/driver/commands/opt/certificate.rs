//! Writes the file of `--certificate`.

use std::path::Path;

use grammar::{ir::Program, source::Source};
use hir_certify::{Fault, Settings, certify, exit_code};
use hir_process::exit::Exit;

use super::processor::{PartOutcome, Processor};

/// The number of evaluations before a certificate is written. Those who check it choose their own.
const RUNS: u32 = 3;

impl Processor<'_> {
    /// Writes the text of the program before and after the passes, if `hir_certify` certifies it. Returns `None` if it does not, with the
    /// reason in `outcome`.
    pub(super) fn write_certificate(
        &self,
        path: &Path,
        original: &str,
        lowered: &Program,
        outcome: &mut PartOutcome,
    ) -> Option<()> {
        let ranks = self.options.world.ranks.map_or(String::new(), |it| format!(" --ranks {it}"));
        let text = format!(
            "// `hir certify FILE{ranks}` certifies that the second program computes what the first one computes.\n{original}\n{}",
            grammar::print(lowered)
        );
        let source = Source::new(path.display().to_string(), text);
        let settings = Settings { ranks: self.options.world.ranks, runs: RUNS, seed: 0 };
        let (programs, faults) = source.programs();
        let [before, after] = programs.as_slice() else {
            self.screen.report_diagnostics(&source, &faults);
            outcome.failure = Some((Exit::InternalError, "the certificate cannot be read".to_owned()));
            return None;
        };
        let written = match certify(before, after, &settings) {
            Ok(_) => match self.screen.write_result(&source.text, Some(path)) {
                Exit::Success => return Some(()),
                exit => exit,
            },
            Err(Fault { diagnostic, .. }) => {
                let exit = Exit::from_code(exit_code(&diagnostic));
                self.screen.report_diagnostics(&source, &[*diagnostic]);
                exit
            }
        };
        outcome.failure = Some((written, format!("no certificate is written to `{}`", path.display())));
        None
    }
}
