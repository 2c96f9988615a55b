//! Bindings of scalars and options that the command line adds to a program.

use crate::InvalidOption;
use std::{collections::HashMap, fmt};

use crate::{
    arena::Id,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{P2P_PROTOCOL, Program, SymbolId, is_integer_name, predefined_meaning},
    list_text,
    scalars::{has_streams, may_be_integer},
    source::Source,
    span::Span,
};

/// A binding `name=expression` of the command line. `name?=expression` applies only to programs that have the scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The symbol.
    pub name: String,
    /// Its value, an expression of `rank` and loop indices.
    pub value: String,
    /// Whether a program need not have the scalar.
    pub is_optional: bool,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}={}", self.name, if self.is_optional { "?" } else { "" }, self.value)
    }
}

impl std::str::FromStr for Binding {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let parts = text.split_once('=').map(|(name, value)| {
            let required = name.trim();
            let name = required.strip_suffix('?').unwrap_or(required);
            (name.trim_end(), value.trim(), name.len() < required.len())
        });
        match parts {
            Some((name, value, is_optional)) if !name.is_empty() && !value.is_empty() => {
                Ok(Self { name: name.to_owned(), value: value.to_owned(), is_optional })
            }
            _ => Err("expected `name=value`, such as `i0=8192` or `i84='(rank+streamIdx)%8'`".into()),
        }
    }
}

/// Options that can be bound even if the program does not mention them.
const PROGRAM_OPTIONS: &[&str] = &["numberOfStreams", P2P_PROTOCOL];

impl Binding {
    /// Returns whether the binding applies to a program: it binds a scalar that the program mentions, or it
    /// is an option of all programs.
    pub fn applies_to(&self, program: &Program) -> bool {
        PROGRAM_OPTIONS.contains(&self.name.as_str()) || program.find_symbol(&self.name).is_some()
    }
}

/// Adds bindings to a program's definitions, overriding those of the text.
///
/// # Errors
/// Reports a value that is not an expression or not an integer, a name that the program does not mention, or a cyclic
/// definition, together with the text of the command line to which the diagnostic refers. The command line is invalid
/// then: exit code 2.
pub fn apply_bindings(program: &mut Program, bindings: &[Binding]) -> Result<(), Box<(Source, Diagnostic)>> {
    for (at, binding) in bindings.iter().enumerate() {
        if binding.is_optional && !binding.applies_to(program) {
            continue;
        }
        let Binding { name, value: text, .. } = binding;
        let stated = Source::new("--set".to_owned(), binding.to_string());
        let (of_name, of_value) =
            (Span::new(0, name.len()), Span::new(stated.text.len() - text.len(), stated.text.len()));
        let reject = |span: Span, message: String, label: &str| {
            Diagnostic::new(Code::UnboundSymbol, span, message, label)
        };
        if let Some(first) = bindings[..at].iter().find(|it| it.name == *name) {
            let message = format!("`--set {name}` is given twice");
            let label = format!("given before this: `{first}`");
            let it = Diagnostic::new(Code::BadAttribute, of_name, message, label);
            return Err(Box::new((stated, it.help("remove one of the two"))));
        }
        let known = program.find_symbol(name);
        if known.is_none() && !PROGRAM_OPTIONS.contains(&name.as_str()) {
            let it =
                reject(of_name, format!("the program has no scalar `{name}`"), "not a scalar of the program");
            let it = it.help(scalars_text(program, program.symbols.len()));
            return Err(Box::new((stated, it)));
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.bytes().all(|it| it.is_ascii_digit()) && text.parse::<i64>().is_err() {
            let message = "the number does not fit in 64 bits";
            let label = format!("expected at most {}", i64::MAX);
            return Err(Box::new((stated, Diagnostic::new(Code::BadNumber, of_value, message, label))));
        }
        let own_names = program.symbols.len();
        let Some(value) = crate::read_scalar(program, text) else {
            let it = reject(
                of_value,
                format!("`{text}` is not an expression"),
                "expected a number or an expression",
            );
            return Err(Box::new((stated, it)));
        };
        if name != P2P_PROTOCOL {
            let mut used = Vec::new();
            program.collect_symbols(value, &mut used);
            let is_unknown = |it: &SymbolId| {
                it.index() >= own_names && predefined_meaning(&program.symbols[*it]).is_none()
            };
            if let Some(other) = used.into_iter().find(is_unknown) {
                let other = program.symbols[other].as_str();
                let message = format!("the value of `{name}`: the program has no scalar `{other}`");
                let it =
                    reject(of_value, message, "expected a number or an expression of the program's scalars");
                return Err(Box::new((stated, it.help(scalars_text(program, own_names)))));
            }
            let is_option = PROGRAM_OPTIONS.contains(&name.as_str());
            if is_integer_name(name) && !is_option && !may_be_integer(program, value) {
                let message = format!("the value of `{name}` must be an integer");
                let it = Diagnostic::new(Code::BadIndex, of_value, message, "not an integer");
                return Err(Box::new((stated, it.help(format!("give it a number, such as `{name}=8`")))));
            }
        }
        if PROGRAM_OPTIONS.contains(&name.as_str()) {
            program.options.insert(name.clone(), value);
        } else {
            if let Some(symbol) = known {
                program.definitions.insert(symbol, value);
            }
        }
        if !has_streams(program) {
            let message = "`numberOfStreams` must be a positive integer";
            let it = Diagnostic::new(Code::BadIndex, of_value, message, "expected 1, 2, …");
            return Err(Box::new((stated, it)));
        }
        if name == P2P_PROTOCOL && program.p2p_protocol().is_none() {
            let it = reject(of_value, format!("unknown protocol `{text}`"), "expected `get` or `put`");
            return Err(Box::new((stated, it)));
        }
    }
    let Err(symbol) = sort_definitions(program) else { return Ok(()) };
    let all: Vec<String> = bindings.iter().map(ToString::to_string).collect();
    let stated = Source::new("--set".to_owned(), all.join(" "));
    let message = format!("with these bindings the value of `{}` depends on itself", program.symbols[symbol]);
    let span = Span::new(0, stated.text.len());
    Err(Box::new((
        stated,
        Diagnostic::new(Code::CircularDefinition, span, message, "the definitions are circular")
            .help("set one of them to a number"),
    )))
}

/// Returns which of the first `count` scalars of a program can be bound.
fn scalars_text(program: &Program, count: usize) -> String {
    let names = program.symbols.ids().take(count).map(|it| program.symbols[it].as_str());
    let mut names: Vec<&str> =
        names.filter(|it| it.len() > 1 && it.bytes().skip(1).all(|it| it.is_ascii_digit())).collect();
    names.dedup();
    match names.as_slice() {
        [] => "the program has no scalars to bind".to_owned(),
        [only] => format!("the only scalar of the program is {only}"),
        all => format!("the scalars of the program are {}", list_text(all.iter().copied(), 8, "and")),
    }
}

/// Sorts the definitions as the reader does: each follows the definitions that it uses. A binding of the command
/// line may be used by a definition of the text, and the printed program has to read back as printed.
///
/// # Errors
/// Returns a symbol whose definition depends on itself.
fn sort_definitions(program: &mut Program) -> Result<(), SymbolId> {
    let mut left: HashMap<SymbolId, bool> = HashMap::new();
    let mut order = Vec::with_capacity(program.definitions.len());
    for root in program.definitions.keys() {
        // Depth-first search: a symbol is entered, and left after all symbols that its definition uses.
        let mut stack = vec![(*root, false)];
        while let Some((symbol, leaving)) = stack.pop() {
            match (leaving, left.get(&symbol), program.definitions.get(&symbol)) {
                (true, ..) => {
                    left.insert(symbol, true);
                    order.push(symbol);
                }
                (false, Some(false), _) => return Err(symbol),
                (false, None, Some(value)) => {
                    left.insert(symbol, false);
                    stack.push((symbol, true));
                    let mut used = Vec::new();
                    program.collect_symbols(*value, &mut used);
                    stack.extend(used.into_iter().rev().map(|it| (it, false)));
                }
                (false, Some(true), _) | (false, None, None) => (),
            }
        }
    }
    for (place, symbol) in order.into_iter().enumerate() {
        if let Some(from) = program.definitions.get_index_of(&symbol) {
            program.definitions.move_index(from, place);
        }
    }
    Ok(())
}
