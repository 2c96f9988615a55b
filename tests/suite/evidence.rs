//! Plants faults in sums, and checks that a comparison with the right program finds them: one term is dropped, counted twice, or
//! replaced by the one before it. A maximum or minimum starts at 0. The table in docs/results.md is made from this test; `INSTA_UPDATE=always` writes it.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path, process::Command};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, setting};
use crate::timeout::RunWithTimeout;

/// The seeds under which each fault is looked for.
const SEEDS: usize = 6;

/// The head of the table.
const HEAD: &str = "|fault planted|n|type|found|\n|---|---:|---|---:|\n";

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("evidence::planted_faults_are_found", planted_faults_are_found)]
}

/// Returns the text of a product of a row with a column. `parts` are the ranges of the terms that are summed.
fn product(dtype: &str, n: usize, parts: &[(usize, usize)]) -> String {
    let mut text = format!(
        "%HostIrContainer {{ (T0_g_{dtype}[iS0{{1}}, iS1{{{n}}}], T1_g_{dtype}[iS2{{1}}, iS3{{{n}}}]) -> (T2_g_{dtype}[iS4{{1}}, iS5{{1}}]) :\n"
    );
    let mut at = 10;
    let mut part = |text: &mut String, from: usize, (start, end): (usize, usize)| {
        at += 1;
        let len = end - start;
        let _ = writeln!(
            text,
            "  T{at}_g_{dtype}[iS{}{{1}}, iS{}{{{len}}}] = slice( T{from}_g_{dtype}[iS{}{{1}}, iS{}{{{n}}}], {{ {{0, 1, 1}}, {{{start}, {end}, 1}} }} )",
            10 * at,
            10 * at + 1,
            2 * from,
            2 * from + 1
        );
        (at, len)
    };
    let mut joined = Vec::new();
    for from in 0..2 {
        let found: Vec<_> = parts.iter().map(|it| part(&mut text, from, *it)).collect();
        let len: usize = found.iter().map(|it| it.1).sum();
        let name = 30 + from;
        let list: Vec<String> = found
            .iter()
            .map(|(at, len)| format!("T{at}_g_{dtype}[iS{}{{1}}, iS{}{{{len}}}]", 10 * at, 10 * at + 1))
            .collect();
        let whole =
            format!("T{name}_g_{dtype}[iS{}{{1}}, iS{}{{{len}}}]", 1000 + 10 * name, 1001 + 10 * name);
        let _ = writeln!(text, "  {whole} = cat( {}, 1 )", list.join(", "));
        joined.push(whole);
    }
    let _ = writeln!(
        text,
        "  T2_g_{dtype}[iS4{{1}}, iS5{{1}}] = linear({}, {})\n}} // %HostIrContainer",
        joined[0], joined[1]
    );
    text
}

/// Returns the text of an extreme of each of 4 rows, which starts at a value.
fn extreme(dtype: &str, n: usize, op: &str, start: &str) -> String {
    format!(
        "%HostIrContainer {{ (T0_g_{dtype}[iS0{{4}}, iS1{{{n}}}]) -> (T1_g_{dtype}[iS2{{4}}, rS3{{{n}}}]) :\n  \
         T1_g_{dtype}[iS2{{4}}, rS3{{{n}}}] = reduction( T0_g_{dtype}[iS0{{4}}, iS1{{{n}}}], op = {op}, \
         initial value = {dtype}({start}), allreduce = false )\n}} // %HostIrContainer\n"
    )
}

fn planted_faults_are_found() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("hir-evidence-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let mut table = String::new();
    let mut missed = false;
    let mut counts = BTreeMap::<&str, (usize, usize)>::new();
    for dtype in ["__bfloat", "__half", "float"] {
        for n in [1024, 4096] {
            let faults: [(&str, Vec<(usize, usize)>); 3] = [
                ("dropped", vec![(0, n / 2), (n / 2 + 1, n)]),
                ("doubled", vec![(0, n / 2 + 1), (n / 2, n)]),
                ("replaced", vec![(0, n / 2), (n / 2 - 1, n / 2), (n / 2 + 1, n)]),
            ];
            let path = |name: &str| folder.join(format!("{name}.hir"));
            let whole = product(dtype, n, &[(0, n / 2), (n / 2, n)]);
            let sums = faults.map(|(fault, parts)| (fault, product(dtype, n, &parts), whole.clone()));
            let extremes = [("max from 0", "max", "-inf"), ("min from 0", "min", "inf")]
                .map(|(fault, op, start)| (fault, extreme(dtype, n, op, "0"), extreme(dtype, n, op, start)));
            for (fault, wrong, right) in sums.into_iter().chain(extremes) {
                fs::write(path("wrong"), wrong)?;
                fs::write(path("right"), right)?;
                let (found, all) = counts.entry(fault).or_default();
                *all += SEEDS;
                for seed in 0..SEEDS {
                    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
                    command.arg(path("wrong")).arg("--reference").arg(path("right"));
                    let output = command.args(["-q", "--seed", &seed.to_string()]).output_with_timeout()?;
                    match output.status.code() {
                        Some(3) => *found += 1,
                        Some(0) => (),
                        code => {
                            return Err(
                                format!("{code:?}: {}", String::from_utf8_lossy(&output.stderr)).into()
                            );
                        }
                    }
                }
            }
        }
    }
    for (fault, (found, all)) in counts {
        missed |= found < all;
        let _ = writeln!(table, "|{fault}|1024, 4096|bf16, f16, f32|{found}/{all}|");
    }
    fs::remove_dir_all(&folder)?;
    let page = Path::new(ROOT).join("docs/results.md");
    let text = fs::read_to_string(&page)?;
    let (before, rest) = text.split_once(HEAD).ok_or("docs/results.md has no table of planted faults")?;
    let end = if rest.starts_with('\n') { 0 } else { rest.find("\n\n").map_or(rest.len(), |at| at + 1) };
    if missed || rest[..end] != table {
        if setting::updates() {
            fs::write(&page, format!("{before}{}{table}{}", HEAD, &rest[end..]))?;
        } else {
            return Err(format!("docs/results.md has another table than this:\n{table}").into());
        }
    }
    if missed { Err(format!("a fault is missed:\n{table}").into()) } else { Ok(()) }
}
