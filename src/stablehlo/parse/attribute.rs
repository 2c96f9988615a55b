//! Attributes.

use super::{Parsed, Parser};
use crate::{
    token::TokenKind,
    tree::{Attribute, Type},
};

impl<'s> Parser<'s, '_> {
    /// Reads an attribute and, in a dictionary, what follows it: `: i64`.
    pub(super) fn typed_attribute(&mut self) -> Parsed<Attribute<'s>> {
        let mut value = self.attribute()?;
        if self.accept(TokenKind::Colon) {
            let is_list = self.peek() == Some(TokenKind::OpenRound);
            match &mut value {
                Attribute::Dense(_, stated) if !is_list => {
                    if let Type::Tensor(ty) = self.ty()? {
                        *stated = Some(ty);
                    }
                }
                _ => self.types_of_attribute()?,
            }
        }
        Ok(value)
    }

    /// Skips one type, or several in parentheses.
    fn types_of_attribute(&mut self) -> Parsed<()> {
        if self.peek() == Some(TokenKind::OpenRound) {
            self.types()?;
        } else {
            self.ty()?;
        }
        Ok(())
    }

    pub(super) fn attribute(&mut self) -> Parsed<Attribute<'s>> {
        let value = self.nested(Self::plain_attribute)?;
        if !(self.is_word("x") && matches!(value, Attribute::Array(_))) {
            return Ok(value);
        }
        self.at += 1;
        let pair = Attribute::Pair(Box::new((value, self.nested(Self::plain_attribute)?)));
        // The dimensions of a convolution: `[b, 0, f]x[0, i, o]->[b, 0, f]`.
        if self.accept(TokenKind::Arrow) {
            return Ok(Attribute::Pair(Box::new((pair, self.nested(Self::plain_attribute)?))));
        }
        Ok(pair)
    }

    fn plain_attribute(&mut self) -> Parsed<Attribute<'s>> {
        let Some(kind) = self.peek() else { return Err(self.error("an attribute")) };
        let text = self.text_at(0);
        Ok(match kind {
            TokenKind::Number => {
                self.at += 1;
                self.number(text)?
            }
            TokenKind::String => {
                self.at += 1;
                let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or("");
                // A part of an axis: `"x":(1)2`.
                if self.peek() == Some(TokenKind::Colon) && self.peek_at(1) == Some(TokenKind::OpenRound) {
                    self.at += 2;
                    let before = self.plain_attribute()?;
                    self.expect(TokenKind::CloseRound, "`)`")?;
                    return Ok(Attribute::Named(inner, Vec::new(), vec![before, self.plain_attribute()?]));
                }
                if self.accept(TokenKind::Equal) {
                    // `"tp"=4` of a mesh.
                    let size = self.plain_attribute()?;
                    return Ok(Attribute::Named(inner, Vec::new(), vec![size]));
                }
                Attribute::String(inner)
            }
            TokenKind::Symbol => {
                self.at += 1;
                Attribute::Symbol(text.trim_start_matches('@').trim_matches('"'))
            }
            TokenKind::Question => {
                self.at += 1;
                Attribute::Other(text)
            }
            TokenKind::OpenSquare => {
                self.at += 1;
                let mut items = Vec::new();
                self.list(TokenKind::CloseSquare, "`,` or `]`", |it| {
                    items.push(it.typed_or_range()?);
                    Ok(())
                })?;
                Attribute::Array(items)
            }
            TokenKind::OpenBrace
                if self.is_dictionary()
                    && self.peek_at(1) != Some(TokenKind::CloseBrace)
                    && self.peek_at(1) == Some(TokenKind::Word) =>
            {
                Attribute::Dictionary(self.dictionary()?)
            }
            TokenKind::OpenBrace => {
                self.at += 1;
                let mut items = Vec::new();
                self.list(TokenKind::CloseBrace, "`,` or `}`", |it| {
                    items.push(it.attribute()?);
                    Ok(())
                })?;
                // The priority of a sharding of a dimension: `{"tp"}p0`.
                if self.peek() == Some(TokenKind::Word) && self.text_at(0).starts_with('p') {
                    self.at += 1;
                }
                Attribute::Set(items)
            }
            TokenKind::Less => self.angles("")?,
            TokenKind::Tensor | TokenKind::OtherType => {
                self.ty()?;
                Attribute::Type
            }
            // A complex number.
            TokenKind::OpenRound if self.peek_at(1) == Some(TokenKind::Number) => {
                self.at += 1;
                let mut parts = Vec::new();
                self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
                    parts.push(it.plain_attribute()?);
                    Ok(())
                })?;
                Attribute::Array(parts)
            }
            // A function type.
            TokenKind::OpenRound => {
                let from = self.types()?;
                if !self.accept(TokenKind::Arrow) {
                    return Ok(Attribute::Type);
                }
                let is_list = self.peek() == Some(TokenKind::OpenRound);
                let to = if is_list { self.types()? } else { vec![self.ty()?] };
                Attribute::FunctionType(from, to)
            }
            TokenKind::Alias | TokenKind::Word => {
                self.at += 1;
                match self.peek() {
                    Some(TokenKind::Less) if text == "dense" => self.dense()?,
                    Some(TokenKind::Less) if text == "array" => self.array()?,
                    // `<([i, j])->([k]) {i=4, j=4, k=4}, custom>`, which only says how a call may be sharded.
                    Some(TokenKind::Less) if text == "#sdy.op_sharding_rule" => self.skipped_angles(text)?,
                    Some(TokenKind::Less) => self.angles(text)?,
                    // `#sdy<manual_axes{"tp"}>` and `manual_axes{…}` in angle brackets.
                    Some(TokenKind::OpenBrace) if kind == TokenKind::Word && text == "manual_axes" => {
                        self.plain_attribute()?
                    }
                    _ => Attribute::find(&self.aliases, text).cloned().unwrap_or(Attribute::Word(text)),
                }
            }
            TokenKind::Value
            | TokenKind::BlockName
            | TokenKind::Arrow
            | TokenKind::CloseRound
            | TokenKind::CloseBrace
            | TokenKind::CloseSquare
            | TokenKind::Greater
            | TokenKind::Equal
            | TokenKind::Comma
            | TokenKind::Colon
            | TokenKind::Star => return Err(self.error("an attribute")),
        })
    }

    fn number(&mut self, text: &'s str) -> Parsed<Attribute<'s>> {
        if text.trim_start_matches('-').starts_with("0x") || text.contains(['.', 'e', 'E']) {
            return Ok(Attribute::Number(text));
        }
        // An unsigned number of 64 bits stays as it is written.
        Ok(text.parse().map_or(Attribute::Number(text), Attribute::Int))
    }

    /// Reads an element of an array: an attribute, or a range `0:8:2` of a slice.
    fn typed_or_range(&mut self) -> Parsed<Attribute<'s>> {
        let value = self.attribute()?;
        let Attribute::Int(start) = value else {
            if self.accept(TokenKind::Colon) {
                self.types_of_attribute()?;
            }
            return Ok(value);
        };
        let mut range = vec![start];
        while self.peek() == Some(TokenKind::Colon) {
            if self.peek_at(1) != Some(TokenKind::Number) {
                self.at += 1;
                self.types_of_attribute()?;
                break;
            }
            self.at += 1;
            let Attribute::Int(bound) = self.plain_attribute()? else { return Err(self.error("an integer")) };
            range.push(bound);
        }
        Ok(if range.len() == 1 { value } else { Attribute::Range(range) })
    }

    /// Reads `{name = value, unit}`.
    pub(super) fn dictionary(&mut self) -> Parsed<Vec<(&'s str, Attribute<'s>)>> {
        self.expect(TokenKind::OpenBrace, "`{`")?;
        let mut entries = Vec::new();
        self.list(TokenKind::CloseBrace, "`,` or `}`", |it| {
            it.check_key("", it.text_at(0).trim_matches('"'), &entries)?;
            let name = match it.peek() {
                Some(TokenKind::String) => it.expect(TokenKind::String, "a name")?.trim_matches('"'),
                _ => it.expect(TokenKind::Word, "the name of an attribute")?,
            };
            let has_value = it.accept(TokenKind::Equal);
            let value = if has_value { it.nested(Self::typed_attribute)? } else { Attribute::Word("unit") };
            entries.push((name, value));
            Ok(())
        })?;
        Ok(entries)
    }

    /// Reads `<…>`: entries `key = value`, and attributes without a name.
    fn angles(&mut self, name: &'s str) -> Parsed<Attribute<'s>> {
        self.expect(TokenKind::Less, "`<`")?;
        let (mut entries, mut items) = (Vec::new(), Vec::new());
        while !self.accept(TokenKind::Greater) {
            if self.peek() == Some(TokenKind::Word) && self.peek_at(1) == Some(TokenKind::Equal) {
                self.check_key(name, self.text_at(0), &entries)?;
                let key = self.expect(TokenKind::Word, "a name")?;
                self.at += 1;
                let value = self.nested(Self::typed_attribute)?;
                entries.push((key, value));
            } else {
                let value = self.nested(Self::typed_attribute)?;
                items.push(value);
            }
            // `comparison_direction LT` has no comma.
            let is_word = items.last().is_some_and(|it| it.word().is_some());
            let has_comma = self.accept(TokenKind::Comma);
            if has_comma && self.peek() == Some(TokenKind::Greater) {
                return Err(self.error("an attribute behind `,`"));
            }
            if !has_comma && !is_word && self.peek() != Some(TokenKind::Greater) {
                return Err(self.error("`,` or `>`"));
            }
        }
        Ok(Attribute::Named(name, entries, items))
    }

    /// Skips `<…>`.
    fn skipped_angles(&mut self, name: &'s str) -> Parsed<Attribute<'s>> {
        self.expect(TokenKind::Less, "`<`")?;
        self.skip_past(TokenKind::Greater, TokenKind::Less, "`>`, the end of the attribute")?;
        Ok(Attribute::Word(name))
    }

    /// Reads `<i64: 1, 0>` of `array`.
    fn array(&mut self) -> Parsed<Attribute<'s>> {
        self.expect(TokenKind::Less, "`<`")?;
        self.ty()?;
        if self.peek() != Some(TokenKind::Greater) {
            self.expect(TokenKind::Colon, "`:` and the elements")?;
        }
        let mut items = Vec::new();
        self.list(TokenKind::Greater, "`,` or `>`", |it| {
            items.push(it.plain_attribute()?);
            Ok(())
        })?;
        Ok(Attribute::Array(items))
    }

    /// Reads `<…>` of `dense`: a value, or nested lists of values.
    fn dense(&mut self) -> Parsed<Attribute<'s>> {
        self.expect(TokenKind::Less, "`<`")?;
        let mut items = Vec::new();
        self.list(TokenKind::Greater, "`>`", |it| {
            items.push(it.attribute()?);
            Ok(())
        })?;
        Ok(Attribute::Dense(items, None))
    }
}
