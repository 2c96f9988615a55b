//! Views of a part of a tensor: `HirAliasSelect`, `select`, `slice` and `ShardByStream`.

use super::Ctx;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{ParallelType, TensorId},
    places::attr_place,
    suggest::{count_text, list_text},
    text::axis_text,
};

impl Ctx<'_, '_> {
    pub(super) fn select(&mut self, args: &[TensorId]) {
        let Some(axis) = self.stmt.get(attr::AXIS) else { return };
        let Some(first) = args.first().copied() else { return };
        let it = &self.program.tensors[first].domains;
        if !it.logical.contains(&axis) {
            let message = format!(
                "`{}`: `{}` is not a logical axis of `{}`",
                self.stmt.op.name(),
                axis_text(self.program, axis),
                self.program.tensor_name(first)
            );
            let axes: Vec<String> = it.logical.iter().map(|it| axis_text(self.program, *it)).collect();
            let label = format!("expected {}", list_text(axes.iter().map(String::as_str), 6, "or"));
            let place = attr_place(self.source, "axis", self.span);
            self.acc.push(Diagnostic::new(Code::ShapeMismatch, place, message, label));
            return;
        }
        if self.dims(first).contains(&axis) {
            self.ranks(args, 1);
        }
        self.equal_types_of_result(first);
    }

    pub(super) fn slice(&mut self, args: &[TensorId]) {
        if let (Some(first), Some(ranges)) = (args.first(), self.stmt.get(attr::RANGES)) {
            let have = self.dims(*first).len();
            if have != ranges.len() {
                let name = self.program.tensor_name(*first);
                let message = format!(
                    "`slice`: {} for the {have} dimensions of `{name}`",
                    count_text(ranges.len(), "range")
                );
                let place = self.place(*first);
                let label = format!("expected {have} ranges: one `{{start, stop, step}}` for each dimension");
                self.acc.push(Diagnostic::new(Code::ShapeMismatch, place, message, label));
                return;
            }
            self.equal_types_of_result(*first);
        }
        self.ranks(args, 0);
    }

    pub(super) fn shard(&mut self, args: &[TensorId]) {
        self.ranks(args, 0);
        let (Some(first), Some(out)) = (args.first().copied(), self.stmt.out_tensor()) else { return };
        let stream = |tensor: TensorId| {
            let loops = &self.program.tensors[tensor].loop_domain;
            loops.iter().any(|axis| self.program.axes[*axis].parallel == ParallelType::Stream)
        };
        if let Some(lacking) = [first, out].into_iter().find(|tensor| !stream(*tensor)) {
            let message =
                format!("`ShardByStream`: `{}` has no stream axis", self.program.tensor_name(lacking));
            let label = "expected an axis such as `istreamIdx0{4}`";
            self.acc.push(Diagnostic::new(Code::BadSharding, self.place(lacking), message, label));
        }
        self.equal_types(&[first, out]);
    }
}
