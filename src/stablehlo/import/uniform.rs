//! A collective in a branch ends only if all devices of its group take that branch.

use std::sync::Arc;

use grammar::{Code, Diagnostic, Span};

use super::{Imported, Importer};
use crate::{
    tree::Operation,
    value::{AxisSet, Value},
};

/// What may differ of a loop.
const ITERATIONS: &str = "numbers of iterations";

/// What devices choose a branch by.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The place of the operation with the branches.
    span: Span,
    /// What may differ: the branch, or the number of iterations.
    what: &'static str,
    /// The axes along which the selector may differ.
    axes: AxisSet,
    /// The branch of each device, if the host computes it.
    branches: Option<Arc<[usize]>>,
}

impl Importer<'_, '_> {
    /// Returns by what devices choose between branches, of which the last one is taken for numbers of no other one.
    pub(super) fn choice(&self, op: &Operation<'_>, selector: &Value) -> Choice {
        let last = op.regions.len() - 1;
        let branch = |value: &i64| match usize::try_from(*value) {
            // The first branch of `if` is that of true.
            Ok(it) if op.name == "stablehlo.if" => usize::from(it == 0),
            Ok(it) => it.min(last),
            Err(_) => last,
        };
        let values = match selector {
            Value::Splat(it) => self.values_of(it),
            Value::Tensor(_) => None,
        };
        let branches = values.map(|all| all.iter().map(branch).collect());
        let what = if op.name == "stablehlo.while" { ITERATIONS } else { "branches" };
        Choice { span: op.span, what, axes: selector.axes(), branches }
    }

    /// Fails if devices of a group may take different branches around a collective.
    pub(super) fn meets(&self, op: &Operation<'_>, groups: &[Vec<i64>]) -> Imported<()> {
        let Some(mesh) = self.region.as_ref().map(|it| &self.meshes[it.mesh]) else { return Ok(()) };
        for it in &self.choices {
            let branch = |device: i64| it.branches.as_ref()?.get(usize::try_from(device).ok()?);
            let differs = |a: i64, b: i64| match &it.branches {
                Some(_) => branch(a) != branch(b),
                None => mesh.differs_along(a, b, it.axes),
            };
            let apart = groups.iter().find_map(|all| {
                let first = *all.first()?;
                all.iter().find(|other| differs(first, **other)).map(|other| (first, *other))
            });
            if let Some((a, b)) = apart {
                return Err(self.unmet(op, it, (a, b), branch(a).zip(branch(b))));
            }
        }
        Ok(())
    }

    /// Returns the error for a collective whose devices take, or may take, different branches.
    fn unmet(
        &self,
        op: &Operation<'_>,
        choice: &Choice,
        (a, b): (i64, i64),
        branches: Option<(&usize, &usize)>,
    ) -> Box<Diagnostic> {
        let verb = if branches.is_some() { "take" } else { "may take" };
        let message = format!(
            "devices {a} and {b} {verb} different {} around this `{}`, which then does not end",
            choice.what, op.name
        );
        let label = format!("it needs both device {a} and device {b}");
        let chosen = match branches {
            Some((x, y)) if choice.what == ITERATIONS => {
                format!("the condition is {} on device {a}, and {} on device {b}", *x == 1, *y == 1)
            }
            Some((x, y)) => format!("device {a} takes branch {x}, device {b} takes branch {y}"),
            None => format!("devices {a} and {b} compute this condition from values that may differ"),
        };
        let it = Diagnostic::new(Code::CheckedDeadlock, op.span, message, label).label(choice.span, chosen);
        Box::new(it.help(
            "communicate outside of the branches and select a result by `jnp.where`, or make the condition equal, as by `jax.lax.pmax` over the axes of the collective",
        ))
    }
}
