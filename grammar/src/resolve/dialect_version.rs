//! Interprets statements according to the dialect version of their container.
//!
//! A dump does not state when it was printed, but its spellings show it. Two constructs changed their meaning
//! without changing their text: `root=` was a device number until 2026-02-19 and has been an index in the
//! team since; `fmax` and `fmin` were the printed names of `max` and `min` until 2025-09-29 and have ignored
//! NaNs since.
//!
//! The statements of a log's fusion have the version of its dump.
//!
//! Invariant: if the spellings of the container or the dump do not determine the meaning, a warning states the meaning
//! that was chosen: an index in the team for `root=`, `max` and `min` for `fmax` and `fmin`.

use super::Resolver;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    indentation::TokenStream,
    ir::{ExprId, OpStmt, Stmt, StmtId},
    ops::Op,
    roots::RootInterpretation,
    span::Span,
    text::expr_text,
    token::{Lexeme, TokenKind},
};

/// Number of leading tokens whose tensors are inspected; all tensors of a container have the same spelling
/// style.
const HEADER_TOKENS: usize = 64;

/// Returns the index after the value that begins at token `at`: one token, or a parenthesized group.
fn group_end(tokens: &[Lexeme], at: usize) -> usize {
    let mut depth = 0usize;
    for (offset, token) in tokens.get(at..).unwrap_or(&[]).iter().enumerate() {
        match token.kind {
            TokenKind::ParenOpen => depth += 1,
            TokenKind::ParenClose => depth = depth.saturating_sub(1),
            _ => (),
        }
        if depth == 0 {
            return at + offset + 1;
        }
    }
    tokens.len()
}

/// Returns the index after the stream name that begins at token `at`: a word, a number, a parenthesized
/// group, or a call.
fn stream_end(tokens: &[Lexeme], at: usize) -> usize {
    let is = |at: usize, kind: TokenKind| tokens.get(at).is_some_and(|it| it.kind == kind);
    let numbered = at + 1 + usize::from(is(at + 1, TokenKind::Int));
    let call = is(at, TokenKind::Word) && is(numbered, TokenKind::ParenOpen);
    group_end(tokens, if call { numbered } else { at })
}

/// The dialect version of a container, as determined from its spellings. Ordered from newest to oldest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum DialectVersion {
    /// Call style: January 2026 or later, or unknown.
    #[default]
    CallStyle,
    /// Keyword style: before January 2026.
    KeywordStyle,
    /// Spellings that nvFuser no longer used in September 2025.
    Early,
}

impl DialectVersion {
    /// Returns the version of a dump of a fusion: containers of launches have no spelling that shows it.
    pub(super) fn of_fusion(dump: &str) -> Self {
        // `(float)(x)` until 2025-07-03; `leaf domain` until 2024-06-10.
        let casts = ["= (float)(", "= (double)(", "= (__half)(", "= (__bfloat)(", "= (int64_t)(", "= (int)("];
        if dump.contains("leaf domain") || casts.iter().any(|it| dump.contains(it)) {
            return Self::Early;
        }
        // `view(` until 2026-01-12, ` logical domain :` until 2026-02-02; `%kernel_math` since 2026-02-03.
        let is_new = dump.contains("logical domain: ") || dump.contains("%kernel_math");
        if is_new && !dump.contains("= view(") { Self::CallStyle } else { Self::KeywordStyle }
    }
}

impl<'s> Resolver<'s> {
    /// Scans the tokens before any statement is resolved. Determines the dialect version, the HostUnits, and
    /// the captured streams, because `Stream 0` has another meaning if a stream of that name is captured.
    pub(super) fn detect_version(&mut self, token_stream: &TokenStream<'s>) {
        let source = token_stream.source();
        let tokens = token_stream.lexemes();
        let kind = |at: usize| tokens.get(at).map(|it| it.kind);
        let text = |at: usize| tokens.get(at).map_or("", |it| source.slice(it.start, it.end));
        for (at, token) in tokens.iter().enumerate() {
            match token.kind {
                TokenKind::For => self.note_version(text(at + 1) == "StreamIdx", DialectVersion::Early),
                TokenKind::PostPhrase => self.version = DialectVersion::Early,
                TokenKind::WaitPhrase => (self.version, self.has_waits) = (DialectVersion::Early, true),
                TokenKind::Tensor if at < HEADER_TOKENS => {
                    let text = text(at);
                    self.note_version(text.contains("[ ") || text.contains("iStream"), DialectVersion::Early);
                }
                TokenKind::Stream => {
                    let keyword = at > 0 && kind(at - 1) == Some(TokenKind::Into);
                    let end = stream_end(tokens, at + 1);
                    if keyword || kind(end) == Some(TokenKind::Assign) {
                        self.note_version(keyword, DialectVersion::KeywordStyle);
                        let (first, last) = (tokens.get(at + 1), tokens.get(end.wrapping_sub(1)));
                        let name =
                            first.zip(last).map_or("", |(first, last)| source.slice(first.start, last.end));
                        if !self.captured_streams.contains(&name) {
                            self.captured_streams.push(name);
                        }
                    }
                }
                TokenKind::Word => match text(at) {
                    "stream_index" => {
                        self.note_version(self.byte(token.end) == Some(b' '), DialectVersion::KeywordStyle)
                    }
                    name @ ("SetCurrentStream" | "Synchronize" | "Wait") => {
                        self.has_waits |= name == "Wait";
                        self.note_version(
                            kind(at + 1) != Some(TokenKind::ParenOpen),
                            DialectVersion::KeywordStyle,
                        );
                    }
                    "Input" => {
                        self.note_version(kind(at + 1) == Some(TokenKind::Assign), DialectVersion::Early)
                    }
                    name if kind(at + 1) == Some(TokenKind::Colon) => {
                        if let Some(number) = super::units::unit_number(name) {
                            self.declare_unit(number);
                        }
                    }
                    _ => (),
                },
                _ => (),
            }
        }
    }

    fn note_version(&mut self, holds: bool, age: DialectVersion) {
        if holds {
            self.version = self.version.max(age);
        }
    }

    fn byte(&self, at: u32) -> Option<u8> {
        self.source.as_bytes().get(at as usize).copied()
    }

    /// Returns the current name of a scalar function or tensor operator.
    pub(super) fn resolve_extremum<'a>(&mut self, name: &'a str, span: Span, integers: bool) -> &'a str {
        let plain = match name {
            "fmax" => "max",
            "fmin" => "min",
            _ => return name,
        };
        match self.fusion_version.map_or(self.version, |it| it.max(self.version)) {
            _ if integers => plain,
            DialectVersion::Early => plain,
            DialectVersion::CallStyle => name,
            DialectVersion::KeywordStyle => {
                let message = format!("`{name}` meant `{plain}` until September 2025");
                let label = format!("interpreted as `{plain}`, which propagates NaNs");
                let help = match self.fusion_version {
                    Some(_) => format!("write `{plain}`, or take a log of a newer nvFuser"),
                    None => format!(
                        "write `{plain}`, or use call-style statements in the container to keep `{name}`"
                    ),
                };
                let it = Diagnostic::new(Code::LossyMax, span, message, label).help(help).fix(span, plain);
                self.diagnostics.push(it);
                plain
            }
        }
    }

    /// Replaces a root that is a device number by its index in the team.
    pub(super) fn resolve_root(&mut self, stmt: &mut OpStmt, span: Span) {
        if self.roots_in_team || stmt.op != Op::Communication {
            return;
        }
        let (Some(root), Some(team)) = (stmt.get(attr::ROOT), stmt.get(attr::TEAM)) else {
            return;
        };
        let readings = RootInterpretation::of(&self.program, root, team);
        let as_device = match (self.version, &readings) {
            (_, RootInterpretation::Unambiguous) => None,
            (DialectVersion::CallStyle, RootInterpretation::DeviceOnly(place)) => Some(*place),
            (DialectVersion::CallStyle, RootInterpretation::MemberOrDevice(_)) => {
                self.warn_ambiguous_root(root, readings, span);
                None
            }
            (
                DialectVersion::KeywordStyle | DialectVersion::Early,
                RootInterpretation::DeviceOnly(place) | RootInterpretation::MemberOrDevice(Some(place)),
            ) => Some(*place),
            (
                DialectVersion::KeywordStyle | DialectVersion::Early,
                RootInterpretation::MemberOrDevice(None),
            ) => {
                self.warn_ambiguous_root(root, readings, span);
                None
            }
        };
        if let Some(place) = as_device {
            let place = self.program.intern_int(place);
            stmt.set(attr::ROOT, place);
        }
    }

    fn warn_ambiguous_root(&mut self, root: ExprId, readings: RootInterpretation, span: Span) {
        let root = expr_text(&self.program, root);
        let other = match readings {
            RootInterpretation::MemberOrDevice(Some(place)) => {
                format!("as a device number, it would be `root={place}`")
            }
            RootInterpretation::MemberOrDevice(None)
            | RootInterpretation::DeviceOnly(_)
            | RootInterpretation::Unambiguous => "as a device number, it would be another member".to_owned(),
        };
        let message = format!(
            "`root={root}` is ambiguous: a device number in dumps until February 2026, and an index into the team in later dumps"
        );
        let mut it = Diagnostic::new(
            Code::LossyRoot,
            span,
            message,
            format!("interpreted as an index in the team; {other}"),
        )
        .help("write `%options roots=team` before the container to make this explicit");
        it.fixes.push(self.options_fix("roots=team"));
        self.diagnostics.push(it);
    }

    /// Records the communications that a statement posts. If a Wait refers to a number that no statement
    /// posts, assigns that number to the last unnumbered EndCoalescing, the only statement that the Wait can
    /// refer to.
    pub(super) fn resolve_work(&mut self, id: StmtId) {
        let Stmt::Op(stmt) = &self.program.stmts[id] else { return };
        match (stmt.op, stmt.number, stmt.get(attr::WORK)) {
            (Op::EndCoalescing, None, _) => self.unnumbered_coalescing = Some(id),
            (Op::Wait, _, Some(number)) if !self.posted_work.contains(&number) => {
                if let Some(Stmt::Op(bracket)) =
                    self.unnumbered_coalescing.take().map(|id| &mut self.program.stmts[id])
                {
                    bracket.number = Some(number);
                    self.posted_work.insert(number);
                }
            }
            _ => self.posted_work.extend(self.program.posted_work(id)),
        }
    }
}
