//! The fastest pipelines of programs: `--tune-passes` with `--tune FILE` stores them, `--tuning FILE` applies them.
//!
//! A pipeline belongs to a program, so a program that has changed since has none. Only rank 0 reads the file.

use std::path::Path;

use grammar::{Binding, count_text, escape_control};
use serde::{Deserialize, Serialize};

use super::{
    existing, store,
    table::{self, PipelineEntry, TuningTable},
};
use crate::{
    auto,
    job::rank_process::canonical_text,
    run::{
        failure::{JobFailure, Result},
        pipeline_tuning::{MeasuredPipeline, fastest},
        program_files::ProgramFiles,
    },
    session::Session,
    source,
};
use hir_executor::Machine;
use hir_launch::job_rank::JobRank;
use hir_process::input_file::{InputFiles, digest};

/// A program without passes, and how it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedProgram {
    /// BLAKE3 of the canonical text of its files.
    pub(super) digest: String,
    /// The names of its files, for readers of the table.
    pub(super) name: String,
    /// The options `--container` and `--set`.
    pub(super) settings: String,
    /// Number of ranks.
    pub(super) ranks: usize,
    /// True if it is measured as a graph.
    pub(super) graph: bool,
}

/// What a table has for a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredPipeline {
    /// The pipeline that applies, if there is one; empty if the program without passes was the fastest.
    pub passes: Option<String>,
    /// What to tell the user.
    pub note: String,
}

impl TunedProgram {
    /// Returns the program of these files, or `None` if one cannot be read, which is an error elsewhere.
    pub fn read(
        session: &Session,
        (files, fusions): (&ProgramFiles, &[String]),
        container: Option<usize>,
        bindings: &[Binding],
        (ranks, graph): (usize, bool),
    ) -> Option<Self> {
        let mut text = String::new();
        for path in files.paths() {
            text += &canonical_text(&source::open_program(session, path, fusions).ok()?);
            text.push('\0');
        }
        let container = container.map(|it| format!("--container {it}"));
        let bindings = bindings.iter().map(|it| format!("--set {it}"));
        let mut settings: Vec<String> = container.into_iter().chain(bindings).collect();
        settings.sort_unstable();
        Some(Self {
            digest: digest(text.as_bytes()).to_string(),
            name: files.paths().join(" "),
            settings: settings.join(" "),
            ranks,
            graph,
        })
    }

    /// Describes how the program runs: `2 ranks, one graph, --set i0=4`.
    fn how(&self) -> String {
        let issue = if self.graph { "one graph" } else { "step by step" };
        let settings = if self.settings.is_empty() { String::new() } else { format!(", {}", self.settings) };
        format!("{}, {issue}{settings}", count_text(self.ranks, "rank"))
    }

    /// Returns true for the same program that runs in the same way. The names of the files do not matter.
    pub(super) fn runs_like(&self, other: &Self) -> bool {
        let Self { digest, name: _, settings, ranks, graph } = self;
        (digest, settings, ranks, graph) == (&other.digest, &other.settings, &other.ranks, &other.graph)
    }
}

/// Reads a table and returns what it has for a program, if there is a program to look up. All ranks of a job have to call
/// this, and get the same result; only rank 0 calls `program` and reads the table. `load` checks before the run that it was made on this kind of machine.
///
/// # Errors
/// The file cannot be read or is no table, its pipeline does not parse, or a rank does not answer.
pub fn stored(
    files: &InputFiles,
    path: &Path,
    program: impl FnOnce() -> Option<TunedProgram>,
    member: Option<&JobRank>,
) -> Result<Option<StoredPipeline>> {
    let search = || {
        let table = existing(files, path)?;
        program().map_or(Ok(None), |it| find(path, &table, &it))
    };
    let Some(member) = member else { return search() };
    let mine = if member.channel.rank == 0 { search() } else { Ok(None) };
    let mine: Result<_, String> = mine.map_err(|it| it.to_string());
    let found = member.channel.all_gather_values(&mine)?.into_iter().next().unwrap_or(Ok(None));
    found.map_err(JobFailure::Environment)
}

fn find(path: &Path, table: &TuningTable, program: &TunedProgram) -> Result<Option<StoredPipeline>> {
    let shown = path.display();
    if let Some(it) = table.pipelines.iter().find(|it| it.program.runs_like(program)) {
        if let Err(fault) = auto::catalog().parse(&it.passes) {
            let [passes, name, why] =
                [&it.passes, &it.program.name, &fault.message].map(|it| escape_control(it));
            return Err(JobFailure::Environment(format!(
                "`{shown}` has the pipeline `{passes}` for `{name}`, which this hir-run does not accept: {why}: measure \
                 again with `--tune-passes`, or give other passes, as in `--passes @lower` or `--passes ''`"
            )));
        }
        let words: Vec<&str> = it.passes.split_whitespace().collect();
        let passes = if words.is_empty() { "no passes".to_owned() } else { escape_control(&words.join(" ")) };
        let note = format!("the pipeline that `{shown}` has for this program is applied: {passes}");
        return Ok(Some(StoredPipeline { passes: Some(it.passes.clone()), note }));
    }
    let refused = |note: String| Ok(Some(StoredPipeline { passes: None, note }));
    if let Some(it) = table.pipelines.iter().find(|it| it.program.digest == program.digest) {
        return refused(format!(
            "`{shown}` has a pipeline of this program for {}, but this run is for {}: it is not applied",
            escape_control(&it.program.how()),
            program.how()
        ));
    }
    if table.pipelines.iter().any(|it| it.program.name == program.name) {
        refused(format!(
            "`{shown}` has a pipeline of another text of `{}`: it is not applied; measure again with `--tune-passes`",
            program.name
        ))
    } else {
        Ok(None)
    }
}

/// Adds the fastest of the pipelines of a program to a table, where it replaces the entry of the same program. Returns
/// what to tell the user, which is nothing if no pipeline was measured.
///
/// # Errors
/// The file cannot be read or written, or is no table.
pub fn store_pipeline(
    files: &InputFiles,
    path: &Path,
    machine: &Machine,
    program: TunedProgram,
    measured: &[MeasuredPipeline],
) -> Result<Vec<String>> {
    let Some((best, best_us)) = fastest(measured).and_then(|it| Some((it, it.time()?))) else {
        return Ok(Vec::new());
    };
    let first_us = measured.iter().find_map(MeasuredPipeline::time).unwrap_or(best_us);
    store(files, path, (machine, program.ranks), |table| {
        let pipelines = &mut table.pipelines;
        pipelines.retain(|it| !it.program.runs_like(&program));
        let kept = pipelines.len();
        pipelines.push(PipelineEntry {
            program,
            passes: best.passes.clone(),
            first_us: table::rounded(first_us),
            best_us: table::rounded(best_us),
        });
        // A file does not depend on the order in which programs were measured.
        pipelines.sort_by(|a, b| {
            let key = |it: &PipelineEntry| (it.program.ranks, it.program.graph);
            let texts = |it: &PipelineEntry| {
                [it.program.name.clone(), it.program.digest.clone(), it.program.settings.clone()]
            };
            texts(a).cmp(&texts(b)).then(key(a).cmp(&key(b)))
        });
        format!(
            "`{}`: the fastest pipeline of this program is stored, {kept} other pipelines kept; it takes {best_us:.2} us, the \
             first one {first_us:.2} us",
            path.display()
        )
    })
}
