//! What the reference of the language says about operators.

use grammar::{OpDef, REFERENCE};

/// What the reference says about an operator.
pub(crate) struct Row {
    /// The canonical statement.
    pub(crate) form: String,
    /// What it means, in Markdown.
    pub(crate) meaning: &'static str,
}

/// Returns the row of an operator. A test of the reference compares its rows with the op table: each begins with the sentence of
/// the table.
pub(crate) fn row(def: &OpDef) -> Option<Row> {
    let doc = def.doc.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines = REFERENCE.lines().filter(|it| it.starts_with("| `"));
    let mut rows: Vec<Row> = lines.filter_map(cells).filter(|it| it.meaning.starts_with(&doc)).collect();
    // The name of a conversion is made of its types.
    let at = rows.iter().position(|it| it.form.contains(def.mnemonic)).unwrap_or(0);
    (at < rows.len()).then(|| rows.swap_remove(at))
}

/// Returns the first and the last of the three cells of a row.
fn cells(line: &'static str) -> Option<Row> {
    let line = line.strip_prefix("| `")?;
    let (form, rest) = line.split_once("` |")?;
    let meaning = rest.trim_end_matches('|').trim_end().rsplit_once(" | ").map_or(rest, |it| it.1);
    // A table cannot contain the sign that separates its cells.
    let form = form.replace("\\|", "|");
    Some(Row { form, meaning: meaning.trim() })
}

#[cfg(test)]
mod tests {
    use grammar::{OPS, Op};

    use super::row;

    #[test]
    fn every_operator_has_its_row() {
        for def in OPS {
            let found = row(def);
            let is_own = |form: &str| form.contains(def.mnemonic) || def.op == Op::Cast;
            assert!(found.is_some_and(|it| is_own(&it.form)), "{}", def.mnemonic);
        }
    }
}
