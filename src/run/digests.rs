//! Digests of the files that inputs come from: ranks that read different files under one name would compute different results.

use super::inputs::{INPUT, InputFlag};
use super::{RunError, prepare::JobFailure};
use crate::{
    cuda::bytes_of,
    input_file,
    io::{data::NdArray, file},
    launch::handshake::JobManifest,
};

/// Adds a section for each global input that comes from a file: the element type, the shape and a digest of the elements. A
/// rank's own part (`@local`) may differ from the others'. A file that cannot be read is returned as the failure.
pub(super) fn add_input_digests(manifest: &mut JobManifest, given: &[InputFlag]) -> Option<JobFailure> {
    let mut failure = None;
    for flag in given.iter().filter(|it| !it.local) {
        // What is wrong with a flag itself is the same on all ranks, and reported when the input is made.
        let Ok(file::TensorSource::File(file)) = flag.source(INPUT, 0) else { continue };
        let text = match file.read() {
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

/// `float 4x8, BLAKE3 …`: files of the same elements have the same text, whatever their format and layout.
fn describe(tensor: &NdArray) -> String {
    let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
    let digest = input_file::digest(bytes_of(&tensor.data));
    format!("{} {}, BLAKE3 {digest}", tensor.data.dtype().short_name(), shape.join("x"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::data::Data;

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
