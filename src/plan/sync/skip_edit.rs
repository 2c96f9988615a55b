//! What to change if a rank skips a communication that another rank waits for.

use super::skipped::SkippedPost;
use crate::{Plan, SkipReason, SkippedComm, SkippedRole};

/// The help if no change of the text is known.
const POST_ON_ALL: &str = "post it on all ranks that take part in it, or on none";

/// The bounds of a loop on the rank that skips a communication and on the rank that waits for it.
struct UnequalBounds<'a> {
    line: u32,
    index: &'a str,
    /// The expressions of the first value and of the end.
    texts: [&'a str; 2],
    own: [i64; 2],
    other: [i64; 2],
}

/// Returns the change with which the rank of `plan` posts what the rank of `waiting` waits for.
pub(super) fn help(plan: &Plan, skipped: &SkippedPost, waiting: &Plan) -> String {
    let it = &plan.skips[skipped.skip];
    match &it.reason {
        SkipReason::Branch(text, _) if is_movable(plan, skipped, it) => {
            let name = plan.comm_names.text(it.stmt, "").unwrap_or_else(|| "it".to_owned());
            format!(
                "move {name} and its Wait before {text}, so that rank {} executes it, too, or remove it",
                plan.rank
            )
        }
        SkipReason::Loop { text, .. } => {
            let fixed = unequal_bounds(plan, it, waiting).and_then(|it| it.equal_loops());
            fixed.unwrap_or_else(|| {
                format!("let {text} run for the same values on all ranks that take part in it")
            })
        }
        SkipReason::Branch(..) | SkipReason::OutsideMesh(_) => POST_ON_ALL.to_owned(),
    }
}

/// Returns the different bounds of the loop on both ranks, for the end of a sentence:
/// `: `i9` is 4 there and 5 on rank 3`. Empty if the reason is no loop. `on` names the rank of `waiting`, with all for which the text is equal.
pub(super) fn bounds_text(plan: &Plan, skipped: &SkippedPost, waiting: &Plan, on: &str) -> String {
    let Some(it) = unequal_bounds(plan, &plan.skips[skipped.skip], waiting) else { return String::new() };
    let differs = (0..2).filter(|at| it.own[*at] != it.other[*at]);
    let texts =
        differs.map(|at| format!("`{}` is {} there and {} on {on}", it.texts[at], it.own[at], it.other[at]));
    format!(": {}", texts.collect::<Vec<_>>().join(", and "))
}

/// Returns whether the statement can move out of the branch that skips it: it is a collective, and no loop is between.
fn is_movable(plan: &Plan, skipped: &SkippedPost, it: &SkippedComm) -> bool {
    it.role == SkippedRole::Collective && plan.enclosing_loops(it.iteration) == skipped.wanted
}

/// Returns the bounds of the loop that skips a communication, if they differ between the two ranks.
fn unequal_bounds<'a>(plan: &'a Plan, skip: &'a SkippedComm, waiting: &Plan) -> Option<UnequalBounds<'a>> {
    let SkipReason::Loop { text, line, bounds: [from, to], index, start, stop } = &skip.reason else {
        return None;
    };
    let around = plan.enclosing_loops(skip.iteration);
    // Each rank records the loop, as its bounds depend on the rank.
    let other = waiting.skips.iter().find_map(|it| match &it.reason {
        SkipReason::Loop { text: same, start, stop, .. } if same == text => {
            (waiting.enclosing_loops(it.iteration) == around).then_some([*start, *stop])
        }
        SkipReason::Loop { .. } | SkipReason::Branch(..) | SkipReason::OutsideMesh(_) => None,
    })?;
    let own = [*start, *stop];
    let texts = [&**from, &**to];
    (own != other).then_some(UnequalBounds { line: *line, index, texts, own, other })
}

impl UnequalBounds<'_> {
    /// Returns the change that gives the loop the same bounds on all ranks, if only its end differs.
    fn equal_loops(&self) -> Option<String> {
        let Self { line, index, texts: [from, _], own, other } = self;
        let is_end_only = own[0] == other[0] && own[0] < own[1].max(other[1]);
        let header = |stop: i64| format!("`FOR {index} from {from} to {stop}:`");
        let ends: Vec<String> =
            [own[1], other[1]].into_iter().filter(|it| *it > own[0]).map(header).collect();
        is_end_only.then(|| {
            format!(
                "write {} on line {line}, so that all ranks run the loop equally often",
                ends.join(" or ")
            )
        })
    }
}
