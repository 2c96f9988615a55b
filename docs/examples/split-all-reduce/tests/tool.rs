//! The tool runs its own pass together with those of hir, and says what it did.

use std::{fs, io, process::Command};

const PROGRAM: &str = "
%HostIrContainer { (T0_g_float[iS0{8}, ideviceIdx.x1{2}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{8}, rdeviceIdx.x3{2}] (DeviceMesh{0 1})) :
  T1_g_float[iS2{8}, rdeviceIdx.x3{2}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
  Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{8}, ideviceIdx.x1{2}] (DeviceMesh{0 1}), output=T1_g_float[iS2{8}, rdeviceIdx.x3{2}] (DeviceMesh{0 1}), backend=NCCL)
  Wait(Communication 0)
} // %HostIrContainer

Domains:
  T0: logical(iS0{8}, ideviceIdx.x1{2})
  T1: logical(iS2{8}, rdeviceIdx.x3{2})
";

#[test]
fn both_kinds_of_passes_run() -> io::Result<()> {
    let file = std::env::temp_dir().join(format!("split-all-reduce-{}.hir", std::process::id()));
    fs::write(&file, PROGRAM)?;
    let tool = |passes: &str| {
        Command::new(env!("CARGO_BIN_EXE_split-all-reduce"))
            .args([file.as_os_str(), passes.as_ref()])
            .output()
    };
    let (split, unknown) = (tool("canonicalize,split-all-reduce")?, tool("split-all-reduces")?);
    fs::remove_file(&file)?;
    let text = String::from_utf8_lossy(&split.stdout);
    assert!(text.contains("type=ReduceScatter") && text.contains("type=Allgather"), "{text}");
    let remarks = String::from_utf8_lossy(&split.stderr);
    assert_eq!(remarks, "R0604: this all-reduce is a reduce-scatter and an all-gather now\n");
    assert!(!unknown.status.success() && unknown.stdout.is_empty());
    Ok(())
}
