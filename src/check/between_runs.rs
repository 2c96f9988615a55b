//! Explains races of one run with the next one, of the same program or of another one.

use super::{
    conflict::Race,
    explanation::{RaceExplanation, peer_wait, ready_signal_inst},
    order_edits::{follow_in_next_run, wait_for_next_run},
    plan_index::PlanIndexes,
    race_side::{RaceSide, stream_of},
    repair::{InsertionPoint, NamedStmt, Repair},
};
use hir_plan::{BufferRole, Plan};

/// Two runs, one after the other.
pub(super) struct RunPair<'a> {
    /// The plans of the first run. Those of the second one are the same, unless it runs another program.
    pub indexes: &'a PlanIndexes<'a>,
    /// The names of the programs in reports; `None` if it is one.
    pub names: Option<[&'a str; 2]>,
}

/// Why an access of the next run does not follow one of this run.
pub(super) struct NextRunExplanation {
    /// The reason, and how to order the two. The edits are in the program of the second side's rank.
    pub reason: RaceExplanation,
    /// True if the edits change the program of the second run.
    pub is_in_second_run: bool,
}

impl RaceExplanation {
    /// Explains a race of a run with the next one of the same program.
    pub(super) fn between_runs(
        race: &Race,
        first: &RaceSide<'_>,
        second: &RaceSide<'_>,
        indexes: &PlanIndexes<'_>,
    ) -> Self {
        let owner = if first.plan.rank == race.rank { first.plan } else { second.plan };
        match owner.buffers[race.buffer as usize].role {
            BufferRole::Slots => slots_come_round(first, second),
            BufferRole::Elements => RunPair { indexes, names: None }.explain(first, second).reason,
        }
    }
}

impl RunPair<'_> {
    /// Explains a race: `second`'s rank starts the next run too early, or a stream does not wait there.
    pub(super) fn explain(&self, first: &RaceSide<'_>, second: &RaceSide<'_>) -> NextRunExplanation {
        let (a, b) = (first.plan.rank, second.plan.rank);
        let index = self.indexes.of(b);
        let awaited = if a != b {
            peer_wait(index.plan(), first, self.indexes)
        } else if first.is_posted() {
            first.first_wait(index)
        } else {
            first.inst_index()
        };
        let is_wait = a != b || first.is_posted();
        match awaited {
            Some(awaited) => self.not_awaited_in_next_run((index.plan(), awaited, is_wait), second),
            None => NextRunExplanation {
                reason: self.not_awaited_at_exit(first, second),
                is_in_second_run: false,
            },
        }
    }

    /// Explains a race with an access of the first run that has ended with the instruction `awaited` of its plan, a Wait or the access
    /// itself.
    fn not_awaited_in_next_run(
        &self,
        (plan, awaited, is_wait): (&Plan, usize, bool),
        second: &RaceSide<'_>,
    ) -> NextRunExplanation {
        let [this, next] = match self.names {
            None => ["this run".to_owned(), "the next run".to_owned()],
            Some(names) => names.map(|it| format!("`{it}`")),
        };
        let (waiting, other) = (second.stream(), stream_of(plan, awaited));
        let before = InsertionPoint::before(second);
        let edit = follow_in_next_run((self.indexes.of(plan.rank), awaited), (waiting, before));
        let location = plan.location(&plan.code[awaited]);
        let what = if is_wait { format!("the Wait at {location}, on {other},") } else { location };
        let why =
            format!("in {next}, {waiting} does not wait for {what} of {this} before {}", second.location());
        let is_in_second_run = !edit.is_at_end();
        let reason = RaceExplanation { is_in_second: true, ..RaceExplanation::new(why, edit) };
        NextRunExplanation { reason, is_in_second_run }
    }

    /// Explains a race with an access of the first run for which nothing waits on the rank of the second one.
    fn not_awaited_at_exit(&self, first: &RaceSide<'_>, second: &RaceSide<'_>) -> RaceExplanation {
        let rank = second.plan.rank;
        let mine = self.indexes.of(rank);
        if first.plan.rank == rank {
            let name = first.plan.describe_origin(first.origin);
            let later = second.inst_index().filter(|_| self.names.is_none());
            let edit = match (first.inst_index(), later) {
                (Some(earlier), Some(later)) => wait_for_next_run(mine, earlier, later),
                (_, _) => Repair::insert_wait(mine, first.origin, InsertionPoint::end(first.plan), None),
            };
            return RaceExplanation::new(format!("nothing waits for {name}"), edit);
        }
        let (plan, location) = (mine.plan(), format!("{} on rank {}", first.location(), first.plan.rank));
        let (ends, what, runs) = match self.names {
            None => ("its program".to_owned(), "its run".to_owned(), "runs"),
            Some([this, _]) => (format!("`{this}`"), format!("`{this}`"), "two"),
        };
        let before = format!("before {ends} ends, or separate the {runs} by a barrier of all ranks");
        let advice = match ready_signal_inst(plan, first, self.indexes) {
            Some(at) => {
                let posted = NamedStmt::from_origin(plan, plan.code[at].origin);
                let wait = posted.stmt.and_then(|it| plan.comm_names.wait_text(it));
                let wait = wait.map_or("a Wait".to_owned(), |it| format!("`{it}`"));
                format!("insert {wait} for {} on rank {rank} {before}", posted.name)
            }
            None => format!("make rank {rank} wait for {location} {before}"),
        };
        let why = format!("rank {rank} ends {what} without waiting for {location}");
        RaceExplanation { why: Some(why), advice: Some(advice), ..RaceExplanation::default() }
    }
}

/// Explains a race on slots of one run with the next: the sets take turns within a run, and each run begins with the first one.
fn slots_come_round(first: &RaceSide<'_>, second: &RaceSide<'_>) -> RaceExplanation {
    let (a, b) = (first.plan.rank, second.plan.rank);
    let why = format!(
        "the collectives of a team that have one algorithm, size and type use two sets of slots in turn, and each run begins with the first \
         set: with an odd number of them, rank {b} writes the set in which the last one arrived, and does not know that rank {a} has \
         read it"
    );
    let advice = "separate the runs by a barrier of all ranks, or choose an algorithm that asks before it writes, such as `algo=one-shot`, or \
                  make the number of collectives that use these slots even";
    RaceExplanation { why: Some(why), advice: Some(advice.to_owned()), ..RaceExplanation::default() }
}
