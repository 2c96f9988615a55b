//! Gives the kernels of a container the statements of the fusions in the log, and its tensors the domains that the log states.
//!
//! A LaunchKernel whose group the log defines becomes the statement that posts a HostUnit with the statements of the group.
//! Groups and tensors have the same numbers in the log and in the container, but nothing names the fusion: a dump belongs to
//! the container if all groups that the container launches, and the dump has, read and write the same tensors.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Resolver, params};
use crate::{
    ast, attr,
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    fusion_dump::{FusionDump, Group, Lists, Value},
    indentation,
    ir::{
        Expr, HostUnit, Operand, Program, SectionPart, Stmt, StmtId, SymbolId, TensorId, UnitId,
        predefined_meaning,
    },
    ops::Op,
    parse::parse_container,
    span::Span,
    tensor::parse_tensor_text,
    text::{axis_text, expr_text},
};

/// The option with which nvFuser prints the groups.
pub(super) const DUMP_OPTION: &str = "NVFUSER_DUMP=host_ir,segmented_fusion";

/// A LaunchKernel of the container.
struct Launch {
    stmt: StmtId,
    /// The number of the group.
    id: Option<u32>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    /// The short names of the operands.
    input_names: Vec<String>,
    output_names: Vec<String>,
}

impl Launch {
    /// Returns whether a group reads and writes the same tensors.
    fn has_lists(&self, lists: &Lists<'_>) -> bool {
        has_names(&self.input_names, &lists.inputs) && has_names(&self.output_names, &lists.outputs)
    }
}

/// Returns whether a list has exactly these names.
fn has_names(names: &[String], list: &[Value<'_>]) -> bool {
    let own: FxHashSet<&str> = names.iter().map(String::as_str).collect();
    let other: FxHashSet<&str> = list.iter().map(Value::name).collect();
    own == other
}

impl<'s> Resolver<'s, '_> {
    /// Attaches the fusions of the log to the container. Returns the tensors of the container whose domains the log states, and the
    /// HostUnits whose domains it does not state. `is_own`: no other container is between the dumps and this one.
    pub(super) fn attach_fusions(
        &mut self,
        dumps: &[FusionDump<'s>],
        is_own: bool,
    ) -> (FxHashSet<TensorId>, Vec<UnitId>) {
        let launches = self.launches();
        let chosen = self.chosen_dump(dumps, &launches, is_own);
        let stated = chosen.map(|it| self.apply_domains(it)).unwrap_or_default();
        // By the place of the group: its HostUnit, and the launch whose order the lists of the unit have.
        let mut units: FxHashMap<u32, (UnitId, usize)> = FxHashMap::default();
        let mut unstated = Vec::new();
        let mut replaced = Vec::new();
        for (at, launch) in launches.iter().enumerate() {
            let Some(group) = self.group_of(dumps, chosen, launch) else { continue };
            let known = units.get(&group.body.base).copied();
            let (unit, first) = match known {
                Some(known) => known,
                None => {
                    let Some(unit) = self.add_unit(launch, group) else { continue };
                    if !chosen.is_some_and(|dump| self.apply_unit_domains(dump, unit)) {
                        unstated.push(unit);
                    }
                    self.add_free_scalars(unit);
                    units.insert(group.body.base, (unit, at));
                    (unit, at)
                }
            };
            self.post_unit(launch, &launches[first], unit);
            replaced.push((launch.stmt, group.heading));
        }
        self.report_replaced(&replaced);
        (stated, unstated)
    }

    /// Returns the LaunchKernels of the container.
    fn launches(&self) -> Vec<Launch> {
        let program = &self.program;
        let name = |it: &Operand| match it {
            Operand::Tensor(tensor) => program.tensor_name(*tensor),
            Operand::Scalar(value) => expr_text(program, *value),
            Operand::Stream(_) => String::new(),
        };
        let launch = |(stmt, it): (StmtId, &Stmt)| {
            let Stmt::Op(it) = it else { return None };
            if it.op != Op::LaunchKernel {
                return None;
            }
            let id = it.get(attr::GROUP_ID).and_then(|it| program.constant(it));
            let [inputs, outputs] =
                [attr::INPUTS, attr::OUTPUTS].map(|key| it.get(key).unwrap_or_default().to_vec());
            Some(Launch {
                stmt,
                id: id.and_then(|it| u32::try_from(it).ok()),
                input_names: inputs.iter().map(name).collect(),
                output_names: outputs.iter().map(name).collect(),
                inputs,
                outputs,
            })
        };
        program.stmts.iter().filter_map(launch).collect()
    }

    /// Returns the dump that belongs to the container: the last one that fits. Reports dumps that fit and differ.
    fn chosen_dump<'d>(
        &mut self,
        dumps: &'d [FusionDump<'s>],
        launches: &[Launch],
        is_own: bool,
    ) -> Option<&'d FusionDump<'s>> {
        let mut fitting = dumps.iter().rev().filter(|it| self.fits(it, launches, is_own));
        let last = fitting.next()?;
        let Some(other) = fitting.find(|it| !is_same(it, last, launches)) else { return Some(last) };
        if let Some(launch) = launches.first() {
            let span = self.program.stmt_span(launch.stmt);
            let message =
                "two fusions of the log have the groups that this container launches, and they differ";
            let it = Diagnostic::new(Code::FusionMismatch, span, message, "the first launch")
                .label(first_line(self.source, other.span), "a fusion that fits")
                .label(first_line(self.source, last.span), "another one");
            self.diagnostics.push(it.help(
                "write the one that belongs to the container to a file, and pass it with `--fusions FILE`",
            ));
        }
        None
    }

    /// Returns whether a dump can belong to the container. One that is not its own has to have the same tensors, too: a dump of
    /// another fusion may have the same numbers.
    fn fits(&self, dump: &FusionDump<'s>, launches: &[Launch], is_own: bool) -> bool {
        if launches.is_empty() {
            let program = &self.program;
            let ports = || Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
            return dump.io.as_ref().is_some_and(|io| {
                let values = || io.inputs.iter().chain(&io.outputs).filter(|it| it.is_tensor());
                ports().count() == values().count()
                    && ports().zip(values()).all(|(tensor, value)| self.is_same_tensor(tensor, value))
            });
        }
        let mut is_any = false;
        for launch in launches {
            let mut groups = launch.id.into_iter().flat_map(|id| dump.groups_with_id(id)).peekable();
            is_any |= groups.peek().is_some();
            let is_fitting = |it: &Group<'s>| {
                launch.has_lists(&it.lists) && (is_own || self.different_operand(launch, it).is_none())
            };
            if !groups.all(is_fitting) {
                return false;
            }
        }
        is_any
    }

    /// Returns the first operand of a launch that differs from the tensor of the group, with the latter.
    fn different_operand<'d>(
        &self,
        launch: &Launch,
        group: &'d Group<'s>,
    ) -> Option<(TensorId, &'d Value<'s>)> {
        let names = launch.input_names.iter().chain(&launch.output_names);
        let values = launch.inputs.iter().chain(&launch.outputs);
        let own = || group.lists.inputs.iter().chain(&group.lists.outputs);
        let pairs = names.zip(values).filter_map(|(name, value)| {
            Some((value.tensor()?, own().find(|it| it.name() == name.as_str())?))
        });
        pairs.into_iter().find(|(tensor, value)| !self.is_same_tensor(*tensor, value))
    }

    /// Returns whether a tensor of the container is the one that a text of the log spells.
    pub(super) fn is_same_tensor(&self, tensor: TensorId, value: &Value<'_>) -> bool {
        let it = &self.program.tensors[tensor];
        let Ok(other) = parse_tensor_text(value.text, value.span.start) else { return false };
        let same_text = |axis: crate::ir::AxisId, text: &str| {
            let own = axis_text(&self.program, axis);
            let visible = |it: &char| !it.is_whitespace();
            own.chars().filter(visible).eq(text.chars().filter(visible))
        };
        it.number == other.number
            && it.dtype == other.dtype
            && *it.mesh == other.mesh
            && it.loop_domain.len() == other.axes.len()
            && it.loop_domain.iter().zip(&other.axes).all(|(axis, text)| same_text(*axis, text.text))
    }

    /// Returns the group of a launch: that of its number in the chosen dump or else a fusion without number that reads and
    /// writes the same tensors.
    fn group_of<'d>(
        &mut self,
        dumps: &'d [FusionDump<'s>],
        chosen: Option<&'d FusionDump<'s>>,
        launch: &Launch,
    ) -> Option<&'d Group<'s>> {
        let numbered = launch.id.zip(chosen).into_iter().flat_map(|(id, dump)| dump.groups_with_id(id));
        let mut found: Vec<&Group<'s>> = numbered.collect();
        if found.is_empty() {
            let groups = dumps.iter().flat_map(|it| &it.groups);
            found.extend(groups.filter(|it| it.id.is_none() && launch.has_lists(&it.lists)));
        }
        let group = *found.last()?;
        let span = self.program.stmt_span(launch.stmt);
        if let Some(other) = found.iter().find(|it| !it.is_same(group)) {
            let message = "two groups of the log are the kernel of this launch, and they differ";
            let it = Diagnostic::new(Code::FusionMismatch, span, message, "launched here")
                .label(other.heading, "one group")
                .label(group.heading, "another one");
            self.diagnostics.push(it.help("remove one of them, or pass the right one with `--fusions FILE`"));
            return None;
        }
        if let Some((tensor, value)) = self.different_operand(launch, group) {
            let place = self.program.use_spans(launch.stmt, tensor).into_iter().next();
            self.report_different_tensor(tensor, place.unwrap_or(span), value.span);
            return None;
        }
        if let Some(place) = group.cut_at {
            let message =
                "the text of the group that this kernel executes is cut off, so hir cannot run the kernel";
            let it = Diagnostic::new(Code::LossyKernel, span, message, "launched here");
            self.diagnostics.push(
                it.label(group.heading, "the group")
                    .label(place, "its text is cut off here")
                    .help(format!("copy the whole group: nvFuser prints it with `{DUMP_OPTION}`")),
            );
            return None;
        }
        Some(group)
    }

    /// Adds a HostUnit with the statements of a group, whose inputs and outputs have the order of the launch. Returns `None` if
    /// the text of the group has errors, which are reported.
    fn add_unit(&mut self, launch: &Launch, group: &Group<'s>) -> Option<UnitId> {
        let own = launch.id.filter(|it| !self.units_by_number.contains_key(it));
        let number = own
            .unwrap_or_else(|| (0..).find(|it| !self.units_by_number.contains_key(it)).unwrap_or_default());
        self.declare_unit(number);
        let unit = *self.units_by_number.get(&number)?;
        self.unit_spans.insert(unit, group.heading);
        let mut diagnostics = Vec::new();
        let mut container = ast::Container::default();
        let tokens = indentation::fusion_tokens(group.body, &mut diagnostics);
        parse_container(tokens, &mut container, &mut diagnostics);
        let has_syntax_errors = has_errors(&diagnostics);
        self.diagnostics.append(&mut diagnostics);
        if has_syntax_errors {
            return None;
        }
        let outer = self.current_unit.replace(unit);
        self.program.spans.add_section_part(group.heading, SectionPart::Unit(unit));
        let inputs = in_order(&launch.input_names, &group.lists.inputs);
        let outputs = in_order(&launch.output_names, &group.lists.outputs);
        let inputs = self.section_values(&inputs, SectionPart::UnitInput);
        let outputs = self.section_values(&outputs, SectionPart::UnitOutput);
        let body = self.block(&container.body);
        self.current_unit = outer;
        let is_complete = inputs.len() == launch.inputs.len() && outputs.len() == launch.outputs.len();
        self.program.units[unit] = HostUnit { number, inputs, outputs, body: Some(body) };
        is_complete.then_some(unit)
    }

    /// Reports that a tensor of the container, at `place`, is not the one that the log has at `other`.
    pub(super) fn report_different_tensor(&mut self, tensor: TensorId, place: Span, other: Span) {
        let name = self.program.tensor_name(tensor);
        let message = format!("`{name}` of the container and `{name}` of the fusion in the log differ");
        let it = Diagnostic::new(Code::FusionMismatch, place, message, "the container has this tensor")
            .label(other, "the fusion has this one");
        self.diagnostics.push(it.help(
            "remove the fusion if it is not that of the container, or pass the right one with `--fusions FILE`",
        ));
    }

    /// Replaces a LaunchKernel by the statement that posts its HostUnit. `first` is the launch whose order the lists of the
    /// unit have.
    fn post_unit(&mut self, launch: &Launch, first: &Launch, unit: UnitId) {
        let ordered = |names: &[String], values: &[Operand], order: &[String]| -> Vec<Operand> {
            let place = |name: &String| names.iter().position(|it| it == name);
            order.iter().filter_map(|it| values.get(place(it)?).cloned()).collect()
        };
        let mut inputs = ordered(&launch.input_names, &launch.inputs, &first.input_names);
        let outputs = ordered(&launch.output_names, &launch.outputs, &first.output_names);
        let added = self.program.units[unit].inputs.iter().skip(first.inputs.len());
        let symbols: Vec<SymbolId> = added.filter_map(|it| self.symbol(it)).collect();
        for symbol in symbols {
            let name = self.program.symbols[symbol].clone();
            let outer = self.program.intern_symbol(None, &name, self.program.stmt_span(launch.stmt));
            inputs.push(Operand::Scalar(self.program.intern_expr(Expr::Symbol(outer))));
        }
        if let Stmt::Op(it) = &mut self.program.stmts[launch.stmt] {
            it.op = Op::PostOnStream;
            it.attrs = vec![attr::UNIT.with(unit), attr::INPUTS.with(inputs), attr::OUTPUTS.with(outputs)];
            params::order_attrs(it);
        }
    }

    /// Adds inputs to a HostUnit for the scalars that are neither inputs, nor extents of inputs, nor defined by its statements:
    /// they have the values of the container.
    fn add_free_scalars(&mut self, unit: UnitId) {
        let program = &self.program;
        let it = &program.units[unit];
        let mut bound: FxHashSet<SymbolId> = it.inputs.iter().filter_map(|it| self.symbol(it)).collect();
        let extents = Program::tensors_of(&it.inputs).flat_map(|it| program.dimensions(it));
        bound.extend(extents.filter_map(|axis| self.symbol(&Operand::Scalar(program.axes[axis].extent))));
        if let Some(body) = it.body {
            program.walk(body, &mut |stmt| {
                if let Stmt::Let(symbol, _) = &program.stmts[stmt] {
                    bound.insert(*symbol);
                }
            });
        }
        let is_free =
            |it: &SymbolId| !bound.contains(it) && predefined_meaning(&program.symbols[*it]).is_none();
        for symbol in program.symbols_of(unit).into_iter().filter(is_free).collect::<Vec<_>>() {
            let value = self.program.intern_expr(Expr::Symbol(symbol));
            self.program.units[unit].inputs.push(Operand::Scalar(value));
        }
    }

    /// Returns the named scalar that an operand is.
    fn symbol(&self, operand: &Operand) -> Option<SymbolId> {
        match operand {
            Operand::Scalar(value) => match self.program.exprs[*value] {
                Expr::Symbol(symbol) => Some(symbol),
                Expr::Int(_)
                | Expr::Bool(_)
                | Expr::Float(..)
                | Expr::Prefix(..)
                | Expr::Infix(..)
                | Expr::Call(..) => None,
            },
            Operand::Tensor(_) | Operand::Stream(_) => None,
        }
    }

    /// Says that hir executes the statements of fusions in place of kernels.
    fn report_replaced(&mut self, replaced: &[(StmtId, Span)]) {
        let Some((launch, group)) = replaced.first() else { return };
        let message = match replaced.len() {
            1 => "this LaunchKernel executes the statements of its fusion".to_owned(),
            count => format!("{count} LaunchKernels execute the statements of their fusions"),
        };
        let message =
            message + ": their arithmetic is not exactly that of the kernels that nvFuser generates";
        let it =
            Diagnostic::new(Code::LossyKernel, self.program.stmt_span(*launch), message, "launched here");
        self.diagnostics.push(it.label(*group, "executes the statements of this group"));
        self.needs_canonical_fix = true;
    }
}

/// Returns the values of a list in the order of their names.
fn in_order<'s>(names: &[String], list: &[Value<'s>]) -> Vec<ast::Expr<'s>> {
    let value = |name: &String| list.iter().find(|it| it.name() == name.as_str());
    let expr = |it: &Value<'s>| {
        let kind = if it.is_tensor() { ast::ExprKind::Tensor(it.text) } else { ast::ExprKind::Word(it.text) };
        ast::Expr { span: it.span, kind }
    };
    names.iter().filter_map(value).map(expr).collect()
}

/// Returns whether two dumps that fit say the same about the container.
fn is_same(a: &FusionDump<'_>, b: &FusionDump<'_>, launches: &[Launch]) -> bool {
    let is_same_group = |launch: &Launch| {
        let group = |dump| launch.id.and_then(|id| FusionDump::groups_with_id(dump, id).last());
        match (group(a), group(b)) {
            (Some(a), Some(b)) => a.is_same(b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    };
    let domains = |a: &FusionDump<'_>, b: &FusionDump<'_>| {
        a.domains.iter().all(|(number, it)| b.domains.get(number).is_some_and(|other| it.is_same(other)))
    };
    launches.iter().all(is_same_group) && domains(a, b) && domains(b, a)
}

/// Returns the first line of a range.
fn first_line(source: &str, span: Span) -> Span {
    let length = span.text(source).lines().next().map_or(0, |it| it.trim_end().len());
    Span { end: span.start + length as u32, ..span }
}
