//! No pass takes quadratic time: on programs of these sizes it would not end before its limit.

use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use passes::{Settings, Verify};

#[path = "../../benches/passes/programs.rs"]
mod programs;

use programs::AXES;

/// For all passes of an axis, on a machine that is busy: linear ones take less than a tenth of it.
const LIMIT: Duration = Duration::from_secs(100);

/// One trial for each axis.
pub fn trials() -> Vec<Trial> {
    AXES.iter()
        .map(|axis| {
            let size = match axis.name {
                "depth" => 60,
                "ranks" => 512,
                "loops" => 3_000,
                _ => 20_000,
            };
            let name = format!("scaling::{}", axis.name.replace(' ', "_"));
            Trial::test(name, move || runs_in_time(&(axis.program)(size), axis.passes))
        })
        .collect()
}

fn runs_in_time(text: &str, pipeline: &str) -> Result<(), Failed> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program = programs.first_mut().filter(|_| !grammar::diagnostic::has_errors(&diagnostics));
    let program = program.ok_or_else(|| format!("{:?}", diagnostics.first()))?;
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let start = Instant::now();
    for call in &calls {
        let settings = Settings { verify: Verify::Off, roundtrip: false };
        passes::run(program, std::slice::from_ref(call), settings, &mut |_| ())
            .map_err(|it| it.to_string())?;
        if start.elapsed() > LIMIT {
            return Err(format!("`{call}` ended after {:?}", start.elapsed()).into());
        }
    }
    Ok(())
}
