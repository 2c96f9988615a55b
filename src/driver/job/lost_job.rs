//! Builds the report of a lost job: the cause first, then what every rank was doing. `plan::sync` determines what the ranks
//! wait for.

use std::sync::Arc;

use hir_launch::{
    LaunchError, progress,
    report::{JobReport, ReportBuilder},
};
use hir_plan::{
    World,
    sync::{JobState, Position, RankProgress, lines_by_rank},
};
use hir_process::exit::Exit;

#[cfg(test)]
mod tests;

/// Returns the function that builds the report of ranks that have no plans yet.
pub fn report_without_plans() -> ReportBuilder {
    report_with_plans(Arc::default())
}

/// Returns the function that builds the report of ranks that run these plans.
pub fn report_with_plans(world: Arc<World>) -> ReportBuilder {
    Box::new(move |fault, ranks| job_report(fault, ranks, &world))
}

/// Returns the report: the cause, then one line for each group of ranks with what they were doing. `ranks` are `None`
/// where nothing is known.
fn job_report(fault: &LaunchError, ranks: &[Option<progress::RankProgress>], world: &World) -> JobReport {
    let ranks: Vec<Option<RankProgress>> = ranks.iter().map(|it| it.as_ref().map(planned)).collect();
    let job = JobState::new(world, &ranks);
    let stuck = matches!(fault, LaunchError::Late { .. } | LaunchError::Stalled { .. });
    let requested =
        matches!(Exit::from(fault.exit()), Exit::Hang | Exit::HungUp | Exit::Interrupted | Exit::Terminated)
            && matches!(fault, LaunchError::Aborted { .. });
    let (cause, is_connecting) = if stuck || requested { job.cause() } else { (None, false) };
    // The fault of another rank may have several lines.
    let mut lines: Vec<String> = fault.to_string().lines().map(str::to_owned).collect();
    if let Some(cause) = cause {
        // The report may be requested in the middle of a run in which nothing is wrong.
        lines.insert(if requested { lines.len() } else { 0 }, cause);
    }
    let lost = match fault {
        LaunchError::Gone { rank } | LaunchError::Silent { rank, .. } => Some(*rank),
        _ => None,
    };
    let described = ranks.iter().enumerate().map(|(rank, progress)| {
        let doing = job.describe_rank(rank, is_connecting);
        let runs = progress.as_ref().is_some_and(|it| it.position.is_some());
        (rank, if lost == Some(rank) && runs { format!("was last {doing}") } else { doing })
    });
    lines.extend(lines_by_rank(described));
    JobReport::from_lines(lines)
}

/// Returns the progress of a rank as the plans have it.
fn planned(it: &progress::RankProgress) -> RankProgress {
    let indices = |it: &[u32]| it.iter().map(|it| *it as usize).collect();
    let position = it.plan.as_ref().map(|it| Position {
        round: it.round,
        issued: it.issued as usize,
        streams: indices(&it.streams),
        queues: indices(&it.queues),
    });
    let complete = it.plan.as_ref().map_or(0, |it| it.completed_rounds);
    RankProgress { phase: it.phase.clone(), complete, position }
}
