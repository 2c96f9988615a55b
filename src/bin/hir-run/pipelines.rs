//! Runs a program with each pipeline of `--tune-passes`, in turns, as the programs of one job.

use std::ops::ControlFlow;

use hir::{
    exit::Exit,
    run::{
        pipeline_tuning::{MeasuredPipeline, ROUNDS, all_alternatives, json, report},
        prepare::JobFailure,
        rank_process::RunVerdict,
    },
    tool::print_line,
};

use crate::{
    batch::{JobProgram, JobStep},
    options::Options,
    task::write_file,
};

/// Number of timed runs of a round if `-n` is not given.
const RUNS: usize = 20;

/// A run of a program with one of several pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineTurn {
    /// The position of the pipeline, from 0, and the number of pipelines.
    pub number: usize,
    pub count: usize,
    /// The round, from 0.
    pub round: usize,
    /// The text of the pipeline.
    pub passes: String,
}

/// Returns the runs of all pipelines of `--tune-passes`, and the report at the end. The second round has the opposite
/// order.
///
/// # Errors
/// A text is not a pipeline, or there are too many pipelines.
pub fn turns(job: &Options) -> Result<Vec<JobProgram>, (Exit, String)> {
    job.validate().map_err(|it| it.summary())?;
    let wrong = |why: String| (Exit::Usage, format!("`--tune-passes`: {why}"));
    let pipelines = all_alternatives(&job.tune_passes).map_err(wrong)?;
    for text in &pipelines {
        passes::parse(text).map_err(|it| {
            let help = it.help.map_or(String::new(), |help| format!("; {help}"));
            wrong(format!("`{text}`: {}{help}", it.message))
        })?;
    }
    let runs = if job.iters > 0 { job.iters } else { RUNS };
    let turn = |round: usize, (number, passes): (usize, &String)| {
        let mut options = job.clone();
        options.passes.push(passes.clone());
        options.iters = runs;
        (options.reports_times_only, options.json) = (true, None);
        let turn = PipelineTurn { number, count: pipelines.len(), round, passes: passes.clone() };
        JobProgram { options, step: JobStep::Turn(turn) }
    };
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let mut order: Vec<(usize, &String)> = pipelines.iter().enumerate().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        all.extend(order.into_iter().map(|it| turn(round, it)));
    }
    let options = Options { iters: runs, ..job.clone() };
    all.push(JobProgram { options, step: JobStep::Report });
    Ok(all)
}

/// The results of all turns.
pub struct PipelineTimes {
    pipelines: Vec<MeasuredPipeline>,
    ranks: usize,
}

impl PipelineTimes {
    /// Creates the results of programs that have not run, on this many ranks.
    pub fn of(programs: &[JobProgram], ranks: usize) -> Self {
        let turns = programs.iter().filter_map(JobProgram::turn);
        let pipelines =
            turns.filter(|it| it.round == 0).map(|it| MeasuredPipeline::new(it.passes.clone())).collect();
        Self { pipelines, ranks }
    }

    /// Adds the result of a program: the exit code on which all ranks agree, and the median of its timed runs.
    pub fn add(&mut self, program: &JobProgram, end: ControlFlow<Exit, Exit>, median: Option<f64>) {
        let (ControlFlow::Break(exit) | ControlFlow::Continue(exit)) = end;
        let turn = program.turn();
        let measured = turn.and_then(|it| Some((it.round, self.pipelines.get_mut(it.number)?)));
        measured.into_iter().for_each(|(round, it)| it.add(round, exit, median));
    }

    /// Prints the table, writes `-J FILE`, and returns the verdict of the job. Only rank 0, which `reports`, has times.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn report(&self, job: &Options, reports: bool) -> Result<RunVerdict, JobFailure> {
        let how = match job.cudagraph {
            true => "as one graph",
            false => "issued command by command",
        };
        let rounds = format!(
            "median of {} runs {how} on the slowest of {} ranks; the second round has the opposite order",
            job.iters, self.ranks
        );
        let compared = !job.expect.is_empty() || job.reference.is_some();
        let (mut lines, exit) = report(&self.pipelines, &rounds, compared);
        let line = lines.pop();
        if !reports {
            return Ok(RunVerdict::without_line(exit));
        }
        if let Some(path) = &job.json {
            let value = json(&self.pipelines, job.texts().paths(), self.ranks);
            write_file(path, &format!("{value:#}\n"))?;
        }
        for line in lines.iter().filter(|it| !(job.diagnostics.quiet && it.starts_with('#'))) {
            print_line(line);
        }
        Ok(RunVerdict { line, ..RunVerdict::without_line(exit) })
    }
}
