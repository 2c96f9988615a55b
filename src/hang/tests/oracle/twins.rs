//! Which faults the records cannot tell apart: those of the same job whose records are equal but for times.
//!
//! A fault contradicts the others' calls only on its own rank, so that its twins are on this rank, with one exception: that the other ranks follow
//! another program, which one of them does not follow. That is: all ranks that make a call are edited alike, but one.

use super::{
    device::{Times, execute},
    dump::{Log, Record},
    fault::{FAULTS, Fault, Faulty, edit, plant},
    job::Job,
    program::{Call, Kind, Step},
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
fn is_twin(job: &Job, shown: &[Option<Vec<Record>>], other: &Faulty) -> bool {
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
    let shown: Vec<Option<Vec<Record>>> = job.logs.iter().map(|it| comparable(job, it)).collect();
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
    let shown: Vec<Option<Vec<Record>>> = job.logs.iter().map(|it| comparable(job, it)).collect();
    // The same edit on all ranks but one, which is seen only if two ranks make the call.
    let Step::Call(wanted) = &job.program.ranks[made.rank][made.at] else { return found };
    let is_alike = |it: &Call| it.line == wanted.line;
    // Of two calls that change places, those that make the second one behind the first.
    let second = match &made.program.ranks[made.rank][made.at] {
        Step::Call(it) if made.fault == Fault::OtherOrder => Some(it.line),
        _ => None,
    };
    let follows = |rank: usize, at: usize| {
        let mut behind = job.program.calls(rank).skip_while(|it| it.0 <= at).take(3);
        second.is_none_or(|line| behind.any(|it| it.1.line == line))
    };
    let makes = |rank: usize| job.program.calls(rank).any(|it| is_alike(it.1) && follows(rank, it.0));
    let makers: Vec<usize> = (0..shown.len()).filter(|&rank| makes(rank)).collect();
    let seen = job.logs[made.rank].as_ref().map_or(0, |it| {
        it.records.iter().filter(|it| it.line == wanted.line || it.line == wanted.line + 200).count()
    });
    // Splits explain sizes that no earlier call of the rank contradicts.
    if made.fault == Fault::OtherSize && wanted.kind == Kind::AllToAll && seen < 2 {
        found.other_rank = Some((Fault::StuckNetwork, made.rank));
        return found;
    }
    if matches!(wanted.kind, Kind::Message(_) | Kind::Batch(_)) && makers.len() == 1 && seen < 2 {
        found.other_rank = Some((made.fault, made.rank));
        return found;
    }
    // In larger groups the majority decides, unless what the others made is not recorded.
    let members = &job.program.groups[wanted.group].ranks;
    let others = makers.iter().copied().filter(|it| *it != made.rank && members.contains(it)).take(4);
    let twin = others
        .filter_map(|rank| all_but(job, rank, wanted, (&makers, &follows)))
        .find(|it| is_twin(job, &shown, it));
    if let Some(other) = twin {
        found.other_rank = Some((other.fault, other.rank));
        return found;
    }
    // The calls that the rank has made, also those whose records are lost.
    let times = execute(&made.program, &job.settings, made.broken);
    let is_made = |it: &&Times| it.issued.is_some_and(|it| it <= job.writing.moment[made.rank]);
    let count = times[made.rank].iter().filter(is_made).count();
    // A call of which the rank has no record, since it is the last one or waits for a communicator, or that looks like another one: it may be about to
    // make it.
    let is_at_end = job.program.calls(made.rank).last().is_some_and(|it| it.0 == made.at);
    let end = job.program.calls(made.rank).nth(count).map(|it| it.0);
    let mut stops = [made.at]
        .into_iter()
        .chain(end)
        .filter_map(|at| plant(&job.program, Fault::StuckHost, made.rank, at, 0));
    if stops.any(|it| is_twin(job, &shown, &it)) {
        found.kinds.push(Fault::StuckHost);
    }
    // One more call at the end, which the other ranks may be about to make.
    if made.fault == Fault::OneMore && is_at_end && makers.len() > 1 {
        found.other_rank = Some((Fault::Healthy, made.rank));
        return found;
    }
    // Other faults of the calls of the same rank.
    let own = calls_of(&made.program.ranks[made.rank], count);
    let steps = made.at.saturating_sub(12)..(made.at + 12).min(job.program.ranks[made.rank].len());
    for fault in FAULTS.into_iter().filter(|it| it.contradicts() && *it != made.fault) {
        let has_twin = steps.clone().flat_map(|it| [(it, 0), (it, 1), (it, 2)]).any(|(at, choice)| {
            let mut steps = job.program.ranks[made.rank].clone();
            edit(&job.program.groups, &mut steps, made.rank, fault, at, choice).is_some()
                && calls_of(&steps, own.len()) == own
                && plant(&job.program, fault, made.rank, at, choice)
                    .is_some_and(|it| is_twin(job, &shown, &it))
        });
        if has_twin {
            found.kinds.push(fault);
        }
    }
    found
}

/// What of a dump is compared. That of `_dump_nccl_trace_json` has no stacks, so that lines are no part of it.
fn comparable(job: &Job, log: &Option<Log>) -> Option<Vec<Record>> {
    let shown =
        |it: &Record| Record { line: if job.writing.has_frames { it.line } else { 0 }, ..it.without_times() };
    log.as_ref().map(|it| it.records.iter().map(shown).collect())
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

/// Returns the job whose program has the edit in all rounds on all ranks, and a rank that does not follow it in the round of the fault.
/// Rounds that lack the second of two calls that change places, such as those without a checkpoint, keep their order.
fn all_but(
    job: &Job,
    except: usize,
    wanted: &Call,
    (makers, follows): (&[usize], &dyn Fn(usize, usize) -> bool),
) -> Option<Faulty> {
    let made = &job.made;
    // The how-many-th call of its line in its round it is.
    let nth = |rank: usize, at: usize, call: &Call| {
        let before = job.program.calls(rank).take_while(|it| it.0 < at);
        before.filter(|(_, it)| it.line == call.line && it.iteration == call.iteration).count()
    };
    let wanted_nth = nth(made.rank, made.at, wanted);
    let mut program = job.program.clone();
    for &rank in makers {
        let places = job.program.calls(rank).filter(|(at, it)| {
            it.line == wanted.line
                && nth(rank, *at, it) == wanted_nth
                && follows(rank, *at)
                && (rank != except || it.iteration != wanted.iteration)
        });
        for (at, _) in places.collect::<Vec<_>>().into_iter().rev() {
            edit(&job.program.groups, &mut program.ranks[rank], rank, made.fault, at, made.choice)?;
        }
    }
    Some(Faulty { program, rank: except, ..made.clone() })
}
