//! A timeline in Markdown, for the summary of a job: a Gantt chart of Mermaid, which GitHub and GitLab draw, and the report on overlap.

use std::fmt::Write;

use super::{SliceKind, Timeline};

/// The most bars of a chart. It shows the first ranks, as many as fit.
const MAX_BARS: usize = 150;

/// Returns the text. Waits are not drawn, and times are rounded to microseconds.
pub fn text(timeline: &Timeline, title: &str, report: &[String]) -> String {
    let count = timeline.rows.last().map_or(0, |it| it.rank + 1);
    let mut bars = vec![0; count];
    let work = || timeline.slices.iter().filter(|it| it.kind != SliceKind::Wait);
    work().for_each(|it| bars[timeline.rows[it.row].rank] += 1);
    let mut sum = 0;
    let fits = |it: &&usize| {
        sum += **it;
        sum <= MAX_BARS
    };
    let shown = bars.iter().take_while(fits).count();
    let mut text = format!("### Timeline of {}\n\n", title.replace(['`', '<', '\n'], " "));
    if shown > 0 {
        text += "```mermaid\n---\ndisplayMode: compact\n---\ngantt\n    dateFormat x\n    axisFormat %Q µs\n";
        for (number, row) in timeline.rows.iter().enumerate().filter(|(_, it)| it.rank < shown) {
            let mut own = work().filter(|it| it.row == number).peekable();
            if own.peek().is_some() {
                let _ = writeln!(text, "    section rank {} {}", row.rank, plain(&row.lane.to_string()));
            }
            for it in own {
                let tag = match it.kind {
                    SliceKind::Compute => "active, ",
                    SliceKind::DataMovement => "done, ",
                    SliceKind::Communication | SliceKind::Wait => "",
                };
                let begin = it.begin.round();
                // What never ends is drawn up to the end of the chart.
                let end = it.end.unwrap_or(timeline.end()).round().max(begin + 1.0);
                let _ = writeln!(text, "    {} :{tag}{begin}, {end}", plain(&it.title()));
            }
        }
        text += "```\n\n";
    }
    if shown < count {
        let _ = writeln!(text, "Ranks {shown} to {} are not drawn.\n", count - 1);
    }
    if !report.is_empty() {
        let _ = writeln!(text, "```text\n{}\n```\n", report.join("\n"));
    }
    text
}

/// Returns a label without the characters that end a label of Mermaid.
fn plain(label: &str) -> String {
    label.replace([':', ';', '#', ',', '`', '\n'], " ")
}
