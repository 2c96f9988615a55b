//! The structure of a text: its containers, HostUnits, loops and statements.

use grammar::{BlockId, OpClass, Place, Program, Span, Stmt, StmtId, summary};
use lsp_types::{
    DocumentSymbol, FoldingRange, FoldingRangeKind, Location, OneOf, SymbolKind, Uri, WorkspaceSymbol,
};

use crate::snapshot::Snapshot;

/// The longest name of a symbol, in characters.
const MAX_NAME: usize = 100;

/// Returns the containers with their statements, and the HostUnits.
pub(crate) fn symbols(snapshot: &Snapshot) -> Vec<DocumentSymbol> {
    let one = |(at, program): (usize, &Program)| {
        let of = Symbols { snapshot, program };
        let (start, end) = snapshot.extent(program);
        let mut children = program.body.map(|body| of.block(body)).unwrap_or_default();
        for (place, span) in program.places() {
            if let Place::Unit(unit) = place {
                let unit = &program.units[unit];
                let inside = unit.body.map(|body| of.block(body)).unwrap_or_default();
                let name = format!("HostUnit{}", unit.number);
                children.push(of.symbol(name, SymbolKind::CLASS, span, inside));
            }
        }
        let name = match snapshot.programs.len() {
            1 => "HostIrContainer".to_owned(),
            _ => format!("HostIrContainer {at}"),
        };
        let mut it = of.symbol(name, SymbolKind::MODULE, program.spans.header, children);
        // Whole lines; the end is that of the last one.
        it.range = snapshot.range(Span::new(start, end.saturating_sub(1).max(start)));
        it
    };
    snapshot.programs.iter().enumerate().map(one).collect()
}

struct Symbols<'a> {
    snapshot: &'a Snapshot,
    program: &'a Program,
}

impl Symbols<'_> {
    fn block(&self, block: BlockId) -> Vec<DocumentSymbol> {
        self.program.block(block).iter().map(|it| self.stmt(*it)).collect()
    }

    fn stmt(&self, stmt: StmtId) -> DocumentSymbol {
        let (kind, children) = match &self.program.stmts[stmt] {
            Stmt::Op(it) => (kind(it.op.def().class), Vec::new()),
            Stmt::Let(..) => (SymbolKind::VARIABLE, Vec::new()),
            Stmt::For(it) => (SymbolKind::NAMESPACE, self.block(it.body)),
            Stmt::If(it) => {
                let mut inside = self.block(it.then_block);
                inside.extend(it.else_block.map(|it| self.block(it)).unwrap_or_default());
                (SymbolKind::NAMESPACE, inside)
            }
        };
        let name: String = summary(self.program, stmt).chars().take(MAX_NAME).collect();
        self.symbol(name, kind, self.program.stmt_span(stmt), children)
    }

    /// Returns a symbol, which also contains its children.
    #[allow(deprecated, reason = "the protocol's type has a deprecated field")]
    fn symbol(
        &self,
        name: String,
        kind: SymbolKind,
        span: Span,
        children: Vec<DocumentSymbol>,
    ) -> DocumentSymbol {
        let selection_range = self.snapshot.range(span);
        let end = children.iter().map(|it| it.range.end).fold(selection_range.end, Ord::max);
        let mut range = selection_range;
        range.end = end;
        DocumentSymbol {
            name,
            detail: None,
            kind,
            tags: None,
            deprecated: None,
            range,
            selection_range,
            children: (!children.is_empty()).then_some(children),
        }
    }
}

fn kind(class: OpClass) -> SymbolKind {
    match class {
        OpClass::Communicate | OpClass::Coalescing | OpClass::ShareHandles => SymbolKind::EVENT,
        OpClass::Wait | OpClass::Stream | OpClass::Condition => SymbolKind::KEY,
        OpClass::Allocate | OpClass::Deallocate | OpClass::View => SymbolKind::VARIABLE,
        OpClass::Compute | OpClass::Elementwise => SymbolKind::OPERATOR,
        OpClass::HostUnit | OpClass::Opaque => SymbolKind::FUNCTION,
    }
}

/// Returns the lines that an editor can fold: containers, loops, branches and HostUnits.
pub(crate) fn folds(snapshot: &Snapshot) -> Vec<FoldingRange> {
    let mut found = Vec::new();
    symbols(snapshot).iter().for_each(|it| add_folds(it, &mut found));
    found
}

/// Adds the symbols of a document whose names contain a text in small letters, also those within `it`.
pub(crate) fn add_named(it: DocumentSymbol, query: &str, uri: &Uri, found: &mut Vec<WorkspaceSymbol>) {
    let DocumentSymbol { name, kind, selection_range: range, children, .. } = it;
    if name.to_lowercase().contains(query) {
        let location = OneOf::Left(Location { uri: uri.clone(), range });
        found.push(WorkspaceSymbol { name, kind, tags: None, container_name: None, location, data: None });
    }
    children.into_iter().flatten().for_each(|it| add_named(it, query, uri, found));
}

fn add_folds(it: &DocumentSymbol, found: &mut Vec<FoldingRange>) {
    let Some(children) = &it.children else { return };
    let (start, end) = (it.selection_range.start.line, it.range.end.line);
    if start < end {
        found.push(FoldingRange {
            start_line: start,
            end_line: end,
            kind: Some(FoldingRangeKind::Region),
            ..Default::default()
        });
    }
    children.iter().for_each(|it| add_folds(it, found));
}
