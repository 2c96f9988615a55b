//! Resolves logical and allocation domains: those of the `Domains:` section, which always take precedence, or
//! inferred ones.

use std::{cell::OnceCell, collections::HashSet};

use rustc_hash::FxHashSet;

use super::{Resolver, edits, units::unit_number};
use crate::{
    ast, canonical,
    codes::Code,
    diagnostic::Diagnostic,
    domains::{self, AmbiguousTensor},
    ir::{AxisId, Domains, Program, SectionPart, TensorId, Transform, UnitId},
    span::Span,
    suggest::list_text,
    tensor_uses::tensors_in_text_order,
    text::axis_text,
};

/// The forms of the clauses.
const CLAUSES: [&str; 6] = [
    "logical(axes)",
    "split(axis, factor) -> (outer, inner)",
    "outer_split(axis, factor) -> (outer, inner)",
    "merge(outer, inner) -> (axis)",
    "swizzle1d(axis) -> (axis)",
    "allocation(axes)",
];

impl<'s> Resolver<'s> {
    pub(super) fn resolve_domains(&mut self, lines: &[ast::Domain<'s>]) {
        let mentioned = OnceCell::new();
        for line in lines {
            let Some(tensor) = self.tensor_by_name(line.tensor, &mentioned) else { continue };
            let (name, span) = (line.tensor.text, line.tensor.span);
            if let Some(first) = self.domain_spans.insert(tensor, span) {
                self.stated_twice(&format!("the domain of `{name}`"), [first, span]);
                continue;
            }
            let whole = line.clauses.iter().flat_map(|(clause, results)| results.last().or(Some(clause)));
            let whole = whole.fold(span, |whole, it| whole.join(it.span));
            self.program.spans.add_section_part(whole, SectionPart::Domain(tensor));
            let unit = self.program.tensors[tensor].unit;
            let outer = std::mem::replace(&mut self.current_unit, unit);
            if let Some(domains) = self.domain_line(tensor, line) {
                self.program.tensors[tensor].domains = domains;
            }
            self.current_unit = outer;
        }
    }

    /// Infers the domains of all tensors of a text without a `Domains:` section, except for those in `stated`, which the log states.
    /// `units` are HostUnits from the log without domains. Warns about each tensor that could have other domains, or whose domains in the log are not used; the fix adds
    /// the section.
    pub(super) fn infer_domains(&mut self, stated: &FxHashSet<TensorId>, units: &[UnitId]) {
        let ambiguous = domains::infer(&mut self.program, stated, units);
        self.program.spans.are_domains_inferred = stated.is_empty();
        let mut warnings = std::mem::take(&mut self.unused_domains);
        warnings.extend(ambiguous.iter().map(|it| ambiguity_warning(&self.program, it)));
        if warnings.is_empty() {
            return;
        }
        let section = canonical::domains_section(&self.program);
        let fix = edits::insert_section_after(self.source, self.place.end, &section);
        warnings.iter_mut().for_each(|it| it.fixes.push(fix.clone()));
        self.diagnostics.append(&mut warnings);
    }

    /// Returns the tensor of a line. If several have its number, it is the one that is not only in a `%tensor` line.
    fn tensor_by_name(
        &mut self,
        name: ast::Name<'s>,
        mentioned: &OnceCell<HashSet<TensorId>>,
    ) -> Option<TensorId> {
        // `HostUnit3.T6` is a tensor of a HostUnit.
        let (unit, own) = match name.text.split_once('.') {
            Some((unit, own)) => {
                let number = unit_number(unit);
                let unit = number.and_then(|it| self.units_by_number.get(&it).copied());
                if unit.is_none() {
                    let message =
                        format!("the container has no HostUnit `{unit_name}`", unit_name = name.text);
                    let label = "expected a tensor, or the name of a HostUnit, a dot and a tensor";
                    self.error(Code::BadDomain, name.span, message, label);
                    return None;
                }
                (unit, own)
            }
            None => (None, name.text),
        };
        let number: Option<u32> = own.strip_prefix('T').and_then(|digits| digits.parse().ok());
        let mut all: Vec<TensorId> =
            number.into_iter().flat_map(|number| self.tensors_by_number.all(unit, number)).collect();
        if all.len() > 1 && unit.is_none() {
            let mentioned =
                mentioned.get_or_init(|| tensors_in_text_order(&self.program).into_iter().collect());
            all.retain(|it| mentioned.contains(it));
        }
        if let [only] = all[..] {
            return Some(only);
        }
        let label = match self.tensor_names("or").as_str() {
            "" => "the container has no tensors".to_owned(),
            known => format!("expected {known}"),
        };
        match all.len() {
            0 => {
                let message = format!("the container has no tensor `{}`", name.text);
                self.unknown_tensor(number, Diagnostic::new(Code::BadDomain, name.span, message, label));
            }
            _ => {
                let message = format!("`{}` is the number of several tensors of the container", name.text);
                self.error(Code::BadDomain, name.span, message, label);
            }
        }
        None
    }

    fn domain_line(&mut self, tensor: TensorId, line: &ast::Domain<'s>) -> Option<Domains> {
        let mut domains =
            Domains { logical: self.program.tensors[tensor].loop_domain.clone(), ..Domains::default() };
        let mut lists = HashSet::new();
        for (clause, results) in &line.clauses {
            let ast::ExprKind::Call { name, args, number } = &clause.kind else {
                self.error(
                    Code::BadDomain,
                    clause.span,
                    "not a clause",
                    "expected `logical(…)`, `split(…) -> (…)` …",
                );
                return None;
            };
            let results = results.iter().map(|it| self.domain_axis(it)).collect::<Option<Vec<_>>>()?;
            if matches!(name.text, "logical" | "allocation") && !lists.insert(name.text) {
                let message = format!("`{}` has two clauses `{}`", line.tensor.text, name.text);
                self.error(Code::BadDomain, name.span, message, "expected one of them");
                return None;
            }
            match (name.text, &args[..], &results[..]) {
                _ if number.is_some() || args.iter().any(|it| it.key.is_some()) => {
                    self.bad_clause(name, clause.span);
                    return None;
                }
                ("logical", axes, []) => domains.logical = self.axis_list(axes)?,
                ("allocation", axes, []) => domains.allocation = Some(self.axis_list(axes)?),
                ("split" | "outer_split", [input, factor], [outer, inner]) => {
                    domains.transforms.push(Transform::Split {
                        input: self.domain_axis(&input.value)?,
                        factor: self.scalar(&factor.value)?,
                        outer_split: name.text == "outer_split",
                        outer: *outer,
                        inner: *inner,
                    });
                }
                ("merge", [outer, inner], [output]) => domains.transforms.push(Transform::Merge {
                    outer: self.domain_axis(&outer.value)?,
                    inner: self.domain_axis(&inner.value)?,
                    output: *output,
                }),
                ("swizzle1d", [input], [output]) => domains
                    .transforms
                    .push(Transform::Swizzle1D { input: self.domain_axis(&input.value)?, output: *output }),
                _ => {
                    self.bad_clause(name, clause.span);
                    return None;
                }
            }
        }
        self.check_transforms(tensor, &domains, line)?;
        Some(domains)
    }

    /// Resolves an axis in a line of `Domains:`.
    fn domain_axis(&mut self, value: &ast::Expr<'s>) -> Option<AxisId> {
        let axis = self.axis(value)?;
        self.program.spans.add_section_part(value.span, SectionPart::DomainAxis(axis));
        Some(axis)
    }

    fn axis_list(&mut self, args: &[ast::Arg<'s>]) -> Option<Vec<AxisId>> {
        args.iter().map(|arg| self.domain_axis(&arg.value)).collect()
    }

    /// Reports a clause that does not exist, or that has another form.
    fn bad_clause(&mut self, name: &ast::Name<'s>, span: Span) {
        let form = CLAUSES.iter().find(|it| it.split('(').next() == Some(name.text));
        let it = match form {
            Some(form) => {
                let message = format!("`{}` has other operands or results", name.text);
                Diagnostic::new(Code::BadDomain, span, message, format!("expected `{form}`"))
            }
            None => {
                let words = || CLAUSES.iter().filter_map(|it| it.split('(').next());
                let message = format!("`{}` is not a clause of `Domains:`", name.text);
                let words: Vec<&str> = words().collect();
                let label = format!("expected {}", list_text(words.iter().copied(), 8, "or"));
                Diagnostic::new(Code::BadDomain, name.span, message, label)
                    .suggest(name.text, words.into_iter())
            }
        };
        self.diagnostics.push(it);
    }

    /// Reports a transform of an axis that does not exist at its place.
    fn unknown_input(&mut self, clause: &ast::Expr<'s>, input: AxisId, axes: &[AxisId]) {
        let text = axis_text(&self.program, input);
        let known: Vec<String> = axes.iter().map(|it| axis_text(&self.program, *it)).collect();
        let message = format!("no clause before this gives `{text}`");
        let label = format!("the axes here are {}", list_text(known.iter().map(|it| it.as_str()), 8, "and"));
        let args: &[ast::Arg<'s>] = match &clause.kind {
            ast::ExprKind::Call { args, .. } => args,
            _ => &[],
        };
        let place = args.iter().map(|it| it.value.span).find(|it| it.text(self.source) == text);
        self.error(Code::BadDomain, place.unwrap_or(clause.span), message, label);
    }

    /// Replays the transforms and checks that they lead from the logical axes to exactly the loop axes.
    fn check_transforms(
        &mut self,
        tensor: TensorId,
        domains: &Domains,
        line: &ast::Domain<'s>,
    ) -> Option<()> {
        let mut axes = domains.logical.clone();
        let made: Vec<AxisId> = domains.transforms.iter().flat_map(|it| it.axes().1).collect();
        // The results of a transform must be new axes.
        let new: HashSet<AxisId> = made.iter().copied().collect();
        let fresh = new.len() == made.len() && !axes.iter().any(|it| new.contains(it));
        let clauses: Vec<&ast::Expr<'s>> = line
            .clauses
            .iter()
            .filter(|(_, results)| !results.is_empty())
            .map(|(clause, _)| clause)
            .collect();
        for (at, transform) in domains.transforms.iter().enumerate() {
            let (inputs, results) = transform.axes();
            for input in inputs {
                match axes.iter().position(|it| *it == input) {
                    Some(found) => {
                        axes.remove(found);
                    }
                    None => {
                        if let Some(clause) = clauses.get(at) {
                            self.unknown_input(clause, input, &axes);
                        }
                        return None;
                    }
                }
            }
            axes.extend(results);
        }
        let mut loops = self.program.tensors[tensor].loop_domain.clone();
        axes.sort();
        loops.sort();
        if !fresh || axes != loops {
            let name = self.program.tensor_name(tensor);
            let text = |list: &[AxisId]| {
                let texts: Vec<String> = list.iter().map(|it| axis_text(&self.program, *it)).collect();
                list_text(texts.iter().map(String::as_str), 8, "and")
            };
            let extra: Vec<AxisId> = axes.iter().copied().filter(|it| !loops.contains(it)).collect();
            let missing: Vec<AxisId> = loops.iter().copied().filter(|it| !axes.contains(it)).collect();
            let message =
                format!("the line of `{name}` does not produce the axes that `{name}` is printed with");
            let (given, wanted) = (text(&extra), text(&missing));
            let label = match (extra.is_empty(), missing.is_empty()) {
                (false, false) => format!("this line produces {given} instead of {wanted}"),
                (false, true) => format!("this line produces {given}, which `{name}` does not have"),
                (true, false) => format!("no clause produces {wanted}"),
                (true, true) => "expected every loop axis exactly once".to_owned(),
            };
            // The axis in the line that the tensor does not have.
            let own = line.clauses.iter().flat_map(|(clause, results)| {
                let args: &[ast::Arg<'s>] = match &clause.kind {
                    ast::ExprKind::Call { args, .. } => args,
                    _ => &[],
                };
                args.iter().map(|it| it.value.span).chain(results.iter().map(|it| it.span))
            });
            let wrong = extra.first().map(|it| axis_text(&self.program, *it));
            let mut own = own.filter(|it| wrong.as_deref() == Some(it.text(self.source)));
            let place = own.next_back().unwrap_or(line.tensor.span);
            let it = Diagnostic::new(Code::BadDomain, place, message, label)
                .label(self.program.tensor_span(tensor), format!("`{name}` is printed with these axes"));
            self.diagnostics.push(it);
            return None;
        }
        // Storage consists of axes that the line mentions.
        let known: HashSet<AxisId> = domains.logical.iter().copied().chain(made).chain(loops).collect();
        let unknown = domains.allocation.iter().flatten().find(|it| !known.contains(it)).copied();
        if let Some(axis) = unknown {
            let text = axis_text(&self.program, axis);
            let message = format!(
                "the allocation domain has the axis `{text}`, which is neither a logical axis nor the result of a clause"
            );
            let clause =
                line.clauses.iter().map(|(clause, _)| clause).find(
                    |it| matches!(&it.kind, ast::ExprKind::Call { name, .. } if name.text == "allocation"),
                );
            let place = clause.map_or(line.tensor.span, |it| it.span);
            self.error(Code::BadDomain, place, message, "expected axes of the logical or of the loop domain");
            return None;
        }
        Some(())
    }
}

/// Returns the warning that states the chosen domains and how to make them explicit.
fn ambiguity_warning(program: &Program, it: &AmbiguousTensor) -> Diagnostic {
    let name = program.tensor_name(it.tensor);
    let texts = |axes: &[AxisId]| -> String {
        let texts: Vec<String> = axes.iter().map(|axis| axis_text(program, *axis)).collect();
        texts.join(", ")
    };
    let tensor = &program.tensors[it.tensor];
    let (message, label) = match it.split {
        Some((outer, inner)) => (
            format!(
                "the text does not determine whether `{}` and `{}` of `{name}` are two logical axes or the results of one split",
                axis_text(program, outer),
                axis_text(program, inner)
            ),
            "interpreted as two logical axes".to_owned(),
        ),
        None => (
            format!(
                "the text does not determine the order of the logical axes of `{name}`, the result of a permutation"
            ),
            format!("interpreted as [{}]", texts(&tensor.domains.logical)),
        ),
    };
    Diagnostic::new(Code::LossyDomains, program.tensor_span(it.tensor), message, label).help(format!(
        "write a section `Domains:` with `{name}: logical({})` after the container to make this explicit",
        texts(&tensor.loop_domain)
    ))
}
