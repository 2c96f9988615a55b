//! Checks that a program has the plans, and with them the results, of its canonical text and of its short
//! form: every case and sample, as it is and with each key of `%options`.

use std::{fs, path::PathBuf};

use libtest_mimic::{Failed, Trial};

use crate::invariants;

/// Lines before the text. A text with `%options` of its own is tested without them.
const OPTIONS: [&str; 6] = [
    "",
    "%options numberOfStreams=1\n",
    "%options numberOfStreams=3\n",
    "%options p2p_protocol=put\n",
    "%options roots=team\n",
    "%options rank=1\n",
];
/// Minimum number of programs with plans that are compared.
const COMPARED: usize = 500;

/// Returns the trial of this file.
pub fn trial(cases: &[PathBuf]) -> Trial {
    let cases = cases.to_vec();
    Trial::test("printed_text_has_the_plans_of_the_program", move || {
        let (mut compared, mut faults) = (0, Vec::new());
        for path in &cases {
            // Texts that are not UTF-8 have errors only.
            let Ok(text) = fs::read_to_string(path) else { continue };
            for options in OPTIONS.iter().filter(|it| it.is_empty() || !text.contains("%options")) {
                match invariants::plans_of_printed(&format!("{options}{text}")) {
                    Ok(is_planned) => compared += usize::from(is_planned),
                    Err(fault) => faults.push(format!("{} with `{options}`: {fault}", path.display())),
                }
            }
        }
        if faults.is_empty() && compared >= COMPARED {
            Ok(())
        } else {
            Err(Failed::from(format!("{compared} programs compared\n{}", faults.join("\n"))))
        }
    })
}
