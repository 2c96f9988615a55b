//! Checks each tensor by itself, apart from the statements: its sharding, its spelling and its transforms.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use super::Verifier;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{AxisId, AxisKind, DeviceDim, ExprId, ParallelType, TensorId, Transform},
    ops::Op,
    span::Span,
    suggest::list_text,
    text::{axis_text, tensor_text},
};

impl Verifier<'_> {
    /// Checks the mesh and the axes of a tensor; reports the first error.
    pub(super) fn check_sharding(&mut self, tensor: TensorId) {
        let it = &self.program.tensors[tensor];
        let span = self.program.tensor_span(tensor);
        let name = self.program.tensor_name(tensor);
        let devices: HashSet<usize> = it.mesh.devices.iter().copied().collect();
        if devices.len() != it.mesh.devices.len() {
            let message = format!("the mesh of `{name}` contains a device twice");
            let place = self.program.mesh_span(tensor).unwrap_or(span);
            self.error(Code::BadSharding, place, message, "expected each device once");
            self.faulty.insert(tensor);
            return;
        }
        let mut seen = HashSet::default();
        for id in &it.loop_domain {
            let axis = &self.program.axes[*id];
            if !matches!(axis.parallel, ParallelType::Device(_) | ParallelType::Stream) {
                continue;
            }
            if !seen.insert(axis.parallel) {
                let text = axis_text(self.program, *id);
                let kind = text.split('{').next().unwrap_or("").trim_start_matches(['i', 'r']);
                let kind = kind.trim_end_matches(|it: char| it.is_ascii_digit());
                let message = format!("`{name}` has two axes that are parallelized over `{kind}`");
                let place = self.axis_span(tensor, *id);
                self.error(
                    Code::BadSharding,
                    place,
                    message,
                    "expected another parallel type: each one can occur once",
                );
                self.faulty.insert(tensor);
                return;
            }
            if let ParallelType::Device(dim) = axis.parallel {
                let place = self.axis_span(tensor, *id);
                self.check_device_axis(&name, tensor, axis.extent, dim, place);
                if self.faulty.contains(&tensor) {
                    return;
                }
            }
        }
    }

    /// Returns the position of an axis where a tensor is first mentioned.
    fn axis_span(&self, tensor: TensorId, axis: AxisId) -> Span {
        let own = self.program.axis_spans(tensor).find(|it| it.0 == axis);
        own.map_or_else(|| self.program.tensor_span(tensor), |it| it.1)
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
        // nvFuser gives the operand of a SymmetricContiguousView, one rank's shard, a device axis of extent 1.
        let is_shard = || {
            let mut ops = self.program.stmts.iter().filter_map(|(_, it)| it.op());
            ops.any(|it| it.op == Op::SymmetricContiguousView && it.tensor_operands().contains(&tensor))
        };
        let extent = self.program.constant(extent).filter(|extent| *extent != wanted);
        if let Some(extent) = extent.filter(|extent| *extent != 1 || !is_shard()) {
            let message = format!("`{name}` has a device axis of extent {extent} on a mesh of {wanted}");
            let it = Diagnostic::new(Code::BadSharding, span, message, format!("expected extent {wanted}"));
            let all = mesh.devices.len();
            self.diagnostics.push(match wanted {
                1 if all > 1 => it.help(format!(
                    "the {all} devices of the mesh are along another dimension: {}",
                    match mesh.shape.len() {
                        1 => "a mesh without inner braces has only the dimension x",
                        _ => "the innermost braces of a mesh are x, the next ones y",
                    }
                )),
                _ => it,
            });
            self.faulty.insert(tensor);
        }
    }

    /// Checks that each number belongs to one tensor.
    ///
    /// Two spellings of a number are two tensors, one of which then lacks its value or its readers. Dumps
    /// without element types number the tensors of each fusion separately.
    pub(super) fn check_unique_names(&mut self, mentioned: &[TensorId]) {
        let mut named: HashMap<u32, TensorId> = HashMap::default();
        for &second in mentioned {
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

    /// Checks that an axis with one element that is repeated, as in `bS3{1 ex 8}`, is a broadcast axis. A merge of it with
    /// another axis, and a reduction over it, have other kinds in nvFuser, too, and other extents.
    pub(super) fn check_expanded_axes(&mut self, mentioned: &[TensorId]) {
        for &tensor in mentioned {
            if self.faulty.contains(&tensor) {
                continue;
            }
            let it = &self.program.tensors[tensor];
            let mut axes = it.domains.logical.iter();
            let is_faulty = |axis: &&AxisId| {
                let axis = &self.program.axes[**axis];
                let is_one = self.program.constant(axis.extent) == Some(1);
                axis.expanded.is_some() && axis.kind == AxisKind::Iteration && is_one
            };
            let Some(axis) = axes.find(is_faulty) else { continue };
            let place = self.program.domain_span(tensor, *axis);
            let (name, axis) = (self.program.tensor_name(tensor), axis_text(self.program, *axis));
            let message = format!("`{axis}` of `{name}` is expanded, but it is not a broadcast axis");
            let span = place.unwrap_or_else(|| self.program.tensor_span(tensor));
            let help = format!("write `b{}`", axis.trim_start_matches('i'));
            let it = Diagnostic::new(Code::BadDomain, span, message, "expected a broadcast axis");
            self.diagnostics.push(it.help(help));
            self.faulty.insert(tensor);
        }
    }

    /// Checks that the results of splits and merges have the kinds that their operands determine, and the
    /// extents, if all are constants.
    pub(super) fn check_transforms(&mut self, mentioned: &[TensorId]) {
        for &tensor in mentioned {
            if self.faulty.contains(&tensor) {
                continue;
            }
            for transform in &self.program.tensors[tensor].domains.transforms {
                let extent = || self.mismatched_extent(transform).map(|it| ("extent", it));
                let kind = self.mismatched_kind(transform).map(|it| ("kind", it));
                let Some((what, (axis, wanted))) = kind.or_else(extent) else { continue };
                let place = self.program.domain_span(tensor, axis);
                let name = self.program.tensor_name(tensor);
                let axis = axis_text(self.program, axis);
                let message = format!("the {what} of `{axis}` of `{name}` does not match its transform");
                let span = place.unwrap_or_else(|| self.program.tensor_span(tensor));
                self.error(Code::BadDomain, span, message, wanted);
                self.faulty.insert(tensor);
                break;
            }
        }
    }

    /// Returns the axis of a transform whose kind is wrong, and the expected kind.
    ///
    /// A merge of an iteration and a broadcast axis is an iteration axis. A result of a root-to-logical
    /// transform (`rf`) may differ from its operand.
    fn mismatched_kind(&self, transform: &Transform) -> Option<(AxisId, String)> {
        let kind = |axis: AxisId| match &self.program.axes[axis] {
            it if it.is_rfactor() => None,
            it => Some(it.kind),
        };
        let (wanted, source, results) = match *transform {
            Transform::Split { input, outer, inner, .. } => (kind(input)?, input, [outer, inner]),
            Transform::Swizzle1D { input, output } => (kind(input)?, input, [output; 2]),
            Transform::Merge { outer, inner, output } => match (kind(outer)?, kind(inner)?) {
                (AxisKind::Broadcast, AxisKind::Iteration) => (AxisKind::Iteration, inner, [output; 2]),
                (AxisKind::Iteration, AxisKind::Broadcast) => (AxisKind::Iteration, outer, [output; 2]),
                (wanted, _) => (wanted, outer, [inner, output]),
            },
        };
        let is_known =
            |it: AxisKind| matches!(it, AxisKind::Iteration | AxisKind::Reduction | AxisKind::Broadcast);
        let differs = |axis: &AxisId| kind(*axis).is_some_and(|it| is_known(it) && it != wanted);
        let axis = results.into_iter().find(differs).filter(|_| is_known(wanted))?;
        let letter = AxisKind::LETTERS.iter().find(|it| it.1 == wanted)?.0;
        let source = axis_text(self.program, source);
        Some((axis, format!("expected an axis of kind `{letter}`, like `{source}`")))
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
}
