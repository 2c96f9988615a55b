//! Converts IR to text, in the newest spelling or in that of 2025.
//!
//! Invariant: the printer infers nothing. `Options` lists the facts that the text has to state because a
//! reader would infer something else.

mod group;
mod operator;
mod short;
mod value;
mod y2025;

use crate::{
    InvalidOption, Named,
    ir::{Attr, BlockId, For, OpStmt, Program, Stmt, StmtId, TensorId, UnitId},
    text::{Inline, Unparenthesized, axis_text, domain_clauses, expr_text, tensor_text, write_separated},
};
use std::{fmt::Write, io, str::FromStr};

use rustc_hash::FxHashMap;

/// The comment of a `Domains:` section of a program in which no tensor has other domains than its axes.
pub const NO_DOMAINS: &str = "// every tensor has the axes of its text";

crate::named_enum! {
    /// A dialect of the textual format.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum Dialect {
        /// The newest spelling, including the information that dumps omit.
        #[default]
        Canonical = "canonical",
        /// The canonical text with a `%tensor` line for each tensor and short names after it.
        Short = "short",
        /// The format that nvFuser printed from September 2025 to January 2026.
        Y2025 = "2025",
    }
}

impl FromStr for Dialect {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        Self::of_name(text).ok_or_else(|| "expected `canonical`, `short` or `2025`".into())
    }
}

/// Facts that the text has to state because a reader would otherwise infer something else.
pub(crate) struct Options {
    /// Whether to print `%options roots=team`: roots are indices into the team.
    pub(crate) roots_in_team: bool,
    /// The tensors that get a line in the `Domains:` section; `None`: the section is omitted.
    pub(crate) domains: Option<Vec<TensorId>>,
}

pub use short::LinePrinter;
pub(crate) use short::{print_commented, write_short};

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
    if let Some(tensors) = &options.domains {
        printer.domains(tensors);
    }
    printer.out
}

/// Returns the text of a container in the newest spelling.
pub(crate) fn print(program: &Program, options: &Options) -> String {
    let mut printer = Printer::new(program, Dialect::Canonical);
    printer.options(options.roots_in_team);
    printer.sections(options, &mut |_| ());
    printer.out
}

/// Bytes of text that are collected before they are written.
const FLUSH_SIZE: usize = 1 << 16;

/// Returns the text of a container in the 2025 dialect, without the information that this dialect cannot
/// express.
pub(crate) fn print_2025(program: &Program) -> String {
    let mut printer = Printer::new(program, Dialect::Y2025);
    printer.out.push('\n');
    printer.container(&mut |_| ());
    printer.definitions();
    printer.out.push('\n');
    printer.out
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
    /// Returns the text of a tensor that is not in `tensors`.
    spell_tensor: fn(&Program, TensorId) -> String,
    /// What is printed at the ends of the lines of some statements, in the short form.
    comments: Option<&'p FxHashMap<StmtId, String>>,
    /// Numbers of captured streams, in dialects that print numbers for them.
    captured: Vec<i64>,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program, dialect: Dialect) -> Self {
        let captured = match dialect {
            Dialect::Canonical | Dialect::Short => Vec::new(),
            Dialect::Y2025 => y2025::captured_stream_numbers(program),
        };
        let tensors = FxHashMap::default();
        Self {
            program,
            out: String::new(),
            dialect,
            tensors,
            spell_tensor: tensor_text,
            comments: None,
            captured,
        }
    }

    /// Creates a printer that prints tensors by their short names.
    fn with_short_names(program: &'p Program) -> Self {
        Self { spell_tensor: Program::tensor_name, ..Self::new(program, Dialect::Canonical) }
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
        self.sections(options, &mut |text| {
            if result.is_ok() {
                result = out.write_all(text.as_bytes());
            }
            text.clear();
        });
        result?;
        out.write_all(self.out.as_bytes())
    }

    /// Prints the container and the sections behind it. `piece` is as in `container`.
    fn sections(&mut self, options: &Options, piece: &mut dyn FnMut(&mut String)) {
        self.container(piece);
        self.definitions();
        if let Some(tensors) = &options.domains {
            self.domains(tensors);
        }
    }

    /// Passes what is printed so far to `piece`, which may take it, whenever that has grown; the rest remains in `out`.
    fn container(&mut self, piece: &mut dyn FnMut(&mut String)) {
        let program = self.program;
        self.out.push_str("%HostIrContainer { (");
        self.operands(&program.inputs);
        self.out.push_str(") -> (");
        self.operands(&program.outputs);
        self.out.push_str(") :\n");
        let (mut rest, mut full) = (program.body(), FLUSH_SIZE);
        while !rest.is_empty() {
            rest = self.print_next(rest, 1);
            if self.out.len() > full {
                piece(&mut self.out);
                full = self.out.len() + FLUSH_SIZE;
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

    fn domains(&mut self, tensors: &[TensorId]) {
        self.out.push_str("\nDomains:\n");
        if tensors.is_empty() {
            // Without the section, a reader would infer domains from sizes.
            let _ = writeln!(self.out, "  {NO_DOMAINS}");
        }
        for tensor in tensors {
            let name = self.program.qualified_name(*tensor);
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
                if let Some(comment) = self.comments.and_then(|it| it.get(&stmt)) {
                    self.out.push_str("  // ");
                    self.out.push_str(comment);
                }
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
                // An ELSE without statements does nothing, and the reader drops it.
                if let Some(other) = it.else_block.filter(|it| !self.program.block(*it).is_empty()) {
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
}
