//! The TextMate grammar of `editors/vscode` is made from the tables of the language. `INSTA_UPDATE=always` writes it.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{
    editor::Fault,
    words::{KEYWORDS, Words, expect_file},
};

/// Returns words as alternatives of a regular expression; longer ones first, since the first match counts.
fn alternatives(words: &[&str]) -> String {
    let mut words = words.to_vec();
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
    let words = Words::of_tables();
    let axis = format!(
        "\\b(?:{})(?:{})[0-9]+(?=\\{{|Ragged)",
        alternatives(&words.axis_kinds),
        alternatives(&words.parallel_types)
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
            rule("keyword.control", format!("\\b(?:{})\\b", KEYWORDS.join("|"))),
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
            rule("entity.name.function", format!("(?<![A-Za-z0-9_])(?:{})(?![A-Za-z0-9_])", alternatives(&words.operators))),
            rule("variable.other.property", format!("\\b(?:{})(?=\\s*=)", alternatives(&words.attributes))),
            rule("constant.language", format!("(?<![A-Za-z0-9_-])(?:{})(?![A-Za-z0-9_-])", alternatives(&words.values))),
            rule("constant.numeric", "\\b[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?\\b".to_owned()),
            rule("keyword.operator", alternatives(&words.signs)),
        ],
    })
}

#[test]
fn the_textmate_grammar_is_that_of_the_tables() -> Result<(), Fault> {
    expect_file("vscode/syntaxes/hir.tmLanguage.json", &format!("{:#}\n", grammar_json()))
}

#[test]
fn the_extension_names_files_that_exist() -> Result<(), Fault> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../editors/vscode");
    let package: Value = serde_json::from_str(&fs::read_to_string(folder.join("package.json"))?)?;
    let contributes = &package["contributes"];
    // `package.mjs` makes the program of the extension.
    let files = [&contributes["languages"][0]["configuration"], &contributes["grammars"][0]["path"]];
    for file in files {
        let file = file.as_str().ok_or("no file")?;
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert_eq!(package["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(contributes["grammars"][0]["scopeName"], grammar_json()["scopeName"]);
    Ok(())
}
