//! What a pass is: a name, a line about it, its options and a function.

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program, span::Span};

/// A pass over programs.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// What may stand in braces behind its name.
    pub options: &'static [OptionSpec],
    /// Rewrites a verified program; the diagnostic says why this program cannot be rewritten.
    pub run: fn(&mut Program, &Arguments, &mut Remarks) -> Result<Change, Diagnostic>,
}

/// A name for passes that are run one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    /// Its name on the command line, `@` included.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// What it stands for, in the syntax of pipelines; it names passes only.
    pub passes: &'static str,
}

/// What a pass did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The program may be another one.
    Changed,
    /// The program prints as it did.
    Unchanged,
}

impl Change {
    /// `Changed` if `changed`.
    pub const fn from_flag(changed: bool) -> Self {
        if changed { Self::Changed } else { Self::Unchanged }
    }
}

/// What a pass reports about statements that it transformed or left as they were.
#[derive(Debug, Default)]
pub struct Remarks {
    found: Vec<Diagnostic>,
}

impl Remarks {
    /// Reports a statement that the pass left as it was. `message` names the statement and the reason; `label` says what
    /// happens to it instead.
    pub(crate) fn missed(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.found.push(Diagnostic::new(Code::MissedOverlap, span, message, label));
    }

    /// Reports a statement that the pass transformed.
    pub(crate) fn passed(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.found.push(Diagnostic::new(Code::Overlapped, span, message, label));
    }

    /// All remarks, in the order in which the pass made them.
    pub fn all(&self) -> &[Diagnostic] {
        &self.found
    }
}

/// An option of a pass.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Its name in the braces.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// What its values are.
    pub kind: OptionKind,
    /// Its value where none is given; `None`: the pass decides.
    pub default: Option<&'static str>,
}

/// What the values of an option are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// `true` or `false`; the name alone means `true`.
    Flag,
    /// An integer that is not negative.
    Count,
    /// Integers above 0, separated by commas: `2048,2048,1024`.
    Counts,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Anything.
    Text,
}

impl OptionKind {
    /// Whether `value` is one of its values.
    pub fn accepts(self, value: &str) -> bool {
        match self {
            Self::Flag => matches!(value, "true" | "false"),
            Self::Count => value.parse::<u64>().is_ok(),
            Self::Counts => value.split(',').all(|it| it.trim().parse::<u32>().is_ok_and(|it| it > 0)),
            Self::Word(words) => words.contains(&value),
            Self::Text => !value.is_empty(),
        }
    }

    /// The values in words, for messages.
    pub fn describe(self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Count => "a number".to_owned(),
            Self::Counts => "numbers above 0, separated by commas".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Text => "a text".to_owned(),
        }
    }
}

/// The options of one call of a pass, checked against its `OptionSpec`s; defaults are filled in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arguments {
    values: Vec<(&'static str, String)>,
}

impl Arguments {
    /// The defaults of a pass.
    pub fn defaults(pass: &Pass) -> Self {
        let given = pass.options.iter().filter_map(|it| Some((it.name, it.default?.to_owned())));
        Self { values: given.collect() }
    }

    /// Gives an option a value that its kind takes.
    pub(crate) fn set(&mut self, name: &'static str, value: &str) {
        match self.values.iter_mut().find(|(it, _)| *it == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.values.push((name, value.to_owned())),
        }
    }

    /// The text of an option's value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(it, _)| *it == name).map(|(_, value)| value.as_str())
    }

    /// Whether a flag is set.
    pub fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// The value of a count.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The values of a list of counts.
    pub fn counts(&self, name: &str) -> Option<Vec<u64>> {
        self.text(name)?.split(',').map(|it| it.trim().parse().ok()).collect()
    }

    /// Names and values, in the order of the pass's options.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(name, value)| (*name, value.as_str()))
    }
}
