//! Converts IR to text, in the newest spelling or in that of 2025.
//!
//! Invariant: the printer infers nothing. `Options` lists the facts that the text has to state because a
//! reader would infer something else.

mod group;
mod short;
mod y2025;

use std::{borrow::Cow, fmt::Write, io, str::FromStr};

use rustc_hash::FxHashMap;

use crate::{
    attr,
    dtype::DType,
    ir::{
        Attr, BlockId, ExprId, For, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, TensorId,
        UnitId,
    },
    ops::{Arity, AsmFormat, Op},
    text::{
        Inline, Unparenthesized, axis_text, domain_clauses, expr_text, stream_text, tensor_text,
        write_separated,
    },
};

/// A dialect of the textual format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// The newest spelling, including the information that dumps omit.
    #[default]
    Canonical,
    /// The canonical text with a `%tensor` line for each tensor and short names after it.
    Short,
    /// The format that nvFuser printed from September 2025 to January 2026.
    Y2025,
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "canonical" => Ok(Self::Canonical),
            "short" => Ok(Self::Short),
            "2025" => Ok(Self::Y2025),
            _ => Err("expected `canonical`, `short` or `2025`".to_owned()),
        }
    }
}

/// Facts that the text has to state because a reader would otherwise infer something else.
pub(crate) struct Options {
    /// Whether to print `%options roots=team`: roots are indices into the team.
    pub(crate) roots_in_team: bool,
    /// The tensors that get a line in the `Domains:` section; `None`: the section is omitted.
    pub(crate) domains: Option<Vec<TensorId>>,
}

pub(crate) use short::write_short;

/// Writes the text of a container in the newest spelling, in pieces.
///
/// # Errors
/// Returns the first error of `out`.
pub(crate) fn write(program: &Program, options: &Options, out: &mut dyn io::Write) -> io::Result<()> {
    let mut printer = Printer::new(program, Dialect::Canonical);
    printer.options(options.roots_in_team);
    printer.write_container(options, out)
}

/// Returns the `Domains:` section of a container with the blank line before it, or an empty string if it has
/// none.
pub(crate) fn domains_section(program: &Program, options: &Options) -> String {
    let mut printer = Printer::new(program, Dialect::Canonical);
    printer.domains(options);
    printer.out
}

/// Bytes of text that are collected before they are written.
const FLUSH_SIZE: usize = 1 << 16;

/// Returns the text of a container in the 2025 dialect, without the information that this dialect cannot
/// express.
pub(crate) fn print_2025(program: &Program) -> String {
    let mut printer = Printer::new(program, Dialect::Y2025);
    let mut text = String::from("\n");
    printer.container(&mut |piece| text.push_str(piece));
    printer.definitions();
    text + &printer.out + "\n"
}

/// Returns the text of an attribute's value, with tensors by their short names.
pub(crate) fn attr_text(program: &Program, attr: &Attr) -> String {
    Printer::with_short_names(program).attr(attr)
}

/// Returns the first line of a statement for reports, with tensors by their short names.
pub fn summary(program: &Program, stmt: StmtId) -> String {
    let mut printer = Printer::with_short_names(program);
    match &program.stmts[stmt] {
        Stmt::Op(it) => printer.op(it, 0),
        Stmt::Let(..) => printer.stmt(stmt, 0),
        Stmt::For(it) => printer.for_header(it),
        Stmt::If(it) => {
            let _ = write!(printer.out, "IF {} {}:", it.kind, expr_text(program, it.cond));
        }
    }
    let mut words = printer.out.split_whitespace();
    let first = words.next().unwrap_or("").to_owned();
    words.fold(first, |acc, word| acc + " " + word)
}

struct Printer<'p> {
    program: &'p Program,
    out: String,
    dialect: Dialect,
    /// Texts of tensors, created on first use.
    tensors: FxHashMap<TensorId, String>,
    /// Numbers of captured streams, in dialects that print numbers for them.
    captured: Vec<i64>,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program, dialect: Dialect) -> Self {
        let captured = match dialect {
            Dialect::Canonical | Dialect::Short => Vec::new(),
            Dialect::Y2025 => y2025::captured_stream_numbers(program),
        };
        Self { program, out: String::new(), dialect, tensors: FxHashMap::default(), captured }
    }

    /// Creates a printer that prints tensors by their short names.
    fn with_short_names(program: &'p Program) -> Self {
        let tensors = program.tensors.ids().map(|id| (id, program.tensor_name(id))).collect();
        Self { tensors, ..Self::new(program, Dialect::Canonical) }
    }
}

impl Printer<'_> {
    fn options(&mut self, roots_in_team: bool) {
        let program = self.program;
        let roots = roots_in_team.then(|| "roots=team".to_owned());
        let options = program.options.iter().map(|(key, it)| format!("{key}={}", Inline(program, *it)));
        let options: Vec<String> = options.chain(roots).collect();
        if !options.is_empty() {
            self.out.push_str("%options ");
            write_separated(&mut self.out, options.iter());
            self.out.push('\n');
        }
    }

    /// Writes what is printed so far, the container and its sections to `out`, in pieces.
    fn write_container(mut self, options: &Options, out: &mut dyn io::Write) -> io::Result<()> {
        let mut result = Ok(());
        self.container(&mut |text| {
            if result.is_ok() {
                result = out.write_all(text.as_bytes());
            }
        });
        self.definitions();
        self.domains(options);
        result?;
        out.write_all(self.out.as_bytes())
    }

    /// Passes complete pieces of the text to `piece`; the last piece remains in `out`.
    fn container(&mut self, piece: &mut dyn FnMut(&str)) {
        let program = self.program;
        self.out.push_str("%HostIrContainer { (");
        self.operands(&program.inputs);
        self.out.push_str(") -> (");
        self.operands(&program.outputs);
        self.out.push_str(") :\n");
        let mut rest = program.body();
        while !rest.is_empty() {
            rest = self.print_next(rest, 1);
            if self.out.len() > FLUSH_SIZE {
                piece(&self.out);
                self.out.clear();
                // Most uses of a tensor are close together, so its text is rarely created again.
                if self.dialect == Dialect::Canonical {
                    self.tensors.clear();
                }
            }
        }
        for unit in program.units.ids() {
            self.unit(unit);
        }
        self.out.push_str("} // %HostIrContainer\n");
    }

    fn definitions(&mut self) {
        let program = self.program;
        if !program.definitions.is_empty() {
            self.out.push_str("\nIndex definitions:\n");
            for (symbol, value) in &program.definitions {
                let _ = writeln!(
                    self.out,
                    "  {} = {};",
                    program.symbols[*symbol],
                    Unparenthesized(program, *value)
                );
            }
        }
    }

    fn domains(&mut self, options: &Options) {
        let Some(tensors) = &options.domains else { return };
        self.out.push_str("\nDomains:\n");
        if tensors.is_empty() {
            // Without the section, a reader would infer domains from sizes.
            self.out.push_str("  // every tensor has the axes of its text\n");
        }
        for tensor in tensors {
            let name = self.program.tensor_name(*tensor);
            let _ = writeln!(self.out, "  {name}: {}", domain_clauses(self.program, *tensor));
        }
    }

    fn unit(&mut self, unit: UnitId) {
        let it = &self.program.units[unit];
        let _ = write!(self.out, "\nHostUnit{}: ", it.number);
        let Some(body) = it.body else {
            self.out.push_str("[...]\n");
            return;
        };
        match self.dialect {
            Dialect::Canonical | Dialect::Short => {
                self.out.push_str("Inputs={");
                self.operands(&it.inputs);
                self.out.push_str("} -> Outputs={");
                self.operands(&it.outputs);
                self.out.push_str("}\n");
            }
            Dialect::Y2025 => self.unit_lists(it),
        }
        self.out.push_str("%kernel {\n");
        self.block(body, 0);
        self.out.push_str("} // %kernel\n");
    }

    fn block(&mut self, block: BlockId, depth: usize) {
        let mut rest = self.program.block(block);
        while !rest.is_empty() {
            rest = self.print_next(rest, depth);
        }
    }

    /// Prints the first statement, or the group of reductions that begins there, and returns the remaining
    /// statements.
    fn print_next<'b>(&mut self, stmts: &'b [StmtId], depth: usize) -> &'b [StmtId] {
        let grouped = group::group_len(self.program, stmts);
        self.indent(depth);
        match stmts.split_at_checked(grouped) {
            Some((members @ [_, ..], rest)) => {
                self.group(members, depth);
                rest
            }
            Some(_) | None => {
                let Some((first, rest)) = stmts.split_first() else { return stmts };
                self.stmt(*first, depth);
                rest
            }
        }
    }

    fn indent(&mut self, depth: usize) {
        self.out.extend(std::iter::repeat_n("  ", depth));
    }

    fn stmt(&mut self, stmt: StmtId, depth: usize) {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => {
                self.op(it, depth);
                self.out.push('\n');
            }
            Stmt::Let(symbol, value) => {
                let _ = writeln!(
                    self.out,
                    "{} = {};",
                    self.program.symbols[*symbol],
                    Unparenthesized(self.program, *value)
                );
            }
            Stmt::For(it) => {
                self.for_header(it);
                self.out.push('\n');
                self.block(it.body, depth + 1);
            }
            Stmt::If(it) => {
                let _ = writeln!(self.out, "IF {} {}:", it.kind, Inline(self.program, it.cond));
                self.block(it.then_block, depth + 1);
                if let Some(other) = it.else_block {
                    self.indent(depth);
                    self.out.push_str("ELSE:\n");
                    self.block(other, depth + 1);
                }
            }
        }
    }

    fn for_header(&mut self, it: &For) {
        let index = &self.program.symbols[it.index];
        let _ = match it.axis {
            Some(axis) => write!(self.out, "FOR {index} in {}:", axis_text(self.program, axis)),
            None => {
                let (start, stop) = (Inline(self.program, it.start), Inline(self.program, it.stop));
                write!(self.out, "FOR {index} from {start} to {stop}:")
            }
        };
    }

    /// Prints one operator statement without its final newline.
    fn op(&mut self, stmt: &OpStmt, depth: usize) {
        match self.dialect {
            Dialect::Canonical => self.canonical_op(stmt, depth),
            Dialect::Short => self.short_op(stmt),
            Dialect::Y2025 => self.op_2025(stmt, depth),
        }
    }

    fn canonical_op(&mut self, stmt: &OpStmt, depth: usize) {
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
    fn write_arguments(&mut self, stmt: &OpStmt, sign: &str, between: &str) {
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
    fn arguments(&mut self, stmt: &OpStmt, sign: &str) -> Vec<String> {
        const BETWEEN: &str = "\0";
        let outer = std::mem::take(&mut self.out);
        self.write_arguments(stmt, sign, BETWEEN);
        let texts = std::mem::replace(&mut self.out, outer);
        texts.split(BETWEEN).filter(|it| !it.is_empty()).map(str::to_owned).collect()
    }

    fn write_attr(&mut self, attr: &Attr) {
        match attr {
            Attr::Tensor(tensor) => self.write_operand(Operand::Tensor(*tensor)),
            Attr::Word(word) => self.out.push_str(word.text()),
            Attr::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Attr::Scalar(scalar) => {
                let _ = write!(self.out, "{}", Inline(self.program, *scalar));
            }
            Attr::Team(team) => {
                for (at, rank) in team.iter().enumerate() {
                    let _ = write!(self.out, "{}{rank}", if at == 0 { "(" } else { " " });
                }
                self.out.push_str(if team.is_empty() { "()" } else { ")" });
            }
            Attr::Axis(_)
            | Attr::Name(_)
            | Attr::DType(_)
            | Attr::Flags(_)
            | Attr::Scalars(_)
            | Attr::Ranges(_)
            | Attr::Values(_)
            | Attr::Unit(_)
            | Attr::Work(_)
            | Attr::Stmts(_) => {
                let text = self.attr(attr);
                self.out.push_str(&text);
            }
        }
    }

    fn attr(&mut self, attr: &Attr) -> String {
        let program = self.program;
        let braces = |texts: Vec<String>| format!("{{{}}}", texts.join(", "));
        match attr {
            Attr::Tensor(tensor) => self.operand(Operand::Tensor(*tensor)),
            Attr::Scalar(scalar) => expr_text(program, *scalar),
            Attr::Axis(axis) => axis_text(program, *axis),
            Attr::Word(word) => word.text().to_owned(),
            Attr::Name(name) => name.clone(),
            Attr::DType(dtype) => dtype.to_string(),
            Attr::Bool(value) => value.to_string(),
            Attr::Team(team) => {
                let ranks: Vec<String> = team.iter().map(usize::to_string).collect();
                format!("({})", ranks.join(" "))
            }
            Attr::Flags(flags) => braces(flags.iter().map(bool::to_string).collect()),
            Attr::Scalars(scalars) => braces(scalars.iter().map(|it| expr_text(program, *it)).collect()),
            Attr::Ranges(ranges) => {
                let range = |it: &[ExprId; 3]| braces(it.iter().map(|it| expr_text(program, *it)).collect());
                let ranges: Vec<String> = ranges.iter().map(range).collect();
                format!("{{ {} }}", ranges.join(" "))
            }
            Attr::Values(values) => braces(values.iter().map(|it| self.operand(*it)).collect()),
            Attr::Unit(unit) => format!("HostUnit{}", program.units[*unit].number),
            Attr::Work(number) => format!("Communication {number}"),
            Attr::Stmts(stmts) => {
                let mut texts = Vec::with_capacity(stmts.len());
                for stmt in stmts {
                    if let Stmt::Op(it) = &program.stmts[*stmt] {
                        let outer = std::mem::take(&mut self.out);
                        self.op(it, 0);
                        texts.push(std::mem::replace(&mut self.out, outer));
                    }
                }
                texts.join(", ")
            }
        }
    }

    fn operands(&mut self, operands: &[Operand]) {
        for (at, operand) in operands.iter().enumerate() {
            if at > 0 {
                self.out.push_str(", ");
            }
            self.write_operand(*operand);
        }
    }

    fn write_operand(&mut self, operand: Operand) {
        match operand {
            Operand::Tensor(tensor) if self.dialect != Dialect::Short => {
                let program = self.program;
                self.out.push_str(self.tensors.entry(tensor).or_insert_with(|| tensor_text(program, tensor)));
            }
            Operand::Tensor(_) | Operand::Scalar(_) | Operand::Stream(_) => {
                let text = self.operand(operand);
                self.out.push_str(&text);
            }
        }
    }

    fn operand(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Tensor(tensor) if self.dialect == Dialect::Short => self.short_tensor(tensor),
            Operand::Tensor(tensor) => {
                self.tensors.entry(tensor).or_insert_with(|| tensor_text(self.program, tensor)).clone()
            }
            Operand::Scalar(scalar) => expr_text(self.program, scalar),
            Operand::Stream(stream) => self.stream(stream),
        }
    }

    fn stream(&self, stream: StreamId) -> String {
        let number = match &self.program.streams[stream] {
            Stream::Named(at) => self.captured.get(*at as usize),
            Stream::Index(_) => None,
        };
        number.map_or_else(|| stream_text(self.program, stream), |it| format!("Stream {it}"))
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

fn number(stmt: &OpStmt) -> String {
    stmt.number.map_or(String::new(), |number| format!(" {number}"))
}
