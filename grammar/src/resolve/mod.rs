//! Converts the syntax tree to IR: resolves names, selects the operator that each call matches, and sorts
//! scalar definitions.
//!
//! Invariant: a construct that cannot be resolved is reported and omitted. Everything else is still resolved,
//! so that one run reports all errors.

pub(crate) mod dialect_version;
mod domains_section;
mod edits;
mod group;
mod legacy_2024;
mod params;
mod protocol;
mod values;

use std::{collections::HashMap, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    arena::Id,
    ast, attr,
    codes::{Code, Severity},
    diagnostic::{Diagnostic, Fix},
    indentation::TokenStream,
    ir::{
        AxisId, BlockId, For, HostUnit, If, Mesh, OpStmt, Operand, P2P_PROTOCOL, Program, Stmt, StmtId,
        StreamId, SymbolId, TensorId, UnitId,
    },
    list_text,
    ops::{AsmFormat, OPS, Op},
    parse::{FaultyLines, ParseEvents, parse_container},
    span::Span,
    text::expr_text,
    words::{CommunicationType, P2pProtocol, RedOp},
};

/// Parses and resolves one container, statement by statement. Returns `None` if the parser does not reach its
/// end. `source` is the text that the tokens borrow from.
pub fn resolve<'s>(
    token_stream: TokenStream<'s>,
    source: &'s str,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Program> {
    let mut faults = Vec::new();
    let mut resolver = Resolver::new(Program::default(), source, &mut faults);
    resolver.end_offset = token_stream.end_offset();
    resolver.detect_version(&token_stream);
    let place = Span { start: token_stream.source().base, end: token_stream.end_offset() };
    let text = token_stream.source();
    let complete = parse_container(token_stream, &mut resolver, diagnostics);
    let syntax = FaultyLines::of(text, diagnostics);
    resolver.finish();
    let needs_canonical_fix = resolver.needs_canonical_fix;
    let program = resolver.program;
    // What follows from a syntax error on the same line is not reported.
    faults.retain(|it| it.severity() != Severity::Error || !syntax.contains(it.span()));
    diagnostics.append(&mut faults);
    if needs_canonical_fix && complete {
        let own: Vec<&mut Diagnostic> =
            diagnostics.iter_mut().filter(|it| it.span().start >= place.start).collect();
        edits::replace_with_canonical_text(source, place, &program, own);
    }
    complete.then_some(program)
}

/// Resolves a scalar expression with the names of `program`. Returns `None` if resolution reports anything.
pub fn resolve_scalar(
    program: &mut Program,
    expr: &ast::Expr<'_>,
    source: &str,
) -> Option<crate::ir::ExprId> {
    let mut diagnostics = Vec::new();
    let mut resolver = Resolver::new(std::mem::take(program), source, &mut diagnostics);
    let id = resolver.scalar(expr);
    *program = resolver.program;
    id.filter(|_| diagnostics.is_empty())
}

struct Resolver<'s, 'd> {
    source: &'s str,
    /// Byte offset at which the container ends.
    end_offset: u32,
    program: Program,
    /// The HostUnit whose namespace is current; `None` for the container.
    current_unit: Option<UnitId>,
    /// Tensors by namespace and printed text.
    tensors_by_text: FxHashMap<(Option<UnitId>, &'s str), TensorId>,
    /// Texts of tensors that cannot be read and are already reported.
    unreadable_texts: FxHashSet<(Option<UnitId>, &'s str)>,
    /// Tensors by namespace and number; several if the text uses a number twice.
    tensors_by_number: IdsByNumber<TensorId>,
    /// Iteration domains by namespace and number; several if the text uses a number twice.
    axes_by_number: IdsByNumber<AxisId>,
    /// The distinct meshes so far.
    meshes: Vec<Arc<Mesh>>,
    /// Names of the streams that GetCurrentStream captures, in order of first occurrence.
    captured_streams: Vec<&'s str>,
    stream_ids: FxHashMap<crate::ir::Stream, StreamId>,
    units_by_number: HashMap<u32, UnitId>,
    /// Statements of the container so far.
    body: Vec<StmtId>,
    /// Whether the text has a `Domains:` section.
    has_domains_section: bool,
    /// Whether some inferred fact has no syntax in this dialect, so that the only fix is the canonical text
    /// of the container.
    needs_canonical_fix: bool,
    /// The dialect version of the container's spellings.
    version: dialect_version::DialectVersion,
    /// Whether `%options roots=team` states that roots are indices in the team.
    roots_in_team: bool,
    /// Numbers of the communications that the statements so far post.
    posted_work: FxHashSet<u32>,
    /// The last EndCoalescing if it has no number yet.
    unnumbered_coalescing: Option<StmtId>,
    /// The next number to assign to a statement that the text does not number.
    next_number: u32,
    /// Whether some statement waits for a communication.
    has_waits: bool,
    /// Where scalars are defined.
    definition_spans: FxHashMap<SymbolId, Span>,
    /// The number of the next group of reductions.
    next_group: i64,
    diagnostics: &'d mut Vec<Diagnostic>,
}

/// Ids by namespace and number. Almost all numbers have one id.
struct IdsByNumber<I> {
    last: FxHashMap<(Option<UnitId>, u32), I>,
    /// For each id, the id that had the same number before it.
    earlier: FxHashMap<I, I>,
}

impl<I> Default for IdsByNumber<I> {
    fn default() -> Self {
        Self { last: FxHashMap::default(), earlier: FxHashMap::default() }
    }
}

impl<I: Id> IdsByNumber<I> {
    /// Returns the ids with this number, the latest first.
    fn all(&self, unit: Option<UnitId>, number: u32) -> impl Iterator<Item = I> {
        let last = self.last.get(&(unit, number)).copied();
        std::iter::successors(last, |id| self.earlier.get(id).copied())
    }

    fn add(&mut self, unit: Option<UnitId>, number: u32, id: I) {
        if let Some(before) = self.last.insert((unit, number), id) {
            self.earlier.insert(id, before);
        }
    }
}

/// The keys of `%options`. `specialize-rank` writes `rank`.
const OPTION_KEYS: &[&str] = &["numberOfStreams", P2P_PROTOCOL, "roots", "rank"];

/// Returns the number in `HostUnit5`.
fn unit_number(name: &str) -> Option<u32> {
    name.strip_prefix("HostUnit").and_then(|digits| digits.parse().ok())
}

/// Resolves each part as soon as it is parsed, so that the tree of only one statement exists at a time.
impl<'s> ParseEvents<'s> for Resolver<'s, '_> {
    fn options(&mut self, options: Vec<ast::Arg<'s>>) {
        for option in options {
            let roots = option.key.is_some_and(|key| key.text == "roots");
            if roots && matches!(option.value.kind, ast::ExprKind::Word("team")) {
                self.roots_in_team = true;
            } else if roots {
                let span = option.value.span;
                self.report_unknown_word("roots", span.text(self.source), span, &["team"]);
            } else if let Some(key) = option.key.filter(|it| !OPTION_KEYS.contains(&it.text)) {
                let message = format!("`%options` has no key `{}`", key.text);
                let label =
                    format!("expected {}", list_text(OPTION_KEYS.iter().copied(), OPTION_KEYS.len(), "or"));
                let it = Diagnostic::new(Code::BadAttribute, key.span, message, label);
                self.diagnostics.push(it.suggest(key.text, OPTION_KEYS.iter().copied()));
            } else if let (Some(key), Some(value)) = (option.key, self.scalar(&option.value)) {
                self.program.options.insert(key.text.to_owned(), value);
                if key.text == P2P_PROTOCOL && self.program.p2p_protocol().is_none() {
                    let text = expr_text(&self.program, value);
                    let words: Vec<_> = P2pProtocol::ALL.iter().map(|it| it.text()).collect();
                    self.report_unknown_word(P2P_PROTOCOL, &text, option.value.span, &words);
                }
            }
        }
    }

    fn declaration(&mut self, tensor: ast::Expr<'s>) {
        self.value(&tensor);
    }

    fn header(&mut self, span: Span, inputs: Vec<ast::Expr<'s>>, outputs: Vec<ast::Expr<'s>>) {
        self.program.spans.header = span;
        self.program.inputs = self.values(&inputs);
        self.program.outputs = self.values(&outputs);
    }

    fn stmt(&mut self, stmt: ast::Stmt<'s>) {
        let mut body = std::mem::take(&mut self.body);
        self.append_stmt(&stmt, &mut body);
        self.body = body;
    }

    fn unit(&mut self, unit: ast::Unit<'s>) {
        self.resolve_unit(&unit);
    }

    fn trailer(&mut self, trailer: ast::Trailer<'s>) {
        match trailer {
            ast::Trailer::Definitions(stmts) => self.resolve_definitions(&stmts),
            ast::Trailer::Domains(lines) => {
                self.has_domains_section = true;
                self.resolve_domains(&lines);
            }
        }
    }
}

impl<'s, 'd> Resolver<'s, 'd> {
    fn new(program: Program, source: &'s str, diagnostics: &'d mut Vec<Diagnostic>) -> Self {
        Self {
            source,
            end_offset: 0,
            program,
            current_unit: None,
            tensors_by_text: FxHashMap::default(),
            unreadable_texts: FxHashSet::default(),
            tensors_by_number: IdsByNumber::default(),
            axes_by_number: IdsByNumber::default(),
            meshes: Vec::new(),
            captured_streams: Vec::new(),
            stream_ids: FxHashMap::default(),
            units_by_number: HashMap::new(),
            body: Vec::new(),
            has_domains_section: false,
            needs_canonical_fix: false,
            version: dialect_version::DialectVersion::default(),
            roots_in_team: false,
            posted_work: FxHashSet::default(),
            unnumbered_coalescing: None,
            next_number: 0,
            has_waits: false,
            definition_spans: FxHashMap::default(),
            next_group: 0,
            diagnostics,
        }
    }

    /// Performs the steps that need all statements and sections.
    fn finish(&mut self) {
        let body = self.program.blocks.push(std::mem::take(&mut self.body));
        self.program.body = Some(body);
        self.sort_definitions();
        self.infer_protocol();
        if !self.has_domains_section {
            self.infer_domains();
        }
    }

    /// Returns the fix that adds a `%options` line before the container.
    fn options_fix(&self, option: &str) -> Fix {
        let header = self.program.spans.header;
        edits::insert_line_before(self.source, header.start, &format!("%options {option}"))
    }

    /// Declares a HostUnit. Statements post units before the sections of the units occur in the text.
    fn declare_unit(&mut self, number: u32) {
        let unit = HostUnit { number, inputs: Vec::new(), outputs: Vec::new(), body: None };
        let id = self.program.units.push(unit);
        self.units_by_number.insert(number, id);
    }

    fn resolve_unit(&mut self, unit: &ast::Unit<'s>) {
        let Some(id) =
            unit_number(unit.name.text).and_then(|number| self.units_by_number.get(&number).copied())
        else {
            let message = format!("`{}` is not a HostUnit", unit.name.text);
            return self.error(
                Code::UnknownUnit,
                unit.name.span,
                message,
                "expected `HostUnit` and a number",
            );
        };
        self.current_unit = Some(id);
        let inputs = self.values(&unit.inputs);
        let outputs = self.values(&unit.outputs);
        let body = unit.body.as_ref().map(|body| self.block(body));
        let it = &mut self.program.units[id];
        (it.inputs, it.outputs, it.body) = (inputs, outputs, body);
        self.current_unit = None;
        if let (Some(body), Some(place)) = (body, unit.missing_lists_at) {
            self.infer_unit_lists(id, body, unit.name.span, place);
        }
    }

    fn block(&mut self, stmts: &[ast::Stmt<'s>]) -> BlockId {
        let mut ids = Vec::with_capacity(stmts.len());
        stmts.iter().for_each(|stmt| self.append_stmt(stmt, &mut ids));
        self.program.blocks.push(ids)
    }

    /// Appends the IR of one statement of the text: one statement, the members of a group, or a communication
    /// and its implied wait.
    fn append_stmt(&mut self, stmt: &ast::Stmt<'s>, ids: &mut Vec<StmtId>) {
        match &stmt.kind {
            ast::StmtKind::Group { name, members, shared } => {
                self.append_grouped_reductions(*name, members, shared, ids)
            }
            ast::StmtKind::Post(_) => {
                let id = self.resolve_stmt(stmt);
                ids.extend(id);
                ids.extend(id.and_then(|id| self.implied_wait(id, stmt.span)));
            }
            ast::StmtKind::For(_)
            | ast::StmtKind::If(_)
            | ast::StmtKind::Assign { .. }
            | ast::StmtKind::Wait(_)
            | ast::StmtKind::Call(_) => ids.extend(self.resolve_stmt(stmt)),
        }
    }

    fn resolve_stmt(&mut self, stmt: &ast::Stmt<'s>) -> Option<StmtId> {
        let resolved = match &stmt.kind {
            ast::StmtKind::For(it) => {
                let ast::For { index, range, body } = &**it;
                let name = if index.text == "StreamIdx" { "streamIdx" } else { index.text };
                let symbol = self.program.intern_symbol(self.current_unit, name, index.span);
                let (axis, start, stop) = match range {
                    ast::Range::Axis(axis) if !matches!(axis.kind, ast::ExprKind::Axis(_)) => {
                        self.bad_loop_axis(index.text, axis);
                        return None;
                    }
                    ast::Range::Axis(axis) => {
                        let axis = self.axis(axis)?;
                        let start = self.program.axes[axis].start;
                        let extent = self.program.axes[axis].extent;
                        (Some(axis), start.unwrap_or_else(|| self.program.intern_int(0)), extent)
                    }
                    ast::Range::Bounds(start, stop) => (None, self.scalar(start)?, self.scalar(stop)?),
                };
                // The id is allocated first, so that statement ids are in program order.
                let placeholder = self.program.blocks.push(Vec::new());
                let it = Stmt::For(For { index: symbol, axis, start, stop, body: placeholder });
                let id = self.program.add_stmt(it, stmt.span);
                let body = self.block(body);
                if let Stmt::For(it) = &mut self.program.stmts[id] {
                    it.body = body;
                }
                return Some(id);
            }
            ast::StmtKind::If(it) => {
                let ast::If { kind, cond, then, other } = &**it;
                let cond = self.scalar(cond)?;
                let placeholder = self.program.blocks.push(Vec::new());
                let it = Stmt::If(If {
                    kind: kind.text.to_owned(),
                    cond,
                    then_block: placeholder,
                    else_block: None,
                });
                let id = self.program.add_stmt(it, stmt.span);
                let then = self.block(then);
                let other = (!other.is_empty()).then(|| self.block(other));
                if let Stmt::If(it) = &mut self.program.stmts[id] {
                    (it.then_block, it.else_block) = (then, other);
                }
                return Some(id);
            }
            ast::StmtKind::Assign { outs, value } => self.resolve_assign(outs, value, stmt.span)?,
            ast::StmtKind::Call(value) => Stmt::Op(self.resolve_call(&[], value, stmt.span)?),
            ast::StmtKind::Post(it) => {
                Stmt::Op(self.resolve_post_phrase(&it.inputs, &it.outputs, &it.op, stmt.span)?)
            }
            ast::StmtKind::Wait(op) => Stmt::Op(self.resolve_wait_phrase(op, stmt.span)?),
            ast::StmtKind::Group { name, .. } => {
                self.error(
                    Code::Syntax,
                    name.span,
                    "a group inside a statement",
                    "expected the group in a block",
                );
                return None;
            }
        };
        let id = self.program.add_stmt(resolved, stmt.span);
        self.resolve_work(id);
        Some(id)
    }

    /// Reports a loop `in` something that is not an axis.
    fn bad_loop_axis(&mut self, index: &str, value: &ast::Expr<'s>) {
        let text = value.span.text(self.source);
        let message = format!("`{text}` is not an axis");
        let it =
            Diagnostic::new(Code::Syntax, value.span, message, "expected an axis such as `istreamIdx0{4}`");
        let count = match &value.kind {
            ast::ExprKind::Call { name, args, .. } if name.text == "range" => match &args[..] {
                [count] => Some(count.value.span.text(self.source)),
                _ => None,
            },
            ast::ExprKind::Int(_) | ast::ExprKind::Word(_) => Some(text),
            _ => None,
        };
        self.diagnostics.push(match count {
            Some(count) => it.help(format!("for {count} iterations, write `FOR {index} from 0 to {count}:`")),
            None => it,
        });
    }

    fn resolve_assign(&mut self, outs: &[ast::Expr<'s>], value: &ast::Expr<'s>, span: Span) -> Option<Stmt> {
        if let [ast::Expr { kind: ast::ExprKind::Word(name), span: name_span }] = outs {
            let symbol = self.program.intern_symbol(self.current_unit, name, *name_span);
            return Some(Stmt::Let(symbol, self.scalar(value)?));
        }
        let outs: Vec<Operand> = outs.iter().map(|out| self.value(out)).collect::<Option<_>>()?;
        self.resolve_call(&outs, value, span).map(Stmt::Op)
    }

    /// Resolves a right-hand side, or a statement without a left-hand side, to an operator statement.
    fn resolve_call(&mut self, outs: &[Operand], value: &ast::Expr<'s>, span: Span) -> Option<OpStmt> {
        match &value.kind {
            ast::ExprKind::Call { name, number, args } => {
                let text = self.resolve_extremum(name.text, name.span, false);
                let Some(op) = self.op_of_call(text, args) else {
                    self.unknown_op(*name);
                    return None;
                };
                let mut stmt = self.bind_args(op, outs, args, span)?;
                stmt.number = number.and_then(|it| u32::try_from(it).ok());
                if number.is_some() && stmt.number.is_none() {
                    self.error(
                        Code::BadNumber,
                        name.span,
                        "the number of the statement is too large",
                        "expected a number below 2^32",
                    );
                    return None;
                }
                self.add_implied_red_op(&mut stmt);
                self.resolve_root(&mut stmt, span);
                Some(stmt)
            }
            ast::ExprKind::Word(name) => self.resolve_non_call(name, &[], AsmFormat::Bare, outs, span),
            ast::ExprKind::Infix(sign, lhs, rhs) => {
                self.resolve_non_call(sign, &[lhs, rhs], AsmFormat::Infix, outs, span)
            }
            ast::ExprKind::Prefix(sign, operand) => {
                self.resolve_non_call(sign, &[operand], AsmFormat::Prefix, outs, span)
            }
            ast::ExprKind::Int(_)
            | ast::ExprKind::Float(_)
            | ast::ExprKind::Tensor(_)
            | ast::ExprKind::Axis(_)
            | ast::ExprKind::Stream(_)
            | ast::ExprKind::Paren(_)
            | ast::ExprKind::Team(_)
            | ast::ExprKind::Braces(_) => {
                self.error(
                    Code::UnknownOp,
                    value.span,
                    "this is not an operator",
                    "expected an operator and its operands",
                );
                None
            }
        }
    }

    /// Resolves an operator that is not written as a call.
    fn resolve_non_call(
        &mut self,
        name: &str,
        operands: &[&ast::Expr<'s>],
        syntax: AsmFormat,
        outs: &[Operand],
        span: Span,
    ) -> Option<OpStmt> {
        let Some(op) = Op::lookup(name).iter().copied().find(|it| it.def().format == syntax) else {
            self.unknown_op(ast::Name { text: name, span });
            return None;
        };
        let args = operands.iter().map(|it| self.value(it)).collect::<Option<Vec<_>>>()?;
        Some(OpStmt { op, number: None, outs: outs.to_vec(), args, attrs: Vec::new() })
    }

    /// Returns the operator of a call: by name, and if several operators have that name, by the keys of the
    /// arguments.
    fn op_of_call(&self, name: &str, args: &[ast::Arg<'s>]) -> Option<Op> {
        if params::is_cast(name) {
            return Some(Op::Cast);
        }
        let candidates = Op::lookup(name);
        let exact = candidates.iter().copied().find(|op| params::do_keys_match(op.def(), args));
        // With an error in the arguments: the one that knows most of the keys.
        let likely = || candidates.iter().rev().copied().max_by_key(|op| params::known_keys(op.def(), args));
        exact.or_else(likely)
    }

    /// Adds the reduction operator if a reducing collective has none: nvFuser lowers these collectives with a
    /// sum.
    fn add_implied_red_op(&mut self, stmt: &mut OpStmt) {
        let reduces = stmt.get(attr::TYPE).is_some_and(CommunicationType::is_reduction);
        if reduces && stmt.get(attr::RED_OP).is_none() {
            stmt.attrs.reserve_exact(1);
            stmt.attrs.push(attr::RED_OP.with(RedOp::Sum));
            params::order_attrs(stmt);
        }
    }

    fn unknown_op(&mut self, name: ast::Name<'_>) {
        if name.text == group::GROUPED_REDUCTION {
            let message = format!("`{}` contains no reduction", name.text);
            return self.error(
                Code::BadOperands,
                name.span,
                message,
                "expected `T1 = reduction( … )` on the lines after it",
            );
        }
        let names = OPS.iter().map(|row| row.mnemonic).filter(|it| it.len() > 2);
        let it = Diagnostic::new(
            Code::UnknownOp,
            name.span,
            format!("unknown operator `{}`", name.text),
            "`hir-opt --list-ops` lists the operators",
        );
        self.diagnostics.push(it.suggest(name.text, names));
    }

    fn error(&mut self, code: Code, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(code, span, message, label));
    }

    fn resolve_definitions(&mut self, stmts: &[ast::Stmt<'s>]) {
        for stmt in stmts {
            let scalar = match &stmt.kind {
                ast::StmtKind::Assign { outs, value } => match outs.as_slice() {
                    [ast::Expr { kind: ast::ExprKind::Word(name), span }] => Some((*name, *span, value)),
                    _ => None,
                },
                ast::StmtKind::For { .. }
                | ast::StmtKind::If { .. }
                | ast::StmtKind::Post { .. }
                | ast::StmtKind::Wait(_)
                | ast::StmtKind::Group { .. }
                | ast::StmtKind::Call(_) => None,
            };
            let Some((name, span, value)) = scalar else {
                self.error(
                    Code::Syntax,
                    stmt.span,
                    "this is not the definition of a scalar",
                    "expected `name = expression;`",
                );
                continue;
            };
            if let Some(value) = self.scalar(value) {
                let symbol = self.program.intern_symbol(self.current_unit, name, span);
                self.program.definitions.insert(symbol, value);
                self.definition_spans.insert(symbol, span);
            }
        }
    }

    /// Sorts definitions so that each follows the definitions that it uses, and otherwise keeps the order of
    /// the text. Reports cycles.
    fn sort_definitions(&mut self) {
        let definitions = std::mem::take(&mut self.program.definitions);
        let mut state: HashMap<SymbolId, bool> = HashMap::new();
        let mut ordered = indexmap::IndexMap::with_capacity(definitions.len());
        for root in definitions.keys() {
            // Depth-first search without recursion: a symbol is entered, and left when all symbols that it
            // uses are left.
            let mut stack = vec![(*root, false)];
            while let Some((symbol, leaving)) = stack.pop() {
                let Some(value) = definitions.get(&symbol) else { continue };
                if leaving {
                    state.insert(symbol, true);
                    ordered.insert(symbol, *value);
                    continue;
                }
                match state.get(&symbol) {
                    Some(true) => continue,
                    Some(false) => {
                        let name = self.program.symbols[symbol].clone();
                        let path = stack.iter().filter(|it| it.1).map(|it| it.0);
                        let cycle: Vec<&str> = path
                            .skip_while(|it| *it != symbol)
                            .chain([symbol])
                            .map(|it| self.program.symbols[it].as_str())
                            .collect();
                        let own = self.definition_spans.get(&symbol).copied();
                        let span = own.unwrap_or_else(|| self.program.symbol_span(symbol));
                        self.error(
                            Code::CircularDefinition,
                            span,
                            format!("the definition of `{name}` depends on itself"),
                            cycle_text(&cycle),
                        );
                        continue;
                    }
                    None => (),
                }
                state.insert(symbol, false);
                stack.push((symbol, true));
                let mut used = Vec::new();
                self.program.collect_symbols(*value, &mut used);
                for it in used.into_iter().rev().filter(|it| definitions.contains_key(it)) {
                    if state.get(&it) != Some(&true) {
                        stack.push((it, false));
                    }
                }
            }
        }
        self.program.definitions = ordered;
    }
}

/// Formats a cycle of definitions: `` `i5` uses `i6`, which uses `i5` ``.
fn cycle_text(cycle: &[&str]) -> String {
    match cycle {
        [first, rest @ ..] if !rest.is_empty() => {
            let uses: Vec<String> = rest.iter().map(|it| format!("uses `{it}`")).collect();
            format!("`{first}` {}", uses.join(", which "))
        }
        _ => "this definition is circular".to_owned(),
    }
}
