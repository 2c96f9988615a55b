//! Applies the edits of all findings of random programs at once. No race may be left: a race that no edit removes has to be a finding of
//! its own, and a finding may be listed under another one only if the edit of that one removes it.

use std::collections::BTreeSet;

use grammar::{diagnostic::has_errors, source::Source};
use hir_check::{Checks, StorageModel, check};
use hir_plan::sync::LaunchOrder;
use libtest_mimic::{Failed, Trial};

use crate::rng::Rng;

/// Makes the statements of a program, which use the tensors `T0` to `T5`.
type MakeBody = fn(&mut Rng) -> Vec<String>;

/// The programs, by name, each with the mesh.
const PROGRAMS: [(&str, &str, MakeBody); 2] =
    [("streams", "{0}", streams), ("communications", "{0 1}", communications)];
const COUNT: u64 = 400;

/// Returns a trial for each kind of programs.
pub fn trials() -> Vec<Trial> {
    let of = |(name, mesh, body): (&'static str, &'static str, MakeBody)| {
        Trial::test(format!("helps::{name}"), move || {
            (0..COUNT).try_for_each(|seed| check_helps(seed, mesh, body))
        })
    };
    PROGRAMS.into_iter().map(of).collect()
}

fn check_helps(seed: u64, mesh: &str, body: MakeBody) -> Result<(), Failed> {
    let tensors: String =
        (0..6).map(|it| format!("%tensor T{it}_g_float[iS{it}{{4}}] (DeviceMesh{mesh})\n")).collect();
    let body: String = body(&mut Rng(seed)).iter().map(|it| format!("  {it}\n")).collect();
    let text = format!("{tensors}%HostIrContainer {{ (T0) -> (T1, T2) :\n{body}}} // %HostIrContainer\n");
    let edits = edits(&text)?;
    let mut edited = text.clone();
    for (start, end, text) in edits.iter().rev() {
        edited.replace_range(*start..*end, text);
    }
    if self::edits(&edited)?.is_empty() {
        Ok(())
    } else {
        Err(format!("seed {seed}: a race is left:\n{text}\nwith all edits:\n{edited}").into())
    }
}

/// Returns the edits of all races of a program, in text order: each range, and its replacement.
fn edits(text: &str) -> Result<BTreeSet<(usize, usize, String)>, Failed> {
    let source = Source::new("program".to_owned(), text.to_owned());
    let (mut programs, diagnostics) = source.programs();
    let program = programs.pop().filter(|_| !has_errors(&diagnostics)).ok_or("the program is rejected")?;
    let plans = hir_plan::build(&program, &source.lines, hir_plan::smallest_world(&program))
        .map_err(|it| format!("{it:?}\n{text}"))?;
    // The edits of `--storage=pytorch` also have the choice to move a Deallocate.
    let checks = Checks {
        comm: false,
        memory: false,
        storage: StorageModel::NeverReused,
        nccl: LaunchOrder::Implicit,
        ..Checks::ALL_FAULTS
    };
    let mut found = BTreeSet::new();
    for (_, it) in check(&plans, checks).diagnostics(&plans, &[source]) {
        if it.fixes.is_empty() {
            return Err(format!("no edit: {}\n{text}", it.message).into());
        }
        let edit = |it: grammar::diagnostic::Fix| (it.span.start as usize, it.span.end as usize, it.text);
        found.extend(it.fixes.into_iter().map(edit));
    }
    Ok(found)
}

fn allocations() -> Vec<String> {
    let allocate = |it| format!("T{it} = ALLOCATE(mem_type=global, zero_init=true)");
    std::iter::once("Stream s0 = GetCurrentStream()".to_owned()).chain((1..6).map(allocate)).collect()
}

fn stream(number: usize) -> String {
    if number == 0 { "Stream s0".to_owned() } else { format!("Stream {number}") }
}

/// Statements on three streams, in loops and outside, with few waits.
fn streams(rng: &mut Rng) -> Vec<String> {
    let mut body = allocations();
    let (mut current, mut left_in_loop) = (0, 0);
    for _ in 0..5 + rng.below(16) {
        let indent = if left_in_loop > 0 { "  " } else { "" };
        left_in_loop = usize::saturating_sub(left_in_loop, 1);
        match rng.below(100) {
            0..50 => {
                let (to, from) = (1 + rng.below(5), 1 + rng.below(5));
                let from = if from == to { 0 } else { from };
                body.push(format!("{indent}T{to} = neg(T{from})"));
            }
            50..72 => {
                current = rng.below(3);
                body.push(format!("{indent}SetCurrentStream({})", stream(current)));
            }
            72..88 => {
                let other = rng.below(3);
                if other != current {
                    body.push(format!("{indent}Synchronize({})", stream(other)));
                }
            }
            _ if indent.is_empty() => {
                body.push("FOR i0 from 0 to 4:".to_owned());
                body.push(format!("  SetCurrentStream({})", stream(current)));
                left_in_loop = 2 + rng.below(4);
            }
            _ => (),
        }
    }
    body.push("SetCurrentStream(Stream s0)".to_owned());
    body.extend((1..3).filter(|_| rng.chance(80)).map(|it| format!("Synchronize({})", stream(it))));
    body
}

/// All-reduces on two communicators, whose Waits come late.
fn communications(rng: &mut Rng) -> Vec<String> {
    let mut body = allocations();
    let (mut pending, mut number) = (Vec::new(), 0);
    for _ in 0..4 + rng.below(9) {
        let (to, from) = (1 + rng.below(5), rng.below(6));
        match rng.below(3) {
            0 => body.push(format!("T{to} = neg(T{from})")),
            1 if from != to => {
                let team = rng.choose(&["0 1", "1 0"]).unwrap_or_default();
                body.push(format!(
                    "Communication {number} (type=Allreduce, team=({team}), red_op=SUM, input=T{from}, output=T{to}, backend=NCCL)"
                ));
                pending.push(number);
                number += 1;
            }
            _ if pending.is_empty() => (),
            _ => body.push(format!("Wait(Communication {})", pending.swap_remove(rng.below(pending.len())))),
        }
    }
    body.extend(pending.into_iter().map(|it| format!("Wait(Communication {it})")));
    body
}
