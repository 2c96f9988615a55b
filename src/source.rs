//! A program's text, the programs in it, and the bindings that the command line adds.

use std::{collections::HashMap, io, path::Path};

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{P2P_PROTOCOL, Program, SymbolId},
    span::{LineIndex, Span},
};

use crate::input_file;

/// Most bytes of a text: its places are numbers of 32 bits.
const MAX_TEXT: u64 = u32::MAX as u64;

/// A text and where it came from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name; `<stdin>` for `-`.
    pub name: String,
    /// The text.
    pub text: String,
    /// Its lines.
    pub lines: LineIndex,
}

impl Source {
    /// Reads a file, or standard input for `-`. Bytes that are not UTF-8 are replaced: the lexer reports them in place.
    ///
    /// # Errors
    /// What the operating system says about the file; a text whose places do not fit 32 bits.
    pub fn open(path: &str) -> io::Result<Self> {
        let (name, bytes) = match path {
            "-" => ("<stdin>".to_owned(), input_file::read_stream(io::stdin().lock())?),
            _ => (path.to_owned(), input_file::read_at_most(Path::new(path), MAX_TEXT)?),
        };
        let text =
            String::from_utf8(bytes).unwrap_or_else(|it| String::from_utf8_lossy(it.as_bytes()).into_owned());
        Ok(Self::new(name, text))
    }

    /// A text in memory.
    pub fn new(name: String, text: String) -> Self {
        let lines = LineIndex::new(&text);
        Self { name, text, lines }
    }

    /// A line, from 1, without the blanks around it; `None`: there is no such line, or it is blank.
    pub fn line_span(&self, line: u32) -> Option<Span> {
        let (before, from) = (line.checked_sub(1)? as usize, self.text.split_inclusive('\n'));
        let start: usize = from.clone().take(before).map(str::len).sum();
        let text = from.clone().nth(before)?;
        let indent = text.len() - text.trim_start().len();
        let len = text.trim().len();
        (len > 0).then(|| Span::new(start + indent, start + indent + len))
    }

    /// A line as `line_span`, or the container's header for a statement that has no line of its own: one that a pass made.
    pub fn line_or_header(&self, line: u32) -> Span {
        let marker = "%HostIrContainer";
        let header = self.text.find(marker).unwrap_or(0);
        let span = self.line_span(line).filter(|it| it.start as usize >= header);
        span.unwrap_or_else(|| Span::new(header, (header + marker.len()).min(self.text.len())))
    }

    /// Reads and verifies every container. Errors come with whatever could be read all the same.
    pub fn programs(&self) -> (Vec<Program>, Vec<Diagnostic>) {
        let (programs, mut diagnostics) = grammar::read(&self.text);
        if !grammar::diagnostic::has_errors(&diagnostics) {
            programs.iter().for_each(|program| diagnostics.extend(grammar::verify(program)));
        }
        (programs, diagnostics)
    }
}

/// A binding of the command line, `name=expression`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The symbol.
    pub name: String,
    /// Its value, an expression of `rank` and loop indices.
    pub value: String,
}

impl std::str::FromStr for Binding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("expected `name=value`, such as `i0=8192` or `i84='(rank+streamIdx)%8'`".to_owned()),
        }
    }
}

/// Names that a program may be told about even if its text does not mention them.
const PROGRAM_OPTIONS: &[&str] = &["numberOfStreams", P2P_PROTOCOL];

impl Binding {
    /// Whether it says something about a program: it binds a scalar that the program names, or is an option of all
    /// programs.
    pub fn applies_to(&self, program: &Program) -> bool {
        PROGRAM_OPTIONS.contains(&self.name.as_str()) || program.find_symbol(&self.name).is_some()
    }
}

/// Adds bindings to a program's definitions; they override the text's own.
///
/// # Errors
/// A value that is no expression, a name that the program does not mention, a definition in a circle; with the text of the
/// command line that the diagnostic is about.
pub fn apply_bindings(program: &mut Program, bindings: &[Binding]) -> Result<(), Box<(Source, Diagnostic)>> {
    for Binding { name, value: text } in bindings {
        let stated = Source::new("--set".to_owned(), format!("{name}={text}"));
        let (of_name, of_value) = (Span::new(0, name.len()), Span::new(name.len() + 1, stated.text.len()));
        let reject = |span: Span, message: String, label: &str| {
            Diagnostic::new(Code::UnboundSymbol, span, message, label)
        };
        let known = program.find_symbol(name);
        if known.is_none() && !PROGRAM_OPTIONS.contains(&name.as_str()) {
            let it =
                reject(of_name, format!("the program has no scalar `{name}`"), "not a scalar of the program");
            let it = it.help("bind a scalar that stands in its axes, indices or peers");
            return Err(Box::new((stated, it)));
        }
        let Some(value) = grammar::read_scalar(program, text) else {
            let it = reject(
                of_value,
                format!("`{text}` is not an expression"),
                "expected a number or an expression",
            );
            return Err(Box::new((stated, it)));
        };
        match PROGRAM_OPTIONS.contains(&name.as_str()) {
            true => {
                program.options.insert(name.clone(), value);
            }
            false => {
                if let Some(symbol) = known {
                    program.definitions.insert(symbol, value);
                }
            }
        }
        if name == P2P_PROTOCOL && program.p2p_protocol().is_none() {
            let it = reject(of_value, format!("there is no protocol `{text}`"), "expected `get` or `put`");
            return Err(Box::new((stated, it)));
        }
    }
    let Some(symbol) = cyclic_symbol(program) else { return Ok(()) };
    let all: Vec<String> = bindings.iter().map(|it| format!("{}={}", it.name, it.value)).collect();
    let stated = Source::new("--set".to_owned(), all.join(" "));
    let message = format!("with these bindings `{}` depends on itself", program.symbols[symbol]);
    let span = Span::new(0, stated.text.len());
    Err(Box::new((stated, Diagnostic::new(Code::CircularDefinition, span, message, "bound in a circle"))))
}

/// A symbol whose definition depends on itself.
fn cyclic_symbol(program: &Program) -> Option<SymbolId> {
    let mut left: HashMap<SymbolId, bool> = HashMap::new();
    for root in program.definitions.keys() {
        // Depth first: a symbol is entered, then left once what it uses is left.
        let mut stack = vec![(*root, false)];
        while let Some((symbol, leaving)) = stack.pop() {
            match (leaving, left.get(&symbol), program.definitions.get(&symbol)) {
                (true, ..) => {
                    left.insert(symbol, true);
                }
                (false, Some(false), _) => return Some(symbol),
                (false, None, Some(value)) => {
                    left.insert(symbol, false);
                    stack.push((symbol, true));
                    let mut used = Vec::new();
                    program.collect_symbols(*value, &mut used);
                    stack.extend(used.into_iter().map(|it| (it, false)));
                }
                (false, Some(true), _) | (false, None, None) => (),
            }
        }
    }
    None
}
