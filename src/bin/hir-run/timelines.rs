//! Writes timelines and prints how communication and computation overlap.

use std::{path::PathBuf, str::FromStr};

use hir::{
    exit::Exit,
    plan::Plan,
    run::prepare::JobFailure,
    timeline::{Timeline, chrome, estimate::estimate, html, overlap::Overlap, svg},
};

use crate::{options::Options, task::write_file};

/// The maximum number of instructions of an estimated timeline.
const MAX_INSTRUCTIONS: usize = 4_000_000;

/// An operand of `--timeline`.
#[derive(Clone)]
pub struct TimelineFile {
    /// The file.
    pub path: PathBuf,
    format: TimelineFormat,
}

#[derive(Clone, Copy)]
enum TimelineFormat {
    Chrome,
    Html,
    Svg,
}

impl FromStr for TimelineFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(|it| it.to_str()) {
            Some("json") => TimelineFormat::Chrome,
            Some("html") => TimelineFormat::Html,
            Some("svg") => TimelineFormat::Svg,
            _ => {
                return Err(
                    "the name must end with `.svg` (a picture), `.html` (a page) or `.json` (a trace for \
                            Perfetto)"
                        .to_owned(),
                );
            }
        };
        Ok(Self { path, format })
    }
}

/// Returns true if the command line asks for a timeline or a report on overlap.
pub fn are_requested(options: &Options) -> bool {
    options.overlap || !options.timeline.is_empty()
}

/// Estimates a timeline from the plans and writes it as the command line asks.
///
/// # Errors
/// The plans are too large, or a file cannot be written.
pub fn write_estimated(
    options: &Options,
    plans: &[Plan],
    names: &[&str],
    say: &mut dyn FnMut(String),
) -> Result<(), JobFailure> {
    let too_large = |message: String| JobFailure::Other(Exit::Usage, message);
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    if instructions > MAX_INSTRUCTIONS {
        let message = format!(
            "no timeline: {instructions} instructions exceed the limit of {MAX_INSTRUCTIONS}; reduce `--ranks`"
        );
        return Err(too_large(message));
    }
    let timeline =
        estimate(plans).map_err(|_| too_large("no timeline: the world has too many streams".to_owned()))?;
    write(options, &timeline, names, say)
}

/// Writes a timeline as the command line asks.
///
/// # Errors
/// A file cannot be written, or a picture would be too large.
pub fn write(
    options: &Options,
    timeline: &Timeline,
    names: &[&str],
    say: &mut dyn FnMut(String),
) -> Result<(), JobFailure> {
    let report = Overlap::of(timeline).report(timeline);
    if options.overlap {
        report.iter().for_each(|line| say(format!("# {line}")));
    }
    let ranks = timeline.rows.last().map_or(0, |it| it.rank + 1);
    let names: Vec<&str> = names.iter().map(|it| it.rsplit('/').next().unwrap_or(it)).collect();
    let title = format!("{}, {ranks} ranks", names.join(" "));
    for file in &options.timeline {
        let text = match file.format {
            TimelineFormat::Chrome => chrome::trace(timeline),
            TimelineFormat::Html => html::page(timeline, &title, &report),
            TimelineFormat::Svg => svg::picture(timeline, &title).map_err(|fault| {
                let path = file.path.display();
                JobFailure::Other(
                    Exit::Usage,
                    format!("`{path}`: {fault}; write an `.html` or `.json` file instead"),
                )
            })?,
        };
        write_file(&file.path, &text)?;
        say(format!("# timeline in `{}`", file.path.display()));
    }
    Ok(())
}
