//! Chooses the algorithms of matrix products by measurement.
//!
//! A candidate is measured inside the whole program, on all ranks at once, because what runs beside a product changes
//! which algorithm is the fastest. All candidates of a product run in turns, in the opposite order in every other
//! round, so that a change of the clock affects all of them. Products are tuned one after another, the most expensive
//! one first, and keep their choice while the next ones are measured.

use hir_executor::{MatmulAlgorithm, Timing, TuneOptions, TunedProduct, Tuning};
use serde::{Deserialize, Serialize};

use super::{
    Engine, IssueMode, ProcessGroup,
    timing::{Turn, runs_until_warm},
};
use crate::{Result, exchange::gather, graph::Graph};

/// Number of algorithms that are requested for a product.
const CANDIDATES: usize = 16;
/// A candidate replaces the first one if it takes at most this part of its time.
const WORTHWHILE: f64 = 0.99;

/// A product of one rank, or of all ranks.
#[derive(Serialize, Deserialize)]
struct Candidates {
    key: String,
    /// Microseconds of all its calls in one run.
    cost: f64,
    algorithms: Vec<MatmulAlgorithm>,
}

/// An algorithm for each product of this rank.
type Assignment = Vec<MatmulAlgorithm>;

impl Engine {
    /// Measures the algorithms of all matrix products and sets the chosen ones. `on_product` is called with the number
    /// of products that are done and with that of all products. All ranks have to call this, and load inputs afterwards.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer.
    pub(super) fn tune(
        &mut self,
        peers: &dyn ProcessGroup,
        options: TuneOptions,
        on_product: &dyn Fn(usize, usize),
    ) -> Result<Tuning> {
        peers.report_phase("finding the algorithms of matrix products");
        self.use_own_algorithms();
        let mut tuning = Tuning::default();
        let products = self.products_of_all_ranks(peers)?;
        let own: Assignment = self.executable.products.iter().map(|it| it.first).collect();
        let (mut before, mut chosen) = (own.clone(), own);
        let mut measured: Vec<&Candidates> = Vec::new();
        for (at, product) in products.iter().enumerate() {
            on_product(at, products.len());
            let usable = self.usable_candidates(peers, product, &mut tuning.notes)?;
            let Some(first) = usable.first().filter(|it| **it == 0).map(|it| product.algorithms[*it]) else {
                tuning
                    .notes
                    .push(format!("{}: not tuned, because its first algorithm is left out", product.key));
                continue;
            };
            let local = self.executable.products.iter().position(|it| it.key == product.key);
            let with = |algorithm: MatmulAlgorithm| {
                let mut variant = chosen.clone();
                local.iter().for_each(|it| variant[*it] = algorithm);
                variant
            };
            let variants: Vec<Assignment> = usable.iter().map(|it| with(product.algorithms[*it])).collect();
            let times = self.time_in_turns(peers, &variants, options)?;
            // The times are equal on all ranks. Nevertheless only rank 0 decides.
            let best = gather(peers, &choose(&times))?.first().copied().unwrap_or(0);
            let choice = usable.get(best).copied().unwrap_or(0);
            let algorithm = product.algorithms[choice];
            if let Some(it) = local {
                (before[it], chosen[it]) = (first, algorithm);
            }
            measured.push(product);
            tuning.products.push(TunedProduct {
                key: product.key.clone(),
                measured: usable.len(),
                choice,
                algorithm,
                first: times.first().copied().unwrap_or(0.0),
                best: times.get(best).copied().unwrap_or(0.0),
            });
        }
        on_product(products.len(), products.len());
        if tuning.products.iter().any(|it| it.choice > 0) {
            let times = self.time_in_turns(peers, &[before.clone(), chosen.clone()], options)?;
            tuning.whole = times.first().zip(times.get(1)).map(|(before, after)| [*before, *after]);
            if tuning.gains_nothing() {
                chosen = before;
                for (tuned, product) in tuning.products.iter_mut().zip(&measured) {
                    (tuned.choice, tuned.best) = (0, tuned.first);
                    tuned.algorithm = product.algorithms[0];
                }
            }
        }
        self.assign(&chosen);
        Ok(tuning)
    }

    fn assign(&mut self, assignment: &Assignment) {
        for (product, algorithm) in assignment.iter().enumerate() {
            self.set_algorithm(product, *algorithm);
        }
    }

    /// Returns the products of all ranks, the most expensive first. If ranks have the same product, the candidates are
    /// those of the lowest one.
    fn products_of_all_ranks(&mut self, peers: &dyn ProcessGroup) -> Result<Vec<Candidates>> {
        let mut mine = Vec::new();
        for (product, cost) in self.measure_products(peers)?.into_iter().enumerate() {
            let Some((call, _)) = self.product_call(product) else { continue };
            let key = self.executable.products[product].key.clone();
            mine.push(Candidates { key, cost, algorithms: call.candidates(CANDIDATES)? });
        }
        let mut all: Vec<Candidates> = Vec::new();
        for it in gather(peers, &mine)?.into_iter().flatten() {
            match all.iter_mut().find(|known| known.key == it.key) {
                Some(known) => known.cost = known.cost.max(it.cost),
                None => all.push(it),
            }
        }
        all.sort_by(|a, b| b.cost.total_cmp(&a.cost).then_with(|| a.key.cmp(&b.key)));
        Ok(all)
    }

    /// Returns the microseconds of all calls of each product of this rank in one run.
    fn measure_products(&mut self, peers: &dyn ProcessGroup) -> Result<Vec<f64>> {
        let taken = self.device.resource_mark();
        let marks = self.marks()?;
        peers.barrier()?;
        // The first run is a warm-up.
        for _ in 0..2 {
            self.reset_between_runs(peers)?;
            self.issue_with_events(&marks)?;
            self.count_run()?;
            self.synchronize()?;
        }
        let mut costs = Vec::new();
        for product in &self.executable.products {
            let mut cost = 0.0;
            for (begin, end) in product.commands.iter().filter_map(|at| marks[*at]) {
                cost += self.device.elapsed_microseconds(begin, end)?;
            }
            costs.push(cost);
        }
        self.device.release(&taken, peers)?;
        Ok(costs)
    }

    /// Returns the positions of the candidates that all ranks can call. Notes name the others.
    fn usable_candidates(
        &self,
        peers: &dyn ProcessGroup,
        product: &Candidates,
        notes: &mut Vec<String>,
    ) -> Result<Vec<usize>> {
        let local = self.executable.products.iter().position(|it| it.key == product.key);
        let mut mine: Vec<Option<String>> = vec![None; product.algorithms.len()];
        if let Some(local) = local {
            for (refusal, algorithm) in mine.iter_mut().zip(&product.algorithms) {
                *refusal = self.try_algorithm(local, *algorithm)?;
            }
        }
        let all = gather(peers, &mine)?;
        let mut usable = Vec::new();
        for at in 0..product.algorithms.len() {
            let refusals = all.iter().map(|it| it.get(at).cloned().flatten());
            match refusals.enumerate().find_map(|(rank, it)| it.map(|why| (rank, why))) {
                Some((rank, why)) => notes.push(format!(
                    "{}: algorithm {} of {} is left out: rank {rank}: {why}",
                    product.key,
                    at + 1,
                    product.algorithms.len()
                )),
                None => usable.push(at),
            }
        }
        Ok(usable)
    }

    /// Returns the median over rounds of the slowest rank's run, for each variant. What is measured is released.
    fn time_in_turns(
        &mut self,
        peers: &dyn ProcessGroup,
        variants: &[Assignment],
        options: TuneOptions,
    ) -> Result<Vec<f64>> {
        let taken = self.device.resource_mark();
        let mut graphs: Vec<Graph> = Vec::new();
        if options.graph {
            for variant in variants {
                self.assign(variant);
                graphs.push(self.capture(false)?);
            }
        }
        let mut issue = |engine: &mut Self, variant: usize| match graphs.get(variant) {
            Some(graph) => engine.replay(graph),
            None => {
                engine.assign(&variants[variant]);
                engine.issue(IssueMode::Plain).map(drop)
            }
        };
        let is_short = options.graph || self.is_queued_whole(0);
        // The first runs make the first launches, and show how long a run takes.
        let pilot = self.time_turns(peers, &turns(variants.len(), 1, 1), is_short, &mut issue)?;
        let warm_runs = runs_until_warm(&pilot).max(options.warmup);
        let cycles = warm_runs.div_ceil(variants.len().max(1)).max(1);
        let turns = turns(variants.len(), cycles, options.rounds);
        let times = self.time_turns(peers, &turns, is_short, &mut issue)?;
        let timed: Vec<usize> = turns.iter().filter(|it| it.is_timed).map(|it| it.variant).collect();
        let median = |variant: usize| {
            let own = timed.iter().zip(&times).filter(|it| *it.0 == variant);
            Timing { runs: own.map(|it| *it.1).collect(), nodes: None }.quantile(0.5)
        };
        let medians = (0..variants.len()).map(median).collect();
        self.device.release(&taken, peers)?;
        Ok(medians)
    }
}

/// Returns the order of runs: `cycles` of all variants that are not timed, then timed rounds.
fn turns(variants: usize, cycles: usize, rounds: usize) -> Vec<Turn> {
    let warm = (0..cycles).flat_map(|_| (0..variants).map(|variant| Turn { variant, is_timed: false }));
    let timed = (0..rounds).flat_map(|round| {
        let place = move |at: usize| if round % 2 == 0 { at } else { variants - 1 - at };
        (0..variants).map(move |at| Turn { variant: place(at), is_timed: true })
    });
    warm.chain(timed).collect()
}

/// Returns the position of the fastest candidate if it is faster than the first one by enough to matter, otherwise 0.
fn choose(times: &[f64]) -> usize {
    let best = (0..times.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap_or(0);
    match times.first() {
        Some(first) if times[best] <= first * WORTHWHILE => best,
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_take_turns_in_both_directions() {
        let order: Vec<(usize, bool)> = turns(3, 1, 2).iter().map(|it| (it.variant, it.is_timed)).collect();
        let wanted = [0, 1, 2, 0, 1, 2, 2, 1, 0].iter().enumerate().map(|(at, it)| (*it, at >= 3));
        assert_eq!(order, wanted.collect::<Vec<_>>());
    }

    #[test]
    fn a_small_gain_is_not_worth_another_algorithm() {
        assert_eq!(choose(&[100.0, 99.5, 120.0]), 0);
        assert_eq!(choose(&[100.0, 99.0, 98.0, 98.5]), 2);
        assert_eq!([choose(&[50.0]), choose(&[])], [0, 0]);
    }
}
