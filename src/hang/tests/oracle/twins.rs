//! Which faults the records cannot tell apart: those of the same job whose records are equal but for times.
//!
//! A fault contradicts the others' calls only on its own rank, so that its twins are on this rank, with one exception: that the other ranks follow
//! another program, which one of them does not follow. That is: all ranks that make a call are edited alike, but one.

use super::{
    device::{Times, execute},
    dump::{Log, Record},
    fault::{FAULTS, Fault, Faulty, edit, plant},
    job::Job,
    program::{Call, Kind, Program, Step},
};

/// What the records leave open.
#[derive(Default, Debug)]
pub struct Twins {
    /// Another rank, or none, could be at fault.
    pub other_rank: Option<(Fault, usize)>,
    /// Other kinds of faults of the same rank.
    pub kinds: Vec<Fault>,
}

/// Finds the twins of the fault of a job.
pub fn twins(job: &Job) -> Twins {
    let made = &job.made;
    match made.fault {
        Fault::Healthy | Fault::Killed => Twins::default(),
        Fault::StuckHost | Fault::StuckKernel | Fault::StuckNetwork | Fault::Abort => stuck(job),
        _ => edited(job),
    }
}

/// Whether the dumps of another fault of the job are the same.
fn is_twin(job: &Job, shown: &[Option<Shown>], other: &Faulty) -> bool {
    let times = execute(&other.program, &job.settings, other.broken);
    // Ranks that differ are found early if those of the fault come first.
    let ranks = [other.rank, job.made.rank].into_iter().chain(0..shown.len());
    ranks.into_iter().all(|rank| comparable(job, &job.log_of(other, &times, rank)) == shown[rank])
}

/// Twins of faults that leave calls as they are: of any rank, where its records end or its first calls are open.
fn stuck(job: &Job) -> Twins {
    let made = &job.made;
    let mut found = Twins::default();
    // Dumps of active calls behind an abort are those of a job that has ended.
    if job.logs.iter().flatten().all(|it| it.records.iter().all(|it| it.is_batched)) {
        found.other_rank = Some((Fault::Healthy, made.rank));
        return found;
    }
    let shown: Vec<Option<Shown>> = job.logs.iter().map(|it| comparable(job, it)).collect();
    let times = execute(&made.program, &job.settings, made.broken);
    let first = [made.rank].into_iter().chain((0..shown.len()).filter(|&it| it != made.rank));
    for rank in first {
        let (open, end) = open_steps(job, rank, &times[rank]);
        let places = open.iter().flat_map(|&at| [(Fault::StuckKernel, at), (Fault::StuckNetwork, at)]);
        for (fault, at) in places.chain(end.map(|at| (Fault::StuckHost, at))) {
            let is_same = rank == made.rank && (fault == made.fault || made.fault == Fault::Abort);
            let Some(other) = plant(&job.program, fault, rank, at, 0).filter(|_| !is_same) else { continue };
            if !is_twin(job, &shown, &other) {
                continue;
            }
            let names_nobody = fault == Fault::StuckNetwork || made.fault == Fault::StuckNetwork;
            if rank == made.rank && !names_nobody {
                found.kinds.push(fault);
            } else if !(names_nobody && fault == made.fault) {
                found.other_rank = Some((fault, rank));
                return found;
            }
        }
    }
    found
}

/// Twins of faults that change calls.
fn edited(job: &Job) -> Twins {
    let made = &job.made;
    let mut found = Twins::default();
    let shown: Vec<Option<Shown>> = job.logs.iter().map(|it| comparable(job, it)).collect();
    let Step::Call(wanted) = &job.program.ranks[made.rank][made.at] else { return found };
    let seen = job.logs[made.rank].as_ref().map_or(0, |it| {
        it.records.iter().filter(|it| it.line == wanted.line || it.line == wanted.line + 200).count()
    });
    // Splits explain sizes that no earlier call of the rank contradicts.
    if made.fault == Fault::OtherSize && wanted.kind == Kind::AllToAll && seen < 2 {
        found.other_rank = Some((Fault::StuckNetwork, made.rank));
        return found;
    }
    let branch = Branch::new(job, made, wanted);
    if is_message(wanted) && branch.makers.len() == 1 && seen < 2 {
        found.other_rank = Some((made.fault, made.rank));
        return found;
    }
    // An edit whose records are lost is an open call that nothing contradicts.
    let network = plant(&job.program, Fault::StuckNetwork, made.rank, made.at, 0);
    let network = network.filter(|it| is_twin(job, &shown, it));
    if let Some(other) = branch.twin(job, &shown, true).or(network) {
        found.other_rank = Some((other.fault, other.rank));
        return found;
    }
    // The calls that the rank has made, also those whose records are lost.
    let times = execute(&made.program, &job.settings, made.broken);
    let is_made = |it: &&Times| it.issued.is_some_and(|it| it <= job.writing.moment[made.rank]);
    let count = times[made.rank].iter().filter(is_made).count();
    // A call of which the rank has no record, since it is the last one or waits for a communicator, or that looks like another one: it may be about to
    // make it.
    let end = job.program.calls(made.rank).nth(count).map(|it| it.0);
    let mut stops = [made.at]
        .into_iter()
        .chain(end)
        .filter_map(|at| plant(&job.program, Fault::StuckHost, made.rank, at, 0));
    if stops.any(|it| is_twin(job, &shown, &it)) {
        found.kinds.push(Fault::StuckHost);
    }
    // One more call at the end, which the other ranks may be about to make. Without stacks, one before may look like it.
    let last = job.program.calls(made.rank).last().filter(|_| made.fault == Fault::OneMore);
    let at_end = last.and_then(|it| plant(&job.program, made.fault, made.rank, it.0, made.choice));
    if branch.makers.len() > 1 && at_end.is_some_and(|it| is_twin(job, &shown, &it)) {
        found.other_rank = Some((Fault::Healthy, made.rank));
        return found;
    }
    let others = same_rank(job, &shown, count);
    // A rank that is late has done nothing that another one contradicts.
    if found.kinds.is_empty() {
        found.other_rank = [made].into_iter().chain(&others).find_map(|it| in_this_round(job, &shown, it));
    }
    found.kinds.extend(others.iter().map(|it| it.fault));
    found
}

/// Other faults of the calls of the same rank. A record does not show for what the host waits, so that the rank may make no call behind those that
/// it has made.
fn same_rank(job: &Job, shown: &[Option<Shown>], count: usize) -> Vec<Faulty> {
    let made = &job.made;
    let base = &job.program.ranks[made.rank];
    let own = calls_of(&made.program.ranks[made.rank], count);
    let is_same = |it: &Faulty| {
        let steps = &it.program.ranks[made.rank];
        let mut cut = it.clone();
        let calls = it.program.calls(made.rank);
        cut.program.ranks[made.rank].truncate(calls.map(|it| it.0).nth(own.len()).unwrap_or(steps.len()));
        (calls_of(steps, own.len()) == own)
            .then(|| [it.clone(), cut].into_iter().find(|it| is_twin(job, shown, it)))
            .flatten()
    };
    let at = made.at.saturating_sub(12)..(made.at + 12).min(base.len());
    let places: Vec<(usize, u64)> = at.flat_map(|it| [(it, 0), (it, 1), (it, 2)]).collect();
    let other = |fault: Fault| {
        let plants = places.iter().filter_map(|&(at, choice)| {
            let mut steps = base.clone();
            edit(&job.program.groups, &mut steps, made.rank, fault, at, choice)?;
            // Most edits show in the calls: no job is made for them.
            (calls_of(&steps, own.len()) == own)
                .then(|| plant(&job.program, fault, made.rank, at, choice))
                .flatten()
        });
        // What the rank makes instead may be one more call; it is no branch that others could take instead of this call.
        let is_usual = fault == Fault::OneMore && matches!(made.fault, Fault::Skip | Fault::OtherOrder);
        let inserted = made.program.ranks[made.rank].get(made.at).filter(|_| is_usual);
        let inserted = inserted.map(|it| {
            let mut other = Faulty { fault, at: base.len(), program: job.program.clone(), ..made.clone() };
            other.program.ranks[made.rank].insert(made.at, it.clone());
            other
        });
        plants.chain(inserted).find_map(|it| is_same(&it))
    };
    FAULTS.into_iter().filter(|it| it.contradicts() && *it != made.fault).filter_map(other).collect()
}

/// Another rank that is at fault if the others take a branch in the round of the fault only, such as that of an evaluation, and it does not.
///
/// The reader of dumps does not know the program. Regularity speaks against such a branch where the records hold the edit, and the same place without
/// it; what is overwritten, or has completed in dumps of active calls, does not. The others' records, and the numbers in `pg_status`, decide if
/// they have made the call as usual: then this is no twin.
fn in_this_round(job: &Job, shown: &[Option<Shown>], of: &Faulty) -> Option<(Fault, usize)> {
    let Step::Call(wanted) = job.program.ranks[of.rank].get(of.at)? else { return None };
    let branch = Branch::new(job, of, wanted);
    if branch.is_irregular(job) {
        return None;
    }
    // No other rank has this role, and the other end alone contradicts it.
    let has_two_ends = is_message(wanted) || job.program.groups[wanted.group].ranks.len() == 2;
    if branch.makers.len() == 1 && has_two_ends {
        return Some((of.fault, of.rank));
    }
    branch.twin(job, shown, false).map(|it| (it.fault, it.rank))
}

fn is_message(call: &Call) -> bool {
    matches!(call.kind, Kind::Message(_) | Kind::Batch(_))
}

/// The edit of a fault as a branch of the program, which one rank does not take.
struct Branch<'a> {
    of: &'a Faulty,
    wanted: &'a Call,
    /// Of two calls that change places, the line of the second one.
    second: Option<u32>,
    /// The ranks that make the call; of two that change places, those that make the second one behind the first.
    makers: Vec<usize>,
}

impl<'a> Branch<'a> {
    fn new(job: &Job, of: &'a Faulty, wanted: &'a Call) -> Self {
        let second = match of.program.ranks[of.rank].get(of.at) {
            Some(Step::Call(it)) if of.fault == Fault::OtherOrder => Some(it.line),
            _ => None,
        };
        let mut it = Self { of, wanted, second, makers: Vec::new() };
        let makes = |rank: usize| {
            let mut calls = job.program.calls(rank);
            calls.any(|(at, call)| call.line == wanted.line && it.follows(job, rank, at))
        };
        it.makers = (0..job.logs.len()).filter(|&rank| makes(rank)).collect();
        it
    }

    fn follows(&self, job: &Job, rank: usize, at: usize) -> bool {
        let mut behind = job.program.calls(rank).skip_while(|it| it.0 <= at).take(3);
        self.second.is_none_or(|line| behind.any(|it| it.1.line == line))
    }

    /// Returns a job with the same records in which one rank of the group does not take the branch. In larger groups the majority decides, unless
    /// what the others made is not recorded.
    fn twin(&self, job: &Job, shown: &[Option<Shown>], is_every_round: bool) -> Option<Faulty> {
        let members = &job.program.groups[self.wanted.group].ranks;
        let others = self.makers.iter().copied().filter(|it| *it != self.of.rank && members.contains(it));
        let mut twins = others.take(4).filter_map(|rank| self.all_but(job, rank, is_every_round));
        twins.find(|it| is_twin(job, shown, it))
    }

    /// Returns the job whose program has the edit in all rounds, or in that of the fault, on all ranks, and a rank that does not follow it in the
    /// round of the fault. Rounds that lack the second of two calls that change places, such as those without a checkpoint, keep their order.
    fn all_but(&self, job: &Job, except: usize, is_every_round: bool) -> Option<Faulty> {
        let Self { of, wanted, .. } = self;
        let wanted_nth = nth(&job.program, of.rank, of.at);
        let mut program = job.program.clone();
        for &rank in &self.makers {
            if rank == of.rank && !is_every_round {
                program.ranks[rank].clone_from(&of.program.ranks[rank]);
                continue;
            }
            let places = job.program.calls(rank).filter(|(at, it)| {
                let is_round = it.iteration == wanted.iteration;
                it.line == wanted.line
                    && nth(&job.program, rank, *at) == wanted_nth
                    && self.follows(job, rank, *at)
                    && if is_round { rank != except } else { is_every_round }
            });
            for (at, _) in places.collect::<Vec<_>>().into_iter().rev() {
                edit(&job.program.groups, &mut program.ranks[rank], rank, of.fault, at, of.choice)?;
            }
        }
        Some(Faulty { program, rank: except, ..(*of).clone() })
    }

    /// Whether the records hold the edit, and the same place without it: in another round, or in this one on another rank.
    fn is_irregular(&self, job: &Job) -> bool {
        let Self { of, wanted, .. } = self;
        let own = kept(job, &of.program, of.rank);
        let here = own.iter().take_while(|it| it.0 < of.at).count();
        // Behind the last call, nothing is missing.
        let is_kept = |at: usize| own.get(at).is_none_or(|it| it.2);
        let before = here.checked_sub(1).is_none_or(is_kept);
        let is_shown = match of.fault {
            Fault::Skip => before && is_kept(here),
            Fault::OneMore if of.choice.is_multiple_of(2) && job.writing.has_frames => is_kept(here),
            Fault::OneMore | Fault::OtherOrder => is_kept(here) && (before || is_kept(here + 1)),
            _ => is_kept(here),
        };
        let wanted_nth = nth(&job.program, of.rank, of.at);
        let is_usual = |rank: usize, at: usize, it: &Call| {
            let is_place = it.line == wanted.line || Some(it.line) == self.second;
            let is_other =
                rank != of.rank && of.fault != Fault::OtherOrder && nth(&of.program, rank, at) != wanted_nth;
            is_place && (it.iteration != wanted.iteration || is_other)
        };
        let mut ranks = 0..job.logs.len();
        is_shown
            && ranks.any(|rank| {
                kept(job, &of.program, rank)
                    .iter()
                    .any(|&(at, it, is_kept)| is_kept && is_usual(rank, at, it))
            })
    }
}

/// Returns the how-many-th call of its line in its round a call is.
fn nth(program: &Program, rank: usize, at: usize) -> usize {
    let calls = || program.calls(rank).take_while(|it| it.0 <= at);
    let Some((_, call)) = calls().last() else { return 0 };
    calls().filter(|(_, it)| it.line == call.line && it.iteration == call.iteration).count()
}

/// Returns the calls of a rank, and whether a record of each is in its dump.
fn kept<'a>(job: &Job, program: &'a Program, rank: usize) -> Vec<(usize, &'a Call, bool)> {
    let records = || job.logs[rank].iter().flat_map(|it| &it.records);
    let mut end = 0;
    let calls = program.calls(rank).map(|(at, call)| {
        let first = end;
        end += if let Kind::Batch(all) = &call.kind { all.len() + 1 } else { 1 };
        (at, call, records().any(|it| (first..end).contains(&it.id)))
    });
    calls.collect()
}

/// What of a dump is compared: its records without times, and the numbers of `pg_status`.
type Shown = (Vec<Record>, Vec<[i64; 3]>);

/// Returns what of a dump is compared. That of `_dump_nccl_trace_json` has no stacks, so that lines are no part of it.
fn comparable(job: &Job, log: &Option<Log>) -> Option<Shown> {
    let shown =
        |it: &Record| Record { line: if job.writing.has_frames { it.line } else { 0 }, ..it.without_times() };
    log.as_ref().map(|it| (it.records.iter().map(shown).collect(), it.status.clone()))
}

/// Returns the steps of a rank that may hang: its first calls that have not completed, and the end of what it has issued.
fn open_steps(job: &Job, rank: usize, times: &[Times]) -> (Vec<usize>, Option<usize>) {
    let calls = job.program.calls(rank).zip(times.iter().map(Some).chain(std::iter::repeat(None)));
    let open: Vec<(usize, bool)> = calls
        .filter(|(_, times)| times.is_none_or(|it| it.done.is_none()))
        .map(|((at, _), times)| (at, times.is_some_and(|it| it.issued.is_some())))
        .collect();
    let end = open.iter().find(|it| !it.1).map(|it| it.0);
    (open.iter().filter(|it| it.1).take(3).map(|it| it.0).collect(), end)
}

/// Returns the first calls of some steps by what their records show.
fn calls_of(steps: &[Step], count: usize) -> Vec<(usize, Kind, u64, &'static str, u32)> {
    let calls = steps.iter().filter_map(|it| match it {
        Step::Call(it) => Some((it.group, it.kind.clone(), it.size, it.dtype.0, it.line)),
        Step::WaitAll | Step::Item => None,
    });
    calls.take(count).collect()
}
