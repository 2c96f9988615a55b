//! The values of a dump, as both encodings contain them: an arena in which equal parts are shared, as in a pickle.
//!
//! Invariant: memory is proportional to the bytes of the file. A pickle may fetch one value many times from its memo; it is one
//! node here.

use std::ops::Range;

/// The number of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Id(pub(crate) u32);

/// One value.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// A number with a fraction, which hir does not use.
    Float,
    /// A text: bytes of `Values::text`.
    Text(Range<u32>),
    /// A list or tuple.
    List(Items),
    /// A dictionary: keys and values alternate.
    Dict(Items),
}

/// Consecutive entries of `Values::items`, with room for more.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Items {
    start: u32,
    len: u32,
    room: u32,
}

/// All values of one file.
#[derive(Default)]
pub(crate) struct Values {
    nodes: Vec<Node>,
    items: Vec<Id>,
    text: String,
    /// The most nodes; `None` if the file was not unpacked.
    most: Option<usize>,
}

/// The values do not fit into the numbers of an arena.
#[derive(Debug, thiserror::Error)]
#[error(
    "the file has more values than hir reads: 4 billion, or 6 million and 4 for each byte of a packed file, which can be unpacked"
)]
pub(crate) struct TooManyValues;

impl Values {
    /// Creates an arena of at most so many nodes.
    pub(crate) fn with_limit(most: Option<usize>) -> Self {
        Self { most, ..Self::default() }
    }

    pub(crate) fn push(&mut self, node: Node) -> Result<Id, TooManyValues> {
        if self.most.is_some_and(|most| self.nodes.len() >= most) {
            return Err(TooManyValues);
        }
        let id = u32::try_from(self.nodes.len()).map_err(|_| TooManyValues)?;
        self.nodes.push(node);
        Ok(Id(id))
    }

    pub(crate) fn push_text(&mut self, text: &str) -> Result<Id, TooManyValues> {
        let start = u32::try_from(self.text.len()).map_err(|_| TooManyValues)?;
        self.text.push_str(text);
        let end = u32::try_from(self.text.len()).map_err(|_| TooManyValues)?;
        self.push(Node::Text(start..end))
    }

    /// Adds items to the end of a list or dictionary. Its room doubles, so that the copies are linear in what is added.
    pub(crate) fn extend(&mut self, items: &mut Items, added: &[Id]) -> Result<(), TooManyValues> {
        let begin = items.start as usize;
        let len = items.len as usize + added.len();
        if len > items.room as usize {
            let at = self.items.len();
            let kept = begin..begin + items.len as usize;
            // The first items of a list are usually all of them.
            let room = if items.len == 0 { len } else { len.saturating_mul(2) };
            self.items.extend_from_within(kept);
            self.items.extend_from_slice(added);
            self.items.resize(at + room, Id(0));
            u32::try_from(self.items.len()).map_err(|_| TooManyValues)?;
            *items = Items { start: at as u32, len: len as u32, room: room as u32 };
        } else {
            let at = begin + items.len as usize;
            self.items[at..at + added.len()].copy_from_slice(added);
            items.len = len as u32;
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id.0 as usize).unwrap_or(&Node::None)
    }

    pub(crate) fn node_mut(&mut self, id: Id) -> Option<&mut Node> {
        self.nodes.get_mut(id.0 as usize)
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Text(range) => self.text.get(range.start as usize..range.end as usize),
            _ => None,
        }
    }

    pub(crate) fn list(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::List(items) => Some(self.entries(*items)),
            _ => None,
        }
    }

    /// Returns the keys and values of a dictionary.
    pub(crate) fn dict(&self, id: Id) -> Option<impl Iterator<Item = (&str, Id)>> {
        match self.node(id) {
            Node::Dict(items) => {
                let pairs = self.entries(*items).chunks_exact(2);
                Some(pairs.filter_map(|pair| Some((self.text(pair[0])?, pair[1]))))
            }
            _ => None,
        }
    }

    /// Returns an integer. The text of one counts: PyTorch writes some numbers of its JSON as strings.
    pub(crate) fn int(&self, id: Id) -> Option<i64> {
        match self.node(id) {
            Node::Int(value) => Some(*value),
            Node::Bool(value) => Some(i64::from(*value)),
            Node::Text(_) => self.text(id)?.parse().ok(),
            Node::None | Node::Float | Node::List(_) | Node::Dict(_) => None,
        }
    }

    pub(crate) fn bool(&self, id: Id) -> Option<bool> {
        match self.node(id) {
            Node::Bool(value) => Some(*value),
            Node::Int(value) => Some(*value != 0),
            _ => None,
        }
    }

    /// Returns what kind of value a node is, for messages.
    pub(crate) fn kind(&self, id: Id) -> &'static str {
        match self.node(id) {
            Node::None => "None",
            Node::Bool(_) => "a boolean",
            Node::Int(_) => "an integer",
            Node::Float => "a number with a fraction",
            Node::Text(_) => "a string",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dictionary",
        }
    }

    fn entries(&self, items: Items) -> &[Id] {
        self.items.get(items.start as usize..(items.start + items.len) as usize).unwrap_or_default()
    }
}
