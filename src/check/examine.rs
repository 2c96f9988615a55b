//! Runs the checks: one walk over the instructions of all ranks.

use super::{
    conflict::Race,
    finding::{Checks, Finding, Report},
    memory::{Memory, Unwritten},
    race::Races,
};
use crate::plan::{
    Plan,
    sync::{
        Deadlock, Matched, explain,
        order::{self, Unordered},
        stuck,
    },
};

/// What the checks find, before it is folded into a report.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Ranks wait for what never happens: nothing else is known.
    pub deadlock: Option<Box<Deadlock>>,
    /// Accesses that nothing orders.
    pub races: Vec<Race>,
    /// Elements that nothing has written.
    pub reads: Vec<Unwritten>,
    /// What could not be checked, and why.
    pub not_checked: Vec<String>,
}

/// Checks the plans of all ranks.
pub fn examine(plans: &[Plan], checks: Checks) -> Examined {
    let mut found = Examined::default();
    let matched = Matched::of(plans);
    if let Some(state) = stuck(plans, &matched) {
        // What comes after a deadlock never runs: nothing else can be said.
        found.deadlock = Some(Box::new(explain(plans, &matched, &state)));
        return found;
    }
    if !checks.any_access() {
        return found;
    }
    let (mut races, mut memory) = (Races::new(plans, checks.model), Memory::new(plans));
    let walked = order::walk(plans, &matched, &mut |it| {
        if checks.race {
            races.visit(&it);
        }
        if checks.memory {
            memory.visit(&it);
        }
    });
    match walked {
        Ok(()) => (),
        Err(Unordered::Large) => {
            found.not_checked.push("races and memory: too many streams and communicators".to_owned());
            return found;
        }
        Err(Unordered::Stuck) => {
            found.not_checked.push("races and memory: no order of all instructions was found".to_owned());
            return found;
        }
    }
    if races.not_compared > 0 {
        found
            .not_checked
            .push(format!("{} pairs of views that have too many pieces to compare", races.not_compared));
    }
    if memory.not_checked > 0 {
        found
            .not_checked
            .push(format!("{} reads and writes that have too many pieces to record", memory.not_checked));
    }
    memory.finish();
    (found.races, found.reads) = (races.found, memory.found);
    found
}

impl Examined {
    /// Whether nothing is wrong: reads of unwritten elements, outputs excepted, are no faults.
    pub fn is_clean(&self) -> bool {
        let Self { deadlock, races, reads, not_checked } = self;
        let is_whole = reads.iter().all(|it| it.output.is_none());
        deadlock.is_none() && races.is_empty() && is_whole && not_checked.is_empty()
    }

    /// Folds what was found over ranks and iterations.
    pub fn report(self, plans: &[Plan]) -> Report {
        let mut report = Report { findings: Vec::new(), not_checked: self.not_checked };
        report.findings.extend(self.deadlock.map(Finding::Deadlock));
        report.add(plans, self.races, self.reads);
        report
    }
}
