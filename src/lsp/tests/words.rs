//! The words of the language for the grammars of editors, from its tables.

use std::{collections::BTreeSet, fs, path::Path};

use grammar::{
    attr::OperandKind,
    ir::{AxisKind, ParallelType},
    ops::OPS,
};
use serde_json::{Value, json};

use super::editor::Fault;

/// Lists of words, each in the order of its text and without repetition.
pub(super) struct Words {
    /// The operators that are words.
    pub(super) operators: Vec<&'static str>,
    /// The operators that are signs.
    pub(super) signs: Vec<&'static str>,
    /// The names of attributes.
    pub(super) attributes: Vec<&'static str>,
    /// The words that are values of attributes.
    pub(super) values: Vec<&'static str>,
    /// The letters of axes.
    pub(super) axis_kinds: Vec<&'static str>,
    /// Over what axes are divided.
    pub(super) parallel_types: Vec<&'static str>,
}

/// The words of statements that are no operators.
pub(super) const KEYWORDS: [&str; 9] = ["FOR", "IF", "ELSE", "in", "from", "to", "into", "Manual", "Stream"];

impl Words {
    /// Returns the words of the tables.
    pub(super) fn of_tables() -> Self {
        let names =
            || OPS.iter().flat_map(|it| std::iter::once(it.mnemonic).chain(it.aliases.iter().copied()));
        let is_word = |it: &&str| it.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_');
        let attrs = OPS.iter().flat_map(|it| it.args.iter().chain(it.attrs));
        let values = attrs.filter_map(|it| match it.kind {
            OperandKind::Word(words) => Some(words),
            _ => None,
        });
        let values = values.flatten().map(|it| it.text()).chain(["true", "false", "True", "False"]);
        Self {
            operators: sorted(names().filter(is_word)),
            signs: sorted(names().filter(|it| !is_word(it))),
            attributes: sorted(OPS.iter().flat_map(|it| it.attrs).map(|it| it.name)),
            values: sorted(values),
            axis_kinds: sorted(AxisKind::LETTERS.iter().map(|it| it.0)),
            parallel_types: sorted(ParallelType::WORDS.iter().map(|it| it.0)),
        }
    }

    /// Returns the lists for the grammar of tree-sitter, in which a word belongs to one list.
    fn json(&self) -> Value {
        let others = |all: &[&'static str], known: &[&[&'static str]]| -> Vec<&'static str> {
            let is_known = |it: &&str| known.iter().any(|list| list.contains(it));
            all.iter().copied().filter(|it| !is_known(it)).collect()
        };
        json!({
            "keywords": KEYWORDS,
            "operators": others(&self.operators, &[&KEYWORDS]),
            "signs": self.signs,
            "attributes": others(&self.attributes, &[&KEYWORDS, &self.operators]),
            "values": others(&self.values, &[&KEYWORDS, &self.operators, &self.attributes]),
            "axis_kinds": self.axis_kinds.iter().map(|it| it.replace('?', "\\?")).collect::<Vec<_>>(),
            "parallel_types": self.parallel_types.iter().map(|it| it.replace('.', "\\.")).collect::<Vec<_>>(),
        })
    }
}

fn sorted(words: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    words.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Compares a file of `editors` with what it has to be. `INSTA_UPDATE=always` writes it.
pub(super) fn expect_file(name: &str, expected: &str) -> Result<(), Fault> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../editors").join(name);
    if std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always") {
        fs::write(&path, expected)?;
    }
    assert!(fs::read_to_string(&path)? == expected, "INSTA_UPDATE=always writes {}", path.display());
    Ok(())
}

#[test]
fn the_tree_sitter_grammar_has_the_words_of_the_tables() -> Result<(), Fault> {
    expect_file("tree-sitter/words.json", &format!("{:#}\n", Words::of_tables().json()))
}
