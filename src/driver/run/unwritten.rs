//! Warns about reads of unwritten memory.
//!
//! A read is an element that a statement takes from memory: an operand of a computation, or the source of a
//! copy, a send or a collective whose data some rank receives. Only the elements of the statement's views
//! count, not the whole buffers. Elements that were copied or computed from unwritten ones are not reported
//! again: the warning is at the first read. Reads of the outputs by the caller are judged in `results`.

use std::collections::{BTreeMap, BTreeSet};

use grammar::{Code, Diagnostic, Source, Span, count_text};

use hir_check::UNWRITTEN_HELP;
use hir_plan::{Plan, sync::ranks_text};
use hir_sim::{RunNotes, Schedule};

/// The unwritten reads of one or several runs, merged by statement and tensor.
#[derive(Debug, Default)]
pub struct UnwrittenReads {
    found: BTreeMap<ReadSite, SiteReads>,
}

/// A statement and a tensor that it reads, ordered by source text and line.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReadSite {
    text: usize,
    line: u32,
    tensor: String,
}

#[derive(Debug)]
struct SiteReads {
    /// The read with the most unwritten elements: their number, and the number of all its elements.
    worst: (usize, usize),
    /// The reading ranks.
    ranks: BTreeSet<usize>,
    /// The ranks that own the memory.
    owners: BTreeSet<usize>,
    /// The first iteration that reads unwritten elements.
    first: String,
    iterations: BTreeSet<String>,
    /// The first schedule with such a read.
    schedule: Schedule,
}

impl UnwrittenReads {
    /// Adds the reads of a run. Rank `r` runs source text `r`, or the last one if there are fewer (`texts`).
    pub fn add(&mut self, plans: &[Plan], notes: &RunNotes, schedule: &Schedule, texts: usize) {
        for read in &notes.unwritten {
            let Some(plan) = plans.get(read.reader.rank) else { continue };
            let Some(inst) = plan.code.get(read.reader.inst) else { continue };
            let buffer = plans.get(read.rank).and_then(|it| it.buffers.get(read.buffer as usize));
            let key = ReadSite {
                text: read.reader.rank.min(texts.saturating_sub(1)),
                line: plan.origins[inst.origin as usize].line,
                tensor: buffer.map_or_else(|| "?".to_owned(), |it| it.name.clone()),
            };
            let iteration = plan.iteration(inst);
            let reads = self.found.entry(key).or_insert_with(|| SiteReads {
                worst: (0, 0),
                ranks: BTreeSet::new(),
                owners: BTreeSet::new(),
                first: iteration.clone(),
                iterations: BTreeSet::new(),
                schedule: schedule.clone(),
            });
            if read.missing > reads.worst.0 {
                reads.worst = (read.missing, read.elements);
            }
            reads.ranks.insert(read.reader.rank);
            reads.owners.insert(read.rank);
            reads.iterations.insert(iteration);
        }
    }

    /// Returns the warnings by source text, sorted by line and tensor.
    pub fn warnings(&self, sources: &[Source]) -> Vec<Vec<Diagnostic>> {
        let mut texts: Vec<Vec<Diagnostic>> = sources.iter().map(|_| Vec::new()).collect();
        for (key, reads) in &self.found {
            let (Some(source), Some(warnings)) = (sources.get(key.text), texts.get_mut(key.text)) else {
                continue;
            };
            warnings.push(reads.warning(&key.tensor, source.line_or_header(key.line)));
        }
        texts
    }
}

impl SiteReads {
    fn warning(&self, tensor: &str, span: Span) -> Diagnostic {
        let (missing, elements) = self.worst;
        let what = if missing == elements {
            format!("`{tensor}` is read before anything has written it")
        } else {
            format!("elements of `{tensor}` are read before anything has written them")
        };
        let label = if missing == elements {
            format!("reads {}", count_text(elements, "unwritten element"))
        } else {
            let verb = if missing == 1 { "is" } else { "are" };
            format!("{missing} of the {elements} elements that this reads {verb} unwritten")
        };
        let mut note = format!("on {}", ranks_text(&self.ranks.iter().copied().collect::<Vec<_>>()));
        if self.owners != self.ranks {
            note += &format!(
                ", in the memory of {}",
                ranks_text(&self.owners.iter().copied().collect::<Vec<_>>())
            );
        }
        match self.iterations.len() {
            0 | 1 if self.first.is_empty() => (),
            0 | 1 => note += &format!(", at {}", self.first),
            count => note += &format!(", in {count} iterations, the first at {}", self.first),
        }
        if self.schedule != Schedule::Program {
            note += &format!(", first under `--schedule={}`", self.schedule);
        }
        Diagnostic::new(Code::UnwrittenRead, span, what, label).note(note).help(UNWRITTEN_HELP)
    }
}
