//! Shows the progress of a long operation on a terminal: count, rate and remaining time.
//!
//! Nothing is drawn if standard error is not a terminal, if it is one that only prints lines (`TERM=dumb`), or if the operation ends within `DELAY`.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long an operation runs before its progress is drawn.
const DELAY: Duration = Duration::from_millis(500);

/// The progress of one operation. Dropping it erases the line.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    is_enabled: bool,
}

impl Progress {
    /// Creates the progress of an operation with `total` steps, if their number is known; `unit` names the
    /// steps in the plural.
    pub fn new(total: Option<usize>, unit: &str, is_quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(total.map(|it| it as u64), ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => format!("{{pos}} of {{len}} {unit} {{wide_bar}} {{per_sec}}, {{eta}} left"),
            None => format!("{{pos}} {unit}, {{per_sec}}, {{elapsed}}"),
        };
        // The templates are constants but for the unit, which holds no braces.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self { bar, start: Instant::now(), is_enabled: !is_quiet && !super::is_dumb_terminal() }
    }

    /// Sets the number of steps that are done.
    pub fn set(&self, done: usize) {
        if self.is_enabled && self.bar.is_hidden() && self.start.elapsed() > DELAY {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done as u64);
    }

    /// Erases the line for good.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Erases the line while `print` writes to the terminal.
    pub fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
