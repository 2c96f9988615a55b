//! Formats excess findings as diagnostics.

use grammar::{Code, Diagnostic, Span};

use super::{
    diagnostics::{DiagnosticBuilder, format_occurrences},
    excess::{Excess, ExcessKind, StmtOnRank},
};
use hir_plan::sync::InstRef;

impl DiagnosticBuilder<'_> {
    /// Returns the index of the source text and the diagnostic for an excess finding.
    pub fn excess(&self, it: &Excess) -> (usize, Diagnostic) {
        let found = match &it.kind {
            ExcessKind::ImpliedWait => self.implied(it.stmt),
            ExcessKind::UnneededWait { pair } => self.unneeded(it.stmt, *pair),
            ExcessKind::UnreadWrite {
                target,
                overwritten_by: overwritten,
                is_allocation: true,
                communicates: _,
            } => self.unread_zeros_diagnostic(it.stmt, target.as_ref(), *overwritten),
            ExcessKind::UnreadWrite {
                target,
                overwritten_by: overwritten,
                is_allocation: false,
                communicates,
            } => self.unread(it.stmt, target.as_ref(), *overwritten, *communicates),
            ExcessKind::AllocatesOnce { name, skipped, is_zeroed } => {
                self.allocated_once(it.stmt, name, *skipped, *is_zeroed)
            }
            ExcessKind::NotDeallocated { name, bound_names: bound, last_use: last } => {
                self.not_deallocated(it.stmt, name, bound, *last)
            }
        };
        let more = format_occurrences(it.count, &it.ranks);
        (self.text_of(it.stmt.0), if more.is_empty() { found } else { found.note(more.join(", ")) })
    }

    fn implied(&self, at: StmtOnRank) -> Diagnostic {
        let message = "redundant wait: other statements already order everything that it orders";
        Diagnostic::new(Code::ImpliedWait, self.stmt_span(at), message, "not needed")
            .note(
                "without this statement, the happens-before order of all computations, copies and communications is the same",
            )
            .help("remove only this wait, then check again: another wait in this list may then be needed")
    }

    fn unneeded(&self, at: StmtOnRank, pair: [InstRef; 2]) -> Diagnostic {
        let pair = pair.map(|it| (it.rank, self.plans[it.rank].code[it.inst].origin));
        let [first, second] = pair;
        let mut labels = [(first, "first statement"), (second, "second statement")];
        labels.sort_by_key(|it| self.stmt_line(it.0));
        let is_shown = |it: StmtOnRank| self.text_of(it.0) == self.text_of(at.0);
        let are_shown = pair.into_iter().all(is_shown) && self.stmt_line(first) != self.stmt_line(second);
        let message = "unneeded wait: no two accesses to the same memory are ordered by it alone";
        let label = if are_shown { "only this wait orders the other two statements" } else { "not needed" };
        let mut found = Diagnostic::new(Code::UnneededWait, self.stmt_span(at), message, label);
        for (stmt, label) in labels.into_iter().filter(|_| are_shown) {
            found = found.label(self.stmt_span(stmt), label);
        }
        let of = |it: StmtOnRank| {
            if first.0 == second.0 {
                self.stmt_name(it)
            } else {
                format!("{} of rank {}", self.stmt_name(it), it.0)
            }
        };
        found.note(format!("{} waits for {}", of(second), of(first))).help(
            "remove this wait only, unless it limits what runs at the same time, then check again: it may make another reported wait \
             necessary",
        )
    }

    fn unread_zeros_diagnostic(
        &self,
        at: StmtOnRank,
        target: Option<&(String, usize)>,
        overwritten: Option<StmtOnRank>,
    ) -> Diagnostic {
        let message = match target {
            Some((name, _)) => format!("nothing reads the zeros of `{name}`"),
            None => "nothing reads the zeros that this statement writes".to_owned(),
        };
        let found = Diagnostic::new(Code::UnreadWrite, self.stmt_span(at), message, "writes them")
            .help("use `zero_init=false`");
        match overwritten {
            Some(by) => found.note(format!("{} overwrites them", self.stmt_name(by))),
            None => found,
        }
    }

    fn unread(
        &self,
        at: StmtOnRank,
        target: Option<&(String, usize)>,
        overwritten: Option<StmtOnRank>,
        communicates: bool,
    ) -> Diagnostic {
        let target = target.map(|(name, owner)| {
            if *owner == at.0 { format!("`{name}`") } else { format!("`{name}` of rank {owner}") }
        });
        let to = target.as_ref().map(|it| format!(" to {it}")).unwrap_or_default();
        let message = format!("nothing reads what this statement writes{to}");
        let note = match overwritten {
            Some(by) => format!("{} overwrites it", self.stmt_name(by)),
            None => {
                let it = target.as_deref().unwrap_or("the tensor");
                format!("{it} is not an output or an input, and nothing reads it before the program ends")
            }
        };
        Diagnostic::new(Code::UnreadWrite, self.stmt_span(at), message, "writes it").note(note).help(
            if communicates {                     "remove this communication on all its ranks, and its Waits; then check again, since a Wait may order other \
                     accesses. If a later statement uses the name, put an ALLOCATE in its place."
                 } else { "remove it. If a later statement uses the name, put an ALLOCATE in its place." },
        )
    }

    fn allocated_once(&self, at: StmtOnRank, name: &str, skipped: usize, is_zeroed: bool) -> Diagnostic {
        let times = if skipped == 1 { "1 later iteration" } else { &format!("{skipped} later iterations") };
        let message = format!(
            "this ALLOCATE allocates in the first iteration only: in {times} `{name}` is already bound"
        );
        let label = "allocates in the first iteration";
        let found = Diagnostic::new(Code::AllocatedOnce, self.stmt_span(at), message, label).help(
            "put it before the loop, or use the short ALLOCATE, `ALLOCATE(mem_type=…, zero_init=…)`, which gives every iteration \
             its own storage, if no iteration reads what an earlier one wrote",
        );
        if is_zeroed {
            found.note("later iterations see the values of earlier ones, not zeros")
        } else {
            found
        }
    }

    fn not_deallocated(
        &self,
        at: StmtOnRank,
        name: &str,
        bound: &[String],
        last: Option<StmtOnRank>,
    ) -> Diagnostic {
        let message =
            format!("`{name}` is never deallocated, although the program deallocates other tensors");
        let found = Diagnostic::new(Code::NotDeallocated, self.stmt_span(at), message, "allocates it");
        let Some(last) = last else { return found.note("no statement uses it") };
        let statement = |name: &String| {
            format!("`Deallocate {{ {} }}`", self.tensor_text(at.0, name).unwrap_or(name.as_str()))
        };
        let statements: Vec<String> = bound.iter().map(statement).collect();
        // If the last use is in a loop that does not contain the ALLOCATE, every iteration of that loop uses
        // the tensor.
        let loops = |it: StmtOnRank| {
            let plan = &self.plans[it.0];
            plan.enclosing_loops(plan.origins[it.1 as usize].iteration)
        };
        let of_allocate = loops(at);
        let shared = of_allocate.iter().zip(loops(last)).take_while(|(a, b)| *a == b).count();
        let after = match loops(last).get(shared) {
            Some((index, _)) => {
                format!("the loop over {index}: the last use is {}", self.stmt_name(last))
            }
            None => self.stmt_name(last),
        };
        found.help(format!("insert {} after {after}", statements.join(" and ")))
    }

    /// Returns the 1-based line of a statement, or 0 for the end of the program.
    fn stmt_line(&self, it: StmtOnRank) -> u32 {
        self.plans[it.0].origins[it.1 as usize].line
    }

    fn stmt_span(&self, it: StmtOnRank) -> Span {
        self.span(self.text_of(it.0), self.stmt_line(it))
    }

    /// Returns the name of a statement in reports.
    fn stmt_name(&self, it: StmtOnRank) -> String {
        self.plans[it.0].describe_origin(it.1)
    }
}
