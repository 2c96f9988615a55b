//! The emulated GPUs that tests run on, built from `tests/gpu/emulator` where a C++ compiler is.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use super::{ROOT, files};
use crate::timeout::RunWithTimeout;

/// Whether there is no C++ compiler, and nobody insists.
pub fn is_missing() -> bool {
    static MISSING: LazyLock<bool> = LazyLock::new(|| {
        std::env::var("HIR_REQUIRE_CXX").as_deref() != Ok("1")
            && Command::new("c++").arg("--version").output_with_timeout().is_err()
    });
    *MISSING
}

/// What a process needs to run on emulated GPUs: the names of the vendor's libraries, a compiler for kernels, and settings of
/// the emulator.
///
/// # Errors
/// An emulator that does not compile.
pub fn environment() -> Result<Vec<(String, String)>, String> {
    let library = LIBRARY.as_ref().map_err(Clone::clone)?.display().to_string();
    let mut variables: Vec<(String, String)> =
        std::env::vars().filter(|(name, _)| name == "PATH" || name.starts_with("HIR_EMULATED_")).collect();
    variables.extend(
        ["HIR_CUDA", "HIR_NVRTC", "HIR_CUBLASLT", "HIR_NCCL"].map(|it| (it.to_owned(), library.clone())),
    );
    Ok(variables)
}

/// The emulator, built once for its sources.
static LIBRARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let folder = Path::new(ROOT).join("tests/gpu/emulator");
    let (sources, headers) = (files(&folder, "cpp"), files(&folder, "h"));
    let mut hasher = DefaultHasher::new();
    for source in sources.iter().chain(&headers) {
        fs::read(source).map_err(|fault| fault.to_string())?.hash(&mut hasher);
    }
    // Its kernels are kept beside it.
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
