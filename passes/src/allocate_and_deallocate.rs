//! allocate-and-deallocate: gives results storage before they are written, and drops names after their last use.
//!
//! Before (T0 comes in, T1 goes out):
//! ```text
//! T2 = linear(T0, T3)
//! Communication 4 (type=Allreduce, input=T2, output=T1)
//! Wait(Communication 4)
//! ```
//! After:
//! ```text
//! T2 = ALLOCATE(mem_type=global, zero_init=false)
//! T2 = linear(T0, T3)
//! T1 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 4 (type=Allreduce, input=T2, output=T1)
//! Wait(Communication 4)
//! Deallocate {
//!   T2
//! }
//! ```
//!
//! `allocate=true`: a name that statements write and none binds gets a short ALLOCATE, right before the first statement
//! that has to do with it in the innermost block that holds all of them, outside of loops whose iterations may look at
//! what an earlier one left, and before the fork (GetCurrentStream) of a loop or branch that chooses streams. A copy to a name without storage makes the name a view of the operand; it stays one,
//! unless it has another side of a branch, or stands in a loop that does not drop the name, where the second iteration
//! would write into what the first one named.
//!
//! `deallocate=true`: a name that is neither input nor output is dropped behind the last statement, in the innermost
//! block that holds all of them, that has to do with it, with a view of it, or waits for a communication of either: views
//! before what they are views of, never inside a coalescing bracket, and behind a loop whose iterations share it or its
//! handle. A name
//! that only some paths to that place bind is not dropped, nor is one that the program drops itself.

use grammar::{
    ir::{Attr, BlockId, OpStmt, Operand, Program, Stmt, StmtId, TensorId},
    mentions,
    ops::{Effect, Mode, Op},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    accesses::{before_fork, fills, stale},
    bindings, create,
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass},
    places::Places,
    sharing::may_rearrange,
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "allocate-and-deallocate",
    description: "give results storage before they are written, and drop names after their last use",
    options: &[
        OptionSpec {
            name: "allocate",
            description: "whether results without storage get an ALLOCATE",
            kind: OptionKind::Flag,
            default: Some("true"),
        },
        OptionSpec {
            name: "deallocate",
            description: "whether names get a Deallocate",
            kind: OptionKind::Flag,
            default: Some("true"),
        },
    ],
    run,
};

fn run(program: &mut Program, arguments: &Arguments) -> Result<Change, grammar::diagnostic::Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    if arguments.flag("allocate") {
        changed |= allocate(program, body);
    }
    if arguments.flag("deallocate") {
        changed |= deallocate(program, body);
    }
    Ok(Change::from_flag(changed))
}

/// The depth up from `depth` that is outside of every loop whose iterations may see what another left in `tensor`.
fn outside_stale(
    program: &Program,
    places: &Places,
    tensor: TensorId,
    stmt: StmtId,
    mut depth: usize,
    binds: &dyn Fn(StmtId) -> Vec<TensorId>,
) -> usize {
    while let Some(at) = places.loop_around(stmt, depth)
        && let Some(body) = places.block_at(stmt, at)
        && stale(program, body, binds).contains(&tensor)
    {
        depth = at.saturating_sub(1);
    }
    depth
}

/// Statements to put into a block, each before the statement at an index.
type Insertions = FxHashMap<BlockId, Vec<(usize, StmtId)>>;

fn insert(program: &mut Program, insertions: Insertions) -> bool {
    let changed = !insertions.is_empty();
    for (block, mut new) in insertions {
        // Stable: what goes to one place stays in order.
        new.sort_by_key(|(at, _)| *at);
        let old = std::mem::take(&mut program.blocks[block]);
        let mut new = new.into_iter().peekable();
        let mut stmts = Vec::with_capacity(old.len() + new.len());
        for (at, stmt) in old.into_iter().enumerate() {
            while let Some((_, stmt)) = new.next_if(|(place, _)| *place <= at) {
                stmts.push(stmt);
            }
            stmts.push(stmt);
        }
        stmts.extend(new.map(|(_, stmt)| stmt));
        program.blocks[block] = stmts;
    }
    changed
}

/// The coalescing brackets of a block, as indices of their ends.
#[derive(Default)]
struct Brackets(FxHashMap<BlockId, Vec<(usize, usize)>>);

impl Brackets {
    /// The bracket around a statement.
    fn around(&mut self, program: &Program, block: BlockId, at: usize) -> Option<(usize, usize)> {
        let all = self.0.entry(block).or_insert_with(|| brackets(program, block));
        let next = all.partition_point(|(_, end)| *end < at);
        all.get(next).copied().filter(|(start, _)| *start <= at)
    }
}

fn brackets(program: &Program, block: BlockId) -> Vec<(usize, usize)> {
    let (mut open, mut found) = (None, Vec::new());
    for (at, stmt) in program.block(block).iter().enumerate() {
        if let Stmt::Op(it) = &program.stmts[*stmt]
            && it.op.row().effect == Effect::Group
        {
            match open.take() {
                None => open = Some(at),
                Some(start) => found.push((start, at)),
            }
        }
    }
    found
}

// ---- storage

/// How a container uses names.
struct Uses {
    ports: FxHashSet<TensorId>,
    outputs: FxHashSet<TensorId>,
    /// Statements that write a name.
    writes: FxHashMap<TensorId, Vec<StmtId>>,
    /// Names that statements bind.
    bound: FxHashSet<TensorId>,
    /// Names that statements drop.
    dropped: FxHashSet<TensorId>,
}

impl Uses {
    fn of(program: &Program, places: &Places) -> Self {
        let outputs: FxHashSet<TensorId> = Program::tensors_of(&program.outputs).collect();
        let mut ports = outputs.clone();
        ports.extend(Program::tensors_of(&program.inputs));
        let mut uses = Self {
            ports,
            outputs,
            writes: FxHashMap::default(),
            bound: Program::tensors_of(&program.inputs).collect(),
            dropped: FxHashSet::default(),
        };
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let dropped = it.op.row().effect == Effect::Deallocate;
            mentions(program, it, &mut |tensor, mode| {
                match mode {
                    Mode::Write => uses.writes.entry(tensor).or_default().push(*stmt),
                    Mode::Bind => {
                        uses.bound.insert(tensor);
                    }
                    Mode::Read | Mode::Transfer | Mode::Mention => (),
                }
                if dropped {
                    uses.dropped.insert(tensor);
                }
            });
        }
        uses
    }
}

/// The names that a statement writes, as far as it runs on this rank.
fn written(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let mut written = Vec::new();
    if let Stmt::Op(it) = &program.stmts[stmt] {
        mentions(program, it, &mut |tensor, mode| {
            if mode == Mode::Write {
                written.push(tensor);
            }
        });
    }
    written
}

fn allocate(program: &mut Program, body: BlockId) -> bool {
    let places = Places::of(program, body);
    let uses = Uses::of(program, &places);
    let mut insertions = Insertions::default();
    let mut brackets = Brackets::default();
    let mut done: FxHashSet<TensorId> = uses.bound.clone();
    for stmt in &places.order {
        for tensor in written(program, *stmt) {
            if !done.insert(tensor) || stays_view(program, &places, &uses, tensor) {
                continue;
            }
            let mentioned = &places.uses[&tensor];
            let mut depth = match uses.outputs.contains(&tensor) {
                true => 0,
                false => places.common(mentioned),
            };
            depth = outside_stale(program, &places, tensor, *stmt, depth, &|stmt| fills(program, stmt));
            let place = places.block_at(*stmt, depth).zip(places.span(mentioned, depth));
            let Some((block, (first, _))) = place else { continue };
            let bracket = brackets.around(program, block, first);
            let at = before_fork(program, block, bracket.map_or(first, |(start, _)| start));
            let span = program.stmt_span(*stmt);
            let new = create::allocate(program, tensor);
            let new = create::add(program, new, span);
            insertions.entry(block).or_default().push((at, new));
        }
    }
    insert(program, insertions)
}

/// Whether a name without storage of its own is better a view of what is copied to it, or has to be one.
fn stays_view(program: &Program, places: &Places, uses: &Uses, tensor: TensorId) -> bool {
    let writes = &uses.writes[&tensor];
    let copies = |stmt: &&StmtId| matches!(&program.stmts[**stmt], Stmt::Op(it) if copies(it));
    let Some(copy) = writes.iter().find(copies) else { return false };
    match writes.len() {
        1 => {
            let depth = places.paths[copy].len() - 1;
            places.loop_around(*copy, depth).is_none() || uses.dropped.contains(&tensor)
        }
        // What is written after the copy goes to the operand's storage too, unless only one of the two runs.
        _ => writes.iter().filter(|it| *it != copy).any(|other| {
            let pair = [*copy, *other];
            places.span(&pair, places.common(&pair)).is_some_and(|(first, last)| first != last)
        }),
    }
}

/// Whether a result without storage becomes a view of the operand.
fn copies(it: &OpStmt) -> bool {
    let row = it.op.row();
    row.effect == Effect::Compute && !it.args.is_empty() && may_rearrange(row.rule)
}

// ---- dropping

fn deallocate(program: &mut Program, body: BlockId) -> bool {
    let places = Places::of(program, body);
    let uses = Uses::of(program, &places);
    let views = Views::of(program, &places, &uses);
    let mut wanted: Vec<(usize, TensorId, BlockId, usize)> = Vec::new();
    let mut queries: FxHashMap<StmtId, Vec<TensorId>> = FxHashMap::default();
    let mut brackets = Brackets::default();
    let names = places.uses.keys().copied();
    let is_ours = |it: &TensorId| {
        !uses.ports.contains(it)
            && !uses.dropped.contains(it)
            && (uses.bound.contains(it) || uses.writes.contains_key(it))
    };
    for tensor in names.filter(is_ours) {
        let (count, stmts) = views.last_uses(&places, tensor);
        let Some(first) = stmts.first().copied() else { continue };
        let depth = places.common(&stmts);
        let binds = |stmt| fresh(program, stmt);
        let mut depth = outside_stale(program, &places, tensor, first, depth, &binds);
        if keeps_handle(program, &places, tensor, &stmts) {
            while let Some(at) = places.loop_around(first, depth) {
                depth = at.saturating_sub(1);
            }
        }
        let place = places.block_at(first, depth).zip(places.span(&stmts, depth));
        let Some((block, (_, last))) = place else { continue };
        let bracket = brackets.around(program, block, last);
        let last = bracket.map_or(last, |(_, end)| end);
        queries.entry(program.block(block)[last]).or_default().push(tensor);
        wanted.push((count, tensor, block, last));
    }
    let certain = bindings::bound_after(program, &queries);
    wanted.retain(|(_, tensor, block, last)| certain.contains(&(program.block(*block)[*last], *tensor)));
    // Views before what they are views of; numbers for a fixed order.
    wanted.sort_by_key(|(count, tensor, ..)| (*count, program.tensors[*tensor].number, *tensor));
    let mut insertions = Insertions::default();
    for (_, tensor, block, last) in wanted {
        let span = program.stmt_span(program.block(block)[last]);
        let new = OpStmt { args: vec![Operand::Tensor(tensor)], ..create::op(Op::Deallocate) };
        let new = create::add(program, new, span);
        insertions.entry(block).or_default().push((last + 1, new));
    }
    insert(program, insertions)
}

/// Whether a long ALLOCATE keeps the storage from one iteration to the next, and its handle with it: dropped in between, it
/// would be other storage, whose handle the peers do not expect.
fn keeps_handle(program: &Program, places: &Places, tensor: TensorId, stmts: &[StmtId]) -> bool {
    let is = |stmt: &StmtId, what: &dyn Fn(&OpStmt) -> bool| match &program.stmts[*stmt] {
        Stmt::Op(it) => what(it),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    let allocated = |it: &OpStmt| it.op == Op::AllocateOnce && it.out_tensor() == Some(tensor);
    let shared = |it: &OpStmt| it.op.row().effect == Effect::Share;
    places.uses.get(&tensor).into_iter().flatten().any(|stmt| is(stmt, &allocated))
        && stmts.iter().any(|stmt| is(stmt, &shared))
}

/// The names that a statement binds, or binds or writes as a whole, without a look at what they were.
fn fresh(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    if it.op == Op::AllocateOnce {
        return Vec::new();
    }
    let mut fresh = fills(program, stmt);
    if matches!(it.op.row().effect, Effect::View | Effect::Allocate) {
        fresh.extend(it.out_tensor());
    }
    fresh
}

/// What keeps a name's storage in use besides the name.
struct Views {
    /// Names that are views of a name.
    of: FxHashMap<TensorId, Vec<TensorId>>,
    /// Waits for what uses a name.
    waits: FxHashMap<TensorId, Vec<StmtId>>,
}

impl Views {
    fn of(program: &Program, places: &Places, uses: &Uses) -> Self {
        let mut of: FxHashMap<TensorId, Vec<TensorId>> = FxHashMap::default();
        let mut posted: FxHashMap<u32, Vec<TensorId>> = FxHashMap::default();
        let mut bracket: Vec<TensorId> = Vec::new();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let mut used = Vec::new();
            mentions(program, it, &mut |tensor, _| used.push(tensor));
            let effect = it.op.row().effect;
            let unbound =
                |out: TensorId| effect == Effect::Compute && !uses.bound.contains(&out) && copies(it);
            match (effect, it.out_tensor()) {
                (Effect::View | Effect::Allocate | Effect::Compute, Some(out))
                    if effect != Effect::Compute || unbound(out) =>
                {
                    for base in used.iter().filter(|base| **base != out) {
                        of.entry(*base).or_default().push(out);
                    }
                }
                (Effect::Communicate, _) => {
                    bracket.extend(&used);
                    if let Some(number) = it.number {
                        posted.entry(number).or_default().extend(used);
                    }
                }
                (Effect::Group, _) => {
                    let sides = std::mem::take(&mut bracket);
                    if let Some(number) = it.number {
                        posted.entry(number).or_default().extend(sides);
                    }
                }
                (
                    Effect::View
                    | Effect::Allocate
                    | Effect::Compute
                    | Effect::Map
                    | Effect::Deallocate
                    | Effect::Wait
                    | Effect::Stream
                    | Effect::Share
                    | Effect::Unit
                    | Effect::Opaque,
                    _,
                ) => (),
            }
        }
        let mut waits: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            if let (Effect::Wait, Some(Attr::Work(number))) = (it.op.row().effect, it.attr("work")) {
                for tensor in posted.get(number).into_iter().flatten() {
                    waits.entry(*tensor).or_default().push(*stmt);
                }
            }
        }
        Self { of, waits }
    }

    /// Statements after which a name's storage is not in use any more, and how many views it has.
    fn last_uses(&self, places: &Places, tensor: TensorId) -> (usize, Vec<StmtId>) {
        let mut names = vec![tensor];
        let mut at = 0;
        while let Some(name) = names.get(at).copied() {
            at += 1;
            for view in self.of.get(&name).into_iter().flatten() {
                if !names.contains(view) {
                    names.push(*view);
                }
            }
        }
        let mut stmts: Vec<StmtId> = Vec::new();
        for name in &names {
            stmts.extend(places.uses.get(name).into_iter().flatten());
            stmts.extend(self.waits.get(name).into_iter().flatten());
        }
        (names.len(), stmts)
    }
}
