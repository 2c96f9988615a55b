//! Checks which module may use which. Which package uses which is in the manifests; the
//! dependencies of modules are read from the `use` lines and paths of the sources. A dependency on a higher layer fails, and a
//! new module must be assigned to a layer.

mod layers;
mod sources;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use libtest_mimic::{Failed, Trial};

use crate::ROOT;
use layers::{ALL, BEFORE, LAYERS, Layer, PACKAGES};
use sources::{dependencies_of, paths_of_modules_are_read, production, sources};

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("modules_use_only_layers_below", modules_use_only_layers_below),
        Trial::test("architecture_lists_packages_and_modules", architecture_lists_packages_and_modules),
        Trial::test("packages_know_only_what_they_may", packages_know_only_what_they_may),
        Trial::test("packages_have_licences_and_no_tests", packages_have_licences_and_no_tests),
        Trial::test("analyses_change_no_program", analyses_change_no_program),
        Trial::test("runs_share_no_state", runs_share_no_state),
        Trial::test("paths_of_modules_are_read", paths_of_modules_are_read),
    ]
}

fn modules_use_only_layers_below() -> Result<(), Failed> {
    let mut faults = Vec::new();
    for (folder, rows) in LAYERS {
        let allowed = allowed(rows).map_err(|it| format!("{folder}: {it}"))?;
        let known: BTreeSet<String> = allowed.keys().map(|it| (*it).to_owned()).collect();
        let found = dependencies_of(folder, &known)?;
        for (module, (used, file)) in &found {
            let Some(below) = allowed.get(module.as_str()) else {
                faults.push(format!("{file}: module `{module}` is not assigned to a layer"));
                continue;
            };
            let up = used.iter().filter(|(it, _)| !below.contains(it.as_str()));
            faults.extend(up.map(|(it, file)| format!("{file}: `{module}` uses `{it}`")));
        }
        let gone = known.iter().filter(|it| !found.contains_key(*it));
        faults.extend(gone.map(|it| format!("{folder}: there is no module `{it}`")));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Checks that `docs/architecture.md` has a heading for each package, those of `PACKAGES` in their order, and below it a line that
/// begins with the name of each file and folder of its source.
fn architecture_lists_packages_and_modules() -> Result<(), Failed> {
    // The last three are folders that fuzzing writes.
    const NO_MODULES: [&str; 6] = ["lib", "tests", "build", "artifacts", "corpus", "target"];
    let page = fs::read_to_string(Path::new(ROOT).join("docs/architecture.md"))?;
    let sections: Vec<(&str, &str)> =
        page.split("\n### `").skip(1).filter_map(|it| it.split_once('`')).collect();
    let wanted = PACKAGES.iter().map(|it| it.0);
    if !wanted.clone().eq(sections.iter().map(|it| it.0).take(PACKAGES.len())) {
        return Err(format!(
            "docs/architecture.md has no headings in this order: {:?}",
            wanted.collect::<Vec<_>>()
        )
        .into());
    }
    let workspace = fs::read_to_string(Path::new(ROOT).join("Cargo.toml"))?;
    let members = workspace.split(']').nth(1).unwrap_or_default().split('"').skip(1).step_by(2);
    for member in members {
        let section = sections.iter().find(|it| it.0 == member);
        let section = section.ok_or_else(|| format!("docs/architecture.md has no heading `{member}`"))?.1;
        let listed: BTreeSet<&str> = section
            .lines()
            .filter_map(|it| it.split([' ', ',']).next())
            .filter(|it| !it.is_empty())
            .collect();
        let folder = Path::new(ROOT).join(member);
        let source = if folder.join("src").exists() { folder.join("src") } else { folder };
        for entry in fs::read_dir(source)? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|it| it.to_str()).unwrap_or_default();
            let is_module = path.is_dir() || path.extension().is_some_and(|it| it == "rs" || it == "lalrpop");
            if is_module && !NO_MODULES.contains(&name) && !listed.contains(name) {
                return Err(format!("docs/architecture.md: no line for `{name}` below `{member}`").into());
            }
        }
    }
    Ok(())
}

/// Checks that each package depends on packages before it in `PACKAGES` only, and on nothing that it must not know.
fn packages_know_only_what_they_may() -> Result<(), Failed> {
    let folder_of = |name: &str| match name.strip_prefix("hir-") {
        Some(name) => format!("src/{name}"),
        None => name.to_owned(),
    };
    let position = |folder: &str| PACKAGES.iter().position(|it| it.0 == folder);
    let mut faults = Vec::new();
    for (at, (folder, unknown)) in PACKAGES.iter().enumerate() {
        let manifest = fs::read_to_string(Path::new(ROOT).join(folder).join("Cargo.toml"))?;
        let dependencies =
            manifest.split("[dependencies]\n").nth(1).ok_or("a manifest has no dependencies")?;
        let names = dependencies.lines().take_while(|it| !it.starts_with('['));
        for name in names.filter_map(|it| it.split(['.', ' ', '=']).next()).filter(|it| !it.is_empty()) {
            if unknown.contains(&name) || position(&folder_of(name)).is_some_and(|it| it >= at) {
                faults.push(format!("{folder}/Cargo.toml depends on `{name}`"));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Returns the modules that each module of some rows may use.
fn allowed(rows: &[Layer]) -> Result<BTreeMap<&'static str, BTreeSet<&'static str>>, String> {
    let all: BTreeSet<&str> = rows.iter().flat_map(|row| row.0.split_whitespace()).collect();
    let mut before = BTreeSet::new();
    let mut allowed = BTreeMap::new();
    for (modules, below) in rows {
        let below = match *below {
            ALL => all.clone(),
            BEFORE => before.clone(),
            listed => match listed.iter().find(|it| !before.contains(**it)) {
                Some(it) => return Err(format!("`{modules}` may use `{it}`, which is not in a lower layer")),
                None => listed.iter().copied().collect(),
            },
        };
        before.extend(modules.split_whitespace());
        allowed.extend(modules.split_whitespace().map(|module| (module, below.clone())));
    }
    Ok(allowed)
}

fn analyses_change_no_program() -> Result<(), Failed> {
    for path in sources("passes/src/analysis")? {
        if production(&fs::read_to_string(&path)?).contains("&mut Program") {
            return Err(format!("{}: takes a mutable program", path.display()).into());
        }
    }
    Ok(())
}

/// Checks that only what the operating system, or a library of the vendor, gives once to a process is process-wide state:
/// jobs with different sessions run at the same time.
fn runs_share_no_state() -> Result<(), Failed> {
    // A `LazyLock` is a constant that is computed once, unless it contains one of these.
    let kinds = ["Mutex<", "RwLock<", "OnceLock<", ": Once ", "Atomic"];
    // `grammar` interns names, which are the same in all runs, and `src/executor` has the backend with which the program is linked. So are the
    // passes that the `main` of a tool adds. `src/launch` has the process that watches this one.
    const LINKED: &str = "static FURTHER: OnceLock<Vec<&'static Pass>>";
    const HAVE_STATE: [&str; 5] = ["grammar", "src/cuda", "src/executor", "src/launch", "src/process"];
    for (folder, _) in PACKAGES.iter().filter(|it| !HAVE_STATE.contains(&it.0)) {
        for path in sources(folder)? {
            let text = production(&fs::read_to_string(&path)?);
            let is_static = |line: &str| line.replace("'static", "").contains("static ");
            let is_state = |line: &str| {
                is_static(line) && !line.starts_with(LINKED) && kinds.iter().any(|it| line.contains(it))
            };
            if let Some(line) = text.lines().find(|line| is_state(line)) {
                return Err(format!("{}: state of the process: {}", path.display(), line.trim()).into());
            }
        }
    }
    Ok(())
}

/// What `cargo package` publishes of a package.
fn packages_have_licences_and_no_tests() -> Result<(), Failed> {
    for (folder, _) in PACKAGES.iter().filter(|it| it.0 != "python") {
        let manifest = Path::new(ROOT).join(folder).join("Cargo.toml");
        let mut command = Command::new(env!("CARGO"));
        command.args(["package", "--list", "--allow-dirty", "--offline", "--manifest-path"]).arg(&manifest);
        let output = command.output()?;
        let listed = String::from_utf8_lossy(&output.stdout);
        let is_test = |it: &&str| it.split('/').any(|it| it == "tests") || it.ends_with("tests.rs");
        let licences = listed.lines().filter(|it| it.starts_with("LICENSE-")).count();
        if let Some(test) = listed.lines().find(is_test) {
            return Err(format!("{folder} would be published with {test}").into());
        }
        if licences != 2 {
            return Err(format!("{folder} would be published with {licences} licences: {output:?}").into());
        }
    }
    Ok(())
}
