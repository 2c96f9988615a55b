//! Invariants for arbitrary bytes and words that a tool takes from its user, for the fuzz targets in `fuzz/`
//! and for the replay of their corpus. Each gives a result or an error and never panics.

#![allow(dead_code, reason = "every target takes one of the ways")]

use std::str::FromStr;

use grammar::bindings::Binding;
use hir_driver::run::{inputs::InputFlag, output::OutputFlag, program_files::ProgramFiles};
use hir_driver::tensor_file;
use hir_sim::ScheduleSet;
use hir_tensor::generate::InputKind;

/// Maximum number of passes in a pipeline that is run.
const CALLS: usize = 6;

/// Decodes the contents of a tensor file. The first byte selects the format.
pub fn tensor(bytes: &[u8]) -> Result<(), String> {
    let Some((format, bytes)) = bytes.split_first() else { return Ok(()) };
    let name = if format % 2 == 0 { "@x.npy" } else { "@x.safetensors#out" };
    let tensor_file::TensorSource::File(file) =
        tensor_file::TensorSource::from_str(name).map_err(|it| it.to_string())?
    else {
        return Err(format!("`{name}` is not a file source"));
    };
    // A tensor must have as many elements as its shape.
    match file.decode(bytes) {
        Ok(it) if it.shape.iter().product::<usize>() != it.data.len() => {
            Err(format!("{} elements with the shape {:?}", it.data.len(), it.shape))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Parses every line as the value of each option.
pub fn options(text: &str) -> Result<(), String> {
    for line in text.lines() {
        // A value that names a file is only parsed. The file is not part of the input and is not read.
        _ = Binding::from_str(line);
        _ = ScheduleSet::from_str(line);
        _ = ProgramFiles::from_str(line);
        _ = InputFlag::from_str(line);
        _ = OutputFlag::from_str(line);
        _ = InputKind::from_str(line);
        _ = tensor_file::TensorSource::from_str(line);
        if let Ok(calls) = passes::parse(line) {
            let printed: Vec<String> = calls.iter().map(ToString::to_string).collect();
            let again = passes::parse(&printed.join(",")).map_err(|it| it.message)?;
            if again.iter().map(ToString::to_string).ne(printed) {
                return Err(format!("`{line}` reads back as another pipeline"));
            }
        }
    }
    Ok(())
}

/// Runs a pipeline on a program. The first line is the pipeline, and the next lines are the program.
pub fn pipeline(text: &str, lower: impl Fn(&str, &str) -> Result<(), String>) -> Result<(), String> {
    let Some((pipeline, program)) = text.split_once('\n') else { return Ok(()) };
    let pipeline = pipeline.trim_start_matches("//").trim();
    match passes::parse(pipeline) {
        Ok(calls) if calls.len() <= 4 * CALLS && pipeline.split(',').count() <= CALLS => {
            lower(program, pipeline)
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
