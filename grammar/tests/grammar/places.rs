//! `Program::at` on every offset of every program of the repository: its answers are those that the text gives.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use grammar::{
    diagnostic::has_errors,
    dump_cleanup::clean,
    ir::{Operand, Part, Place, Program, Stmt, Stream},
    scan::scan,
    span::Span,
    tensor::parse_tensor_text,
    token::{ScanLimit, Source, TokenKind},
};

/// Returns the texts of all programs in a folder and its folders.
fn texts(folder: &Path, acc: &mut Vec<(PathBuf, String)>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            texts(&path, acc);
        } else if path.extension().is_some_and(|it| it == "hir")
            && let Ok(text) = fs::read_to_string(&path)
        {
            acc.push((path, text));
        }
    }
}

/// Calls `visit` for the programs of the repository that can be read without an error from a text of a moderate size. A text
/// with the traces of a terminal is left out: its tokens may contain line breaks.
fn for_each_program(visit: impl Fn(&Path, &str, &[Program])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = Vec::new();
    ["samples", "docs/examples", "tests/cases"].iter().for_each(|it| texts(&root.join(it), &mut all));
    let mut read = 0;
    let is_meant = |text: &str| text.len() < 20_000 && clean(text).text == text;
    for (path, text) in all.iter().filter(|(_, text)| is_meant(text)) {
        let (programs, diagnostics) = grammar::read(text);
        if !has_errors(&diagnostics) && !programs.is_empty() {
            read += 1;
            visit(path, text, &programs);
        }
    }
    assert!(read > 300, "{read} programs");
}

/// Returns the number of a tensor that a text spells in full or in short.
fn tensor_number(text: &str) -> Option<u32> {
    match text.strip_prefix('T')?.parse() {
        Ok(number) => Some(number),
        Err(_) => Some(parse_tensor_text(text, 0).ok()?.number),
    }
}

/// Checks that the text at a place is what the program says is there.
fn check_place(program: &Program, text: &str, place: Place, span: Span) -> Result<(), String> {
    let own = span.text(text);
    let is_fine = match (place, program.operand(place)) {
        (Place::Domain(tensor), _) => own.starts_with(&format!("T{}", program.tensors[tensor].number)),
        (_, Some(Operand::Tensor(tensor))) => tensor_number(own) == Some(program.tensors[tensor].number),
        (_, Some(Operand::Stream(stream))) => match program.streams[stream] {
            Stream::Named(_) => own.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_'),
            Stream::Index(_) => !own.starts_with("Stream"),
        },
        (Place::Part(stmt, part), operand) => match (&program.stmts[stmt], part) {
            // A launch of a group in the log has become the post of a unit.
            (Stmt::Op(it), Part::Attr(name)) => {
                it.attrs.iter().any(|(own, _)| *own == name) || own.starts_with("Group ID")
            }
            _ => operand.is_some() || matches!(program.stmts[stmt], Stmt::For(_) | Stmt::Let(..)),
        },
        (Place::Header, _) => own.starts_with("%HostIrContainer") || own.starts_with("HOST"),
        (Place::Axis(tensor, axis), _) | (Place::DomainAxis(tensor, axis), _) => {
            let number = program.axes[axis].number.to_string();
            program.tensors.ids().any(|it| it == tensor)
                && own.split('{').next().is_some_and(|it| it.trim_end_matches("Ragged").ends_with(&number))
        }
        (Place::Mesh(_), _) => own.starts_with("DeviceMesh{") && own.ends_with("})"),
        // A unit can be a group of a fusion in the log.
        (Place::Unit(unit), _) => {
            own == format!("HostUnit{}", program.units[unit].number) || own.starts_with("g{")
        }
        (Place::Definition(symbol), _) => own.starts_with(program.symbols[symbol].as_str()),
        (Place::Option(at), _) => {
            program.options.get_index(at).is_some_and(|it| own.starts_with(it.0.as_str()))
        }
        (Place::Comment(_), _) => own.starts_with("//") || own.starts_with('#'),
        (Place::Stmt(_) | Place::Declaration(_) | Place::Input(_) | Place::Output(_), _) => !own.is_empty(),
        (Place::UnitInput(..) | Place::UnitOutput(..), _) => !own.is_empty(),
    };
    if is_fine { Ok(()) } else { Err(format!("{place:?} is at `{own}`")) }
}

#[test]
fn every_place_is_that_of_its_text() {
    for_each_program(|path, text, programs| {
        for program in programs {
            for (place, span) in program.places() {
                if let Err(fault) = check_place(program, text, place, span) {
                    panic!("{}: {fault}", path.display());
                }
            }
        }
    });
}

#[test]
fn the_answer_is_the_innermost_place_that_contains_the_offset() {
    for_each_program(|path, text, programs| {
        for program in programs {
            let places: Vec<(Place, Span)> = program.places().collect();
            for offset in 0..text.len() as u32 {
                let inside = |span: &Span| (span.start..span.end).contains(&offset);
                match program.at(offset) {
                    None => assert!(!places.iter().any(|it| inside(&it.1)), "{}: {offset}", path.display()),
                    Some((place, span)) => {
                        assert!(inside(&span), "{}: {offset}: {place:?}", path.display());
                        let is_inner = |it: &&(Place, Span)| {
                            inside(&it.1) && it.1.end - it.1.start < span.end - span.start
                        };
                        let inner = places.iter().find(is_inner);
                        assert_eq!(inner, None, "{}: {offset}: {place:?}", path.display());
                    }
                }
            }
        }
    });
}

/// Every tensor of the text is at a place, and that place is about this tensor.
#[test]
fn every_tensor_of_the_text_has_a_place() {
    for_each_program(|path, text, programs| {
        // The reader skips the section `TransformPrinter` of a kernel.
        let [program] = programs else { return };
        if text.contains("TransformPrinter") {
            return;
        }
        let start = program.spans.header.start;
        let source = Source { text: &text[start as usize..], base: start };
        let (tokens, _) = scan(source, ScanLimit::ContainerEnd, &mut Vec::new(), &mut Vec::new());
        for token in tokens.iter().filter(|it| it.kind == TokenKind::Tensor) {
            let at = token.span();
            let whole = || program.places().filter(|it| it.1 == at);
            let is_own = |place: Place| match program.operand(place) {
                Some(Operand::Tensor(it)) => Some(program.tensors[it].number) == tensor_number(at.text(text)),
                Some(Operand::Scalar(_) | Operand::Stream(_)) | None => false,
            };
            let found = whole().any(|it| is_own(it.0));
            assert!(found, "{}: `{}` at {at:?}", path.display(), at.text(text));
        }
    });
}

#[test]
fn comments_are_kept_with_the_statements_that_they_are_about() {
    let text = "// Doubles a tensor.
%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :
  // The sum.
  T1_g_float[iS1{4}]
     = T0_g_float[iS0{4}] // of the input
     + T0_g_float[iS0{4}]; # and itself
  // Nothing follows.
} // %HostIrContainer
// Behind it.
";
    let program = grammar::read(text).0.pop().unwrap();
    let sum = program.body()[0];
    let found: Vec<_> = program.spans.comments.iter().map(|it| it.span.text(text)).collect();
    assert_eq!(
        found,
        [
            "// Doubles a tensor.",
            "// The sum.",
            "// of the input",
            "# and itself",
            "// Nothing follows.",
            "// Behind it."
        ]
    );
    let about: Vec<_> = (0..found.len()).map(|it| program.commented(it)).collect();
    assert_eq!(about, [Some(sum), Some(sum), Some(sum), Some(sum), None, None]);
    assert!(!grammar::print(&program).contains("The sum"));
    let at = |part: &str| program.at(text.find(part).unwrap() as u32).map(|it| it.0);
    assert_eq!(at("// The sum."), Some(Place::Comment(1)));
    assert_eq!(at("+ T0"), Some(Place::Stmt(sum)));
    assert_eq!(at("T0_g_float[iS0{4}];"), Some(Place::Part(sum, Part::Operand(1))));
    let axis = program.tensors[program.outputs[0].tensor().unwrap()].loop_domain[0];
    assert_eq!(at("iS1{4}"), Some(Place::Axis(program.outputs[0].tensor().unwrap(), axis)));
}
