//! Tests `hir_certify`: nearly all that pipelines make of the samples and the cases is certified; planted bugs are
//! refused; and a random edit of a lowered text that changes a result in the simulator is never certified.

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    path::{Path, PathBuf},
};

use grammar::{bindings::apply_bindings, diagnostic::has_errors, ir::Program, span::LineIndex};
use hir_certify::{Settings, certify};
use hir_driver::run::{
    inputs::InputSpec,
    results,
    verdict::{Criteria, ExpectationSource, expectations, judge_outputs, simulate},
};
use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};

use crate::{ROOT, baseline, files, is_sample, pipelines, rng::Rng, setting, shown};

/// The pipelines whose results are edited.
const PIPELINES: &[&str] = &["@lower", "@overlap"];

/// The recorded shares of certified outputs.
const TABLE: &str = "tests/baseline/certify-pipelines.txt";

/// The least share of certified outputs of all programs and pipelines.
const LEAST: f64 = 0.98;

/// The number of random edits of each program.
const EDITS: usize = 40;

/// Returns the trials of this file.
pub fn trials(cases: &[PathBuf], modules: &[PathBuf]) -> Vec<Trial> {
    let is_source = |it: &&PathBuf| {
        let name = shown(it);
        (name.starts_with("tests/cases/lower") || is_sample(it))
            // Programs of the extents of real models are too large to execute.
            && !["training-step", "/train-"].iter().any(|it| name.contains(it))
    };
    let sources: Vec<PathBuf> = cases.iter().filter(is_source).cloned().collect();
    let edited = sources.clone();
    // All programs take minutes.
    let all = if tries_all() {
        [cases, modules, &files(&Path::new(ROOT).join("tests/recorded"), "mlir")].concat()
    } else {
        sources
    };
    vec![
        Trial::test("certify::outputs_of_pipelines", move || certify_outputs(&all)),
        Trial::test("certify::transformer_block_of_many_ranks", certify_transformer_block),
        Trial::test("certify::wrong_edits_are_refused", move || refuse_wrong_edits(&edited)),
        Trial::test("certify::the_package_is_small", the_package_is_small),
    ]
}

/// A program before and after a pipeline.
struct Lowered {
    name: String,
    original: Program,
    lowered: Program,
}

fn lowered(sources: &[PathBuf]) -> Result<Vec<Lowered>, String> {
    let mut found = Vec::new();
    for path in sources {
        let Ok([(original, _)]) = <[_; 1]>::try_from(baseline::programs(path, None)?) else { continue };
        for pipeline in PIPELINES {
            let Some((lowered, _)) = baseline::programs(path, Some(pipeline))?.pop() else { continue };
            found.push(Lowered {
                name: format!("{} {pipeline}", shown(path)),
                original: original.clone(),
                lowered,
            });
        }
    }
    Ok(found)
}

/// Certifies what each pipeline that lowers writes for each program, and compares the table of shares with the recorded one. Below a row are
/// the outputs that are refused. `HIR_CERTIFY_PIPELINES=1` certifies those of all
/// programs instead, and fails below a share. With `HIR_CERTIFY_KEEP`, the pairs are written to this folder.
fn certify_outputs(sources: &[PathBuf]) -> Result<(), Failed> {
    let keep = env::var_os("HIR_CERTIFY_KEEP").map(PathBuf::from);
    let mut rows: BTreeMap<&str, (usize, usize, String)> = BTreeMap::new();
    for path in sources {
        let (mut programs, diagnostics) =
            hir_front::source(shown(path), fs::read_to_string(path)?).programs();
        let Some(mut original) = programs.pop().filter(|_| programs.is_empty()) else { continue };
        let bindings = pipelines::bindings(&fs::read_to_string(path)?);
        if has_errors(&diagnostics)
            || apply_bindings(&mut original, &bindings).is_err()
            || !pipelines::is_unlowered(&original)
            || has_errors(&grammar::verify(&original))
        {
            continue;
        }
        let text = grammar::print(&original);
        if baseline::plans_if_small(&original, &LineIndex::new(&text)).is_none() {
            continue;
        }
        // Several pipelines write the same program.
        let mut known: HashMap<String, Option<String>> = HashMap::new();
        for pipeline in pipelines::lowering_pipelines() {
            let Some((program, _)) = pipelines::lowered(pipeline, &text)? else { continue };
            let printed = grammar::print(&program);
            let fault = known.entry(printed).or_insert_with_key(|printed| {
                if let Some(keep) = &keep {
                    let name = format!("{}{pipeline}", shown(path).replace('/', "+"));
                    let _ = fs::write(keep.join(format!("{name}.orig.hir")), &text);
                    let _ = fs::write(keep.join(format!("{name}.low.hir")), printed);
                    return None;
                }
                let lowered = grammar::read(printed).0.pop()?;
                let settings = |runs| Settings { ranks: None, runs, seed: Some(7) };
                let mut fault = certify(&original, &lowered, &settings(1)).err()?.diagnostic;
                if fault.message.starts_with("nothing is proved") {
                    fault = certify(&original, &lowered, &settings(6)).err()?.diagnostic;
                }
                Some(format!("  {}: {} {}\n", shown(path), fault.code.text(), fault.message))
            });
            let row = rows.entry(pipeline).or_default();
            *row = (
                row.0 + 1,
                row.1 + usize::from(fault.is_none()),
                row.2.clone() + fault.as_deref().unwrap_or_default(),
            );
        }
    }
    let count = |it: fn(&(usize, usize, String)) -> usize| rows.values().map(it).sum::<usize>();
    let (all, certified) = (count(|it| it.0), count(|it| it.1));
    let row = |(name, all, certified, faults): (&str, usize, usize, &str)| {
        format!("{name}: {certified} of {all}, {:.1} %\n{faults}", 100.0 * certified as f64 / all as f64)
    };
    let table = row(("all pipelines", all, certified, ""))
        + &rows.iter().map(|(name, it)| row((name, it.0, it.1, &it.2))).collect::<String>();
    if !tries_all() {
        return setting::compare(TABLE, &table);
    }
    if (certified as f64) < LEAST * all as f64 { Err(table.into()) } else { Ok(()) }
}

fn tries_all() -> bool {
    env::var_os("HIR_CERTIFY_PIPELINES").is_some()
}

/// Certifies a transformer block with its gradients on 8 ranks, or on `HIR_CERTIFY_RANKS`: the case for 2 ranks with as many heads, and four
/// columns for each. With `HIR_CERTIFY_KEEP`, the programs are written to this folder.
fn certify_transformer_block() -> Result<(), Failed> {
    let ranks = env::var("HIR_CERTIFY_RANKS").map_or(Ok(8), |it| it.parse::<usize>())?;
    let case =
        fs::read_to_string(PathBuf::from(ROOT).join("tests/cases/lower/train-block-tensor-parallel.hir"))?;
    let text: Vec<String> = case.lines().map(|it| scaled(it, ranks)).collect();
    let folder = env::var_os("HIR_CERTIFY_KEEP").map(PathBuf::from);
    let temporary = tempfile::tempdir()?;
    let folder = folder.unwrap_or(temporary.path().to_owned());
    let path = folder.join("block.hir");
    fs::write(&path, text.join("\n"))?;
    let programs = lowered(&[path])?;
    if programs.len() != PIPELINES.len() {
        return Err(format!("{} programs are lowered", programs.len()).into());
    }
    for it in programs {
        let pipeline = it.name.rsplit(' ').next().unwrap_or_default().trim_start_matches('@');
        fs::write(folder.join(format!("block-{pipeline}.hir")), grammar::print(&it.lowered))?;
        let settings = Settings { ranks: Some(ranks), runs: 3, seed: Some(7) };
        certify(&it.original, &it.lowered, &settings)
            .map_err(|fault| format!("{}: {}", it.name, fault.diagnostic.message))?;
    }
    Ok(())
}

/// Returns a line of the block for 2 ranks, as that for `ranks` has it. The first axis of 2 elements is the batch; other ones are heads.
fn scaled(line: &str, ranks: usize) -> String {
    let mesh: Vec<String> = (0..ranks).map(|it| it.to_string()).collect();
    let line = line
        .replace("DeviceMesh{0 1}", &format!("DeviceMesh{{{}}}", mesh.join(" ")))
        .replace("float(8)", &format!("float({})", 4 * ranks))
        .replace(", 2) ->", &format!(", {ranks}) ->"));
    let mut scaled = String::new();
    let (mut rest, mut has_batch) = (line.as_str(), false);
    while let Some((before, (extent, behind))) =
        rest.split_once('{').and_then(|(before, after)| Some((before, after.split_once('}')?)))
    {
        let axis = before.rsplit([' ', '(', '[', ',']).next().unwrap_or_default();
        let new = match extent {
            "2" if axis.starts_with("ideviceIdx") => ranks,
            "2" if !std::mem::replace(&mut has_batch, true) => 2,
            "2" => ranks,
            "8" => 4 * ranks,
            "12" => 6 * ranks,
            _ => 0,
        };
        let new = if new == 0 { extent.to_owned() } else { new.to_string() };
        scaled += &format!("{before}{{{new}}}");
        rest = behind;
    }
    scaled + rest
}

fn refuse_wrong_edits(sources: &[PathBuf]) -> Result<(), Failed> {
    let mut rng = Rng(46);
    let [mut wrong, mut refused, mut certified] = [0; 3];
    for it in lowered(sources)? {
        let text = grammar::print(&it.lowered);
        for _ in 0..EDITS {
            let Some(edited) = edit(&text, &mut rng) else { continue };
            let (mut programs, diagnostics) = grammar::read(&edited);
            let Some(program) = programs.pop().filter(|_| !has_errors(&diagnostics)) else { continue };
            if has_errors(&grammar::verify(&program)) {
                continue;
            }
            let settings =
                Settings { ranks: Some(hir_plan::smallest_world(&it.original)), runs: 1, seed: Some(7) };
            let verdict = certify(&it.original, &program, &settings);
            match (agree(&it.original, &program), &verdict) {
                (Some(false), Ok(_)) => {
                    return Err(format!("{}: certified, but wrong:\n{edited}", it.name).into());
                }
                (Some(false), Err(_)) => wrong += 1,
                (_, Err(_)) => refused += 1,
                (_, Ok(_)) => certified += 1,
            }
        }
    }
    if wrong >= 100 {
        Ok(())
    } else {
        Err(format!("{wrong} wrong edits, {refused} others refused, {certified} certified").into())
    }
}

/// Returns whether two programs have the same results in the simulator, for inputs for which sums are exact; `None` if one of them does
/// not run.
pub fn agree(original: &Program, edited: &Program) -> Option<bool> {
    let ranks = hir_plan::smallest_world(original);
    let plans = |it: &Program| hir_plan::build(it, &LineIndex::new(&grammar::print(it)), ranks).ok();
    let (before, after) = (plans(original)?, plans(edited)?);
    let mut filling = InputSpec::new(InputKind::Exact, 3, &before);
    let [inputs, same] = [filling.fill(&before).ok()?, filling.fill(&after).ok()?];
    let wanted = simulate(&before, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT).ok()?;
    let found = simulate(&after, same, &Schedule::Program, DEFAULT_MEMORY_LIMIT).ok()?;
    if !wanted.notes.exactness.is_exact() || !found.notes.exactness.is_exact() {
        return None;
    }
    let basis = ExpectationSource::Reference { exact: true };
    let wanted = expectations(results::outputs(&before, &wanted).ok()?, "the original", basis);
    let criteria = Criteria { exact: Some(true), ..Criteria::default() };
    Some(judge_outputs(&after, &found, &wanted, &criteria).ok()?.is_right())
}

/// Makes one random edit of a statement: it is left out, done twice, exchanged with the next one, has another operand or number, or is another
/// operator.
fn edit(text: &str, rng: &mut Rng) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let statements: Vec<usize> = (1..lines.len()).filter(|at| lines[*at].starts_with("  ")).collect();
    let at = *statements.get(rng.below(statements.len()))?;
    match rng.below(6) {
        0 => _ = lines.remove(at),
        1 => lines.insert(at, lines[at].clone()),
        2 => {
            let next = (at + 1).min(lines.len() - 1);
            lines.swap(at, next);
        }
        3 => {
            let line = lines[at].clone();
            let numbers: Vec<(usize, &str)> = line
                .match_indices(|it: char| it.is_ascii_digit())
                .filter(|(at, _)| line[..*at].ends_with([' ', '=', '{', '(']))
                .collect();
            let (place, _) = *numbers.get(rng.below(numbers.len()))?;
            lines[at].replace_range(place..=place, &rng.below(4).to_string());
        }
        4 => {
            let (from, to) = rng.choose_cloned(&[
                (" + ", " - "),
                (" * ", " + "),
                ("SUM", "MAX"),
                ("relu", "sigmoid"),
                ("SUM", "AVG"),
                ("Allgather", "AllToAll"),
            ]);
            lines[at] = lines[at].contains(from).then(|| lines[at].replace(from, to))?;
        }
        _ => {
            let tensors: Vec<String> = lines.iter().flat_map(|it| tensors_of(it)).collect();
            let own = tensors_of(&lines[at]);
            let from = own.get(rng.below(own.len()))?;
            let shape = |it: &str| it.split('[').nth(1).map(|it| it.matches('{').count());
            let alike: Vec<&String> =
                tensors.iter().filter(|it| shape(it) == shape(from) && *it != from).collect();
            let to = *alike.get(rng.below(alike.len()))?;
            lines[at] = lines[at].replacen(from.as_str(), to, 1);
        }
    }
    Some(lines.join("\n") + "\n")
}

/// Returns the tensors of a line, as they are written.
fn tensors_of(line: &str) -> Vec<String> {
    let starts =
        line.match_indices('T').filter(|(at, _)| line[at + 1..].starts_with(|it: char| it.is_ascii_digit()));
    let text = |(at, _): (usize, &str)| {
        let rest = &line[at..];
        let axes = rest.find(']')? + 1;
        let mesh =
            rest[axes..].strip_prefix(" (DeviceMesh{").and_then(|it| it.find("})")).map_or(0, |it| it + 15);
        rest.get(..axes + mesh).map(str::to_owned)
    };
    starts.filter_map(text).collect()
}

/// Whoever believes a certificate has to believe this code: all lines of the package that are neither blank nor comments, but for its
/// command line, which reads the files and prints what `certify` returns. It has no tests of its own.
fn the_package_is_small() -> Result<(), Failed> {
    let mut lines = 0;
    let folders = ["src/certify", "src/certify/unroll"];
    let entries = folders.map(|it| fs::read_dir(PathBuf::from(ROOT).join(it)));
    for entry in entries.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        let path = entry?.path();
        let is_command_line = ["command.rs", "main.rs"].iter().any(|it| path.ends_with(it));
        if path.extension().is_some_and(|it| it == "rs") && !is_command_line {
            let text = fs::read_to_string(path)?;
            let is_code = |it: &&str| !it.trim().is_empty() && !it.trim_start().starts_with("//");
            lines += text.lines().filter(is_code).count();
        }
    }
    let is_small = lines <= 2_400;
    if is_small { Ok(()) } else { Err(format!("src/certify has {lines} lines of code").into()) }
}
