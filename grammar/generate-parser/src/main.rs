//! Generates `src/syntax/syntax.rs` from `syntax.lalrpop` beside it.
//!
//! Run it after an edit of the grammar: `cargo run --manifest-path grammar/generate-parser/Cargo.toml`. With `--check` it
//! writes nothing and fails if the two differ. The first line of the generated file has the hash of the grammar and of what
//! was generated, so that the tests of hir find an edit of either without LALRPOP: the gate does not build its 24 packages for
//! `--check`.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/syntax");
    let folder = tempfile::tempdir()?;
    let mut generator = lalrpop::Configuration::new();
    generator.set_in_dir(&source).set_out_dir(folder.path()).force_build(true).process()?;
    let grammar = fs::read_to_string(source.join("syntax.lalrpop"))?;
    let parser = fs::read_to_string(folder.path().join("syntax.rs"))?;
    let hash = blake3::hash((grammar + &parser).as_bytes());
    let generated = format!("// blake3 of syntax.lalrpop and the text below: {hash}\n{parser}");
    let committed = source.join("syntax.rs");
    if !env::args().any(|it| it == "--check") {
        fs::write(committed, generated)?;
    } else if fs::read_to_string(committed)? != generated {
        return Err(
            "src/syntax/syntax.rs is not what LALRPOP generates: run generate-parser without --check".into()
        );
    }
    Ok(())
}
