//! Mutations of the texts of programs, one edit each: of a token, of all equal tokens, or of a line. The tokens
//! that replace others come from a corpus of programs. The same seed gives the same mutations.

use std::{collections::BTreeSet, ops::Range};

use crate::rng::Rng;

/// What an edit does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Edit {
    /// Removes a token.
    Delete,
    /// Writes a token twice.
    Duplicate,
    /// Swaps two neighbours.
    Swap,
    /// Replaces a token by another one of its class.
    Replace(Class),
    /// Replaces a token and all tokens equal to it by another one of its class.
    ReplaceAll(Class),
    /// Removes a line.
    DeleteLine,
    /// Writes a line twice.
    DuplicateLine,
    /// Swaps two neighbouring lines.
    SwapLines,
    /// Inserts a line of another program.
    InsertLine,
    /// Inserts a line of a log.
    InsertLog,
}

/// The class of a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// `T3`, alone or at the beginning of the text of a tensor.
    Tensor,
    /// The memory space of a tensor, such as `_g`.
    Memory,
    /// An element type.
    Type,
    /// The kind of an axis, such as `iS` or `ideviceIdx.x`.
    Axis,
    /// A number.
    Number,
    /// A word of the grammar, such as `FOR`.
    Keyword,
    /// Any other word: operators, attributes, their values, and scalars.
    Name,
    /// Brackets, commas and operators.
    Mark,
}

/// All edits, in the order of tables.
pub const EDITS: [Edit; 21] = [
    Edit::Delete,
    Edit::Duplicate,
    Edit::Swap,
    Edit::Replace(Class::Tensor),
    Edit::Replace(Class::Memory),
    Edit::Replace(Class::Type),
    Edit::Replace(Class::Axis),
    Edit::Replace(Class::Number),
    Edit::Replace(Class::Keyword),
    Edit::Replace(Class::Name),
    Edit::Replace(Class::Mark),
    Edit::ReplaceAll(Class::Tensor),
    Edit::ReplaceAll(Class::Type),
    Edit::ReplaceAll(Class::Axis),
    Edit::ReplaceAll(Class::Number),
    Edit::ReplaceAll(Class::Name),
    Edit::DeleteLine,
    Edit::DuplicateLine,
    Edit::SwapLines,
    Edit::InsertLine,
    Edit::InsertLog,
];

/// The words of the grammar.
const KEYWORDS: &[&str] = &[
    "%HostIrContainer",
    "%options",
    "%tensor",
    "FOR",
    "IF",
    "ELSE",
    "Manual",
    "Stream",
    "in",
    "from",
    "to",
    "Domains",
    "Index",
    "definitions",
    "DeviceMesh",
    "logical",
    "allocation",
    "split",
    "outer_split",
    "merge",
];

/// The beginnings of axes, longer ones first.
const AXIS_KINDS: &[&str] = &[
    "ideviceIdx.",
    "rdeviceIdx.",
    "bdeviceIdx.",
    "istreamIdx",
    "rstreamIdx",
    "bstreamIdx",
    "iS",
    "rS",
    "bS",
];

/// Lines that logs insert between those of a program.
const LOG_LINES: &[&str] = &[
    "node3:1234:1234 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>",
    "/usr/lib/python3/site.py:12: UserWarning: the fuser is disabled",
    "  warnings.warn(",
    "[W1125 10:11:12.131415 ProcessGroupNCCL.cpp:981] Warning: a device is guessed",
    "[rank1]: Traceback (most recent call last):",
    "INFO 2026-11-25 10:11:12 worker.py:88] step 3, loss 0.25",
    "srun: job 1234 queued and waiting for resources",
];

/// A token of a text.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its place.
    pub place: Range<usize>,
    /// Its class.
    pub class: Class,
}

/// The tokens and lines of some programs, which replace those of others.
#[derive(Default)]
pub struct Corpus {
    words: [Vec<String>; 8],
    lines: Vec<String>,
}

impl Corpus {
    /// Collects the tokens and lines of some texts. The words of the grammar are always part of it.
    pub fn of<'t>(texts: impl Iterator<Item = &'t str>) -> Self {
        let mut words: [BTreeSet<String>; 8] = Default::default();
        let mut lines = BTreeSet::new();
        for text in texts {
            for it in tokens(text) {
                words[it.class as usize].insert(text[it.place].to_owned());
            }
            let is_line = |it: &&str| !it.trim().is_empty() && !it.starts_with("//") && it.len() < 400;
            lines.extend(text.lines().filter(is_line).map(str::to_owned));
        }
        words[Class::Keyword as usize].extend(KEYWORDS.iter().map(|it| (*it).to_owned()));
        Self { words: words.map(|it| it.into_iter().collect()), lines: lines.into_iter().collect() }
    }
}

/// Returns a text with one edit, or `None` if the edit does not apply to it or changes nothing.
pub fn edited(text: &str, edit: Edit, corpus: &Corpus, rng: &mut Rng) -> Option<String> {
    let all = tokens(text);
    let changed = match edit {
        Edit::Delete => {
            let it = all.get(rng.below(all.len()))?;
            with(text, &[(it.place.clone(), "")])
        }
        Edit::Duplicate => {
            let it = all.get(rng.below(all.len()))?;
            let twice = format!("{0} {0}", &text[it.place.clone()]);
            with(text, &[(it.place.clone(), &twice)])
        }
        Edit::Swap => {
            let at = rng.below(all.len().saturating_sub(1));
            let [a, b] = [all.get(at)?.place.clone(), all.get(at + 1)?.place.clone()];
            with(text, &[(a.clone(), &text[b.clone()]), (b, &text[a])])
        }
        Edit::Replace(class) | Edit::ReplaceAll(class) => {
            let own: Vec<&Token> = all.iter().filter(|it| it.class == class).collect();
            let old = own.get(rng.below(own.len()))?.place.clone();
            let new = rng.choose_cloned(&corpus.words[class as usize]);
            let is_meant = |it: &&&Token| match edit {
                Edit::ReplaceAll(_) => text[it.place.clone()] == text[old.clone()],
                _ => it.place == old,
            };
            let places = own.iter().filter(is_meant).map(|it| (it.place.clone(), new.as_str()));
            with(text, &places.collect::<Vec<_>>())
        }
        Edit::DeleteLine | Edit::DuplicateLine | Edit::SwapLines | Edit::InsertLine | Edit::InsertLog => {
            let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
            let own: Vec<usize> = (0..lines.len()).filter(|at| !lines[*at].starts_with("//")).collect();
            let at = *own.get(rng.below(own.len()))?;
            let mut line = match edit {
                Edit::InsertLine => rng.choose_cloned(&corpus.lines),
                _ => rng.choose_cloned(LOG_LINES).to_owned(),
            };
            line.push('\n');
            match edit {
                Edit::DeleteLine => drop(lines.remove(at)),
                Edit::DuplicateLine => lines.insert(at, lines[at]),
                Edit::SwapLines if at + 1 < lines.len() => lines.swap(at, at + 1),
                Edit::SwapLines => return None,
                _ => lines.insert(at, &line),
            }
            lines.concat()
        }
    };
    (changed != text).then_some(changed)
}

/// Returns a text with other texts at some places, which are in order.
fn with(text: &str, changes: &[(Range<usize>, &str)]) -> String {
    let (mut changed, mut end) = (String::with_capacity(text.len() + 16), 0);
    for (place, new) in changes {
        changed += &text[end..place.start];
        changed += new;
        end = place.end;
    }
    changed + &text[end..]
}

/// Returns the tokens of a text, without those of comments.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.find("//").map_or(line, |at| &line[..at]);
        tokens_of_line(code, start, &mut found);
        start += line.len();
    }
    found
}

fn tokens_of_line(line: &str, base: usize, found: &mut Vec<Token>) {
    let mut at = 0;
    let mut add = |at: usize, len: usize, class: Class| {
        found.push(Token { place: base + at..base + at + len, class });
    };
    while let Some(first) = line[at..].chars().next() {
        let rest = &line[at..];
        let digits = |it: &str| it.bytes().take_while(u8::is_ascii_digit).count();
        let word = rest.bytes().take_while(|it| it.is_ascii_alphanumeric() || *it == b'_').count();
        let tensor = rest.strip_prefix('T').map_or(0, digits);
        if first.is_whitespace() {
            at += first.len_utf8();
        } else if let Some(kind) = AXIS_KINDS.iter().find(|it| rest.starts_with(**it)) {
            let len = kind.len() + usize::from(kind.ends_with('.'));
            add(at, len.min(rest.len()), Class::Axis);
            at += len;
        } else if tensor > 0 && (word == tensor + 1 || rest.as_bytes()[tensor + 1] == b'_') {
            add(at, tensor + 1, Class::Tensor);
            at += tensor + 1;
            if word > tensor + 1 {
                // `_g_float`
                let space = (word - tensor - 1).min(2);
                add(at, space, Class::Memory);
                at += space;
                if word > tensor + 2 + space {
                    add(at + 1, word - tensor - 2 - space, Class::Type);
                    at += word - tensor - 1 - space;
                }
            }
        } else if first.is_ascii_digit() {
            let len = digits(rest);
            add(at, len, Class::Number);
            at += len;
        } else if rest.starts_with('%') && rest[1..].starts_with(|it: char| it.is_ascii_alphabetic()) {
            let len = 1 + rest[1..].bytes().take_while(u8::is_ascii_alphanumeric).count();
            add(at, len, Class::Keyword);
            at += len;
        } else if word > 0 {
            let is_keyword = KEYWORDS.contains(&&rest[..word]);
            add(at, word, if is_keyword { Class::Keyword } else { Class::Name });
            at += word;
        } else {
            let two = rest.get(..2).filter(|it| ["->", "==", "!=", "<=", ">=", "&&", "||"].contains(it));
            let len = two.map_or(first.len_utf8(), str::len);
            add(at, len, Class::Mark);
            at += len;
        }
    }
}
