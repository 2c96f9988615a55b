//! Tensors in `.npy` and `.safetensors` files and in flags.
//!
//! A flag's value is `@x.npy`, `@w.safetensors#key` (the key may go where the file holds one tensor) or a literal,
//! `2x2xf32=1 2 3 4`. npy has no bfloat16; safetensors has all types that `Data` holds.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use grammar::dtype::{Class, DType};

use crate::{
    atomic_file, input_file,
    io::data::{Data, NdArray, UnsupportedDtype},
};

mod literal;
mod npy;
mod safetensors_file;
#[cfg(test)]
mod tests;

/// Why a tensor did not come in or go out: where, what is wrong, what to do.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A flag's value is none of the three forms.
    #[error(
        "`{text}`: {fault}; expected `@FILE.npy`, `@FILE.safetensors#KEY` or a literal like `2x2xf32=1 2 3 4`"
    )]
    Flag {
        /// The value.
        text: String,
        /// What is wrong.
        fault: String,
    },
    /// The operating system does not give the file.
    #[error("cannot read `{}`: {cause}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The operating system does not take the file.
    #[error("cannot write `{}`: {cause}; check that the folder exists and has space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The file does not hold what its name says, or one place is named twice.
    #[error("`{}`: {fault}; {advice}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
        /// What to do.
        advice: String,
    },
    /// The file's format has no such element type.
    #[error("`{}`: npy has no {}; name a .safetensors file", path.display(), dtype.short_name())]
    UnsupportedByFormat {
        /// The file.
        path: PathBuf,
        /// The type.
        dtype: DType,
    },
    /// The element type is another one, and not both are floats.
    #[error("`{origin}` holds {}, the program wants {}; convert it first (only floats are converted here)",
        found.short_name(), wanted.short_name())]
    Dtype {
        /// The file or `literal`.
        origin: String,
        /// The type it has.
        found: DType,
        /// The type that the tensor has.
        wanted: DType,
    },
    /// The wanted type is not supported.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedDtype),
}

/// A place for one tensor. Displays as the flag's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorFile {
    /// numpy's format, one tensor.
    Npy(PathBuf),
    /// Named tensors.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The tensor's name; `None`: the only one, and `tensor` when written.
        key: Option<String>,
    },
}

/// The value of an input flag.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorSource {
    /// A file.
    File(TensorFile),
    /// The tensor itself.
    Literal(NdArray),
}

/// A tensor that came in.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedTensor {
    /// The tensor, of the wanted type.
    pub tensor: NdArray,
    /// The float type that it was converted from, when that is another one.
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

/// `@x.npy` or `@w.safetensors#key`.
impl FromStr for TensorFile {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        const SAFETENSORS: &str = ".safetensors";
        let flag = |fault: &str| IoError::Flag { text: text.to_owned(), fault: fault.to_owned() };
        let name = text.strip_prefix('@').ok_or_else(|| flag("a file starts with `@`"))?;
        if let Some((path, key)) = name.rsplit_once(&format!("{SAFETENSORS}#")) {
            return match key {
                "" => Err(flag("there is no key behind `#`")),
                _ => Ok(Self::Safetensors {
                    path: format!("{path}{SAFETENSORS}").into(),
                    key: Some(key.to_owned()),
                }),
            };
        }
        match name {
            _ if name.ends_with(".npy") => Ok(Self::Npy(name.into())),
            _ if name.ends_with(SAFETENSORS) => Ok(Self::Safetensors { path: name.into(), key: None }),
            _ => Err(flag("the file's name tells no format")),
        }
    }
}

/// A file or a literal.
impl FromStr for TensorSource {
    type Err = IoError;

    fn from_str(text: &str) -> Result<Self, IoError> {
        match text.starts_with('@') {
            true => text.parse().map(Self::File),
            false => literal::read(text)
                .map(Self::Literal)
                .map_err(|fault| IoError::Flag { text: text.to_owned(), fault }),
        }
    }
}

impl TensorSource {
    /// The tensor as `dtype`. Floats are converted to another float type, rounding to nearest, halves to even.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else; a type that is not the wanted one, unless both are floats.
    pub fn load(&self, dtype: DType) -> Result<LoadedTensor, IoError> {
        let (tensor, origin) = match self {
            Self::File(file) => (file.read()?, file.to_string()),
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
    /// The file's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Npy(path) | Self::Safetensors { path, .. } => path,
        }
    }

    /// That the file's format has an element type.
    ///
    /// # Errors
    /// bfloat16 in npy.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), IoError> {
        match self {
            Self::Npy(path) if dtype == DType::BFloat => {
                Err(IoError::UnsupportedByFormat { path: path.clone(), dtype })
            }
            Self::Npy(_) | Self::Safetensors { .. } => Ok(()),
        }
    }

    /// The tensor in the file, of the type that it has there.
    ///
    /// # Errors
    /// A file that cannot be read, is not of its format, or holds a type that `Data` does not.
    pub fn read(&self) -> Result<NdArray, IoError> {
        let path = self.path();
        let bytes = input_file::read(path).map_err(|cause| IoError::Read { path: path.to_owned(), cause })?;
        self.decode(&bytes)
    }

    /// The tensor in the contents of the file.
    ///
    /// # Errors
    /// As `read`, of contents.
    pub fn decode(&self, bytes: &[u8]) -> Result<NdArray, IoError> {
        match self {
            Self::Npy(path) => npy::read(path, bytes),
            Self::Safetensors { path, key } => safetensors_file::read(path, bytes, key.as_deref()),
        }
    }
}

/// Writes tensors; those of one safetensors file go there together. A file that exists is replaced.
///
/// # Errors
/// bfloat16 to npy; a file or key that is named twice; a file that cannot be written.
pub fn save(tensors: &[(TensorFile, &NdArray)]) -> Result<(), IoError> {
    let mut files: BTreeMap<&Path, Vec<(&TensorFile, &NdArray)>> = BTreeMap::new();
    for (file, tensor) in tensors {
        files.entry(file.path()).or_default().push((file, tensor));
    }
    for (path, tensors) in files {
        let keys = tensors.iter().map(|(file, tensor)| match file {
            TensorFile::Npy(_) => (None, *tensor),
            TensorFile::Safetensors { key, .. } => (Some(key.as_deref().unwrap_or("tensor")), *tensor),
        });
        let mut named = BTreeMap::new();
        for (key, tensor) in keys {
            if named.insert(key, tensor).is_some() {
                let fault = "two tensors go to the same place".to_owned();
                return Err(format_error(path, fault, "name another file, or keys in a .safetensors file"));
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
