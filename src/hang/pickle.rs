//! Reads a pickle into values. It executes nothing: an opcode that could create an object or call a function is an error.
//!
//! The opcodes are those of the pickler of PyTorch (protocol 2) and those with which Python's `pickle` writes the same values
//! in protocols 2 to 5. A reader of our own, because dumps fetch equal strings and stacks from the memo, and the crates that read pickles copy
//! what they fetch.

use crate::value::{Id, Items, Node, TooManyValues, Values};

/// Why bytes are not a pickle of plain values.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PickleError {
    #[error("the pickle ends at byte {0} without its end: the file is cut off")]
    CutOff(usize),
    #[error(
        "byte {at} is the pickle opcode {opcode:#04x}, which no dump of the flight recorder contains; hir does not execute pickles"
    )]
    Opcode { at: usize, opcode: u8 },
    #[error("byte {at}: {what}")]
    Malformed { at: usize, what: &'static str },
    #[error(transparent)]
    TooManyValues(#[from] TooManyValues),
}

/// Reads the one value of a pickle, which has at most so many values.
///
/// # Errors
/// Other opcodes than those of plain values, and bytes that are no pickle.
pub(crate) fn read(bytes: &[u8], most: Option<usize>) -> Result<(Values, Id), PickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        values: Values::with_limit(most),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    let root = machine.run()?;
    Ok((machine.values, root))
}

struct Machine<'b> {
    bytes: &'b [u8],
    at: usize,
    values: Values,
    stack: Vec<Id>,
    /// The heights of the stack at the marks.
    marks: Vec<usize>,
    memo: Vec<Option<Id>>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            let at = self.at;
            match self.take(1)?[0] {
                // PROTO, FRAME: their arguments change nothing for a reader of a whole file.
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'}' => self.push(Node::Dict(Items::default()))?,
                b']' => self.push(Node::List(Items::default()))?,
                b')' => self.push(Node::List(Items::default()))?,
                b'u' | b'e' => {
                    let from = self.mark()?;
                    self.append(from)?;
                }
                b's' => self.append(self.stack.len().saturating_sub(2))?,
                b'a' => self.append(self.stack.len().saturating_sub(1))?,
                b't' => {
                    let from = self.mark()?;
                    self.tuple(from)?;
                }
                count @ 0x85..=0x87 => {
                    let from = self.stack.len().checked_sub(usize::from(count - 0x84));
                    let from =
                        from.ok_or(PickleError::Malformed { at, what: "a tuple has too few items" })?;
                    self.tuple(from)?;
                }
                b'X' => {
                    let size = self.number::<4>()?;
                    self.text(size)?;
                }
                0x8c => {
                    let size = self.number::<1>()?;
                    self.text(size)?;
                }
                0x8d => {
                    let size = self.number::<8>()?;
                    self.text(size)?;
                }
                b'J' => {
                    let value = self.number::<4>()? as u32 as i32;
                    self.push(Node::Int(i64::from(value)))?;
                }
                b'K' => self.integer::<1>()?,
                b'M' => self.integer::<2>()?,
                0x8a => self.long()?,
                b'G' => {
                    self.take(8)?;
                    self.push(Node::Float)?;
                }
                b'N' => self.push(Node::None)?,
                0x88 => self.push(Node::Bool(true))?,
                0x89 => self.push(Node::Bool(false))?,
                b'q' => {
                    let slot = self.number::<1>()?;
                    self.remember(slot)?;
                }
                b'r' => {
                    let slot = self.number::<4>()?;
                    self.remember(slot)?;
                }
                0x94 => self.remember(self.memo.len() as u64)?,
                b'h' => {
                    let slot = self.number::<1>()?;
                    self.recall(slot)?;
                }
                b'j' => {
                    let slot = self.number::<4>()?;
                    self.recall(slot)?;
                }
                opcode => return Err(PickleError::Opcode { at, opcode }),
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], PickleError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(PickleError::CutOff(self.bytes.len()))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Reads a number in little-endian order.
    fn number<const N: usize>(&mut self) -> Result<u64, PickleError> {
        Ok(self.take(N)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn integer<const N: usize>(&mut self) -> Result<(), PickleError> {
        let value = self.number::<N>()? as i64;
        self.push(Node::Int(value))
    }

    /// An integer of any length in two's complement. Those of dumps fit into 64 bits.
    fn long(&mut self) -> Result<(), PickleError> {
        let at = self.at;
        let size = self.number::<1>()? as usize;
        let bytes = self.take(size)?;
        if size > 8 {
            return Err(PickleError::Malformed { at, what: "an integer has more than 64 bits" });
        }
        let fill = if bytes.last().is_some_and(|it| *it >= 0x80) { -1 } else { 0 };
        let value = bytes.iter().rev().fold(fill, |value: i64, byte| value << 8 | i64::from(*byte));
        self.push(Node::Int(value))
    }

    fn text(&mut self, size: u64) -> Result<(), PickleError> {
        let at = self.at;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let end = at.checked_add(size).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(PickleError::CutOff(self.bytes.len()))?;
        self.at = end;
        // Paths of files may have any bytes.
        let text = String::from_utf8_lossy(&self.bytes[at..end]);
        let id = self.values.push_text(&text)?;
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, node: Node) -> Result<(), PickleError> {
        let id = self.values.push(node)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let at = self.at;
        self.stack
            .pop()
            .ok_or(PickleError::Malformed { at, what: "an opcode needs a value and there is none" })
    }

    fn mark(&mut self) -> Result<usize, PickleError> {
        let at = self.at;
        let mark = self.marks.pop().filter(|it| *it <= self.stack.len());
        mark.ok_or(PickleError::Malformed { at, what: "an opcode needs a mark and there is none" })
    }

    fn tuple(&mut self, from: usize) -> Result<(), PickleError> {
        let mut items = Items::default();
        self.values.extend(&mut items, &self.stack[from..])?;
        self.stack.truncate(from);
        self.push(Node::List(items))
    }

    /// Adds the values of the stack above `from` to the list or dictionary below them.
    fn append(&mut self, from: usize) -> Result<(), PickleError> {
        let at = self.at;
        let fault = PickleError::Malformed {
            at,
            what: "values are added to something that is no list or dictionary",
        };
        let Some(target) = from.checked_sub(1).and_then(|it| self.stack.get(it).copied()) else {
            return Err(fault);
        };
        let mut items = match self.values.node(target) {
            Node::List(items) | Node::Dict(items) => *items,
            _ => return Err(fault),
        };
        self.values.extend(&mut items, &self.stack[from..])?;
        if let Some(Node::List(it) | Node::Dict(it)) = self.values.node_mut(target) {
            *it = items;
        }
        self.stack.truncate(from);
        Ok(())
    }

    fn remember(&mut self, slot: u64) -> Result<(), PickleError> {
        let at = self.at;
        // Picklers number their slots one after the other, and each has a value of its own.
        let slot = usize::try_from(slot).ok().filter(|it| *it <= self.values.count());
        let (Some(slot), Some(value)) = (slot, self.stack.last()) else {
            return Err(PickleError::Malformed { at, what: "a memo slot is out of range" });
        };
        if slot >= self.memo.len() {
            self.memo.resize(slot + 1, None);
        }
        self.memo[slot] = Some(*value);
        Ok(())
    }

    fn recall(&mut self, slot: u64) -> Result<(), PickleError> {
        let at = self.at;
        let value = usize::try_from(slot).ok().and_then(|it| self.memo.get(it).copied().flatten());
        self.stack.push(value.ok_or(PickleError::Malformed { at, what: "a memo slot is empty" })?);
        Ok(())
    }
}
