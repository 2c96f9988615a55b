//! The ShareMemHandles that a program needs before its transfers of the CUDA backend: the text of each, and
//! where it is inserted.

use grammar::{
    AccessMode, Backend, BlockId, ExprId, Fix, LineIndex, LinePrinter, Op, OpStmt, Program, Span, Stmt,
    StmtId, SymbolId, TensorId, attr, list_text,
};
use rustc_hash::FxHashSet;

/// The maximum number of insertions that a help lists.
const MAX_LISTED: usize = 8;

/// A ShareMemHandles to insert.
struct Insertion {
    /// The transfers that it lists, all of one block. It is inserted before the first.
    transfers: Vec<StmtId>,
}

/// Returns the help for a transfer whose memory handle is not shared, and the edits that insert a
/// ShareMemHandles for it and for all transfers that no ShareMemHandles lists.
pub(super) fn insertions(program: &Program, lines: &LineIndex, unshared: StmtId) -> (String, Vec<Fix>) {
    let mut search = Search::new(program, unshared);
    program.body.iter().for_each(|body| search.collect(*body));
    let printer = LinePrinter::new(program);
    let mut texts = Vec::new();
    let mut fixes = Vec::new();
    for it in &search.found {
        let Some(first) = it.transfers.first() else { continue };
        let at = program.stmt_span(*first).start;
        let listed: Vec<String> = it.transfers.iter().map(|transfer| printer.line(*transfer, at)).collect();
        let text = format!("ShareMemHandles({})", listed.join(", "));
        texts.push(format!("`{text}` before line {}", lines.line(at)));
        let indentation = " ".repeat(lines.column(at) as usize - 1);
        fixes.push(Fix { span: Span { start: at, end: at }, text: format!("{text}\n{indentation}") });
    }
    (format!("insert {}", list_text(texts.iter().map(String::as_str), MAX_LISTED, "and")), fixes)
}

/// The search for insertions.
struct Search<'p> {
    program: &'p Program,
    unshared: StmtId,
    /// The transfers that some ShareMemHandles lists.
    listed: FxHashSet<Handle>,
    found: Vec<Insertion>,
}

/// What a ShareMemHandles shares: the number, the buffer and the peer of a transfer.
type Handle = (Option<u32>, Option<TensorId>, Option<ExprId>);

/// The insertion that takes the next transfer of a block, an index into `Search::found`, and the names that have got
/// other values since.
struct Open {
    at: usize,
    bound: FxHashSet<TensorId>,
    defined: FxHashSet<SymbolId>,
}

impl<'p> Search<'p> {
    fn new(program: &'p Program, unshared: StmtId) -> Self {
        let mut listed = FxHashSet::default();
        for (_, stmt) in program.stmts.iter() {
            let Stmt::Op(it) = stmt else { continue };
            for one in it.get(attr::TRANSFERS).into_iter().flatten() {
                if let Stmt::Op(one) = &program.stmts[*one] {
                    listed.insert(handle(one));
                }
            }
        }
        Self { program, unshared, listed, found: Vec::new() }
    }

    /// Collects the insertions in a block and in its nested blocks, in program order.
    fn collect(&mut self, block: BlockId) {
        let program = self.program;
        let mut open: Option<Open> = None;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) if *stmt == self.unshared || self.needs_handle(it) => match &open {
                    Some(insertion) if insertion.keeps(program, it) => {
                        self.found[insertion.at].transfers.push(*stmt);
                    }
                    Some(_) | None => {
                        let (bound, defined) = (FxHashSet::default(), FxHashSet::default());
                        open = Some(Open { at: self.found.len(), bound, defined });
                        self.found.push(Insertion { transfers: vec![*stmt] });
                    }
                },
                Stmt::Op(_) | Stmt::Let(..) => (),
                Stmt::For(_) | Stmt::If(_) => program.inner_blocks(*stmt).for_each(|it| self.collect(it)),
            }
            open.iter_mut().for_each(|it| it.pass(program, *stmt));
        }
    }

    /// Returns whether a statement is a transfer of the CUDA backend that no ShareMemHandles lists.
    fn needs_handle(&self, it: &OpStmt) -> bool {
        it.op == Op::P2PCommunication
            && it.get(attr::BACKEND) == Some(Backend::Cuda)
            && !self.listed.contains(&handle(it))
    }
}

fn handle(it: &OpStmt) -> Handle {
    (it.number, it.get(attr::BUFFER), it.get(attr::PEER))
}

impl Open {
    /// Returns whether the buffer and the peer of a transfer are the same where the statement is inserted.
    fn keeps(&self, program: &Program, transfer: &OpStmt) -> bool {
        let is_bound = transfer.get(attr::BUFFER).is_some_and(|it| self.bound.contains(&it));
        let is_changed = |peer| program.depends_on(peer, &|it| self.defined.contains(&it));
        !is_bound && !transfer.get(attr::PEER).is_some_and(is_changed)
    }

    /// Records what a statement changes.
    fn pass(&mut self, program: &Program, stmt: StmtId) {
        for stmt in program.stmts_at(stmt) {
            match &program.stmts[stmt] {
                Stmt::Op(it) => {
                    let uses = it.tensor_uses(program).into_iter();
                    self.bound.extend(uses.filter(|it| it.1 == AccessMode::Bind).map(|it| it.0));
                }
                Stmt::Let(symbol, _) => _ = self.defined.insert(*symbol),
                Stmt::For(_) | Stmt::If(_) => (),
            }
        }
    }
}
