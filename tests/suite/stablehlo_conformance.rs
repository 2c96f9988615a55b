//! Runs tests of StableHLO's interpreter: programs that compare a result with stated values by `check.expect_…`. The simulator computes both.
//!
//! `tests/conformance/stablehlo.mlir` has a small one of each operation, unchanged. `HIR_STABLEHLO=DIR` runs all files of
//! `stablehlo/testdata` instead (https://github.com/openxla/stablehlo), and compares how many pass with the table in `docs/jax.md`.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write},
    path::Path,
};

use hir_tensor::dense::DenseTensor;
use libtest_mimic::{Failed, Trial};

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("stablehlo_conformance", conformance)]
}

/// Why files of `stablehlo/testdata` differ from what they state.
const EXPLAINED: [(&str, &str); 5] = [
    ("conv_general_dilated_float32_2_3_9_10_float32_3_3_4_5.mlir", "a sum of many products in another order"),
    ("cumprod_bfloat16_8_9.mlir", "products of 16 bits in another order"),
    ("cumsum_bfloat16_8_9.mlir", "sums of 16 bits in another order"),
    ("pow_complex64_20_30_complex64_20_30.mlir", "a power is an exponential of a product"),
    ("top_k_float32_5_chlo.mlir", "a NaN of a constant has no sign"),
];

/// The header of the table in `docs/jax.md`. It has the operations of which tests do not pass.
const HEADER: &str = "|test|pass|\n|---|---|\n";

/// Returns the program without its checks, whose results are what they compare, and whether each is exact.
fn compared(text: &str) -> Option<(String, Vec<bool>)> {
    let begin = text.find("func.func public @main(")?;
    let end = begin + text[begin..].find("\n  }\n")?;
    let main = &text[begin..end];
    let (mut names, mut types, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    let mut body = String::new();
    let mut lines = main.lines();
    let first = lines.next()?;
    for line in lines {
        let Some((_, call)) = line.split_once("stablehlo.custom_call @check.") else {
            if !line.trim_start().starts_with("return") {
                body.push_str(line);
                body.push('\n');
            }
            continue;
        };
        let (kind, rest) = call.split_once('(')?;
        let (operands, rest) = rest.split_once(')')?;
        let stated = rest.split_once(": (")?.1.strip_suffix(") -> ()")?;
        names.push(operands.to_owned());
        types.push(stated.to_owned());
        exact.push(kind == "expect_eq");
    }
    let (names, types) = (names.join(", "), types.join(", "));
    let arguments = first.split_once(") -> ").map_or(first, |it| it.0).trim_end_matches([' ', '{', ')']);
    let main = format!("{arguments}) -> ({types}) {{\n{body}    return {names} : {types}");
    (!exact.is_empty()).then(|| (format!("{}{main}{}", &text[..begin], &text[end..]), exact))
}

/// Returns whether a tensor has the elements of another one: all bits, or up to the roundings of its type.
fn agrees(found: &DenseTensor, wanted: &DenseTensor, is_exact: bool) -> bool {
    let (a, b) = (found.data.to_f64(), wanted.data.to_f64());
    let close = match found.data.dtype().size() {
        _ if is_exact => 0.0,
        1 | 2 => 1e-2,
        4 => 2e-5,
        _ => 1e-9,
    };
    let is_close =
        |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= close * (1.0 + b.abs());
    found.shape == wanted.shape && a.iter().zip(&b).all(|(a, b)| is_close(*a, *b))
}

/// Runs a test and returns why it does not pass.
fn run(name: &str, text: &str) -> Result<(), String> {
    let (text, exact) = compared(text).ok_or("no check")?;
    let source = hir::source(name, &text);
    let first = |all: Vec<hir::Diagnostic>| all.first().map_or_else(String::new, |it| it.message.clone());
    let program = hir::read(&source).map_err(first)?.remove(0);
    let world = hir::plan(&program, &source, 1).map_err(first)?;
    let outcome = hir::simulate(&world, 0).map_err(|it| it.to_string())?;
    let outputs: Vec<_> = outcome.outputs[0].iter().flatten().collect();
    for (pair, is_exact) in outputs.chunks(2).zip(exact) {
        if !matches!(pair, [a, b] if agrees(a, b, is_exact)) {
            return Err("differs".to_owned());
        }
    }
    Ok(())
}

/// Runs all files of a folder, and compares the rates of operations with those in `docs/jax.md`.
fn run_folder(folder: &Path) -> Result<(), Failed> {
    let mut rates: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let (mut faults, mut out) = (String::new(), io::stdout());
    let mut files: Vec<_> =
        fs::read_dir(folder)?.map(|it| it.map(|it| it.path())).collect::<Result<_, _>>()?;
    files.sort();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains("dynamic") || !name.ends_with(".mlir") {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let types = ["_bfloat", "_float", "_int", "_uint", "_bool", "_complex", ".mlir"];
        let end = types.iter().filter_map(|it| name.find(it)).min().unwrap_or(name.len());
        let rate = rates.entry(name[..end].to_owned()).or_default();
        rate[1] += 1;
        match run(&name, &text) {
            Ok(()) => rate[0] += 1,
            Err(why) if why == "differs" && !EXPLAINED.iter().any(|it| it.0 == name) => {
                faults.push_str(&format!("{name} differs\n"));
            }
            Err(why) => writeln!(out, "{name}: {why}")?,
        }
    }
    let [passed, all] = rates.values().fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
    let mut table = HEADER.to_owned();
    for (name, [passed, all]) in rates.iter().filter(|(_, [passed, all])| passed < all) {
        table.push_str(&format!("|`{name}`|{passed}/{all}|\n"));
    }
    table.push_str(&format!("|others|all|\n|together|{passed}/{all}|\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/jax.md");
    let page = fs::read_to_string(&path)?;
    let begin = page.find(HEADER).ok_or("docs/jax.md has no table")?;
    let length = page[begin..].find("\n\n").map_or(page.len() - begin, |it| it + 1);
    if page[begin..begin + length] != table {
        if env::var_os("INSTA_UPDATE").is_some_and(|it| it == "always") {
            fs::write(&path, format!("{}{table}{}", &page[..begin], &page[begin + length..]))?;
        } else {
            faults.push_str(&format!("docs/jax.md has another table:\n{table}"));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

fn conformance() -> Result<(), Failed> {
    if let Some(folder) = env::var_os("HIR_STABLEHLO") {
        return run_folder(Path::new(&folder));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/stablehlo.mlir");
    let text = fs::read_to_string(path)?;
    let tests = text.split("// ----- ").skip(1);
    let faults: Vec<String> = tests
        .filter_map(|it| it.split_once('\n'))
        .filter_map(|(name, text)| run(name, text).err().map(|why| format!("{name}: {why}")))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}
