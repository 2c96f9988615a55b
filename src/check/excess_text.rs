//! Excess as diagnostics.

use grammar::{codes::Code, diagnostic::Diagnostic};

use super::{
    excess::{Excess, ExcessKind, Place},
    explain::{Texts, list},
};

impl Texts<'_> {
    /// What the program could do without.
    pub fn excess(&self, it: &Excess) -> (usize, Diagnostic) {
        let (rank, origin) = it.at;
        let plan = &self.plans[rank];
        let text = self.text_of(rank);
        let line = |origin: u32| plan.origins[origin as usize].line;
        let place = |it: Place| self.plans[it.0].describe(it.1);
        let span = self.span(text, line(origin));
        let found = match &it.kind {
            ExcessKind::Implied => {
                let message = "other statements give the order of this wait already";
                Diagnostic::new(Code::ImpliedWait, span, message, "not needed")
                    .note("without it, all work still follows the same other work, on all ranks")
                    .help("remove it, and check again: others may be needed then")
            }
            ExcessKind::Unneeded { pair } => {
                let pair = pair.map(|it| (it.rank, self.plans[it.rank].code[it.inst].origin));
                let [first, second] = pair;
                let message = "no accesses to the same memory depend on this wait".to_owned();
                let mut found = Diagnostic::new(Code::UnneededWait, span, message, "serialises the two");
                let lines = pair.map(|it| self.plans[it.0].origins[it.1 as usize].line);
                if self.text_of(first.0) == text && self.text_of(second.0) == text && lines[0] != lines[1] {
                    for (line, label) in [(lines[0], "this comes first"), (lines[1], "and this waits for it")]
                    {
                        if line != plan.origins[origin as usize].line {
                            found = found.label(self.span(text, line), label);
                        }
                    }
                }
                let of = |it: Place| match first.0 == second.0 {
                    true => place(it),
                    false => format!("{} of rank {}", place(it), it.0),
                };
                found
                    .note(format!("{} waits for {}", of(second), of(first)))
                    .help("remove it, unless it limits what runs at the same time, and check again: others may be needed then")
            }
            ExcessKind::Unread { target: (name, owner), overwritten, is_allocation, communicates } => {
                // The tensors of a HostUnit have names of their own.
                let is_named = self.line(text, line(origin)).contains(&format!("{name}_"));
                let to = match *owner == rank {
                    true => format!(" to `{name}`"),
                    false => format!(" to `{name}` of rank {owner}"),
                };
                let message = match is_allocation {
                    true => format!("nothing reads the zeros of `{name}`"),
                    false if is_named => format!("nothing reads what this statement writes{to}"),
                    false => "nothing reads what this statement writes".to_owned(),
                };
                let found = Diagnostic::new(Code::UnreadWrite, span, message, "writes it");
                let found = match overwritten {
                    Some(by) => found.note(format!("{} overwrites it", place(*by))),
                    None if *is_allocation => found,
                    None => found.note("it is no output, and no memory of the caller"),
                };
                found.help(match (is_allocation, communicates) {
                    (true, _) => "use `zero_init=false`",
                    (false, true) => {
                        "remove it, together with the other sides of this communication and their Waits, and check again: a Wait \
                         orders other accesses, too, and a name that a later statement uses still needs its storage"
                    }
                    (false, false) => {
                        "remove it; a name that a later statement uses still needs storage: put an ALLOCATE in its place"
                    }
                })
            }
            ExcessKind::AllocatedOnce { name, skipped, is_zeroed } => {
                let times =
                    if *skipped == 1 { "1 later iteration" } else { &format!("{skipped} later iterations") };
                let message = format!("this ALLOCATE has no effect in {times}, where `{name}` is bound");
                let found = Diagnostic::new(Code::AllocatedOnce, span, message, "allocates in the first iteration")
                    .help(
                        "put it before the loop, or use the short ALLOCATE, `ALLOCATE(mem_type=…, zero_init=…)`, which \
                         gives every iteration storage of its own, if no iteration reads what an earlier one wrote",
                    );
                match is_zeroed {
                    true => found.note("later iterations find what earlier ones have written, and not zeros"),
                    false => found,
                }
            }
            ExcessKind::NotDeallocated { name, bound, last } => {
                let message = format!(
                    "the storage of `{name}` is kept until the end, and the program deallocates other storage"
                );
                let bound = bound.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(" and ");
                let found = Diagnostic::new(Code::NotDeallocated, span, message, "allocates it");
                match last {
                    Some(last) => found.help(format!("put a Deallocate of {bound} behind {}", place(*last))),
                    None => found.note("no statement uses it"),
                }
            }
        };
        let ranks = (it.ranks.len() > 1).then(|| format!("on ranks {}", list(it.ranks.iter())));
        let count = (it.count > 1).then(|| format!("{} instances", it.count));
        let parts: Vec<String> = [count, ranks].into_iter().flatten().collect();
        (text, if parts.is_empty() { found } else { found.note(parts.join(", ")) })
    }
}
