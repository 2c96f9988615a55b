//! Checks communications: teams and roots, coalescing groups, shared transfers, and the work that a Wait
//! names.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use super::Verifier;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Program, Stmt, StmtId},
    ops::{Op, OpClass},
    span::Span,
    suggest::{count_text, list_text},
    words::CommunicationType,
};

/// The maximum number of posted communications that a report names.
const MAX_NAMED: usize = 8;

/// A StartCoalescing without its EndCoalescing so far.
pub(super) struct OpenGroup {
    start: StmtId,
    /// The statements of the group that are not P2PCommunications.
    others: Vec<(Op, Span)>,
}

/// The statements that post communications.
#[derive(Default)]
pub(super) struct Posts {
    /// The first statement that posts each number.
    by_number: HashMap<u32, StmtId>,
    /// The communications without a number, in text order, each with its position.
    unnumbered: Vec<(u32, StmtId)>,
}

impl Posts {
    fn of(program: &Program) -> Self {
        let mut posts = Self::default();
        for (id, stmt) in program.stmts.iter() {
            let Stmt::Op(it) = stmt else { continue };
            let is_post = it.op.def().class == OpClass::Communicate || it.op == Op::EndCoalescing;
            if let Some(number) = it.number.filter(|_| is_post) {
                posts.by_number.entry(number).or_insert(id);
            }
            if it.number.is_none() && matches!(it.op, Op::Communication | Op::P2PCommunication) {
                posts.unnumbered.push((program.stmt_span(id).start, id));
            }
        }
        posts.unnumbered.sort_unstable();
        posts
    }

    /// Returns the only communication without a number before a position.
    fn only_unnumbered_before(&self, start: u32) -> Option<StmtId> {
        let before = self.unnumbered.partition_point(|it| it.0 < start);
        let [(_, only)] = self.unnumbered[..before] else { return None };
        Some(only)
    }
}

impl Verifier<'_> {
    pub(super) fn check_team(&mut self, stmt: &OpStmt, id: StmtId) {
        let Some(team) = stmt.get(attr::TEAM) else { return };
        let distinct: HashSet<usize> = team.iter().copied().collect();
        if team.is_empty() || distinct.len() != team.len() {
            let mut seen = HashSet::default();
            let message = match team.iter().find(|it| !seen.insert(**it)) {
                Some(twice) => format!("the team contains rank {twice} twice"),
                None => "the team is empty".to_owned(),
            };
            let place = self.program.attr_span(id, attr::TEAM.name());
            self.error(Code::BadTeam, place, message, "expected each rank once");
        }
        let Some(kind) = stmt.get(attr::TYPE) else { return };
        match (kind.is_rooted(), stmt.get(attr::ROOT)) {
            (true, None) => {
                let place = self.program.attr_span(id, attr::TYPE.name());
                let it = Diagnostic::new(
                    Code::BadRoot,
                    place,
                    format!("{kind} needs a root"),
                    "this type has a root",
                );
                self.diagnostics.push(it.help("add `root=0`: an index into the team, from 0"));
            }
            (false, Some(_)) => {
                let place = self.program.attr_span(id, attr::ROOT.name());
                self.error(Code::BadRoot, place, format!("{kind} has no root"), "remove this")
            }
            (true, Some(root)) => {
                let outside =
                    self.program.constant(root).filter(|root| *root < 0 || *root >= team.len() as i64);
                if let Some(root) = outside {
                    let message = format!("root {root} is not an index into a team of {}", team.len());
                    let place = self.program.attr_span(id, attr::ROOT.name());
                    let label =
                        format!("expected an index into the team, 0 to {}", team.len().saturating_sub(1));
                    self.error(Code::BadRoot, place, message, label);
                }
            }
            (false, None) => (),
        }
        if kind == CommunicationType::SendRecv && team.len() > 2 {
            let place = self.program.attr_span(id, attr::TEAM.name());
            self.error(
                Code::BadTeam,
                place,
                "SendRecv requires a team of two",
                "expected the sender and the receiver",
            );
        }
    }

    pub(super) fn check_coalescing(&mut self, id: StmtId, stmt: &OpStmt, span: Span) {
        match (stmt.op, &mut self.open_coalescing) {
            (Op::StartCoalescing, None) => {
                self.open_coalescing = Some(OpenGroup { start: id, others: Vec::new() });
            }
            (Op::EndCoalescing, Some(_)) => self.end_of_group(),
            (Op::EndCoalescing, None) => {
                let message = "EndCoalescing without StartCoalescing";
                let it = Diagnostic::new(Code::BadCoalescing, span, message, "nothing to close");
                let help =
                    "insert `StartCoalescing` before the first P2PCommunication of the group, or remove this";
                self.diagnostics.push(it.help(help));
            }
            (Op::P2PCommunication, _) | (_, None) => (),
            (_, Some(group)) => group.others.push((stmt.op, span)),
        }
    }

    /// Reports the first statement of a group that does not belong to it.
    fn end_of_group(&mut self) {
        let Some(group) = self.open_coalescing.take() else { return };
        let [(op, span), rest @ ..] = group.others.as_slice() else { return };
        let (message, label) = match op {
            Op::StartCoalescing => {
                ("StartCoalescing inside another".to_owned(), "expected EndCoalescing first")
            }
            _ => {
                let message = format!("`{}` between StartCoalescing and EndCoalescing", op.name());
                (message, "expected P2PCommunication")
            }
        };
        let mut it = Diagnostic::new(Code::BadCoalescing, *span, message, label);
        if !rest.is_empty() {
            let others = count_text(rest.len(), "more statement");
            it = it.note(format!("the group contains {others} that cannot be in a group"));
        }
        self.diagnostics.push(it);
    }

    /// Reports a group that the end of its block leaves open. Which statements belong to it is unknown.
    pub(super) fn end_of_block(&mut self) {
        let Some(group) = self.open_coalescing.take() else { return };
        let span = self.program.stmt_span(group.start);
        let message = "StartCoalescing without EndCoalescing";
        let it = Diagnostic::new(Code::BadCoalescing, span, message, "opened here");
        let help = "insert `EndCoalescing` after the last P2PCommunication of the group, in the same block";
        self.diagnostics.push(it.help(help));
    }

    /// Checks that the transfers listed in ShareMemHandles have numbers, by which transfers refer to their
    /// handles.
    pub(super) fn check_shared_transfers(&mut self, transfers: &[StmtId]) {
        for id in transfers {
            if matches!(&self.program.stmts[*id], Stmt::Op(it) if it.number.is_none()) {
                let span = self.program.stmt_span(*id);
                let message = "a P2PCommunication of ShareMemHandles has no number";
                self.error(Code::BadAttribute, span, message, "expected `P2PCommunication 37 (…)`");
            }
        }
        let number = |it: &StmtId| self.program.stmts[*it].op().and_then(|it| it.number);
        for (at, id) in transfers.iter().enumerate() {
            let first = transfers[..at].iter().find(|it| number(it).is_some() && number(it) == number(id));
            let Some((first, number)) = first.zip(number(id)) else { continue };
            let message = format!("two transfers of one ShareMemHandles have the number {number}");
            let (span, first) = (self.program.stmt_span(*id), self.program.stmt_span(*first));
            let it = Diagnostic::new(Code::BadAttribute, span, message, "expected another number")
                .label(first, "the first one")
                .help(format!(
                    "write a number of its own, here, in the P2PCommunication that posts this transfer, and in its Wait: \
                     `Communication {number}` of a Wait is one of the two"
                ));
            self.diagnostics.push(it);
        }
    }

    /// Reports a Wait for a communication that is not posted before it.
    pub(super) fn unknown_work(&mut self, number: u32, wait: StmtId) {
        let place = self.program.attr_span(wait, attr::WORK.name());
        let message = format!("no communication with the number {number} is posted before this Wait");
        let mut names: Vec<String> = self.posted.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = self.posted.len() - names.len();
        names.extend((more > 0).then(|| format!("{more} more")));
        let label = match names.len() {
            0 => "nothing is posted before it".to_owned(),
            count => {
                format!("posted before it: {}", list_text(names.iter().map(String::as_str), count, "and"))
            }
        };
        let help = match self.posted.last() {
            None => "remove this Wait, or post the communication that it waits for before it".to_owned(),
            Some(last) => format!(
                "write the number of the communication that it waits for, as in `Wait(Communication {last})`, or remove this Wait"
            ),
        };
        let mut it = Diagnostic::new(Code::UnknownWork, place, message, label).help(help);
        let posts = self.posts.get_or_init(|| Posts::of(self.program));
        if let Some(later) = posts.by_number.get(&number) {
            let later = self.program.stmt_span(*later);
            it = if later.start < place.start {
                it.label(later, "it is posted here, in a loop that may end before")
                    .help("move the Wait into the loop, behind the communication")
            } else {
                it.label(later, "it is posted here, after the Wait")
                    .help("move the Wait behind the communication")
            };
        }
        if names.is_empty()
            && let Some(id) = posts.only_unnumbered_before(self.program.stmt_span(wait).start)
            && let Stmt::Op(stmt) = &self.program.stmts[id]
        {
            it = it
                .label(self.program.stmt_span(id), "this communication has no number")
                .help(format!("write `{} {number} (…)`", stmt.op.name()));
        }
        self.diagnostics.push(it);
    }
}
