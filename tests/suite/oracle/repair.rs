//! Adds the waits that a program needs.

use super::{
    program::{Executed, Item, Program, Scalar, Stmt},
    verdict::{Fault, faults_until},
    works::{By, Rules},
};
use crate::rng::Rng;

/// Adds what orders the accesses that race, one after another. Returns nothing if that is not possible.
pub fn repaired(mut program: Program, rules: Rules, rng: &mut Rng) -> Option<Program> {
    for _ in 0..60 {
        let all = faults_until(&program, rules, true, &|found| !found.is_empty());
        let Some(fault) = all.first() else { return Some(program) };
        repair(&mut program, fault, rng)?;
    }
    None
}

fn repair(program: &mut Program, fault: &Fault, rng: &mut Rng) -> Option<()> {
    if !matches!(fault.code, "E0701" | "E0702" | "E0703") {
        return None;
    }
    let rank = fault.second.or(fault.first)?.rank;
    let (mut at, stream, ranks, on) = match fault.second {
        Some(By { place, stream, .. }) => {
            let item = program.item(place)?;
            (place, item.stream, item.ranks, stream)
        }
        None => ((program.nodes.len(), None), None, program.item(fault.first?.place)?.ranks, 0),
    };
    // What the later statement has to follow.
    let mut stmt = Stmt::Sync(fault.stream.checked_sub(1).map(Scalar::Const));
    if let Some(number) = fault.first.and_then(|it| it.number) {
        let all = program.executed(rank);
        let is_wait = |it: &&Executed<'_>| *it.stmt == Stmt::Wait(number);
        let awaited = all.iter().find(is_wait).map(|it| (it.place, it.stream));
        let end = fault.second.map_or(usize::MAX, |it| it.at);
        match awaited {
            Some((place, of)) if all.iter().position(|it| it.place == place)? < end => {
                stmt = Stmt::Sync(of.checked_sub(1).map(Scalar::Const));
                if of == on {
                    return None;
                }
            }
            Some((place, _))
                if program.item(place)?.ranks == ranks && place.1.is_none() && place.0 > at.0 =>
            {
                program.remove(place)?;
                stmt = Stmt::Wait(number);
            }
            Some(_) => return None,
            None => stmt = Stmt::Wait(number),
        }
    } else if fault.first.is_some_and(|it| it.rank != rank) || fault.stream == on {
        return None;
    }
    // Anywhere behind the first statement.
    let mut stream = stream;
    if let (Some(first), true) = (fault.first, rng.below(2) == 0)
        && first.place.0 < at.0
    {
        at = (first.place.0 + 1 + rng.below(at.0 - first.place.0), None);
        stream = on.checked_sub(1).map(Scalar::Const);
    }
    program.insert(at, Item { ranks, stream, stmt });
    Some(())
}
