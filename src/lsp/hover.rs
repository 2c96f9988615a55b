//! What the text says where the mouse points: tensors, scalars, statements and passes.

use std::fmt::Write;

use grammar::{
    AxisId, AxisKind, DeviceDim, Op, OpClass, ParallelType, Place, Program, Stmt, StmtId, SymbolId, TensorId,
    attr, domain_clauses, expr_text, ir::predefined_meaning, summary, tensor_text,
};
use hir_ir::streams::StreamFacts;
use lsp_types::{Hover, HoverContents, MarkupContent, MarkupKind};
use passes::Catalog;

use crate::{
    estimate::Summary,
    names::{self, Named, Occurrence, Role},
    reference, run_lines,
    snapshot::Snapshot,
    streams::{CurrentStream, current_stream},
};

/// The largest number of statements that a list shows.
const MAX_LISTED: usize = 8;

/// Returns what is known about the text at an offset.
pub(crate) fn hover(
    snapshot: &Snapshot,
    catalog: &Catalog,
    summaries: &[Summary],
    offset: u32,
) -> Option<Hover> {
    let hover = |value: String, span| Hover {
        contents: HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value }),
        range: Some(snapshot.range(span)),
    };
    if let Some((text, span)) = run_lines::hover(snapshot, catalog, offset) {
        return Some(hover(text, span));
    }
    let program = snapshot.program_at(offset)?;
    let found = names::occurrences(snapshot, program);
    let summary = summaries.iter().find(|it| it.header == program.spans.header);
    let about = About { snapshot, program, found: &found, summary };
    if let Some(it) = names::at(&found, offset) {
        let text = match it.named {
            Named::Tensor(tensor) => Some(about.tensor(tensor)),
            Named::Symbol(symbol) => about.symbol(symbol, it),
            Named::Stream(_) => Some(about.uses(it.named, "waited for or made current")),
            Named::Work(_) => Some(about.work(it)),
            Named::Unit(_) => Some(about.uses(it.named, "run")),
        };
        return text.map(|text| hover(text, it.span));
    }
    let (place, span) = program.at(offset)?;
    match place {
        Place::Header => Some(hover(about.container()?, span)),
        Place::Stmt(stmt) => Some(hover(about.stmt(stmt)?, span)),
        Place::Part(stmt, _) => match program.operand(place).and_then(|it| it.tensor()) {
            Some(tensor) => Some(hover(about.tensor(tensor), span)),
            None => Some(hover(about.stmt(stmt)?, span)),
        },
        Place::Axis(tensor, _)
        | Place::Mesh(tensor)
        | Place::DomainAxis(tensor, _)
        | Place::Domain(tensor) => Some(hover(about.tensor(tensor), span)),
        _ => Some(hover(about.tensor(program.operand(place)?.tensor()?), span)),
    }
}

/// What hovers say about a program.
struct About<'a> {
    snapshot: &'a Snapshot,
    program: &'a Program,
    found: &'a [Occurrence],
    /// What the check says about the program, once it has ended.
    summary: Option<&'a Summary>,
}

impl About<'_> {
    /// Describes the container: the verdict of the check, and the overlap.
    fn container(&self) -> Option<String> {
        let Summary { verdict, overlap, .. } = self.summary?;
        Some(format!("{verdict}\n\n```text\n{}\n```\n", overlap.join("\n")))
    }

    /// Describes a tensor.
    fn tensor(&self, tensor: TensorId) -> String {
        let program = self.program;
        let it = &program.tensors[tensor];
        let mut text = code(&tensor_text(program, tensor));
        let dims: Vec<AxisId> = program.dimensions(tensor).collect();
        let dtype = it.dtype.map_or(String::new(), |it| format!(", {}", it.name()));
        let extents: Vec<String> =
            dims.iter().map(|it| expr_text(program, program.axes[*it].extent)).collect();
        let _ = writeln!(
            text,
            "* shape: {}{dtype}",
            if extents.is_empty() { "scalar".to_owned() } else { extents.join(" × ") }
        );
        let split: Vec<String> =
            dims.iter().enumerate().filter_map(|(at, dim)| self.sharding(tensor, *dim, at)).collect();
        if !split.is_empty() {
            let _ = writeln!(text, "* sharding: {}", split.join("; "));
        } else if it.mesh.devices.len() > 1 {
            let _ = writeln!(text, "* sharding: every rank of the mesh has the whole tensor");
        }
        if it.mesh.is_empty() {
            let _ = writeln!(text, "* mesh: none, all ranks have the tensor");
        } else {
            let ranks: Vec<String> = it.mesh.devices.iter().map(ToString::to_string).collect();
            let _ = writeln!(
                text,
                "* mesh: {} ({})",
                shortened(&ranks, 16, " "),
                grammar::count_text(ranks.len(), "rank")
            );
        }
        if let Some(bytes) = self.bytes_per_rank(tensor, &dims) {
            let _ = writeln!(text, "* per rank: {}", bytes_text(bytes));
        }
        if !program.has_plain_domains(tensor) {
            let how = if program.spans.are_domains_inferred { "inferred" } else { "stated" };
            let _ = writeln!(text, "* domains ({how}): `{}`", domain_clauses(program, tensor));
        }
        let uses = |wanted: &[Role]| self.lines(Named::Tensor(tensor), wanted);
        if program.inputs.iter().any(|it| it.tensor() == Some(tensor)) {
            text += "* an input: the caller writes it\n";
        }
        for (what, roles) in
            [("bound or written", &[Role::Definition, Role::Write][..]), ("read", &[Role::Read][..])]
        {
            let lines = uses(roles);
            if !lines.is_empty() {
                let _ = writeln!(text, "* {what}: {}", shortened(&lines, MAX_LISTED, ", "));
            }
        }
        text
    }

    /// Describes over what a dimension is divided, or `None` if it is over nothing.
    fn sharding(&self, tensor: TensorId, dim: AxisId, at: usize) -> Option<String> {
        let program = self.program;
        let parts = program.loop_axes_of(tensor, dim).into_iter().filter_map(|leaf| {
            let extent = expr_text(program, program.axes[leaf].extent);
            match program.axes[leaf].parallel {
                ParallelType::Device(dim) => Some(format!("{extent} ranks ({})", device_word(dim))),
                ParallelType::Stream => Some(format!("{extent} streams")),
                ParallelType::Serial | ParallelType::Kernel(_) => None,
            }
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() {
            return None;
        }
        let what = if program.is_partial(tensor, dim) { "partial results of" } else { "over" };
        Some(format!("dimension {at} {what} {}", parts.join(" and ")))
    }

    /// Returns how many bytes of a tensor a rank holds, if the extents are constants.
    fn bytes_per_rank(&self, tensor: TensorId, dims: &[AxisId]) -> Option<u128> {
        let program = self.program;
        let by_stream = program.is_split_by_stream(tensor);
        let mut bytes = program.tensors[tensor].dtype?.size() as u128;
        for leaf in dims.iter().flat_map(|dim| program.loop_axes_of(tensor, *dim)) {
            let axis = &program.axes[leaf];
            let is_elsewhere = match axis.parallel {
                ParallelType::Device(_) => true,
                ParallelType::Stream => by_stream,
                ParallelType::Serial | ParallelType::Kernel(_) => false,
            };
            if axis.kind == AxisKind::Broadcast || is_elsewhere {
                continue;
            }
            if axis.is_ragged {
                return None;
            }
            bytes = bytes.checked_mul(u128::try_from(program.constant(axis.extent)?).ok()?)?;
        }
        Some(bytes)
    }

    /// Describes a scalar.
    fn symbol(&self, symbol: SymbolId, it: Occurrence) -> Option<String> {
        let name = &self.program.symbols[symbol];
        if let Some(meaning) = predefined_meaning(name) {
            return Some(format!("`{name}`: {meaning}"));
        }
        if let Some(value) = self.program.definitions.get(&symbol) {
            return Some(code(&format!("{name} = {}", expr_text(self.program, *value))));
        }
        let defined =
            self.found.iter().find(|other| other.named == it.named && other.role == Role::Definition);
        match defined {
            Some(other) => {
                let line = self.snapshot.source.lines.line(other.span.start);
                let text = self.snapshot.source.lines.line_text(line, self.snapshot.text());
                Some(format!("{}* line {line}", code(text.trim())))
            }
            None => Some(format!("`{name}`: the text does not define it; `--set {name}=…` gives it a value")),
        }
    }

    /// Describes a communication, by its number.
    fn work(&self, it: Occurrence) -> String {
        let posts =
            self.found.iter().filter(|other| other.named == it.named && other.role == Role::Definition);
        let mut text: String =
            posts.filter_map(|it| it.stmt).take(2).map(|stmt| code(&summary(self.program, stmt))).collect();
        let waits = self.lines(it.named, &[Role::Mention]);
        text += &match waits.len() {
            0 => "* nothing waits for it\n".to_owned(),
            _ => format!("* waited for: {}\n", shortened(&waits, MAX_LISTED, ", ")),
        };
        if let Some(stmt) = it.stmt
            && let Some(more) = self.stmt(stmt)
        {
            text += "\n---\n";
            text += &more;
        }
        text
    }

    /// Lists where a name is used.
    fn uses(&self, named: Named, verb: &str) -> String {
        let defined = self.lines(named, &[Role::Definition]);
        let used = self.lines(named, &[Role::Read, Role::Write, Role::Mention]);
        let mut text = String::new();
        if !defined.is_empty() {
            let _ = writeln!(text, "* defined: {}", shortened(&defined, MAX_LISTED, ", "));
        }
        if !used.is_empty() {
            let _ = writeln!(text, "* {verb}: {}", shortened(&used, MAX_LISTED, ", "));
        }
        text
    }

    /// Describes a statement: what its operator does, and on which stream.
    fn stmt(&self, stmt: StmtId) -> Option<String> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        let def = it.op.def();
        let mut text = String::new();
        if let Some(row) = reference::row(def) {
            text += &code(&row.form);
            text += row.meaning;
            text += "\n\n";
        }
        match current_stream(self.program, &StreamFacts::of(self.program), stmt) {
            Some(CurrentStream::Set(stream, Some(by))) => {
                let line = self.line(by);
                let _ = writeln!(text, "* on `{stream}`, which line {line} makes current");
            }
            Some(CurrentStream::Set(stream, None)) => {
                let _ = writeln!(text, "* on `{stream}`, which is current on all paths");
            }
            Some(CurrentStream::Entry) => text += "* on the stream that is current when the program begins\n",
            Some(CurrentStream::Unknown) => {
                text += "* on a stream that depends on the iteration or the branch before it\n";
            }
            None => (),
        }
        if def.class == OpClass::Communicate && it.op != Op::EndCoalescing {
            let number = it.number.map(Named::Work);
            let waits = number.map(|it| self.lines(it, &[Role::Mention])).unwrap_or_default();
            if !waits.is_empty() {
                let _ = writeln!(text, "* waited for: {}", shortened(&waits, MAX_LISTED, ", "));
            }
            if let Some(kind) = it.get(attr::TYPE) {
                let _ = writeln!(text, "* {kind} of {}", self.moved(stmt));
            }
        }
        if let Some(time) = self.summary.and_then(|it| it.times.get(&self.line(stmt))) {
            let _ = writeln!(text, "* estimated time: {time:.1} µs");
        }
        Some(text)
    }

    /// Returns the size of the input of a communication, in words.
    fn moved(&self, stmt: StmtId) -> String {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return String::new() };
        let Some(tensor) = it.get(attr::INPUT) else { return "its input".to_owned() };
        let name = self.program.tensor_name(tensor);
        let dims: Vec<AxisId> = self.program.dimensions(tensor).collect();
        match self.bytes_per_rank(tensor, &dims) {
            Some(bytes) => format!("{} of each rank (`{name}`)", bytes_text(bytes)),
            None => format!("`{name}`"),
        }
    }

    fn line(&self, stmt: StmtId) -> u32 {
        self.snapshot.source.lines.line(self.program.stmt_span(stmt).start)
    }

    /// Returns the lines in which a name has one of these roles.
    fn lines(&self, named: Named, roles: &[Role]) -> Vec<String> {
        let found = self.found.iter().filter(|it| it.named == named && roles.contains(&it.role));
        let mut lines: Vec<u32> = found.map(|it| self.snapshot.source.lines.line(it.span.start)).collect();
        lines.dedup();
        lines.iter().map(|it| format!("line {it}")).collect()
    }
}

fn device_word(dim: DeviceDim) -> &'static str {
    let found = ParallelType::WORDS.iter().find(|(_, it)| *it == ParallelType::Device(dim));
    found.map_or("deviceIdx", |it| it.0)
}

/// Returns a block of code.
fn code(text: &str) -> String {
    format!("```hir\n{text}\n```\n")
}

fn shortened(all: &[String], most: usize, separator: &str) -> String {
    let shown = all.get(..most.min(all.len())).unwrap_or_default().join(separator);
    match all.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Formats a size: `96 bytes`, `1.5 KiB`.
fn bytes_text(bytes: u128) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let at = (0..units.len()).rev().find(|at| bytes >> (10 * (at + 1)) > 0);
    match at {
        None => grammar::count_text(bytes as usize, "byte"),
        Some(at) => {
            let tenths = (bytes * 10) >> (10 * (at + 1));
            match tenths % 10 {
                0 => format!("{} {}", tenths / 10, units[at]),
                rest => format!("{}.{rest} {}", tenths / 10, units[at]),
            }
        }
    }
}
