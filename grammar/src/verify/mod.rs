//! Verifies programs from any source and reports all errors.
//!
//! The verifier checks that:
//! * tensors are defined before they are read, and are not read after Deallocate (`check_read`);
//! * named streams are captured before they are used (`check_streams`);
//! * a Wait names work that is posted before it (`op`);
//! * coalescing groups are paired and contain only P2PCommunications (`check_coalescing`);
//! * predicates are boolean (`check_predicate`);
//! * nothing but values of tensors depends on how often a loop with a condition runs (`loop_body`);
//! * no statement gives a value to a predefined name (`check_bound_name`);
//! * teams are sets of ranks, and a root is given and in the team if the type requires one (`check_team`);
//! * a tensor has each device and stream axis at most once, with the extents of the mesh (`check_sharding`);
//! * the results of a statement are different tensors (`check_results`);
//! * ranks, constant extents and element types satisfy the operator's type rule (`rules::check`).
//!
//! Properties that depend on the rank or on symbols are not checked here: whether peers are in range,
//! symbolic extents, and which ranks reach a collective. The planner and the simulator check those.
//!
//! Guarantee: a program without errors can be planned without checking for any of the errors above again.

mod communication;
mod conditions;
mod definitions;
mod inferred_domains;
mod streams;
mod tensors;

use std::{cell::OnceCell, collections::BTreeSet};

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use communication::{OpenGroup, Posts};
use inferred_domains::inferred_domain_notes;

use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{
        BlockId, Expr, ExprId, Function, OpStmt, PrefixOp, Program, Stmt, StmtId, SymbolId, TensorId, UnitId,
        predefined_meaning,
    },
    ops::{AccessMode, Op, OpClass},
    rules::check::check,
    span::Span,
    tensor_uses::tensors_in_text_order,
    text::expr_text,
};

/// Returns all errors and warnings of a program, in the order of its text.
pub fn verify(program: &Program) -> Vec<Diagnostic> {
    let mut verifier = Verifier {
        program,
        faulty: HashSet::default(),
        mistyped: HashSet::default(),
        defined: Program::tensors_of(&program.inputs).collect(),
        deallocated: HashMap::default(),
        left: HashMap::default(),
        conditions: HashSet::default(),
        captured: HashSet::default(),
        captured_names: Vec::new(),
        posted: BTreeSet::new(),
        posts: OnceCell::new(),
        never_posted: HashSet::default(),
        open_coalescing: None,
        defined_elsewhere: HashSet::default(),
        diagnostics: Vec::new(),
    };
    verifier.defined_elsewhere = verifier.inputs_defined_elsewhere();
    for tensor in program.tensors.ids() {
        verifier.check_sharding(tensor);
    }
    let mentioned = tensors_in_text_order(program);
    verifier.check_unique_names(&mentioned);
    verifier.check_expanded_axes(&mentioned);
    verifier.check_transforms(&mentioned);
    program.definitions.keys().for_each(|it| verifier.check_bound_name(*it, program.symbol_span(*it)));
    program.body.iter().for_each(|body| verifier.block(*body));
    for unit in program.units.ids() {
        verifier.unit(unit);
    }
    verifier.diagnostics.sort_by_key(Diagnostic::span);
    verifier.diagnostics
}

struct Verifier<'p> {
    program: &'p Program,
    /// Tensors whose text has an error. What follows from it in statements is not reported.
    faulty: HashSet<TensorId>,
    /// Results of statements that violate their type rule. The types of their uses are not checked.
    mistyped: HashSet<TensorId>,
    defined: HashSet<TensorId>,
    /// The statements that released names.
    deallocated: HashMap<TensorId, Span>,
    /// The tensors that only the bodies of loops with conditions define, and the headers of these loops.
    left: HashMap<TensorId, Span>,
    /// The statements that are the condition of the loop around them.
    conditions: HashSet<StmtId>,
    captured: HashSet<u32>,
    /// The names of the captured streams in the text.
    captured_names: Vec<String>,
    posted: BTreeSet<u32>,
    /// All statements that post a communication, once a report needs them.
    posts: OnceCell<Posts>,
    /// The numbers of Waits that are reported because nothing posts them.
    never_posted: HashSet<u32>,
    /// The group of transfers that is open.
    open_coalescing: Option<OpenGroup>,
    /// Inputs of communications that only other ranks' programs define.
    defined_elsewhere: HashSet<TensorId>,
    diagnostics: Vec<Diagnostic>,
}

impl Verifier<'_> {
    fn block(&mut self, block: BlockId) {
        let outer = self.open_coalescing.take();
        for stmt in self.program.block(block) {
            let span = self.program.stmt_span(*stmt);
            match &self.program.stmts[*stmt] {
                Stmt::Op(it) => {
                    self.check_coalescing(*stmt, it, span);
                    self.op(*stmt, it, span);
                }
                Stmt::Let(symbol, _) => self.check_bound_name(*symbol, span),
                Stmt::For(it) => {
                    self.check_bound_name(it.index, span);
                    self.loop_body(it, span);
                }
                Stmt::If(it) => {
                    self.check_predicate(it.cond, span);
                    self.block(it.then_block);
                    it.else_block.iter().for_each(|other| self.block(*other));
                }
            }
        }
        self.end_of_block();
        self.open_coalescing = outer;
    }

    /// Checks that a loop or an assignment does not give another meaning to a name that has one in every program.
    fn check_bound_name(&mut self, symbol: SymbolId, span: Span) {
        let name = self.program.symbols[symbol].as_str();
        let Some(meaning) = predefined_meaning(name) else { return };
        let message = format!("`{name}` cannot be given a value: it is {meaning}");
        let it = Diagnostic::new(Code::DefinedTwice, span, message, format!("gives `{name}` a value"));
        self.diagnostics.push(it.help("use another name for this scalar, such as `i0`"));
    }

    /// Checks that the operator has these attributes. The parser guarantees this; passes may violate it.
    fn check_attributes(&mut self, stmt: &OpStmt, span: Span) {
        let row = stmt.op.def();
        for (name, attr) in &stmt.attrs {
            if !row.takes(*name, attr) {
                let message = format!("`{}` has no attribute `{name}` of this kind", row.mnemonic);
                self.error(Code::BadAttribute, span, message, "expected an attribute of the operator");
            }
        }
    }

    fn op(&mut self, id: StmtId, stmt: &OpStmt, span: Span) {
        self.check_attributes(stmt, span);
        self.check_streams(id, stmt);
        let effect = stmt.op.def().class;
        if effect == OpClass::Condition {
            self.check_condition(id, span);
        }
        let mut written = Vec::new();
        let mut read = Vec::new();
        for (tensor, mode) in stmt.tensor_uses(self.program) {
            match mode {
                AccessMode::Read | AccessMode::Transfer => read.push(tensor),
                AccessMode::Write | AccessMode::Bind => written.push(tensor),
                AccessMode::NoAccess if effect == OpClass::View || effect == OpClass::ShareHandles => {
                    read.push(tensor)
                }
                AccessMode::NoAccess => (),
            }
        }
        read.retain(|tensor| !self.defined_elsewhere.contains(tensor));
        for tensor in read {
            self.check_read(tensor, id);
        }
        if stmt.op == Op::AllocateOnce {
            self.check_redundant_allocate(&written, span);
        }
        if let (OpClass::Allocate, Some(buffer), Some(out)) =
            (effect, stmt.get(attr::BUFFER), stmt.out_tensor())
            && buffer != out
        {
            let [buffer, out] = [buffer, out].map(|it| self.program.tensor_name(it));
            let message = format!("this allocates `{out}`, but its `buffer=` is `{buffer}`");
            let it = Diagnostic::new(Code::BadOperands, span, message, "the two have to be the same tensor");
            self.diagnostics.push(
                it.help(format!("write `buffer={out}`; `alias=` names a tensor whose storage is shared")),
            );
        }
        let is_result_repeated = self.check_results(stmt, span);
        if effect == OpClass::Deallocate {
            for tensor in Program::tensors_of(&stmt.args) {
                self.check_read(tensor, id);
                self.defined.remove(&tensor);
                self.deallocated.insert(tensor, span);
            }
        }
        for tensor in written {
            self.defined.insert(tensor);
            self.deallocated.remove(&tensor);
        }
        if let (OpClass::Wait, Some(number)) = (effect, stmt.get(attr::WORK))
            && !self.posted.contains(&number)
            && self.never_posted.insert(number)
        {
            self.unknown_work(number, id);
        }
        if effect == OpClass::Communicate || stmt.op == Op::EndCoalescing {
            self.posted.extend(stmt.number);
        }
        if let Some(listed) = stmt.get(attr::TRANSFERS) {
            self.check_shared_transfers(listed);
        }
        self.check_team(stmt, id);
        let mut tensors = Program::tensors_of(&stmt.outs).chain(stmt.tensor_operands());
        if !is_result_repeated && !tensors.any(|it| self.faulty.contains(&it) || self.mistyped.contains(&it))
        {
            let first = self.diagnostics.len();
            let found = check(self.program, stmt, id, &mut self.diagnostics);
            if self.program.spans.are_domains_inferred {
                for error in self.diagnostics[first..].iter_mut().filter(|it| it.is_error()) {
                    error.notes.extend(inferred_domain_notes(self.program, stmt));
                }
            }
            self.faulty.extend(found.cause);
            if found.is_wrong {
                self.mistyped.extend(Program::tensors_of(&stmt.outs));
            }
        }
    }

    /// Checks that the results of a statement are different tensors. Returns whether one occurs twice.
    fn check_results(&mut self, stmt: &OpStmt, span: Span) -> bool {
        let listed = stmt.get(attr::OUTPUTS).unwrap_or_default();
        let mut seen = HashSet::default();
        let mut results = Program::tensors_of(&stmt.outs).chain(Program::tensors_of(listed));
        let Some(twice) = results.find(|it| !seen.insert(*it)) else { return false };
        let name = self.program.tensor_name(twice);
        let message = format!("`{name}` occurs twice among the results of this statement");
        let it = Diagnostic::new(Code::BadOperands, span, message, "each result needs a tensor of its own");
        self.diagnostics.push(it.help(format!("write another tensor in place of the second `{name}`")));
        true
    }

    fn check_predicate(&mut self, cond: ExprId, span: Span) {
        let boolean = match &self.program.exprs[cond] {
            Expr::Bool(_) | Expr::Symbol(_) => true,
            Expr::Prefix(op, _) => *op == PrefixOp::Not,
            Expr::Infix(op, ..) => op.is_boolean() || op.is_bitwise(),
            Expr::Call(function, _) => *function == Function::Op(Op::Where),
            Expr::Int(_) | Expr::Float(..) => false,
        };
        if !boolean {
            let message = format!("`{}` is not a boolean", expr_text(self.program, cond));
            self.error(Code::BadPredicate, span, message, "expected a comparison");
        }
    }

    fn unit(&mut self, unit: UnitId) {
        let it = &self.program.units[unit];
        self.defined = Program::tensors_of(&it.inputs).collect();
        if let Some(body) = it.body {
            self.block(body);
        }
    }

    fn error(&mut self, code: Code, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(code, span, message, label));
    }
}
