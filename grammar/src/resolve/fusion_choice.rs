//! Finds the fusion of the log that belongs to a container, and the groups of its launches.
//!
//! Nothing in a log names the fusion of a container. Groups and tensors have the same numbers in both.

use std::slice;

use rustc_hash::FxHashSet;

use super::Resolver;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    fusion_dump::{FusionDump, Group, Lists, Value},
    ir::{AxisId, Operand, Program, Stmt, StmtId, TensorId},
    ops::Op,
    span::Span,
    suggest::list_text,
    tensor::parse_tensor_text,
    text::{axis_text, expr_text},
};

/// The option with which nvFuser prints the groups.
const DUMP_OPTION: &str = "NVFUSER_DUMP=host_ir,segmented_fusion";

/// A LaunchKernel of the container.
pub(super) struct Launch {
    pub(super) stmt: StmtId,
    /// The number of the group.
    pub(super) id: Option<u32>,
    pub(super) inputs: Vec<Operand>,
    pub(super) outputs: Vec<Operand>,
    /// The short names of the operands.
    pub(super) input_names: Vec<String>,
    pub(super) output_names: Vec<String>,
}

impl Launch {
    /// Returns whether a group reads and writes the same tensors.
    fn has_lists(&self, lists: &Lists<'_>) -> bool {
        has_names(&self.input_names, &lists.inputs) && has_names(&self.output_names, &lists.outputs)
    }
}

/// Returns whether a dump has a fusion without number that reads and writes the same tensors.
pub(super) fn has_unnumbered(dumps: &[FusionDump<'_>], launch: &Launch) -> bool {
    dumps.iter().flat_map(|it| &it.groups).any(|it| it.id.is_none() && launch.has_lists(&it.lists))
}

/// Returns whether a list has exactly these names.
fn has_names(names: &[String], list: &[Value<'_>]) -> bool {
    let own: FxHashSet<&str> = names.iter().map(String::as_str).collect();
    let other: FxHashSet<&str> = list.iter().map(Value::name).collect();
    own == other
}

impl<'s> Resolver<'s> {
    /// Returns the LaunchKernels of the container.
    pub(super) fn launches(&self) -> Vec<Launch> {
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

    /// Returns the dump that belongs to the container: the last one that fits. Reports dumps that fit and differ. `is_own`: a dump
    /// that has other axes belongs to the container nevertheless, and is a contradiction.
    pub(super) fn chosen_dump<'d>(
        &mut self,
        dumps: &'d [FusionDump<'s>],
        launches: &[Launch],
        is_own: bool,
    ) -> Option<&'d FusionDump<'s>> {
        let fitting = |is_by_number| {
            let it = dumps.iter().rev().filter(|it| self.fits(it, launches, is_by_number));
            it.collect::<Vec<_>>()
        };
        let mut found = fitting(false);
        if found.is_empty() && is_own {
            found = fitting(true);
        }
        let mut fitting = found.into_iter();
        let last = fitting.next()?;
        let Some(other) = fitting.clone().find(|it| !self.is_same(it, last, launches)) else {
            // The lines of several ranks may tear the groups of a fusion from its domains.
            return Some(if last.domains.is_empty() {
                fitting.find(|it| !it.domains.is_empty()).unwrap_or(last)
            } else {
                last
            });
        };
        let (span, label) = match launches.first() {
            Some(launch) => (self.program.stmt_span(launch.stmt), "the first launch"),
            None => (self.program.spans.header, "the container"),
        };
        let message = "two fusions of the log fit this container, and they differ";
        let it = Diagnostic::new(Code::FusionMismatch, span, message, label)
            .label(first_line(self.source, other.span), "a fusion that fits")
            .label(first_line(self.source, last.span), "another one");
        self.diagnostics.push(it.help(
            "write the one that belongs to the container to a file, and pass it with `--fusions FILE`",
        ));
        None
    }

    /// Returns the last dump if it is that of the container by its inputs and outputs, and its groups are cut off: an older one is that of another
    /// fusion.
    pub(super) fn cut_dump<'d>(
        &self,
        dumps: &'d [FusionDump<'s>],
        launches: &[Launch],
    ) -> Option<&'d FusionDump<'s>> {
        let is_cut = |it: &&FusionDump<'s>| self.fits(it, &[], false) && !self.fits(it, launches, true);
        dumps.last().filter(is_cut).filter(|_| !launches.is_empty())
    }

    /// Returns whether two dumps that fit say the same about the container.
    fn is_same(&self, a: &FusionDump<'_>, b: &FusionDump<'_>, launches: &[Launch]) -> bool {
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
        let has_same_domains = a.domains.is_empty() || b.domains.is_empty() || domains(a, b) && domains(b, a);
        launches.iter().all(is_same_group) && has_same_domains && self.has_same_red_ops(a, b)
    }

    /// Returns the indices of the files that have a dump which can belong to the container or a kernel of it.
    pub(super) fn files_that_fit(&self, dumps: &[FusionDump<'s>], launches: &[Launch]) -> FxHashSet<usize> {
        let is_of_kernel =
            |it: &FusionDump<'s>| launches.iter().any(|launch| has_unnumbered(slice::from_ref(it), launch));
        let is_fitting = |it: &&FusionDump<'s>| self.fits(it, launches, true) || is_of_kernel(it);
        dumps.iter().filter(is_fitting).filter_map(|it| it.file).collect()
    }

    /// Returns whether a dump can belong to the container. `is_by_number`: its tensors have to have the same numbers, but not the
    /// same axes.
    fn fits(&self, dump: &FusionDump<'s>, launches: &[Launch], is_by_number: bool) -> bool {
        if launches.is_empty() {
            return self.has_io(dump);
        }
        let mut is_any = false;
        for launch in launches {
            let mut groups = launch.id.into_iter().flat_map(|id| dump.groups_with_id(id)).peekable();
            if groups.peek().is_none() {
                continue;
            }
            is_any = true;
            let is_fitting = |it: &Group<'s>| {
                launch.has_lists(&it.lists) && (is_by_number || self.different_operand(launch, it).is_none())
            };
            if !groups.any(is_fitting) {
                return false;
            }
        }
        is_any
    }

    /// Returns whether a dump has the inputs and outputs of the container.
    pub(super) fn has_io(&self, dump: &FusionDump<'s>) -> bool {
        let program = &self.program;
        let ports = || Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        dump.io.as_ref().is_some_and(|io| {
            let values = || io.inputs.iter().chain(&io.outputs).filter(|it| it.is_tensor());
            ports().count() == values().count()
                && ports().zip(values()).all(|(tensor, value)| self.is_same_tensor(tensor, value))
        })
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
        let same_text = |axis: AxisId, text: &str| {
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

    /// Returns the group of a launch with its dump: that of its number in the chosen dump or else a fusion without number that
    /// reads and writes the same tensors.
    pub(super) fn group_of<'d>(
        &mut self,
        dumps: &'d [FusionDump<'s>],
        chosen: Option<&'d FusionDump<'s>>,
        launch: &Launch,
    ) -> Option<(&'d FusionDump<'s>, &'d Group<'s>)> {
        let numbered = launch.id.zip(chosen).into_iter();
        let numbered = numbered.flat_map(|(id, dump)| dump.groups_with_id(id).map(move |it| (dump, it)));
        let mut found: Vec<(&FusionDump<'s>, &Group<'s>)> = numbered.collect();
        if found.is_empty() {
            // Dumps of single kernels have other axes.
            let is_its = |it: &Group<'s>| {
                it.id.is_none() && launch.has_lists(&it.lists) && self.different_operand(launch, it).is_none()
            };
            let groups = dumps.iter().flat_map(|dump| dump.groups.iter().map(move |it| (dump, it)));
            found.extend(groups.filter(|it| is_its(it.1)));
        }
        let (dump, group) = *found.last()?;
        let span = self.program.stmt_span(launch.stmt);
        // The lines of several ranks may tear the groups of a fusion from the rest of it: then nothing says whose they are.
        let torn = dumps.iter().filter(|it| it.file.is_none() && dump.complete.is_none());
        let torn = torn.flat_map(|it| launch.id.into_iter().flat_map(|id| it.groups_with_id(id)));
        let torn =
            torn.filter(|it| launch.has_lists(&it.lists) && self.different_operand(launch, it).is_none());
        let other = found.iter().map(|it| it.1).chain(torn).find(|it| !it.is_same(group));
        if let Some(other) = other {
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
            let it = Diagnostic::new(Code::KernelWithoutBody, span, message, "launched here");
            self.diagnostics.push(
                it.label(group.heading, "the group")
                    .label(place, "its text is cut off here")
                    .help(format!("copy the whole group: nvFuser prints it with `{DUMP_OPTION}`")),
            );
            return None;
        }
        Some((dump, group))
    }

    /// Reports that no fusion of the log has the group of a launch. `of_other_rank` is the place of a fusion that another rank
    /// printed. Returns whether it did.
    pub(super) fn report_missing_group(
        &mut self,
        dumps: &[FusionDump<'s>],
        chosen: Option<&FusionDump<'s>>,
        launch: &Launch,
        of_other_rank: Option<Span>,
    ) -> bool {
        let span = self.program.stmt_span(launch.stmt);
        let message = "no fusion of the log has the group of this launch, so hir cannot run the kernel";
        let it = Diagnostic::new(Code::KernelWithoutBody, span, message, "launched here");
        let Some(dump) = chosen.or(dumps.last()) else {
            let Some(other) = of_other_rank else { return false };
            self.diagnostics.push(it.label(other, "another rank printed this one").help(
                "take the whole log: each rank prints the fusion of its container; or pass the log of one rank with `--fusions FILE`",
            ));
            return true;
        };
        let same_number = launch.id.and_then(|id| dump.groups_with_id(id).last());
        let it = match same_number {
            Some(group) => {
                let names = |list: &[Value<'_>]| list_text(list.iter().map(Value::name), 6, "and");
                let Lists { inputs, outputs } = &group.lists;
                let label = format!(
                    "the group with this number is another one: it reads {} and writes {}",
                    names(inputs),
                    names(outputs)
                );
                it.label(group.id.map_or(group.heading, |it| it.1), label)
            }
            None => it.label(first_line(self.source, dump.span), "the fusion has no group with this number"),
        };
        let help = format!(
            "pass the log of the container's fusion with `--fusions FILE`: nvFuser prints it with `{DUMP_OPTION}`"
        );
        self.diagnostics.push(it.help(help));
        true
    }

    /// Reports that a tensor of the container, at `place`, is not the one that the log has at `other`.
    pub(super) fn report_different_tensor(&mut self, tensor: TensorId, place: Span, other: Span) {
        let name = self.program.tensor_name(tensor);
        if !self.differing_tensors.insert(name.to_string()) {
            return;
        }
        let message = format!("`{name}` of the container and `{name}` of the fusion in the log differ");
        let it = Diagnostic::new(Code::FusionMismatch, place, message, "the container has this tensor")
            .label(other, "the fusion has this one");
        self.diagnostics.push(it.help(
            "remove the fusion if it is not that of the container, or pass the right one with `--fusions FILE`",
        ));
    }
}

/// Returns the first line of a range.
fn first_line(source: &str, span: Span) -> Span {
    let length = span.text(source).lines().next().map_or(0, |it| it.trim_end().len());
    Span { end: span.start + length as u32, ..span }
}
