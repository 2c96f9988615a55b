//! Edits of random texts: the edited text reads as the edited program, and lines that no edit touches stay.

#![allow(clippy::panic, reason = "a failed step ends the test")]

mod random_program;

use grammar::{
    diagnostic::has_errors,
    ir::{Program, Stmt, StmtId},
};
use hir_ir::{
    edit::{
        Edit, Edits, NewStatement, NewStream, Place, ProgramText, StreamRef, apply, corresponding,
        number_streams,
    },
    streams::captured_name,
};
use proptest::{
    collection::vec,
    prelude::{ProptestConfig, any},
    test_runner::{RngSeed, TestCaseError, TestError, TestRunner},
};
use random_program::random_text;
use std::cell::RefCell;

/// Choices at random.
struct Choices(Vec<u32>);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0.pop().unwrap_or(0) as usize % bound.max(1)
    }

    /// Adds comments, blank lines and blanks, and may write tabs and other line ends.
    fn decorate(&mut self, text: &str) -> String {
        let (has_tabs, is_crlf) = (self.below(4) == 0, self.below(4) == 0);
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            let inner = line.trim_start();
            let depth = line.len() - inner.len();
            let is_stmt = depth > 0 && !inner.starts_with('=');
            let indentation = if has_tabs { "\t".repeat(depth / 2) } else { " ".repeat(depth) };
            match self.below(8) {
                0 if is_stmt => lines.push(format!("{indentation}// ü € ) ( {}", "漢".repeat(40))),
                1 if is_stmt => lines.push(String::new()),
                _ => (),
            }
            let end = match self.below(8) {
                0 if is_stmt => "  // behind ) it",
                1 if is_stmt => "  \t",
                _ => "",
            };
            lines.push(format!("{indentation}{inner}{end}"));
        }
        lines.join(if is_crlf { "\r\n" } else { "\n" }) + if is_crlf { "\r\n" } else { "\n" }
    }

    fn edits(&mut self, program: &Program) -> Vec<Edit> {
        let all: Vec<StmtId> = program.body.into_iter().flat_map(|it| program.stmts_in(it)).collect();
        // Without its capture, a name denotes something else.
        let is_op =
            |it: &StmtId| matches!(program.stmts[*it], Stmt::Op(_)) && captured_name(program, *it).is_none();
        let ops: Vec<StmtId> = all.iter().copied().filter(is_op).collect();
        let (Some(body), Some(first), false) = (program.body, all.first(), ops.is_empty()) else {
            return Vec::new();
        };
        let mut edits = Vec::new();
        for _ in 0..=self.below(4) {
            let stmt = ops[self.below(ops.len())];
            let other = all[self.below(all.len())];
            let place = match self.below(6) {
                0 => Place::End(body),
                1 | 2 => Place::After(other),
                _ => Place::Before(other),
            };
            let index = StreamRef::Index(self.below(9) as i64);
            let insert = |statement| Edit::Insert { statement, at: place };
            match self.below(6) {
                0 => edits.push(Edit::Remove(stmt)),
                1 => edits.push(Edit::Move { stmt, to: place }),
                2 => {
                    let statement = NewStatement::GetCurrentStream(NewStream::Entry);
                    edits.push(Edit::Insert { statement, at: Place::Before(*first) });
                    let entry = StreamRef::New(NewStream::Entry);
                    edits.push(insert(NewStatement::Synchronize(entry)));
                }
                3 => {
                    let back = NewStatement::SetCurrentStream(StreamRef::New(NewStream::Current));
                    edits.extend([
                        insert(NewStatement::GetCurrentStream(NewStream::Current)),
                        insert(NewStatement::SetCurrentStream(index)),
                        insert(back),
                    ]);
                }
                4 => edits.push(insert(NewStatement::SetCurrentStream(index))),
                _ => edits.push(insert(NewStatement::Synchronize(index))),
            }
        }
        edits
    }
}

fn read(text: &str) -> Option<Program> {
    let (programs, diagnostics) = grammar::read(text);
    programs.into_iter().next().filter(|_| !has_errors(&diagnostics))
}

/// Edits a text. Returns whether the edited text is a program.
fn check(choices: Vec<u32>, text: &str) -> Result<bool, String> {
    let mut choices = Choices(choices);
    let text = choices.decorate(text);
    let Some(program) = read(&text) else { return Ok(false) };
    let mut edits = Edits::default();
    for it in choices.edits(&program).chunks(2) {
        edits.add(it);
    }
    let of = ProgramText::new(text.into(), program);
    let Some(fixes) = of.fixes(edits.list()) else { return Ok(false) };
    let edited = grammar::edited(&of.text, &fixes);
    let is_line = |at: u32| at == 0 || of.text.as_bytes().get(at as usize - 1) == Some(&b'\n');
    if !fixes.iter().all(|it| is_line(it.span.start) && is_line(it.span.end)) {
        return Err(format!("a line is changed in part: {fixes:?}"));
    }
    let Some(mut next) = read(&edited) else { return Ok(false) };
    // The reader gives the first numbers to names that are captured before they are used.
    number_streams(&mut next);
    let mut expected = of.program.clone();
    apply(&mut expected, edits.list());
    match corresponding(&expected, &next) {
        Some(_) => Ok(true),
        None => Err(format!(
            "{:?}\n{}\nbecomes\n{edited}\nwhich is\n{}not\n{}",
            edits.list(),
            of.text,
            grammar::print(&next),
            grammar::print(&expected)
        )),
    }
}

#[test]
fn the_edited_text_reads_as_the_edited_program() {
    const PROGRAMS: u32 = 3000;
    let config = ProptestConfig {
        cases: PROGRAMS,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(70),
        max_shrink_iters: 5000,
        ..ProptestConfig::default()
    };
    let read = RefCell::new(0);
    let choices = (vec(any::<u32>(), 0..160), vec(any::<u32>(), 0..400));
    let result = TestRunner::new(config).run(&choices, |(program, edits)| {
        let is_read = check(edits, &random_text(program)).map_err(TestCaseError::fail)?;
        *read.borrow_mut() += u32::from(is_read);
        Ok(())
    });
    if let Err(TestError::Fail(fault, _) | TestError::Abort(fault)) = result {
        panic!("{fault}");
    }
    let read = read.into_inner();
    assert!(read > PROGRAMS / 4, "{read} of {PROGRAMS} edited texts are programs");
}
