//! Small programs of several ranks, and their text.
//!
//! A program is a list of items. Each has the ranks that execute it and the stream that is current there, so that an item can be inserted,
//! removed or moved without others. The text selects streams and has branches where they are needed.

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

    /// Returns the text.
    pub fn text(self, index: usize, ranks: usize) -> String {
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
    Allocate {
        tensor: usize,
        zero: bool,
    },
    Free(usize),
    Compute {
        out: Vec<usize>,
        from: Vec<usize>,
    },
    /// Binds a name to the part of a tensor with an index.
    Select {
        out: usize,
        of: usize,
        index: Scalar,
    },
    /// Binds a name to the shards of all ranks.
    View {
        out: usize,
        of: usize,
    },
    Collective {
        number: usize,
        kind: Kind,
        team: Vec<usize>,
        root: usize,
        input: usize,
        output: usize,
    },
    Post(Side),
    Group {
        number: usize,
        sides: Vec<Side>,
    },
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

    /// Returns the program with other numbers for tensors that are neither inputs nor outputs.
    pub fn with_own_tensors(&self) -> Self {
        let mut result = self.clone();
        let (own, count) = (&self.tensors, self.tensors.len());
        result.tensors.extend_from_slice(own);
        let change = |it: &mut usize| {
            if !matches!(own[*it].1, Role::Input | Role::Output) {
                *it += count;
            }
        };
        for node in &mut result.nodes {
            let items = match node {
                Node::One(it) => std::slice::from_mut(it),
                Node::Loop(_, body) => body,
            };
            items.iter_mut().for_each(|it| it.stmt.for_each_tensor(change));
        }
        result
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
        let executed =
            |(place, index, stream)| Some(Executed { place, index, stream, stmt: &self.item(place)?.stmt });
        all.into_iter().filter_map(executed).collect()
    }
}

impl Stmt {
    fn for_each_tensor(&mut self, change: impl Fn(&mut usize)) {
        match self {
            Self::Sync(_) | Self::HostSync | Self::Wait(_) => (),
            Self::Allocate { tensor, .. } | Self::Free(tensor) => change(tensor),
            Self::Compute { out, from } => out.iter_mut().chain(from).for_each(change),
            Self::Select { out, of, .. } | Self::View { out, of } => [out, of].into_iter().for_each(change),
            Self::Collective { input, output, .. } => [input, output].into_iter().for_each(change),
            Self::Post(it) => change(&mut it.buffer),
            Self::Group { sides, .. } | Self::Share(sides) => {
                sides.iter_mut().for_each(|it| change(&mut it.buffer));
            }
        }
    }
}

impl Kind {
    /// Returns whether a member is the root.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv)
    }

    /// Returns whether a member receives data. Only then it needs an output.
    pub fn receives(self, is_root: bool) -> bool {
        match self {
            Self::Reduce | Self::Gather => is_root,
            Self::SendRecv => !is_root,
            _ => true,
        }
    }
}
