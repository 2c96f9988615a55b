//! Resolves the domains that a log states: the lines that nvFuser's `TransformPrinter` prints about each tensor of a fusion.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Resolver;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    fusion_dump::{FusionDump, TensorTransforms, TransformKind, TransformLine},
    ir::{AxisId, AxisKind, Domains, ParallelType, TensorId, Transform, UnitId},
    parse::parse_scalar_at,
    scan::scan,
    span::Span,
    token::{ScanLimit, TokenKind},
};

impl<'s> Resolver<'s> {
    /// Sets the domains of the container's tensors that a dump states, and returns these tensors. Reports a tensor that the dump
    /// has with other axes.
    pub(super) fn apply_domains(&mut self, dump: &FusionDump<'s>) -> FxHashSet<TensorId> {
        let mut stated = FxHashSet::default();
        for (tensor, transforms) in self.stated_tensors(dump, None) {
            if !self.is_same_tensor(tensor, &transforms.tensor) {
                let place = self.program.tensor_span(tensor);
                self.report_different_tensor(tensor, place, transforms.tensor.span);
                continue;
            }
            if let Some(other) = dump.contradictions.get(&self.program.tensors[tensor].number) {
                self.report_contradiction(tensor, transforms.tensor.span, *other);
            }
            if let Some(domains) = self.domains_of(tensor, transforms) {
                self.program.tensors[tensor].domains = domains;
                stated.insert(tensor);
            } else {
                self.unused_domains
                    .push(unused_domains(self.program.tensor_name(tensor), transforms.tensor.span));
            }
        }
        stated
    }

    /// Reports that a log states the domains of a tensor twice.
    fn report_contradiction(&mut self, tensor: TensorId, first: Span, other: Span) {
        let name = self.program.tensor_name(tensor);
        let message = format!("the log states two domains of `{name}`");
        let place = self.program.tensor_span(tensor);
        let it = Diagnostic::new(Code::FusionMismatch, place, message, "the container has this tensor");
        let it = it.label(first, "its domains").label(other, "and other ones");
        self.diagnostics.push(it.help("remove the lines that are not those of the container's fusion"));
    }

    /// Sets the domains of a HostUnit's tensors. Returns whether the dump states them.
    pub(super) fn apply_unit_domains(&mut self, dump: &FusionDump<'s>, unit: UnitId) -> bool {
        let mut is_stated = true;
        let outer = self.current_unit.replace(unit);
        for (tensor, transforms) in self.stated_tensors(dump, Some(unit)) {
            match self.domains_of(tensor, transforms) {
                Some(domains) => self.program.tensors[tensor].domains = domains,
                None => is_stated = false,
            }
        }
        self.current_unit = outer;
        is_stated && !dump.domains.is_empty()
    }

    /// Returns the tensors of a namespace that a dump has, too.
    fn stated_tensors<'d>(
        &self,
        dump: &'d FusionDump<'s>,
        unit: Option<UnitId>,
    ) -> Vec<(TensorId, &'d TensorTransforms<'s>)> {
        let own = self.program.tensors.iter().filter(|(_, it)| it.unit == unit);
        own.filter_map(|(id, it)| Some((id, dump.domains.get(&it.number)?))).collect()
    }

    /// Returns the domains that the lines about a tensor state; `None` if the language cannot express them.
    fn domains_of(&mut self, tensor: TensorId, stated: &TensorTransforms<'s>) -> Option<Domains> {
        let loops = self.program.tensors[tensor].loop_domain.clone();
        let (mut logical, mut allocation) = (loops.clone(), None);
        let mut transforms = Vec::new();
        for line in &stated.lines {
            match line.kind {
                TransformKind::Logical => logical = self.axes_in(line)?,
                TransformKind::Allocation => allocation = Some(self.axes_in(line)?),
                TransformKind::Split { outer } => transforms.push(self.split(line, outer)?),
                TransformKind::Merge => match self.axes_in(line)?[..] {
                    [outer, inner, output] => transforms.push(Transform::Merge { outer, inner, output }),
                    _ => return None,
                },
                TransformKind::Swizzle1D => match self.axes_in(line)?[..] {
                    [input, output] => transforms.push(Transform::Swizzle1D { input, output }),
                    _ => return None,
                },
                TransformKind::Loop | TransformKind::Other => (),
            }
        }
        // nvFuser also prints the transforms from the root domain to the logical domain.
        let mut live: FxHashSet<AxisId> = logical.iter().copied().collect();
        let mut known = live.clone();
        transforms.retain(|it| {
            let (inputs, outputs) = it.axes();
            let is_below = inputs.iter().all(|it| live.contains(it));
            if is_below {
                inputs.iter().for_each(|it| _ = live.remove(it));
                known.extend(&outputs);
                live.extend(outputs);
            }
            is_below
        });
        let is_known = |it: &AxisId| known.contains(it);
        if live != loops.into_iter().collect() || !allocation.iter().flatten().all(is_known) {
            return None;
        }
        let domains = Domains { logical, transforms, allocation };
        Some(self.with_plain_allocation(domains))
    }

    /// Leaves out an allocation domain that has the order of the logical one and is not split by streams.
    fn with_plain_allocation(&self, domains: Domains) -> Domains {
        let Some(allocation) = &domains.allocation else { return domains };
        let axes = &self.program.axes;
        let is_split = allocation.iter().any(|it| axes[*it].parallel == ParallelType::Stream);
        let results: FxHashMap<AxisId, Vec<AxisId>> = domains
            .transforms
            .iter()
            .flat_map(|it| match it {
                Transform::Split { input, outer, inner, .. } => vec![(*input, vec![*outer, *inner])],
                Transform::Merge { outer, inner, output } => {
                    vec![(*outer, vec![*output]), (*inner, Vec::new())]
                }
                Transform::Swizzle1D { input, output } => vec![(*input, vec![*output])],
            })
            .collect();
        let leaves = |list: &[AxisId]| {
            let mut stack: Vec<AxisId> = list.iter().rev().copied().collect();
            let mut leaves = Vec::new();
            while let Some(axis) = stack.pop() {
                match results.get(&axis) {
                    Some(own) => stack.extend(own.iter().rev()),
                    // What is not a dimension in memory has no place in it.
                    None if axes[axis].kind != AxisKind::Reduction => leaves.push(axis),
                    None => (),
                }
            }
            leaves
        };
        if !is_split && leaves(allocation) == leaves(&domains.logical) {
            Domains { allocation: None, ..domains }
        } else {
            domains
        }
    }

    fn axes_in(&mut self, line: &TransformLine<'s>) -> Option<Vec<AxisId>> {
        let (tokens, _) = scan(line.text, ScanLimit::TextEnd, &mut Vec::new(), &mut Vec::new());
        let axes = tokens.iter().filter(|it| it.kind == TokenKind::Axis);
        axes.map(|it| self.axis_text(line.text.slice(it.start, it.end), it.start)).collect()
    }

    /// Resolves `iS1{64} by factor 2 -> ideviceIdx.x10{2}, iS11{32}`.
    fn split(&mut self, line: &TransformLine<'s>, outer_split: bool) -> Option<Transform> {
        const MARK: &str = " by factor ";
        let [input, outer, inner] = self.axes_in(line)?[..] else { return None };
        let text = line.text.text;
        let start = text.find(MARK)? + MARK.len();
        let factor = text.get(start..)?.split(" ->").next()?;
        let factor = parse_scalar_at(factor, line.text.base + start as u32).ok()?;
        Some(Transform::Split { input, factor: self.scalar(&factor)?, outer_split, outer, inner })
    }
}

/// Says that the domains which a log states for a tensor are not used.
fn unused_domains(name: String, stated: Span) -> Diagnostic {
    let message = format!("the domains that the log states for `{name}` are not used");
    let label = "the lines below do not lead from its logical domain to its axes, or hir cannot express them";
    let help = "compare the lines with the log of nvFuser, or add the line of the tensor below `Domains:`; \
                without it, its domains are inferred from the container";
    Diagnostic::new(Code::LossyDomains, stated, message, label).help(help)
}
