//! How good the estimates of a machine are: those of whole programs, compared with the measured times of the file.

use std::collections::BTreeMap;

use hir_plan::timeline::{
    machine::{Accuracy, Machine, Run},
    work::WorkKind,
};

use super::{exact::works, layer::Layer, world};
use crate::auto::machine::estimate_on;

/// Two times that differ by less are the same, as a part of the longer one: runs of one program differ by as much.
const SAME: f64 = 0.02;

/// An estimate beside the measured time.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The run.
    pub run: Run,
    /// The estimate in microseconds.
    pub estimate: f64,
    /// Whether all its products and attentions were measured with their extents, and not only those around them.
    pub is_exact: bool,
}

impl Comparison {
    /// Returns the error of the estimate: estimate / measured - 1.
    fn error(&self) -> f64 {
        self.estimate / self.run.us - 1.0
    }
}

/// Estimates all runs of a machine's file. A run that cannot be estimated is left out.
pub fn compare(machine: &Machine) -> Vec<Comparison> {
    machine.runs.iter().filter_map(|run| comparison(machine, run)).collect()
}

fn comparison(machine: &Machine, run: &Run) -> Option<Comparison> {
    let layer: Layer = run.program.parse().ok()?;
    let world = world(&layer.program(machine.ranks), &run.passes, machine.ranks)?;
    let estimate = estimate_on(machine, &world).ok()?.end();
    let is_exact = works(&world)
        .iter()
        .filter(|it| matches!(it.kind, WorkKind::Product(_) | WorkKind::Attention { .. }))
        .all(|it| machine.has_exactly(it));
    Some(Comparison { run: run.clone(), estimate, is_exact })
}

/// Returns how good estimates are; `None` without any.
pub fn accuracy(all: &[Comparison]) -> Option<Accuracy> {
    // Errors in both directions count equally: twice as long is as wrong as half as long.
    let mut errors: Vec<f64> = all.iter().map(|it| it.error().ln_1p().abs().exp_m1()).collect();
    errors.sort_by(f64::total_cmp);
    let quantile = |part: f64| errors.get(((errors.len() as f64 * part).ceil() as usize).max(1) - 1).copied();
    let rounded = |it: f64| (it * 1e4).round() / 1e4;
    Some(Accuracy { median: rounded(quantile(0.5)?), nine_of_ten: rounded(quantile(0.9)?) })
}

/// Returns Kendall's tau of the passes of one program: of all pairs whose estimates and whose measured times differ, the part in
/// the right order minus the part in the wrong one. `None` without such a pair.
fn kendall(all: &[&Comparison]) -> Option<f64> {
    let differ = |a: f64, b: f64| (a - b).abs() > SAME * a.max(b);
    let mut sum = (0, 0);
    for (at, a) in all.iter().enumerate() {
        for b in &all[at + 1..] {
            if differ(a.run.us, b.run.us) && differ(a.estimate, b.estimate) {
                let is_right = (a.run.us < b.run.us) == (a.estimate < b.estimate);
                sum = (sum.0 + if is_right { 1 } else { -1 }, sum.1 + 1);
            }
        }
    }
    (sum.1 > 0).then(|| f64::from(sum.0) / f64::from(sum.1))
}

/// Returns the table of all runs with their estimates, and a summary.
pub fn report(machine: &Machine, all: &[Comparison]) -> Vec<String> {
    let mut programs: BTreeMap<usize, Vec<&Comparison>> = BTreeMap::new();
    for it in all {
        let first = all.iter().position(|other| other.run.program == it.run.program).unwrap_or(0);
        programs.entry(first).or_default().push(it);
    }
    let mut lines = vec![
        format!("{}, {} GPUs, {}, µs a run", machine.gpu, machine.ranks, machine.date),
        format!("{:<38} {:<27} {:>9} {:>9} {:>7}", "program", "passes", "measured", "estimate", "error"),
    ];
    for it in all {
        let Run { program, passes, us, .. } = &it.run;
        let error = 100.0 * it.error();
        lines.push(format!(
            "{program:<38} {passes:<27} {us:>9.1} {:>9.1} {error:>+6.1}%{}",
            it.estimate,
            if it.is_exact { "  exact" } else { "" }
        ));
    }
    let taus: Vec<f64> = programs.values().filter_map(|it| kendall(it)).collect();
    let (mut behind, mut found) = (Vec::new(), 0);
    for runs in programs.values() {
        let by = |key: &dyn Fn(&Comparison) -> f64| runs.iter().min_by(|a, b| key(a).total_cmp(&key(b)));
        if let (Some(chosen), Some(best)) = (by(&|it| it.estimate), by(&|it| it.run.us)) {
            let more = chosen.run.us / best.run.us - 1.0;
            found += usize::from(more <= 0.03);
            behind.push(more);
        }
    }
    if let Some(it) = accuracy(all) {
        let (count, tau) = (all.len(), taus.iter().sum::<f64>() / taus.len().max(1) as f64);
        let worst = 100.0 * behind.iter().copied().fold(0.0, f64::max);
        let [median, most] = [it.median, it.nine_of_ten].map(|it| 100.0 * it);
        lines.push(format!("{count} runs: median error {median:.1}%, nine of ten within {most:.1}%"));
        for (is_exact, which) in [(true, "were measured"), (false, "are estimated from others")] {
            let part: Vec<Comparison> = all.iter().filter(|it| it.is_exact == is_exact).cloned().collect();
            if let Some(it) = accuracy(&part).filter(|_| part.len() < all.len()) {
                let [median, most] = [it.median, it.nine_of_ten].map(|it| 100.0 * it);
                lines.push(format!(
                    "{} runs whose products {which}: median error {median:.1}%, nine of ten within {most:.1}%",
                    part.len()
                ));
            }
        }
        lines.push(format!(
            "Kendall's tau of the passes of a program: {tau:.2} in the mean of {} programs (pairs that differ by less than \
             {:.0}% are left out)",
            taus.len(),
            100.0 * SAME
        ));
        lines.push(format!(
            "the passes with the least estimate are within 3% of the fastest ones for {found} of {} programs, and at most \
             {worst:.1}% behind",
            behind.len()
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(us: f64, estimate: f64) -> Comparison {
        let run = Run { program: "p".to_owned(), passes: String::new(), us, least: us };
        Comparison { run, estimate, is_exact: false }
    }

    #[test]
    fn equal_times_do_not_count_for_the_order() {
        let tau = |all: &[(f64, f64)]| {
            let all: Vec<Comparison> = all.iter().map(|it| comparison(it.0, it.1)).collect();
            kendall(&all.iter().collect::<Vec<_>>())
        };
        assert_eq!(tau(&[(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]), Some(1.0));
        assert_eq!(tau(&[(1.0, 4.0), (2.0, 3.0)]), Some(-1.0));
        assert_eq!(tau(&[(1.0, 4.0), (1.01, 3.0)]), None);
        assert_eq!(tau(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]), Some(1.0 / 3.0));
    }

    #[test]
    fn half_is_as_wrong_as_twice() {
        let all = [comparison(1.0, 2.0), comparison(2.0, 1.0)];
        assert_eq!(accuracy(&all), Some(Accuracy { median: 1.0, nine_of_ten: 1.0 }));
        assert_eq!(accuracy(&[]), None);
    }
}
