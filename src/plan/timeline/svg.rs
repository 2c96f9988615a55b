//! A timeline as a picture. Rows without work are left out.

use std::fmt::{self, Write as _};

use grammar::visible_text;

use super::{Slice, SliceKind, Timeline};

/// The maximum number of slices in a picture.
pub const MAX_SLICES: usize = 20_000;

/// Widths and heights in pixels.
const LABELS: f64 = 236.0;
const WIDTH: f64 = 900.0;
const ROW: f64 = 20.0;
const RANK_GAP: f64 = 10.0;
const HEAD: f64 = 58.0;
/// The height of a wait, which is thinner than work.
const WAIT: f64 = 5.0;
/// The width of a character of a label.
const CHARACTER: f64 = 6.2;
/// The number of pixels between two ticks, at least.
const TICK: f64 = 90.0;

const STYLE: &str = "text{font:11px system-ui,sans-serif;fill:#222}.t{font-weight:600}.g{stroke:#ddd}.l{fill:#fff}\
     .compute{fill:#3b6ea5}.memory{fill:#3f7d6e}.communication{fill:#b5620e}.wait{fill:#d5d5d5}.c{fill:#666}\
     .open{fill:#c0392b}.a{stroke:#555;stroke-width:.8;fill:none;marker-end:url(#h)}";

/// The number of slices of a timeline that is too large for a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySlices(usize);

impl fmt::Display for TooManySlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count) = self;
        write!(
            f,
            "a picture shows at most {MAX_SLICES} slices, and this timeline has {count}; write an `.html` or `.json` file \
             instead"
        )
    }
}

impl std::error::Error for TooManySlices {}

/// Returns the picture as an SVG document.
///
/// # Errors
/// The timeline has more than `MAX_SLICES` slices.
pub fn picture(timeline: &Timeline, title: &str) -> Result<String, TooManySlices> {
    let count = timeline.slices.len();
    if count > MAX_SLICES {
        return Err(TooManySlices(count));
    }
    let layout = Layout::of(timeline);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\"><title>{title}</title>\
         <style>{STYLE}</style><defs><marker id=\"h\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"6\" \
         markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#555\"/></marker></defs>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/><text class=\"t\" x=\"8\" y=\"16\">{title}</text>",
        LABELS + WIDTH + 40.0,
        layout.height,
        title = escape(title),
    );
    legend(&mut out, timeline);
    axis(&mut out, &layout);
    let carried = timeline.carried();
    for (row, top) in layout.tops.iter().enumerate() {
        let Some(top) = top else { continue };
        let it = &timeline.rows[row];
        let room = ((LABELS - 12.0) / CHARACTER) as usize;
        let name = shortened(&format!("rank {} {}", it.rank, it.lane), room);
        let rest = room - name.chars().count();
        let carried = if rest > 6 { shortened(&carried[row], rest - 2) } else { String::new() };
        let _ = writeln!(
            out,
            "<text x=\"8\" y=\"{:.1}\">{} <tspan class=\"c\">{}</tspan></text><path class=\"g\" d=\"M{LABELS} {:.1}h{WIDTH}\"/>",
            top + 13.0,
            escape(&name),
            escape(&carried),
            top + ROW - 1.0,
        );
    }
    timeline.slices.iter().for_each(|it| bar(&mut out, &layout, it));
    for arrow in (0..count).filter_map(|it| timeline.arrow_to(it)) {
        let (from, to) = (timeline.slices[arrow.from].row, timeline.slices[arrow.to].row);
        if let (Some(a), Some(b)) = (layout.tops[from], layout.tops[to])
            && from != to
        {
            let middle = |top: f64| top + ROW / 2.0;
            let _ = writeln!(
                out,
                "<path class=\"a\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>",
                layout.x(arrow.from_time),
                middle(a),
                layout.x(arrow.to_time),
                middle(b)
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"8\" y=\"{:.1}\" font-style=\"italic\">Times are {}.</text></svg>",
        layout.height - 8.0,
        escape(&timeline.source)
    );
    Ok(out)
}

/// Where rows and times are.
struct Layout {
    /// By row: its top; `None` if it has no slices.
    tops: Vec<Option<f64>>,
    height: f64,
    /// The last time that is shown.
    end: f64,
}

impl Layout {
    fn of(timeline: &Timeline) -> Self {
        let mut used = vec![false; timeline.rows.len()];
        timeline.slices.iter().for_each(|it| used[it.row] = true);
        let (mut next, mut rank) = (HEAD, None);
        let mut tops = Vec::new();
        for (row, used) in timeline.rows.iter().zip(used) {
            if used && rank.is_some_and(|it| it != row.rank) {
                next += RANK_GAP;
            }
            tops.push(used.then_some(next));
            if used {
                (next, rank) = (next + ROW, Some(row.rank));
            }
        }
        // What never ends reaches behind the last time.
        let is_open = timeline.slices.iter().any(|it| it.end.is_none());
        let end = timeline.end().max(1.0) * if is_open { 1.1 } else { 1.0 };
        Self { tops, height: next + 30.0, end }
    }

    fn x(&self, time: f64) -> f64 {
        LABELS + WIDTH * time / self.end
    }
}

fn legend(out: &mut String, timeline: &Timeline) {
    let mut x = 8.0;
    let mut entry = |class: &str, text: &str| {
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{x:.0}\" y=\"24\" width=\"10\" height=\"10\"/><text x=\"{:.0}\" y=\"33\">{text}</text>",
            x + 14.0
        );
        x += 30.0 + text.len() as f64 * CHARACTER;
    };
    for kind in [SliceKind::Compute, SliceKind::DataMovement, SliceKind::Communication, SliceKind::Wait] {
        if timeline.slices.iter().any(|it| it.kind == kind && it.end.is_some()) {
            entry(kind.name(), kind.name());
        }
    }
    if timeline.slices.iter().any(|it| it.end.is_none()) {
        entry("open", "never ends");
    }
    out.push('\n');
}

/// Draws a tick at each multiple of a round number.
fn axis(out: &mut String, layout: &Layout) {
    let least = layout.end * TICK / WIDTH;
    let power = 10f64.powf(least.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|it| it * power).find(|it| *it >= least).unwrap_or(least);
    let mut number = 0.0;
    while number * step <= layout.end {
        let time = number * step;
        let digits = if step < 1.0 { 1 } else { 0 };
        let _ = write!(
            out,
            "<path class=\"g\" d=\"M{x:.1} {:.0}V{:.0}\"/><text x=\"{x:.1}\" y=\"{:.0}\">{time:.digits$} µs</text>",
            HEAD - 6.0,
            layout.height - 26.0,
            HEAD - 10.0,
            x = layout.x(time),
        );
        number += 1.0;
    }
    out.push('\n');
}

fn bar(out: &mut String, layout: &Layout, it: &Slice) {
    let Some(top) = layout.tops[it.row] else { return };
    let (left, right) = (layout.x(it.begin), layout.x(it.end.unwrap_or(layout.end)));
    let width = (right - left).max(0.5);
    let class = if it.end.is_some() { it.kind.name() } else { "open" };
    let is_wait = class == "wait";
    let (inset, height) = if is_wait { (ROW - 4.0 - WAIT, WAIT) } else { (0.0, ROW - 4.0) };
    let until = it.end.map_or("never ends".to_owned(), |end| format!("{:.1} µs", end - it.begin));
    let _ = write!(
        out,
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.0}\" rx=\"1.5\">\
         <title>{}, {until}</title></rect>",
        top + 1.0 + inset,
        height,
        escape(&it.title()),
    );
    let room = (width / CHARACTER) as usize;
    let line = it.line.filter(|line| *line > 0 && !is_wait);
    let texts =
        line.map(|line| [format!("{}, line {line}", it.label), format!("line {line}"), it.label.clone()]);
    let text = texts.into_iter().flatten().find(|text| text.chars().count() < room);
    if let Some(text) = text {
        let _ = write!(
            out,
            "<text class=\"l\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left + 3.0,
            top + 13.0,
            escape(&text)
        );
    }
    out.push('\n');
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() > most {
        text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

/// Replaces the characters that have a meaning in XML and HTML, and the control characters that XML cannot
/// contain.
pub(super) fn escape(text: &str) -> String {
    let text = visible_text(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
