//! Which module may use which: the layers of `docs/architecture.md`. Read from the `use` lines and paths of the sources, so that an
//! arrow that points up fails here, and a new module has to be given its place.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use libtest_mimic::{Failed, Trial};

use crate::ROOT;

/// The modules of `src`, and what each may use; the first ones are used by those behind them.
const LAYERS: [(&str, &[&str]); 19] = [
    ("exit", &[]),
    ("tool_name", &[]),
    ("out_of_memory", &["exit", "tool_name"]),
    ("threads", &["exit", "tool_name"]),
    ("atomic_file", &["out_of_memory"]),
    ("input_file", &["out_of_memory", "threads", "tool_name"]),
    ("interrupt", &["atomic_file", "exit"]),
    ("source", &["input_file"]),
    ("elementwise", &[]),
    ("plan", &[]),
    ("tool", &["atomic_file", "exit", "input_file", "plan", "source", "tool_name"]),
    ("io", &["atomic_file", "input_file", "plan", "threads"]),
    ("sim", &["elementwise", "io", "plan", "threads"]),
    ("cuda", &["elementwise", "io", "plan"]),
    ("launch", &["exit", "interrupt", "plan"]),
    ("run", &["atomic_file", "cuda", "exit", "input_file", "io", "launch", "plan", "sim", "source", "tool"]),
    ("reduce", &["io", "plan", "run", "sim", "source"]),
    // The binaries and the crate's root use everything.
    ("bin", &["*"]),
    ("lib", &["*"]),
];

/// Crates, and the crates of the project that each may use.
const CRATES: [(&str, &[&str]); 3] =
    [("grammar", &[]), ("passes", &["grammar"]), ("src", &["grammar", "passes"])];

/// The trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("modules_use_only_layers_below", modules_use_only_layers_below),
        Trial::test("crates_use_only_crates_below", crates_use_only_crates_below),
    ]
}

fn modules_use_only_layers_below() -> Result<(), Failed> {
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    for (at, (module, below)) in LAYERS.iter().enumerate() {
        let before: Vec<&str> = LAYERS[..at].iter().map(|it| it.0).collect();
        if let Some(it) = below.iter().find(|it| **it != "*" && !before.contains(it)) {
            return Err(format!("`{module}` may use `{it}`, which stands behind it: a circle").into());
        }
    }
    let mut faults = Vec::new();
    for path in sources("src")? {
        let inner = path.strip_prefix(Path::new(ROOT).join("src"))?;
        let module = inner.iter().next().map(|it| it.to_string_lossy().trim_end_matches(".rs").to_owned());
        let module = module.unwrap_or_default();
        let Some(below) = allowed.get(module.as_str()) else {
            faults.push(format!("src/{}: module `{module}` has no place among the layers", inner.display()));
            continue;
        };
        for used in used(&production(&fs::read_to_string(&path)?), "crate") {
            let known = allowed.contains_key(used.as_str());
            if known && used != module && !below.contains(&"*") && !below.contains(&used.as_str()) {
                faults.push(format!("src/{}: `{module}` uses `{used}`", inner.display()));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

fn crates_use_only_crates_below() -> Result<(), Failed> {
    let mut faults = Vec::new();
    for (folder, below) in CRATES {
        for path in sources(folder)? {
            let text = fs::read_to_string(&path)?;
            let all =
                ["grammar", "passes", "hir"].into_iter().filter(|it| *it != folder && !below.contains(it));
            for other in all.filter(|it| folder != "src" || *it != "hir") {
                let names = |line: &str| {
                    let line = line.trim_start();
                    !line.starts_with("//")
                        && (line.contains(&format!("{other}::")) || line == format!("use {other};"))
                };
                if production(&text).lines().any(names) {
                    faults.push(format!("{}: uses crate `{other}`", path.display()));
                }
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// The sources of a crate that are not tests.
fn sources(folder: &str) -> Result<Vec<PathBuf>, Failed> {
    let mut folders = vec![Path::new(ROOT).join(folder)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_test = path.file_stem().is_some_and(|it| it == "tests" || it == "target");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
                found.push(path);
            }
        }
    }
    match found.is_empty() {
        true => Err(format!("no sources in {folder}").into()),
        false => Ok(found),
    }
}

/// A source without its unit tests, which stand last.
fn production(text: &str) -> String {
    let tests = ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(all(test"];
    let end = tests.iter().filter_map(|it| text.find(it)).min();
    text[..end.unwrap_or(text.len())].to_owned()
}

/// The first segments of all paths that begin with `root`: `crate::{a::b, c}` uses `a` and `c`.
fn used(text: &str, root: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let start = format!("{root}::");
    for (at, _) in text.match_indices(&start) {
        let line = text[..at].rfind('\n').map_or(0, |it| it + 1);
        // A longer name, a comment, or a macro's `$crate`.
        let before = text[..at].chars().next_back();
        if before.is_some_and(|it| it.is_alphanumeric() || it == '_' || it == '$' || it == ':')
            || text[line..at].trim_start().starts_with("//")
        {
            continue;
        }
        let rest = &text[at + start.len()..];
        match rest.strip_prefix('{') {
            None => found.extend(word(rest)),
            Some(list) => {
                let (mut depth, mut begins) = (0, true);
                for (at, it) in list.char_indices() {
                    match it {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begins = true,
                        _ if it.is_whitespace() => (),
                        _ if begins => {
                            found.extend(word(&list[at..]));
                            begins = false;
                        }
                        _ => (),
                    }
                }
            }
        }
    }
    found
}

fn word(text: &str) -> Option<String> {
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}
