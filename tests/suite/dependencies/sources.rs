//! Reads which modules a module uses from the `use` lines and paths of the sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use libtest_mimic::Failed;

use crate::ROOT;

/// The modules of a folder. For each module: the other known modules that it uses, each with the file that
/// uses it, and one file of the module.
pub type Dependencies = BTreeMap<String, (BTreeMap<String, String>, String)>;

/// Returns what the modules of a folder use of those that are `known`.
pub fn dependencies_of(folder: &str, known: &BTreeSet<String>) -> Result<Dependencies, Failed> {
    let root = Path::new(ROOT).join(folder);
    // The modules of `grammar/src` and of `src/plan` are those at the root of a package.
    let inside = modules(folder.splitn(3, '/').nth(2).unwrap_or_default());
    let reexports = reexports(&root)?;
    let mut arrows = Dependencies::new();
    for path in sources(folder)? {
        let file = path.strip_prefix(ROOT)?.display().to_string();
        let own = modules(&path.strip_prefix(&root)?.to_string_lossy());
        let Some(module) = own.first() else { continue };
        let (used, _) = arrows.entry(module.clone()).or_insert_with(|| (BTreeMap::new(), file.clone()));
        let place = [&inside[..], &own[..]].concat();
        for path in paths(&production(&fs::read_to_string(&path)?), &place) {
            let Some([first, rest @ ..]) = path.strip_prefix(&inside[..]) else { continue };
            // A function that the root re-exports may have the name of another module.
            let first = reexports.get(first).filter(|_| rest.is_empty()).unwrap_or(first);
            if first != module && known.contains(first) {
                used.entry(first.clone()).or_insert_with(|| file.clone());
            }
        }
    }
    Ok(arrows)
}

/// Returns the module path of a file: `sync` for `sync/mod.rs` and `sync.rs`.
fn modules(file: &str) -> Vec<String> {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    file.split('/').filter(|it| !it.is_empty() && *it != "mod").map(str::to_owned).collect()
}

/// Returns the names that the root of a folder re-exports, with the modules that define them.
fn reexports(folder: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let roots = [folder.join("lib.rs"), folder.join("mod.rs"), folder.with_extension("rs")];
    let Some(root) = roots.iter().find(|it| it.is_file()) else {
        return Err(format!("no root of {}", folder.display()).into());
    };
    let text = fs::read_to_string(root)?;
    let mut found = BTreeMap::new();
    for line in ["\npub use ", "\npub(crate) use "] {
        for path in text.split(line).skip(1).flat_map(expanded) {
            if let [module, .., name] = &path[..] {
                found.insert(name.clone(), module.clone());
            }
        }
    }
    Ok(found)
}

/// Returns the sources of a folder, without tests.
pub fn sources(folder: &str) -> Result<Vec<PathBuf>, Failed> {
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
    if found.is_empty() { Err(format!("no sources in {folder}").into()) } else { Ok(found) }
}

/// Returns a source without comments and without its unit tests, which come last.
pub fn production(text: &str) -> String {
    let tests = ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(test)]\npub(super) mod tests {", "\n#[cfg(all(test"];
    let end = tests.iter().filter_map(|it| text.find(it)).min();
    let lines = text[..end.unwrap_or(text.len())].lines();
    lines.filter(|it| !it.trim_start().starts_with("//")).map(|it| it.to_owned() + "\n").collect()
}

/// Returns all paths of a module that begin with `crate` or `super`, relative to the root of the crate.
fn paths(text: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for (at, root) in text.match_indices("crate::").chain(text.match_indices("super::")) {
        // Skips a longer name, the `$crate` of a macro, and the second `super` of a path.
        let before = text[..at].chars().next_back();
        if before.is_some_and(|it| it.is_alphanumeric() || it == '_' || it == '$' || it == ':') {
            continue;
        }
        for path in expanded(&text[at..]) {
            let up = path.iter().take_while(|it| *it == "super").count();
            let kept = if root == "crate::" { 0 } else { module.len().saturating_sub(up) };
            found.insert([&module[..kept], &path[up.max(1)..]].concat());
        }
    }
    found
}

/// Expands the path tree at the beginning of a text: `a::{b, c::d}` gives `a::b` and `a::c::d`.
fn expanded(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    let Some(list) = text.strip_prefix('{') else {
        let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let name = Some(name).filter(|it| !it.is_empty() && *it != "self").map(str::to_owned);
        let rest = rest.strip_prefix("::").map(expanded).filter(|it| !it.is_empty());
        let behind = rest.unwrap_or_else(|| vec![Vec::new()]);
        return behind.into_iter().map(|it| name.iter().cloned().chain(it).collect()).collect();
    };
    let (mut depth, mut begins, mut found) = (0, true, Vec::new());
    for (at, it) in list.char_indices() {
        match it {
            '{' if !begins => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !it.is_whitespace() => {
                found.extend(expanded(&list[at..]));
                begins = false;
            }
            _ => (),
        }
    }
    found
}

/// Checks the reader.
pub fn paths_of_modules_are_read() -> Result<(), Failed> {
    let text = "use crate::{\n    a,\n    b::{self, C, d::{E}},\n};\nuse super::super::f::G;\n// crate::no\nmac!($crate::no);\nlet x = super::h(crate::i::j());\n";
    let found = paths(&production(text), &modules("k/l/m.rs"));
    let found: Vec<String> = found.iter().map(|it| it.join("::")).collect();
    let want = ["a", "b", "b::C", "b::d::E", "i::j", "k::f::G", "k::l::h"];
    if found == want { Ok(()) } else { Err(format!("read {found:?}").into()) }
}
