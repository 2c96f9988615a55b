//! Runs the checks: one walk over the instructions of all ranks.

use super::{
    conflict::Race,
    excess::{Excess, NotSearched, Unread, excess},
    finding::{Checks, Finding, Report},
    memory::{Memory, Unwritten},
    model::Model,
    race::Races,
    repeat,
};
use crate::plan::{
    Plan,
    sync::{
        Crossing, Deadlock, Matched, TooMany, crossing, explain,
        order::{self, Unordered},
        stuck,
    },
};

/// What the checks find, before it is folded into a report.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Ranks wait for what never happens: nothing else is known.
    pub deadlock: Option<Box<Deadlock>>,
    /// Ranks use communicators in orders that contradict each other.
    pub crossing: Option<Box<Crossing>>,
    /// Accesses that nothing orders.
    pub races: Vec<Race>,
    /// Elements that nothing has written.
    pub reads: Vec<Unwritten>,
    /// What the program could do without.
    pub excess: Vec<Excess>,
    /// What could not be checked, and why.
    pub not_checked: Vec<String>,
    /// Where excess could not be looked for, and why.
    pub not_searched: Vec<NotSearched>,
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
    if checks.comm {
        match crossing(plans, &matched) {
            Ok(it) => found.crossing = it.map(Box::new),
            Err(TooMany) => {
                found.not_checked.push("the order of communicators: too many communications".to_owned());
            }
        }
    }
    if !checks.any_access() {
        return found;
    }
    let (mut races, mut memory) = (Races::new(plans, checks.model), Memory::new(plans));
    let mut unread = Unread::new(plans);
    let walked = order::walk(plans, &matched, &mut |it| {
        // Excess is judged where there is no race.
        if checks.race || checks.excess {
            races.visit(&it);
        }
        if checks.excess {
            unread.visit(&it);
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
    let is_clean = races.found.is_empty() && races.not_compared == 0;
    if checks.excess {
        let (excess, not_searched) =
            excess(plans, &matched, is_clean.then_some(unread), &races.found, checks.model);
        // Whoever asked for races sees them.
        if is_clean || !checks.race {
            found.not_searched = not_searched;
        }
        found.excess = excess;
    }
    if !checks.race {
        races.found.clear();
        races.not_compared = 0;
    }
    if races.is_full() {
        found.not_checked.push(format!("races beyond the first {}", races.found.len()));
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
    if checks.repeat && found.races.is_empty() {
        found.examine_two_runs(plans, checks.model);
    }
    found
}

impl Examined {
    /// Adds the races between two runs of plans, one of which has none.
    fn examine_two_runs(&mut self, plans: &[Plan], model: Model) {
        match repeat::races(plans, model) {
            Ok((races, not_compared)) => {
                self.races.extend(races);
                if not_compared > 0 {
                    self.not_checked.push(format!(
                        "{not_compared} pairs of views of two runs that have too many pieces to compare"
                    ));
                }
            }
            Err(Unordered::Large | Unordered::Stuck) => {
                self.not_checked.push("two runs: no order of all their instructions was found".to_owned());
            }
        }
    }

    /// Folds what was found over ranks and iterations.
    pub fn report(self, plans: &[Plan]) -> Report {
        let mut report =
            Report { findings: Vec::new(), not_checked: self.not_checked, not_searched: self.not_searched };
        report.findings.extend(self.deadlock.map(Finding::Deadlock));
        report.findings.extend(self.crossing.map(Finding::Crossing));
        report.add(plans, self.races, self.reads);
        report.findings.extend(self.excess.into_iter().map(|it| Finding::Excess(Box::new(it))));
        report
    }
}
