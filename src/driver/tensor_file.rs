//! Reads and writes tensors in `.npy` and `.safetensors` files and in command-line flags.
//!
//! The value of a flag is `@x.npy`, `@w.safetensors#key` (the key is optional if the file contains one
//! tensor) or a literal such as `2x2xf32=1 2 3 4`. npy has no bfloat16; safetensors has all types that `Data`
//! supports.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use grammar::{DType, InvalidOption, dtype::Class, visible_name};

use hir_process::{atomic_file, input_file::InputFiles};
use hir_tensor::data::{Data, NdArray, UnsupportedDtype};

mod literal;
mod npy;
mod safetensors_file;
#[cfg(test)]
mod tests;

/// An error in reading or writing a tensor: the file or flag, what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The value of a flag has none of the three forms.
    #[error(
        "`{text}`: {fault}; expected `@FILE.npy`, `@FILE.safetensors#KEY` or a literal like `2x2xf32=1 2 3 4`"
    )]
    Flag {
        /// The value.
        text: String,
        /// The error.
        fault: InvalidOption,
    },
    /// The file cannot be read.
    #[error("cannot read `{}`: {cause}; check the path and its permissions", visible_name(&path.to_string_lossy()))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{}`: {cause}; check that the folder exists and has space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The file does not have the format of its name, or two tensors are written to the same place.
    #[error("`{}`: {fault}; {advice}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The error.
        fault: String,
        /// Advice to the user.
        advice: String,
    },
    /// The file's format does not support the element type.
    #[error("`{}`: npy does not support {}; use a .safetensors file", path.display(), dtype.short_name())]
    UnsupportedByFormat {
        /// The file.
        path: PathBuf,
        /// The type.
        dtype: DType,
    },
    /// The element types differ, and not both are floating-point types.
    #[error("`{origin}` contains {}, the program requires {}; convert it first (only floating-point types are converted automatically)",
        found.short_name(), wanted.short_name())]
    Dtype {
        /// The file or `literal`.
        origin: String,
        /// The type in the file or literal.
        found: DType,
        /// The type of the program's tensor.
        wanted: DType,
    },
    /// The required type is not supported.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedDtype),
}

/// The location of one tensor in a file. Displays as the value of the flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorFile {
    /// A file in numpy's format, with one tensor.
    Npy(PathBuf),
    /// A file with named tensors.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The tensor's name; `None` reads the only tensor, and writes one called `tensor`.
        key: Option<String>,
    },
}

/// The value of an input flag.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorSource {
    /// A file.
    File(TensorFile),
    /// A literal tensor.
    Literal(NdArray),
}

/// A tensor that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedTensor {
    /// The tensor, with the required type.
    pub tensor: NdArray,
    /// The floating-point type that it was converted from, if it was converted.
    pub converted: Option<DType>,
}

impl fmt::Display for TensorFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Npy(path) => write!(f, "@{}", path.display()),
            Self::Safetensors { path, key: None } => write!(f, "@{}", path.display()),
            Self::Safetensors { path, key: Some(key) } => write!(f, "@{}#{key}", path.display()),
        }
    }
}

/// Parses `@x.npy` or `@w.safetensors#key`.
impl FromStr for TensorFile {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        const SAFETENSORS: &str = ".safetensors";
        let flag = |fault: &str| IoError::Flag { text: text.to_owned(), fault: fault.into() };
        let name = text.strip_prefix('@').ok_or_else(|| flag("a file starts with `@`"))?;
        if let Some((path, key)) = name.rsplit_once(&format!("{SAFETENSORS}#")) {
            return match key {
                "" => Err(flag("there is no key after `#`")),
                _ => Ok(Self::Safetensors {
                    path: format!("{path}{SAFETENSORS}").into(),
                    key: Some(key.to_owned()),
                }),
            };
        }
        match name {
            _ if name.ends_with(".npy") => Ok(Self::Npy(name.into())),
            _ if name.ends_with(SAFETENSORS) => Ok(Self::Safetensors { path: name.into(), key: None }),
            _ => Err(flag("the file name must end in `.npy` or `.safetensors`")),
        }
    }
}

/// Parses a file or a literal.
impl FromStr for TensorSource {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        if text.starts_with('@') {
            text.parse().map(Self::File)
        } else {
            literal::read(text)
                .map(Self::Literal)
                .map_err(|fault| IoError::Flag { text: text.to_owned(), fault })
        }
    }
}

impl TensorSource {
    /// Returns the tensor with element type `dtype`. Floats are converted to other floating-point types with
    /// rounding to nearest even.
    ///
    /// # Errors
    /// Reports a file that cannot be read or has another format, and a type that differs from `dtype` unless
    /// both are floating-point types.
    pub fn load(&self, files: &InputFiles, dtype: DType) -> Result<LoadedTensor, IoError> {
        let (tensor, origin) = match self {
            Self::File(file) => (file.read(files)?, file.to_string()),
            Self::Literal(tensor) => (tensor.clone(), "literal".to_owned()),
        };
        let (found, wanted) = (tensor.data.dtype(), Data::zeros(dtype, 0)?.dtype());
        if found == wanted {
            return Ok(LoadedTensor { tensor, converted: None });
        }
        if found.class() != Class::Float || wanted.class() != Class::Float {
            return Err(IoError::Dtype { origin, found, wanted });
        }
        let (data, _) = tensor.data.convert(wanted)?;
        Ok(LoadedTensor { tensor: NdArray { shape: tensor.shape, data }, converted: Some(found) })
    }
}

impl TensorFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Npy(path) | Self::Safetensors { path, .. } => path,
        }
    }

    /// Checks that the file's format supports an element type.
    ///
    /// # Errors
    /// Reports bfloat16 in npy.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), IoError> {
        match self {
            Self::Npy(path) if dtype == DType::BFloat => {
                Err(IoError::UnsupportedByFormat { path: path.clone(), dtype })
            }
            Self::Npy(_) | Self::Safetensors { .. } => Ok(()),
        }
    }

    /// Reads the tensor with the type that it has in the file.
    ///
    /// # Errors
    /// Reports a file that cannot be read, is not of its format, or has a type that `Data` does not support.
    pub fn read(&self, files: &InputFiles) -> Result<NdArray, IoError> {
        let path = self.path();
        let bytes = files.read(path).map_err(|cause| IoError::Read { path: path.to_owned(), cause })?;
        self.decode(&bytes)
    }

    /// Decodes the tensor from the contents of the file.
    ///
    /// # Errors
    /// As `read`, for the contents.
    pub fn decode(&self, bytes: &[u8]) -> Result<NdArray, IoError> {
        match self {
            Self::Npy(path) => npy::read(path, bytes),
            Self::Safetensors { path, key } => safetensors_file::read(path, bytes, key.as_deref()),
        }
    }
}

/// Writes tensors. Tensors of the same safetensors file are written together, also if several paths name it. An existing file is replaced.
///
/// # Errors
/// Reports bfloat16 in npy, a file or key that is given twice, and a file that cannot be written.
pub fn save(tensors: &[(TensorFile, &NdArray)]) -> Result<(), IoError> {
    let mut files: BTreeMap<PathBuf, Vec<(&TensorFile, &NdArray)>> = BTreeMap::new();
    for (file, tensor) in tensors {
        files.entry(atomic_file::destination(file.path())).or_default().push((file, tensor));
    }
    for tensors in files.into_values() {
        let path = tensors[0].0.path();
        let is_npy = |it: &TensorFile| matches!(it, TensorFile::Npy(_));
        let keys = tensors.iter().map(|(file, tensor)| match file {
            TensorFile::Npy(_) => (None, *tensor),
            TensorFile::Safetensors { key, .. } => (Some(key.as_deref().unwrap_or("tensor")), *tensor),
        });
        let mut named = BTreeMap::new();
        for (key, tensor) in keys {
            if named.insert(key, tensor).is_some() || named.len() > 1 && tensors.iter().any(|it| is_npy(it.0))
            {
                let fault = "two tensors are written to the same place".to_owned();
                return Err(format_error(
                    path,
                    fault,
                    "use different files, or different keys in a .safetensors file",
                ));
            }
        }
        let bytes = match named.get(&None) {
            Some(tensor) => npy::bytes_of(path, tensor)?,
            None => safetensors_file::bytes_of(path, &named)?,
        };
        atomic_file::write(path, &bytes).map_err(|cause| IoError::Write { path: path.to_owned(), cause })?;
    }
    Ok(())
}

fn format_error(path: &Path, fault: String, advice: &str) -> IoError {
    IoError::Format { path: path.to_owned(), fault, advice: advice.to_owned() }
}
