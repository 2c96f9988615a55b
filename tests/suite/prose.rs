//! Counts the words of README.md, CONTRIBUTING.md and the pages in `docs/`: those of a sentence, on average, and of all pages.
//!
//! A code span is one word, and a link counts by its text. Headings, code blocks, pictures and comments do not count. A
//! sentence ends at `.`, `!` or `?` before a blank, and at the end of a paragraph, an item of a list or a cell of a table.

use std::fs;

use libtest_mimic::{Failed, Trial};

use crate::{pages::pages, shown};

/// The most words of a sentence, of the sentences of a page on average, of README.md, and of all pages in `docs/`.
const LIMITS: (usize, usize, usize, usize) = (30, 18, 700, 48_000);

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let sentences = Trial::test("prose::sentences_are_short", sentences_are_short);
    vec![sentences, Trial::test("prose::pages_are_short", pages_are_short)]
}

fn sentences_are_short() -> Result<(), Failed> {
    let mut faults = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page)?;
        // The sentences of paragraphs and of items of lists, and their words.
        let (mut sentences, mut words) = (0, 0);
        for block in blocks(&text) {
            for (line, sentence) in block.sentences() {
                let count = sentence.split(' ').filter(|it| it.contains(char::is_alphanumeric)).count();
                if count > LIMITS.0 {
                    faults.push(format!("{}:{line}: {count} words: {sentence}", shown(&page)));
                }
                if !block.is_cell && (is_end(&sentence) || sentence.ends_with(':')) {
                    (sentences, words) = (sentences + 1, words + count);
                }
            }
        }
        if words > sentences * LIMITS.1 {
            faults.push(format!("{}: {words} words in {sentences} sentences", shown(&page)));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

fn pages_are_short() -> Result<(), Failed> {
    let (mut readme, mut docs) = (0, 0);
    for page in pages() {
        let words = fs::read_to_string(&page)?.split_whitespace().count();
        if page.ends_with("README.md") {
            readme = words;
        } else if !page.ends_with("CONTRIBUTING.md") {
            docs += words;
        }
    }
    let are_short = readme <= LIMITS.2 && docs <= LIMITS.3;
    let fault = format!("README.md has {readme} words, the pages in docs/ have {docs}; see {LIMITS:?}");
    if are_short { Ok(()) } else { Err(fault.into()) }
}

/// A paragraph, an item of a list, or a cell of a table.
struct Block {
    line: usize,
    text: String,
    is_cell: bool,
}

impl Block {
    /// Returns the sentences of the block, each with its line.
    fn sentences(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut is_open = false;
        for (line, text) in (self.line..).zip(plain(&self.text).split('\n')) {
            for word in text.split_whitespace() {
                match found.last_mut().filter(|_| is_open) {
                    Some((_, sentence)) => sentence.push_str(&format!(" {word}")),
                    None => found.push((line, word.to_owned())),
                }
                is_open = !is_end(word);
            }
        }
        found
    }
}

fn is_end(text: &str) -> bool {
    text.trim_end_matches([')', '"', '*', '_', '”']).ends_with(['.', '!', '?'])
        && !["e.g.", "i.e.", "etc.", "vs.", "cf."].iter().any(|it| text.ends_with(it))
}

/// Returns the paragraphs, items and cells of a page.
fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    // The fence that ends the code block, and whether the next line continues the block.
    let (mut fence, mut is_open) = (None, false);
    for (line, text) in (1..).zip(without_comments(text).lines()) {
        let text = text.trim().trim_start_matches(['>', ' ']);
        let mark = ["```", "~~~"].into_iter().find(|it| text.starts_with(it));
        if fence.is_some() || mark.is_some() || text.is_empty() || text.starts_with('#') {
            is_open = false;
            fence = if fence.is_none() { mark } else { fence.filter(|_| mark != fence) };
        } else if text.starts_with('|') {
            is_open = false;
            let cells = text.trim_matches('|').split('|').map(str::trim);
            found.extend(cells.map(|it| Block { line, text: it.to_owned(), is_cell: true }));
        } else {
            let number = text.trim_start_matches(|it: char| it.is_ascii_digit());
            let item = ["- ", "* ", "+ "].iter().find_map(|it| text.strip_prefix(it));
            let item = item.or_else(|| number.strip_prefix(". ").filter(|_| number != text));
            match found.last_mut().filter(|_| is_open && item.is_none()) {
                Some(block) => block.text.push_str(&format!("\n{text}")),
                None => found.push(Block { line, text: item.unwrap_or(text).to_owned(), is_cell: false }),
            }
            is_open = true;
        }
    }
    found
}

/// Removes the comments that begin a line, but not their line breaks.
fn without_comments(text: &str) -> String {
    let mut parts = text.split("\n<!--");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let (comment, rest) = part.split_once("-->").unwrap_or((part, ""));
        done + "\n" + &"\n".repeat(comment.matches('\n').count()) + rest
    })
}

/// Replaces code spans by one word and links by their text, and removes pictures and tags.
fn plain(text: &str) -> String {
    let Some(at) = text.find(['`', '[', '<', '!']) else { return text.to_owned() };
    let (before, rest) = text.split_at(at);
    let ticks = &rest[..rest.len() - rest.trim_start_matches('`').len()];
    let code = rest[ticks.len()..].split_once(ticks).filter(|_| !ticks.is_empty());
    let is_picture = rest.starts_with("![");
    let link = rest.strip_prefix(if is_picture { "![" } else { "[" }).and_then(|it| it.split_once("]("));
    let link = link.and_then(|(name, rest)| Some((name, rest.split_once(')')?.1)));
    let tag =
        rest.strip_prefix('<').and_then(|it| it.split_once('>')).filter(|it| !it.0.contains(['\n', ' ']));
    match (code, link, tag) {
        (Some((code, rest)), ..) => {
            format!("{before}X{}{}", "\n".repeat(code.matches('\n').count()), plain(rest))
        }
        (_, Some((_, rest)), _) if is_picture => format!("{before}{}", plain(rest)),
        (_, Some((name, rest)), _) => format!("{before}{}{}", plain(name), plain(rest)),
        (.., Some((_, rest))) => format!("{before}{}", plain(rest)),
        _ => format!("{before}{}{}", &rest[..1], plain(&rest[1..])),
    }
}
