//! The Host IR language: text to arena IR and back.

pub mod arena;
pub mod ast;
pub mod codes;
pub mod diagnostic;
pub mod dtype;
pub mod ir;
pub mod layout;
pub mod ops;
pub mod parse;
pub mod span;
pub mod tensor;
pub mod token;
