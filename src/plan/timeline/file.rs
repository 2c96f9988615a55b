//! The files that timelines are written to.

use grammar::InvalidOption;
use std::{path::PathBuf, str::FromStr};

use super::{Timeline, chrome, html, markdown, svg};

/// An operand of `--timeline`.
#[derive(Clone, Debug)]
pub struct TimelineFile {
    /// The file.
    pub path: PathBuf,
    write: Write,
}

/// Makes the text of a file.
type Write = fn(&Timeline, &str, &[String]) -> Result<String, InvalidOption>;

impl FromStr for TimelineFile {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let path = PathBuf::from(text);
        let write: Write = match path.extension().and_then(|it| it.to_str()) {
            Some("json") => |timeline, _, _| Ok(chrome::trace(timeline)),
            Some("html") => |timeline, title, report| Ok(html::page(timeline, title, report)),
            Some("md") => |timeline, title, report| Ok(markdown::text(timeline, title, report)),
            Some("svg") => |timeline, title, _| svg::picture(timeline, title),
            _ => {
                return Err(
                    "the name must end with `.svg` (a picture), `.html` (a page), `.md` (Markdown) or `.json` (a trace \
                            for Perfetto)"
                        .into(),
                );
            }
        };
        Ok(Self { path, write })
    }
}

impl TimelineFile {
    /// Returns whether it is a page.
    pub fn is_page(&self) -> bool {
        self.path.extension().is_some_and(|it| it == "html")
    }

    /// Returns the text of the file. `report` is the report on overlap.
    ///
    /// # Errors
    /// A picture would be too large.
    pub fn text(&self, timeline: &Timeline, title: &str, report: &[String]) -> Result<String, InvalidOption> {
        (self.write)(timeline, title, report)
    }
}
