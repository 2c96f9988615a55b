//! Resolves logical and allocation domains: those of the `Domains:` section, which always take precedence, or
//! inferred ones.

use std::collections::HashSet;

use super::{Resolver, edits};
use crate::{
    ast, canonical,
    codes::Code,
    diagnostic::Diagnostic,
    domains::{self, AmbiguousTensor},
    ir::{AxisId, Domains, Program, TensorId, Transform},
    text::axis_text,
};

impl<'s> Resolver<'s, '_> {
    pub(super) fn resolve_domains(&mut self, lines: &[ast::Domain<'s>]) {
        for line in lines {
            let Some(tensor) = self.tensor_by_name(line.tensor) else { continue };
            if let Some(domains) = self.domain_line(tensor, line) {
                self.program.tensors[tensor].domains = domains;
            }
        }
    }

    /// Infers the domains of all tensors of a text without a `Domains:` section. Warns about each tensor that
    /// could have other domains; the fix adds the section.
    pub(super) fn infer_domains(&mut self) {
        let ambiguous = domains::infer(&mut self.program);
        if ambiguous.is_empty() {
            return;
        }
        let section = canonical::domains_section(&self.program);
        let fix = edits::insert_section_after(self.source, self.end_offset, &section);
        for it in &ambiguous {
            let mut warning = ambiguity_warning(&self.program, it);
            warning.fixes.push(fix.clone());
            self.diagnostics.push(warning);
        }
    }

    fn tensor_by_name(&mut self, name: ast::Name<'s>) -> Option<TensorId> {
        let number: Option<u32> = name.text.strip_prefix('T').and_then(|digits| digits.parse().ok());
        let mut all = number.into_iter().flat_map(|number| self.tensors_by_number.all(None, number));
        let found = (all.next(), all.next());
        drop(all);
        let (Some(only), None) = found else {
            let message = format!("`{}` does not name exactly one tensor of the container", name.text);
            self.error(Code::BadDomain, name.span, message, "expected a name such as `T3`");
            return None;
        };
        Some(only)
    }

    fn domain_line(&mut self, tensor: TensorId, line: &ast::Domain<'s>) -> Option<Domains> {
        let mut domains =
            Domains { logical: self.program.tensors[tensor].loop_domain.clone(), ..Domains::default() };
        for (clause, results) in &line.clauses {
            let ast::ExprKind::Call { name, args, .. } = &clause.kind else {
                self.error(
                    Code::BadDomain,
                    clause.span,
                    "not a clause",
                    "expected `logical(…)`, `split(…) -> (…)` …",
                );
                return None;
            };
            let results = results.iter().map(|it| self.axis(it)).collect::<Option<Vec<_>>>()?;
            match (name.text, &args[..], &results[..]) {
                ("logical", axes, []) => domains.logical = self.axis_list(axes)?,
                ("allocation", axes, []) => domains.allocation = Some(self.axis_list(axes)?),
                ("split" | "outer_split", [input, factor], [outer, inner]) => {
                    domains.transforms.push(Transform::Split {
                        input: self.axis(&input.value)?,
                        factor: self.scalar(&factor.value)?,
                        outer_split: name.text == "outer_split",
                        outer: *outer,
                        inner: *inner,
                    });
                }
                ("merge", [outer, inner], [output]) => domains.transforms.push(Transform::Merge {
                    outer: self.axis(&outer.value)?,
                    inner: self.axis(&inner.value)?,
                    output: *output,
                }),
                ("swizzle1d", [input], [output]) => domains
                    .transforms
                    .push(Transform::Swizzle1D { input: self.axis(&input.value)?, output: *output }),
                _ => {
                    self.error(
                        Code::BadDomain,
                        clause.span,
                        format!("`{}` is not a valid clause of `Domains:`", name.text),
                        "expected `logical(axes)`, `split(axis, factor) -> (outer, inner)`, `outer_split(…) -> (…)`, \
                         `merge(outer, inner) -> (axis)`, `swizzle1d(axis) -> (axis)` or `allocation(axes)`",
                    );
                    return None;
                }
            }
        }
        self.check_transforms(tensor, &domains, line)?;
        Some(domains)
    }

    fn axis_list(&mut self, args: &[ast::Arg<'s>]) -> Option<Vec<AxisId>> {
        args.iter().map(|arg| self.axis(&arg.value)).collect()
    }

    /// Replays the transforms and checks that they lead from the logical axes to exactly the loop axes.
    fn check_transforms(
        &mut self,
        tensor: TensorId,
        domains: &Domains,
        line: &ast::Domain<'s>,
    ) -> Option<()> {
        let mut axes = domains.logical.clone();
        let mut known = true;
        let made: Vec<AxisId> = domains.transforms.iter().flat_map(transform_results).collect();
        // A tensor may print one axis twice, `[iS0{4}, iS0{4}]`; the results of a transform must be new axes.
        let new: HashSet<AxisId> = made.iter().copied().collect();
        let fresh = new.len() == made.len() && !axes.iter().any(|it| new.contains(it));
        let mut take = |axes: &mut Vec<AxisId>, axis: AxisId| match axes.iter().position(|it| *it == axis) {
            Some(at) => {
                axes.remove(at);
            }
            None => known = false,
        };
        for transform in &domains.transforms {
            match transform {
                Transform::Split { input, outer, inner, .. } => {
                    take(&mut axes, *input);
                    axes.extend([*outer, *inner]);
                }
                Transform::Merge { outer, inner, output } => {
                    take(&mut axes, *outer);
                    take(&mut axes, *inner);
                    axes.push(*output);
                }
                Transform::Swizzle1D { input, output } => {
                    take(&mut axes, *input);
                    axes.push(*output);
                }
            }
        }
        let mut loops = self.program.tensors[tensor].loop_domain.clone();
        axes.sort();
        loops.sort();
        if !known || !fresh || axes != loops {
            let name = self.program.tensor_name(tensor);
            self.error(
                Code::BadDomain,
                line.tensor.span,
                format!("the transforms of `{name}` do not lead from its logical to its loop domain"),
                "expected every loop axis exactly once",
            );
            return None;
        }
        Some(())
    }
}

/// Returns the axes that a transform produces.
fn transform_results(transform: &Transform) -> Vec<AxisId> {
    match transform {
        Transform::Split { outer, inner, .. } => vec![*outer, *inner],
        Transform::Merge { output, .. } | Transform::Swizzle1D { output, .. } => vec![*output],
    }
}

/// Returns the warning that states the chosen domains and how to make them explicit.
fn ambiguity_warning(program: &Program, it: &AmbiguousTensor) -> Diagnostic {
    let name = program.tensor_name(it.tensor);
    let (outer, inner) = (axis_text(program, it.outer), axis_text(program, it.inner));
    let loops: Vec<String> =
        program.tensors[it.tensor].loop_domain.iter().map(|axis| axis_text(program, *axis)).collect();
    let message =
        format!("`{outer}` and `{inner}` of `{name}` are two logical axes, or the results of one split");
    Diagnostic::new(
        Code::LossyDomains,
        program.tensor_span(it.tensor),
        message,
        "interpreted as two logical axes",
    )
    .help(format!(
        "write a section `Domains:` with `{name}: logical({})` after the container to make this explicit",
        loops.join(", ")
    ))
}
