//! Small programs of several ranks, and their text.
//!
//! A program is a list of items. Each has the ranks that execute it and the stream that is current there, so that an item can be inserted,
//! removed or moved without others. The text selects streams and has branches where they are needed.

use std::{collections::BTreeMap, fmt::Write as _};

/// A number that may differ by rank and iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Const(usize),
    /// The index of the loop.
    Index,
    /// The rank plus a number, modulo the number of ranks.
    Rank(usize),
}

impl Scalar {
    /// Returns the value on a rank in an iteration.
    pub fn value(self, rank: usize, index: usize, ranks: usize) -> usize {
        match self {
            Self::Const(it) => it,
            Self::Index => index,
            Self::Rank(plus) => (rank + plus) % ranks,
        }
    }

    fn text(self, index: usize, ranks: usize) -> String {
        match self {
            Self::Const(it) => it.to_string(),
            Self::Index => format!("i{index}"),
            Self::Rank(0) => "rank".to_owned(),
            Self::Rank(plus) => format!("( ( rank + {plus} ) % {ranks} )"),
        }
    }
}

/// A stream: the one that is current at entry and at exit, or one with a number.
pub type Stream = Option<Scalar>;

/// The axes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 4 elements.
    Part,
    /// A part for each rank.
    Wide,
    /// A part for each rank, of which each rank holds its own.
    Shard,
}

/// Where the memory of a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Input,
    Output,
    Local,
    /// In symmetric memory, local.
    Symmetric,
    /// The memory of another tensor.
    View,
}

/// A kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Allreduce,
    Allgather,
    ReduceScatter,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    SendRecv,
    /// Each member sends to the one that follows it at a distance.
    CollectivePermute(usize),
}

/// One side of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pub number: usize,
    pub sends: bool,
    pub buffer: usize,
    pub peer: Scalar,
    /// Over peer memory: whether the sender copies.
    pub puts: Option<bool>,
}

/// A statement. Tensors are their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stmt {
    /// The stream waits for another one.
    Sync(Stream),
    /// The host waits for the stream.
    HostSync,
    Allocate { tensor: usize, zero: bool },
    Free(usize),
    Compute { out: Vec<usize>, from: Vec<usize> },
    /// Binds a name to the part of a tensor with an index.
    Select { out: usize, of: usize, index: Scalar },
    /// Binds a name to the shards of all ranks.
    View { out: usize, of: usize },
    Collective { number: usize, kind: Kind, team: Vec<usize>, root: usize, input: usize, output: usize },
    Post(Side),
    Group { number: usize, sides: Vec<Side> },
    Share(Vec<Side>),
    Wait(usize),
}

/// A statement with the stream that is current there, and a bit for each rank that executes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub ranks: u8,
    pub stream: Stream,
    pub stmt: Stmt,
}

/// An item, or a loop of some iterations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    One(Item),
    Loop(usize, Vec<Item>),
}

/// The place of an item: its node, and its place in the body of a loop.
pub type Place = (usize, Option<usize>);

#[derive(Clone, Debug)]
pub struct Program {
    pub ranks: usize,
    pub tensors: Vec<(Shape, Role)>,
    pub nodes: Vec<Node>,
}

/// A statement as a rank executes it.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    pub place: Place,
    pub index: usize,
    /// 0 is the stream at entry, others are their numbers plus 1.
    pub stream: usize,
    pub stmt: &'a Stmt,
}

impl Program {
    /// Returns the number of a stream that a rank uses in an iteration: 0 is the one at entry.
    pub fn stream(&self, it: Stream, rank: usize, index: usize) -> usize {
        it.map_or(0, |it| 1 + it.value(rank, index, self.ranks))
    }

    /// Returns all places with their items.
    pub fn items(&self) -> Vec<(Place, &Item)> {
        let of_node = |(at, node): (usize, &'_ Node)| match node {
            Node::One(_) => vec![(at, None)],
            Node::Loop(_, body) => (0..body.len()).map(|it| (at, Some(it))).collect(),
        };
        let places = self.nodes.iter().enumerate().flat_map(of_node);
        places.filter_map(|it| Some((it, self.item(it)?))).collect()
    }

    /// Returns the item at a place.
    pub fn item(&self, (node, inner): Place) -> Option<&Item> {
        match (self.nodes.get(node)?, inner) {
            (Node::One(it), None) => Some(it),
            (Node::Loop(_, body), Some(inner)) => body.get(inner),
            _ => None,
        }
    }

    /// Returns the item at a place, to change it.
    pub fn item_mut(&mut self, (node, inner): Place) -> Option<&mut Item> {
        match (self.nodes.get_mut(node)?, inner) {
            (Node::One(it), None) => Some(it),
            (Node::Loop(_, body), Some(inner)) => body.get_mut(inner),
            _ => None,
        }
    }

    /// Inserts an item before a place, or at the end.
    pub fn insert(&mut self, (node, inner): Place, item: Item) {
        match (self.nodes.get_mut(node), inner) {
            (Some(Node::Loop(_, body)), Some(inner)) => body.insert(inner.min(body.len()), item),
            _ => self.nodes.insert(node.min(self.nodes.len()), Node::One(item)),
        }
    }

    /// Removes the item at a place.
    pub fn remove(&mut self, (node, inner): Place) -> Option<Item> {
        match (self.nodes.get_mut(node)?, inner) {
            (Node::Loop(_, body), Some(inner)) => Some(body.remove(inner)),
            _ => match self.nodes.remove(node) {
                Node::One(it) => Some(it),
                Node::Loop(..) => None,
            },
        }
    }

    /// Returns the statements that a rank executes.
    pub fn executed(&self, rank: usize) -> Vec<Executed<'_>> {
        let mut all = Vec::new();
        let mut push = |place, item: &'_ Item, index| {
            if item.ranks >> rank & 1 == 1 {
                let stream = self.stream(item.stream, rank, index);
                all.push((place, index, stream));
            }
        };
        for (at, node) in self.nodes.iter().enumerate() {
            match node {
                Node::One(item) => push((at, None), item, 0),
                Node::Loop(count, body) => {
                    for index in 0..*count {
                        body.iter().enumerate().for_each(|(inner, it)| push((at, Some(inner)), it, index));
                    }
                }
            }
        }
        let executed = |(place, index, stream)| {
            Some(Executed { place, index, stream, stmt: &self.item(place)?.stmt })
        };
        all.into_iter().filter_map(executed).collect()
    }

    /// Returns the text, and the first line of each item.
    pub fn text(&self) -> (String, BTreeMap<Place, usize>) {
        let mut text = String::new();
        let of = |role| (0..self.tensors.len()).filter(move |it| self.tensors[*it].1 == role);
        let (inputs, outputs) = (tensors(of(Role::Input)), tensors(of(Role::Output)));
        let _ = writeln!(text, "%HostIrContainer {{ ({inputs}) -> ({outputs}) :\n  Stream s0 = GetCurrentStream()");
        let mut lines = BTreeMap::new();
        let mut current = Some(None);
        for (at, node) in self.nodes.iter().enumerate() {
            match node {
                Node::One(item) => {
                    lines.insert((at, None), self.write_item(&mut text, (item, at, 1), &mut current));
                }
                Node::Loop(count, body) => {
                    let _ = writeln!(text, "  FOR i{at} from 0 to {count}:");
                    current = None;
                    for (inner, item) in body.iter().enumerate() {
                        let line = self.write_item(&mut text, (item, at, 2), &mut current);
                        lines.insert((at, Some(inner)), line);
                    }
                    current = None;
                }
            }
        }
        if current != Some(None) {
            text += "  SetCurrentStream(Stream s0)\n";
        }
        let declared = self.declarations(&text);
        let first = declared.lines().count();
        lines.values_mut().for_each(|it| *it += first);
        (declared + &text + "} // %HostIrContainer\n", lines)
    }

    /// Returns the lines before the program: the tensors of its text.
    fn declarations(&self, of: &str) -> String {
        let mut text = "%options roots=team\n".to_owned();
        let mesh: Vec<String> = (0..self.ranks).map(|it| it.to_string()).collect();
        for (at, (shape, role)) in self.tensors.iter().enumerate() {
            let is_used = |end| of.contains(&format!("T{at}{end}"));
            if ![" ", ",", ")", "}", ";", "\n"].into_iter().any(is_used) {
                continue;
            }
            let axes = match shape {
                Shape::Part => format!("iS{}{{4}}", 2 * at),
                Shape::Wide => format!("iS{}{{{}}}, iS{}{{4}}", 2 * at, self.ranks, 2 * at + 1),
                Shape::Shard => format!("ideviceIdx.x{}{{{}}}, iS{}{{4}}", 2 * at, self.ranks, 2 * at + 1),
            };
            let memory = if *role == Role::Symmetric { "sym" } else { "g" };
            let _ = writeln!(text, "%tensor T{at}_{memory}_float[{axes}] (DeviceMesh{{{}}})", mesh.join(" "));
        }
        text
    }

    fn write_item(
        &self,
        text: &mut String,
        (item, index, level): (&Item, usize, usize),
        current: &mut Option<Stream>,
    ) -> usize {
        let mut indentation = "  ".repeat(level);
        if *current != Some(item.stream) {
            let _ = writeln!(text, "{indentation}SetCurrentStream({})", self.stream_text(item.stream, index));
            *current = Some(item.stream);
        }
        if item.ranks.count_ones() as usize != self.ranks {
            let ranks = (0..self.ranks).filter(|it| item.ranks >> it & 1 == 1);
            let all: Vec<String> = ranks.map(|it| format!("( rank == {it} )")).collect();
            let condition = match &all[..] {
                [] => "( rank < 0 )".to_owned(),
                [one] => one.clone(),
                [first, rest @ ..] => rest.iter().fold(first.clone(), |any, it| format!("( {any} || {it} )")),
            };
            let _ = writeln!(text, "{indentation}IF Manual {condition}:");
            indentation += "  ";
        }
        let line = text.lines().count() + 1;
        for it in self.statement_text(&item.stmt, index) {
            let _ = writeln!(text, "{indentation}{it}");
        }
        line
    }

    /// Returns whether a kernel whose code is not in the text computes tensors from others.
    pub fn is_opaque(&self, out: &[usize], from: &[usize]) -> bool {
        from.iter().any(|it| self.tensors[*it].0 != self.tensors[out[0]].0)
    }

    fn stream_text(&self, it: Stream, index: usize) -> String {
        format!("Stream {}", it.map_or_else(|| "s0".to_owned(), |it| it.text(index, self.ranks)))
    }

    fn statement_text(&self, stmt: &Stmt, index: usize) -> Vec<String> {
        let one = |it: String| vec![it];
        match stmt {
            Stmt::Sync(it) => one(format!("Synchronize({})", self.stream_text(*it, index))),
            Stmt::HostSync => one("Synchronize(host)".to_owned()),
            Stmt::Allocate { tensor, zero } => {
                let memory = if self.tensors[*tensor].1 == Role::Symmetric { "symmetric" } else { "global" };
                one(format!("T{tensor} = ALLOCATE(mem_type={memory}, zero_init={zero})"))
            }
            Stmt::Free(it) => one(format!("Deallocate {{ T{it} }}")),
            Stmt::Compute { out, from } => {
                match (&out[..], &from[..]) {
                    ([out], [from]) if !self.is_opaque(&[*out], &[*from]) => one(format!("T{out} = neg(T{from})")),
                    ([out], [one_of, other]) if !self.is_opaque(&[*out], from) => {
                        one(format!("T{out} = T{one_of} + T{other};"))
                    }
                    _ => one(format!(
                        "LaunchKernel( Group ID: 0, Inputs: {{{}}}, Outputs: {{{}}}, )",
                        tensors(from.iter().copied()),
                        tensors(out.iter().copied())
                    )),
                }
            }
            Stmt::Select { out, of, index: at } => one(format!(
                "T{out} = HirAliasSelect( T{of}, axis = iS{}{{{}}}, index = {} )",
                2 * of,
                self.ranks,
                at.text(index, self.ranks)
            )),
            Stmt::View { out, of } => one(format!("T{out} = SymmetricContiguousView(T{of})")),
            Stmt::Collective { number, kind, team, root, input, output } => {
                let team: Vec<String> = team.iter().map(usize::to_string).collect();
                let (count, team) = (team.len(), team.join(" "));
                if let Kind::CollectivePermute(by) = kind {
                    return one(format!(
                        "CollectivePermute {number} (team=({team}), send_peer=( ( rank + {by} ) % {count} ), recv_peer=( ( rank + {} ) % {count} ), input=T{input}, output=T{output}, backend=NCCL)",
                        count - by
                    ));
                }
                let root = if kind.has_root() { format!(", root={root}") } else { String::new() };
                let reduces = matches!(kind, Kind::Allreduce | Kind::ReduceScatter | Kind::Reduce);
                let op = if reduces { ", red_op=SUM" } else { "" };
                one(format!(
                    "Communication {number} (type={kind:?}, team=({team}){root}{op}, input=T{input}, output=T{output}, backend=NCCL)"
                ))
            }
            Stmt::Post(it) => one(self.side_text(it, index)),
            Stmt::Group { number, sides } => {
                let sides = sides.iter().map(|it| self.side_text(it, index));
                let first = ["StartCoalescing".to_owned()].into_iter();
                first.chain(sides).chain([format!("EndCoalescing {number}")]).collect()
            }
            Stmt::Share(sides) => {
                let sides: Vec<String> = sides.iter().map(|it| self.side_text(it, index)).collect();
                one(format!("ShareMemHandles({})", sides.join(", ")))
            }
            Stmt::Wait(number) => one(format!("Wait(Communication {number})")),
        }
    }

    fn side_text(&self, it: &Side, index: usize) -> String {
        let kind = if it.sends { "send" } else { "recv" };
        let backend = match it.puts {
            None => "NCCL",
            Some(false) => "CUDA, protocol=get",
            Some(true) => "CUDA, protocol=put",
        };
        let (number, buffer, peer) = (it.number, it.buffer, it.peer.text(index, self.ranks));
        format!("P2PCommunication {number} (type={kind}, buffer=T{buffer}, peer={peer}, backend={backend})")
    }
}

impl Kind {
    /// Returns whether a member is the root.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv)
    }
}

fn tensors(all: impl Iterator<Item = usize>) -> String {
    all.map(|it| format!("T{it}")).collect::<Vec<_>>().join(", ")
}
