//! Walks over the lines of a log and collects the dumps.

use std::{collections::hash_map::Entry, hash::Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::{
    CompleteText, ContainerText, FusionDump, FusionLog, Group, Lists, TensorTransforms, TransformKind,
    TransformLine, Value,
};
use crate::{
    dump_cleanup::{closes_container, container_start},
    files::FILE_MARK,
    scan::scan,
    span::Span,
    token::{ScanLimit, Source, TokenKind},
};

/// Begins the first line of a dump.
const DUMP: &str = "Segmented_Fusion Dump: --";
/// Begins the complete fusion.
const COMPLETE_FUSION: &str = "Segmented_Fusion Dump: -- Re-written complete fusion";
/// Begins the segments.
const SEGMENTS: &str = "Segmented_Fusion{";
/// Ends the segments.
const SEGMENTS_END: &str = "} //Segmented_Fusion";
/// Ends the complete fusion.
const COMPLETE_FUSION_END: &str = "} // {Re-written complete fusion}";

pub(super) struct Finder<'s> {
    source: &'s str,
    /// The offset of the next line.
    at: usize,
    dumps: Vec<FusionDump<'s>>,
    /// The complete fusion whose segments may follow.
    complete: Option<FusionDump<'s>>,
    /// The containers so far.
    containers: Vec<ContainerText>,
    /// The names of the files that the command line gives, up to that of the lines.
    files: Vec<&'s str>,
}

/// A line without the blanks around it.
#[derive(Clone, Copy)]
struct Line<'s> {
    text: &'s str,
    span: Span,
}

impl<'s> Finder<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self { source, at: 0, dumps: Vec::new(), complete: None, containers: Vec::new(), files: Vec::new() }
    }

    pub(super) fn find(mut self) -> FusionLog<'s> {
        // HostUnits have kernels, too.
        let mut is_in_container = false;
        let mut hasher = FxHasher::default();
        while let Some(line) = self.peek() {
            if line.text.starts_with(COMPLETE_FUSION) {
                self.advance();
                is_in_container = false;
                self.fusion(line);
            } else if line.text.starts_with(DUMP) || line.text.starts_with(SEGMENTS) || is_heading(line.text)
            {
                is_in_container = false;
                self.segments(line);
            } else if let Some(name) = line.text.strip_prefix(FILE_MARK) {
                self.dumps.extend(self.complete.take());
                self.files.push(name.trim());
                is_in_container = false;
                self.advance();
            } else if is_in_container {
                hash_line(line.text, &mut hasher);
                if let Some(last) = self.containers.last_mut().filter(|_| self.files.is_empty()) {
                    last.hash = hasher.finish();
                }
                is_in_container = !closes_container(line.text);
                self.advance();
            } else if is_list(line.text, "Inputs") || line.text.starts_with("%kernel") {
                self.fusion(line);
            } else {
                is_in_container = container_start(line.text) == Some(0);
                if is_in_container {
                    // The segments of a complete fusion stand before the container.
                    self.dumps.extend(self.complete.take());
                    hasher = FxHasher::default();
                    hash_line(line.text, &mut hasher);
                    let it = ContainerText { start: line.span.start, hash: hasher.finish() };
                    self.containers.extend(Some(it).filter(|_| self.files.is_empty()));
                }
                self.advance();
            }
        }
        self.dumps.extend(self.complete.take());
        for dump in &mut self.dumps {
            for (at, group) in dump.groups.iter().enumerate() {
                if let Some((id, _)) = group.id {
                    dump.groups_by_id.entry(id).or_default().push(at);
                }
            }
        }
        let Self { dumps, containers, files, .. } = self;
        FusionLog { dumps, containers, ranks: Vec::new(), files }
    }

    fn dump(&self, span: Span) -> FusionDump<'s> {
        FusionDump {
            span,
            containers_before: self.containers.len(),
            file: self.files.len().checked_sub(1),
            ..FusionDump::default()
        }
    }

    /// Returns the next line.
    fn peek(&self) -> Option<Line<'s>> {
        let rest = self.source.get(self.at..).filter(|it| !it.is_empty())?;
        let line = rest.split('\n').next().unwrap_or("");
        let text = line.trim();
        let start = self.at + line.len() - line.trim_start().len();
        Some(Line { text, span: Span::new(start, start + text.len()) })
    }

    fn advance(&mut self) {
        let rest = self.source.get(self.at..).unwrap_or("");
        self.at += rest.find('\n').map_or(rest.len(), |it| it + 1);
    }

    /// Returns whether a line begins what cannot be inside a fusion.
    fn ends_fusion(line: Line<'_>) -> bool {
        line.text.starts_with(DUMP)
            || line.text.starts_with(SEGMENTS)
            || is_heading(line.text)
            || line.text.starts_with(FILE_MARK)
            || container_start(line.text) == Some(0)
    }

    /// Collects a complete fusion: its lists, its statements and its transforms. `first` is its first line.
    fn fusion(&mut self, first: Line<'s>) {
        let (mut lists, mut target, mut is_listed) = (Lists::default(), None, false);
        let mut kernel = None;
        while let Some(line) = self.peek().filter(|it| !Self::ends_fusion(*it)) {
            self.advance();
            if line.text.starts_with("%kernel") {
                kernel = Some(line);
                break;
            }
            match line.text {
                it if is_list(it, "Inputs") => (target, is_listed) = (Some(&mut lists.inputs), true),
                it if is_list(it, "Outputs") => target = Some(&mut lists.outputs),
                "" => target = None,
                // Another text, not a fusion.
                _ if target.is_none() && is_listed => return,
                _ => target.iter_mut().for_each(|list| list.extend(value(line))),
            }
        }
        let Some(heading) = kernel else { return };
        let (body, cut_at) = self.body(heading);
        let (domains, contradictions) = self.transforms();
        let mut end = self.last_line(heading).span;
        if let Some(line) = self.peek().filter(|it| it.text.starts_with(COMPLETE_FUSION_END)) {
            self.advance();
            end = line.span;
        }
        let span = first.span.join(end);
        let io = is_listed.then(|| Lists { inputs: lists.inputs.clone(), outputs: lists.outputs.clone() });
        let complete = CompleteText { heading: heading.span, body, is_whole: cut_at.is_none() };
        // The fusion before segmentation has other casts than its groups.
        let complete = Some(complete).filter(|_| first.text.starts_with(COMPLETE_FUSION));
        let group = Group { id: None, heading: heading.span, lists, body, foreign: Vec::new(), cut_at };
        let groups = if is_listed { vec![group] } else { Vec::new() };
        let dump = FusionDump { io, groups, complete, domains, contradictions, ..self.dump(span) };
        self.dumps.extend(self.complete.replace(dump));
    }

    /// Collects the statements up to the brace that closes their kernel or group, or up to the transforms. Returns also where the
    /// text ends too early, if it does. `heading` is the first line of the kernel or the group.
    fn body(&mut self, heading: Line<'s>) -> (Source<'s>, Option<Span>) {
        let (start, mut cut_at) = (self.at, None);
        let (mut end, mut last) = (start, heading.span);
        loop {
            let Some(line) = self.peek().filter(|it| !Self::ends_fusion(*it)) else {
                break (self.slice(start, end), cut_at.or(Some(last)));
            };
            let closes = line.text == "}" || line.text.starts_with("} //") || is_transform_heading(line.text);
            if closes {
                break (self.slice(start, end), cut_at);
            }
            if line.text == "..." {
                cut_at = cut_at.or(Some(line.span));
            }
            if !line.text.is_empty() {
                last = line.span;
            }
            self.advance();
            end = self.at;
        }
    }

    /// Collects the transforms, and consumes the brace behind them. Returns also where they state the domains of a tensor again,
    /// differently, by its number.
    fn transforms(&mut self) -> (FxHashMap<u32, TensorTransforms<'s>>, FxHashMap<u32, Span>) {
        let mut blocks: Vec<(u32, TensorTransforms<'s>)> = Vec::new();
        if self.peek().is_some_and(|it| is_transform_heading(it.text)) {
            self.advance();
            while let Some(line) = self.peek().filter(|it| !Self::ends_fusion(*it)) {
                if line.text.starts_with('}') {
                    break;
                }
                self.advance();
                if let Some(tensor) = value(line).filter(Value::is_tensor) {
                    let number = tensor.name().get(1..).and_then(|it| it.parse().ok());
                    blocks.extend(number.map(|it| (it, TensorTransforms { tensor, lines: Vec::new() })));
                } else if let Some((_, it)) = blocks.last_mut() {
                    it.lines.extend(transform_line(line));
                }
            }
        }
        if self.peek().is_some_and(|it| it.text.starts_with('}')) {
            self.advance();
        }
        let (mut domains, mut contradictions) = (FxHashMap::default(), FxHashMap::default());
        for (number, block) in blocks {
            match domains.entry(number) {
                Entry::Vacant(it) => _ = it.insert(block),
                Entry::Occupied(it) if it.get().is_same(&block) => (),
                Entry::Occupied(_) => _ = contradictions.insert(number, block.tensor.span),
            }
        }
        (domains, contradictions)
    }

    /// Collects the groups of a segmented fusion, from its first line or from the first line of a group.
    fn segments(&mut self, first: Line<'s>) {
        let mut dump = match self.complete.take() {
            // The complete fusion has the domains; its statements are those of the groups.
            Some(complete) => FusionDump { groups: Vec::new(), ..complete },
            None => self.dump(first.span),
        };
        let mut is_begun = false;
        while let Some(line) = self.peek() {
            let is_next = line.text.starts_with(SEGMENTS) && is_begun
                || line.text.starts_with(DUMP) && (is_begun || !dump.groups.is_empty())
                || line.text.starts_with(COMPLETE_FUSION)
                || line.text.starts_with(FILE_MARK)
                || container_start(line.text) == Some(0);
            if is_next {
                break;
            }
            if is_heading(line.text) {
                dump.groups.push(self.group(line));
                dump.span = dump.span.join(self.last_line(line).span);
                continue;
            }
            is_begun |= line.text.starts_with(SEGMENTS);
            self.advance();
            if line.text.starts_with(SEGMENTS_END) {
                dump.span = dump.span.join(line.span);
                break;
            }
            // A part of a dump without its first and last line.
            let is_part = !is_begun && !first.text.starts_with(DUMP);
            if is_part && !line.text.is_empty() && line.text != "..." {
                break;
            }
        }
        self.dumps.push(dump);
    }

    /// Collects a group: its number, its lists and its statements.
    fn group(&mut self, heading: Line<'s>) -> Group<'s> {
        self.advance();
        let (mut id, mut lists, mut target) = (None, Lists::default(), None);
        let (mut is_outputs, mut is_complete, mut foreign) = (false, false, Vec::new());
        while let Some(line) = self.peek().filter(|it| !Self::ends_fusion(*it)) {
            match line.text {
                "" => (),
                it if it.starts_with("group id:") => {
                    let number = it.split_once(':').and_then(|(_, it)| it.trim().parse().ok());
                    id = number.map(|number| (number, line.span));
                }
                it if is_list(it, "inputs") => target = Some(&mut lists.inputs),
                it if is_list(it, "outputs") => (target, is_outputs) = (Some(&mut lists.outputs), true),
                // The first line of a statement has no type behind its tensor.
                _ => match value(line).filter(|it| it.dtype.is_some()) {
                    Some(value) => {
                        target.iter_mut().for_each(|list| list.push(value));
                        is_complete = is_outputs;
                    }
                    // The statements begin behind the outputs.
                    None if target.is_some() && !is_complete && !line.text.starts_with(['T', '}']) => {
                        foreign.push(line.span);
                    }
                    None => break,
                },
            }
            self.advance();
        }
        let (body, cut_at) = self.body(heading);
        if self.peek().is_some_and(|it| it.text == "}") {
            self.advance();
        }
        Group { id, heading: heading.span, lists, body, foreign, cut_at }
    }

    fn slice(&self, start: usize, end: usize) -> Source<'s> {
        Source { text: self.source.get(start..end).unwrap_or(""), base: start as u32 }
    }

    /// Returns the line before the next one, or `first` if that is later.
    fn last_line(&self, first: Line<'s>) -> Line<'s> {
        let before = self.source.get(first.span.start as usize..self.at).unwrap_or("").trim_end();
        let text = before.rsplit('\n').next().unwrap_or("").trim_start();
        let end = first.span.start as usize + before.len();
        Line { text, span: Span::new(end - text.len(), end) }
    }
}

/// Returns whether a line begins a group: `g{(pointwise)`, or `g{` without a scheduler. The summaries of groups close their
/// brace.
fn is_heading(line: &str) -> bool {
    line.strip_prefix("g{").is_some_and(|it| it.is_empty() || it.starts_with('(') && it.ends_with(')'))
}

/// Hashes a line of a container without addresses, which differ from rank to rank.
fn hash_line(line: &str, hasher: &mut FxHasher) {
    let mut rest = line.split("0x");
    hasher.write(rest.next().unwrap_or("").as_bytes());
    rest.for_each(|it| hasher.write(it.trim_start_matches(|it: char| it.is_ascii_hexdigit()).as_bytes()));
}

fn is_list(line: &str, key: &str) -> bool {
    line.strip_prefix(key).is_some_and(|it| it.trim_end() == ":")
}

fn is_transform_heading(line: &str) -> bool {
    line.starts_with("TransformPrinter")
}

/// Returns the tensor or scalar that a line consists of, with its type behind it.
fn value(line: Line<'_>) -> Option<Value<'_>> {
    let source = Source { text: line.text, base: line.span.start };
    let (tokens, _) = scan(source, ScanLimit::TextEnd, &mut Vec::new(), &mut Vec::new());
    let (first, rest) = tokens.split_first()?;
    let text = source.slice(first.start, first.end);
    let dtype = match rest.iter().map(|it| it.kind).collect::<Vec<_>>()[..] {
        [] => None,
        [TokenKind::Word, ..] => rest.first(),
        [TokenKind::Comma, TokenKind::Word, ..] => rest.get(1),
        _ => return None,
    };
    // The type can have several words, such as `std::complex<float>`.
    let dtype = dtype.map(|it| source.slice(it.start, line.span.end));
    let is_value = match first.kind {
        TokenKind::Tensor => text.contains('['),
        TokenKind::Word => is_scalar(text),
        _ => false,
    };
    is_value.then_some(Value { text, span: first.span(), dtype })
}

/// Returns whether a word is the name of a scalar: `i5`, `d11`.
fn is_scalar(word: &str) -> bool {
    let digits = word.strip_prefix(|it: char| it.is_ascii_lowercase()).unwrap_or("");
    !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}

/// Returns the kind of a line about a tensor, and the text behind its colon.
fn transform_line(line: Line<'_>) -> Option<TransformLine<'_>> {
    let (head, text) = line.text.split_once(':')?;
    let kind = match head.trim_end() {
        // Until June 2024 the two domains had the second names.
        "logical domain" | "rfactor domain" => TransformKind::Logical,
        "loop domain" | "leaf domain" => TransformKind::Loop,
        "allocation domain" => TransformKind::Allocation,
        "Split" => TransformKind::Split { outer: false },
        "Outer split" => TransformKind::Split { outer: true },
        "Merge" => TransformKind::Merge,
        "Swizzle1D" => TransformKind::Swizzle1D,
        _ => TransformKind::Other,
    };
    let base = line.span.start + (line.text.len() - text.len()) as u32;
    Some(TransformLine { kind, text: Source { text, base } })
}
