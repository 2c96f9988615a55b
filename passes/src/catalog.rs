//! The passes and pipelines that a tool knows by their names.

use grammar::Diagnostic;

use crate::{
    list,
    pass::{Pass, Pipeline},
    pipeline::{self, PassCall},
};

/// Passes and pipelines.
///
/// ```
/// # use passes::Catalog;
/// let catalog = Catalog::default();
/// assert_eq!(catalog.parse("canonicalize,remove-dead-code").map_err(|it| it.message)?.len(), 2);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The passes.
    pub passes: Vec<&'static Pass>,
    /// The pipelines, whose passes are among them.
    pub pipelines: Vec<Pipeline>,
    /// What the names of some of these pipelines stand for where no braces follow, by name. With braces, a pipeline is its passes.
    pub decisions: Vec<(&'static str, &'static str)>,
}

/// What this package has.
impl Default for Catalog {
    fn default() -> Self {
        Self {
            passes: list::PASSES.iter().collect(),
            pipelines: list::PIPELINES.to_vec(),
            decisions: Vec::new(),
        }
    }
}

impl Catalog {
    /// Returns the pass with a name.
    pub fn pass(&self, name: &str) -> Option<&'static Pass> {
        self.passes.iter().copied().find(|it| it.name == name)
    }

    /// Returns the pipeline with a name, which begins with `@`.
    pub fn pipeline(&self, name: &str) -> Option<&Pipeline> {
        self.pipelines.iter().find(|it| it.name == name)
    }

    /// Returns the names of all passes and pipelines.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.passes.iter().map(|it| it.name).chain(self.pipelines.iter().map(|it| it.name))
    }

    /// Parses a list of passes. Named pipelines in it are expanded.
    ///
    /// # Errors
    /// An unknown pass, pipeline, option or value, or unbalanced braces. The span lies in `text`.
    pub fn parse(&self, text: &str) -> Result<Vec<PassCall>, Diagnostic> {
        pipeline::parse(text, &self.passes, &self.pipelines, &self.decisions)
    }
}

/// Parses a list of the passes and pipelines of this package.
///
/// # Errors
/// As for `Catalog::parse`.
pub fn parse(text: &str) -> Result<Vec<PassCall>, Diagnostic> {
    Catalog::default().parse(text)
}
