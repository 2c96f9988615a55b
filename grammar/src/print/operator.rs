//! Converts operator statements to text, in the newest spelling.

use std::{borrow::Cow, fmt::Write};

use super::Printer;
use crate::{
    attr,
    dtype::DType,
    ir::{OpStmt, TensorId},
    ops::{Arity, AsmFormat, Op},
};

impl Printer<'_> {
    pub(super) fn canonical_op(&mut self, stmt: &OpStmt, depth: usize) {
        let row = stmt.op.def();
        let margin = 2 * depth + 3;
        self.operands(&stmt.outs);
        if !stmt.outs.is_empty() {
            match row.format {
                AsmFormat::Call => self.out.push_str(" = "),
                AsmFormat::Padded
                | AsmFormat::Wrapped
                | AsmFormat::Function
                | AsmFormat::Infix
                | AsmFormat::Prefix => {
                    let _ = write!(self.out, "\n{:margin$}= ", "");
                }
                AsmFormat::Numbered
                | AsmFormat::Statement
                | AsmFormat::Bare
                | AsmFormat::Block
                | AsmFormat::Post
                | AsmFormat::Launch => (),
            }
        }
        let name = match stmt.op {
            Op::Cast => Cow::Owned(self.cast_name(stmt)),
            _ => Cow::Borrowed(row.mnemonic),
        };
        let pad = 2 * depth;
        // Text before, between and after the arguments.
        let (before, between, behind): (String, Cow<'_, str>, &str) = match row.format {
            AsmFormat::Call | AsmFormat::Statement => (format!("{name}("), ", ".into(), ")"),
            AsmFormat::Padded => (format!("{name}( "), ", ".into(), " )"),
            AsmFormat::Function => (format!("{name}("), ", ".into(), ");"),
            AsmFormat::Wrapped => {
                let margin = margin + "= (".len() + name.len();
                (format!("{name}("), format!(",\n{:margin$}", "").into(), ")")
            }
            AsmFormat::Infix => (String::new(), format!("\n{:margin$}{name} ", "").into(), ";"),
            AsmFormat::Prefix => (name.into_owned(), ", ".into(), ";"),
            AsmFormat::Numbered => (format!("{name}{} (", number(stmt)), ", ".into(), ")"),
            AsmFormat::Bare => (format!("{name}{}", number(stmt)), "".into(), ""),
            AsmFormat::Block => (format!("{name} {{\n{:pad$}  ", ""), ", ".into(), "\n"),
            AsmFormat::Post => (format!("{name} ("), ", ".into(), ")"),
            AsmFormat::Launch => {
                (format!("{name}(\n{:pad$}  ", ""), format!(",\n{:pad$}  ", "").into(), ",\n")
            }
        };
        self.out.push_str(&before);
        self.write_arguments(stmt, key_separator(row.format), &between);
        self.out.push_str(behind);
        let _ = match row.format {
            AsmFormat::Block => write!(self.out, "{:pad$}}}", ""),
            AsmFormat::Launch => write!(self.out, "{:pad$})", ""),
            AsmFormat::Call
            | AsmFormat::Statement
            | AsmFormat::Padded
            | AsmFormat::Function
            | AsmFormat::Wrapped
            | AsmFormat::Infix
            | AsmFormat::Prefix
            | AsmFormat::Numbered
            | AsmFormat::Bare
            | AsmFormat::Post => Ok(()),
        };
    }

    /// Prints the arguments in the order of the definition, with `sign` after keys and `between` as the
    /// separator.
    pub(super) fn write_arguments(&mut self, stmt: &OpStmt, sign: &str, between: &str) {
        let row = stmt.op.def();
        let mut operands = stmt.args.iter();
        let mut first = true;
        let mut next = |this: &mut Self| {
            if !std::mem::take(&mut first) {
                this.out.push_str(between);
            }
        };
        for param in row.args {
            if !param.kind.is_operand() {
                if let Some(attr) = stmt.attr(param.key()) {
                    next(self);
                    self.write_attr(attr);
                }
                continue;
            }
            let most = if param.arity == Arity::Many { usize::MAX } else { 1 };
            for operand in operands.by_ref().take(most) {
                next(self);
                self.write_operand(*operand);
            }
        }
        for (name, attr) in &stmt.attrs {
            if row.args.iter().any(|param| param.key() == *name) {
                continue;
            }
            next(self);
            self.out.push_str(name.0);
            // nvFuser always prints this attribute without blanks.
            self.out.push_str(if *name == attr::CACHE_OP { "=" } else { sign });
            self.write_attr(attr);
        }
    }

    /// Returns the texts of the arguments.
    pub(super) fn arguments(&mut self, stmt: &OpStmt, sign: &str) -> Vec<String> {
        const BETWEEN: &str = "\0";
        let outer = std::mem::take(&mut self.out);
        self.write_arguments(stmt, sign, BETWEEN);
        let texts = std::mem::replace(&mut self.out, outer);
        texts.split(BETWEEN).filter(|it| !it.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the name of a cast: `__bfloat2float` between the floating-point types for which nvFuser has
    /// such names, otherwise `__to_int64_t` and the like.
    fn cast_name(&self, stmt: &OpStmt) -> String {
        let dtype = |it: Option<TensorId>| it.and_then(|id| self.program.tensors[id].dtype);
        let from = dtype(stmt.args.first().and_then(|it| it.tensor()));
        let float = |it: DType| matches!(it, DType::BFloat | DType::Half | DType::Float | DType::Double);
        match (from, dtype(stmt.out_tensor())) {
            (Some(from), Some(to)) if float(from) && float(to) => {
                let short = |it: DType| it.name().trim_start_matches('_');
                format!("__{}2{}", short(from), short(to))
            }
            (_, Some(DType::Complex64)) => "__to_complex_float".to_owned(),
            (_, Some(DType::Complex128)) => "__to_complex_double".to_owned(),
            (_, Some(DType::Composite(_)) | None) => "cast".to_owned(),
            (_, Some(to)) => format!("__to_{}", to.name().trim_start_matches('_')),
        }
    }
}

/// Returns the separator between a key and its value.
fn key_separator(syntax: AsmFormat) -> &'static str {
    match syntax {
        AsmFormat::Padded | AsmFormat::Function | AsmFormat::Wrapped => " = ",
        AsmFormat::Post => ":",
        AsmFormat::Launch => ": ",
        AsmFormat::Call
        | AsmFormat::Statement
        | AsmFormat::Infix
        | AsmFormat::Prefix
        | AsmFormat::Numbered
        | AsmFormat::Bare
        | AsmFormat::Block => "=",
    }
}

pub(super) fn number(stmt: &OpStmt) -> String {
    stmt.number.map_or(String::new(), |number| format!(" {number}"))
}
