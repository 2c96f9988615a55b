//! Finds the dumps of fusions in a log: what nvFuser prints with `NVFUSER_DUMP=segmented_fusion`.
//!
//! A dump consists of the complete fusion, whose `TransformPrinter` part states the domains of all tensors, and of the groups
//! that became kernels or statements of the container. Groups and tensors have the numbers of the container. Only lines are
//! found here; `resolve` parses the statements of those groups that a container launches.
//!
//! Invariant: finding takes linear time, and nothing is reported. Text that cannot be recognized belongs to no dump.

mod finder;

use rustc_hash::FxHashMap;

use crate::{files::FILE_MARK, span::Span, token::Source};

/// A dump of one fusion.
#[derive(Debug, Default)]
pub(crate) struct FusionDump<'s> {
    /// From its first line to its last one.
    pub(crate) span: Span,
    /// The inputs and the outputs of the complete fusion, if they are printed.
    pub(crate) io: Option<Lists<'s>>,
    /// The groups, in their order. The complete fusion is one without a number if the dump has no segments.
    pub(crate) groups: Vec<Group<'s>>,
    /// The statements of the complete fusion.
    pub(crate) complete: Option<CompleteText<'s>>,
    /// The domains of tensors, by the number of the tensor.
    pub(crate) domains: FxHashMap<u32, TensorTransforms<'s>>,
    /// By the number of a tensor: where its domains are stated again, differently.
    pub(crate) contradictions: FxHashMap<u32, Span>,
    /// The indices of the groups that have a number, by number.
    groups_by_id: FxHashMap<u32, Vec<usize>>,
    /// The number of containers before it.
    containers_before: usize,
    /// The index of its file, if the command line gives that.
    pub(crate) file: Option<usize>,
}

impl<'s> FusionDump<'s> {
    /// Returns the groups with a number; several if the text defines it several times.
    pub(crate) fn groups_with_id(&self, id: u32) -> impl Iterator<Item = &Group<'s>> {
        self.groups_by_id.get(&id).into_iter().flatten().filter_map(|at| self.groups.get(*at))
    }
}

/// The text of a complete fusion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompleteText<'s> {
    /// The first line of the kernel.
    pub(crate) heading: Span,
    /// Its statements.
    pub(crate) body: Source<'s>,
    /// Whether no author left out a part, and the text is not cut off.
    pub(crate) is_whole: bool,
}

/// The dumps of a log.
#[derive(Debug, Default)]
pub(crate) struct FusionLog<'s> {
    /// In the order of the text.
    dumps: Vec<FusionDump<'s>>,
    /// The containers.
    containers: Vec<ContainerText>,
    /// Where the lines of each rank begin, with its number; 0 for lines without the tag of a rank.
    ranks: Vec<(u32, usize)>,
    /// The names of the files that the command line gives.
    pub(crate) files: Vec<&'s str>,
}

/// A container of a log.
#[derive(Clone, Copy, Debug)]
struct ContainerText {
    /// Where it begins.
    start: u32,
    /// Hash of its lines, without addresses.
    hash: u64,
}

/// The maximum number of dumps that are compared with a container.
const MAX_CANDIDATES: usize = 64;

/// The length of the word with which a container begins: `%HostIrContainer`.
const MARKER_LENGTH: u32 = 16;

/// The dumps that a container can belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates<'d, 's> {
    /// Those of the files that the command line gives.
    pub(crate) given: &'d [FusionDump<'s>],
    /// Those of the container's text.
    pub(crate) in_text: &'d [FusionDump<'s>],
    /// Whether no other container is between the dumps in the text and this one.
    pub(crate) is_own: bool,
    /// The first container between the dumps in the text and this one, if it differs from this one.
    pub(crate) other_before: Option<Span>,
    /// The first line of a dump before the container that another rank printed, if its own rank printed none.
    pub(crate) of_other_rank: Option<Span>,
}

impl<'s> FusionLog<'s> {
    /// Returns the dumps that a container at an offset can belong to. nvFuser prints the dump of a fusion before its
    /// container: these are the dumps between the container before it and this one or, since each rank may print the
    /// container, the last ones before that. A text whose dumps are all behind its containers was put together by hand. Each rank
    /// prints its own dump, so a container behind the tag of a rank has none of another rank.
    pub(crate) fn candidates(&self, container: u32) -> Candidates<'_, 's> {
        let (in_text, given) = self.dumps.split_at(self.dumps.partition_point(|it| it.file.is_none()));
        let all = in_text;
        let in_text = self.of_rank(in_text, container);
        let end = in_text.partition_point(|it| it.span.start < container);
        let before = self.containers.partition_point(|it| it.start < container);
        let range = match in_text[..end].last() {
            Some(last) => in_text.partition_point(|it| it.containers_before < last.containers_before)..end,
            None if in_text.first().is_some_and(|it| it.containers_before == self.containers.len()) => {
                0..in_text.len()
            }
            None => 0..0,
        };
        let first = range.start.max(range.end.saturating_sub(MAX_CANDIDATES));
        let in_text = &in_text[first..range.end];
        let given = &given[given.len().saturating_sub(MAX_CANDIDATES)..];
        let is_own = in_text.last().is_some_and(|it| it.containers_before == before);
        let between = in_text.last().and_then(|it| self.containers.get(it.containers_before..before));
        let hash = self.containers.get(before).map(|it| it.hash);
        let other = between.and_then(|it| it.iter().find(|it| Some(it.hash) != hash));
        let other_before = other.map(|it| Span { start: it.start, end: it.start + MARKER_LENGTH });
        let of_other_rank = all.first().filter(|it| in_text.is_empty() && it.span.start < container);
        let of_other_rank = of_other_rank.and_then(|it| it.groups.first()).map(|it| it.heading);
        Candidates { given, in_text, is_own, other_before, of_other_rank }
    }

    /// Returns the dumps that the rank of a container printed or, if there are none, those without the tag of a rank.
    fn of_rank<'d>(&self, dumps: &'d [FusionDump<'s>], container: u32) -> &'d [FusionDump<'s>] {
        let before = self.ranks.partition_point(|it| it.0 <= container);
        let Some(&(start, rank)) = before.checked_sub(1).and_then(|it| self.ranks.get(it)) else {
            return dumps;
        };
        let first = dumps.partition_point(|it| it.span.start < start);
        match dumps.get(first..) {
            _ if rank == 0 => dumps,
            Some(own) if own.first().is_some_and(|it| it.span.start < container) => own,
            _ => {
                let tagged = self.ranks.iter().find(|it| it.1 != 0).map_or(0, |it| it.0);
                &dumps[..dumps.partition_point(|it| it.span.start < tagged)]
            }
        }
    }

    /// Returns the first line of the first dump.
    pub(crate) fn first(&self) -> Option<Span> {
        let it = self.dumps.first()?;
        Some(it.groups.first().map_or(it.span, |group| group.heading))
    }

    /// Returns whether a part of the text is in a dump.
    pub(crate) fn contains(&self, at: usize) -> bool {
        let before = self.dumps.partition_point(|it| it.span.start as usize <= at);
        before.checked_sub(1).is_some_and(|it| at < self.dumps[it].span.end as usize)
    }
}

/// A group of statements that one kernel executes, or a complete fusion.
#[derive(Debug)]
pub(crate) struct Group<'s> {
    /// The number after `group id:`, and its place.
    pub(crate) id: Option<(u32, Span)>,
    /// The first line.
    pub(crate) heading: Span,
    /// Its inputs and outputs.
    pub(crate) lists: Lists<'s>,
    /// The text of its statements.
    pub(crate) body: Source<'s>,
    /// Lines of a log between its inputs and outputs.
    pub(crate) foreign: Vec<Span>,
    /// Where the text of the group ends too early, or an author left out a part of it.
    pub(crate) cut_at: Option<Span>,
}

impl Group<'_> {
    /// Returns whether another group has the same text, apart from blanks and the numbers of statements.
    pub(crate) fn is_same(&self, other: &Group<'_>) -> bool {
        fn lines(text: &str) -> impl Iterator<Item = &str> {
            let is_number = |it: &&str| {
                let inner = it.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
                inner.is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
            };
            text.lines().map(str::trim).filter(move |it| !it.is_empty() && !is_number(it))
        }
        self.lists.is_same(&other.lists) && lines(self.body.text).eq(lines(other.body.text))
    }
}

/// The inputs and the outputs of a fusion.
#[derive(Debug, Default)]
pub(crate) struct Lists<'s> {
    pub(crate) inputs: Vec<Value<'s>>,
    pub(crate) outputs: Vec<Value<'s>>,
}

impl Lists<'_> {
    fn is_same(&self, other: &Lists<'_>) -> bool {
        let texts = |list: &[Value<'_>]| list.iter().map(|it| it.text.to_owned()).collect::<Vec<_>>();
        texts(&self.inputs) == texts(&other.inputs) && texts(&self.outputs) == texts(&other.outputs)
    }
}

/// A tensor or a scalar in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'s> {
    /// The text of the tensor with its axes and mesh, or the name of the scalar.
    pub(crate) text: &'s str,
    pub(crate) span: Span,
    /// The element type behind it.
    pub(crate) dtype: Option<&'s str>,
}

impl Value<'_> {
    /// Returns the name that identifies it in a fusion: `T3`, `i5`.
    pub(crate) fn name(&self) -> &str {
        self.text.split(['_', '[', ' ']).next().unwrap_or(self.text)
    }

    /// Returns whether it is a tensor.
    pub(crate) fn is_tensor(&self) -> bool {
        self.text.starts_with('T')
    }
}

/// What `TransformPrinter` prints about one tensor.
#[derive(Debug)]
pub(crate) struct TensorTransforms<'s> {
    /// The tensor with its loop domain.
    pub(crate) tensor: Value<'s>,
    /// The lines below it.
    pub(crate) lines: Vec<TransformLine<'s>>,
}

impl TensorTransforms<'_> {
    /// Returns whether another tensor has the same domains.
    pub(crate) fn is_same(&self, other: &TensorTransforms<'_>) -> bool {
        let lines = |it: &TensorTransforms<'_>| {
            it.lines.iter().map(|it| (it.kind, it.text.text.trim().to_owned())).collect::<Vec<_>>()
        };
        self.tensor.text == other.tensor.text && lines(self) == lines(other)
    }
}

/// One line of `TransformPrinter`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransformLine<'s> {
    pub(crate) kind: TransformKind,
    /// The text behind the colon.
    pub(crate) text: Source<'s>,
}

/// The kinds of lines about a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransformKind {
    Logical,
    Allocation,
    Loop,
    Split {
        outer: bool,
    },
    Merge,
    Swizzle1D,
    /// A line without meaning for the host: a root domain, the contiguity, or a transform of a scheduled kernel.
    Other,
}

/// Finds the dumps in a text. `ranks` says where the lines of each rank begin.
pub(crate) fn find<'s>(source: &'s str, ranks: &[(u32, usize)]) -> FusionLog<'s> {
    // Most texts are programs without a log.
    let marks = ["Segmented_Fusion", "g{", "%kernel", FILE_MARK];
    if marks.iter().all(|it| !source.contains(it)) {
        return FusionLog::default();
    }
    FusionLog { ranks: ranks.to_vec(), ..finder::Finder::new(source).find() }
}
