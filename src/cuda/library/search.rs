//! Searches for the vendor's libraries.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::{ExecutorError, Result};

/// A library to search for.
pub(super) struct LibrarySearch {
    /// Its name in messages.
    title: &'static str,
    /// The environment variable that names its file.
    variable: &'static str,
    /// Its file names, the preferred one first.
    names: &'static [&'static str],
    /// Its directories in Python packages, relative to `site-packages/nvidia`.
    package_dirs: &'static [&'static str],
    /// The prefix of files that the library opens itself and that are in the same directory.
    companion_prefix: Option<&'static str>,
}

pub(super) const DRIVER: LibrarySearch = LibrarySearch {
    title: "the NVIDIA driver",
    variable: "HIR_CUDA",
    names: &["libcuda.so.1", "libcuda.so"],
    package_dirs: &[],
    companion_prefix: None,
};
pub(super) const NVRTC: LibrarySearch = LibrarySearch {
    title: "NVRTC",
    variable: "HIR_NVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    package_dirs: &["cu13/lib", "cuda_nvrtc/lib"],
    companion_prefix: Some("libnvrtc-builtins.so."),
};
pub(super) const CUBLASLT: LibrarySearch = LibrarySearch {
    title: "cuBLASLt",
    variable: "HIR_CUBLASLT",
    names: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    package_dirs: &["cu13/lib", "cublas/lib"],
    companion_prefix: None,
};
pub(super) const CUDNN: LibrarySearch = LibrarySearch {
    title: "cuDNN",
    variable: "HIR_CUDNN",
    names: &["libcudnn.so.9"],
    package_dirs: &["cudnn/lib"],
    companion_prefix: None,
};
pub(super) const NCCL: LibrarySearch = LibrarySearch {
    title: "NCCL",
    variable: "HIR_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    package_dirs: &["nccl/lib"],
    companion_prefix: None,
};

impl LibrarySearch {
    /// Opens the library and returns its path.
    pub(super) fn open(&self) -> Result<(Library, String)> {
        let missing = |places: String| {
            let Self { title, variable, names, .. } = self;
            ExecutorError::Environment(format!(
                "{title} was not found: set `{variable}=/path/to/{}`, or run without GPUs (`hir-run --device=sim`); searched for {} {places}",
                names[0],
                names.join(", ")
            ))
        };
        if let Some(path) = std::env::var_os(self.variable) {
            let path = path.to_string_lossy().into_owned();
            return self
                .open_file(&path)
                .map_err(|why| missing(format!("in `{}={path}` ({why})", self.variable)));
        }
        if let Some(found) = self.names.iter().find_map(|name| open(name).ok()) {
            return Ok(found);
        }
        let folders = self.folders();
        let files = folders.iter().flat_map(|folder| self.names.iter().map(move |name| folder.join(name)));
        let mut broken = String::new();
        for file in files.filter(|it| it.exists()) {
            match self.open_file(&file.to_string_lossy()) {
                Ok(found) => return Ok(found),
                Err(why) => broken += &format!("; {why}"),
            }
        }
        let folders: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
        Err(missing(format!("on the loader's path and in {}{broken}", folders.join(", "))))
    }

    /// Opens a file, and first the companion files in its directory. NVRTC 13.0 does not search its own
    /// directory, but finds its built-in functions if a library of that name is already open.
    fn open_file(&self, path: &str) -> Result<(Library, String), OpenError> {
        let folder = Path::new(path).parent().filter(|it| !it.as_os_str().is_empty());
        if let (Some(begin), Some(folder)) = (self.companion_prefix, folder) {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            for file in files.filter(|it| it.file_name().to_string_lossy().starts_with(begin)) {
                // It stays open, as the library does. If it does not open, the library reports it as missing.
                open(&file.path().to_string_lossy()).map(|(it, _)| Box::leak(Box::new(it))).ok();
            }
        }
        open(path)
    }

    /// Returns the usual directories, including those of Python environments.
    fn folders(&self) -> Vec<PathBuf> {
        let from = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
        let mut folders: Vec<PathBuf> = Vec::new();
        for root in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|it| from(it)) {
            folders.push(root.join("lib64"));
        }
        folders.push("/usr/local/cuda/lib64".into());
        folders.push("/usr/local/nvidia/lib64".into());
        folders.push("/usr/lib/x86_64-linux-gnu".into());
        folders.push("/usr/lib64".into());
        let mut roots: Vec<PathBuf> =
            ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|it| from(it)).collect();
        roots.extend(from("HOME").map(|it| it.join(".local")));
        roots.extend(["/usr/local", "/usr", "/opt/conda"].map(PathBuf::from));
        for root in roots {
            let Ok(versions) = std::fs::read_dir(root.join("lib")) else { continue };
            let python =
                |it: &PathBuf| it.file_name().is_some_and(|it| it.to_string_lossy().starts_with("python3"));
            let mut versions: Vec<PathBuf> = versions.flatten().map(|it| it.path()).filter(python).collect();
            versions.sort();
            for version in versions {
                for packages in ["site-packages", "dist-packages"] {
                    let nvidia = version.join(packages).join("nvidia");
                    folders
                        .extend(self.package_dirs.iter().map(|it| nvidia.join(it)).filter(|it| it.is_dir()));
                }
            }
        }
        folders
    }
}

/// Why the loader does not open a library. The text is that of the loader.
#[derive(Debug, thiserror::Error)]
#[error("{}", std::error::Error::source(.0).map_or(.0.to_string(), ToString::to_string))]
struct OpenError(libloading::Error);

fn open(path: &str) -> Result<(Library, String), OpenError> {
    // SAFETY: the initializers of NVIDIA's libraries have no preconditions; the user is responsible for a
    // file named by the user. Symbols are global, so that a library that needs another one uses the instance
    // already open.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    library.map(|it| (it, path.to_owned())).map_err(OpenError)
}
