//! Programs as terms: nodes of tensors of four rows and columns, and their texts.

use std::{collections::HashMap, fmt::Write};

use grammar::dtype::DType;

/// The number of a node.
pub type Id = usize;

/// The rows and the columns of a tensor.
pub const EXTENT: usize = 4;

/// An element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Float,
    Half,
    Bfloat,
    Double,
    Bool,
}

impl Type {
    /// Returns the type of a plan's, if it is one of these.
    pub fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::Float => Self::Float,
            DType::Half => Self::Half,
            DType::BFloat => Self::Bfloat,
            DType::Double => Self::Double,
            DType::Bool => Self::Bool,
            _ => return None,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Half => "__half",
            Self::Bfloat => "__bfloat",
            Self::Double => "double",
            Self::Bool => "bool",
        }
    }
}

/// What a node computes.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    Input(usize),
    Const(&'static str),
    Eye,
    Unary(&'static str),
    Not,
    Infix(&'static str),
    Call(&'static str),
    Where,
    /// A conversion to the type of the node. If the flag is set, the operand's operator has this result.
    Cast(bool),
    /// A reduction of each row, whose result is repeated.
    Rows(&'static str),
    Transpose,
    Matmul,
    Copy,
    /// The first or the second half of the rows.
    Half(usize),
    Cat,
    /// Each of two ranks keeps its half of the rows.
    Shard,
    /// Both ranks get the rows of both.
    Gather,
    /// Both ranks get what the first one has.
    Broadcast,
    /// The sum of what the ranks have.
    SumOfRanks,
    /// As `Rows`, with a part of each row on each rank.
    RowsOfRanks(&'static str),
}

impl Op {
    /// Returns whether an element of the result depends on the same elements of the operands.
    pub fn is_elementwise(&self) -> bool {
        use Op::*;
        match self {
            Unary(_) | Not | Infix(_) | Call(_) | Where | Copy => true,
            Cast(is_fused) => !is_fused,
            Input(_) | Const(_) | Eye | Rows(_) | Transpose | Matmul | Half(_) | Cat => false,
            Shard | Gather | Broadcast | SumOfRanks | RowsOfRanks(_) => false,
        }
    }
}

/// A tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub op: Op,
    pub of: Vec<Id>,
    pub dtype: Type,
    pub rows: usize,
}

/// A program: the nodes that its outputs need.
#[derive(Clone)]
pub struct Terms {
    pub nodes: Vec<Node>,
    pub outputs: Vec<Id>,
    pub inputs: usize,
    /// The type of all numbers that are not converted.
    pub base: Type,
    pub ranks: usize,
}

impl Terms {
    /// Adds a node.
    pub fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds a node of whole tensors of numbers, or of truth values.
    pub fn op(&mut self, op: Op, of: &[Id]) -> Id {
        let is_bool = matches!(op, Op::Not)
            || matches!(op, Op::Infix(it) if ["<", "<=", ">", ">=", "==", "!=", "&&", "||"].contains(&it));
        let dtype = if is_bool { Type::Bool } else { self.base };
        self.add(Node { op, of: of.to_vec(), dtype, rows: EXTENT })
    }

    /// Adds a constant.
    pub fn number(&mut self, text: &'static str) -> Id {
        self.op(Op::Const(text), &[])
    }

    /// Adds a conversion.
    pub fn cast(&mut self, of: Id, dtype: Type, is_fused: bool) -> Id {
        self.add(Node { op: Op::Cast(is_fused), of: vec![of], dtype, rows: self.nodes[of].rows })
    }

    /// Returns the nodes that a node needs, operands first, and it.
    pub fn needed_by(&self, roots: &[Id]) -> Vec<Id> {
        let (mut seen, mut order) = (vec![false; self.nodes.len()], Vec::new());
        let mut stack: Vec<(Id, bool)> = roots.iter().rev().map(|it| (*it, false)).collect();
        while let Some((id, is_done)) = stack.pop() {
            if is_done {
                order.push(id);
            } else if !std::mem::replace(&mut seen[id], true) {
                stack.push((id, true));
                stack.extend(self.nodes[id].of.iter().rev().map(|it| (*it, false)));
            }
        }
        order
    }

    /// Returns whether a rank has a half of the rows of a node.
    pub fn is_shard(&self, id: Id) -> bool {
        let node = &self.nodes[id];
        let is_whole = matches!(node.op, Op::Gather);
        node.op == Op::Shard || !is_whole && node.of.iter().any(|it| self.is_shard(*it))
    }

    /// Returns whether an operand is written as a number.
    pub fn is_inline(&self, user: &Node, at: usize) -> bool {
        let is_const =
            |at: usize| user.of.get(at).is_some_and(|it| matches!(self.nodes[*it].op, Op::Const(_)));
        match user.op {
            Op::Infix(_) | Op::Call(_) => at == 1 && is_const(1) && !is_const(0),
            Op::Where => at == 2 && is_const(2) && !is_const(1),
            _ => false,
        }
    }

    /// Returns the nodes that the text computes, operands first.
    fn written(&self) -> Vec<Id> {
        let mut used = vec![false; self.nodes.len()];
        self.outputs.iter().for_each(|it| used[*it] = true);
        for id in self.needed_by(&self.outputs).into_iter().rev() {
            let node = self.operation(id);
            for (at, of) in node.of.iter().enumerate() {
                used[*of] |= used[id] && !self.is_inline(&node, at);
            }
        }
        self.needed_by(&self.outputs).into_iter().filter(|it| used[*it]).collect()
    }

    /// Returns the node as the text has it: a conversion that is a part of its operand's operator is this operator.
    pub fn operation(&self, id: Id) -> Node {
        let node = &self.nodes[id];
        let operand = node.of.first().map(|it| &self.nodes[*it]);
        match operand {
            Some(it) if node.op == Op::Cast(true) && matches!(it.op, Op::Infix(_)) => {
                Node { dtype: node.dtype, ..it.clone() }
            }
            _ => node.clone(),
        }
    }

    /// Returns the text. With a batch, all tensors have one axis more, all nodes are outputs, and these are returned.
    pub fn text(&self, batch: Option<usize>) -> (String, Vec<Id>) {
        let mut text = Text { batch, ranks: self.ranks, ..Text::default() };
        let mut names: HashMap<Id, String> = HashMap::new();
        let inputs: Vec<String> =
            (0..self.inputs).map(|_| text.tensor(self.base, EXTENT, ["i", "i", "i"])).collect();
        let mut shown = Vec::new();
        for id in self.written() {
            let node = self.operation(id);
            if let Op::Input(number) = node.op {
                names.insert(id, inputs[number].clone());
                continue;
            }
            let operand = |at: usize| match self.nodes[node.of[at]].op {
                Op::Const(number) if self.is_inline(&node, at) => format!("double({number})"),
                _ => names[&node.of[at]].clone(),
            };
            text.is_shard = self.is_shard(id);
            let name = text.operation(&node, &operand);
            names.insert(id, name);
            shown.extend((!text.is_shard).then_some(id));
        }
        let outputs = if batch.is_some() { shown } else { self.outputs.clone() };
        let list = outputs.iter().map(|it| names[it].as_str()).collect::<Vec<_>>().join(", ");
        let (tensors, body) = (text.tensors, text.body);
        let domains =
            if text.domains.is_empty() { String::new() } else { format!("\nDomains:\n{}", text.domains) };
        let inputs = inputs.join(", ");
        (
            format!(
                "{tensors}%HostIrContainer {{ ({inputs}) -> ({list}) :\n{body}}} // %HostIrContainer\n{domains}"
            ),
            outputs,
        )
    }
}

/// A text that is written.
#[derive(Default)]
struct Text {
    batch: Option<usize>,
    ranks: usize,
    count: usize,
    tensors: String,
    body: String,
    domains: String,
    communications: usize,
    /// Whether a rank has a half of the rows of the next tensor.
    is_shard: bool,
}

impl Text {
    /// Declares a tensor, whose axes are iteration (`i`), broadcast (`b`), reduction (`r`) or absent.
    fn tensor(&mut self, dtype: Type, rows: usize, mut axes: [&str; 3]) -> String {
        self.count += 1;
        let name = format!("T{}", self.count - 1);
        let axis = |(at, (kind, extent)): (usize, (&str, usize))| {
            let extent = if kind == "b" { 1 } else { extent };
            (!kind.is_empty()).then(|| format!("{kind}S{}{at}{{{extent}}}", self.count))
        };
        if self.batch.is_none() {
            axes[0] = "";
        }
        let extents = [self.batch.unwrap_or(0), rows, EXTENT];
        let mut axes: Vec<String> = axes.into_iter().zip(extents).enumerate().filter_map(axis).collect();
        if self.is_shard {
            let (at, id, half) = (usize::from(self.batch.is_some()), self.count, rows / 2);
            let split = format!("ideviceIdx.x{id}7{{2}}, iS{id}8{{{half}}}");
            let line =
                format!("  {name}: logical({}), outer_split({}, 2) -> ({split})", axes.join(", "), axes[at]);
            let _ = writeln!(self.domains, "{line}");
            axes[at] = split;
        }
        self.declare(&name, dtype, &axes);
        name
    }

    /// Declares a tensor of these axes.
    fn declare(&mut self, name: &str, dtype: Type, axes: &[String]) {
        let mesh = if self.ranks == 1 { "0" } else { "0 1" };
        let _ = writeln!(
            self.tensors,
            "%tensor {name}_g_{}[{}] (DeviceMesh{{{mesh}}})",
            dtype.text(),
            axes.join(", ")
        );
    }

    /// Declares a tensor with axes of ranks, given without numbers.
    fn special(&mut self, dtype: Type, axes: &[(&str, usize)]) -> String {
        self.count += 1;
        let (name, id) = (format!("T{}", self.count - 1), self.count);
        let batch = self.batch.map(|it| ("iS", it));
        let all = batch.iter().chain(axes).enumerate();
        let axes: Vec<String> =
            all.map(|(at, (kind, extent))| format!("{kind}{id}{at}{{{extent}}}")).collect();
        self.declare(&name, dtype, &axes);
        name
    }

    /// Writes a communication of both ranks and its Wait.
    fn communicate(&mut self, kind: &str, input: &str, output: &str) {
        let number = self.communications;
        self.communications += 1;
        let _ = writeln!(self.body, "  {output} = ALLOCATE(mem_type=global, zero_init=false)");
        let _ = writeln!(
            self.body,
            "  Communication {number} (type={kind}, input={input}, output={output}, backend=NCCL)\n  Wait(Communication {number})"
        );
    }

    fn line(&mut self, result: &str, value: &str) {
        let end = if value.ends_with(" )") { "" } else { ";" };
        let _ = writeln!(self.body, "  {result} = {value}{end}");
    }

    /// Returns a list with one item more if there is a batch.
    fn list(&self, batch: &str, items: &str) -> String {
        if self.batch.is_some() { format!("{{{batch}, {items}}}") } else { format!("{{{items}}}") }
    }

    /// Writes an operation, and returns the name of its result.
    fn operation(&mut self, node: &Node, operand: &dyn Fn(usize) -> String) -> String {
        let batch = self.batch.unwrap_or(0).to_string();
        let shape = self.list(&batch, &format!("{}, {EXTENT}", node.rows));
        let value = match &node.op {
            Op::Input(_) => return operand(0),
            Op::Const(number) => format!("full({shape}, double({number}))"),
            Op::Eye => return self.eye(node, &shape),
            Op::Unary(name) => format!("{name}({})", operand(0)),
            Op::Not => format!("!{}", operand(0)),
            Op::Infix(sign) => format!("{} {sign} {}", operand(0), operand(1)),
            Op::Call(name) => format!("{name}({}, {})", operand(0), operand(1)),
            Op::Where => format!("where({}, {}, {})", operand(0), operand(1), operand(2)),
            Op::Cast(_) => format!("cast({})", operand(0)),
            Op::Rows(op) => return self.rows(node, op, &operand(0), &shape),
            Op::RowsOfRanks(op) => return self.rows_of_ranks(node, op, &operand(0), &shape),
            Op::Shard => format!("Set( {} )", operand(0)),
            // An Allgather puts the parts of the ranks one behind the other, and the samples are outside of the rows.
            Op::Gather if self.batch.is_some() => format!("Set( {} )", operand(0)),
            Op::Gather | Op::Broadcast => {
                let name = self.tensor(node.dtype, node.rows, ["i", "i", "i"]);
                let kind = if node.op == Op::Gather {
                    "Allgather, team=(0 1)"
                } else {
                    "Broadcast, team=(0 1), root=0"
                };
                self.communicate(kind, &operand(0), &name);
                return name;
            }
            Op::SumOfRanks => return self.sum_of_ranks(node, &operand(0)),
            Op::Transpose => {
                let dims = if self.batch.is_some() { "0, 2, 1" } else { "1, 0" };
                format!("Set.Permute( {}, dims = {{{dims}}} )", operand(0))
            }
            Op::Matmul => format!("matmul( {}, {} )", operand(0), operand(1)),
            Op::Copy => format!("Set( {} )", operand(0)),
            Op::Half(number) => {
                let first = if self.batch.is_some() { format!("{{0, {batch}, 1}} ") } else { String::new() };
                let rows = format!("{{{}, {}, 1}}", number * node.rows, (number + 1) * node.rows);
                format!("slice( {}, {{ {first}{rows} {{0, {EXTENT}, 1}} }} )", operand(0))
            }
            Op::Cat => {
                format!("cat( {}, {}, {} )", operand(0), operand(1), usize::from(self.batch.is_some()))
            }
        };
        let name = self.tensor(node.dtype, node.rows, ["i", "i", "i"]);
        self.line(&name, &value);
        name
    }

    fn eye(&mut self, node: &Node, shape: &str) -> String {
        let eye = self.tensor(node.dtype, EXTENT, ["", "i", "i"]);
        self.line(&eye, &format!("eye({EXTENT}, {})", node.dtype.text()));
        if self.batch.is_none() {
            return eye;
        }
        let added = self.tensor(node.dtype, EXTENT, ["b", "i", "i"]);
        self.line(&added, &format!("broadcast( {eye}, flags = {{true, false, false}} )"));
        let name = self.tensor(node.dtype, EXTENT, ["i", "i", "i"]);
        self.line(&name, &format!("expand( {added}, {shape} )"));
        name
    }

    fn rows(&mut self, node: &Node, op: &str, operand: &str, shape: &str) -> String {
        let initial = match op {
            "add" => "0",
            "max" | "fmax" => "-inf",
            _ => "inf",
        };
        let initial = format!("{}({initial})", if node.dtype == Type::Double { "double" } else { "float" });
        let reduced = self.tensor(node.dtype, node.rows, ["i", "i", "r"]);
        self.line(
            &reduced,
            &format!("reduction( {operand}, op = {op}, initial value = {initial}, allreduce = false )"),
        );
        self.repeated(node, &reduced, shape)
    }

    /// Reduces a part of each row on each rank, and the results of the ranks.
    fn rows_of_ranks(&mut self, node: &Node, op: &str, operand: &str, shape: &str) -> String {
        let (initial, how) = match op {
            "add" => ("0", "SUM"),
            "max" | "fmax" => ("-inf", "MAX"),
            _ => ("inf", "MIN"),
        };
        let initial = format!("{}({initial})", if node.dtype == Type::Double { "double" } else { "float" });
        let (rows, half) = (node.rows, EXTENT / 2);
        let parts = self.special(node.dtype, &[("iS", rows), ("iS", 2), ("iS", half)]);
        self.line(&parts, &format!("reshape({operand})"));
        let own = self.special(node.dtype, &[("iS", rows), ("ideviceIdx.x", 2), ("iS", half)]);
        self.line(&own, &format!("Set( {parts} )"));
        let sums = self.special(node.dtype, &[("iS", rows), ("ideviceIdx.x", 2), ("rS", half)]);
        self.line(
            &sums,
            &format!("reduction( {own}, op = {op}, initial value = {initial}, allreduce = false )"),
        );
        let all = self.special(node.dtype, &[("iS", rows), ("rdeviceIdx.x", 2)]);
        self.communicate(&format!("Allreduce, team=(0 1), red_op={how}"), &sums, &all);
        self.repeated(node, &all, shape)
    }

    fn sum_of_ranks(&mut self, node: &Node, operand: &str) -> String {
        let (rows, batch) = (node.rows, self.batch.unwrap_or(0).to_string());
        let added = self.special(node.dtype, &[("bS", 1), ("iS", rows), ("iS", EXTENT)]);
        self.line(
            &added,
            &format!("broadcast( {operand}, flags = {} )", self.list("false", "true, false, false")),
        );
        let copies = self.special(node.dtype, &[("iS", 2), ("iS", rows), ("iS", EXTENT)]);
        self.line(
            &copies,
            &format!("expand( {added}, {} )", self.list(&batch, &format!("2, {rows}, {EXTENT}"))),
        );
        let own = self.special(node.dtype, &[("ideviceIdx.x", 2), ("iS", rows), ("iS", EXTENT)]);
        self.line(&own, &format!("Set( {copies} )"));
        let all = self.special(node.dtype, &[("rdeviceIdx.x", 2), ("iS", rows), ("iS", EXTENT)]);
        self.communicate("Allreduce, team=(0 1), red_op=SUM", &own, &all);
        let name = self.tensor(node.dtype, rows, ["i", "i", "i"]);
        self.line(&name, &format!("Set( {all} )"));
        name
    }

    /// Repeats a column.
    fn repeated(&mut self, node: &Node, reduced: &str, shape: &str) -> String {
        let added = self.tensor(node.dtype, node.rows, ["i", "i", "b"]);
        let flags = self.list("false", "false, true");
        self.line(&added, &format!("broadcast( {reduced}, flags = {flags} )"));
        let name = self.tensor(node.dtype, node.rows, ["i", "i", "i"]);
        self.line(&name, &format!("expand( {added}, {shape} )"));
        name
    }
}
