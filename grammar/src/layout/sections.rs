//! The parts of a container: options, header, body, HostUnits, and the sections behind the closer.

use super::{Layout, Line, List, Opened};
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Kind, Lexeme, Source, Until, scan},
};

impl Layout<'_, '_> {
    pub(super) fn container(&mut self) {
        while self.kind(0) == Some(Kind::OptionsStart) {
            self.options();
        }
        let home = self.peek().map_or(0, |it| it.column);
        self.header();
        self.block(Some(home));
        while self.peek().is_some_and(|it| !it.kind.ends_block()) {
            let before = self.at;
            self.unit();
            if self.at == before {
                // Nothing begins here: let the grammar say so.
                self.begin_statement();
                self.take();
                self.end_statement();
            }
        }
        match self.peek() {
            Some(closer) => {
                self.out.push(Lexeme { kind: Kind::BraceClose, ..closer });
                self.check_behind(closer);
            }
            None => self.truncated(),
        }
    }

    /// Scanning goes on behind a brace in the middle of a line. Where it closes the container all the same, the rest would be lost.
    fn check_behind(&mut self, closer: Lexeme) {
        if closer.kind == Kind::BraceClose && self.at + 1 < self.raw.len() {
            let message = "this `}` closes the container, and text follows it on its line";
            let it = Diagnostic::new(Code::Syntax, closer.span(), message, "nothing behind it is read");
            self.diagnostics.push(it.help("take it out, or put it on a line of its own"));
        }
    }

    /// `HOST FUSION` or `HOST IRS:`, before the header's lists in 2024.
    fn at_host(&self) -> bool {
        let word = |ahead: usize| self.raw.get(self.at + ahead).map_or("", |it| self.text(*it));
        word(0) == "HOST" && matches!(word(1), "FUSION" | "IRS")
    }

    /// The text ended before the container's closer.
    fn truncated(&mut self) {
        let place = self.raw.last().map_or(self.source.base, |it| it.end);
        let opened = self.raw.iter().find(|it| it.kind == Kind::ContainerStart);
        self.truncated = self.truncated.or(Some(place));
        if !self.breaks_off() {
            let span = opened.map_or(Span { start: place, end: place }, |it| it.span());
            self.diagnostics.push(
                Diagnostic::new(Code::Truncated, span, "the container is never closed", "opened here")
                    .label(Span { start: place, end: place }, "the text ends here, without `}`"),
            );
        }
        self.out.push(Lexeme::virtual_at(Kind::BraceClose, place));
    }

    fn options(&mut self) {
        self.begin_statement();
        self.take();
        while self.peek().is_some_and(|it| !it.first || !self.open.is_empty()) {
            self.take();
        }
        self.check_trailing_comma();
        self.end_statement();
    }

    fn header(&mut self) {
        self.begin_statement();
        // The container's brace closes far below: it is no bracket of the header.
        let place = self.peek().map_or(self.source.base, |it| it.start);
        let headless = self.at_host();
        for kind in [Kind::ContainerStart, Kind::BraceOpen] {
            if self.kind(0) == Some(kind) {
                self.out.extend(self.peek());
                self.at += 1;
            } else if headless {
                self.out.push(Lexeme::virtual_at(kind, place));
            }
        }
        if self.at_host() {
            self.at += 2;
            self.at += usize::from(self.kind(0) == Some(Kind::Colon));
        }
        while let Some(next) = self.peek() {
            let fresh = next.first && self.open.is_empty();
            if next.kind == Kind::BraceClose && self.open.is_empty() || next.kind.is_header() {
                break;
            }
            if fresh && matches!(next.kind, Kind::Tensor | Kind::Word | Kind::Stream) {
                break;
            }
            let last = self.raw.get(self.at + 1).is_none_or(|it| it.first);
            if next.kind == Kind::Colon && last && !self.open.is_empty() {
                self.close_missing(next.start);
            }
            if self.missing_closer(next) && next.kind != Kind::Arrow {
                break;
            }
            self.take();
            if next.kind == Kind::Colon && self.open.is_empty() {
                break;
            }
        }
        let place = self.out.last().map_or(self.source.base, |it| it.end);
        self.close_missing(place);
        self.finish_statement();
    }

    /// `HostUnit0: Inputs={…} -> Outputs={…}` with what follows it.
    fn unit(&mut self) {
        self.begin_statement();
        let mut lists = 0;
        while let Some(next) = self.peek() {
            match next.kind {
                Kind::KernelStart | Kind::Finish => break,
                Kind::BraceClose if self.open.is_empty() => break,
                // Both lists again, one value a line: they repeat what was said.
                Kind::Word | Kind::Tensor | Kind::Colon | Kind::Comma
                    if lists == 2 && self.open.is_empty() =>
                {
                    let unit = self.kind(2) == Some(Kind::Elided) || self.kind(3) == Some(Kind::Assign);
                    if self.at_section() && unit {
                        break;
                    }
                    self.at += 1;
                    continue;
                }
                _ if lists == 2 && self.open.is_empty() => break,
                _ if self.open.is_empty() && self.out.len() > self.begin && self.at_section() => break,
                _ => (),
            }
            self.take();
            if next.kind == Kind::BraceClose && self.open.is_empty() {
                lists += 1;
            }
        }
        if self.kind(0) != Some(Kind::KernelStart) {
            self.end_statement();
            return;
        }
        let place = self.out.last().map_or(self.source.base, |it| it.end);
        self.close_missing(place);
        self.finish_statement();
        self.kernel();
    }

    /// `%kernel { … }`.
    fn kernel(&mut self) {
        self.out.extend(self.peek());
        self.at += 1;
        let opener = self.peek().filter(|it| it.kind == Kind::BraceOpen);
        self.at += usize::from(opener.is_some());
        self.block(None);
        // What nvFuser prints of a scheduled fusion besides its statements: a unit's domains mean nothing to the host.
        if let Some(heading) = self.peek().filter(|it| self.text(*it) == "TransformPrinter") {
            self.skip(|_, _| false);
            self.dropped(heading, "dropped from here");
        }
        self.at += usize::from(self.kind(0) == Some(Kind::BraceClose));
    }

    /// `Resize: iS1{i0}rf by 0 and 2 -> …` between the statements of a fusion.
    pub(super) fn at_transform(&self) -> bool {
        let heading = [Some(Kind::Word), Some(Kind::Colon), Some(Kind::Axis)];
        (0..3).map(|ahead| self.kind(ahead)).eq(heading)
    }

    /// Skips such a line, up to what can only be a statement.
    pub(super) fn transform(&mut self) {
        let Some(heading) = self.peek() else { return };
        self.at += 3;
        self.skip(|this, next| {
            let result = matches!(next.kind, Kind::Word | Kind::Tensor) && this.kind(1) == Some(Kind::Assign);
            result || this.at_transform()
        });
        self.dropped(heading, "dropped");
    }

    /// Skips tokens up to the end of the block, or to where `stops` says.
    fn skip(&mut self, stops: impl Fn(&Self, Lexeme) -> bool) {
        let mut braces = 0usize;
        while let Some(next) = self.peek() {
            let ends = next.kind.ends_block() && (braces == 0 || next.kind == Kind::Finish);
            if ends || stops(self, next) {
                break;
            }
            match next.kind {
                Kind::BraceOpen => braces += 1,
                Kind::BraceClose => braces -= 1,
                _ => (),
            }
            self.at += 1;
        }
    }

    /// Says that the tokens from `heading` up to the next one mean nothing; the edit takes them out.
    fn dropped(&mut self, heading: Lexeme, label: &str) {
        let end = self.raw.get(self.at.saturating_sub(1)).map_or(heading.end, |it| it.end);
        let message = "a unit's transforms are not kept";
        let it = Diagnostic::new(Code::LossyText, heading.span(), message, label);
        self.diagnostics.push(it.fix(Span { start: heading.start, end }, ""));
    }

    /// A statement in the words of May 2024: `Execute the following Fusion, taking inputs :{ … } …`.
    pub(super) fn posted(&mut self, lines: &mut Vec<Line>) {
        let Some(first) = self.peek() else { return };
        self.begin_statement();
        let start = self.begin as u32;
        while let Some(next) = self.peek() {
            if next.kind.is_phrase() {
                if self.out.len() > self.begin && !self.slice_starts(next, '}') {
                    break;
                }
                self.out.push(next);
                self.at += 1;
                // Its brace, so that operands get their commas.
                self.open.clear();
                self.open.push(Opened {
                    kind: Kind::BraceOpen,
                    span: next.span(),
                    operators: 0,
                    never_closed: false,
                    list: List::Lines,
                    is_call: false,
                });
            } else if next.kind == Kind::KernelStart {
                let open = std::mem::take(&mut self.open);
                let begin = self.begin;
                self.kernel();
                (self.open, self.begin) = (open, begin);
            } else if next.kind == Kind::Finish || next.kind.is_header() {
                break;
            } else {
                let last = next.kind == Kind::BraceClose && self.open.len() == 1;
                self.take();
                if last {
                    break;
                }
            }
        }
        self.end_statement();
        let column = first.first.then_some(first.column);
        lines.push(Line { start, end: self.out.len() as u32, kind: Kind::End, column });
    }

    fn slice_starts(&self, lexeme: Lexeme, mark: char) -> bool {
        self.text(lexeme).starts_with(mark)
    }

    /// The lines of a trailing section.
    pub(super) fn section(&mut self, kind: Kind, heading: usize, start: usize, end: usize) {
        let base = self.source.base;
        let text = self.source.text.get(start..end).unwrap_or("");
        let source = Source { text, base: base + start as u32 };
        (self.raw, _) = scan(source, Until::TextEnd, self.diagnostics);
        self.at = 0;
        let span = Span { start: base + heading as u32, end: base + start as u32 };
        self.out.push(Lexeme { kind, first: true, column: 0, start: span.start, end: span.end });
        if kind == Kind::Definitions {
            let mut lines = Vec::new();
            while self.peek().is_some() {
                self.statement(&mut lines);
            }
            return;
        }
        while self.peek().is_some() {
            self.begin_statement();
            self.take();
            while let Some(next) = self.peek() {
                if next.first && next.kind == Kind::Word && self.kind(1) == Some(Kind::Colon) {
                    break;
                }
                self.take();
            }
            self.check_trailing_comma();
            self.end_statement();
        }
    }
}

/// A section behind the closer: its heading's kind and where its lines begin and end.
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) heading: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The section that begins behind `from`, with nothing but blanks and comments before it.
pub(super) fn find(text: &str, from: usize) -> Option<Section> {
    let mut at = from;
    let (heading, kind) = loop {
        let rest = text.get(at..)?;
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        if is_comment(trimmed) {
            at += comment(trimmed);
            continue;
        }
        break heading(trimmed)?;
    };
    let (here, start) = (at, at + heading.len());
    let mut lines = text.get(at..)?.split_inclusive('\n');
    let mut end = at + lines.next().map_or(0, str::len);
    // Whether blank lines were put in everywhere: nvFuser leaves one before a heading.
    let before = text.get(..here).unwrap_or("");
    let doubled = before.get(before.trim_end().len()..).is_some_and(|it| it.matches('\n').count() > 2);
    let mut blank = 0;
    for line in lines {
        let trimmed = line.trim();
        if trimmed.is_empty() && !doubled {
            break;
        }
        if trimmed.is_empty() {
            blank += line.len();
            continue;
        }
        let indented = line.starts_with([' ', '\t']);
        let belongs = match kind {
            Kind::Domains => trimmed.starts_with('T') && trimmed.contains(':'),
            _ => trimmed.contains('='),
        };
        let other = trimmed.starts_with('%') || self::heading(trimmed).is_some();
        // Behind a blank line, only what can be nothing else belongs to the section.
        let certain = blank == 0 || indented && belongs && (kind == Kind::Domains || trimmed.ends_with(';'));
        if other || !certain || !(indented || belongs || is_comment(trimmed)) {
            break;
        }
        end += line.len() + std::mem::take(&mut blank);
    }
    Some(Section { kind, heading: here, start, end })
}

const HEADINGS: [(&str, Kind); 2] = [("Index definitions:", Kind::Definitions), ("Domains:", Kind::Domains)];

/// The heading that a text begins with.
fn heading(text: &str) -> Option<(&'static str, Kind)> {
    HEADINGS.into_iter().find(|(heading, _)| text.starts_with(heading))
}

/// The length of the comment that `text` begins with: its line, or, where a dump was folded into one line, the name
/// behind the container's closing brace.
pub(crate) fn comment(text: &str) -> usize {
    let line = text.split_inclusive('\n').next().unwrap_or("");
    match line.strip_prefix("// %HostIrContainer") {
        Some(behind) if heading(behind.trim_start()).is_some() || behind.contains("%HostIrContainer") => {
            line.len() - behind.len()
        }
        Some(_) | None => line.len(),
    }
}

fn is_comment(line: &str) -> bool {
    line.starts_with("//") || line.starts_with('#')
}
