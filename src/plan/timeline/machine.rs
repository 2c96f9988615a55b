//! The measured times of a machine, from which times of other extents are interpolated.
//!
//! `hir calibrate` writes the file. Its keys are the fields of `Machine`; `docs/machines.md` describes them.

use std::collections::BTreeMap;

use grammar::InvalidOption;
use serde::{Deserialize, Serialize};

use super::{
    cost::{LINK_BYTES, assumptions},
    hosts::Hosts,
    table::{Point, Table, interpolated, of_nearest},
    work::{Contention, Work, WorkClass},
};

/// The version of the format.
pub const VERSION: u32 = 4;
/// Ends the name of a table of products that read their larger operand from memory, and not from the cache of the GPU.
pub const FROM_MEMORY: &str = " from memory";
/// The longest time that a table may hold, in microseconds: more than 11 days.
const LONGEST_US: f64 = 1e12;

/// The measured times of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The version of the format.
    pub version: u32,
    /// The day of the measurement: `2026-11-26`.
    pub date: String,
    /// The name of the GPU.
    pub gpu: String,
    /// The CUDA version of the driver.
    pub driver: String,
    /// The version of cuBLASLt.
    pub cublaslt: String,
    /// The version of NCCL.
    pub nccl: String,
    /// The version of hir.
    pub hir: String,
    /// The number of ranks, one GPU each, with which everything was measured.
    pub ranks: usize,
    /// Microseconds of a run, a graph behind a barrier of all ranks, in addition to the time of its work.
    pub run_us: f64,
    /// Microseconds by which work on a stream begins after the work on another stream that it waits for has ended.
    pub event_us: f64,
    /// Microseconds that a kernel takes longer behind another kernel than behind one of the same kind, as in its table.
    pub switch_us: f64,
    /// By the name of a `Contention`: how much longer a communication takes between kernels that compute than behind one of the same
    /// kind, besides two `switch_us`, by how long its rank has computed, in ascending order: ranks do not reach it at the same
    /// time, and engines notify each other.
    pub exchange_us: BTreeMap<String, Vec<Delay>>,
    /// By the name of a table (`WorkKind`).
    pub tables: BTreeMap<String, Table>,
    /// By the name of a `Contention`: how many times longer a communication and a kernel that computes
    /// take while both run, by the bytes of the communication, in ascending order.
    pub contention: BTreeMap<String, Vec<Slowdown>>,
    /// How many times longer a product takes behind one on another stream that it does not wait for than behind one on its own stream:
    /// small ones run at the same time, large ones share the cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crowding: Vec<Crowding>,
    /// How many times longer a product takes on a GPU that has computed for some hundred milliseconds than on a cool one, by the
    /// multiplications of the product, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sustained: Vec<Slowdown>,
    /// How good estimates are, if `runs` is not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// Runs of whole programs, which no table contains. They show how good estimates are.
    pub runs: Vec<Run>,
    /// The hosts of such machines over which ranks are distributed; `None` if all are on one host. It is in a file of its own.
    #[serde(skip)]
    pub hosts: Option<Hosts>,
    /// Whether the times of products are those of a GPU that has computed for some time (`sustain`).
    #[serde(skip)]
    pub is_sustained: bool,
}

/// The errors of the estimates of `Machine::runs`, relative to the measured times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// Half of the errors are not larger.
    pub median: f64,
    /// Nine of ten errors are not larger.
    pub nine_of_ten: f64,
}

/// How much longer a communication takes behind kernels that compute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Microseconds that these kernels take, since the communication before.
    pub behind: f64,
    /// The microseconds.
    pub us: f64,
}

/// Returns the delay behind kernels of this many microseconds: between two points, it is linear, and that of the nearest point beyond
/// them. 0 without points.
fn delay_behind(points: &[Delay], microseconds: f64) -> f64 {
    interpolated(points, microseconds, |it| [it.behind, it.us]).unwrap_or(0.0)
}

/// How many times longer work takes than alone on a cool GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// The extent of the work: bytes, or multiplications.
    pub at: f64,
    /// At least 1.
    pub factor: f64,
}

/// How many times longer a product takes behind one on another stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crowding {
    /// Rows, columns and depth.
    pub at: [f64; 3],
    /// More than 0; less than 1 if it takes less time.
    pub factor: f64,
}

/// Returns the factor of work of an extent: between two points, it is linear in the logarithm of the extent, and that of the nearest
/// point beyond them. 1 without points.
fn factor_at(points: &[Slowdown], extent: f64) -> f64 {
    interpolated(points, extent.ln(), |it| [it.at.ln(), it.factor]).unwrap_or(1.0)
}

/// A run of a whole program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The layer, with its extents, from which `hir calibrate` makes the program.
    pub program: String,
    /// The passes.
    pub passes: String,
    /// The median of the slowest rank in microseconds.
    pub us: f64,
    /// The least time in microseconds.
    pub least: f64,
}

impl Machine {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// It has another version or other keys, or a number that is no time or no extent.
    pub fn parse(text: &str) -> Result<Self, InvalidOption> {
        #[derive(Deserialize)]
        struct Header {
            version: u32,
        }
        let Header { version } = serde_json::from_str(text).map_err(|it| it.to_string())?;
        if version != VERSION {
            let message = format!(
                "it has version {version}, and this hir reads version {VERSION}: measure again with `hir calibrate`"
            );
            return Err(message.into());
        }
        let machine: Self = serde_json::from_str(text).map_err(|it| it.to_string())?;
        // Outside of these limits, the sums of times would not be finite.
        let is_time = |it: f64| (0.0..=LONGEST_US).contains(&it);
        let Self { run_us, event_us, switch_us, .. } = machine;
        let constants = [("run_us", run_us), ("event_us", event_us), ("switch_us", switch_us)].into_iter();
        let exchanges = machine.exchange_us.values().flatten();
        let exchanges = exchanges.flat_map(|it| [it.behind, it.us]).map(|it| ("exchange_us", it));
        if let Some((key, value)) = constants.chain(exchanges).find(|it| !is_time(it.1)) {
            return Err(format!("`{key}` is {value}: expected microseconds").into());
        }
        for (name, points) in &machine.exchange_us {
            if !points.is_sorted_by(|a, b| a.behind < b.behind) {
                return Err(
                    format!("the times of `exchange_us` of `{name}` are not in ascending order").into()
                );
            }
        }
        let contention = machine.contention.iter().map(|it| (format!("contention `{}`", it.0), it.1));
        for (name, points) in contention.chain([("key `sustained`".to_owned(), &machine.sustained)]) {
            let is_valid =
                |it: &&Slowdown| it.at >= 1.0 && it.at.is_finite() && (1.0..=1e3).contains(&it.factor);
            if let Some(it) = points.iter().find(|it| !is_valid(it)) {
                let Slowdown { at, factor } = it;
                return Err(format!("the {name} is {factor} at {at}: expected a factor of at least 1").into());
            }
            if !points.is_sorted_by(|a, b| a.at < b.at) {
                return Err(format!("the extents of the {name} are not in ascending order").into());
            }
        }
        for Crowding { at, factor } in &machine.crowding {
            if !at.iter().all(|it| it.is_finite() && *it >= 1.0) || !(1e-3..=1e3).contains(factor) {
                return Err(
                    format!("`crowding` is {factor} at {at:?}: expected a factor of a product").into()
                );
            }
        }
        for (name, Table(points)) in &machine.tables {
            let is_valid = |it: &Point| {
                it.us > 0.0
                    && is_time(it.us)
                    && !it.at.is_empty()
                    && it.at.iter().all(|it| it.is_finite() && *it >= 1.0)
            };
            let is_shape = [WorkClass::Product, WorkClass::Attention].iter().any(|it| it.has_table(name));
            let extents = if is_shape { 3 } else { 1 };
            if let Some(it) = points.iter().find(|it| !is_valid(it) || it.at.len() != extents) {
                return Err(format!("table `{name}`: {:?} takes {} µs, which cannot be", it.at, it.us).into());
            }
            if !points.is_sorted_by(|a, b| a.at < b.at) {
                return Err(format!("the extents in table `{name}` are not in ascending order").into());
            }
        }
        if let Some(Accuracy { median, nine_of_ten }) = machine.accuracy
            && ![median, nine_of_ten].iter().all(|it| (0.0..=1e3).contains(it))
        {
            return Err(format!("`accuracy` is {median} and {nine_of_ten}: expected relative errors").into());
        }
        Ok(machine)
    }

    /// Returns the microseconds that work takes behind work of the same kind; `None` if no table describes it.
    pub fn microseconds(&self, work: &Work) -> Option<f64> {
        self.tables.get(&work.kind.to_string())?.microseconds(work)
    }

    /// As `microseconds`, for a product whose larger operand has to be read from memory, because the cache of the GPU does not hold
    /// it any more.
    pub fn microseconds_from_memory(&self, work: &Work) -> Option<f64> {
        let table = work.kind.to_string();
        let [warm, cold] = [&table, &(table.clone() + FROM_MEMORY)].map(|it| self.tables.get(it));
        let exactly = |it: Option<&Table>| Some(it?.exactly(&work.extents)?.us);
        exactly(cold)
            .or_else(|| exactly(warm))
            .or_else(|| cold?.microseconds(work))
            .or_else(|| self.microseconds(work))
    }

    /// As `microseconds`, for work with one extent of whose accesses this part, from 0 to 1, has to go to memory: it is as fast as that of
    /// the largest extent, which no cache holds.
    pub fn microseconds_with_misses(&self, work: &Work, part: f64) -> Option<f64> {
        let cached = self.microseconds(work)?;
        let Table(points) = self.tables.get(&work.kind.to_string())?;
        let (Some(last), [extent]) = (points.last(), work.extents.as_slice()) else { return Some(cached) };
        let missed = cached.max(last.us * extent / last.at[0]);
        Some(cached + (missed - cached) * part)
    }

    /// Returns whether there are times for products that read their operands from memory.
    pub fn knows_memory(&self) -> bool {
        self.tables.keys().any(|it| it.contains(FROM_MEMORY))
    }

    /// Returns whether the times of just this work were measured.
    pub fn has_exactly(&self, work: &Work) -> bool {
        self.tables.get(&work.kind.to_string()).is_some_and(|it| it.exactly(&work.extents).is_some())
    }

    /// Returns the microseconds that work takes longer in a program than in its table. Since the communication before, the rank has
    /// computed for `computed` microseconds.
    pub fn microseconds_between(&self, work: &Work, computed: f64) -> f64 {
        let exchange =
            |it: Contention| self.exchange_us.get(it.name()).map_or(0.0, |it| delay_behind(it, computed));
        // A copy engine is no kernel that another kind of kernel comes before.
        let switch = if work.contention() == Some(Contention::Copy) { 0.0 } else { self.switch_us };
        work.contention().map_or(0.0, exchange) + switch
    }

    /// Returns how many times longer this work and a kernel that computes take while both run; 1 if it is not known.
    pub fn contention_factor(&self, work: &Work) -> f64 {
        let points = work.contention().and_then(|it| self.contention.get(it.name()));
        let bytes = work.extents.first().copied().unwrap_or(1.0);
        points.map_or(1.0, |it| factor_at(it, bytes))
    }

    /// Returns how many times longer a product of these extents takes behind a product on another stream; 1 if it is not known.
    pub fn crowding(&self, extents: &[f64]) -> f64 {
        let points = self.crowding.iter().map(|it| (it.at.as_slice(), it.factor));
        of_nearest(points, extents).map_or(1.0, f64::exp)
    }

    /// Makes the times of products those of a GPU that has computed for some hundred milliseconds.
    pub fn sustain(&mut self) {
        self.is_sustained = true;
        let points = std::mem::take(&mut self.sustained);
        let products = self.tables.iter_mut().filter(|it| WorkClass::Product.has_table(it.0));
        for it in products.flat_map(|(_, Table(points))| points) {
            let factor = factor_at(&points, it.at.iter().product());
            (it.us, it.least) = (it.us * factor, it.least * factor);
        }
    }

    /// Returns how many times longer a product takes under a load from 0 to 1, that of a GPU that has computed for some hundred milliseconds.
    pub fn slowdown(&self, product: &Work, load: f64) -> f64 {
        1.0 + (factor_at(&self.sustained, product.extents.iter().product()) - 1.0) * load
    }

    /// Returns the relative error that nine of ten estimates of whole programs did not exceed. It is not known for several hosts.
    pub fn error(&self) -> Option<f64> {
        self.accuracy.filter(|_| self.hosts.is_none()).map(|it| it.nine_of_ten)
    }

    /// Returns the relative error that half of the estimates of whole programs did not exceed. It is not known for several hosts.
    pub fn typical_error(&self) -> Option<f64> {
        self.accuracy.filter(|_| self.hosts.is_none()).map(|it| it.median)
    }

    /// Returns the bytes that leave a GPU over its link in a microsecond: as many as the fastest communication of its tables sends.
    pub fn link_bandwidth(&self) -> f64 {
        let is_communication = |name: &str| {
            [WorkClass::Get, WorkClass::Put, WorkClass::Nccl].iter().any(|it| it.has_table(name))
        };
        let tables = self.tables.iter().filter(|it| is_communication(it.0));
        // The latency of a link determines the times of small ones.
        let large = tables.flat_map(|(_, Table(points))| points).filter(|it| it.at[0] >= 1e6);
        let speeds = large.map(|it| it.at[0] / it.us);
        let fastest = speeds.fold(0.0, f64::max);
        if fastest > 0.0 { fastest } else { LINK_BYTES }
    }

    /// Returns whether nothing was measured, so that all times are those of the nominal GPU.
    pub fn is_nominal(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the text of a file, with a line for each time.
    ///
    /// # Errors
    /// A number is not finite.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let header = Self { tables: BTreeMap::new(), runs: Vec::new(), ..self.clone() };
        let list = |lines: Vec<String>| {
            if lines.is_empty() { "[]".to_owned() } else { format!("[\n    {}\n  ]", lines.join(",\n    ")) }
        };
        let lines =
            |points: &Table| points.0.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>();
        let mut tables = Vec::new();
        for (name, points) in &self.tables {
            let points = list(lines(points)?).replace('\n', "\n  ");
            tables.push(format!("{}: {points}", serde_json::to_string(name)?));
        }
        let tables = if tables.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{\n    {}\n  }}", tables.join(",\n    "))
        };
        let runs = list(self.runs.iter().map(serde_json::to_string).collect::<Result<_, _>>()?);
        let text = serde_json::to_string_pretty(&header)? + "\n";
        Ok(text
            .replace("\"tables\": {}", &format!("\"tables\": {tables}"))
            .replace("\"runs\": []", &format!("\"runs\": {runs}")))
    }

    /// Returns where times come from, in a sentence. `is_hot` says whether products have the times of a GPU that is not cool.
    pub fn source(&self, is_hot: bool) -> String {
        let Self { gpu, ranks, date, .. } = self;
        let gpus = if *ranks == 1 { format!("one {gpu}") } else { format!("{ranks} {gpu}") };
        let load = if is_hot || self.is_sustained { ", under sustained load" } else { "" };
        let on_one_host = if self.is_nominal() {
            assumptions()
        } else {
            format!("estimated from measurements on {gpus} of {date}, as one graph{load}")
        };
        on_one_host + &self.hosts.as_ref().map(Hosts::source).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::table::tests::table;
    use crate::timeline::work::WorkKind;
    use grammar::words::CommunicationType;

    #[test]
    fn a_communication_waits_longer_behind_longer_kernels() {
        let delays = [(4.0, 1.0), (100.0, 7.0)].map(|(behind, us)| Delay { behind, us });
        let delay = |computed: f64| delay_behind(&delays, computed);
        assert_eq!([0.0, 4.0, 52.0, 100.0, 500.0].map(delay), [1.0, 1.0, 4.0, 7.0, 7.0]);
        let exchange_us = BTreeMap::from([("nccl".to_owned(), delays.to_vec())]);
        let machine = Machine { switch_us: 0.5, exchange_us, ..Machine::default() };
        let work = |kind: WorkKind| Work { kind, extents: vec![8.0] };
        assert_eq!(
            machine.microseconds_between(&work(WorkKind::Nccl(CommunicationType::Allreduce)), 52.0),
            4.5
        );
        assert_eq!(machine.microseconds_between(&work(WorkKind::Elementwise), 52.0), 0.5);
    }

    #[test]
    fn crowding_is_that_of_the_nearest_products() {
        let point = |rows, factor| Crowding { at: [rows, 4096.0, 4096.0], factor };
        let crowding = vec![point(16.0, 0.75), point(2048.0, 1.05)];
        let machine = Machine { crowding, ..Machine::default() };
        let factor = |rows: f64| machine.crowding(&[rows, 4096.0, 4096.0]);
        assert!((factor(16.0) - 0.75).abs() < 1e-6 && (factor(2048.0) - 1.05).abs() < 1e-6);
        assert!((0.75..0.8).contains(&factor(32.0)), "{}", factor(32.0));
        assert_eq!(Machine::default().crowding(&[32.0, 64.0, 64.0]), 1.0);
    }

    #[test]
    fn long_runs_heat_products() {
        use crate::timeline::cost::CostModel;

        let loads = [1e3, 2.5e3, 8.75e3, 15e3, 1e6].map(CostModel::load_of);
        assert_eq!(loads, [0.0, 0.0, 0.5, 1.0, 1.0]);
        let sustained = vec![Slowdown { at: 1e9, factor: 1.2 }];
        let machine = Machine { sustained, ..Machine::default() };
        let product =
            Work { kind: WorkKind::Product(grammar::dtype::DType::BFloat), extents: vec![1e3, 1e3, 1e3] };
        assert!((machine.slowdown(&product, 0.5) - 1.1).abs() < 1e-9);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let mut machine = Machine { version: VERSION, ..Machine::default() };
        let refusal = |it: &Machine| {
            let text = serde_json::to_string(it).unwrap_or_default();
            Machine::parse(&text).err().map(|it| it.to_string())
        };
        assert_eq!(refusal(&machine), None);
        machine.tables.insert("copy".to_owned(), table(&[(&[4.0], 1.0), (&[8.0], 1.5)]));
        machine.runs.push(Run { program: "mlp".to_owned(), passes: String::new(), us: 2.0, least: 1.0 });
        let text = machine.text().unwrap_or_default();
        assert_eq!(Machine::parse(&text).ok().as_ref(), Some(&machine), "{text}");
        machine.tables.insert("copy".to_owned(), table(&[(&[8.0], 1.0), (&[4.0], 1.0)]));
        assert!(refusal(&machine).is_some_and(|it| it.contains("ascending")));
        machine.tables.insert("copy".to_owned(), table(&[(&[8.0], 0.0)]));
        assert!(refusal(&machine).is_some_and(|it| it.contains("cannot be")));
        machine.tables.clear();
        machine.crowding.push(Crowding { at: [0.0, 8.0, 8.0], factor: 1.0 });
        assert!(refusal(&machine).is_some_and(|it| it.contains("`crowding`")));
        machine.crowding.clear();
        let point = Delay { behind: 4.0, us: 1.0 };
        machine.exchange_us.insert("nccl".to_owned(), vec![point, point]);
        assert!(refusal(&machine).is_some_and(|it| it.contains("ascending")));
        machine.version = VERSION + 1;
        assert!(
            refusal(&machine).is_some_and(|it| it.contains("this hir reads") && it.contains("measure again"))
        );
    }
}
