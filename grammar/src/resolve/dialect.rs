//! What a statement means in the dialect that its container is written in.
//!
//! A dump does not say when it was printed; its own spellings do. Two things changed their meaning without changing
//! their text: `root=` counted devices until 2026-02-19 and counts within the team since, and `fmax`, `fmin` were how
//! maxima were printed until 2025-09-29 and ignore NaNs since.
//!
//! Invariant: where the container's spellings do not decide, the newer meaning is taken and a warning says so.

use super::Resolver;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Expr, ExprId, OpStmt, Stmt, StmtId},
    layout::Laid,
    ops::Op,
    roots::Readings,
    span::Span,
    text::expr_text,
    token::{Kind, Lexeme},
};

/// Tensors among so many first tokens tell the age: all tensors of a container are spelled alike.
const HEADER: usize = 64;

/// The token behind the value that begins at `at`: one token, or a bracket with what it holds.
fn group_end(tokens: &[Lexeme], at: usize) -> usize {
    let mut depth = 0usize;
    for (offset, token) in tokens.get(at..).unwrap_or(&[]).iter().enumerate() {
        match token.kind {
            Kind::ParenOpen => depth += 1,
            Kind::ParenClose => depth = depth.saturating_sub(1),
            _ => (),
        }
        if depth == 0 {
            return at + offset + 1;
        }
    }
    tokens.len()
}

/// The token behind the name of a stream that begins at `at`: a word, a number, a bracket, or a call.
fn stream_end(tokens: &[Lexeme], at: usize) -> usize {
    let is = |at: usize, kind: Kind| tokens.get(at).is_some_and(|it| it.kind == kind);
    let numbered = at + 1 + usize::from(is(at + 1, Kind::Int));
    let call = is(at, Kind::Word) && is(numbered, Kind::ParenOpen);
    group_end(tokens, if call { numbered } else { at })
}

/// When a container was printed, as far as its spellings tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Age {
    /// Call style, January 2026 or later, or nothing that tells.
    #[default]
    Current,
    /// Keyword style: before January 2026.
    Keywords,
    /// Spellings that were gone by September 2025.
    Early,
}

impl<'s> Resolver<'s, '_> {
    /// Looks over the tokens before anything is resolved: which streams are captured, since `Stream 0` means something
    /// else without, how old the spellings are, and which units there are.
    pub(super) fn survey(&mut self, laid: &Laid<'s>) {
        let source = laid.source();
        let tokens = laid.lexemes();
        let kind = |at: usize| tokens.get(at).map(|it| it.kind);
        let text = |at: usize| tokens.get(at).map_or("", |it| source.slice(it.start, it.end));
        for (at, token) in tokens.iter().enumerate() {
            match token.kind {
                Kind::For => self.older(text(at + 1) == "StreamIdx", Age::Early),
                Kind::Posted => self.age = Age::Early,
                Kind::Awaited => (self.age, self.waits) = (Age::Early, true),
                Kind::Tensor if at < HEADER => {
                    let text = text(at);
                    self.older(text.contains("[ ") || text.contains("iStream"), Age::Early);
                }
                Kind::Stream => {
                    let keyword = at > 0 && kind(at - 1) == Some(Kind::Into);
                    let end = stream_end(tokens, at + 1);
                    if keyword || kind(end) == Some(Kind::Assign) {
                        self.older(keyword, Age::Keywords);
                        let (first, last) = (tokens.get(at + 1), tokens.get(end.wrapping_sub(1)));
                        let name =
                            first.zip(last).map_or("", |(first, last)| source.slice(first.start, last.end));
                        if !self.captured.contains(&name) {
                            self.captured.push(name);
                        }
                    }
                }
                Kind::Word => match text(at) {
                    "stream_index" => self.older(self.byte(token.end) == Some(b' '), Age::Keywords),
                    name @ ("SetCurrentStream" | "Synchronize" | "Wait") => {
                        self.waits |= name == "Wait";
                        self.older(kind(at + 1) != Some(Kind::ParenOpen), Age::Keywords);
                    }
                    "Input" => self.older(kind(at + 1) == Some(Kind::Assign), Age::Early),
                    name if kind(at + 1) == Some(Kind::Colon) => {
                        if let Some(number) = super::unit_number(name) {
                            self.declare_unit(number);
                        }
                    }
                    _ => (),
                },
                _ => (),
            }
        }
    }

    fn older(&mut self, holds: bool, age: Age) {
        if holds {
            self.age = self.age.max(age);
        }
    }

    fn byte(&self, at: u32) -> Option<u8> {
        self.source.as_bytes().get(at as usize).copied()
    }

    /// The name of a scalar function or tensor operator in today's meaning.
    pub(super) fn extremum<'a>(&mut self, name: &'a str, span: Span, integers: bool) -> &'a str {
        let plain = match name {
            "fmax" => "max",
            "fmin" => "min",
            _ => return name,
        };
        match self.age {
            _ if integers => plain,
            Age::Early => plain,
            Age::Current => name,
            Age::Keywords => {
                let message = format!("`{name}` meant `{plain}` until September 2025");
                let label = format!("taken as `{plain}`, which a NaN wins");
                let help = format!("write `{plain}`, or call-style statements around it to keep `{name}`");
                let it = Diagnostic::new(Code::LossyMax, span, message, label).help(help).fix(span, plain);
                self.diagnostics.push(it);
                plain
            }
        }
    }

    /// Whether an expression is an integer by the names in it.
    pub(super) fn is_integer(&self, expr: ExprId) -> bool {
        let program = &self.program;
        match &program.exprs[expr] {
            Expr::Int(_) => true,
            Expr::Bool(_) | Expr::Float(..) => false,
            Expr::Symbol(symbol) => {
                let name = program.symbols[*symbol].as_str();
                let number =
                    name.strip_prefix('i').is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()));
                number || matches!(name, "rank" | "streamIdx" | "numberOfStreams" | "deviceIdx.x")
            }
            Expr::Prefix(_, operand) => self.is_integer(*operand),
            Expr::Infix(_, lhs, rhs) => self.is_integer(*lhs) && self.is_integer(*rhs),
            Expr::Call(name, args) => match (name.as_str(), args.as_slice()) {
                ("ceilDiv" | "gcd" | "__to_index" | "__to_int64_t", _) => true,
                ("where", [_, a, b]) | ("max" | "min", [a, b]) => self.is_integer(*a) && self.is_integer(*b),
                _ => false,
            },
        }
    }

    /// Writes roots that count devices as what they are in the team.
    pub(super) fn settle_root(&mut self, stmt: &mut OpStmt, span: Span) {
        if self.roots_in_team || stmt.op != Op::Communication {
            return;
        }
        let (Some(root), Some(team)) = (stmt.get(attr::ROOT), stmt.get(attr::TEAM)) else {
            return;
        };
        let readings = Readings::of(&self.program, root, team);
        let as_device = match (self.age, &readings) {
            (_, Readings::Same) => None,
            (Age::Current, Readings::Device(place)) => Some(*place),
            (Age::Current, Readings::Both(_)) => {
                self.warn_root(root, readings, span);
                None
            }
            (Age::Keywords | Age::Early, Readings::Device(place) | Readings::Both(Some(place))) => {
                Some(*place)
            }
            (Age::Keywords | Age::Early, Readings::Both(None)) => {
                self.warn_root(root, readings, span);
                None
            }
        };
        if let Some(place) = as_device {
            let place = self.program.int(place);
            stmt.set(attr::ROOT, place);
        }
    }

    fn warn_root(&mut self, root: ExprId, readings: Readings, span: Span) {
        let root = expr_text(&self.program, root);
        let other = match readings {
            Readings::Both(Some(place)) => format!("a device would be `root={place}` of the team"),
            Readings::Both(None) | Readings::Device(_) | Readings::Same => {
                "a device would be another member of the team".to_owned()
            }
        };
        let message = format!("`root={root}` counts devices or, since February 2026, members of the team");
        let mut it = Diagnostic::new(Code::LossyRoot, span, message, format!("taken as a member; {other}"))
            .help("`%options roots=team` in front of the container makes it explicit");
        it.fixes.push(self.fix_option("roots=team"));
        self.diagnostics.push(it);
    }

    /// Gives a Wait whose number nothing has posted to the bracket that it can only mean.
    pub(super) fn settle_work(&mut self, id: StmtId) {
        let Stmt::Op(stmt) = &self.program.stmts[id] else { return };
        match (stmt.op, stmt.number, stmt.get(attr::WORK)) {
            (Op::EndCoalescing, None, _) => self.bracket = Some(id),
            (Op::Wait, _, Some(number)) if !self.posted.contains(&number) => {
                if let Some(Stmt::Op(bracket)) = self.bracket.take().map(|id| &mut self.program.stmts[id]) {
                    bracket.number = Some(number);
                    self.posted.insert(number);
                }
            }
            _ => self.posted.extend(self.program.posts_work(id)),
        }
    }
}

#[cfg(test)]
mod tests;
