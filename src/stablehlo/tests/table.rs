//! Compares the table of operators with that of the documentation.

use std::{fs, path::Path};

#[test]
fn the_page_has_the_table() -> Result<(), Box<dyn std::error::Error>> {
    let mut table = "| StableHLO, Shardy | Host IR |\n| --- | --- |\n".to_owned();
    for (names, meaning) in hir_stablehlo::OPERATORS {
        let names: Vec<String> = names.split(", ").map(|it| format!("`{it}`")).collect();
        let row = format!("| {} | {} |\n", names.join(", "), meaning.replace('|', "\\|"));
        table.push_str(&row);
    }
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("OPERATORS.md"))?;
    assert!(page.contains(&table), "OPERATORS.md has to contain:\n{table}");
    Ok(())
}
