//! Checks the values of `--input` and `--expect` and the program of `--reference` against a program that is not planned
//! yet.
//!
//! Passes change neither the names nor the logical shapes of inputs and outputs, so a wrong value is wrong for all
//! pipelines. How tensors are sharded depends on the pipeline, so the shapes of `NAME@local` are not checked.

use grammar::{Operand, Program, TensorId};

use crate::run::{
    RunError,
    extents::extent,
    failure::{JobFailure, Result},
    inputs::{INPUT, InputFlag, check_input_names, unknown_output},
    prepare::{PrepareOptions, prepare},
    program_files::ProgramFiles,
    verdict::input_count_mismatch,
};
use hir_process::input_file::InputFiles;

/// Reads, verifies and plans the program of `--reference` and compares its inputs with those of the programs.
///
/// # Errors
/// The reference is rejected, or has another number of inputs.
pub fn check_reference(path: &str, setup: &PrepareOptions<'_>, programs: &[Program]) -> Result<()> {
    let setup = PrepareOptions { passes: &|_, _| Ok(()), container: None, is_reference: true, ..*setup };
    let reference = prepare(&ProgramFiles::One(path.to_owned()), &setup)?;
    let wanted = programs.first().map_or(0, |it| Program::tensors_of(&it.inputs).count());
    match input_count_mismatch(wanted, &reference.world) {
        Some(message) => Err(JobFailure::Unsuitable(format!("the reference `{path}` {message}"))),
        None => Ok(()),
    }
}

/// The options that provide values.
pub struct GivenValues<'a> {
    /// The files that the run has read.
    pub files: &'a InputFiles,
    /// The flags of `--input`.
    pub inputs: &'a [InputFlag],
    /// The flags of `--expect` that name an output.
    pub expected: Vec<&'a InputFlag>,
}

impl GivenValues<'_> {
    /// Reads the values that a rank uses and compares them with the programs: all whole inputs and its own part of the
    /// others, and on rank 0 the expected outputs.
    ///
    /// # Errors
    /// A flag names no tensor of the programs, or its value cannot be read or does not fit the tensor.
    pub fn check(&self, programs: &[Program], rank: usize) -> Result<(), RunError> {
        let inputs = tensors(programs, |it| &it.inputs);
        check_input_names(self.inputs, inputs.iter().map(|it| it.2.as_str()))?;
        for flag in self.inputs {
            check_value(self.files, flag, INPUT, &inputs, rank)?;
        }
        if rank > 0 {
            return Ok(());
        }
        let outputs = tensors(programs, |it| &it.outputs);
        for flag in &self.expected {
            if outputs.iter().all(|it| it.2 != flag.name) {
                let names: Vec<String> = tensors(programs.get(..1).unwrap_or_default(), |it| &it.outputs)
                    .into_iter()
                    .map(|it| it.2)
                    .collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                return Err(unknown_output(flag, &names));
            }
            // Rank 0 reads the parts of all ranks of the mesh.
            let devices = outputs.iter().filter(|it| it.2 == flag.name && flag.local);
            let devices = devices.flat_map(|(program, tensor, _)| &program.tensors[*tensor].mesh.devices);
            for rank in [rank].iter().chain(devices) {
                check_value(self.files, flag, "--expect", &outputs, *rank)?;
            }
        }
        Ok(())
    }
}

/// Returns the tensors of the programs' headers, with their names.
fn tensors<'p>(
    programs: &'p [Program],
    operands: impl Fn(&'p Program) -> &'p [Operand],
) -> Vec<(&'p Program, TensorId, String)> {
    let of = |program: &'p Program| {
        Program::tensors_of(operands(program)).map(move |it| (program, it, program.tensor_name(it)))
    };
    programs.iter().flat_map(of).collect()
}

/// Reads the value of a flag and compares its type and its number of elements with those of the tensor. Its shape may be
/// the logical one or one that a pass gives to the tensor.
fn check_value(
    files: &InputFiles,
    flag: &InputFlag,
    option: &str,
    tensors: &[(&Program, TensorId, String)],
    rank: usize,
) -> Result<(), RunError> {
    let Some((program, tensor, name)) = tensors.iter().find(|it| it.2 == flag.name) else { return Ok(()) };
    let devices = &program.tensors[*tensor].mesh.devices;
    let is_absent = flag.local && !devices.is_empty() && !devices.contains(&rank);
    let Some(dtype) = program.tensors[*tensor].dtype.filter(|_| !is_absent) else { return Ok(()) };
    let source = flag.source(option, rank)?;
    let value = source.load(files, dtype).map_err(|error| flag.flag_error(option, error))?.tensor;
    let extents: Option<Vec<i64>> =
        program.dimensions(*tensor).map(|axis| program.constant(extent(program, axis))).collect();
    let count = |extents: &[i64]| extents.iter().try_fold(1_i64, |count, it| count.checked_mul(*it));
    match extents.filter(|_| !flag.local) {
        Some(extents) if count(&extents) != i64::try_from(value.data.len()).ok() => {
            let fault = format!("has shape {:?}, but {name} has shape {extents:?}", value.shape);
            Err(flag.shape_error(option, rank, &fault))
        }
        Some(_) | None => Ok(()),
    }
}
