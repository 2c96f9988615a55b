//! Judges what `hir certify` says about infinities and NaNs. Random programs make and mask them; each is rewritten by one to four rewrites, of
//! which some are right only over a field. Both programs run on 100 inputs. A pair whose results differ may not be certified, and this
//! file uses nothing of the certifier but its exit code.
//!
//! `tests/baseline/certify-exceptions.txt` records, for each rewrite, how many pairs have it, are unclear, differ, and are missed: they differ
//! are certified. Of some, no other rewrite is right only over a field. Then come pairs whose rewrites are all right, and those
//! of them that are not certified. A pair that differs and is certified on a range runs on 100 inputs within it; the last columns count these
//! pairs, and those that differ there. The numbers of missed pairs may only fall.
//!
//! `HIR_CERTIFY_PAIRS=5000` judges so many pairs, `HIR_SEED=7` others, and fails if one that differs is certified; with `HIR_CERTIFY_KEEP`,
//! these pairs and the table are written to this folder. `HIR_CERTIFY_FOLDER` judges the pairs `*.orig.hir` and `*.low.hir` of a folder.

mod judge;
mod originals;
mod rewrites;
mod terms;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use libtest_mimic::{Failed, Trial};

use self::judge::{Comparison, Verdict, certified, judge, judge_texts};
use crate::{ROOT, files, rng::Rng, setting};

/// The number of pairs of the recorded table.
const PAIRS: usize = 250;
/// The recorded table.
const TABLE: &str = "tests/baseline/certify-exceptions.txt";
/// The name of the row of all pairs.
const ALL: &str = "(all)";

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::test("certify_exceptions::pairs", judge_pairs)];
    if let Some(folder) = env::var_os("HIR_CERTIFY_FOLDER").map(PathBuf::from) {
        trials.push(Trial::test("certify_exceptions::folder", move || judge_folder(&folder)));
    }
    trials
}

fn judge_pairs() -> Result<(), Failed> {
    if let Some(count) = setting::number("HIR_CERTIFY_PAIRS") {
        let (table, misses) = attack(count)?;
        return if misses == 0 { Ok(()) } else { Err(table.into()) };
    }
    let (table, misses) = attack(PAIRS)?;
    let recorded = fs::read_to_string(Path::new(ROOT).join(TABLE)).unwrap_or_default();
    let row = recorded.lines().find_map(|it| it.strip_prefix(ALL));
    let most = |at| row.and_then(|it| it.split_whitespace().nth(at)?.parse::<usize>().ok());
    if most(3).zip(most(8)).is_some_and(|(most, within)| misses > most + within) {
        return Err(format!("{misses} pairs differ and are certified:\n{table}").into());
    }
    setting::compare(TABLE, &table)
}

/// The numbers of pairs of one rewrite.
#[derive(Default)]
struct Row {
    pairs: usize,
    unclear: usize,
    differ: usize,
    missed: usize,
    /// Those of them with no other rewrite of a field.
    alone: usize,
    right: usize,
    refused: usize,
    on_range: usize,
    /// Those of them that differ within it.
    broken: usize,
}

/// Judges random pairs. Returns the table of rewrites, and the number of pairs that are certified and differ.
fn attack(count: usize) -> Result<(String, usize), Failed> {
    let first = setting::number_or("HIR_SEED", 0) as u64 * 1_000_000;
    let keep = env::var_os("HIR_CERTIFY_KEEP").map(PathBuf::from);
    let folder = tempfile::tempdir()?;
    let [original, lowered] = ["original.hir", "lowered.hir"].map(|it| folder.path().join(it));
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for seed in (first..).take(count) {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let before = originals::original(&mut rng);
        let mut after = before.clone();
        let wanted = 1 + rng.below(4);
        let made: Vec<_> = (0..wanted).filter_map(|_| rewrites::rewrite(&mut after, &mut rng)).collect();
        let is_reordered = made.iter().any(|it| it.name == rewrites::REORDER);
        let is_right = made.iter().all(|it| it.is_right);
        let pair = if rng.chance(50) { [&before, &after] } else { [&after, &before] };
        let fault = |it: String| format!("seed {seed}: {it}");
        let (comparison, example) = judge(pair, is_reordered, &[], &mut rng).map_err(fault)?;
        let differs = comparison == Comparison::Differ;
        let mut verdict = Verdict::Refused;
        let mut is_broken = false;
        if differs || is_right {
            let texts = pair.map(|it| it.text(None).0);
            fs::write(&original, &texts[0])?;
            fs::write(&lowered, &texts[1])?;
            verdict = certified(&original, &lowered).map_err(fault)?;
            let names: Vec<&str> = made.iter().map(|it| it.name).collect();
            let mut example = example.unwrap_or_default();
            if differs && is_right {
                return Err(format!(
                    "seed {seed}: right rewrites {} give {example}\n{}\n{}",
                    names.join(", "),
                    texts[0],
                    texts[1]
                )
                .into());
            }
            if let Verdict::OnRange(limits) = &verdict {
                let (within, of) = judge(pair, is_reordered, limits, &mut rng).map_err(fault)?;
                is_broken = within == Comparison::Differ;
                example = of.unwrap_or(example);
            }
            let is_missed = is_broken || differs && matches!(verdict, Verdict::Certified);
            if let Some(keep) = keep.as_ref().filter(|_| is_missed) {
                let head = format!("// {}: {example}\n", names.join(", "));
                fs::write(keep.join(format!("{seed}.orig.hir")), head + &texts[0])?;
                fs::write(keep.join(format!("{seed}.low.hir")), &texts[1])?;
            }
        }
        let mut names: Vec<String> = made.iter().map(|it| it.name.to_owned()).collect();
        names.sort();
        names.dedup();
        let is_field = |it: &&String| rewrites::REWRITES.iter().any(|row| row.name == **it && !row.is_right);
        let certified = matches!(verdict, Verdict::Certified);
        let of_field: Vec<String> = names.iter().filter(is_field).cloned().collect();
        names.push(ALL.to_owned());
        for name in names {
            let is_alone = of_field == [name.clone()];
            let row = rows.entry(name).or_default();
            row.pairs += 1;
            row.unclear += usize::from(comparison == Comparison::Unclear);
            row.differ += usize::from(differs);
            row.missed += usize::from(differs && certified);
            row.alone += usize::from(differs && certified && is_alone);
            row.right += usize::from(is_right);
            row.refused += usize::from(is_right && !certified);
            row.on_range += usize::from(matches!(verdict, Verdict::OnRange(_)));
            row.broken += usize::from(is_broken);
        }
    }
    let mut table =
        format!("{:20}  pairs unclear  differ  missed   alone   right refused   range  broken\n", "rewrite");
    for (name, it) in &rows {
        let Row { pairs, unclear, differ, missed, alone, right, refused, on_range, broken } = it;
        let counts = [pairs, unclear, differ, missed, alone, right, refused, on_range, broken]
            .map(|it| format!("{it:7}"));
        let _ = writeln!(table, "{name:20}{}", counts.join(" "));
    }
    if let Some(keep) = keep {
        fs::write(keep.join("table.txt"), &table)?;
    }
    Ok((table, rows.get(ALL).map_or(0, |it| it.missed + it.broken)))
}

/// Judges the pairs of a folder, and fails with what is certified and differs.
fn judge_folder(folder: &Path) -> Result<(), Failed> {
    let mut report = String::new();
    for original in files(folder, "hir") {
        let Some(name) = original.to_str().and_then(|it| it.strip_suffix(".orig.hir")) else { continue };
        let lowered = PathBuf::from(format!("{name}.low.hir"));
        let texts = [fs::read_to_string(&original)?, fs::read_to_string(&lowered)?];
        let found = judge_texts([&texts[0], &texts[1]], &mut Rng(1))?;
        if matches!(certified(&original, &lowered)?, Verdict::Certified) && !found.is_empty() {
            let _ = writeln!(report, "{name}: {} inputs differ: {}", found.len(), found[0]);
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report.into()) }
}
