//! What GPUs have shown of the rules: `trials.txt`, which `tests/gpu/rules/run.py --record` writes.

/// The record: a line with the machine and its software, then a line for each trial: its rule, its name and the verdict, between tabs.
const RECORD: &str = include_str!("trials.txt");

/// Rules that have trials, and that the checker does not have.
pub const NOT_MODELLED: [&str; 7] = [
    "dependent-launch",
    "host-destroy",
    "host-graphs",
    "host-handles",
    "host-windows",
    "launch-queue",
    "lazy-loading",
];

/// A trial of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleTrial {
    /// The name of the rule.
    pub rule: &'static str,
    /// What was tried.
    pub name: &'static str,
    /// `provoked`, `not provoked in N tries`, `held in N tries`, `broken`, `not run`, or `documents only` with the reason.
    pub verdict: &'static str,
}

/// Returns the trials on record.
pub fn trials() -> impl Iterator<Item = RuleTrial> {
    RECORD.lines().filter_map(|line| {
        let mut cells = line.split('\t');
        Some(RuleTrial { rule: cells.next()?, name: cells.next()?, verdict: cells.next()? })
    })
}

/// Returns the machine and the software of the trials.
pub(super) fn machine() -> &'static str {
    RECORD.lines().next().unwrap_or_default().trim_start_matches("# ")
}

/// Returns the different verdicts of the trials of a rule, in the order of the record, without reasons, and without the numbers of tries in
/// which a rule held.
pub(super) fn verdicts(rule: &str) -> String {
    let mut found: Vec<&str> = Vec::new();
    for it in trials().filter(|it| it.rule == rule) {
        let verdict = if it.verdict.starts_with("held") { "held" } else { it.verdict };
        let verdict = verdict.split(':').next().unwrap_or_default();
        if !found.contains(&verdict) {
            found.push(verdict);
        }
    }
    found.join("; ")
}

#[cfg(test)]
mod tests {
    use super::{NOT_MODELLED, trials};
    use crate::RULES;

    #[test]
    fn each_rule_has_a_trial_or_a_reason() {
        let tried: Vec<_> = trials().collect();
        let untried: Vec<_> =
            RULES.iter().map(|it| it.name).filter(|rule| tried.iter().all(|it| it.rule != *rule)).collect();
        assert!(untried.is_empty(), "no trial of {untried:?}");
        let known = |rule| NOT_MODELLED.contains(&rule) || RULES.iter().any(|it| it.name == rule);
        let unknown: Vec<_> = tried.iter().filter(|it| !known(it.rule)).collect();
        assert!(unknown.is_empty(), "no rule of {unknown:?}");
    }
}
