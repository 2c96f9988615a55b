//! Computes what one iteration of a loop does to names and to posted communications.

use grammar::{BlockId, ExprId, Op, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, attr};
use rustc_hash::FxHashSet;

/// The first use of a name in an iteration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FirstUse {
    /// There is no use on some path.
    Nothing,
    /// The iteration binds the name, regardless of what it was bound to.
    Binds,
    /// The use depends on what the name is bound to.
    Uses,
}

/// Returns how an iteration with the body `block` first uses a name.
pub fn first_use(program: &Program, block: BlockId, tensor: TensorId) -> FirstUse {
    for stmt in program.block(block) {
        let first = match &program.stmts[*stmt] {
            Stmt::Op(it) => first_use_in_op(program, it, tensor),
            Stmt::Let(..) => FirstUse::Nothing,
            // The inner loop may not execute at all.
            Stmt::For(it) => match first_use(program, it.body, tensor) {
                FirstUse::Uses => FirstUse::Uses,
                FirstUse::Nothing | FirstUse::Binds => FirstUse::Nothing,
            },
            Stmt::If(it) => {
                let other =
                    it.else_block.map_or(FirstUse::Nothing, |other| first_use(program, other, tensor));
                match (first_use(program, it.then_block, tensor), other) {
                    (FirstUse::Uses, _) | (_, FirstUse::Uses) => FirstUse::Uses,
                    (FirstUse::Binds, FirstUse::Binds) => FirstUse::Binds,
                    (FirstUse::Nothing, _) | (_, FirstUse::Nothing) => FirstUse::Nothing,
                }
            }
        };
        if first != FirstUse::Nothing {
            return first;
        }
    }
    FirstUse::Nothing
}

fn first_use_in_op(program: &Program, it: &OpStmt, tensor: TensorId) -> FirstUse {
    let named = it.mentions(program).any(|it| it == tensor);
    let effect = it.op.def().class;
    let mesh = |id: TensorId| &program.tensors[id].mesh;
    let mut args = Program::tensors_of(&it.args);
    match (named, it.out_tensor() == Some(tensor)) {
        (false, _) => FirstUse::Nothing,
        (true, true) if it.op == Op::Allocate => FirstUse::Binds,
        // A rank that does not hold the operand does not bind the view.
        (true, true)
            if effect == OpClass::View && args.all(|arg| arg != tensor && mesh(arg) == mesh(tensor)) =>
        {
            FirstUse::Binds
        }
        (true, _) => FirstUse::Uses,
    }
}

/// Returns true if every iteration binds the name and leaves it bound, on every rank that holds it.
pub fn is_bound_after_iteration(program: &Program, body: BlockId, tensor: TensorId) -> bool {
    let drops = |(_, it): (StmtId, &OpStmt)| {
        it.op.def().class == OpClass::Deallocate && Program::tensors_of(&it.args).any(|it| it == tensor)
    };
    let binds = |it: &OpStmt| {
        let class = it.op.def().class;
        it.out_tensor() == Some(tensor)
            && matches!(class, OpClass::Compute | OpClass::Elementwise | OpClass::Allocate)
    };
    !program.ops_in(body).any(drops)
        && program.block(body).iter().any(|it| program.op(*it).is_some_and(binds))
}

/// Returns true if the name is unbound behind the statements of the block, provided that it is before them: each block
/// that mentions it deallocates it last.
pub fn is_unbound_after(program: &Program, block: BlockId, tensor: TensorId) -> bool {
    let mentions =
        |stmt: &&StmtId| program.ops_at(**stmt).any(|(_, it)| it.mentions(program).any(|it| it == tensor));
    let stmts = program.block(block);
    let Some(last) = stmts.iter().rev().find(mentions) else { return true };
    match &program.stmts[*last] {
        Stmt::Op(it) => it.op.def().class == OpClass::Deallocate,
        Stmt::For(_) | Stmt::If(_) => {
            stmts.iter().filter(mentions).count() == 1
                && program.inner_blocks(*last).all(|inner| is_unbound_after(program, inner, tensor))
        }
        Stmt::Let(..) => false,
    }
}

/// Returns the numbers of communications that an iteration posts before it waits for them, on every path with
/// such a wait.
pub fn iteration_local_works(program: &Program, body: BlockId) -> Vec<u32> {
    let mut walk = WorkPaths { program, path: Vec::new(), posts: Vec::new(), foreign: FxHashSet::default() };
    walk.block(body);
    let WorkPaths { posts, foreign, .. } = walk;
    let mut own: Vec<u32> =
        posts.into_iter().map(|(number, _)| number).filter(|it| !foreign.contains(it)).collect();
    own.sort_unstable();
    own.dedup();
    own
}

/// Conditions around a statement inside a loop's body: predicates with the side taken, and bounds of loops.
type ControlPath = Vec<(ExprId, bool)>;

/// Traversal of a body that records posts and waits.
struct WorkPaths<'p> {
    program: &'p Program,
    path: ControlPath,
    posts: Vec<(u32, ControlPath)>,
    /// Numbers of communications that are waited for where a post is not certain.
    foreign: FxHashSet<u32>,
}

impl WorkPaths<'_> {
    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(it),
                // A predicate that holds here may not have held before.
                Stmt::Let(..) => self.foreign.extend(self.posts.iter().map(|(number, _)| *number)),
                Stmt::For(it) => {
                    self.under((it.start, true), it.stop, it.body);
                }
                Stmt::If(it) => {
                    self.under((it.cond, true), it.cond, it.then_block);
                    it.else_block.iter().for_each(|other| self.under((it.cond, false), it.cond, *other));
                }
            }
        }
    }

    fn under(&mut self, first: (ExprId, bool), second: ExprId, block: BlockId) {
        self.path.extend([first, (second, first.1)]);
        self.block(block);
        self.path.truncate(self.path.len() - 2);
    }

    fn op(&mut self, it: &OpStmt) {
        for (number, awaits) in work_numbers(self.program, it) {
            let posted = |(post, under): &(u32, ControlPath)| *post == number && self.path.starts_with(under);
            if !awaits {
                self.posts.push((number, self.path.clone()));
            } else if !self.posts.iter().any(posted) {
                self.foreign.insert(number);
            }
        }
    }
}

/// Returns the numbers of communications that a statement names. The flag is true if the statement only waits
/// for the communication.
pub fn work_numbers(program: &Program, it: &OpStmt) -> Vec<(u32, bool)> {
    let mut found: Vec<(u32, bool)> = it.number.map(|number| (number, false)).into_iter().collect();
    found.extend(it.get(attr::WORK).map(|number| (number, true)));
    let transfers = it.get(attr::TRANSFERS).into_iter().flatten().filter_map(|it| program.op(*it));
    found.extend(transfers.flat_map(|it| work_numbers(program, it)));
    found
}
