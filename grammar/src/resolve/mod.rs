//! Converts the syntax tree to IR: resolves names (`values`, `params`), selects the operator that each call matches
//! (`stmts`), and sorts scalar definitions (`definitions`).
//!
//! Invariant: a construct that cannot be resolved is reported and omitted. Everything else is still resolved,
//! so that one run reports all errors.

mod argument_errors;
mod definitions;
pub(crate) mod dialect_version;
mod domains_section;
mod edits;
mod fusion_choice;
mod fusion_statements;
mod fusions;
mod group;
mod legacy_2024;
mod log_domains;
mod params;
mod protocol;
mod reduction_operators;
mod scalars;
mod shared_lines;
mod spelled_tensors;
mod stmts;
mod undeclared;
mod units;
mod values;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use hir_syntax::ParseEvents;
use rustc_hash::{FxHashMap, FxHashSet};

pub use protocol::keep_get_protocol;
use spelled_tensors::SpelledTensors;
use undeclared::Undeclared;

use crate::{
    arena::Id,
    ast,
    codes::Code,
    diagnostic::{Diagnostic, Fix, has_errors},
    fusion_dump::FusionLog,
    indentation::TokenStream,
    ir::{
        AxisId, Mesh, Operand, P2P_PROTOCOL, PartRole, PartSpan, Program, SectionPart, Stmt, StmtId,
        StreamId, SymbolId, TensorId, UnitId,
    },
    list_text,
    parse::{FaultyLines, parse_container},
    rules::state_permutations,
    scalars::has_streams,
    span::Span,
    text::expr_text,
    words::P2pProtocol,
};

/// What `resolve` returns.
pub struct Resolved {
    /// The program; `None` if the parser does not reach the end of the container.
    pub program: Option<Program>,
    /// The indices of those files with fusions that have one that fits the container.
    pub fitting_files: FxHashSet<usize>,
}

/// Parses and resolves one container, statement by statement. `source` is the text that the tokens borrow from, `log` has its fusions, and `diagnostics` are those of the container so far. The text
/// from `spelled_from` on, up to the container, has errors.
pub fn resolve<'s>(
    mut token_stream: TokenStream<'s>,
    source: &'s str,
    spelled_from: u32,
    log: &FusionLog<'s>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Resolved {
    let place = Span { start: token_stream.source().base, end: token_stream.end_offset() };
    let mut resolver = Resolver { source, place, spelled_from, ..Resolver::default() };
    resolver.detect_version(&token_stream);
    let text = token_stream.own_source();
    resolver.program.spans.comments = std::mem::take(&mut token_stream.comments);
    let complete = parse_container(token_stream, &mut resolver, diagnostics);
    let syntax = FaultyLines::of(text, diagnostics);
    resolver.finish(log);
    shared_lines::warn(&resolver.program, source, diagnostics);
    // The canonical text shows to which block a line belongs that stands between two columns, or a statement on the line of another one.
    let is_between_blocks = |it: &Diagnostic| it.code == Code::LossyIndent && it.fixes.is_empty();
    let needs_canonical_fix = resolver.needs_canonical_fix || diagnostics.iter().any(is_between_blocks);
    let Resolver { program, consequences, fitting_files, diagnostics: faults, .. } = resolver;
    // What follows from a syntax error on the same line is not reported.
    diagnostics.extend(faults.into_iter().filter(|it| !it.is_error() || !syntax.contains(it.span())));
    if !has_errors(diagnostics) {
        diagnostics.extend(consequences.into_iter().next());
    }
    if needs_canonical_fix && complete {
        edits::replace_with_canonical_text(source, place, &program, diagnostics);
    }
    Resolved { program: complete.then_some(program), fitting_files }
}

/// Resolves a scalar expression with the names of `program`. Returns `None` if resolution reports anything.
pub fn resolve_scalar(
    program: &mut Program,
    expr: &ast::Expr<'_>,
    source: &str,
) -> Option<crate::ir::ExprId> {
    let mut resolver = Resolver { program: std::mem::take(program), source, ..Resolver::default() };
    let id = resolver.scalar(expr);
    *program = resolver.program;
    id.filter(|_| resolver.diagnostics.is_empty())
}

#[derive(Default)]
struct Resolver<'s> {
    source: &'s str,
    /// The text of the container and its sections.
    place: Span,
    /// The offset from which on the text may spell tensors that are lost by an error.
    spelled_from: u32,
    program: Program,
    /// The HostUnit whose namespace is current; `None` for the container.
    current_unit: Option<UnitId>,
    /// Tensors by namespace and printed text.
    tensors_by_text: FxHashMap<(Option<UnitId>, &'s str), TensorId>,
    /// Texts of tensors that cannot be read and are already reported.
    unreadable_texts: FxHashSet<(Option<UnitId>, &'s str)>,
    /// Tensors that the text uses without a declaration.
    undeclared: Undeclared,
    /// Tensors that the text spells in full, with or without an error.
    spelled_tensors: SpelledTensors,
    /// Tensors by namespace and number; several if the text uses a number twice.
    tensors_by_number: IdsByNumber<TensorId>,
    /// Iteration domains by namespace and number; several if the text uses a number twice.
    axes_by_number: IdsByNumber<AxisId>,
    /// The distinct meshes so far.
    meshes: Vec<Arc<Mesh>>,
    /// Names of the streams that GetCurrentStream captures, in order of first occurrence.
    captured_streams: Vec<&'s str>,
    /// Parts of the statements that are not complete, those of an inner statement behind those of the outer one.
    parts: Vec<PartSpan>,
    stream_ids: FxHashMap<crate::ir::Stream, StreamId>,
    units_by_number: HashMap<u32, UnitId>,
    /// Statements of the container so far.
    body: Vec<StmtId>,
    /// Whether the text has a `Domains:` section.
    has_domains_section: bool,
    /// Names of the tensors that are reported to differ from those of the log.
    differing_tensors: FxHashSet<String>,
    /// Warnings about tensors whose domains in the log are not used.
    unused_domains: Vec<Diagnostic>,
    /// Whether some inferred fact has no syntax in this dialect, so that the only fix is the canonical text
    /// of the container.
    needs_canonical_fix: bool,
    /// The dialect version of the container's spellings.
    version: dialect_version::DialectVersion,
    /// That of the dump whose group is resolved.
    fusion_version: Option<dialect_version::DialectVersion>,
    /// Whether `%options roots=team` states that roots are indices in the team.
    roots_in_team: bool,
    /// Numbers of the communications that the statements so far post.
    posted_work: FxHashSet<u32>,
    /// The last EndCoalescing if it has no number yet.
    unnumbered_coalescing: Option<StmtId>,
    /// The number of statements so far that draw random numbers.
    random_statements: i64,
    /// The next number to assign to a statement that the text does not number.
    next_number: u32,
    /// Where reducing communications state no operator.
    implied_red_ops: FxHashSet<Span>,
    /// The indices of those files with fusions that have one that fits the container.
    fitting_files: FxHashSet<usize>,
    /// Whether some statement waits for a communication.
    has_waits: bool,
    /// Where scalars are defined.
    definition_spans: FxHashMap<SymbolId, Span>,
    /// Where the `Domains:` of tensors are stated.
    domain_spans: FxHashMap<TensorId, Span>,
    /// Where the sections of HostUnits begin.
    unit_spans: FxHashMap<UnitId, Span>,
    /// Where the keys of `%options` are stated.
    option_spans: FxHashMap<&'s str, Span>,
    /// The number of the next group of reductions.
    next_group: i64,
    /// Errors that probably follow from others. The first one is reported if there is no other error.
    consequences: Vec<Diagnostic>,
    diagnostics: Vec<Diagnostic>,
}

/// Ids by namespace and number. Almost all numbers have one id.
struct IdsByNumber<I> {
    last: FxHashMap<(Option<UnitId>, u32), I>,
    /// For each id, the id that had the same number before it.
    earlier: FxHashMap<I, I>,
    /// By namespace: its numbers in ascending order, from the first error that lists them on.
    sorted: FxHashMap<Option<UnitId>, BTreeSet<u32>>,
}

impl<I> Default for IdsByNumber<I> {
    fn default() -> Self {
        Self { last: FxHashMap::default(), earlier: FxHashMap::default(), sorted: FxHashMap::default() }
    }
}

impl<I: Id> IdsByNumber<I> {
    /// Returns the ids with this number, the latest first.
    fn all(&self, unit: Option<UnitId>, number: u32) -> impl Iterator<Item = I> {
        let last = self.last.get(&(unit, number)).copied();
        std::iter::successors(last, |id| self.earlier.get(id).copied())
    }

    /// Returns the numbers that a namespace uses, in ascending order. Only errors need them.
    fn numbers(&mut self, unit: Option<UnitId>) -> &BTreeSet<u32> {
        let last = &self.last;
        let own = || last.keys().filter(|it| it.0 == unit).map(|it| it.1).collect();
        self.sorted.entry(unit).or_insert_with(own)
    }

    fn add(&mut self, unit: Option<UnitId>, number: u32, id: I) {
        match self.last.insert((unit, number), id) {
            Some(before) => _ = self.earlier.insert(id, before),
            None => {
                if let Some(sorted) = self.sorted.get_mut(&unit) {
                    sorted.insert(number);
                }
            }
        }
    }
}

/// The keys of `%options`. `specialize-rank` writes `rank`.
const OPTION_KEYS: &[&str] = &["numberOfStreams", P2P_PROTOCOL, "roots", "rank"];

/// Resolves each part as soon as it is parsed, so that the tree of only one statement exists at a time.
impl<'s> ParseEvents<'s> for Resolver<'s> {
    fn options(&mut self, options: Vec<ast::Arg<'s>>) {
        for option in options {
            if let Some(key) = option.key
                && let Some(first) = self.option_spans.insert(key.text, key.span)
            {
                self.stated_twice(&format!("`%options {}`", key.text), [first, key.span]);
            }
            if option.key.is_none() {
                let message = "`%options` has a value without a key";
                self.error(Code::BadAttribute, option.value.span, message, "expected `key=value`");
                continue;
            }
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
                let (at, _) = self.program.options.insert_full(key.text.to_owned(), value);
                let span = key.span.join(option.value.span);
                self.program.spans.add_section_part(span, SectionPart::Option(at as u32));
                if key.text == P2P_PROTOCOL && self.program.p2p_protocol().is_none() {
                    let text = expr_text(&self.program, value);
                    let words: Vec<_> = P2pProtocol::ALL.iter().map(|it| it.text()).collect();
                    self.report_unknown_word(P2P_PROTOCOL, &text, option.value.span, &words);
                }
            }
        }
    }

    fn declaration(&mut self, tensor: ast::Expr<'s>) {
        if let Some(Operand::Tensor(id)) = self.value(&tensor) {
            self.program.spans.add_section_part(tensor.span, SectionPart::Declaration(id));
        }
    }

    fn header(&mut self, span: Span, inputs: Vec<ast::Expr<'s>>, outputs: Vec<ast::Expr<'s>>) {
        self.program.spans.header = span;
        self.program.inputs = self.section_values(&inputs, SectionPart::Input);
        self.program.outputs = self.section_values(&outputs, SectionPart::Output);
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

impl<'s> Resolver<'s> {
    /// Performs the steps that need all statements and sections.
    fn finish(&mut self, log: &FusionLog<'s>) {
        let body = self.program.blocks.push(std::mem::take(&mut self.body));
        self.program.body = Some(body);
        let incomplete = self.remove_undeclared();
        self.sort_definitions();
        if let Some(span) = self.option_spans.get("numberOfStreams")
            && !has_streams(&self.program)
        {
            let message = "`numberOfStreams` must be a positive integer";
            self.error(Code::BadIndex, *span, message, "expected 1, 2, …");
        }
        self.infer_protocol();
        self.program.spans.stream_names = self.captured_streams.iter().map(|it| (*it).to_owned()).collect();
        let (stated, units) = self.attach_fusions(log.candidates(self.place.start));
        if !self.has_domains_section {
            self.infer_domains(&stated, &units);
        }
        state_permutations(&mut self.program);
        self.propose_declarations(&incomplete);
    }

    /// Returns the fix that adds a `%options` line before the container.
    fn options_fix(&self, option: &str) -> Fix {
        let header = self.program.spans.header;
        edits::insert_line_before(self.source, header.start, &format!("%options {option}"))
    }

    /// Resolves a list that is not in a statement, and records the positions of its elements.
    fn section_values(&mut self, items: &[ast::Expr<'s>], part: impl Fn(u32) -> SectionPart) -> Vec<Operand> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            let Some(value) = self.value(item) else { continue };
            self.program.spans.add_section_part(item.span, part(values.len() as u32));
            values.push(value);
        }
        values
    }

    /// Records the position of a part of the current statement.
    fn add_part(&mut self, span: Span, role: PartRole) {
        self.parts.push(PartSpan { span, role });
    }

    /// Adds a statement with the parts that were recorded since there were `first`.
    fn add_stmt(&mut self, stmt: Stmt, span: Span, first: usize) -> StmtId {
        self.program.add_stated_stmt(stmt, span, self.parts.drain(first..))
    }

    /// Reports a fact that the text states in two places.
    fn stated_twice(&mut self, what: &str, [first, second]: [Span; 2]) {
        let it = Diagnostic::new(
            Code::DefinedTwice,
            second,
            format!("{what} is defined twice"),
            "defined again here",
        );
        self.diagnostics.push(it.label(first, "first defined here").help("keep one of the two"));
    }

    fn error(&mut self, code: Code, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(code, span, message, label));
    }
}
