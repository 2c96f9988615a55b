//! Parses a module.
//!
//! The parser is written by hand. The pretty spelling of an operation is defined by code of that operation and changes between
//! versions of StableHLO, so one grammar of all of them would have a production for each operation and each version. All spellings
//! have the same elements, though (operands, words, `key = value`, arrays, regions, types), so one loop reads them all, the
//! generic spelling included: `operation`. What an element means is decided where the operation is imported.

mod attribute;
mod keys;
mod operation;
mod types;

use grammar::{Code, Diagnostic, Span};

use crate::{
    token::{Token, TokenKind, scan},
    tree::{Argument, Attribute, Block, Module, Type},
    unique_names,
};

/// The greatest depth of regions and attributes.
const MAX_DEPTH: usize = 100;

/// The result of a step of the parser.
pub(crate) type Parsed<T> = Result<T, Box<Diagnostic>>;

/// Parses the text of a module. `is_read` returns whether an operation of a name is read; nothing is known about the elements of others.
///
/// # Errors
/// Returns an error for the first token that no spelling of MLIR has at its place.
pub(crate) fn parse(text: &str, is_read: fn(&str) -> bool) -> Parsed<Module<'_>> {
    let tokens = scan(text)?;
    let mut parser =
        Parser { text, tokens: &tokens, at: 0, depth: 0, is_read, aliases: Vec::new(), types: Vec::new() };
    let mut module = Module::default();
    while parser.peek().is_some() {
        parser.top_level(&mut module)?;
    }
    Ok(module)
}

/// A position in the tokens of a text.
struct Parser<'s, 't> {
    text: &'s str,
    tokens: &'t [Token],
    at: usize,
    depth: usize,
    is_read: fn(&str) -> bool,
    /// Attributes that have a name, such as `#loc3`, which is defined before it is used.
    aliases: Vec<(&'s str, Attribute<'s>)>,
    /// Types that have a name, such as `!t`, which is defined before it is used.
    types: Vec<(&'s str, Type<'s>)>,
}

impl<'s> Parser<'s, '_> {
    // ---- tokens

    fn peek(&self) -> Option<TokenKind> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Option<TokenKind> {
        self.tokens.get(self.at + ahead).map(|it| it.kind)
    }

    /// Returns the text of a token.
    fn text_at(&self, ahead: usize) -> &'s str {
        self.tokens.get(self.at + ahead).map_or("", |it| it.span.text(self.text))
    }

    /// Returns the position of the next token; behind the text, the last character.
    fn span(&self) -> Span {
        let end = self.text.trim_end().len();
        self.tokens.get(self.at).map_or(Span::new(end, end), |it| it.span)
    }

    /// Returns the position of what was read since `start`.
    fn span_from(&self, start: Span) -> Span {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        last.map_or(start, |it| start.join(it.span))
    }

    fn is_word(&self, word: &str) -> bool {
        self.peek() == Some(TokenKind::Word) && self.text_at(0) == word
    }

    /// Skips the next token if it is of this kind.
    fn accept(&mut self, kind: TokenKind) -> bool {
        let found = self.peek() == Some(kind);
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, kind: TokenKind, what: &str) -> Parsed<&'s str> {
        if self.peek() != Some(kind) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(self.tokens.get(self.at - 1).map_or("", |it| it.span.text(self.text)))
    }

    /// Returns the error that something else stands here.
    fn error(&self, what: &str) -> Box<Diagnostic> {
        let (code, message) = match self.tokens.get(self.at) {
            Some(it) => (Code::Syntax, format!("unexpected `{}`", it.span.text(self.text))),
            None => (Code::Truncated, "the module ends too early".to_owned()),
        };
        let it = Diagnostic::new(code, self.span(), message, format!("expected {what}"));
        Box::new(it.help("write the module with `as_text()`, and copy all of it"))
    }

    /// Calls `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} levels of regions or attributes");
            let it = Diagnostic::new(Code::Syntax, self.span(), message, "expected fewer levels");
            return Err(Box::new(it.help("JAX writes no such module: is the text damaged here?")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Reads a list up to `close`, with commas between its elements.
    fn list(
        &mut self,
        close: TokenKind,
        what: &str,
        mut element: impl FnMut(&mut Self) -> Parsed<()>,
    ) -> Parsed<()> {
        if self.accept(close) {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.accept(TokenKind::Comma) {
                return self.expect(close, what).map(drop);
            }
        }
    }

    // ---- modules and regions

    /// Reads the name of an alias of this kind up to its `=`; `None` if no definition stands here.
    fn new_name(&mut self, kind: TokenKind) -> Parsed<Option<&'s str>> {
        if self.peek() != Some(kind) || self.peek_at(1) != Some(TokenKind::Equal) {
            return Ok(None);
        }
        let name = self.text_at(0);
        if self.aliases.iter().any(|it| it.0 == name) || self.types.iter().any(|it| it.0 == name) {
            return Err(unique_names::defined_again(name, None, self.span()));
        }
        self.at += 2;
        Ok(Some(name))
    }

    /// Reads a definition of an alias, the module, or an operation of a module whose first line is missing.
    fn top_level(&mut self, module: &mut Module<'s>) -> Parsed<()> {
        if let Some(name) = self.new_name(TokenKind::Alias)? {
            let value = self.alias_value()?;
            self.aliases.push((name, value));
            return Ok(());
        }
        if let Some(name) = self.new_name(TokenKind::OtherType)? {
            let ty = self.ty()?;
            self.types.push((name, ty));
            return Ok(());
        }
        if self.accept_word("module") {
            _ = self.accept(TokenKind::Symbol);
            if self.accept_word("attributes")
                && let Attribute::Dictionary(entries) = self.attribute()?
            {
                module.attributes = entries;
            }
            self.expect(TokenKind::OpenBrace, "`{`, the beginning of the module")?;
            let block = self.nested(Self::block)?;
            self.expect(TokenKind::CloseBrace, "`}`, the end of the module")?;
            module.ops.extend(block.ops);
            return self.location();
        }
        let op = self.nested(Self::operation)?;
        match op.name {
            "builtin.module" => {
                module.attributes = op.attributes;
                module.ops.extend(op.regions.into_iter().flat_map(|it| it.ops));
            }
            _ => module.ops.push(op),
        }
        Ok(())
    }

    /// Reads what an alias stands for. Locations have a syntax of their own, which hir does not need.
    fn alias_value(&mut self) -> Parsed<Attribute<'s>> {
        if self.is_word("loc") {
            self.location()?;
            return Ok(Attribute::Word("loc"));
        }
        self.typed_attribute()
    }

    /// Skips `loc(…)`, if there is one.
    fn location(&mut self) -> Parsed<()> {
        if !(self.is_word("loc") && self.peek_at(1) == Some(TokenKind::OpenRound)) {
            return Ok(());
        }
        self.at += 2;
        self.skip_past(TokenKind::CloseRound, TokenKind::OpenRound, "`)`, the end of the location")
    }

    /// Skips the rest of a pair of brackets that has been opened, with the pairs in it. `wanted` names the end in the error if there is none.
    fn skip_past(&mut self, close: TokenKind, open: TokenKind, wanted: &str) -> Parsed<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                Some(it) if it == open => depth += 1,
                Some(it) if it == close => depth -= 1,
                Some(_) => (),
                None => return Err(self.error(wanted)),
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Reads the arguments, if the text has them, and the operations up to, but not including, `}`.
    fn block(&mut self) -> Parsed<Block<'s>> {
        let mut block = Block::default();
        if self.accept(TokenKind::BlockName) {
            if self.accept(TokenKind::OpenRound) {
                self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
                    block.arguments.push(it.argument()?);
                    Ok(())
                })?;
            }
            self.expect(TokenKind::Colon, "`:` behind the name of the block")?;
        }
        while !matches!(self.peek(), Some(TokenKind::CloseBrace) | None) {
            if self.peek() == Some(TokenKind::BlockName) {
                return Err(self.error("an operation: hir reads regions of one block"));
            }
            block.ops.push(self.nested(Self::operation)?);
        }
        Ok(block)
    }

    /// Reads `%arg0: tensor<8xf32> {attributes} loc(…)`.
    fn argument(&mut self) -> Parsed<Argument<'s>> {
        let span = self.span();
        let name = self.expect(TokenKind::Value, "an argument such as `%arg0`")?;
        self.expect(TokenKind::Colon, "`:` and the type of the argument")?;
        let ty = self.ty()?;
        let span = self.span_from(span);
        let mut attributes = Vec::new();
        if self.peek() == Some(TokenKind::OpenBrace) {
            attributes = self.dictionary()?;
        }
        self.location()?;
        Ok(Argument { name, ty, attributes, span })
    }
}
