//! Types.

use grammar::{Code, Diagnostic};

use super::{Parsed, Parser};
use crate::{
    token::TokenKind,
    tree::{ELEMENT_TYPES, TensorType, Type},
};

/// The greatest number of elements of a tensor, so that no sum or product of extents overflows.
const MAX_ELEMENTS: i64 = 1 << 48;

impl<'s> Parser<'s, '_> {
    /// Reads `(types)`, or types with commas between them.
    pub(super) fn types(&mut self) -> Parsed<Vec<Type<'s>>> {
        let mut types = Vec::new();
        if self.accept(TokenKind::OpenRound) {
            self.list(TokenKind::CloseRound, "`,` or `)`", |it| {
                types.push(it.ty()?);
                Ok(())
            })?;
            return Ok(types);
        }
        loop {
            types.push(self.ty()?);
            if !self.accept(TokenKind::Comma) {
                return Ok(types);
            }
        }
    }

    pub(super) fn ty(&mut self) -> Parsed<Type<'s>> {
        match self.peek() {
            Some(TokenKind::Tensor) => {
                let span = self.span();
                let text = self.expect(TokenKind::Tensor, "a tensor type")?;
                Ok(tensor_type(text).map_err(|why| {
                    let it = Diagnostic::new(Code::UnsupportedOperation, span, why.to_string(), "not supported");
                    Box::new(it.help("lower the function for arguments of constant shapes and of element types that hir has"))
                })?.map_or(Type::Other(text), Type::Tensor))
            }
            Some(TokenKind::OtherType | TokenKind::Word) => {
                let start = self.span();
                let name = self.text_at(0);
                self.at += 1;
                if let Some((_, ty)) = self.types.iter().find(|it| it.0 == name) {
                    return Ok(ty.clone());
                }
                // `tuple<…>`, `!stablehlo.token`, `() -> ()` of a function type.
                if self.accept(TokenKind::Less) {
                    self.skip_past(TokenKind::Greater, TokenKind::Less, "`>`, the end of the type")?;
                }
                Ok(Type::Other(self.span_from(start).text(self.text)))
            }
            _ => Err(self.error("a type such as `tensor<8xf32>`")),
        }
    }
}

/// Why a tensor type is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum UnsupportedType<'s> {
    #[error("`{0}` has an extent that is not constant")]
    Dynamic(&'s str),
    #[error("`{0}` has an extent of more than 64 bits")]
    Extent(&'s str),
    #[error("`{0}` has more than 2^48 elements")]
    TooLarge(&'s str),
    #[error("hir has no element type `{0}`")]
    Element(&'s str),
}

/// Reads `tensor<8x16xf32>`. Returns `None` for a type with an encoding.
fn tensor_type(text: &str) -> Result<Option<TensorType>, UnsupportedType<'_>> {
    let inner = text.strip_prefix("tensor<").and_then(|it| it.strip_suffix('>')).unwrap_or(text);
    let (mut shape, mut rest) = (Vec::new(), inner.trim());
    while let Some((extent, behind)) = rest.split_once('x') {
        if extent == "?" {
            return Err(UnsupportedType::Dynamic(text));
        }
        if extent.is_empty() || !extent.bytes().all(|it| it.is_ascii_digit()) {
            break;
        }
        shape.push(extent.parse().map_err(|_| UnsupportedType::Extent(text))?);
        rest = behind;
    }
    if rest.contains(',') {
        return Ok(None);
    }
    let count = shape.iter().try_fold(1i64, |count, extent| count.checked_mul(*extent));
    if count.is_none_or(|it| it > MAX_ELEMENTS) || shape.iter().any(|it| *it > MAX_ELEMENTS) {
        return Err(UnsupportedType::TooLarge(text));
    }
    let (name, bits) = match rest {
        "i2" => ("i8", 2),
        "i4" => ("i8", 4),
        "ui2" => ("ui8", 2),
        "ui4" => ("ui8", 4),
        _ => (rest, 0),
    };
    let found = ELEMENT_TYPES.iter().find(|it| it.0 == name);
    let dtype = found.map(|it| it.1).ok_or(UnsupportedType::Element(rest))?;
    Ok(Some(TensorType { shape, dtype, bits }))
}
