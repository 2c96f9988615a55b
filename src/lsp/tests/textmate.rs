//! The TextMate grammar of `editors/vscode` is made from the tables of the language. `INSTA_UPDATE=always` writes it.

use std::{collections::BTreeSet, fs, path::Path};

use grammar::{
    attr::OperandKind,
    ir::{AxisKind, ParallelType},
    ops::OPS,
};
use serde_json::{Value, json};

use super::editor::Fault;

/// Returns words as alternatives of a regular expression; longer ones first, since the first match counts.
fn alternatives<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut words: Vec<&str> = words.collect::<BTreeSet<_>>().into_iter().collect();
    words.sort_by_key(|it| std::cmp::Reverse(it.len()));
    let escaped = words.iter().map(|word| {
        let special = |it: char| {
            if it.is_ascii_alphanumeric() || it == '_' || it == ' ' || it == ':' || it == '-' {
                it.to_string()
            } else {
                format!("\\{it}")
            }
        };
        word.chars().map(special).collect::<String>()
    });
    escaped.collect::<Vec<_>>().join("|")
}

fn grammar_json() -> Value {
    let names = || OPS.iter().flat_map(|it| std::iter::once(it.mnemonic).chain(it.aliases.iter().copied()));
    let is_word = |it: &&str| it.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_');
    let attrs = || OPS.iter().flat_map(|it| it.args.iter().chain(it.attrs));
    let keyed = OPS.iter().flat_map(|it| it.attrs).map(|it| it.name);
    let words = attrs().filter_map(|it| match it.kind {
        OperandKind::Word(words) => Some(words),
        _ => None,
    });
    let words = words.flatten().map(|it| it.text());
    let axis = format!(
        "\\b(?:{})(?:{})[0-9]+(?=\\{{|Ragged)",
        alternatives(AxisKind::LETTERS.iter().map(|it| it.0)),
        alternatives(ParallelType::WORDS.iter().map(|it| it.0))
    );
    let rule = |name: &str, pattern: String| json!({ "name": format!("{name}.hir"), "match": pattern });
    json!({
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "Host IR",
        "scopeName": "source.hir",
        "fileTypes": ["hir"],
        "patterns": [
            rule("keyword.other.section", "%(?:HostIrContainer|options|tensor|kernel(?:_math)?)\\b|\\bEND\\.".to_owned()),
            rule("comment.line", "(?://|#).*$".to_owned()),
            rule("keyword.control", "\\b(?:FOR|IF|ELSE|in|from|to|into|Manual|Stream)\\b".to_owned()),
            rule("entity.name.section", "^(?:Index definitions|Domains):".to_owned()),
            {
                "match": "\\b(T[0-9]+)(_[A-Za-z0-9_:]+)?",
                "captures": {
                    "1": { "name": "variable.other.tensor.hir" },
                    "2": { "name": "storage.type.hir" },
                },
            },
            rule("storage.type.axis", axis),
            rule("storage.type.mesh", "\\bDeviceMesh\\b".to_owned()),
            rule("entity.name.class", "\\bHostUnit[0-9]+\\b".to_owned()),
            rule("entity.name.function", format!("(?<![A-Za-z0-9_])(?:{})(?![A-Za-z0-9_])", alternatives(names().filter(is_word)))),
            rule("variable.other.property", format!("\\b(?:{})(?=\\s*=)", alternatives(keyed))),
            rule("constant.language", format!("(?<![A-Za-z0-9_-])(?:{}|true|false|True|False)(?![A-Za-z0-9_-])", alternatives(words))),
            rule("constant.numeric", "\\b[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?\\b".to_owned()),
            rule("keyword.operator", alternatives(names().filter(|it| !is_word(it)))),
        ],
    })
}

#[test]
fn the_textmate_grammar_is_that_of_the_tables() -> Result<(), Fault> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../editors/vscode/syntaxes/hir.tmLanguage.json");
    let expected = format!("{:#}\n", grammar_json());
    if std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always") {
        fs::write(&path, &expected)?;
    }
    assert!(fs::read_to_string(&path)? == expected, "INSTA_UPDATE=always writes {}", path.display());
    Ok(())
}

#[test]
fn the_extension_names_files_that_exist() -> Result<(), Fault> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../editors/vscode");
    let package: Value = serde_json::from_str(&fs::read_to_string(folder.join("package.json"))?)?;
    let contributes = &package["contributes"];
    let files = [
        &package["main"],
        &contributes["languages"][0]["configuration"],
        &contributes["grammars"][0]["path"],
    ];
    for file in files {
        let file = file.as_str().ok_or("no file")?;
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert_eq!(package["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(contributes["grammars"][0]["scopeName"], grammar_json()["scopeName"]);
    Ok(())
}
