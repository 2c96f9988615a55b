//! A program with the text from which it was read, and what edits look up in both. Everything is computed at most once, since many
//! edits are tried on the same text.

use std::{
    cell::{OnceCell, RefCell},
    sync::Arc,
};

use grammar::{BlockId, Fix, LineIndex, Program, StmtId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Edit, Place, StmtPlaces};
use crate::streams::StreamFacts;

/// A text and the program that was read from it. Lines are counted from 0.
pub struct ProgramText {
    /// The text.
    pub text: Arc<String>,
    /// The index of its lines.
    pub index: LineIndex,
    /// The program.
    pub program: Program,
    places: OnceCell<StmtPlaces>,
    streams: OnceCell<StreamFacts>,
    is_keyword_style: OnceCell<bool>,
    new_stream_names: OnceCell<[String; 2]>,
    closing_line: OnceCell<Option<usize>>,
    block_ends: RefCell<FxHashMap<BlockId, u32>>,
}

impl ProgramText {
    /// Creates the text of a program.
    pub fn new(text: Arc<String>, program: Program) -> Self {
        Self {
            index: LineIndex::new(&text),
            text,
            program,
            places: OnceCell::new(),
            streams: OnceCell::new(),
            is_keyword_style: OnceCell::new(),
            new_stream_names: OnceCell::new(),
            closing_line: OnceCell::new(),
            block_ends: RefCell::default(),
        }
    }

    /// Returns the places of the statements.
    pub fn places(&self) -> &StmtPlaces {
        self.places.get_or_init(|| StmtPlaces::of(&self.program))
    }

    /// Returns the streams that are current at the statements.
    pub fn streams(&self) -> &StreamFacts {
        self.streams.get_or_init(|| StreamFacts::of(&self.program))
    }

    /// Returns true if operands follow the operator without parentheses, as in the syntax before January
    /// 2026.
    pub fn is_keyword_style(&self) -> bool {
        const OLD: [&str; 4] =
            ["GetCurrentStream into", "SetCurrentStream to", "Synchronize Stream", "Wait Communication"];
        let is_old = |it: &str| OLD.iter().any(|old| it.trim_start().starts_with(old));
        *self.is_keyword_style.get_or_init(|| self.text.lines().any(is_old))
    }

    /// Returns two names for streams that do not occur in the text.
    pub(super) fn new_stream_names(&self) -> &[String; 2] {
        self.new_stream_names.get_or_init(|| {
            let words: FxHashSet<&str> =
                self.text.split(|it: char| !it.is_alphanumeric() && it != '_').collect();
            let names = (0..words.len() + 2).map(|it| format!("s{it}"));
            let mut free = names.filter(|it| !words.contains(it.as_str()));
            [free.next().unwrap_or_default(), free.next().unwrap_or_default()]
        })
    }

    /// Returns the text of a line without its end.
    pub fn line(&self, line: usize) -> &str {
        self.index.line_text(line as u32 + 1, &self.text)
    }

    pub(super) fn indentation(&self, line: usize) -> &str {
        let text = self.line(line);
        &text[..text.len() - text.trim_start().len()]
    }

    /// Returns the line on which a statement begins, from 1.
    pub fn line_number(&self, stmt: StmtId) -> u32 {
        self.index.line(self.program.stmt_span(stmt).start)
    }

    /// Returns the text of a statement; that of its first line if it is a loop or branch.
    pub fn statement(&self, stmt: StmtId) -> &str {
        self.program.stmt_span(stmt).text(&self.text)
    }

    /// Returns the line of a statement, or `None` if another statement precedes it on that line.
    pub fn line_of(&self, stmt: StmtId) -> Option<usize> {
        let start = self.program.stmt_span(stmt).start;
        let line = (self.index.line(start) as usize).checked_sub(1)?;
        let before = (self.index.column(start) - 1) as usize;
        self.line(line).get(..before)?.trim().is_empty().then_some(line)
    }

    /// Returns the lines of a statement and of those in it, if they share them with no other one.
    pub fn own_lines(&self, stmt: StmtId) -> Option<std::ops::Range<usize>> {
        let end = self.stmt_end(stmt);
        let last = self.index.line(end.checked_sub(1)?) as usize - 1;
        let rest = self.line(last).get(end as usize - self.index.start(last as u32 + 1)..)?.trim_start();
        (rest.is_empty() || rest.starts_with("//")).then_some(self.line_of(stmt)?..last + 1)
    }

    /// Returns the end of the last statement of a block, or of the blocks in it.
    fn block_end(&self, block: BlockId) -> u32 {
        if let Some(known) = self.block_ends.borrow().get(&block) {
            return *known;
        }
        let end = self.program.block(block).iter().map(|it| self.stmt_end(*it)).max().unwrap_or(0);
        self.block_ends.borrow_mut().insert(block, end);
        end
    }

    /// Returns the end of a statement and of those in it.
    fn stmt_end(&self, stmt: StmtId) -> u32 {
        let inner = self.program.inner_blocks(stmt).map(|it| self.block_end(it));
        inner.fold(self.program.stmt_span(stmt).end, u32::max)
    }

    /// Returns the line behind the statements of the program: that of the brace that closes it, or where its HostUnits begin.
    fn closing_line(&self) -> Option<usize> {
        *self.closing_line.get_or_init(|| {
            let last = self.index.line(self.block_end(self.program.body?).checked_sub(1)?) as usize;
            let is_end = |at: &usize| {
                let text = self.line(*at).trim_start();
                let is_section = text.starts_with("HostUnit") || *at > last;
                text.starts_with('}') || is_section && !text.is_empty() && !text.starts_with("//")
            };
            (last..self.index.count()).find(is_end)
        })
    }

    /// Returns the line before which a statement is inserted, and the indentation of the new line. Returns `None` if another statement
    /// is on the lines at the place.
    pub fn position(&self, place: Place) -> Option<(usize, &str)> {
        match place {
            Place::Before(stmt) => {
                let line = self.line_of(stmt)?;
                // The comments above a statement stay attached to it.
                let is_comment = |it: &usize| self.line(*it).trim_start().starts_with("//");
                let comments = (0..line).rev().take_while(is_comment).count();
                Some((line - comments, self.indentation(line)))
            }
            Place::After(stmt) => {
                let line = self.index.line(self.stmt_end(stmt).checked_sub(1)?) as usize;
                Some((line, self.indentation(self.line_of(stmt)?)))
            }
            Place::End(block) if self.program.body == Some(block) => {
                let first = self.line_of(*self.program.block(block).first()?)?;
                Some((self.closing_line()?, self.indentation(first)))
            }
            Place::End(block) => self.position(Place::After(*self.program.block(block).last()?)),
        }
    }

    /// Returns what edits change in the text. Returns `None` if the text is formatted in a way that an edit does not support.
    pub fn fixes(&self, edits: &[Edit]) -> Option<Vec<Fix>> {
        Some(self.line_changes(edits)?.fixes(self))
    }
}
