//! Builds the emulated GPUs on which tests run from `tests/gpu/emulator`, if there is a C++ compiler.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use super::{ROOT, files};
use crate::timeout::RunWithTimeout;

/// Returns true if there is no C++ compiler and `HIR_REQUIRE_CXX` is not set.
pub fn is_missing() -> bool {
    static MISSING: LazyLock<bool> = LazyLock::new(|| {
        std::env::var("HIR_REQUIRE_CXX").as_deref() != Ok("1")
            && Command::new("c++").arg("--version").output_with_timeout().is_err()
    });
    *MISSING
}

/// Returns the environment that a process needs to run on emulated GPUs: the names of NVIDIA's libraries, a
/// compiler for kernels, and settings of the emulator.
///
/// # Errors
/// Returns an error if the emulator does not compile.
pub fn environment() -> Result<Vec<(String, String)>, String> {
    let library = LIBRARY.as_ref().map_err(Clone::clone)?.display().to_string();
    let mut variables: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| name == "PATH" || name.starts_with("HIR_EMULATED_")).collect();
    variables.extend(
        ["HIR_CUDA", "HIR_NVRTC", "HIR_CUBLASLT", "HIR_NCCL"].map(|it| (it.to_owned(), library.clone())),
    );
    variables.push(("HIR_CUDNN".to_owned(), "none".to_owned()));
    Ok(variables)
}

/// The path of the emulator's library, built once for its sources.
static LIBRARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(ROOT).join("tests/gpu/emulator");
    let (sources, headers) = (files(&folder, "cpp"), files(&folder, "h"));
    let mut hasher = DefaultHasher::new();
    // The library includes headers of this folder in each kernel, so that of a moved checkout is not used.
    folder.hash(&mut hasher);
    for source in sources.iter().chain(&headers) {
        fs::read(source).map_err(|fault| fault.to_string())?.hash(&mut hasher);
    }
    // The emulator keeps its compiled kernels beside the library.
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulator-{:016x}", hasher.finish()));
    let library = place.join("libgpu.so");
    if library.exists() {
        return Ok(library);
    }
    fs::create_dir_all(&place).map_err(|fault| fault.to_string())?;
    let fresh = place.join(format!("libgpu-{}.so", std::process::id()));
    let mut compiler = Command::new("c++");
    compiler
        .args(["-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(&fresh)
        .args(&sources)
        .arg("-ldl");
    let output = compiler.output_with_timeout().map_err(|fault| format!("c++: {fault}"))?;
    if !output.status.success() {
        return Err(format!("the emulator does not compile:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    fs::rename(&fresh, &library).map_err(|fault| fault.to_string())?;
    Ok(library)
});
