//! Functions and operations.

use super::{Parsed, Parser};
use crate::{
    token::{Token, TokenKind},
    tree::{Argument, Attribute, Block, Operation, Type, Use},
};

/// An element of an operation, between its name and its types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    /// The name of the operation, before its elements.
    Name,
    Value,
    Comma,
    Equal,
    /// What is in parentheses.
    Group,
    /// `{name = value}`, also in angle brackets.
    Dictionary,
    Region,
    /// `name = value`.
    Entry,
    /// `LT`, `across`.
    Word,
    /// Any other attribute without a name.
    Attribute,
    /// What no operation has here.
    Other,
}

impl Element {
    /// Returns whether an operation of this name may have this element behind another one.
    fn follows(self, last: Self, name: &str) -> bool {
        let is_sdy = name.starts_with("sdy.");
        match self {
            Self::Value => match last {
                Self::Name | Self::Comma => true,
                // `stablehlo.composite "name" %0`.
                _ => last == Self::Attribute && name == "stablehlo.composite",
            },
            Self::Comma => matches!(last, Self::Value | Self::Group | Self::Entry | Self::Word),
            // `sdy.mesh @mesh = <…>`.
            Self::Equal => last == Self::Attribute && name == "sdy.mesh",
            Self::Group => last != Self::Value,
            Self::Dictionary | Self::Region => last != Self::Comma,
            Self::Entry => match last {
                Self::Name | Self::Comma | Self::Group | Self::Word => true,
                // `in_shardings=[…] out_shardings=[…]`, `%0 allowed_direction=NONE`.
                _ => is_sdy && matches!(last, Self::Entry | Self::Value),
            },
            Self::Word => match name {
                "stablehlo.compare" => matches!(last, Self::Name | Self::Comma),
                // `stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [0]`.
                "stablehlo.reduce" => matches!(last, Self::Group | Self::Word),
                _ => false,
            },
            // `stablehlo.slice %0 [0:2]`, `sdy.sharding_constraint %0 <@mesh, [{}]>`.
            Self::Attribute => {
                matches!(last, Self::Name | Self::Value | Self::Dictionary) || is_sdy && last == Self::Equal
            }
            Self::Name | Self::Other => false,
        }
    }

    /// Returns what may stand behind the element.
    fn expected(self) -> &'static str {
        match self {
            Self::Value => "`,`, or `:` and the types",
            Self::Comma => "an operand or an attribute behind `,`",
            Self::Name
            | Self::Equal
            | Self::Group
            | Self::Dictionary
            | Self::Region
            | Self::Entry
            | Self::Word
            | Self::Attribute
            | Self::Other => "an element that the operation has here, or `:` and the types",
        }
    }
}

impl<'s> Parser<'s, '_> {
    pub(super) fn operation(&mut self) -> Parsed<Operation<'s>> {
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
        let mut op = Operation { name, span: start, results, ..Operation::default() };
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

    pub(super) fn count(&mut self) -> Parsed<usize> {
        let text = self.expect(TokenKind::Number, "the number of results")?;
        text.parse().map_err(|_| self.error("a smaller number of results"))
    }

    /// Reads `public @main(%arg0: …) -> (… {…}) attributes {…} { … }`.
    pub(super) fn function(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
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

    pub(super) fn function_result(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        op.result_types.push(self.ty()?);
        let is_stated = self.peek() == Some(TokenKind::OpenBrace) && self.is_dictionary();
        op.result_attributes.push(if is_stated { self.dictionary()? } else { Vec::new() });
        self.location()
    }

    /// Returns whether the next token is an operand behind a comma, and not the result of another operation.
    fn continues_list(&self) -> bool {
        let is_behind_comma =
            self.at.checked_sub(1).is_some_and(|at| self.tokens[at].kind == TokenKind::Comma);
        is_behind_comma && self.peek() == Some(TokenKind::Value) && !self.is_result()
    }

    /// Returns whether the next values are results: `%0, %1 =`, `%0:2 =`. They are on one line.
    fn is_result(&self) -> bool {
        let mut ahead = 1;
        let is_value =
            |it: Option<&Token>| it.is_some_and(|it| it.kind == TokenKind::Value && !it.begins_line);
        while self.peek_at(ahead) == Some(TokenKind::Comma) && is_value(self.tokens.get(self.at + ahead + 1))
        {
            ahead += 2;
        }
        match self.peek_at(ahead) {
            Some(TokenKind::Equal) => true,
            Some(TokenKind::Colon) => self.peek_at(ahead + 1) == Some(TokenKind::Number),
            _ => false,
        }
    }

    /// Reads what stands between the name of an operation and its types. Of an operation that is not imported, nothing is known about
    /// its elements.
    fn elements(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        let first = self.at;
        let is_known = (self.is_read)(op.name);
        let mut last = Element::Name;
        while let Some(kind) = self.peek() {
            let is_next_op = self.at > first
                && self.tokens[self.at].begins_line
                && op.regions.is_empty()
                && !self.continues_list();
            let element = match kind {
                TokenKind::Colon | TokenKind::CloseBrace => break,
                // `key = …` continues an operation on another line.
                TokenKind::Word if is_next_op && self.peek_at(1) != Some(TokenKind::Equal) => break,
                TokenKind::Value | TokenKind::String if is_next_op => break,
                TokenKind::Word if self.is_word("loc") && self.peek_at(1) == Some(TokenKind::OpenRound) => {
                    break;
                }
                _ => self.element(),
            };
            if is_known && !element.follows(last, op.name) {
                return Err(self.error(last.expected()));
            }
            last = element;
            match element {
                Element::Value => op.operands.push(self.value_use()?),
                Element::Comma | Element::Equal => self.at += 1,
                Element::Group => self.group(op)?,
                Element::Dictionary => {
                    let has_brackets = self.accept(TokenKind::Less);
                    let found = self.dictionary()?;
                    op.attributes.extend(found);
                    if has_brackets {
                        self.expect(TokenKind::Greater, "`>` behind the properties")?;
                    }
                }
                Element::Region => self.region(op, Vec::new())?,
                Element::Entry => {
                    let name = self.expect(TokenKind::Word, "an attribute")?;
                    self.at += 1;
                    let value = self.attribute()?;
                    op.attributes.push((name, value));
                }
                Element::Name | Element::Word | Element::Attribute | Element::Other => {
                    let value = self.attribute()?;
                    op.positional.push(value);
                }
            }
        }
        let needs_types = !op.operands.is_empty() || !op.results.is_empty();
        if is_known && (last == Element::Comma || needs_types && self.peek() != Some(TokenKind::Colon)) {
            let wanted = if last == Element::Comma { last.expected() } else { "`:` and the types" };
            return Err(self.error(wanted));
        }
        Ok(())
    }

    /// Returns what the next token begins.
    fn element(&self) -> Element {
        match self.peek() {
            Some(TokenKind::Value) => Element::Value,
            Some(TokenKind::Comma) => Element::Comma,
            Some(TokenKind::Equal) => Element::Equal,
            Some(TokenKind::OpenRound) => Element::Group,
            Some(TokenKind::OpenBrace) if self.is_dictionary() => Element::Dictionary,
            Some(TokenKind::OpenBrace) => Element::Region,
            Some(TokenKind::Less) if self.peek_at(1) == Some(TokenKind::OpenBrace) => Element::Dictionary,
            Some(TokenKind::Word) => match self.peek_at(1) {
                Some(TokenKind::Equal) => Element::Entry,
                Some(TokenKind::Less) => Element::Attribute,
                _ => Element::Word,
            },
            Some(
                TokenKind::Symbol
                | TokenKind::String
                | TokenKind::OpenSquare
                | TokenKind::Less
                | TokenKind::Alias,
            ) => Element::Attribute,
            _ => Element::Other,
        }
    }

    /// Returns whether the braces here contain attributes rather than operations.
    pub(super) fn is_dictionary(&self) -> bool {
        match self.peek_at(1) {
            Some(TokenKind::CloseBrace) => true,
            Some(TokenKind::Word | TokenKind::String) => {
                matches!(self.peek_at(2), Some(TokenKind::Equal | TokenKind::Comma | TokenKind::CloseBrace))
            }
            _ => false,
        }
    }

    pub(super) fn value_use(&mut self) -> Parsed<Use<'s>> {
        let span = self.span();
        let text = self.expect(TokenKind::Value, "a value such as `%0`")?;
        let (name, index) = text.split_once('#').unwrap_or((text, "0"));
        let index = index.parse().map_err(|_| self.error("a smaller number of a result"))?;
        Ok(Use { name, index, span })
    }

    /// Reads what is in parentheses: operands, the arguments of a region, `(%0 init: %1)`, `(%arg = %0)`, or regions.
    pub(super) fn group(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        self.at += 1;
        if self.peek() == Some(TokenKind::OpenBrace) {
            return self.list(TokenKind::CloseRound, "`,` or `)`", |it| it.region(op, Vec::new()));
        }
        let mut arguments = Vec::new();
        let mut initial = Vec::new();
        self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
            match it.peek_at(1) {
                // `chlo.top_k(%0, k = 2)`.
                Some(TokenKind::Equal) if it.peek() == Some(TokenKind::Word) => {
                    let name = it.expect(TokenKind::Word, "an attribute")?;
                    it.at += 1;
                    let value = it.attribute()?;
                    op.attributes.push((name, value));
                }
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

    pub(super) fn region(&mut self, op: &mut Operation<'s>, arguments: Vec<Argument<'s>>) -> Parsed<()> {
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
    pub(super) fn function_type(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
        if !self.accept(TokenKind::Colon) {
            return Ok(());
        }
        let types = self.types()?;
        if self.accept(TokenKind::Arrow) {
            op.operand_types = types;
            op.has_function_type = true;
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
    pub(super) fn regions_behind(&mut self, op: &mut Operation<'s>) -> Parsed<()> {
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
                all.map(|(it, ty)| Argument { name: it.name, ty, attributes: Vec::new(), span: it.span })
                    .collect()
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
