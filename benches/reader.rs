//! Measures how fast a text is read, verified and printed, and compares this with `mlir-opt` on a text of the
//! same size.
//!
//! `cargo bench --bench reader [-- MEGABYTES]`; the default is 30. Both tools run as separate processes,
//! alternating five times after one run that is not counted. The medians and their ratio are printed.
//! `mlir-opt` is that of Debian's `mlir-19-tools`; without it only the figures of hir are printed. Peak
//! memory is the high-water mark of the process.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

use std::{
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

const RUNS: usize = 5;
const MLIR: &[&str] = &["mlir-opt-19", "mlir-opt", "/usr/lib/llvm-19/bin/mlir-opt"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let res = match arguments.as_slice() {
        [flag, file] if flag == "--stages" => stages(Path::new(file)),
        [size] => compare(size.parse().unwrap_or(30)),
        _ => compare(30),
    };
    match res {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("reader: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// A writer that counts bytes and discards them.
struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads, verifies and prints one file, and prints the time of each stage.
fn stages(file: &Path) -> Result<(), Box<dyn Error>> {
    let source = fs::read_to_string(file)?;
    let start = Instant::now();
    let (programs, diagnostics) = grammar::read(&source);
    let read = start.elapsed();
    let faults: usize = programs.iter().map(|it| grammar::verify(it).len()).sum();
    let verified = start.elapsed();
    let mut text = Counter(0);
    programs.iter().try_for_each(|it| grammar::write(it, &mut text))?;
    let printed = start.elapsed();
    if !diagnostics.is_empty() || faults > 0 || text.0 < source.len() / 2 {
        return Err(
            format!("{} diagnostics, {faults} faults, {} bytes printed", diagnostics.len(), text.0).into()
        );
    }
    println!(
        "read {:.3} verify {:.3} print {:.3}",
        read.as_secs_f64(),
        (verified - read).as_secs_f64(),
        (printed - verified).as_secs_f64()
    );
    // The process ends without freeing the program, as hir-opt does.
    std::mem::forget((programs, source));
    Ok(())
}

fn compare(megabytes: usize) -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("hir-reader-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let ours = folder.join("unrolled.hir");
    fs::write(&ours, unrolled(megabytes << 20))?;
    let theirs = folder.join("unrolled.mlir");
    fs::write(&theirs, mlir(megabytes << 20))?;
    let mlir_opt =
        MLIR.iter().find(|it| Command::new(it).arg("--version").stdout(Stdio::null()).status().is_ok());
    let mut figures: [Vec<(Duration, u64)>; 2] = [Vec::new(), Vec::new()];
    let own = std::env::current_exe()?;
    for run in 0..=RUNS {
        let mut commands = vec![vec![own.clone(), PathBuf::from("--stages"), ours.clone()]];
        commands.extend(
            mlir_opt.map(|it| vec![PathBuf::from(it), theirs.clone(), "-o".into(), "/dev/null".into()]),
        );
        for (which, command) in commands.iter().enumerate() {
            let figure = measure(command)?;
            if run > 0 {
                figures[which].push(figure);
            }
        }
    }
    let sizes = [fs::metadata(&ours)?.len(), fs::metadata(&theirs)?.len()];
    println!("{:<10} {:>9} {:>10} {:>12} {:>12}", "", "MB", "time (s)", "MB/s", "bytes/byte");
    let mut rates = Vec::new();
    for (which, name) in
        ["hir", "mlir-opt"].iter().enumerate().filter(|(which, _)| !figures[*which].is_empty())
    {
        let (time, peak) =
            (median(&figures[which], |it| it.0.as_secs_f64()), median(&figures[which], |it| it.1 as f64));
        let bytes = sizes[which] as f64;
        rates.push((bytes / time, peak / bytes));
        println!(
            "{name:<10} {:>9.1} {time:>10.3} {:>12.1} {:>12.2}",
            bytes / 1e6,
            bytes / time / 1e6,
            peak / bytes
        );
    }
    match rates.as_slice() {
        [ours, theirs] => {
            println!("ratio: {:.2} x as fast, {:.2} x the memory", ours.0 / theirs.0, ours.1 / theirs.1)
        }
        _ => println!("mlir-opt is not installed (Debian: mlir-19-tools)"),
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn median(figures: &[(Duration, u64)], of: impl Fn(&(Duration, u64)) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the wall time and the peak memory of a command, which must succeed.
fn measure(command: &[PathBuf]) -> Result<(Duration, u64), Box<dyn Error>> {
    let start = Instant::now();
    let mut child = Command::new(&command[0]).args(&command[1..]).stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let high_water = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = high_water.and_then(|it| it.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or(0) * 1024);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    if status.success() {
        Ok((start.elapsed(), peak))
    } else {
        Err(format!("{} failed", command[0].display()).into())
    }
}

/// Returns the row-parallel stream program with its loop unrolled. Every iteration has separate tensors, as
/// in the output of a framework that unrolls.
fn unrolled(size: usize) -> String {
    let mesh = "(DeviceMesh{0 1 2 3 4 5 6 7})";
    let input = format!("T0_g___bfloat[iS0{{8192}}, iS1{{1024}}] {mesh}");
    let weight = format!("T1_g___bfloat[iS2{{1024}}, iS3{{1024}}] {mesh}");
    let output = format!("T2_g___bfloat[iS4{{8192}}, iS5{{1024}}] {mesh}");
    let mut text = format!("%HostIrContainer {{ ({input}, {weight}, {output}) -> ({output}) :\n");
    text += "  Stream s0 = GetCurrentStream()\n";
    let mut tensor = 3;
    let mut axis = 6;
    while text.len() < size {
        let mut fresh = |letter: &str, dims: &str| {
            let axes: Vec<String> = dims
                .split(' ')
                .map(|dim| {
                    axis += 1;
                    format!("{}S{axis}{{{}}}", &dim[..1], &dim[1..])
                })
                .collect();
            tensor += 1;
            format!("T{tensor}_{letter}___bfloat[{}] {mesh}", axes.join(", "))
        };
        let (row, product, sum, target) = (
            fresh("l", "i1024"),
            fresh("g", "i1024 i1024 r1024"),
            fresh("g", "i1024 i1024"),
            fresh("l", "i1024"),
        );
        let number = tensor;
        let _ = write!(
            text,
            "  SetCurrentStream(Stream {})\n  Synchronize(Stream s0)\n  {row}\n     = HirAliasSelect( {input}, axis = \
             iS0{{8192}}, index = {} )\n  {product} = ALLOCATE(mem_type=global, zero_init=false)\n  {product}\n     = \
             linear({weight},\n              {weight})\n  {sum} = ALLOCATE(mem_type=global, zero_init=false)\n  \
             Communication {number} (type=Allreduce, team=(0 1 2 3 4 5 6 7), red_op=SUM, input={product}, output={sum}, \
             backend=NCCL)\n  Wait(Communication {number})\n  {target}\n     = HirAliasSelect( {output}, axis = \
             iS4{{8192}}, index = {} )\n  {target}\n     = {row}\n     + {row};\n",
            number % 8,
            number % 8192,
            number % 8192
        );
    }
    text + "} // %HostIrContainer\n"
}

/// Returns operations on tensor types whose text has about the same length, in functions of a few thousand
/// lines.
fn mlir(size: usize) -> String {
    let mut text = String::new();
    let mut function = 0;
    while text.len() < size {
        let ty = "tensor<1024x1024xbf16>";
        let _ = writeln!(text, "func.func @f{function}(%a: {ty}, %b: {ty}) -> {ty} {{");
        let _ = writeln!(text, "  %c0 = arith.addf %a, %b : {ty}");
        let mut at = 0;
        while at < 4000 && text.len() < size {
            let _ = writeln!(
                text,
                "  %e{at} = tensor.empty() : {ty}\n  %m{at} = linalg.matmul ins(%c{at}, %b : {ty}, {ty}) outs(%e{at} : {ty}) \
                 -> {ty}\n  %c{} = arith.addf %m{at}, %a : {ty}",
                at + 1
            );
            at += 1;
        }
        let _ = writeln!(text, "  return %c{at} : {ty}\n}}");
        function += 1;
    }
    text
}
