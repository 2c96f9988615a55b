//! Writes the program that is made, as Host IR text, and remembers from which operation each line comes.
//!
//! The text is short Host IR: the declarations of all tensors, then the statements. `grammar` reads it as it reads every program, so
//! there is one way from text to IR, with one set of checks; positions are then replaced by those of the module (`lib`).

use std::fmt::Write;

use grammar::{dtype::DType, span::Span};

/// A dimension of a declared tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dim {
    pub(crate) extent: i64,
    /// The device dimensions (`x`, `y`, `z`) over which it is sharded, major first, with their extents.
    pub(crate) shards: Vec<(char, i64)>,
    /// The device dimension that it is as a whole.
    pub(crate) device: Option<char>,
    /// Whether it is the sum over the operand's dimension.
    pub(crate) is_reduced: bool,
}

impl Dim {
    pub(crate) fn of(extent: i64) -> Self {
        Self { extent, ..Self::default() }
    }

    pub(crate) fn device(letter: char, extent: i64) -> Self {
        Self { extent, device: Some(letter), ..Self::default() }
    }
}

/// A declared tensor.
#[derive(Debug)]
pub(crate) struct Declaration {
    pub(crate) dims: Vec<Dim>,
    /// For the result of a permutation, the dimension of the operand that each dimension is: it numbers the axes.
    pub(crate) order: Option<Vec<usize>>,
    pub(crate) dtype: DType,
    /// The text of its mesh; empty for none.
    pub(crate) mesh: String,
    span: Span,
}

/// A text with the position in the module from which each line comes.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) lines: Vec<Span>,
}

impl Written {
    fn line(&mut self, text: &str, span: Span) {
        self.text.push_str(text);
        self.text.push('\n');
        self.lines.push(span);
    }
}

/// The program so far.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The tensors, by number.
    pub(crate) tensors: Vec<Declaration>,
    statements: Vec<(String, Span)>,
    definitions: Vec<(String, Span)>,
    communications: usize,
    /// The position of the current operation.
    pub(crate) span: Span,
}

impl Writer {
    /// Declares a tensor and returns its number.
    pub(crate) fn declare(&mut self, dims: Vec<Dim>, dtype: DType, mesh: String) -> usize {
        self.tensors.push(Declaration { dims, order: None, dtype, mesh, span: self.span });
        self.tensors.len() - 1
    }

    /// Adds a statement.
    pub(crate) fn statement(&mut self, text: String) {
        self.statements.push((text, self.span));
    }

    /// Returns the number of statements and definitions so far.
    pub(crate) fn size(&self) -> usize {
        self.statements.len() + self.definitions.len()
    }

    /// Defines a scalar, which is a boolean or an integer, and returns its name.
    pub(crate) fn define(&mut self, is_bool: bool, value: &str) -> String {
        let name = format!("{}{}", if is_bool { 'b' } else { 'i' }, self.definitions.len());
        self.definitions.push((format!("  {name} = {value};"), self.span));
        name
    }

    /// Returns the number of a new communication.
    pub(crate) fn communication(&mut self) -> usize {
        self.communications += 1;
        self.communications - 1
    }

    /// Returns the text of the program.
    pub(crate) fn finish(&self, inputs: &[usize], outputs: &[usize]) -> Written {
        let mut written = Written::default();
        let mut domains = Vec::new();
        let mut next_axis = 0;
        for (number, tensor) in self.tensors.iter().enumerate() {
            let (line, domain) = declaration(number, tensor, &mut next_axis);
            written.line(&line, tensor.span);
            domains.extend(domain.map(|it| (it, tensor.span)));
        }
        let names = |list: &[usize]| list.iter().map(|it| format!("T{it}")).collect::<Vec<_>>().join(", ");
        let header = format!("%HostIrContainer {{ ({}) -> ({}) :", names(inputs), names(outputs));
        written.line(&header, self.span);
        for (text, span) in &self.statements {
            written.line(&format!("  {text}"), *span);
        }
        written.line("} // %HostIrContainer", self.span);
        if !self.definitions.is_empty() {
            written.line("Index definitions:", self.span);
            self.definitions.iter().for_each(|(text, span)| written.line(text, *span));
        }
        // Without this section the reader would infer domains.
        written.line("Domains:", self.span);
        domains.iter().for_each(|(text, span)| written.line(text, *span));
        written
    }
}

/// Returns the line of a tensor, and that of its domains if it is sharded.
fn declaration(number: usize, tensor: &Declaration, next_axis: &mut usize) -> (String, Option<String>) {
    let first = *next_axis;
    *next_axis += tensor.dims.len();
    let (mut logical, mut loops, mut splits) = (Vec::new(), Vec::new(), Vec::new());
    for (at, dim) in tensor.dims.iter().enumerate() {
        let number = first + tensor.order.as_ref().map_or(at, |order| order[at]);
        let kind = if dim.is_reduced { 'r' } else { 'i' };
        let parallel = dim.device.map_or("S".to_owned(), |it| format!("deviceIdx.{it}"));
        let mut axis = format!("{kind}{parallel}{number}{{{}}}", dim.extent);
        logical.push(axis.clone());
        let mut left = dim.extent;
        for (letter, parts) in &dim.shards {
            left /= parts;
            let outer = format!("ideviceIdx.{letter}{next_axis}{{{parts}}}");
            let inner = format!("iS{}{{{left}}}", *next_axis + 1);
            *next_axis += 2;
            splits.push(format!(", outer_split({axis}, {parts}) -> ({outer}, {inner})"));
            loops.push(outer);
            axis = inner;
        }
        loops.push(axis);
    }
    let mesh = if tensor.mesh.is_empty() { String::new() } else { format!(" (DeviceMesh{})", tensor.mesh) };
    let mut line = String::new();
    // Writing to a string does not fail.
    _ = write!(line, "%tensor T{number}_g_{}[{}]{mesh}", tensor.dtype.name(), loops.join(", "));
    let domain = (!splits.is_empty())
        .then(|| format!("  T{number}: logical({}){}", logical.join(", "), splits.concat()));
    (line, domain)
}
