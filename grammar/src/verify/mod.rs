//! Verifies programs from any source and reports all errors.
//!
//! The verifier checks that:
//! * tensors are defined before they are read, and are not read after Deallocate (`check_read`);
//! * named streams are captured before they are used (`check_streams`);
//! * a Wait names work that is posted before it (`op`);
//! * coalescing groups are paired and contain only P2PCommunications (`check_coalescing`);
//! * predicates are boolean (`check_predicate`);
//! * teams are sets of ranks, and a root is given and in the team if the type requires one (`check_team`);
//! * a tensor has each device and stream axis at most once, with the extents of the mesh (`check_sharding`);
//! * ranks, constant extents and element types satisfy the operator's type rule (`types`).
//!
//! Properties that depend on the rank or on symbols are not checked here: whether peers are in range,
//! symbolic extents, and which ranks reach a collective. The planner and the simulator check those.
//!
//! Guarantee: a program without errors can be planned without checking for any of the errors above again.

mod places;
mod types;

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use self::places::Occurrence;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{
        AxisId, BlockId, DeviceDim, Expr, ExprId, OpStmt, Operand, ParallelType, Program, Stmt, StmtId,
        Stream, TensorId, Transform, UnitId,
    },
    ops::{AccessMode, Op, OpClass},
    span::Span,
    suggest::list_text,
    tensor_uses::{for_each_tensor_use, tensors_in_text_order},
    text::{axis_text, expr_text, tensor_text},
    words::CommunicationType,
};

/// Returns all errors and warnings of a program, in the order of its text.
pub fn verify(program: &Program) -> Vec<Diagnostic> {
    verify_text(program, None)
}

/// As `verify`, for a program that was read from `source`: the diagnostics refer to operands, attributes and
/// axes, and not only to statements.
pub fn verify_source(program: &Program, source: &str) -> Vec<Diagnostic> {
    verify_text(program, Some(source))
}

fn verify_text(program: &Program, source: Option<&str>) -> Vec<Diagnostic> {
    let mut verifier = Verifier {
        program,
        source,
        faulty: HashSet::default(),
        defined: Program::tensors_of(&program.inputs).collect(),
        deallocated: HashMap::default(),
        captured: HashSet::default(),
        captured_names: Vec::new(),
        posted: HashSet::default(),
        open_coalescing: None,
        defined_elsewhere: HashSet::default(),
        diagnostics: Vec::new(),
    };
    verifier.defined_elsewhere = verifier.inputs_defined_elsewhere();
    for tensor in program.tensors.ids() {
        verifier.check_sharding(tensor);
    }
    verifier.check_unique_names();
    verifier.check_transforms();
    program.body.iter().for_each(|body| verifier.block(*body));
    for unit in program.units.ids() {
        verifier.unit(unit);
    }
    verifier.diagnostics.sort_by_key(Diagnostic::span);
    verifier.diagnostics
}

struct Verifier<'p> {
    program: &'p Program,
    /// The text of the program, if it is known.
    source: Option<&'p str>,
    /// Tensors whose text has an error. What follows from it in statements is not reported.
    faulty: HashSet<TensorId>,
    defined: HashSet<TensorId>,
    /// The statements that released names.
    deallocated: HashMap<TensorId, Span>,
    captured: HashSet<u32>,
    /// The names of the captured streams in the text.
    captured_names: Vec<String>,
    posted: HashSet<u32>,
    /// The StartCoalescing without its EndCoalescing so far.
    open_coalescing: Option<StmtId>,
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
                    self.op(it, span);
                }
                Stmt::Let(..) => (),
                Stmt::For(it) => self.block(it.body),
                Stmt::If(it) => {
                    self.check_predicate(it.cond, span);
                    self.block(it.then_block);
                    it.else_block.iter().for_each(|other| self.block(*other));
                }
            }
        }
        if let Some(open) = self.open_coalescing.take() {
            let span = self.program.stmt_span(open);
            self.error(Code::BadCoalescing, span, "StartCoalescing without EndCoalescing", "opened here");
        }
        self.open_coalescing = outer;
    }

    fn check_coalescing(&mut self, id: StmtId, stmt: &OpStmt, span: Span) {
        match (stmt.op, self.open_coalescing) {
            (Op::StartCoalescing, None) => self.open_coalescing = Some(id),
            (Op::StartCoalescing, Some(_)) => {
                self.error(
                    Code::BadCoalescing,
                    span,
                    "StartCoalescing inside another",
                    "expected EndCoalescing first",
                );
            }
            (Op::EndCoalescing, Some(_)) => self.open_coalescing = None,
            (Op::EndCoalescing, None) => {
                self.error(
                    Code::BadCoalescing,
                    span,
                    "EndCoalescing without StartCoalescing",
                    "nothing to close",
                );
            }
            (Op::P2PCommunication, _) | (_, None) => (),
            (_, Some(_)) => {
                let message = format!("`{}` between StartCoalescing and EndCoalescing", stmt.op.name());
                self.error(Code::BadCoalescing, span, message, "expected P2PCommunication");
            }
        }
    }

    /// Checks that the operator has these attributes. The parser guarantees this; passes may violate it.
    fn check_attributes(&mut self, stmt: &OpStmt, span: Span) {
        let row = stmt.op.def();
        for (name, attr) in &stmt.attrs {
            let mut params = row.args.iter().chain(row.attrs);
            if !params.any(|param| param.key() == *name && attr.is_valid_for(param.kind)) {
                let message = format!("`{}` has no attribute `{name}` of this kind", row.mnemonic);
                self.error(Code::BadAttribute, span, message, "expected an attribute of the operator");
            }
        }
    }

    fn op(&mut self, stmt: &OpStmt, span: Span) {
        self.check_attributes(stmt, span);
        self.check_streams(stmt, span);
        let effect = stmt.op.def().class;
        let mut written = Vec::new();
        let mut read = Vec::new();
        for_each_tensor_use(self.program, stmt, &mut |tensor, mode| match mode {
            AccessMode::Read | AccessMode::Transfer => read.push(tensor),
            AccessMode::Write | AccessMode::Bind => written.push(tensor),
            AccessMode::NoAccess if effect == OpClass::View || effect == OpClass::ShareHandles => {
                read.push(tensor)
            }
            AccessMode::NoAccess => (),
        });
        read.retain(|tensor| !self.defined_elsewhere.contains(tensor));
        for tensor in read {
            self.check_read(tensor, span);
        }
        if stmt.op == Op::AllocateOnce {
            self.check_redundant_allocate(&written, span);
        }
        if effect == OpClass::Deallocate {
            for tensor in Program::tensors_of(&stmt.args) {
                self.check_read(tensor, span);
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
        {
            self.unknown_work(number, span);
        }
        if effect == OpClass::Communicate || stmt.op == Op::EndCoalescing {
            self.posted.extend(stmt.number);
        }
        if let Some(listed) = stmt.get(attr::TRANSFERS) {
            self.check_shared_transfers(listed);
        }
        self.check_team(stmt, span);
        let mut tensors = Program::tensors_of(&stmt.outs).chain(stmt.tensor_operands());
        if !tensors.any(|it| self.faulty.contains(&it)) {
            types::check(self.program, self.source, stmt, span, &mut self.diagnostics);
        }
    }

    /// Reports a Wait for a communication that is not posted before it.
    fn unknown_work(&mut self, number: u32, span: Span) {
        let place = places::part_place(self.source, &number.to_string(), span);
        let message = format!("no communication with the number {number} is posted before this Wait");
        let mut posted: Vec<u32> = self.posted.iter().copied().collect();
        posted.sort_unstable();
        let names: Vec<String> = posted.iter().map(ToString::to_string).collect();
        let label = match names.len() {
            0 => "nothing is posted before it".to_owned(),
            _ => format!("posted before it: {}", list_text(names.iter().map(String::as_str), 8, "and")),
        };
        let mut it = Diagnostic::new(Code::UnknownWork, place, message, label);
        let posts = |stmt: &Stmt| match stmt {
            Stmt::Op(it) => {
                it.number == Some(number)
                    && (it.op.def().class == OpClass::Communicate || it.op == Op::EndCoalescing)
            }
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
        };
        if let Some((later, _)) = self.program.stmts.iter().find(|(_, it)| posts(it)) {
            it = it.label(self.program.stmt_span(later), "it is posted here, after the Wait");
        }
        self.diagnostics.push(it);
        // Each number is reported once.
        self.posted.insert(number);
    }

    /// Returns the tensors that are inputs of communications but defined nowhere in the program.
    ///
    /// Some dumps contain only the statements of one rank (format survey, trap 17), so the input of another
    /// rank is not defined. The planner checks whether this rank has to provide it.
    fn inputs_defined_elsewhere(&self) -> HashSet<TensorId> {
        let mut given = HashSet::default();
        let mut defined = self.defined.clone();
        let units = self.program.units.iter().filter_map(|(_, unit)| unit.body);
        let mut stmts = Vec::new();
        self.program
            .body
            .into_iter()
            .chain(units)
            .for_each(|it| self.program.walk(it, &mut |id| stmts.push(id)));
        for stmt in stmts {
            let Stmt::Op(it) = &self.program.stmts[stmt] else { continue };
            let communicates = it.op.def().class == OpClass::Communicate;
            for_each_tensor_use(self.program, it, &mut |tensor, mode| match mode {
                AccessMode::Write | AccessMode::Bind => {
                    defined.insert(tensor);
                }
                AccessMode::Read if communicates && !self.program.tensors[tensor].mesh.is_empty() => {
                    given.insert(tensor);
                }
                AccessMode::Read | AccessMode::Transfer | AccessMode::NoAccess => (),
            });
        }
        given.retain(|tensor| !defined.contains(tensor));
        given
    }

    /// Checks that the transfers listed in ShareMemHandles have numbers, by which transfers refer to their
    /// handles.
    fn check_shared_transfers(&mut self, transfers: &[StmtId]) {
        for id in transfers {
            if matches!(&self.program.stmts[*id], Stmt::Op(it) if it.number.is_none()) {
                let span = self.program.stmt_span(*id);
                let message = "a P2PCommunication of ShareMemHandles has no number";
                self.error(Code::BadAttribute, span, message, "expected `P2PCommunication 37 (…)`");
            }
        }
    }

    fn check_read(&mut self, tensor: TensorId, span: Span) {
        if self.defined.contains(&tensor) {
            return;
        }
        if self.faulty.contains(&tensor) {
            return;
        }
        let name = self.program.tensor_name(tensor);
        let place = places::tensor_place(self.program, self.source, tensor, span, Occurrence::Last);
        let mut fault = match self.deallocated.get(&tensor) {
            Some(freed) => {
                let message = format!("`{name}` is used after it was deallocated");
                Diagnostic::new(Code::UseAfterDeallocate, place, message, "used here")
                    .label(*freed, "deallocated here")
            }
            None => self.undefined_tensor(tensor, place),
        };
        let number = |it: TensorId| (self.program.tensors[it].number, self.program.tensors[it].unit);
        if let Some(other) = self.defined.iter().find(|it| number(**it) == number(tensor)) {
            fault = fault.help(format!(
                "`{}` and `{}` are different tensors: spell a tensor identically at each use",
                tensor_text(self.program, tensor),
                tensor_text(self.program, *other)
            ));
        }
        self.diagnostics.push(fault);
        // Report each tensor only once.
        self.defined.insert(tensor);
    }

    /// Reports a tensor that is read before anything allocates or defines it.
    fn undefined_tensor(&self, tensor: TensorId, place: Span) -> Diagnostic {
        let name = self.program.tensor_name(tensor);
        let writes = |stmt: &Stmt| match stmt {
            Stmt::Op(it) => {
                let mut found = false;
                for_each_tensor_use(self.program, it, &mut |other, mode| {
                    found |= other == tensor && matches!(mode, AccessMode::Write | AccessMode::Bind);
                });
                found
            }
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
        };
        if let Some((later, _)) = self.program.stmts.iter().find(|(_, it)| writes(it)) {
            let message = format!("`{name}` is used before it is allocated or written");
            let later = self.program.stmt_span(later);
            return Diagnostic::new(Code::UndefinedTensor, place, message, "used here")
                .label(later, "defined only here");
        }
        let message = format!("nothing allocates or defines `{name}`");
        let it = Diagnostic::new(Code::UndefinedTensor, place, message, "used here");
        // A tensor that differs in its number only.
        let own = &self.program.tensors[tensor];
        let is_alike = |other: &&TensorId| {
            let other = &self.program.tensors[**other];
            (other.unit, other.dtype, &other.loop_domain, &other.mesh)
                == (own.unit, own.dtype, &own.loop_domain, &own.mesh)
        };
        let mut alike = self.defined.iter().filter(is_alike);
        if let (Some(only), None) = (alike.next(), alike.next()) {
            return it.help(format!("did you mean `{}`?", self.program.tensor_name(*only)));
        }
        it.help(match own.unit {
            None => format!("allocate it before this, as in `{name}_… = ALLOCATE(mem_type=global, zero_init=false)`, or make it an input"),
            Some(_) => "define it before this, or make it an input of the HostUnit".to_owned(),
        })
    }

    fn check_redundant_allocate(&mut self, tensors: &[TensorId], span: Span) {
        for tensor in tensors.iter().filter(|tensor| self.defined.contains(tensor)) {
            let name = self.program.tensor_name(*tensor);
            let it = Diagnostic::new(
                Code::RedundantAllocate,
                span,
                format!("`{name}` is bound already: this ALLOCATE does nothing"),
                "the long form skips bound names",
            );
            self.diagnostics.push(
                it.help("remove it, or use `ALLOCATE(mem_type=…, zero_init=…)` to allocate new storage"),
            );
        }
    }

    fn check_streams(&mut self, stmt: &OpStmt, span: Span) {
        let number = |operand: &Operand| match operand {
            Operand::Stream(id) => match self.program.streams[*id] {
                Stream::Named(number) => Some(number),
                Stream::Index(_) => None,
            },
            Operand::Tensor(_) | Operand::Scalar(_) => None,
        };
        if let Some(number) = stmt.args.iter().filter_map(number).find(|it| !self.captured.contains(it)) {
            let (name, place) = self.stream_name(number, span);
            let message = format!("stream `{name}` is used before GetCurrentStream captures it");
            let label = match self.captured_names.as_slice() {
                [] => format!("expected `Stream {name} = GetCurrentStream()` before this"),
                all => format!(
                    "the streams captured before this: {}",
                    list_text(all.iter().map(String::as_str), 6, "and")
                ),
            };
            let it = Diagnostic::new(Code::UndefinedStream, place, message, label);
            self.diagnostics.push(it.suggest(&name, self.captured_names.iter().map(String::as_str)));
            // Each stream is reported once.
            self.captured.insert(number);
        }
        if let Some(number) = stmt.outs.iter().find_map(number) {
            let (name, _) = self.stream_name(number, span);
            self.captured_names.push(name);
        }
        self.captured.extend(stmt.outs.iter().filter_map(number));
    }

    /// Returns the name of the stream object in a statement and its position. Without the source text, these are
    /// the canonical name and the statement.
    fn stream_name(&self, number: u32, span: Span) -> (String, Span) {
        let canonical = || (format!("s{number}"), span);
        let Some(text) = self.source.map(|it| span.text(it)) else { return canonical() };
        let Some(at) = text.find("Stream ").map(|it| it + "Stream ".len()) else { return canonical() };
        // `SetCurrentStream to Stream s0`, `Synchronize Stream 0x2a`.
        let at = text.get(at..).and_then(|it| it.find("Stream ")).map_or(at, |it| at + it + "Stream ".len());
        let rest = text.get(at..).unwrap_or("");
        let name: String = rest.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '_').collect();
        if name.is_empty() {
            return canonical();
        }
        let start = span.start + at as u32;
        let place = Span { start, end: start + name.len() as u32 };
        (name, place)
    }

    fn check_predicate(&mut self, cond: ExprId, span: Span) {
        let boolean = match &self.program.exprs[cond] {
            Expr::Bool(_) | Expr::Symbol(_) => true,
            Expr::Prefix(sign, _) => *sign == "!",
            Expr::Infix(sign, ..) => {
                matches!(*sign, "==" | "!=" | "<" | "<=" | ">" | ">=" | "&&" | "||" | "&" | "|" | "^")
            }
            Expr::Call(name, _) => name == "where",
            Expr::Int(_) | Expr::Float(..) => false,
        };
        if !boolean {
            let message = format!("`{}` is not a boolean", expr_text(self.program, cond));
            self.error(Code::BadPredicate, span, message, "expected a comparison");
        }
    }

    fn check_team(&mut self, stmt: &OpStmt, span: Span) {
        let Some(team) = stmt.get(attr::TEAM) else { return };
        let distinct: HashSet<usize> = team.iter().copied().collect();
        if team.is_empty() || distinct.len() != team.len() {
            let mut seen = HashSet::default();
            let message = match team.iter().find(|it| !seen.insert(**it)) {
                Some(twice) => format!("the team contains rank {twice} twice"),
                None => "the team is empty".to_owned(),
            };
            let place = places::attr_place(self.source, "team", span);
            self.error(Code::BadTeam, place, message, "expected each rank once");
        }
        let Some(kind) = stmt.get(attr::TYPE) else { return };
        match (kind.is_rooted(), stmt.get(attr::ROOT)) {
            (true, None) => {
                let place = places::attr_place(self.source, "type", span);
                let it = Diagnostic::new(
                    Code::BadRoot,
                    place,
                    format!("{kind} needs a root"),
                    "this type has a root",
                );
                self.diagnostics.push(it.help("add `root=0`: an index into the team, from 0"));
            }
            (false, Some(_)) => {
                let place = places::attr_place(self.source, "root", span);
                self.error(Code::BadRoot, place, format!("{kind} has no root"), "remove this")
            }
            (true, Some(root)) => {
                let outside =
                    self.program.constant(root).filter(|root| *root < 0 || *root >= team.len() as i64);
                if let Some(root) = outside {
                    let message = format!("root {root} is not an index into a team of {}", team.len());
                    let place = places::attr_place(self.source, "root", span);
                    let label =
                        format!("expected an index into the team, 0 to {}", team.len().saturating_sub(1));
                    self.error(Code::BadRoot, place, message, label);
                }
            }
            (false, None) => (),
        }
        if kind == CommunicationType::SendRecv && team.len() > 2 {
            let place = places::attr_place(self.source, "team", span);
            self.error(
                Code::BadTeam,
                place,
                "SendRecv requires a team of two",
                "expected the sender and the receiver",
            );
        }
    }

    fn check_sharding(&mut self, tensor: TensorId) {
        let it = &self.program.tensors[tensor];
        let span = self.program.tensor_span(tensor);
        let name = self.program.tensor_name(tensor);
        let devices: HashSet<usize> = it.mesh.devices.iter().copied().collect();
        if devices.len() != it.mesh.devices.len() {
            let message = format!("the mesh of `{name}` contains a device twice");
            let place = places::part_place(self.source, "DeviceMesh", span);
            let place = if place == span { span } else { Span { end: span.end, ..place } };
            self.error(Code::BadSharding, place, message, "expected each device once");
            self.faulty.insert(tensor);
        }
        let mut seen = HashSet::default();
        for id in &it.loop_domain {
            let axis = &self.program.axes[*id];
            if !matches!(axis.parallel, ParallelType::Device(_) | ParallelType::Stream) {
                continue;
            }
            if !seen.insert(axis.parallel) {
                let text = axis_text(self.program, *id);
                let message = format!("`{name}` has two axes with the parallel type of `{text}`");
                let place = places::part_place(self.source, &text, span);
                self.error(
                    Code::BadSharding,
                    place,
                    message,
                    "expected another parallel type: each one can occur once",
                );
                self.faulty.insert(tensor);
            }
            if let ParallelType::Device(dim) = axis.parallel {
                let place = places::part_place(self.source, &axis_text(self.program, *id), span);
                self.check_device_axis(&name, tensor, axis.extent, dim, place);
            }
        }
    }

    /// Checks that each number belongs to one tensor.
    ///
    /// Two spellings of a number are two tensors, one of which then lacks its value or its readers. Dumps
    /// without element types number the tensors of each fusion separately.
    fn check_unique_names(&mut self) {
        let mut named: HashMap<u32, TensorId> = HashMap::default();
        for second in tensors_in_text_order(self.program) {
            let it = &self.program.tensors[second];
            let first = *named.entry(it.number).or_insert(second);
            let is_plain = |tensor: TensorId| self.program.has_plain_domains(tensor);
            let is_untyped = it.dtype.is_none() && is_plain(first) && is_plain(second);
            if first == second || it.unit.is_some() || is_untyped {
                continue;
            }
            let name = self.program.tensor_name(second);
            let (a, b) = (&self.program.tensors[first], &self.program.tensors[second]);
            let differences: Vec<&str> = [
                (a.memory != b.memory, "memory space"),
                (a.dtype != b.dtype, "element type"),
                (a.loop_domain != b.loop_domain, "axes"),
                (a.mesh != b.mesh, "mesh"),
            ]
            .into_iter()
            .filter_map(|(differs, what)| differs.then_some(what))
            .collect();
            let what = match differences.as_slice() {
                [] => "text".to_owned(),
                all => list_text(all.iter().copied(), 4, "and"),
            };
            let message = format!("`{name}` is spelled in two ways, which differ in their {what}");
            let (one, two) = (tensor_text(self.program, first), tensor_text(self.program, second));
            let span = self.program.tensor_span(second);
            let it = Diagnostic::new(Code::BadDomain, span, message, format!("here it is `{two}`"));
            let it = it.label(self.program.tensor_span(first), format!("here it is `{one}`"));
            self.diagnostics.push(
                it.help("spell a tensor in the same way at each use, or give one of the two another number"),
            );
            self.faulty.insert(second);
        }
    }

    /// Checks that the results of splits and merges have the extents that their operands determine, if all
    /// are constants.
    fn check_transforms(&mut self) {
        for tensor in tensors_in_text_order(self.program) {
            for transform in &self.program.tensors[tensor].domains.transforms {
                let Some((axis, wanted)) = self.mismatched_extent(transform) else { continue };
                let name = self.program.tensor_name(tensor);
                let axis = axis_text(self.program, axis);
                let message = format!("the extent of `{axis}` of `{name}` does not match its transform");
                let place = places::domain_place(self.program, self.source, tensor, &axis);
                let span = place.unwrap_or_else(|| self.program.tensor_span(tensor));
                self.error(Code::BadDomain, span, message, wanted);
                self.faulty.insert(tensor);
            }
        }
    }

    /// Returns the axis of a transform whose extent is wrong, and the expected extent.
    fn mismatched_extent(&self, transform: &Transform) -> Option<(AxisId, String)> {
        let extent = |axis: AxisId| self.program.constant(self.program.axes[axis].extent);
        let differs = |axis: AxisId, wanted: i64| {
            let found = extent(axis).filter(|found| *found != wanted);
            found.map(|_| (axis, format!("expected extent {wanted}")))
        };
        match *transform {
            Transform::Split { input, factor, outer_split, outer, inner } => {
                let factor = self.program.constant(factor)?;
                if factor <= 0 {
                    return Some((input, "expected a positive factor".to_owned()));
                }
                let (given, rest) = if outer_split { (outer, inner) } else { (inner, outer) };
                let parts = |whole: i64| whole / factor + i64::from(whole % factor > 0);
                differs(given, factor).or_else(|| differs(rest, parts(extent(input)?)))
            }
            Transform::Merge { outer, inner, output } => {
                differs(output, extent(outer)?.checked_mul(extent(inner)?)?)
            }
            Transform::Swizzle1D { input, output } => differs(output, extent(input)?),
        }
    }

    fn check_device_axis(
        &mut self,
        name: &str,
        tensor: TensorId,
        extent: ExprId,
        dim: DeviceDim,
        span: Span,
    ) {
        let mesh = &self.program.tensors[tensor].mesh;
        if mesh.is_empty() {
            if self.program.tensors[tensor].unit.is_none() {
                let message = format!("`{name}` is sharded over devices but has no DeviceMesh");
                let label = "this axis is distributed over the devices of a mesh";
                let it = Diagnostic::new(Code::BadSharding, span, message, label);
                self.diagnostics
                    .push(it.help("write the mesh after the axes, as in `[…] (DeviceMesh{0 1})`"));
                self.faulty.insert(tensor);
            }
            return;
        }
        let wanted = mesh.extent(dim) as i64;
        if let Some(extent) = self.program.constant(extent).filter(|extent| *extent != wanted) {
            let message = format!("`{name}` has a device axis of extent {extent} on a mesh of {wanted}");
            let it = Diagnostic::new(Code::BadSharding, span, message, format!("expected extent {wanted}"));
            let all = mesh.devices.len();
            self.diagnostics.push(match wanted {
                1 if all > 1 => it.help(format!(
                    "the {all} devices of the mesh are along another dimension: the innermost braces of a mesh are x, the next ones y"
                )),
                _ => it,
            });
            self.faulty.insert(tensor);
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
