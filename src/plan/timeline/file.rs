//! The files that timelines are written to.

use grammar::InvalidOption;
use std::{path::PathBuf, str::FromStr};

pub use super::svg::TooManySlices;
use super::{Timeline, chrome, html, markdown, svg};

/// An operand of `--timeline`.
#[derive(Clone, Debug)]
pub struct TimelineFile {
    /// The file.
    pub path: PathBuf,
    format: TimelineFormat,
}

#[derive(Clone, Copy, Debug)]
enum TimelineFormat {
    Chrome,
    Html,
    Markdown,
    Svg,
}

impl FromStr for TimelineFile {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(|it| it.to_str()) {
            Some("json") => TimelineFormat::Chrome,
            Some("html") => TimelineFormat::Html,
            Some("md") => TimelineFormat::Markdown,
            Some("svg") => TimelineFormat::Svg,
            _ => {
                return Err(
                    "the name must end with `.svg` (a picture), `.html` (a page), `.md` (Markdown) or `.json` (a trace \
                            for Perfetto)"
                        .into(),
                );
            }
        };
        Ok(Self { path, format })
    }
}

impl TimelineFile {
    /// Returns the text of the file. `report` is the report on overlap.
    ///
    /// # Errors
    /// A picture would be too large.
    pub fn text(&self, timeline: &Timeline, title: &str, report: &[String]) -> Result<String, TooManySlices> {
        match self.format {
            TimelineFormat::Chrome => Ok(chrome::trace(timeline)),
            TimelineFormat::Html => Ok(html::page(timeline, title, report)),
            TimelineFormat::Markdown => Ok(markdown::text(timeline, title, report)),
            TimelineFormat::Svg => svg::picture(timeline, title),
        }
    }
}
