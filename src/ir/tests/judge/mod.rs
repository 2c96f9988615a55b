//! Compares the facts of a program with its plans: follows each rank, and looks up the stream at each point that it comes to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use grammar::{
    codes::Code,
    ir::{BlockId, ExprId, OpStmt, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
    source::Source,
};
use hir_ir::streams::{StreamFacts, StreamValue, stream_set_by};
use hir_plan::{
    Inst, InstKind, Plan, PlanStream, StreamNo, build,
    scalar::{Scalars, Value},
};

/// Nothing, or what is wrong.
pub type Checked = Result<(), String>;

/// What was compared.
#[derive(Default, Debug)]
pub struct Tally {
    /// The number of comparisons with plans, by the kind of the claim.
    pub claims: BTreeMap<&'static str, usize>,
    /// The number of programs that have plans.
    pub planned: usize,
    /// Those that use a name that is captured in loops or branches only.
    pub nested: usize,
}

/// What is claimed of a stream: its value, and the index that the value has at this point.
#[derive(Clone, Copy)]
struct Claim {
    line: u32,
    value: StreamValue,
    index: Option<i64>,
}

/// What happens on a rank.
enum Event {
    /// It comes to a statement or to the end of a block. The claim is about the current stream, and who has made it current.
    Point(Claim, Option<StmtId>),
    /// It executes a SetCurrentStream.
    Set(StmtId),
    /// A stream is named: its number, or that of the current stream.
    Operand(Claim, Option<StreamNo>),
    /// It executes a scalar definition, begins an iteration of a loop, or ends a loop or a branch.
    Renewed(StmtId),
}

/// Follows a rank: its scalars, branches and loops. The streams are those of the plan.
struct Rank<'a> {
    program: &'a Program,
    source: &'a Source,
    facts: &'a StreamFacts,
    /// By statement and iteration: the instructions. Those that the rank has come to are removed.
    code: BTreeMap<(StmtId, Option<u32>), Vec<&'a Inst>>,
    scalars: Scalars<'a>,
    iterations: u32,
    iteration: Option<u32>,
    events: Vec<Event>,
    /// The current stream at the beginning and behind each SetCurrentStream; `None` if no instruction shows it.
    current: Vec<Option<StreamNo>>,
}

impl Rank<'_> {
    fn int(&self, expr: ExprId) -> Result<i64, String> {
        self.scalars.int(expr).map_err(|fault| format!("{fault:?}"))
    }

    fn claim(&self, stmt: Option<StmtId>, value: Option<StreamValue>) -> Result<Claim, String> {
        let line = stmt.map_or(0, |it| self.source.lines.line(self.program.stmt_span(it).start));
        let value = value.ok_or_else(|| format!("line {line}: there is no value"))?;
        let index = if let StreamValue::Index(it) = value { self.scalars.int(it).ok() } else { None };
        Ok(Claim { line, value, index })
    }

    fn block(&mut self, block: BlockId) -> Checked {
        let (program, facts) = (self.program, self.facts);
        for stmt in program.block(block) {
            let claim = self.claim(Some(*stmt), facts.current(*stmt))?;
            self.events.push(Event::Point(claim, facts.setter(*stmt)));
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(*stmt, it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.int(*value)?;
                    self.scalars.bind(*symbol, Some(Value::Int(value)));
                    self.events.push(Event::Renewed(*stmt));
                }
                Stmt::For(it) => {
                    let (start, stop) = (self.int(it.start)?, self.int(it.stop)?);
                    let (iteration, value) = (self.iteration, self.scalars.bind(it.index, None));
                    for value in start..stop {
                        self.iteration = Some(self.iterations);
                        self.iterations += 1;
                        self.scalars.bind(it.index, Some(Value::Int(value)));
                        self.events.push(Event::Renewed(*stmt));
                        self.block(it.body)?;
                    }
                    self.iteration = iteration;
                    self.scalars.bind(it.index, value);
                    self.events.push(Event::Renewed(*stmt));
                }
                Stmt::If(it) => {
                    let taken = self.scalars.truth(it.cond).map_err(|fault| format!("{fault:?}"))?;
                    let taken = if taken { Some(it.then_block) } else { it.else_block };
                    taken.map_or(Ok(()), |it| self.block(it))?;
                    self.events.push(Event::Renewed(*stmt));
                }
            }
        }
        let claim = self.claim(program.block(block).last().copied(), facts.current_behind(block))?;
        self.events.push(Event::Point(claim, facts.setter_behind(block)));
        Ok(())
    }

    fn op(&mut self, stmt: StmtId, it: &OpStmt) -> Checked {
        let code = self.code.remove(&(stmt, self.iteration)).unwrap_or_default();
        let mut other = None;
        for inst in &code {
            match inst.kind {
                InstKind::RecordEvent { .. } => other = Some(inst.stream),
                _ => {
                    let known = self.current.last_mut().map(|it| *it.get_or_insert(inst.stream));
                    assert_eq!(known, Some(inst.stream), "the test expects another current stream");
                }
            }
        }
        let Some(Operand::Stream(stream)) = it.args.first() else { return Ok(()) };
        let claim = self.claim(Some(stmt), self.facts.operand(stmt))?;
        if it.op == Op::SetCurrentStream {
            self.current.push(None);
            self.events.push(Event::Set(stmt));
        }
        self.events.push(Event::Operand(claim, other));
        if let Stream::Named(name) = self.program.streams[*stream] {
            let claim = Claim { value: StreamValue::Captured(name), ..claim };
            self.events.push(Event::Operand(claim, other));
        }
        Ok(())
    }
}

/// Compares claims about the streams of a rank with those of its plan.
struct Judge<'a> {
    program: &'a Program,
    plan: &'a Plan,
    tally: &'a mut Tally,
    /// What each value denotes until it is renewed.
    known: HashMap<StreamValue, StreamNo>,
    /// All that each value has denoted.
    all: Vec<(StreamValue, StreamNo)>,
}

impl Judge<'_> {
    fn claim(&mut self, claim: Claim, stream: Option<StreamNo>) -> Checked {
        let Some(stream) = stream else { return Ok(()) };
        let Claim { line, value, index } = claim;
        let actual = &self.plan.streams[stream as usize];
        let (kind, holds) = match value {
            StreamValue::Entry => ("entry", *actual == PlanStream::Entry),
            StreamValue::Index(_) => ("index", index.map(PlanStream::Indexed).as_ref() == Some(actual)),
            StreamValue::Captured(_) => ("captured", true),
            StreamValue::Joined(_) => ("joined", true),
        };
        *self.tally.claims.entry(kind).or_default() += 1;
        let text = format_args!("rank {}, line {line}: {actual} is said to be {value:?}", self.plan.rank);
        if !holds {
            return Err(format!("{text}, index {index:?}"));
        }
        let known = *self.known.entry(value).or_insert(stream);
        if known != stream {
            return Err(format!("{text}, as {} was before", self.plan.streams[known as usize]));
        }
        if !self.all.contains(&(value, stream)) {
            self.all.push((value, stream));
            let may_be = |a: StreamValue, b| a.may_be(self.program, b) && b.may_be(self.program, a);
            let is_exact = |it: StreamValue| match it {
                StreamValue::Entry => true,
                StreamValue::Index(index) => self.program.constant(index).is_some(),
                StreamValue::Captured(_) | StreamValue::Joined(_) => false,
            };
            for (other, own) in &self.all {
                let is_wrong = if *own == stream {
                    !may_be(value, *other)
                } else {
                    is_exact(value) && is_exact(*other) && may_be(value, *other)
                };
                if is_wrong {
                    return Err(format!("{text}; may {other:?} be it?"));
                }
            }
        }
        Ok(())
    }
}

/// Compares the facts at each point that a rank comes to with its plan.
fn judge_rank(
    (program, source, facts): (&Program, &Source, &StreamFacts),
    plan: &Plan,
    tally: &mut Tally,
) -> Checked {
    let mut code: BTreeMap<_, Vec<&Inst>> = BTreeMap::new();
    for inst in &plan.code {
        let origin = plan.origins[inst.origin as usize];
        if let Some(stmt) = origin.stmt {
            code.entry((stmt, origin.iteration)).or_default().push(inst);
        }
    }
    let (scalars, events, current) = (Scalars::new(program, plan.rank), Vec::new(), vec![None]);
    let mut rank =
        Rank { program, source, facts, code, scalars, iterations: 0, iteration: None, events, current };
    program.body.map_or(Ok(()), |it| rank.block(it))?;
    assert!(rank.code.is_empty(), "the plan has instructions that the test does not expect");
    let mut judge = Judge { program, plan, tally, known: HashMap::new(), all: Vec::new() };
    // The number of SetCurrentStreams that the rank has executed, and by statement: which of them was its last.
    let (mut set, mut last) = (0, HashMap::new());
    for event in rank.events {
        match event {
            Event::Point(claim, setter) => {
                judge.claim(claim, rank.current[set])?;
                let Some(setter) = setter else { continue };
                let made = last.get(&setter).map(|it| rank.current[*it]);
                let is_other =
                    |made: Option<StreamNo>| made.zip(rank.current[set]).is_some_and(|(a, b)| a != b);
                if made.is_none_or(is_other) {
                    return Err(format!(
                        "rank {}, line {}: another statement sets it",
                        plan.rank, claim.line
                    ));
                }
                *judge.tally.claims.entry("setter").or_default() += 1;
            }
            Event::Set(stmt) => {
                set += 1;
                last.insert(stmt, set);
            }
            Event::Operand(claim, other) => judge.claim(claim, other.or(rank.current[set]))?,
            Event::Renewed(stmt) => judge.known.retain(|it, _| {
                let is_renewed = it.is_renewed_by(program, stmt);
                assert!(!is_renewed || !it.is_constant(program), "{it:?} is constant");
                !is_renewed
            }),
        }
    }
    Ok(())
}

/// Checks that the facts say what a block determines without other paths: an operator that sets no stream leaves the current one.
fn judge_block(program: &Program, facts: &StreamFacts, block: BlockId) -> Checked {
    let all: Vec<StmtId> = program.stmts_in(block).collect();
    if facts.are_set_in(block) != all.iter().any(|it| stream_set_by(program, *it).is_some()) {
        return Err(format!("are streams set in the block of {:?}?", all.first()));
    }
    for pair in program.block(block).windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let before = facts.current(from);
        let is_renewed = before.is_some_and(|it| it.is_renewed_by(program, from));
        let (current, setter) = match &program.stmts[from] {
            Stmt::Op(it) if it.op == Op::SetCurrentStream => (facts.operand(from), Some(from)),
            Stmt::Let(..) if is_renewed => (Some(StreamValue::Joined(from)), facts.setter(from)),
            Stmt::Op(_) | Stmt::Let(..) => (before, facts.setter(from)),
            Stmt::For(_) | Stmt::If(_) => continue,
        };
        if (facts.current(to), facts.setter(to)) != (current, setter) {
            return Err(format!("{current:?} set by {setter:?} at {from:?} is not that at {to:?}"));
        }
    }
    Ok(())
}

/// The fault of an analysis that takes long.
pub const STUCK: &str = "the analysis does not end";

/// Finds the facts of a program.
fn facts_of(program: &Arc<Program>) -> Result<StreamFacts, String> {
    let (sender, receiver) = mpsc::channel();
    let program = Arc::clone(program);
    thread::spawn(move || sender.send(StreamFacts::of(&program)));
    receiver.recv_timeout(Duration::from_secs(10)).map_err(|it| match it {
        RecvTimeoutError::Timeout => STUCK.to_owned(),
        RecvTimeoutError::Disconnected => "the analysis panics".to_owned(),
    })
}

/// Checks the facts of a program. Returns nothing if the verifier or the planner finds that a name is not captured.
pub fn judge(text: &str, tally: &mut Tally) -> Result<Option<(Arc<Program>, StreamFacts)>, String> {
    let source = Source::new("text".to_owned(), text.to_owned());
    let (mut programs, mut faults) = source.programs();
    let program = Arc::new(programs.pop().ok_or("there is no program")?);
    faults.retain(|it| it.is_error());
    let world = if faults.is_empty() { build(&program, &source.lines, 2) } else { Err(faults) };
    let world = match world {
        Ok(world) => world,
        Err(them) if them.iter().all(|it| it.code == Code::UndefinedStream) => return Ok(None),
        Err(them) => return Err(format!("{them:?}")),
    };
    let facts = facts_of(&program)?;
    world.iter().try_for_each(|plan| judge_rank((&program, &source, &facts), plan, tally))?;
    program.blocks.iter().try_for_each(|(block, _)| judge_block(&program, &facts, block))?;
    // All is known before the first loop, branch or scalar definition.
    for stmt in program.body().iter().take_while(|it| program.stmts[**it].op().is_some()) {
        let mut values = facts.current(*stmt).into_iter().chain(facts.operand(*stmt));
        if let Some(it) = values.find(|it| !matches!(it, StreamValue::Entry | StreamValue::Index(_))) {
            return Err(format!("{it:?} at {stmt:?}, before all paths"));
        }
    }
    let name = |operands: &[Operand]| match operands {
        [Operand::Stream(it)] => match program.streams[*it] {
            Stream::Named(name) => Some(name),
            Stream::Index(_) => None,
        },
        _ => None,
    };
    let outside: BTreeSet<u32> =
        program.body().iter().filter_map(|it| name(&program.stmts[*it].op()?.outs)).collect();
    let is_nested =
        |it: &Stmt| it.op().and_then(|it| name(&it.args)).is_some_and(|it| !outside.contains(&it));
    tally.nested += usize::from(program.stmts.iter().any(|(_, it)| is_nested(it)));
    tally.planned += 1;
    Ok(Some((program, facts)))
}
