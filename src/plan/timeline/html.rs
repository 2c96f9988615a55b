//! A timeline as a page without references to other files: ranks fold, a search finds statements, and a bar says what it is and what it
//! waited for.

use serde_json::json;

use super::{
    Row, Timeline,
    svg::{Names, STYLE, escape},
};

/// The page; `@TITLE@`, `@STYLE@`, `@CAUSE@`, `@REPORT@` and `@DATA@` are replaced.
const PAGE: &str = include_str!("page.html");

/// Returns the page. `report` is shown below the picture.
pub fn page(timeline: &Timeline, title: &str, report: &[String]) -> String {
    let shown = timeline.shown_rows();
    let used: Vec<usize> = (0..shown.len()).filter(|it| shown[*it]).collect();
    let is_one = used.iter().all(|it| timeline.rows[*it].rank == timeline.rows[used[0]].rank);
    let names = Names::of(timeline, is_one);
    let row = |(it, lines): (&Row, &Vec<[String; 2]>)| json!([it.rank, it.lane.to_string(), lines]);
    let rows: Vec<_> = timeline.rows.iter().zip(&names.lines).map(row).collect();
    let slices: Vec<_> = (0..timeline.slices.len())
        .map(|number| {
            let it = &timeline.slices[number];
            let arrow = timeline.arrow_to(number).map(|it| json!([it.from, it.from_time, it.to_time]));
            let (kind, location, is_named) = (it.kind.name(), it.location(), timeline.is_named(it));
            json!([it.row, kind, it.begin, it.end, it.label, location, it.line, arrow, is_named])
        })
        .collect();
    let (end, named) = (timeline.end(), &timeline.diagnosis.ranks);
    let data = json!({"rows": rows, "slices": slices, "end": end, "used": used, "named": named, "width": names.width,
        "what_if": timeline.what_if});
    // `<` never begins a tag inside the script.
    let data = data.to_string().replace('<', "\\u003c");
    let cause = timeline.diagnosis.lines.split_first().map(|(first, rest)| {
        format!(
            "<section id=\"cause\"><b>{}</b><pre>{}</pre></section>",
            escape(first),
            escape(&rest.join("\n"))
        )
    });
    PAGE.replace("@STYLE@", STYLE)
        .replace("@TITLE@", &escape(title))
        .replace("@CAUSE@", &cause.unwrap_or_default())
        .replace("@REPORT@", &escape(&report.join("\n")))
        .replace("@DATA@", &data)
}
