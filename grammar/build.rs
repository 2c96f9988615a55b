//! Turns `src/syntax.lalrpop` into the parser that `src/parse.rs` drives.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    lalrpop::Configuration::new().emit_rerun_directives(true).use_cargo_dir_conventions().process()
}
