//! Tests that the programs, statements and codes of the language reference are correct.

use std::collections::HashSet;

use grammar::{
    REFERENCE,
    codes::Code,
    diagnostic::has_errors,
    ir::Program,
    ops::{OPS, Op},
    print, read, summary, verify,
};

/// Returns the cells of all table rows with `width` cells, without the headings.
fn rows(width: usize) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let line = line.replace("\\|", "\0");
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        cells.into_iter().map(|cell| cell.trim().replace('\0', "|")).collect()
    };
    let lines = REFERENCE.lines().filter(|line| line.starts_with("| `"));
    lines.map(cells).filter(|cells| cells.len() == width).collect()
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Replaces short names such as `T3` by full tensors; `T9` has another element type. A permutation has two axes.
fn in_full(text: &str) -> String {
    let second = if text.contains("dims =") { ", iS99{4}" } else { "" };
    let mut res = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('T') {
        let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let end = at + 1 + digits;
        let begins = !rest[..at].ends_with(|it: char| it.is_alphanumeric());
        res += &rest[..end];
        if digits > 0 && begins && !rest[end..].starts_with('_') {
            let number = &rest[at + 1..end];
            let dtype = if number == "9" { "__bfloat" } else { "float" };
            res += &format!("_g_{dtype}[iS{number}{{4}}{second}]");
        }
        rest = &rest[end..];
    }
    res + rest
}

/// Reads a text with one statement; returns its operator and its canonical text.
#[track_caller]
fn statement(text: &str) -> (Op, String) {
    let unit = if text.contains("HostUnit0") { "\nHostUnit0: [...]\n" } else { "" };
    let text = format!("%HostIrContainer {{ () -> () :\n  {}\n{unit}}} // %HostIrContainer\n", in_full(text));
    let (programs, diagnostics) = read(&text);
    assert!(!has_errors(&diagnostics), "{text}\n{diagnostics:#?}");
    let program: &Program = &programs[0];
    let body = program.body();
    assert_eq!(body.len(), 1, "{text}");
    let op = program.stmts[body[0]].op().map(|it| it.op);
    assert!(op.is_some(), "`{text}` is not an operator");
    (op.unwrap_or(Op::Set), summary(program, body[0]))
}

#[test]
fn statements_are_spelled_as_shown() {
    let mut shown = HashSet::new();
    for row in rows(3) {
        let forms = quoted(&row[0]);
        assert_eq!(forms.len(), 1, "{row:?}");
        let canonical = forms[0];
        let (op, text) = statement(canonical);
        assert_eq!(text, canonical);
        for older in quoted(&row[1]) {
            assert_eq!(statement(older), (op, text.clone()), "{older}");
        }
        let doc = op.def().doc.trim().replace(" \n", "\n").replace('\n', " ");
        assert!(row[2].starts_with(&doc), "the row of `{canonical}` must begin with: {doc}");
        assert!(shown.insert(op), "`{canonical}` has two rows");
    }
    let missing: Vec<&str> = OPS.iter().filter(|it| !shown.contains(&it.op)).map(|it| it.mnemonic).collect();
    assert!(missing.is_empty(), "REFERENCE.md has no row for {missing:?}");
}

#[test]
fn programs_are_canonical() {
    let blocks: Vec<&str> =
        REFERENCE.split("```hir\n").skip(1).filter_map(|it| it.split("```").next()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (programs, diagnostics) = read(block);
        assert!(diagnostics.is_empty(), "{block}\n{diagnostics:#?}");
        let faults: Vec<_> = programs.iter().flat_map(verify).collect();
        assert!(faults.is_empty(), "{block}\n{faults:#?}");
        assert_eq!(programs.iter().map(print).collect::<String>(), block);
    }
}

#[test]
fn codes_are_complete() {
    let rows = rows(2);
    let shown: HashSet<&str> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    let known: HashSet<&str> = Code::ALL.iter().map(|it| it.text()).collect();
    let differing: Vec<_> = shown.symmetric_difference(&known).collect();
    assert!(
        differing.is_empty(),
        "in either REFERENCE.md or the table of codes, but not in both: {differing:?}"
    );
}
