//! `hir.toml`: defaults of options, and what is not reported. It is looked for in the current folder and in those above it, up to the root of the
//! repository.
//!
//! ```toml
//! error-format = "github"
//! allow = ["R0702", { code = "R0703", file = "layer.hir", line = 12 }]
//! [check]
//! assume = true
//! set = ["i0=8192"]
//! ```
//!
//! A value in `set` applies to programs that have the scalar; others ignore it. A table `[check]`, `[opt]`, `[run]`, `[reduce]` or `[hang]` is for one tool, and keys above the tables for all that have the option. The command
//! line replaces what the file says about an option. Options that name files to write cannot be set.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, error::ErrorKind, parser::ValueSource};
use grammar::{Binding, InvalidOption};
use toml::{Table, Value};

use crate::session::{AllowEntry, Defaults, Session, parse_code};

const FILE: &str = "hir.toml";

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The options that the file can set for all tools.
const COMMON: &str =
    "assume check-model color error-format fusions max-ranks max-work memory-limit quiet ranks set";

/// Those that it can set for one tool.
const OF_TOOL: &str = "atol check device inputs print remarks rtol timeout verify-each";

const TABLES: [&str; 5] = ["check", "hang", "opt", "reduce", "run"];

/// Reads the file, sets what the session does not report, and returns the options that the command line does not have; `None` if there is no file
/// or it sets no option.
///
/// # Errors
/// A file that cannot be read, and a key or value that it cannot have.
pub(super) fn read(
    session: &Session,
    command: &Command,
    given: &ArgMatches,
) -> Result<Option<Defaults>, clap::Error> {
    // A reproducer states all its options.
    if matches!(given.try_contains_id("run_reproducer"), Ok(true)) {
        return Ok(None);
    }
    let path = match given.get_one::<PathBuf>("config") {
        Some(it) if it == Path::new("none") => return Ok(None),
        Some(it) => it.clone(),
        None => match find() {
            Some(it) => it,
            None => return Ok(None),
        },
    };
    let shown = path.display().to_string();
    let wrong = |message: String| error(&shown, &message);
    let size = fs::metadata(&path).map_err(|it| wrong(format!("cannot be read: {it}")))?.len();
    if size > MAX_SIZE {
        return Err(wrong(format!("has more than {} MiB", MAX_SIZE >> 20)));
    }
    let text = fs::read_to_string(&path).map_err(|it| wrong(format!("cannot be read: {it}")))?;
    let table: Table = text.parse().map_err(|it: toml::de::Error| {
        let before = it.span().and_then(|it| text.get(..it.start)).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        wrong(format!("line {line}: {}", it.message()))
    })?;
    let mut arguments = Vec::new();
    let mut add = |key: &str, value: &Value, is_own: bool| -> Result<(), InvalidOption> {
        let argument = command.get_arguments().find(|it| it.get_long() == Some(key));
        let Some(argument) = argument else {
            return if is_own {
                Err(format!("{} has no option `--{key}`", session.tool).into())
            } else {
                Ok(())
            };
        };
        if given.value_source(argument.get_id().as_str()) != Some(ValueSource::CommandLine) {
            arguments.extend(words(key, value)?);
        }
        Ok(())
    };
    for (key, value) in &table {
        let checked = match (key.as_str(), value) {
            ("allow", Value::Array(entries)) => {
                let entries: Result<_, InvalidOption> = entries.iter().map(entry).collect();
                entries.map(|it| session.set_allowed(it))
            }
            ("allow", _) => Err("`allow` needs a list of codes, such as `[\"R0703\"]`".into()),
            (name, Value::Table(own)) if TABLES.contains(&name) => {
                let name = format!("[{name}]");
                let is_own = session.tool.trim_start_matches("hir").trim_start_matches(['-', ' '])
                    == &name[1..name.len() - 1];
                own.iter().try_for_each(|(key, value)| {
                    if !is_known(key, true) {
                        Err(format!("`{name}`: `{key}` cannot be set here").into())
                    } else if is_own {
                        add(key, value, true).map_err(|it| format!("`{name}`: {it}").into())
                    } else {
                        Ok(())
                    }
                })
            }
            (key, value) if is_known(key, false) => add(key, value, false),
            (key, _) => Err(format!(
                "`{key}` cannot be set here: expected `allow`, `{}`, or a table {}",
                COMMON.replace(' ', "`, `"),
                TABLES.map(|it| format!("`[{it}]`")).join(", ")
            )
            .into()),
        };
        checked.map_err(|it: InvalidOption| wrong(it.to_string()))?;
    }
    Ok((!arguments.is_empty()).then_some(Defaults { file: shown, arguments }))
}

/// Returns the error about a file.
pub(super) fn error(file: &str, message: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::InvalidValue, format!("`{file}`: {message}\n"))
}

/// Looks for the file in the current folder and above it.
fn find() -> Option<PathBuf> {
    let current = env::current_dir().ok()?;
    for folder in current.ancestors() {
        let path = folder.join(FILE);
        if path.is_file() {
            // A short name for messages.
            return Some(if folder == current { FILE.into() } else { path });
        }
        if folder.join(".git").exists() {
            return None;
        }
    }
    None
}

fn is_known(key: &str, is_of_tool: bool) -> bool {
    COMMON.split(' ').chain(OF_TOOL.split(' ').filter(|_| is_of_tool)).any(|it| it == key)
}

/// Returns the words of the command line that set an option.
fn words(key: &str, value: &Value) -> Result<Vec<String>, InvalidOption> {
    let one = |value: &Value| match value {
        Value::String(it) => Ok(match it.parse::<Binding>() {
            Ok(binding) if key == "set" => format!("--set={}", Binding { is_optional: true, ..binding }),
            _ => format!("--{key}={it}"),
        }),
        Value::Integer(it) => Ok(format!("--{key}={it}")),
        Value::Float(it) => Ok(format!("--{key}={it}")),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
            Err(format!("`{key}` needs a text, a number, true, false, or a list of texts").into())
        }
    };
    match value {
        Value::Boolean(true) => Ok(vec![format!("--{key}")]),
        Value::Boolean(false) => Ok(Vec::new()),
        Value::Array(all) => all.iter().map(one).collect(),
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_) => {
            one(value).map(|it| vec![it])
        }
    }
}

/// Reads an entry of `allow`: a code, or a table with `code` and, if it is for one place, `file` and `line`.
fn entry(value: &Value) -> Result<AllowEntry, InvalidOption> {
    let code = |text: &str| parse_code(text).map_err(|(message, help)| format!("`allow`: {message}; {help}"));
    match value {
        Value::String(text) => Ok(AllowEntry { code: code(text)?, file: None, line: None }),
        Value::Table(table) => {
            if let Some(other) = table.keys().find(|it| !["code", "file", "line"].contains(&it.as_str())) {
                return Err(format!("`allow`: `{other}` is not one of `code`, `file` and `line`").into());
            }
            let text = |key: &str| {
                table.get(key).map(|it| it.as_str().ok_or_else(|| format!("`allow`: `{key}` needs a text")))
            };
            let line = table.get("line").map(|it| {
                it.as_integer()
                    .and_then(|it| u32::try_from(it).ok())
                    .ok_or("`allow`: `line` needs a number".to_owned())
            });
            let file = text("file").transpose()?.map(PathBuf::from);
            let line = line.transpose()?;
            if line.is_some() && file.is_none() {
                return Err("`allow`: `line` needs `file`".into());
            }
            Ok(AllowEntry {
                code: code(text("code").transpose()?.ok_or("`allow`: an entry has no `code`")?)?,
                file,
                line,
            })
        }
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) => {
            Err("`allow` needs codes, or tables such as `{ code = \"R0703\", file = \"a.hir\", line = 12 }`"
                .into())
        }
    }
}
