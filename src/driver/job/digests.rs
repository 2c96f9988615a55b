//! Computes digests of input files. Ranks that read different files under the same name would compute
//! different results.

use crate::run::inputs::{INPUT, InputFlag};
use crate::{
    run::{RunError, failure::JobFailure},
    tensor_file,
};
use hir_launch::handshake::JobManifest;
use hir_process::input_file::{InputFiles, digest};
use hir_tensor::data::{NdArray, bytes::little_endian};

/// Adds a section to the manifest for each global input that comes from a file: element type, shape and a
/// digest of the elements. Parts of single ranks (`@local`) may differ and are skipped. Returns the failure
/// if a file cannot be read.
pub(super) fn add_input_digests(
    manifest: &mut JobManifest,
    given: &[InputFlag],
    files: &InputFiles,
) -> Option<JobFailure> {
    let mut failure = None;
    for flag in given.iter().filter(|it| !it.local) {
        // An invalid flag is the same on all ranks and is reported when the input is loaded.
        let Ok(tensor_file::TensorSource::File(file)) = flag.source(INPUT, 0) else { continue };
        let text = match file.read(files) {
            Ok(tensor) => describe(&tensor),
            Err(fault) => {
                let fault =
                    RunError::InvalidFlagValue { flag: format!("--input {}", flag.name), error: fault };
                let text = fault.to_string();
                failure = failure.or(Some(fault.into()));
                text
            }
        };
        manifest.add(&format!("the contents of input {}", flag.name), &file.to_string(), text + "\n");
    }
    failure
}

/// Formats a tensor as `f32 4x8, BLAKE3 …`. Files with the same elements give the same text, whatever their
/// format and memory layout.
fn describe(tensor: &NdArray) -> String {
    let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
    let digest = digest(&little_endian(&tensor.data));
    format!("{} {}, BLAKE3 {digest}", tensor.data.dtype().short_name(), shape.join("x"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_tensor::data::Data;

    #[test]
    fn equal_elements_have_equal_texts() {
        let tensor = |shape: &[usize], data: &[f32]| {
            describe(&NdArray { shape: shape.to_vec(), data: Data::F32(data.to_vec()) })
        };
        let text = tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        assert!(text.starts_with("f32 2x2, BLAKE3 "), "{text}");
        assert_eq!(text, tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
        assert_ne!(text, tensor(&[4], &[1.0, 2.0, 3.0, 4.0]));
        assert_ne!(text, tensor(&[2, 2], &[1.0, 2.0, 3.0, 5.0]));
    }
}
