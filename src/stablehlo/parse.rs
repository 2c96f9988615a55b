//! Parses a module.
//!
//! The parser is written by hand. The pretty spelling of an operation is defined by code of that operation and changes between
//! versions of StableHLO, so one grammar of all of them would have a production for each operation and each version. All spellings
//! have the same elements, though (operands, words, `key = value`, arrays, regions, types), so one loop reads them all, the
//! generic spelling included: `operation`. What an element means is decided where the operation is imported.

mod attribute;
mod types;

use grammar::{codes::Code, diagnostic::Diagnostic, span::Span};

use crate::{
    token::{Token, TokenKind, scan},
    tree::{Argument, Attribute, Block, Module, Operation, Type, Use},
};

/// The greatest depth of regions and attributes.
const MAX_DEPTH: usize = 100;

/// The result of a step of the parser.
pub(crate) type Parsed<T> = Result<T, Box<Diagnostic>>;

/// Parses the text of a module.
///
/// # Errors
/// Returns an error for the first token that no spelling of MLIR has at its place.
pub(crate) fn parse(text: &str) -> Parsed<Module<'_>> {
    let tokens = scan(text)?;
    let mut parser = Parser { text, tokens: &tokens, at: 0, depth: 0 };
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
        while !self.accept(close) {
            element(self)?;
            if !self.accept(TokenKind::Comma) && self.peek() != Some(close) {
                return Err(self.error(what));
            }
        }
        Ok(())
    }

    // ---- modules and regions

    /// Reads a definition of an alias, the module, or an operation of a module whose first line is missing.
    fn top_level(&mut self, module: &mut Module<'s>) -> Parsed<()> {
        if self.peek() == Some(TokenKind::Alias) && self.peek_at(1) == Some(TokenKind::Equal) {
            let name = self.expect(TokenKind::Alias, "a name")?;
            self.at += 1;
            let value = self.alias_value()?;
            module.aliases.push((name, value));
            return Ok(());
        }
        if self.accept_word("module") {
            _ = self.accept(TokenKind::Symbol);
            if self.accept_word("attributes") {
                self.attribute()?;
            }
            self.expect(TokenKind::OpenBrace, "`{`, the beginning of the module")?;
            let block = self.nested(Self::block)?;
            self.expect(TokenKind::CloseBrace, "`}`, the end of the module")?;
            module.ops.extend(block.ops);
            return self.location();
        }
        let op = self.nested(Self::operation)?;
        match op.name {
            "builtin.module" => module.ops.extend(op.regions.into_iter().flat_map(|it| it.ops)),
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
        self.attribute()
    }

    /// Skips `loc(…)`, if there is one.
    fn location(&mut self) -> Parsed<()> {
        if !(self.is_word("loc") && self.peek_at(1) == Some(TokenKind::OpenRound)) {
            return Ok(());
        }
        self.at += 2;
        let mut open = 1;
        while open > 0 {
            match self.peek() {
                Some(TokenKind::OpenRound) => open += 1,
                Some(TokenKind::CloseRound) => open -= 1,
                Some(_) => (),
                None => return Err(self.error("`)`, the end of the location")),
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

    // ---- operations

    fn operation(&mut self) -> Parsed<Operation<'s>> {
        let start = self.span();
        let mut results = Vec::new();
        while self.peek() == Some(TokenKind::Value) {
            let name = self.expect(TokenKind::Value, "a result")?;
            let count = if self.accept(TokenKind::Colon) { self.count()? } else { 1 };
            results.push((name, count));
            if !self.accept(TokenKind::Comma) {
                self.expect(TokenKind::Equal, "`=` behind the results")?;
                break;
            }
        }
        let name = match self.peek() {
            Some(TokenKind::Word) => self.expect(TokenKind::Word, "the name of an operation")?,
            Some(TokenKind::String) => {
                self.expect(TokenKind::String, "the name of an operation")?.trim_matches('"')
            }
            _ => return Err(self.error("an operation")),
        };
        let mut op = Operation {
            name,
            span: start,
            results,
            operands: Vec::new(),
            attributes: Vec::new(),
            positional: Vec::new(),
            regions: Vec::new(),
            operand_types: Vec::new(),
            result_types: Vec::new(),
            result_attributes: Vec::new(),
        };
        if name == "func.func" && self.peek() != Some(TokenKind::OpenRound) {
            self.function(&mut op)?;
        } else {
            self.elements(&mut op)?;
            self.function_type(&mut op)?;
            op.span = self.span_from(start);
            self.regions_behind(&mut op)?;
        }
        if op.regions.is_empty() {
            op.span = self.span_from(start);
        }
        self.location()?;
        Ok(op)
    }

    fn count(&mut self) -> Parsed<usize> {
        let text = self.expect(TokenKind::Number, "the number of results")?;
        text.parse().map_err(|_| self.error("a smaller number of results"))
    }

    /// Reads `public @main(%arg0: …) -> (… {…}) attributes {…} { … }`.
    fn function(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        let _ = self.accept_word("public") || self.accept_word("private") || self.accept_word("nested");
        let name = self.expect(TokenKind::Symbol, "the name of the function")?;
        op.attributes.push(("sym_name", Attribute::String(name.trim_start_matches('@'))));
        self.expect(TokenKind::OpenRound, "the arguments of the function")?;
        let mut arguments = Vec::new();
        self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
            arguments.push(it.argument()?);
            Ok(())
        })?;
        if self.accept(TokenKind::Arrow) {
            if self.accept(TokenKind::OpenRound) {
                self.list(TokenKind::CloseRound, "`,` or `)`", |it| it.function_result(op))?;
            } else {
                self.function_result(op)?;
            }
        }
        if self.accept_word("attributes") {
            self.attribute()?;
        }
        op.span = self.span_from(op.span);
        self.expect(TokenKind::OpenBrace, "`{`, the body of the function")?;
        let mut block = self.nested(Self::block)?;
        self.expect(TokenKind::CloseBrace, "`}`, the end of the function")?;
        block.arguments = arguments;
        op.regions.push(block);
        Ok(())
    }

    fn function_result(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        op.result_types.push(self.ty()?);
        let is_stated = self.peek() == Some(TokenKind::OpenBrace) && self.is_dictionary();
        op.result_attributes.push(if is_stated { self.dictionary()? } else { Vec::new() });
        self.location()
    }

    /// Reads what stands between the name of an operation and its types.
    fn elements(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        let first = self.at;
        while let Some(kind) = self.peek() {
            let is_next_op = self.at > first && self.tokens[self.at].begins_line && op.regions.is_empty();
            match kind {
                TokenKind::Colon | TokenKind::CloseBrace => break,
                TokenKind::Word | TokenKind::Value | TokenKind::String if is_next_op => break,
                TokenKind::Value => op.operands.push(self.value_use()?),
                // `sdy.mesh @mesh = <…>`.
                TokenKind::Comma | TokenKind::Equal => self.at += 1,
                TokenKind::OpenRound => self.group(op)?,
                TokenKind::OpenBrace if self.is_dictionary() => {
                    let found = self.dictionary()?;
                    op.attributes.extend(found);
                }
                TokenKind::OpenBrace => self.region(op, Vec::new())?,
                TokenKind::Less if self.peek_at(1) == Some(TokenKind::OpenBrace) => {
                    self.at += 1;
                    let found = self.dictionary()?;
                    op.attributes.extend(found);
                    self.expect(TokenKind::Greater, "`>` behind the properties")?;
                }
                TokenKind::Word if self.is_word("loc") && self.peek_at(1) == Some(TokenKind::OpenRound) => break,
                TokenKind::Word if self.peek_at(1) == Some(TokenKind::Equal) => {
                    let name = self.expect(TokenKind::Word, "an attribute")?;
                    self.at += 1;
                    let value = self.attribute()?;
                    op.attributes.push((name, value));
                }
                _ => {
                    let value = self.attribute()?;
                    op.positional.push(value);
                }
            }
        }
        Ok(())
    }

    /// Returns whether the braces here contain attributes rather than operations.
    fn is_dictionary(&self) -> bool {
        match self.peek_at(1) {
            Some(TokenKind::CloseBrace) => true,
            Some(TokenKind::Word | TokenKind::String) => matches!(
                self.peek_at(2),
                Some(TokenKind::Equal | TokenKind::Comma | TokenKind::CloseBrace)
            ),
            _ => false,
        }
    }

    fn value_use(&mut self) -> Parsed<Use<'s>> {
        let span = self.span();
        let text = self.expect(TokenKind::Value, "a value such as `%0`")?;
        let (name, index) = text.split_once('#').unwrap_or((text, "0"));
        let index = index.parse().map_err(|_| self.error("a smaller number of a result"))?;
        Ok(Use { name, index, span })
    }

    /// Reads what is in parentheses: operands, the arguments of a region, `(%0 init: %1)`, `(%arg = %0)`, or regions.
    fn group(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        self.at += 1;
        if self.peek() == Some(TokenKind::OpenBrace) {
            return self.list(TokenKind::CloseRound, "`,` or `)`", |it| it.region(op, Vec::new()));
        }
        let mut arguments = Vec::new();
        let mut initial = Vec::new();
        self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
            match it.peek_at(1) {
                Some(TokenKind::Colon) => arguments.push(it.argument()?),
                Some(TokenKind::Equal) => {
                    let span = it.span();
                    let name = it.expect(TokenKind::Value, "an argument")?;
                    it.at += 1;
                    op.operands.push(it.value_use()?);
                    // Its type is that of the result.
                    arguments.push(Argument { name, ty: Type::Other(""), attributes: Vec::new(), span });
                }
                _ => {
                    op.operands.push(it.value_use()?);
                    if it.accept_word("init") {
                        it.expect(TokenKind::Colon, "`:`")?;
                        initial.push(Attribute::Initial(it.value_use()?));
                    }
                }
            }
            Ok(())
        })?;
        op.positional.append(&mut initial);
        if !arguments.is_empty() {
            if self.peek() == Some(TokenKind::OpenBrace) {
                return self.region(op, arguments);
            }
            // The regions of a loop follow its types and use these names.
            op.regions.push(Block { arguments, ops: Vec::new() });
        }
        Ok(())
    }

    fn region(&mut self, op: &mut Operation<'s>, arguments: Vec<Argument<'s>>) -> Parsed<()> {
        self.expect(TokenKind::OpenBrace, "`{`, the beginning of a region")?;
        let mut block = self.nested(Self::block)?;
        self.expect(TokenKind::CloseBrace, "`}`, the end of a region")?;
        if !arguments.is_empty() {
            block.arguments = arguments;
        }
        op.regions.push(block);
        Ok(())
    }

    /// Reads `: (types) -> types` or `: types`.
    fn function_type(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        if !self.accept(TokenKind::Colon) {
            return Ok(());
        }
        let types = self.types()?;
        if self.accept(TokenKind::Arrow) {
            op.operand_types = types;
            op.result_types = self.types()?;
            return Ok(());
        }
        let count: usize = op.results.iter().map(|it| it.1).fold(0, usize::saturating_add);
        op.result_types = match count {
            0 => Vec::new(),
            _ if types.len() == count => types.clone(),
            // All operands and results have the same type, or the last type is that of the result.
            _ => types.last().map(|it| vec![it.clone(); count.min(1)]).unwrap_or_default(),
        };
        op.operand_types = types;
        Ok(())
    }

    /// Reads the regions that the pretty spelling writes behind the types: those of `while` and `reduce`.
    fn regions_behind(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        if self.is_word("reducer") {
            self.at += 1;
            let (mut left, mut right) = (Vec::new(), Vec::new());
            while self.accept(TokenKind::OpenRound) {
                let mut pair = Vec::new();
                self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
                    pair.push(it.argument()?);
                    Ok(())
                })?;
                right.extend(pair.pop());
                left.extend(pair.pop());
            }
            left.append(&mut right);
            return self.region(op, left);
        }
        if op.name == "stablehlo.while" && self.is_word("cond") {
            let names = std::mem::take(&mut op.regions).pop().unwrap_or_default().arguments;
            let types = op.result_types.clone();
            let typed = || -> Vec<Argument<'s>> {
                let all = names.iter().zip(types.iter().cloned());
                all.map(|(it, ty)| Argument { name: it.name, ty, attributes: Vec::new(), span: it.span }).collect()
            };
            if self.accept_word("attributes") {
                self.attribute()?;
            }
            for word in ["cond", "do"] {
                if !self.accept_word(word) {
                    return Err(self.error(&format!("`{word}`")));
                }
                self.region(op, typed())?;
            }
        }
        Ok(())
    }
}
