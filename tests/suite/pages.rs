//! Runs the commands that README.md and the pages in `docs/` show, and compares the lines below them with
//! their output.
//!
//! A block of ```` ```text ```` whose first line begins with `$ ` contains a command and lines of its output.
//! The block may leave out lines, `…` matches any text, and times are ignored. Further lines that begin with
//! `$ ` are further commands. The last line of every output is `exit code N`. A comment whose line begins with
//! `<!-- $ ` is such a block, which readers do not see: it checks what the paragraph before it says.
//!
//! A block of ```` ```sh ```` has lines without their output. Those of hir run here, [`OTHERS`] says what runs the others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use grammar::codes::Code;
use libtest_mimic::{Failed, Trial};

use crate::{ROOT, setting, shown};

/// Returns the pages: README.md, CONTRIBUTING.md, and those in `docs/`.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md"), Path::new(ROOT).join("CONTRIBUTING.md")];
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).into_iter().flatten().flatten();
    pages.extend(docs.map(|it| it.path()).filter(|it| it.extension().is_some_and(|it| it == "md")));
    pages.sort();
    pages
}

/// The first words of commands of the shell that do not run here, and what runs them.
const OTHERS: &[(&str, &str)] = &[
    ("cargo run", "`.ci/run`, which takes it from README.md"),
    ("cargo test", "`.ci/run`, which takes it from README.md"),
    ("cargo install", "takes minutes; `.ci/run` builds the same package"),
    ("rustup target add", "`.ci/run`"),
    ("cd playground", "`.ci/run`"),
    ("cd editors/vscode", "`.ci/run`"),
    ("npm ", "`.ci/run`"),
    ("code --install-extension", "the tests in VS Code load the packed extension"),
    ("cd ~/hir/editors/tree-sitter", "needs Helix; src/lsp/tests/words.rs has the words of its grammar"),
    ("mkdir -p ~/.config/helix", "needs Helix"),
    ("benches/gpu/", "needs GPUs; `.ci/run` has the tests of benches/gpu"),
    ("(umask 077; openssl", "makes a secret; tests/suite/rendezvous.rs has its own"),
    ("export ", "sets variables, and starts nothing"),
    ("NVFUSER_ENABLE=", "needs nvFuser"),
];

/// Returns a trial for each page that shows commands.
pub fn trials() -> Vec<Trial> {
    let pages = pages();
    let trial = |page: PathBuf| {
        let text = fs::read_to_string(&page).unwrap_or_default();
        let commands = commands(&text);
        let name = format!("page {}", shown(&page));
        (!commands.is_empty()).then(|| Trial::test(name, move || commands.iter().try_for_each(check)))
    };
    let mut trials: Vec<Trial> = pages.iter().cloned().filter_map(trial).collect();
    trials.push(Trial::test("pages::the_checker_has_sources", check_sources));
    trials.push(Trial::test("pages::changes_of_this_version_are_listed", check_changes));
    let of_shells = pages.clone();
    trials.push(Trial::test("pages::commands_of_the_shell_run", move || check_shell(&of_shells)));
    trials.push(Trial::test("pages::links_resolve", move || check_links(&pages)));
    trials.push(Trial::test("pages::the_list_of_passes_is_complete", check_list_of_passes));
    trials.push(Trial::test("pages::excerpts_of_a_pass_are_of_its_file", check_excerpts));
    trials
}

/// Checks that the tables of rules in `docs/checker.md` are those of the checker, or writes them, and that each code has a rule.
fn check_sources() -> Result<(), Failed> {
    let path = Path::new(ROOT).join("docs/checker.md");
    let page = fs::read_to_string(&path)?;
    let wanted = hir_check::rules_as_markdown();
    let start = page.find("|profile|options|").ok_or("docs/checker.md has no profiles")?;
    let end = page[start..].find("\n## ").ok_or("docs/checker.md ends with its rules")? + start;
    if page[start..end] != wanted {
        if !setting::updates() {
            return Err(
                "docs/checker.md has other rules than `hir_check::RULES`: `INSTA_UPDATE=always` writes them"
                    .into(),
            );
        }
        fs::write(&path, [&page[..start], &wanted, &page[end..]].concat())?;
    }
    let has_row = |code: &str| hir_check::RULES.iter().any(|it| it.codes.contains(code));
    let is_checkers = |code: &&str| ["E07", "W07", "R07"].iter().any(|it| code.starts_with(it));
    let codes = Code::ALL.iter().map(|it| it.text()).filter(is_checkers);
    let missing: Vec<&str> = codes.filter(|it| !has_row(it)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no source of {missing:?}").into()) }
}

/// Checks that the list of changes begins with this version.
fn check_changes() -> Result<(), Failed> {
    let text = fs::read_to_string(Path::new(ROOT).join("CHANGELOG.md"))?;
    let first = text.lines().find_map(|it| it.strip_prefix("## ")).unwrap_or_default();
    if first.split(' ').next() == Some(env!("CARGO_PKG_VERSION")) {
        return Ok(());
    }
    Err(format!("CHANGELOG.md begins with `{first}`, and this is {}", env!("CARGO_PKG_VERSION")).into())
}

/// Checks that every page of the book is in its summary, and that relative links lead to files and their headings.
fn check_links(pages: &[PathBuf]) -> Result<(), Failed> {
    let summary = fs::read_to_string(Path::new(ROOT).join("docs/SUMMARY.md"))?;
    for page in pages {
        let text = fs::read_to_string(page)?;
        let folder = page.parent().unwrap_or(Path::new(ROOT));
        let name = page.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        if folder.ends_with("docs") && name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            return Err(format!("docs/SUMMARY.md does not list {name}").into());
        }
        for target in text.split("](").skip(1).filter_map(|it| it.split(')').next()) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if path.contains("://") || path.contains([' ', '`']) {
                continue;
            }
            let file = if path.is_empty() { page.clone() } else { folder.join(path) };
            if !file.exists() {
                return Err(format!("{}: no file at the link `{target}`", shown(page)).into());
            }
            if !anchor.is_empty() && !has_anchor(&fs::read_to_string(file)?, anchor) {
                return Err(format!("{}: no heading at the link `{target}`", shown(page)).into());
            }
        }
    }
    Ok(())
}

/// Returns whether a page has the heading to which an anchor leads.
fn has_anchor(page: &str, anchor: &str) -> bool {
    let is_part = |it: &char| it.is_alphanumeric() || matches!(it, '-' | '_');
    let anchor_of = |heading: &str| {
        heading
            .trim_matches(['#', ' '])
            .to_lowercase()
            .replace(' ', "-")
            .chars()
            .filter(is_part)
            .collect::<String>()
    };
    page.lines().filter(|it| it.starts_with('#')).any(|it| anchor_of(it) == anchor)
}

/// Checks that docs/passes.md contains the whole output of `hir-opt --list-passes`.
fn check_list_of_passes() -> Result<(), Failed> {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/passes.md"))?;
    let out = Command::new(env!("CARGO_BIN_EXE_hir-opt")).arg("--list-passes").output()?;
    if page.contains(String::from_utf8_lossy(&out.stdout).trim_end()) {
        Ok(())
    } else {
        Err("docs/passes.md does not contain the output of `hir-opt --list-passes`".into())
    }
}

/// Checks that each Rust excerpt of docs/writing-a-pass.md consists of lines of one file of its example, in their order.
fn check_excerpts() -> Result<(), Failed> {
    const SOURCES: &str = "docs/examples/split-all-reduce/src";
    let page = fs::read_to_string(Path::new(ROOT).join("docs/writing-a-pass.md"))?;
    let files: Vec<String> = crate::files(&Path::new(ROOT).join(SOURCES), "rs")
        .iter()
        .map(fs::read_to_string)
        .collect::<Result<_, _>>()?;
    let excerpts = page.split("\n```rust,ignore\n").skip(1).filter_map(|it| it.split("\n```\n").next());
    for excerpt in excerpts {
        let is_in = |file: &String| {
            let mut rest = file.lines().map(str::trim);
            excerpt.lines().map(str::trim).filter(|it| *it != "…").all(|line| rest.any(|it| it == line))
        };
        if !files.iter().any(is_in) {
            return Err(format!("docs/writing-a-pass.md: no file of {SOURCES} contains\n{excerpt}").into());
        }
    }
    Ok(())
}

/// Runs the lines of blocks of the shell that start hir, without their launcher and without GPUs: they end in success, or need a GPU.
fn check_shell(pages: &[PathBuf]) -> Result<(), Failed> {
    let folder = linked_folder()?;
    fs::copy(Path::new(ROOT).join("docs/examples/mlp-tensor-parallel.hir"), folder.path().join("f.hir"))?;
    fs::copy(Path::new(ROOT).join("tests/cases/log/kernels.hir"), folder.path().join("dump.txt"))?;
    fs::write(folder.path().join("runs.txt"), "f.hir\n")?;
    fs::write(folder.path().join("rules.txt"), "Allreduce/2:8M=one-shot;*=nccl")?;
    let tools = Path::new(env!("CARGO_BIN_EXE_hir")).parent().unwrap_or(Path::new("/"));
    let path = format!("{}:/usr/bin:/bin", tools.display());
    let mut faults = Vec::new();
    for page in pages {
        let text = fs::read_to_string(page)?.replace("\\\n", " ");
        let blocks = text.split("\n```sh\n").skip(1).filter_map(|it| it.split("\n```").next());
        let lines = blocks.flat_map(str::lines).filter_map(|it| it.split(" # ").next());
        for line in lines.filter(|it| !it.trim().is_empty()) {
            if OTHERS.iter().any(|it| line.starts_with(it.0)) {
                continue;
            }
            let starts = ["hir ", "hir-run ", "hir-opt "].iter().filter_map(|it| {
                let inner = line.rfind(&format!(" {it}")).map(|at| at + 1);
                inner.or_else(|| line.starts_with(it).then_some(0))
            });
            let Some(start) = starts.max() else {
                faults.push(format!("{}: nothing runs `{line}`: see `OTHERS`", shown(page)));
                continue;
            };
            let mut shell = Command::new("sh");
            shell.args(["-c", &line[start..]]).current_dir(folder.path());
            // This library of the driver does not exist.
            shell.env("PATH", &path).env("HIR_CUDA", folder.path()).stdin(std::process::Stdio::null());
            let out = shell.output()?;
            let printed = String::from_utf8_lossy(&[out.stderr, out.stdout].concat()).into_owned();
            let needs_gpu = out.status.code() == Some(6)
                && (printed.contains("the NVIDIA driver was not found")
                    || line.contains("--tuning h200.json"));
            if !out.status.success() && !needs_gpu {
                faults.push(format!("{}: `{}` fails:\n{printed}", shown(page), &line[start..]));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Makes a folder in which commands may write, with the folders that pages name.
fn linked_folder() -> Result<tempfile::TempDir, std::io::Error> {
    let folder = tempfile::tempdir()?;
    for name in ["docs", "samples", "tests"] {
        std::os::unix::fs::symlink(Path::new(ROOT).join(name), folder.path().join(name))?;
    }
    Ok(folder)
}

/// A command, and the lines below it.
struct ShownCommand {
    command: String,
    lines: Vec<String>,
}

fn commands(text: &str) -> Vec<ShownCommand> {
    let mut parts = text.split("\n<!-- $ ");
    let shown = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(shown, |text, part| {
        let (command, rest) = part.split_once("-->").unwrap_or((part, ""));
        format!("{text}\n```text\n$ {command}\n```\n{rest}")
    });
    let mut found: Vec<ShownCommand> = Vec::new();
    // Set within a text block, and within the output of a command.
    let (mut is_block, mut is_output) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            (is_block, is_output) = (!is_block && line == "```text", false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_block) {
            // The same command before an installation.
            let command = command.replace("cargo run --locked --bin hir -- ", "hir ");
            found.push(ShownCommand { command, lines: Vec::new() });
            is_output = true;
        } else if let Some(it) = found.last_mut().filter(|_| is_output) {
            it.lines.push(line.to_owned());
        }
    }
    found.retain(|it| it.command.starts_with("hir-") || it.command.starts_with("hir "));
    found
}

/// Runs a command and looks for the lines in its output, in order.
fn check(it: &ShownCommand) -> Result<(), Failed> {
    let words =
        shlex::split(&it.command).ok_or_else(|| format!("`{}`: no end of a quotation", it.command))?;
    let tool = match words.first().map(String::as_str) {
        Some("hir") => env!("CARGO_BIN_EXE_hir"),
        Some("hir-opt") => env!("CARGO_BIN_EXE_hir-opt"),
        Some("hir-run") => env!("CARGO_BIN_EXE_hir-run"),
        other => return Err(format!("`{}`: unknown tool {other:?}", it.command).into()),
    };
    let folder = linked_folder()?;
    let out =
        Command::new(tool).args(&words[1..]).current_dir(folder.path()).env("NO_COLOR", "1").output()?;
    let code = out.status.code().map_or("none".to_owned(), |it| it.to_string());
    let [out, err] = [out.stdout, out.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    check_pictures(folder.path())?;
    let printed = format!("{err}{out}\nexit code {code}");
    let mut lines = printed.lines().map(normalized);
    for wanted in it.lines.iter().filter(|it| it.trim() != "…" && !it.trim().is_empty()) {
        let wanted = normalized(wanted);
        if !lines.any(|line| matches_pattern(&wanted, &line)) {
            return Err(format!("`{}` does not print:\n{wanted}\nbut:\n{printed}", it.command).into());
        }
    }
    Ok(())
}

/// Compares the pictures that a command has written with those of the same name in `docs/images`.
/// `INSTA_UPDATE=always` replaces the stored ones.
fn check_pictures(folder: &Path) -> Result<(), Failed> {
    for file in
        fs::read_dir(folder)?.flatten().filter(|it| it.path().extension().is_some_and(|it| it == "svg"))
    {
        let stored = Path::new(ROOT).join("docs/images").join(file.file_name());
        let made = fs::read_to_string(file.path())?;
        if setting::updates() {
            fs::write(&stored, made)?;
        } else if fs::read_to_string(&stored).ok().as_ref() != Some(&made) {
            return Err(format!("{} is not what its command writes", shown(&stored)).into());
        }
    }
    Ok(())
}

/// Removes trailing space from a line, and replaces each number of seconds by 0.
fn normalized(line: &str) -> String {
    let words = line.trim_end().split(' ').collect::<Vec<_>>();
    let is_time = |at: usize| {
        words.get(at + 1).is_some_and(|it| it.starts_with('s') && it.len() <= 2)
            && words[at].trim_start_matches('(').parse::<f64>().is_ok()
    };
    let shown: Vec<&str> = (0..words.len()).map(|at| if is_time(at) { "0" } else { words[at] }).collect();
    shown.join(" ")
}

/// Returns true if a line matches a pattern in which `…` stands for any text.
fn matches_pattern(wanted: &str, line: &str) -> bool {
    let mut rest = line;
    let mut parts = wanted.split('…');
    let Some(first) = parts.next() else { return true };
    let Some(it) = rest.strip_prefix(first) else { return false };
    rest = it;
    let mut ends = first.len() == wanted.len() && rest.is_empty();
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        ends = part.is_empty() || rest.is_empty();
    }
    ends
}
