//! Reads tables of [files of SQLite](https://www.sqlite.org/fileformat2.html): whole tables, in the order of their rows. The crates that
//! read such files contain a library in C, or a database of many times this size. No page is read twice, so damaged ones end.

/// How the bytes of a file of SQLite begin.
pub const MAGIC: &[u8] = b"SQLite format 3\0";

/// The pages of a file are damaged, or have a form that exports do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its page {page} is damaged, or has a form that exports do not have: export it again")]
pub struct Damaged {
    /// The page; the first one is 1.
    pub page: u64,
}

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'v> {
    /// An integer.
    Integer(i64),
    /// A text.
    Text(&'v str),
    /// None, or one of another type.
    Other,
}

impl<'v> Value<'v> {
    /// Returns the integer.
    pub fn integer(self) -> Option<i64> {
        if let Self::Integer(it) = self { Some(it) } else { None }
    }

    /// Returns the text.
    pub fn text(self) -> Option<&'v str> {
        if let Self::Text(it) = self { Some(it) } else { None }
    }
}

/// A file.
pub struct Database<'b> {
    bytes: &'b [u8],
    /// The bytes of a page, and those of them that are used.
    page: usize,
    usable: usize,
}

/// Takes a row: its values of the columns that are asked for.
type Visit<'v> = dyn FnMut(&[Value<'_>]) + 'v;

impl<'b> Database<'b> {
    /// Opens a file.
    ///
    /// # Errors
    /// Its header is not one.
    pub fn open(bytes: &'b [u8]) -> Result<Self, Damaged> {
        let header = || {
            let page = match big_endian(bytes, 16, 2)? {
                1 => 65536,
                it => usize::try_from(it).ok()?,
            };
            let usable = page.checked_sub(usize::from(*bytes.get(20)?)).filter(|it| *it >= 480)?;
            let is_utf8 = big_endian(bytes, 56, 4)? == 1;
            (bytes.starts_with(MAGIC) && is_utf8).then_some(Self { bytes, page, usable })
        };
        header().ok_or(Damaged { page: 1 })
    }

    /// Visits the rows of a table; none if the file does not have it. A column that the table does not have is `Other`.
    ///
    /// # Errors
    /// Its pages are damaged.
    pub fn rows(&self, table: &str, columns: &[&str], visit: &mut Visit<'_>) -> Result<(), Damaged> {
        let mut found = None;
        // The first page has the table of all tables: type, name, table, root, text.
        self.walk(1, &mut |number, payload| {
            let mut of = [Value::Other; 5];
            record(number, payload, &[Some(0), Some(1), Some(2), Some(3), Some(4)], None, &mut of)?;
            if let [Value::Text("table"), Value::Text(name), _, Value::Integer(root), Value::Text(text)] = of
                && name == table
            {
                found = Some((root, names(text)));
            }
            Some(())
        })?;
        let Some((root, names)) = found else { return Ok(()) };
        let slots: Vec<Option<usize>> =
            names.0.iter().map(|name| columns.iter().position(|it| it == name)).collect();
        self.walk(root.cast_unsigned(), &mut |number, payload| {
            let mut of = vec![Value::Other; columns.len()];
            record(number, payload, &slots, names.1, &mut of)?;
            visit(&of);
            Some(())
        })
    }

    fn page(&self, number: u64) -> Option<&'b [u8]> {
        let begin = usize::try_from(number.checked_sub(1)?).ok()?.checked_mul(self.page)?;
        self.bytes.get(begin..)?.get(..self.usable)
    }

    /// Visits the rows below a page: number and payload.
    fn walk(&self, root: u64, visit: &mut dyn FnMut(i64, &[u8]) -> Option<()>) -> Result<(), Damaged> {
        let (mut open, mut left) = (vec![root], self.bytes.len() / self.page + 1);
        let mut scratch = Vec::new();
        let mut step = |number: u64, open: &mut Vec<u64>, left: &mut usize| {
            // No page is below itself.
            *left = left.checked_sub(1)?;
            let page = self.page(number)?;
            let header = if number == 1 { 100 } else { 0 };
            let count = big_endian(page, header + 3, 2)? as usize;
            let cell = |at: usize, first: usize| big_endian(page, header + first + 2 * at, 2);
            match *page.get(header)? {
                // Inner pages: pointers to pages, and the last one.
                5 => {
                    open.push(big_endian(page, header + 8, 4)?);
                    for at in (0..count).rev() {
                        open.push(big_endian(page, cell(at, 12)? as usize, 4)?);
                    }
                }
                13 => {
                    for at in 0..count {
                        let mut cell = page.get(cell(at, 8)? as usize..)?;
                        let (size, number) = (variable(&mut cell)?, variable(&mut cell)?);
                        let size = usize::try_from(size).ok()?;
                        visit(number, self.payload(size, cell, &mut scratch, left)?)?;
                    }
                }
                _ => return None,
            }
            Some(())
        };
        while let Some(page) = open.pop() {
            step(page, &mut open, &mut left).ok_or(Damaged { page })?;
        }
        Ok(())
    }

    /// Returns the payload of a cell, put together in `scratch` if it continues on other pages, of which `left` are left.
    fn payload<'s>(
        &self,
        size: usize,
        cell: &'s [u8],
        scratch: &'s mut Vec<u8>,
        left: &mut usize,
    ) -> Option<&'s [u8]> {
        if size <= self.usable - 35 {
            return cell.get(..size);
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let rest = least + (size.checked_sub(least)?) % (self.usable - 4);
        let own = if rest <= self.usable - 35 { rest } else { least };
        scratch.clear();
        scratch.extend_from_slice(cell.get(..own)?);
        let mut next = big_endian(cell, own, 4)?;
        while scratch.len() < size {
            *left = left.checked_sub(1)?;
            let page = self.page(next)?;
            next = big_endian(page, 0, 4)?;
            scratch.extend_from_slice(page.get(4..(4 + size - scratch.len()).min(self.usable))?);
        }
        Some(scratch)
    }
}

/// Reads a row. `slots` has for each column where its value is put, and `key` the column that is the number of the row, which has no value.
fn record<'v>(
    number: i64,
    payload: &'v [u8],
    slots: &[Option<usize>],
    key: Option<usize>,
    values: &mut [Value<'v>],
) -> Option<()> {
    let mut types = payload;
    let header = usize::try_from(variable(&mut types)?).ok()?;
    let mut types = payload.get(payload.len() - types.len()..header)?;
    let mut data = payload.get(header..)?;
    for (column, slot) in slots.iter().enumerate() {
        if types.is_empty() {
            break;
        }
        let kind = variable(&mut types)?;
        let size = match kind {
            0 | 8 | 9 => 0,
            1..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 | 7 => 8,
            _ => usize::try_from(kind.checked_sub(12)? / 2).ok()?,
        };
        let (own, rest) = data.split_at_checked(size)?;
        data = rest;
        let Some(slot) = slot else { continue };
        values[*slot] = match kind {
            0 if key == Some(column) => Value::Integer(number),
            8 | 9 => Value::Integer(kind - 8),
            1..=6 => {
                let shift = 64 - 8 * size;
                Value::Integer((big_endian(own, 0, size)? << shift).cast_signed() >> shift)
            }
            it if it >= 13 && it % 2 == 1 => std::str::from_utf8(own).map_or(Value::Other, Value::Text),
            _ => Value::Other,
        };
    }
    Some(())
}

/// Returns the columns of the text that has created a table, and which of them is the number of the row.
fn names(text: &str) -> (Vec<String>, Option<usize>) {
    let without_comments: String =
        text.lines().flat_map(|it| [it.split("--").next().unwrap_or(""), " "]).collect();
    let inner = without_comments.split_once('(').map_or("", |it| it.1);
    let mut depth = 0_i32;
    let parts = inner.split(|it| {
        depth += i32::from(it == '(') - i32::from(it == ')');
        it == ',' && depth == 0
    });
    let parts: Vec<Vec<&str>> = parts.map(|it| it.split_whitespace().collect()).collect();
    let is_key = |it: &Vec<&str>| {
        it.get(1).is_some_and(|it| it.eq_ignore_ascii_case("INTEGER"))
            && it.windows(2).any(|it| it[0].eq_ignore_ascii_case("PRIMARY") && it[1].starts_with(['K', 'k']))
    };
    let key = parts.iter().position(is_key);
    let name = |it: &Vec<&str>| it.first().map_or("", |it| it.trim_matches(['"', '`', '[', ']'])).to_owned();
    (parts.iter().map(name).collect(), key)
}

fn big_endian(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.get(..size)?;
    Some(bytes.iter().fold(0, |value, it| value << 8 | u64::from(*it)))
}

/// Takes an integer of variable length: seven bits of each byte, and all eight of the ninth.
fn variable(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for at in 0..9 {
        let byte = *bytes.get(at)?;
        let is_last = at == 8 || byte < 128;
        value = if at == 8 { value << 8 | u64::from(byte) } else { value << 7 | u64::from(byte & 127) };
        if is_last {
            *bytes = &bytes[at + 1..];
            return Some(value.cast_signed());
        }
    }
    None
}
