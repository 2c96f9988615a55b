//! Gives the kernels of a container the statements of the fusions in the log, and its tensors the domains that the log states.
//!
//! A LaunchKernel whose group the log defines becomes the statement that posts a HostUnit with the statements of the group.
//! `fusion_choice` finds the fusion.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Resolver,
    dialect_version::DialectVersion,
    fusion_choice::{Launch, has_unnumbered},
    fusion_statements::CompleteFusion,
    params,
};
use crate::{
    ast, attr,
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    fusion_dump::{Candidates, FusionDump, Group, Value},
    indentation,
    ir::{
        Expr, HostUnit, Operand, Program, SectionPart, Stmt, StmtId, SymbolId, TensorId, UnitId,
        predefined_meaning,
    },
    ops::Op,
    parse::parse_container,
    span::Span,
};

impl<'s> Resolver<'s> {
    /// Attaches the fusions of the log to the container. Returns the tensors of the container whose domains the log states, and the
    /// HostUnits whose domains it does not state.
    pub(super) fn attach_fusions(
        &mut self,
        candidates: Candidates<'_, 's>,
    ) -> (FxHashSet<TensorId>, Vec<UnitId>) {
        let Candidates { given, in_text, is_own, other_before, of_other_rank } = candidates;
        let launches = self.launches();
        self.fitting_files = self.files_that_fit(given, &launches);
        let of_files = self.chosen_dump(given, &launches, true);
        let (dumps, chosen) = if of_files.is_some() || launches.iter().any(|it| has_unnumbered(given, it)) {
            (given, of_files)
        } else {
            let cut = self.cut_dump(in_text, &launches).filter(|_| is_own);
            (in_text, cut.or_else(|| self.chosen_dump(in_text, &launches, is_own)))
        };
        // The `Domains:` of a container state all that it has.
        let unstated_here = chosen.filter(|_| !self.has_domains_section);
        let mut stated = unstated_here.map(|it| self.apply_domains(it)).unwrap_or_default();
        if let Some(dump) = chosen {
            self.compare_tensors(dump, None);
        }
        self.resolve_red_ops(chosen);
        // By the place of the group: its HostUnit, and the launch whose order the lists of the unit have.
        let mut units: FxHashMap<u32, (UnitId, usize)> = FxHashMap::default();
        // By the place of the dump.
        let mut complete: FxHashMap<u32, (Vec<CompleteFusion<'s>>, DialectVersion)> = FxHashMap::default();
        let mut unstated = Vec::new();
        let mut replaced = Vec::new();
        let mut is_missing_reported = false;
        for (at, launch) in launches.iter().enumerate() {
            let found = self.diagnostics.len();
            let Some((dump, group)) = self.group_of(dumps, chosen, launch) else {
                if self.diagnostics.len() == found && !has_errors(&self.diagnostics) && !is_missing_reported {
                    is_missing_reported = self.report_missing_group(dumps, chosen, launch, of_other_rank);
                }
                continue;
            };
            let known = units.get(&group.body.base).copied();
            let (unit, first) = match known {
                Some(known) => known,
                None => {
                    let (complete, version) = complete.entry(dump.span.start).or_insert_with(|| {
                        let version = DialectVersion::of_fusion(dump.span.text(self.source));
                        (self.complete_fusions(dump, dumps), version)
                    });
                    self.fusion_version = Some(*version);
                    let unit = self.add_unit(launch, (dump, group), complete);
                    self.fusion_version = None;
                    let Some(unit) = unit else { continue };
                    self.compare_tensors(dump, Some(unit));
                    if chosen.is_none() {
                        stated.extend(self.apply_domains(dump));
                    }
                    if !self.apply_unit_domains(dump, unit) {
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
        let is_given = chosen.is_some_and(|it| it.file.is_some());
        self.report_replaced(&replaced, other_before.filter(|_| !is_given));
        (stated, unstated)
    }

    /// Adds a HostUnit with the statements of a group, whose inputs and outputs have the order of the launch. Returns `None` if
    /// the text of the group has errors, which are reported.
    fn add_unit(
        &mut self,
        launch: &Launch,
        (dump, group): (&FusionDump<'s>, &Group<'s>),
        complete: &[CompleteFusion<'s>],
    ) -> Option<UnitId> {
        let own = launch.id.filter(|it| !self.units_by_number.contains_key(it));
        let number = own
            .unwrap_or_else(|| (0..).find(|it| !self.units_by_number.contains_key(it)).unwrap_or_default());
        self.declare_unit(number);
        let unit = *self.units_by_number.get(&number)?;
        self.unit_spans.insert(unit, group.heading);
        for line in &group.foreign {
            let message = "a line of a log is between the inputs and outputs of a group";
            let it = Diagnostic::new(Code::LossyText, *line, message, "ignored");
            self.diagnostics.push(it.help("remove it from the text; it is not part of the fusion"));
        }
        let mut diagnostics = Vec::new();
        let mut container = ast::Container::default();
        let tokens = indentation::fusion_tokens(group.body, &mut diagnostics);
        parse_container(tokens, &mut container, &mut diagnostics);
        let has_syntax_errors = has_errors(&diagnostics);
        self.diagnostics.append(&mut diagnostics);
        if has_syntax_errors {
            return None;
        }
        self.compare_statements(group, &container.body, complete, dump.io.as_ref());
        let outer = self.current_unit.replace(unit);
        self.program.spans.add_section_part(group.heading, SectionPart::Unit(unit));
        let inputs = in_order(&launch.input_names, &group.lists.inputs);
        let outputs = in_order(&launch.output_names, &group.lists.outputs);
        let inputs = self.section_values(&inputs, SectionPart::UnitInput);
        let outputs = self.section_values(&outputs, SectionPart::UnitOutput);
        let body = self.block(&container.body);
        self.current_unit = outer;
        let is_numbered = !self.report_number_twice(unit);
        let is_complete = inputs.len() == launch.inputs.len() && outputs.len() == launch.outputs.len();
        self.program.units[unit] = HostUnit { number, inputs, outputs, body: Some(body) };
        (is_complete && is_numbered).then_some(unit)
    }

    /// Reports two tensors of a group that have one number: the canonical text could not tell them apart. Returns whether it did.
    fn report_number_twice(&mut self, unit: UnitId) -> bool {
        let mut first: FxHashMap<u32, TensorId> = FxHashMap::default();
        let mut own = self.program.tensors.iter().filter(|(_, it)| it.unit == Some(unit));
        let Some((known, tensor)) = own.find_map(|(id, it)| Some((first.insert(it.number, id)?, id))) else {
            return false;
        };
        let number = self.program.tensors[tensor].number;
        let (place, other) = (self.program.tensor_span(tensor), self.program.tensor_span(known));
        let message = format!("two tensors of a group have the number {number}");
        let it = Diagnostic::new(Code::BadDomain, place, message, "this one").label(other, "and this one");
        self.diagnostics.push(
            it.help("copy the group from the log: nvFuser gives each tensor of a fusion its own number"),
        );
        true
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
        for stmt in it.body.into_iter().flat_map(|body| program.stmts_in(body)) {
            if let Stmt::Let(symbol, _) = &program.stmts[stmt] {
                bound.insert(*symbol);
            }
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
                _ => None,
            },
            Operand::Tensor(_) | Operand::Stream(_) => None,
        }
    }

    /// Says that hir executes the statements of fusions in place of kernels. `other` is another container between the fusion and
    /// this one.
    fn report_replaced(&mut self, replaced: &[(StmtId, Span)], other: Option<Span>) {
        let Some((launch, group)) = replaced.first().filter(|_| !has_errors(&self.diagnostics)) else {
            return;
        };
        let message = match replaced.len() {
            1 => "this LaunchKernel executes the statements of its fusion".to_owned(),
            count => format!("{count} LaunchKernels execute the statements of their fusions"),
        };
        let message =
            message + ": their arithmetic is not exactly that of the kernels that nvFuser generates";
        let it =
            Diagnostic::new(Code::LossyKernel, self.program.stmt_span(*launch), message, "launched here");
        let mut it = it.label(*group, "executes the statements of this group");
        if let Some(other) = other {
            it = it.label(other, "another container is between the two").help(
                "nvFuser prints the fusion of each container before it: if the log lacks that of this one, pass it with `--fusions FILE`",
            );
        }
        self.diagnostics.push(it);
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
