//! Builds the report of a lost job: one text with the cause first, then what every rank was doing.
//! `plan::sync` determines what the ranks wait for.

use super::{LaunchError, progress};
use hir_plan::{
    World,
    sync::{self, JobState, lines_by_rank},
};
use hir_process::exit::Exit;

/// Returns the report: the cause, then one line for each group of ranks with what they were doing. `records`
/// are by rank, `None` where nothing is known.
pub fn job_report(fault: &LaunchError, records: &[Option<Vec<u8>>], world: &World) -> String {
    let ranks: Vec<Option<sync::RankProgress>> =
        records.iter().map(|it| it.as_deref().and_then(decode)).collect();
    let job = JobState::new(world, &ranks);
    let stuck = matches!(fault, LaunchError::Late { .. } | LaunchError::Stalled { .. });
    let requested =
        matches!(Exit::from(fault.exit()), Exit::Hang | Exit::HungUp | Exit::Interrupted | Exit::Terminated)
            && matches!(fault, LaunchError::Aborted { .. });
    let (cause, is_connecting) = if stuck || requested { job.cause() } else { (None, false) };
    let mut text = match cause {
        // The report may be requested in the middle of a run in which nothing is wrong.
        Some(cause) if requested => format!("{fault}\n{cause}"),
        Some(cause) => format!("{cause}\n{fault}"),
        None => fault.to_string(),
    };
    let lost = match fault {
        LaunchError::Gone { rank } | LaunchError::Silent { rank, .. } => Some(*rank),
        _ => None,
    };
    let lines = ranks.iter().enumerate().map(|(rank, progress)| {
        let doing = job.describe_rank(rank, is_connecting);
        let runs = progress.as_ref().is_some_and(|it| it.position.is_some());
        (rank, if lost == Some(rank) && runs { format!("was last {doing}") } else { doing })
    });
    lines_by_rank(lines).iter().for_each(|line| text += &format!("\n{line}"));
    text
}

fn decode(record: &[u8]) -> Option<sync::RankProgress> {
    let it = progress::RankProgress::decode(record)?;
    let indices = |it: Vec<u32>| it.into_iter().map(|it| it as usize).collect();
    let complete = it.plan.as_ref().map_or(0, |it| it.completed_rounds);
    let position = it.plan.map(|it| sync::Position {
        round: it.round,
        issued: it.issued as usize,
        streams: indices(it.streams),
        queues: indices(it.queues),
    });
    Some(sync::RankProgress { phase: it.phase, complete, position })
}
