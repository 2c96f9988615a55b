//! The names that a text uses: where it mentions a tensor, a scalar, a stream, a communication or a HostUnit, and what it does
//! with it there.

use grammar::{
    AccessMode, OpDef, Operand, OperandDef, P2pType, Place, Program, Span, Stmt, StmtId, Stream, StreamId,
    SymbolId, TensorId, UnitId, attr, ir::Part,
};
use rustc_hash::FxHashSet;

use crate::snapshot::Snapshot;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Named {
    /// A tensor.
    Tensor(TensorId),
    /// A scalar.
    Symbol(SymbolId),
    /// A stream that the program captures.
    Stream(StreamId),
    /// A communication, by its number.
    Work(u32),
    /// A HostUnit.
    Unit(UnitId),
}

/// What a text does with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Gives it its meaning.
    Definition,
    /// Writes what it stands for.
    Write,
    /// Reads what it stands for.
    Read,
    /// Neither: for example, a stream waits for another one.
    Mention,
}

/// A name in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occurrence {
    /// The position of the name.
    pub(crate) span: Span,
    /// What it stands for.
    pub(crate) named: Named,
    /// What the text does with it.
    pub(crate) role: Role,
    /// The statement that contains it.
    pub(crate) stmt: Option<StmtId>,
}

/// Returns all names of a program, in the order of the text.
pub(crate) fn occurrences(snapshot: &Snapshot, program: &Program) -> Vec<Occurrence> {
    let mut names = Names { program, text: snapshot.text(), found: Vec::new() };
    program.places().for_each(|(place, span)| names.add_place(place, span));
    names.add_symbols(snapshot.extent(program));
    let mut found = names.found;
    found.sort_by_key(|it| (it.span, it.role == Role::Mention));
    found.dedup_by_key(|it| (it.span, it.named));
    mark_definitions(&mut found);
    found
}

/// Returns the name at an offset, which may be just behind it.
pub(crate) fn at(found: &[Occurrence], offset: u32) -> Option<Occurrence> {
    let touches = found.iter().filter(|it| it.span.start <= offset && offset <= it.span.end);
    touches.min_by_key(|it| it.span.end - it.span.start).copied()
}

/// Makes the first write of a tensor that is not an input its definition.
fn mark_definitions(found: &mut [Occurrence]) {
    let mut defined: FxHashSet<Named> =
        found.iter().filter(|it| it.role == Role::Definition).map(|it| it.named).collect();
    for it in found.iter_mut().filter(|it| it.role == Role::Write) {
        if defined.insert(it.named) {
            it.role = Role::Definition;
        }
    }
}

/// Returns the offset of the name that a keyword in front of it introduces, as in `Communication 7` and `Stream s0`, or else the offset itself.
pub(crate) fn behind_keyword(text: &str, offset: u32) -> u32 {
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let Some((before, behind)) = text.split_at_checked(offset as usize) else { return offset };
    let head = before.len() - before.trim_end_matches(is_word).len();
    let tail = behind.len() - behind.trim_start_matches(is_word).len();
    let word = text.get(before.len() - head..before.len() + tail);
    let blanks = behind.get(tail..).map_or(0, |it| it.len() - it.trim_start_matches(' ').len());
    match word {
        Some("Communication" | "P2PCommunication" | "EndCoalescing" | "Stream") if blanks > 0 => {
            offset + (tail + blanks) as u32
        }
        Some(_) | None => offset,
    }
}

struct Names<'a> {
    program: &'a Program,
    text: &'a str,
    found: Vec<Occurrence>,
}

impl Names<'_> {
    fn add(&mut self, span: Option<Span>, named: Named, role: Role, stmt: Option<StmtId>) {
        self.found.extend(span.map(|span| Occurrence { span, named, role, stmt }));
    }

    fn add_place(&mut self, place: Place, span: Span) {
        let stmt = match place {
            Place::Stmt(stmt) | Place::Part(stmt, _) => Some(stmt),
            _ => None,
        };
        match (place, self.program.operand(place)) {
            (_, Some(Operand::Tensor(tensor))) => {
                let name = self.part_of(span, &self.program.tensor_name(tensor));
                self.add(name, Named::Tensor(tensor), self.role(place), stmt);
            }
            (_, Some(Operand::Stream(stream))) => {
                if let Stream::Named(_) = self.program.streams[stream] {
                    let role = match place {
                        Place::Part(_, Part::Result(_)) => Role::Definition,
                        _ => Role::Mention,
                    };
                    self.add(self.last_word(span), Named::Stream(stream), role, stmt);
                }
            }
            (Place::Stmt(stmt), _) => {
                if let Some(number) = self.program.posted_work(stmt) {
                    self.add(self.number_of(span, number), Named::Work(number), Role::Definition, Some(stmt));
                }
            }
            (Place::Part(stmt, Part::Attr(name)), _) => {
                let Stmt::Op(it) = &self.program.stmts[stmt] else { return };
                if name == attr::WORK
                    && let Some(number) = it.get(attr::WORK)
                {
                    self.add(self.last_word(span), Named::Work(number), Role::Mention, Some(stmt));
                }
                if name == attr::UNIT
                    && let Some(unit) = it.get(attr::UNIT)
                {
                    self.add(self.unit_name(span, unit), Named::Unit(unit), Role::Mention, Some(stmt));
                }
            }
            (Place::Unit(unit), _) => {
                self.add(self.unit_name(span, unit), Named::Unit(unit), Role::Definition, None);
            }
            _ => (),
        }
    }

    /// Adds the scalars: words of the text with the name of one, outside of comments.
    fn add_symbols(&mut self, (start, end): (usize, usize)) {
        let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == '.';
        let comments = &self.program.spans.comments;
        let mut defined: FxHashSet<(u32, SymbolId)> = FxHashSet::default();
        for (place, span) in self.program.places() {
            let symbol = match place {
                Place::Definition(symbol) => Some(symbol),
                Place::Part(stmt, Part::Result(0)) => match &self.program.stmts[stmt] {
                    Stmt::Let(symbol, _) => Some(*symbol),
                    Stmt::For(it) => Some(it.index),
                    Stmt::Op(_) | Stmt::If(_) => None,
                },
                _ => None,
            };
            defined.extend(symbol.map(|it| (span.start, it)));
        }
        let mut at = start;
        let mut next_comment = 0;
        while let Some(rest) = self.text.get(at..end).filter(|it| !it.is_empty()) {
            let begin = at + rest.find(is_word).unwrap_or(rest.len());
            let word: &str = self.text.get(begin..end).unwrap_or("");
            let word = word.split(|it| !is_word(it)).next().unwrap_or("");
            at = begin + word.len();
            if word.is_empty() {
                break;
            }
            while comments.get(next_comment).is_some_and(|it| (it.span.end as usize) <= begin) {
                next_comment += 1;
            }
            if comments.get(next_comment).is_some_and(|it| (it.span.start as usize) <= begin) {
                continue;
            }
            if let Some(symbol) = self.program.find_symbol(word) {
                let is_defined = defined.contains(&(begin as u32, symbol));
                let role = if is_defined { Role::Definition } else { Role::Read };
                self.add(Some(Span::new(begin, at)), Named::Symbol(symbol), role, None);
            }
        }
    }

    /// Returns what the text does with a tensor at a place.
    fn role(&self, place: Place) -> Role {
        match place {
            Place::Input(_) | Place::UnitInput(..) => Role::Definition,
            Place::Output(_) | Place::UnitOutput(..) => Role::Read,
            Place::Part(stmt, part) => match &self.program.stmts[stmt] {
                Stmt::Op(it) => match operand_def(it.op.def(), part).map(|it| it.access) {
                    Some(AccessMode::Read) => Role::Read,
                    Some(AccessMode::Write | AccessMode::Bind) => Role::Write,
                    Some(AccessMode::Transfer) => match it.get(attr::P2P_TYPE) {
                        Some(P2pType::Send) => Role::Read,
                        Some(P2pType::Recv) | None => Role::Write,
                    },
                    Some(AccessMode::NoAccess) | None => Role::Mention,
                },
                Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => Role::Read,
            },
            _ => Role::Mention,
        }
    }

    /// Returns the position of a name at the beginning of a place, or behind the name of a HostUnit and a dot.
    fn part_of(&self, span: Span, name: &str) -> Option<Span> {
        let text = span.text(self.text);
        let start = if text.starts_with(name) { 0 } else { text.find(&format!(".{name}"))? + 1 };
        let start = span.start as usize + start;
        Some(Span::new(start, start + name.len()))
    }

    /// Returns the position of the number behind the name of a statement.
    fn number_of(&self, span: Span, number: u32) -> Option<Span> {
        let text = span.text(self.text);
        let blanks = text.find(char::is_whitespace)?;
        let start = blanks + (text.len() - blanks - text.get(blanks..)?.trim_start().len());
        let number = number.to_string();
        let start = text.get(start..)?.starts_with(&number).then_some(span.start as usize + start)?;
        Some(Span::new(start, start + number.len()))
    }

    fn unit_name(&self, span: Span, unit: UnitId) -> Option<Span> {
        let name = format!("HostUnit{}", self.program.units[unit].number);
        let start = span.start as usize + span.text(self.text).find(&name)?;
        Some(Span::new(start, start + name.len()))
    }

    fn last_word(&self, span: Span) -> Option<Span> {
        let text = span.text(self.text);
        let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let end = text.rfind(is_word)? + 1;
        let start = text.get(..end)?.rfind(|it| !is_word(it)).map_or(0, |at| at + 1);
        Some(Span::new(span.start as usize + start, span.start as usize + end))
    }
}

/// Returns the definition of a part in the op table.
pub(crate) fn operand_def(def: &OpDef, part: Part) -> Option<&OperandDef> {
    let listed = |all: &'static [OperandDef], at: usize| all.get(at).or(all.last());
    match part {
        Part::Result(at) => listed(def.outs, at),
        Part::Operand(at) => listed(def.args, at),
        Part::Attr(name) | Part::Element(name, _) => {
            let name = name.to_string();
            def.args.iter().chain(def.attrs).find(|it| it.name == name)
        }
    }
}
