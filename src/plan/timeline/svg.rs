//! A timeline as a picture. Rows without work are left out.

use std::fmt::Write as _;

use grammar::{InvalidOption, visible_text};

use super::{Slice, SliceKind, Timeline};

/// The maximum number of slices in a picture.
pub const MAX_SLICES: usize = 20_000;

/// Widths and heights in pixels.
const WIDTH: f64 = 900.0;
const ROW: f64 = 20.0;
const RANK_GAP: f64 = 10.0;
/// What is free beside the rows, for half of the last number of the axis.
const MARGIN: f64 = 48.0;
/// The height of a line of text.
const LINE: f64 = 15.0;
/// The height of a wait, which is thinner than work.
const WAIT: f64 = 5.0;
/// The width of a character. No font that is `monospace` has wider ones at this size.
const CHARACTER: f64 = 6.7;
/// The number of pixels between two ticks, at least.
const TICK: f64 = 90.0;
/// The fewest and the most characters of a line of a row's name.
const NAME: [usize; 2] = [33, 60];

/// The colours, also those of the page, on a light and on a dark background. Texts have a contrast of at least 4.5, bars of 3.
pub(super) const STYLE: &str = "\
text{font:11px ui-monospace,monospace;fill:#222}.t{font-weight:600}.s{font-style:italic}.b{fill:#fff;background:#fff;color:#222}.g{stroke:#ddd}.l{fill:#fff}\
.c{fill:#666}.n{fill:#b3261e;font-weight:600}.compute{fill:#3b6ea5}.memory{fill:#3f7d6e}.communication{fill:#a9590b}.wait{fill:#8c8c8c}\
.open{fill:#c0392b;stroke:#fff}.named{stroke:#222;stroke-width:2}.a{stroke:#555;stroke-width:.8;fill:none;marker-end:url(#h)}.h{fill:#555}\
@media(prefers-color-scheme:dark){\
text{fill:#e4e6ea}.b{fill:#14171c;background:#14171c;color:#e4e6ea}.g{stroke:#363b44}.l{fill:#14171c}\
.c{fill:#a2a8b2}.n{fill:#ff9088}.compute{fill:#7fb2e5}.memory{fill:#6fc3ad}.communication{fill:#e8a35c}.wait{fill:#767d88}\
.open{fill:#ff7b72;stroke:#14171c}.named{stroke:#fff}.a{stroke:#a2a8b2}.h{fill:#a2a8b2}}";

/// Returns the picture as an SVG document.
///
/// # Errors
/// The timeline has more than `MAX_SLICES` slices.
pub fn picture(timeline: &Timeline, title: &str) -> Result<String, InvalidOption> {
    let count = timeline.slices.len();
    if count > MAX_SLICES {
        let than = format!("a picture shows at most {MAX_SLICES} slices, and this timeline has {count}");
        return Err(format!("{than}; write an `.html` or `.json` file instead").into());
    }
    let names = Names::of(timeline, true);
    let width = names.width + WIDTH + MARGIN;
    let mut texts = String::new();
    let mut y = 16.0;
    paragraph(&mut texts, title, ("t", width), &mut y);
    timeline.diagnosis.lines.iter().take(1).for_each(|it| paragraph(&mut texts, it, ("n", width), &mut y));
    legend(&mut texts, timeline, y - 9.0);
    let layout = Layout::of(timeline, names, y + 27.0);
    axis(&mut texts, &layout);
    y = layout.end_of_rows + 18.0;
    paragraph(&mut texts, &format!("Times are {}.", timeline.source), ("s", width), &mut y);
    let height = y - 7.0;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\"><title>{}</title>\
         <style>{STYLE}</style><defs><marker id=\"h\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"6\" \
         markerHeight=\"6\" orient=\"auto\"><path class=\"h\" d=\"M0 0L6 3L0 6z\"/></marker></defs>\
         <path class=\"b\" d=\"M0 0h{width:.0}v{height:.0}H0z\"/>{texts}",
        escape(title),
    );
    for (top, lines) in layout.tops.iter().zip(&layout.names.lines) {
        let Some(top) = top else { continue };
        for (number, [name, carried]) in lines.iter().enumerate() {
            let class = if name.starts_with(NAMED) { " class=\"n\"" } else { "" };
            let y = top + 13.0 + LINE * number as f64;
            let (name, carried) = (escape(name), escape(carried));
            let _ = write!(
                out,
                "<text{class} x=\"8\" y=\"{y:.1}\">{name}<tspan class=\"c\">{carried}</tspan></text>"
            );
        }
        let (left, line) = (layout.names.width, top + height_of(lines) - 1.0);
        let _ = writeln!(out, "<path class=\"g\" d=\"M{left:.1} {line:.1}h{WIDTH}\"/>");
    }
    timeline.slices.iter().for_each(|it| bar(&mut out, &layout, timeline, it));
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
    out.push_str("</svg>\n");
    Ok(out)
}

/// What the name of a row begins with whose rank is named as the cause.
const NAMED: &str = "► ";

/// The names of rows.
pub(super) struct Names {
    /// By row: the lines of its name, and of what it does.
    pub lines: Vec<Vec<[String; 2]>>,
    /// The width of the column of names.
    pub width: f64,
}

impl Names {
    /// Returns the names, with or without the rank.
    pub fn of(timeline: &Timeline, has_rank: bool) -> Self {
        let names = timeline.rows.iter().zip(timeline.carried()).map(|(it, carried)| {
            let mark = if timeline.diagnosis.ranks.contains(&it.rank) { NAMED } else { "" };
            let rank = if has_rank { format!("rank {} ", it.rank) } else { String::new() };
            [
                visible_text(&format!("{mark}{rank}{}", it.lane)).into_owned(),
                visible_text(&carried).into_owned(),
            ]
        });
        let names: Vec<[String; 2]> = names.collect();
        let longest = names.iter().map(|it| cells(&it[0]) + 1 + cells(&it[1])).max().unwrap_or(0);
        let columns = longest.clamp(NAME[0], NAME[1]);
        let lines = |[name, carried]: [String; 2]| {
            let mut lines: Vec<[String; 2]> =
                wrapped(&name, columns).into_iter().map(|it| [it, String::new()]).collect();
            match lines.last_mut() {
                _ if carried.is_empty() => {}
                Some([last, beside]) if cells(last) + 1 + cells(&carried) <= columns => {
                    *beside = format!(" {carried}");
                }
                _ => lines.extend(wrapped(&carried, columns).into_iter().map(|it| [String::new(), it])),
            }
            lines
        };
        Self { lines: names.into_iter().map(lines).collect(), width: columns as f64 * CHARACTER + 15.0 }
    }
}

/// Returns the height of a row with these lines.
fn height_of(lines: &[[String; 2]]) -> f64 {
    ROW + LINE * lines.len().saturating_sub(1) as f64
}

/// Returns the number of columns of a text. Characters of East Asia and symbols may be as wide as two letters.
fn cells(text: &str) -> usize {
    text.chars().map(|it| if it < '\u{1100}' { 1 } else { 2 }).sum()
}

/// Breaks a text into lines of at most `columns` columns: between words, and within a word that is longer than a line.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_inclusive(' ') {
        if !line.is_empty() && cells(&line) + cells(word.trim_end()) > columns {
            lines.push(std::mem::take(&mut line));
        }
        for character in word.chars() {
            line.push(character);
            if character != ' ' && cells(&line) > columns {
                line.pop();
                lines.push(std::mem::replace(&mut line, character.to_string()));
            }
        }
    }
    lines.push(line);
    lines
}

/// Writes a text in lines as wide as the picture.
fn paragraph(out: &mut String, text: &str, (class, width): (&str, f64), y: &mut f64) {
    for line in wrapped(&visible_text(text), ((width - 16.0) / CHARACTER) as usize) {
        let _ =
            writeln!(out, "<text class=\"{class}\" x=\"8\" y=\"{y:.1}\">{}</text>", escape(line.trim_end()));
        *y += LINE;
    }
}

/// Where rows and times are.
struct Layout {
    names: Names,
    /// By row: its top; `None` if it is not shown.
    tops: Vec<Option<f64>>,
    begin_of_rows: f64,
    end_of_rows: f64,
    /// The last time that is shown.
    end: f64,
}

impl Layout {
    fn of(timeline: &Timeline, names: Names, begin_of_rows: f64) -> Self {
        let (mut next, mut rank) = (begin_of_rows, None);
        let mut tops = Vec::new();
        for ((row, is_shown), lines) in timeline.rows.iter().zip(timeline.shown_rows()).zip(&names.lines) {
            if is_shown && rank.is_some_and(|it| it != row.rank) {
                next += RANK_GAP;
            }
            tops.push(is_shown.then_some(next));
            if is_shown {
                (next, rank) = (next + height_of(lines), Some(row.rank));
            }
        }
        // What never ends reaches behind the last time.
        let is_open = timeline.slices.iter().any(|it| it.end.is_none());
        let end = timeline.end().max(1.0) * if is_open { 1.1 } else { 1.0 };
        Self { names, tops, begin_of_rows, end_of_rows: next, end }
    }

    fn x(&self, time: f64) -> f64 {
        self.names.width + WIDTH * time / self.end
    }
}

fn legend(out: &mut String, timeline: &Timeline, y: f64) {
    let mut x = 8.0;
    let mut entry = |class: &str, text: &str| {
        let _ = write!(
            out,
            "<path class=\"{class}\" d=\"M{x:.0} {y:.0}h10v10h-10z\"/><text x=\"{:.0}\" y=\"{:.0}\">{text}</text>",
            x + 15.0,
            y + 9.0
        );
        x += 34.0 + text.len() as f64 * CHARACTER;
    };
    for kind in [SliceKind::Compute, SliceKind::DataMovement, SliceKind::Communication, SliceKind::Wait] {
        if timeline.slices.iter().any(|it| it.kind == kind && it.end.is_some()) {
            entry(kind.name(), kind.name());
        }
    }
    if timeline.slices.iter().any(|it| it.end.is_none()) {
        entry("open", "never ends");
    }
    if timeline.slices.iter().any(|it| timeline.is_named(it)) {
        entry("b named", "named as the cause");
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
            "<path class=\"g\" d=\"M{x:.1} {:.0}V{:.0}\"/><text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{time:.digits$} µs</text>",
            layout.begin_of_rows - 6.0,
            layout.end_of_rows + 4.0,
            layout.begin_of_rows - 10.0,
            x = layout.x(time),
        );
        number += 1.0;
    }
    out.push('\n');
}

fn bar(out: &mut String, layout: &Layout, timeline: &Timeline, it: &Slice) {
    let Some(top) = layout.tops[it.row] else { return };
    let (left, right) = (layout.x(it.begin), layout.x(it.end.unwrap_or(layout.end)));
    let width = (right - left).max(0.5);
    let kind = if it.end.is_some() { it.kind.name() } else { "open" };
    let is_wait = kind == "wait";
    let named = if timeline.is_named(it) { " named" } else { "" };
    let (inset, height) = if is_wait { (ROW - 4.0 - WAIT, WAIT) } else { (0.0, ROW - 4.0) };
    let until = it.end.map_or("never ends".to_owned(), |end| format!("{:.1} µs", end - it.begin));
    let _ = write!(
        out,
        "<rect class=\"{kind}{named}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.0}\" rx=\"1.5\">\
         <title>{}, {until}</title></rect>",
        top + 1.0 + inset,
        height,
        escape(&it.title()),
    );
    let room = (width / CHARACTER) as usize;
    let line = it.line.filter(|line| *line > 0 && !is_wait);
    let texts =
        line.map(|line| [format!("{}, line {line}", it.label), format!("line {line}"), it.label.clone()]);
    let text = texts.into_iter().flatten().find(|text| cells(text) < room);
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

/// Replaces the characters that have a meaning in XML and HTML, and the control characters that XML cannot
/// contain.
pub fn escape(text: &str) -> String {
    let text = visible_text(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
