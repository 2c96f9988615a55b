//! `src/parse/syntax.rs` is the parser that LALRPOP generates from `src/syntax.lalrpop`. After an edit of the grammar,
//! `INSTA_UPDATE=always cargo test --package hir-grammar --test generated_parser` generates it anew.

use std::{env, error::Error, fs, path::Path};

#[test]
fn the_parser_is_generated_from_the_grammar() -> Result<(), Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated-parser");
    fs::create_dir_all(&folder)?;
    let mut generator = lalrpop::Configuration::new();
    generator.set_in_dir(&source).set_out_dir(&folder).force_build(true).process()?;
    let generated = fs::read_to_string(folder.join("syntax.rs"))?;
    let committed = source.join("parse/syntax.rs");
    if env::var("INSTA_UPDATE").is_ok_and(|it| it == "always") {
        fs::write(&committed, &generated)?;
    }
    assert!(
        fs::read_to_string(&committed)? == generated,
        "src/parse/syntax.rs is not generated from src/syntax.lalrpop: run this test with INSTA_UPDATE=always"
    );
    Ok(())
}
