//! Defines a pass: a name, a description, options and a function.

use std::fmt;

use grammar::{Code, Diagnostic, Named, Program, Span, TensorId, list_text};
use rustc_hash::FxHashSet;

/// A pass over programs.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// The documentation of the pass's module, with its `//!` signs, for `--list-passes NAME`.
    pub docs: &'static str,
    /// Options that may follow the name in braces.
    pub options: &'static [OptionSpec],
    /// Whether the pass may rewrite the program of one rank (`%options rank=`), which `specialize-rank` writes:
    /// it changes neither what the rank exchanges with others nor the order of it. A pass that writes this option has to
    /// state it, too: the other ranks then run the program before the pass. All other passes rewrite
    /// the statements of all ranks in the same way, and the programs of the other ranks would stay as they
    /// are.
    pub for_one_rank: bool,
    /// Whether the pass rewrites programs with loops that a condition ends (`WHILE`): it moves no statement into a loop, out of
    /// it, or before the first statement of its body.
    pub for_conditions: bool,
    /// Rewrites a verified program. The diagnostic says why this program cannot be rewritten.
    pub run: Run,
}

/// The function of a pass.
pub type Run = fn(&mut Program, &Arguments, &mut Remarks) -> Result<Change, Diagnostic>;

impl Pass {
    /// Makes a pass that has no options and rewrites the programs of all ranks together. `source` is the text
    /// of its module, which begins with its documentation.
    pub const fn new(name: &'static str, source: &'static str, run: Run) -> Self {
        Self {
            name,
            description: "",
            docs: module_docs(source),
            options: &[],
            for_one_rank: false,
            for_conditions: false,
            run,
        }
    }

    /// Sets `description`.
    pub const fn about(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    /// Sets `options`.
    pub const fn with_options(self, options: &'static [OptionSpec]) -> Self {
        Self { options, ..self }
    }

    /// Sets the field `for_one_rank`.
    pub const fn for_one_rank(self) -> Self {
        Self { for_one_rank: true, ..self }
    }

    /// Sets the field `for_conditions`.
    pub const fn for_conditions(self) -> Self {
        Self { for_conditions: true, ..self }
    }

    /// Checks that the pass knows all statements of a program.
    ///
    /// # Errors
    /// Returns E0610 for a loop with a condition, if the pass does not know these.
    pub(crate) fn check_loops(&self, program: &Program) -> Result<(), Diagnostic> {
        let Some(stmt) = program.conditional_loop().filter(|_| !self.for_conditions) else { return Ok(()) };
        let message = format!("`{}` does not rewrite programs with a loop that a condition ends", self.name);
        let it = Diagnostic::new(Code::NotRewritten, program.stmt_span(stmt), message, "this ends a loop");
        Err(it.help("leave this pass out, or run the loop a constant number of times, without the WHILE"))
    }

    /// Checks that the pass may rewrite a program, which may be that of one rank only.
    ///
    /// # Errors
    /// Returns E0610 if the pass has to rewrite the programs of all ranks together.
    pub(crate) fn check_ranks(&self, program: &Program) -> Result<(), Diagnostic> {
        if self.for_one_rank || !program.is_of_one_rank() {
            return Ok(());
        }
        let whose = match program.own_rank() {
            Some(rank) => format!("of rank {rank} only"),
            None => "of one rank only".to_owned(),
        };
        let message = format!(
            "`{}` has to rewrite the programs of all ranks in the same way, and this is the program {whose}",
            self.name
        );
        let label = "`%options rank=` says so";
        let it = Diagnostic::new(Code::NotRewritten, program.spans.header, message, label);
        Err(it.help("run this pass on the program of all ranks, and `specialize-rank` as the last pass"))
    }
}

/// Returns the `//!` lines at the start of a source file. Evaluated at compile time, so that the rest of the
/// source is not part of the binary.
pub const fn module_docs(source: &'static str) -> &'static str {
    let bytes = source.as_bytes();
    let mut at = 0;
    while at + 2 < bytes.len() && bytes[at] == b'/' && bytes[at + 1] == b'/' && bytes[at + 2] == b'!' {
        while at < bytes.len() && bytes[at] != b'\n' {
            at += 1;
        }
        at += 1;
    }
    source.split_at(if at < bytes.len() { at } else { bytes.len() }).0
}

/// A named sequence of passes.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    /// Name on the command line, with the leading `@`.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// The passes, in pipeline syntax. A pipeline cannot contain other pipelines.
    pub passes: &'static str,
}

impl Pipeline {
    /// Returns the passes for which the name stands where no braces follow. `decisions` are those of `Catalog`.
    pub fn without_braces(&self, decisions: &[(&'static str, &'static str)]) -> &'static str {
        decisions.iter().find(|it| it.0 == self.name).map_or(self.passes, |it| it.1)
    }
}

/// The result of a pass: whether it changed the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The program may have changed.
    Changed,
    /// The program prints as before.
    Unchanged,
}

impl Change {
    /// Returns `Changed` if `changed` is true.
    pub const fn from_flag(changed: bool) -> Self {
        if changed { Self::Changed } else { Self::Unchanged }
    }

    /// As `from_flag`, or the first error of the verifier in a changed program: after values become constant, it may find errors that a
    /// symbolic index or rank had hidden.
    pub(crate) fn verified(program: &Program, changed: bool) -> Result<Self, Diagnostic> {
        let mut faults = if changed { grammar::verify(program) } else { Vec::new() }.into_iter();
        let Some(fault) = faults.find(Diagnostic::is_error) else { return Ok(Self::from_flag(changed)) };
        Err(match fault.help {
            Some(_) => fault.note("this error does not come from the pass"),
            None => fault.help("correct the program first; this error does not come from the pass"),
        })
    }
}

/// Why a pass leaves a statement as it is, in the words of its remark. No caller distinguishes the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle(String);

impl From<String> for Obstacle {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for Obstacle {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

impl From<Diagnostic> for Obstacle {
    fn from(fault: Diagnostic) -> Self {
        Self(fault.message)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Remarks of a pass on statements that it transformed or left unchanged.
#[derive(Debug, Default)]
pub struct Remarks {
    found: Vec<Diagnostic>,
    rejections: Vec<Diagnostic>,
}

impl Remarks {
    /// Reports a statement that the pass left unchanged. `message` names the statement and the reason, and
    /// `label` says what happens to it instead.
    pub fn missed(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.found.push(Diagnostic::new(Code::MissedOverlap, span, message, label));
    }

    /// Reports a statement that the pass transformed.
    pub fn passed(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.found.push(Diagnostic::new(Code::Overlapped, span, message, label));
    }

    /// Reports that the pass changes nothing, and why. `label` describes the statement that prevents it.
    pub fn no_effect(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.found.push(Diagnostic::new(Code::NoEffect, span, message, label));
    }

    /// Reports, in the words of the pass, what it did to a statement, or why it left the statement as it is.
    pub fn note(&mut self, span: Span, message: impl Into<String>, label: impl Into<String>) {
        self.note_of(Diagnostic::new(Code::PassRemark, span, message, label));
    }

    /// As `note`, of a remark that is made already.
    pub fn note_of(&mut self, remark: Diagnostic) {
        self.found.push(remark);
    }

    /// Sorts the remarks by the places of their statements.
    pub(crate) fn in_text_order(&mut self) {
        self.found.sort_by_key(|it| it.labels.first().map(|(span, _)| *span));
    }

    /// Reports one more reason why the pass cannot rewrite the program, besides the one that it returns.
    pub fn reject(&mut self, reason: Diagnostic) {
        self.rejections.push(reason);
    }

    /// Returns the reasons of `reject`.
    pub(crate) fn rejections(&self) -> &[Diagnostic] {
        &self.rejections
    }

    /// Returns all remarks in the order in which the pass made them.
    pub fn all(&self) -> &[Diagnostic] {
        &self.found
    }
}

/// An option of a pass.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Name inside the braces.
    pub name: &'static str,
    /// One line for `--list-passes`.
    pub description: &'static str,
    /// The kind of its values.
    pub kind: OptionKind,
    /// The value if none is given. With `None`, the pass decides.
    pub default: Option<&'static str>,
}

impl OptionSpec {
    /// Makes an option without a description.
    pub const fn new(name: &'static str, kind: OptionKind, default: Option<&'static str>) -> Self {
        Self { name, description: "", kind, default }
    }

    /// Makes an option that is one of some words, by default the first of them.
    pub const fn word(name: &'static str, words: &'static [&'static str]) -> Self {
        Self::new(name, OptionKind::Word(words), words.first().copied())
    }

    /// Sets `description`.
    pub const fn about(self, description: &'static str) -> Self {
        Self { description, ..self }
    }
}

/// The kind of values that an option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// `true` or `false`; the name alone means `true`.
    Flag,
    /// An integer that is not negative.
    Count,
    /// Positive integers separated by commas: `2048,2048,1024`.
    Counts,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Names of tensors separated by semicolons: `T4;T7`.
    Names,
    /// Any text that is not empty.
    Text,
}

impl OptionKind {
    /// Returns true if `value` is a valid value.
    pub fn accepts(self, value: &str) -> bool {
        match self {
            Self::Flag => matches!(value, "true" | "false"),
            Self::Count => value.parse::<u64>().is_ok(),
            Self::Counts => value.split(',').all(|it| it.trim().parse::<u32>().is_ok_and(|it| it > 0)),
            Self::Word(words) => words.contains(&value),
            Self::Names => value.split(';').all(|it| !it.trim().is_empty()),
            Self::Text => !value.is_empty(),
        }
    }

    /// Describes the valid values, for messages.
    pub fn describe(self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Count => "a non-negative integer".to_owned(),
            Self::Counts => "positive integers, separated by commas".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Names => "names of tensors, separated by semicolons, such as `T4;T7`".to_owned(),
            Self::Text => "non-empty text".to_owned(),
        }
    }
}

/// The option that limits a pass to some communications.
pub(crate) const ONLY: OptionSpec = OptionSpec::new("only", OptionKind::Names, None)
    .about("leave all communications unchanged but those of these tensors, which remarks name");

/// The option that excludes some communications from a pass.
pub(crate) const EXCEPT: OptionSpec = OptionSpec::new("except", OptionKind::Names, None)
    .about("leave the communications of these tensors unchanged");

/// Options of one call of a pass, checked against its `OptionSpec`s and with defaults filled in.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    values: Vec<(&'static str, String)>,
    /// The positions of the given values in the text of the pipeline.
    spans: Vec<(&'static str, Span)>,
    /// The position of the call in the text of the pipeline.
    call: Span,
}

impl PartialEq for Arguments {
    /// Compares the values, in any order.
    fn eq(&self, other: &Self) -> bool {
        self.values.len() == other.values.len() && self.values.iter().all(|it| other.values.contains(it))
    }
}

impl Eq for Arguments {}

impl Arguments {
    /// Returns the default options of a pass.
    pub fn defaults(pass: &Pass) -> Self {
        let given = pass.options.iter().filter_map(|it| Some((it.name, it.default?.to_owned())));
        Self { values: given.collect(), ..Self::default() }
    }

    /// Sets an option to a value that its kind accepts.
    pub fn set(&mut self, name: &'static str, value: &str) {
        match self.values.iter_mut().find(|(it, _)| *it == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.values.push((name, value.to_owned())),
        }
    }

    /// Sets the position of the call.
    pub(crate) fn set_call(&mut self, call: Span) {
        self.call = call;
        self.spans.clear();
    }

    /// Sets the position of an option's value.
    pub(crate) fn set_span(&mut self, name: &'static str, span: Span) {
        self.spans.push((name, span));
    }

    /// Returns the position of an option's value in the text of the pipeline, or that of the call if the option
    /// has its default value.
    pub fn span(&self, name: &str) -> Span {
        self.spans.iter().find(|(it, _)| *it == name).map_or(self.call, |(_, span)| *span)
    }

    /// Returns an error about the value of an option. Only diagnostics with this code have positions in the text
    /// of the pipeline.
    pub fn error(&self, name: &str, message: impl Into<String>, label: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Code::BadOption, self.span(name), message, label)
    }

    /// Returns the text of an option's value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(it, _)| *it == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of an option that names one of several.
    pub(crate) fn choice<T: Named>(&self, name: &str) -> Option<T> {
        T::of_name(self.text(name)?)
    }

    /// Returns true if a flag is set.
    pub fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// Returns the value of a count.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns the values of a list of counts.
    pub fn counts(&self, name: &str) -> Option<Vec<u64>> {
        self.text(name)?.split(',').map(|it| it.trim().parse().ok()).collect()
    }

    /// Returns the names in the value of an option of kind `OptionKind::Names`.
    pub fn names(&self, option: &str) -> Option<impl Iterator<Item = &str>> {
        Some(self.text(option)?.split(';').map(str::trim))
    }

    /// Returns whether `ONLY` and `EXCEPT` leave a communication to the pass, of which these are the tensors.
    pub(crate) fn selects(&self, program: &Program, tensors: &[TensorId]) -> bool {
        let names: Vec<String> = tensors.iter().map(|it| program.tensor_name(*it)).collect();
        let is_named =
            |option| self.names(option).map(|mut all| all.any(|name| names.iter().any(|it| it == name)));
        is_named(ONLY.name).unwrap_or(true) && !is_named(EXCEPT.name).unwrap_or(false)
    }

    /// Checks that the program has the tensors of `ONLY` and `EXCEPT`.
    ///
    /// # Errors
    /// It has no tensor of a name.
    pub(crate) fn check_names(&self, program: &Program) -> Result<(), Diagnostic> {
        let known: FxHashSet<String> = program.tensors.ids().map(|it| program.tensor_name(it)).collect();
        for option in [ONLY.name, EXCEPT.name] {
            let unknown = self.names(option).and_then(|mut all| all.find(|it| !known.contains(*it)));
            if let Some(name) = unknown {
                let message = format!("`{option}` names `{name}`, and the program has no such tensor");
                let it = self.error(option, message, "not a tensor of the program");
                return Err(it.help("write names that remarks on communications state, such as `T4;T7`"));
            }
        }
        Ok(())
    }

    /// Remarks names of `ONLY` that are those of none of the communications, each with its tensors.
    pub(crate) fn remark_unmatched(&self, program: &Program, all: &[Vec<TensorId>], remarks: &mut Remarks) {
        let known: Vec<String> = all
            .iter()
            .filter_map(|it| it.first())
            .map(|it| format!("`{}`", program.tensor_name(*it)))
            .collect();
        let is_one = |name: &str| all.iter().flatten().any(|it| program.tensor_name(*it) == name);
        for name in self.names(ONLY.name).into_iter().flatten().filter(|it| !is_one(it)) {
            let label = match &known[..] {
                [] => "it has no communications for this pass".to_owned(),
                known => format!("its communications are those of {}", list_text(known.iter(), 5, "and")),
            };
            let message =
                format!("`only` names `{name}`, and no communication for this pass is one of this tensor");
            remarks.no_effect(program.spans.header, message, label);
        }
    }

    /// Returns names and values in the order in which they were set, defaults first.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(name, value)| (*name, value.as_str()))
    }
}
