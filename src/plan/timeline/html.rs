//! A timeline as a page without references to other files: ranks fold, a search finds statements, and a bar says what it is and what it
//! waited for.

use serde_json::json;

use super::{Timeline, svg::escape};

/// The page; `@TITLE@`, `@REPORT@` and `@DATA@` are replaced.
const PAGE: &str = include_str!("page.html");

/// Returns the page. `report` is shown below the picture.
pub fn page(timeline: &Timeline, title: &str, report: &[String]) -> String {
    let rows = timeline.rows.iter().zip(timeline.carried());
    let rows: Vec<_> = rows.map(|(it, carried)| json!([it.rank, it.lane.to_string(), carried])).collect();
    let slices: Vec<_> = (0..timeline.slices.len())
        .map(|number| {
            let it = &timeline.slices[number];
            let arrow = timeline.arrow_to(number).map(|it| json!([it.from, it.from_time, it.to_time]));
            json!([it.row, it.kind.name(), it.begin, it.end, it.label, it.location(), it.line, arrow])
        })
        .collect();
    // `<` never begins a tag inside the script.
    let data =
        json!({"rows": rows, "slices": slices, "end": timeline.end()}).to_string().replace('<', "\\u003c");
    PAGE.replace("@TITLE@", &escape(title))
        .replace("@REPORT@", &escape(&report.join("\n")))
        .replace("@DATA@", &data)
}
