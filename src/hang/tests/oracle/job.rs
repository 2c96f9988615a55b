//! A job with its fault and its dumps.

use serde_json::Value;

use super::{
    device::{Settings, Times, execute},
    dump::{Log, Writing, file, log},
    fault::{Fault, Faulty, plant_somewhere},
    program::{Program, generate},
    rng::Rng,
};

/// A job.
pub struct Job {
    /// The program without the fault.
    pub program: Program,
    pub made: Faulty,
    pub settings: Settings,
    pub writing: Writing,
    /// The dump of each rank; `None` for a killed one.
    pub logs: Vec<Option<Log>>,
}

impl Job {
    /// Makes a job with a fault of a kind, at most so many ranks, from a number.
    pub fn make(number: u64, fault: Fault, max_world: usize) -> Self {
        let mut rng = Rng(number.wrapping_mul(0x5851_f42d_4c95_7f2d) + fault as u64);
        loop {
            let program = generate(&mut rng, max_world);
            let settings = Settings::choose(&mut rng);
            let writing = Writing::choose(&mut rng, program.ranks.len());
            for _ in 0..20 {
                let Some(made) = plant_somewhere(&program, fault, &mut rng) else { continue };
                let mut writing = writing.clone();
                let times = execute(&made.program, &settings, made.broken);
                if set_moments(&mut writing, &made, &times, &mut rng) {
                    let logs = logs(&made, &times, &writing);
                    return Self { program, made, settings, writing, logs };
                }
            }
        }
    }

    /// Returns the dump of a rank of another fault of the same job, written at the same moment.
    pub fn log_of(&self, other: &Faulty, times: &[Vec<Times>], rank: usize) -> Option<Log> {
        (other.killed != Some(rank)).then(|| log(&other.program, &times[rank], &self.writing, rank))
    }

    /// Returns the files of the dumps.
    pub fn files(&self) -> Vec<(String, Value)> {
        let logs = self.logs.iter().enumerate().filter_map(|(rank, it)| Some((rank, it.as_ref()?)));
        let name = |rank: usize| {
            if self.writing.has_frames { format!("rank_{rank}") } else { format!("rank_{rank}.json") }
        };
        logs.map(|(rank, it)| (name(rank), file(&self.made.program, it, &self.writing, rank))).collect()
    }

    /// Whether the records show that a call was given up: the watchdog retired it, or it completed by an abort.
    pub fn shows_time_out(&self) -> bool {
        let limit = self.writing.timeout_ms * 1_000_000;
        self.logs.iter().flatten().flat_map(|it| &it.records).any(|it| match it.times {
            [_, _, None] => it.retired,
            [Some(issued), _, Some(done)] => done >= issued + limit,
            _ => false,
        })
    }
}

fn logs(made: &Faulty, times: &[Vec<Times>], writing: &Writing) -> Vec<Option<Log>> {
    let ranks = 0..made.program.ranks.len();
    ranks
        .map(|rank| (made.killed != Some(rank)).then(|| log(&made.program, &times[rank], writing, rank)))
        .collect()
}

/// Sets when the ranks dump; false if a faulty job does not hang, or if a healthy one does.
fn set_moments(writing: &mut Writing, made: &Faulty, times: &[Vec<Times>], rng: &mut Rng) -> bool {
    let all = || times.iter().flatten();
    if made.fault == Fault::Healthy {
        assert!(all().all(|it| it.done.is_some()), "a healthy job hangs");
        let end = all().filter_map(|it| it.done).max().unwrap_or(0);
        let at = if rng.percent(15) { end + 1_000_000_000 } else { rng.between(end / 5, end) };
        let spread = rng.pick(&[0, 1_000_000, 5_000_000]);
        writing.moment = times.iter().map(|_| at + rng.between(0, spread)).collect();
        return true;
    }
    let open = (0..times.len())
        .filter(|&rank| made.killed != Some(rank))
        .flat_map(|rank| &times[rank])
        .filter(|it| it.done.is_none())
        .filter_map(|it| it.issued);
    let Some(first) = open.min() else { return false };
    let limit = first + writing.timeout_ms * 1_000_000;
    writing.abort = (made.fault == Fault::Abort).then_some(limit + 10_000_000);
    writing.moment = times.iter().map(|_| limit + 100_000_000 + rng.between(0, 1_000_000_000)).collect();
    true
}
