//! The operand of an inserted `Synchronize`: the text names a stream by an expression of the loop indices if
//! each iteration uses another stream.

use grammar::{
    ir::{BlockId, ExprId, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
    stream_text,
};

/// Returns how a `Synchronize` before `insertion` (`None`: after the last statement) names the stream that
/// executes `stmt`: by the operand of the SetCurrentStream that makes it current if this operand has the same
/// value there, otherwise by `index`.
pub fn stream_operand(
    program: &Program,
    index: i64,
    stmt: Option<StmtId>,
    insertion: Option<StmtId>,
) -> String {
    stmt.and_then(|it| symbolic_operand(program, it, insertion)).unwrap_or_else(|| index.to_string())
}

fn symbolic_operand(program: &Program, stmt: StmtId, insertion: Option<StmtId>) -> Option<String> {
    let set = stream_setter(program, stmt)?;
    let Stmt::Op(it) = &program.stmts[set] else { return None };
    let [Operand::Stream(stream)] = it.args.as_slice() else { return None };
    let Stream::Index(operand) = program.streams[*stream] else { return None };
    if depends_on_local_scalar(program, operand) {
        return None;
    }
    let loops: Vec<BlockId> = enclosing_loops(program, set, operand);
    if !loops.is_empty() {
        // The same SetCurrentStream also makes the waiting stream current: iterations wait for each other.
        let insertion = insertion.filter(|it| stream_setter(program, *it) != Some(set))?;
        let is_inside = |body: &BlockId| contains(program, *body, insertion);
        if !loops.iter().all(is_inside) {
            return None;
        }
    }
    stream_text(program, *stream).strip_prefix("Stream ").map(str::to_owned)
}

/// Returns the bodies of the loops around `stmt` on whose index `operand` depends.
fn enclosing_loops(program: &Program, stmt: StmtId, operand: ExprId) -> Vec<BlockId> {
    let mut found = Vec::new();
    for (_, it) in program.stmts.iter() {
        if let Stmt::For(it) = it
            && program.depends_on(operand, &|symbol| symbol == it.index)
            && contains(program, it.body, stmt)
        {
            found.push(it.body);
        }
    }
    found
}

/// Returns true if `operand` uses a scalar that a statement defines.
fn depends_on_local_scalar(program: &Program, operand: ExprId) -> bool {
    program.stmts.iter().any(|(_, it)| match it {
        Stmt::Let(symbol, _) => program.depends_on(operand, &|it| it == *symbol),
        Stmt::Op(_) | Stmt::For(_) | Stmt::If(_) => false,
    })
}

/// Returns the SetCurrentStream that makes the stream of `stmt` current, if it is the same one on all paths.
fn stream_setter(program: &Program, stmt: StmtId) -> Option<StmtId> {
    let mut stmt = stmt;
    loop {
        let block = program.blocks.ids().find(|it| program.block(*it).contains(&stmt))?;
        let stmts = program.block(block);
        let at = stmts.iter().position(|it| *it == stmt)?;
        let last = stmts[..at].iter().rev().find(|it| sets_stream(program, **it));
        if let Some(last) = last {
            return is_setter(program, *last).then_some(*last);
        }
        let (parent, is_loop) = program.stmts.iter().find_map(|(id, it)| match it {
            Stmt::For(it) => (it.body == block).then_some((id, true)),
            Stmt::If(it) => (it.then_block == block || it.else_block == Some(block)).then_some((id, false)),
            Stmt::Op(_) | Stmt::Let(..) => None,
        })?;
        // A later statement of the body sets the stream of the next iteration.
        if is_loop && stmts.iter().any(|it| sets_stream(program, *it)) {
            return None;
        }
        stmt = parent;
    }
}

fn is_setter(program: &Program, stmt: StmtId) -> bool {
    matches!(&program.stmts[stmt], Stmt::Op(it) if it.op == Op::SetCurrentStream)
}

/// Returns true if `stmt`, or a statement in it, is a SetCurrentStream.
fn sets_stream(program: &Program, stmt: StmtId) -> bool {
    let blocks: Vec<BlockId> = match &program.stmts[stmt] {
        Stmt::Op(_) | Stmt::Let(..) => Vec::new(),
        Stmt::For(it) => vec![it.body],
        Stmt::If(it) => [it.then_block].into_iter().chain(it.else_block).collect(),
    };
    let is_set = |block: &BlockId| {
        let mut sets = false;
        program.walk(*block, &mut |it| sets |= is_setter(program, it));
        sets
    };
    is_setter(program, stmt) || blocks.iter().any(is_set)
}

fn contains(program: &Program, block: BlockId, stmt: StmtId) -> bool {
    let mut is_inside = false;
    program.walk(block, &mut |it| is_inside |= it == stmt);
    is_inside
}
