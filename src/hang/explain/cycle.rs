//! Explains ranks that wait for each other.

use grammar::codes::Code;

use super::{
    Finding, Label, callers_note, group_of, label,
    waiting::{reason_text, unmatched_text},
};
use crate::{
    blame::{Reason, departs},
    graph::Edge,
    queues::{Call, Job},
    record::Rank,
    stall::{Place, Stall},
    wording::{place, position, ranks_text, what_at},
};

pub(super) fn cycle(
    job: &Job<'_>,
    stalls: &[Stall],
    edges: &[Edge],
    deviant: Option<(Rank, Reason)>,
) -> Finding {
    let cycle = Cycle { job, stalls, edges };
    let is_messages = edges.iter().all(|it| matches!(stalls[it.stall].place, Place::Pair { .. }));
    // A message without partner is the shorter explanation.
    let (code, message) = match (cycle.unmatched(), deviant) {
        (Some(text), _) => (Code::HangPeer, text),
        (None, Some((rank, reason))) => (Code::HangCycle, cycle.deviation(rank, reason)),
        (None, None) => {
            (Code::HangCycle, format!("{} wait for {}: {}", cycle.who(), cycle.each(), cycle.calls()))
        }
    };
    let mut notes: Vec<String> = edges.iter().take(12).map(|it| cycle.edge_text(it)).collect();
    if edges.len() > 12 {
        notes.push(format!("… {} more", edges.len() - 12));
    }
    notes.push(match deviant {
        Some((rank, reason)) => reason_text(job, rank, reason),
        None => "the records do not show which of them is wrong".to_owned(),
    });
    let departure = departs(job, stalls).filter(|_| is_messages && deviant.is_none());
    if let Some((call, usual)) = departure {
        let text = format!(
            "rank {} departs from its earlier order: after the call before, it made the {}, and now it waits in {}",
            call.rank,
            what_at(job, usual),
            what_at(job, call)
        );
        // A rank that leaves a loop does so, too: it accuses nobody.
        notes.push(text);
        notes.extend(callers_note(job, call));
    }
    let mut labels = cycle.labels(deviant.map(|it| it.0));
    labels.extend(
        departure
            .map(|it| label(job, it.0, format!("rank {} departs from its earlier order here", it.0.rank))),
    );
    Finding {
        code,
        message,
        ranks: deviant.map(|it| vec![it.0]).unwrap_or_default(),
        labels,
        notes,
        help: if is_messages {
            "let one of the two receive first, or post both with `batch_isend_irecv`".to_owned()
        } else {
            "all ranks must use groups in one order, and no rank may leave out a call that others make before"
                .to_owned()
        },
    }
}

/// Ranks that wait for each other.
struct Cycle<'a, 'j> {
    job: &'a Job<'j>,
    stalls: &'a [Stall],
    edges: &'a [Edge],
}

impl Cycle<'_, '_> {
    /// Returns the call in which the rank of an edge waits.
    fn own_call(&self, edge: &Edge) -> Option<Call> {
        self.stalls[edge.stall].waiting.iter().find(|it| it.rank == edge.from).copied()
    }

    /// As `own_call`; if the rank itself has not called, the call of another one that waits there.
    fn call(&self, edge: &Edge) -> Option<Call> {
        self.own_call(edge).or(self.stalls[edge.stall].waiting.first().copied())
    }

    fn who(&self) -> String {
        ranks_text(&self.edges.iter().map(|it| it.from).collect::<Vec<_>>())
    }

    fn each(&self) -> &'static str {
        if self.edges.len() == 2 { "each other" } else { "each other in a cycle" }
    }

    /// Writes in which calls the first ranks wait.
    fn calls(&self) -> String {
        let short = |edge: &Edge| {
            let call = self.call(edge);
            call.map(|it| format!("rank {} in {}", edge.from, what_at(self.job, it))).unwrap_or_default()
        };
        let all = self.edges.iter().take(4).map(short).collect::<Vec<_>>().join(", ");
        if self.edges.len() > 4 { format!("{all}, …") } else { all }
    }

    /// Writes why a rank waits.
    fn edge_text(&self, edge: &Edge) -> String {
        let (job, stall) = (self.job, &self.stalls[edge.stall]);
        let Some(call) = self.call(edge) else { return String::new() };
        let at =
            if place(job, call).is_some() { format!(", {}", position(job, call)) } else { String::new() };
        let missing = match (stall.blocked_by, stall.place) {
            (Some(first), _) => {
                format!("rank {} has posted its side behind the {}", edge.to, what_at(job, first))
            }
            (None, Place::Collective { .. }) => format!("rank {} has not called it", edge.to),
            (None, Place::Pair { .. } | Place::AnySource { .. }) => {
                format!("rank {} has not posted its side", edge.to)
            }
        };
        format!("rank {} waits in {}{at}: {missing}", edge.from, what_at(job, call))
    }

    /// Writes that a message of the cycle has no partner: the rank that went on to a collective left it out, and those before only wait
    /// for it.
    fn unmatched(&self) -> Option<String> {
        let place = |it: &Edge| self.stalls[it.stall].place;
        let is_unmatched = |it: &&Edge| {
            matches!(place(it), Place::Pair { .. }) && self.stalls[it.stall].blocked_by.is_none()
        };
        let goes_on = |edge: &&Edge| {
            let is_next = |it: &Edge| it.from == edge.to && matches!(place(it), Place::Collective { .. });
            self.edges.iter().any(is_next)
        };
        let edge = self.edges.iter().filter(is_unmatched).find(goes_on)?;
        let (call, Place::Pair { pair, .. }) = (self.call(edge)?, place(edge)) else { return None };
        let later = self.edges.iter().find(|it| it.from == edge.to).and_then(|it| self.own_call(it));
        let later = later.map(|it| what_at(self.job, it));
        Some(unmatched_text(self.job, pair, call, "never", later.as_deref()))
    }

    /// Writes what a rank does that the others do not.
    fn deviation(&self, rank: Rank, reason: Reason) -> String {
        let own = self.edges.iter().find(|it| it.from == rank).and_then(|it| self.call(it));
        let mine = own.map(|it| what_at(self.job, it)).unwrap_or_default();
        let group = own.map(|it| group_of(self.job, it).to_string()).unwrap_or_default();
        // The call that the others of the cycle wait for it to make.
        let wanted = self.edges.iter().find(|it| it.to == rank).and_then(|it| self.call(it));
        let wanted = wanted
            .map(|it| format!("the {} of {}", what_at(self.job, it), group_of(self.job, it)))
            .unwrap_or_default();
        match reason {
            Reason::Order => format!(
                "rank {rank} changes the order of two groups: it calls the {mine} of {group} before {wanted}; {}",
                self.calls()
            ),
            Reason::History | Reason::Alone | Reason::Count { .. } | Reason::Total { .. } => format!(
                "rank {rank} calls the {mine} of {group} before {wanted}, or skips that: {} wait for {}",
                self.who(),
                self.each()
            ),
        }
    }

    /// Labels the calls of the first ranks, that of `main` first.
    fn labels(&self, main: Option<Rank>) -> Vec<Label> {
        let begin = self.edges.iter().position(|it| Some(it.from) == main).unwrap_or(0);
        let order = self.edges[begin..].iter().chain(&self.edges[..begin]).take(4);
        let waits = |edge: &Edge| {
            let text = format!("rank {} waits here for rank {}", edge.from, edge.to);
            Some(label(self.job, self.call(edge)?, text))
        };
        order.filter_map(waits).collect()
    }
}

/// Explains ranks that wait for each other if none of them is about to make the call that another one waits for.
pub(super) fn possible_cycle(job: &Job<'_>, stalls: &[Stall], edges: &[Edge]) -> Finding {
    let found = cycle(job, stalls, edges, None);
    let who = ranks_text(&edges.iter().map(|it| it.from).collect::<Vec<_>>());
    Finding {
        code: Code::RankLate,
        message: format!("{}, unless one of them is late", found.message),
        help: format!(
            "`isend` and `irecv` do not make the host wait: if the job does not proceed, look at what {who} do: `py-spy dump --pid PID` shows their stacks"
        ),
        ..found
    }
}
