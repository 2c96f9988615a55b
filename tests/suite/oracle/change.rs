//! Changes programs in one place.

use super::program::{Item, Kind, Node, Program, Scalar, Shape, Stmt};
use crate::rng::Rng;

/// The parts that replace others: the input, the output, locals and a row.
const PARTS: [usize; 5] = [0, 2, 4, 5, 10];
const INPUT: usize = PARTS[0];

/// Changes a program in one place. Returns what it did.
pub fn change(program: &mut Program, rng: &mut Rng) -> Option<&'static str> {
    let all: Vec<_> = program.items().into_iter().map(|it| (it.0, it.1.clone())).collect();
    let orders: Vec<_> =
        all.iter().filter(|it| matches!(it.1.stmt, Stmt::Sync(_) | Stmt::Wait(_) | Stmt::HostSync)).collect();
    let (place, item) = rng.choose_cloned(&all);
    let streams = [None, Some(Scalar::Const(0)), Some(Scalar::Const(1))];
    let rank = rng.below(program.ranks);
    Some(match rng.below(12) {
        0..=3 => {
            let (place, _) = orders.get(rng.below(orders.len()))?;
            program.remove(*place)?;
            "delete"
        }
        4 => {
            let it = program.remove(place)?;
            let at = (place.0 + rng.below(7)).saturating_sub(3);
            program.insert(
                (at.min(program.nodes.len()), None),
                Item { stream: it.stream.filter(|it| *it != Scalar::Index), ..it },
            );
            "move"
        }
        5 => {
            program.item_mut(place)?.stream = rng.choose_cloned(&streams);
            "stream"
        }
        6 => {
            program.item_mut(place)?.ranks &= !(1 << rank);
            "skip"
        }
        7 => {
            let (place, item) = orders.get(rng.below(orders.len()))?;
            let mut wait = item.stmt.clone();
            match &mut wait {
                Stmt::Sync(it) => *it = rng.choose_cloned(&streams),
                Stmt::Wait(it) => *it = (*it + 1 + rng.below(4)).saturating_sub(2),
                _ => return None,
            }
            // A stream that waits for itself does nothing.
            program.item_mut(*place)?.stmt = wait;
            "other"
        }
        8 => {
            program.insert(place, item);
            "twice"
        }
        9 | 10 => {
            let ranks = program.ranks;
            let other = rng.choose_cloned(&PARTS);
            let tensors = program.tensors.clone();
            let swap = |it: &mut usize| {
                if tensors[*it].0 == Shape::Part {
                    *it = other;
                }
            };
            match &mut program.item_mut(place)?.stmt {
                Stmt::Compute { out, from } => match rng.below(2) {
                    0 if other != INPUT => swap(&mut out[0]),
                    _ => swap(&mut from[0]),
                },
                Stmt::Collective { kind, root, input, output, .. } => match rng.below(4) {
                    0 if kind.has_root() => *root = (*root + 1) % 2,
                    1 => swap(input),
                    2 if other != INPUT => swap(output),
                    _ if matches!(kind, Kind::Broadcast | Kind::Reduce | Kind::Allreduce) => {
                        *kind = rng.choose_cloned(&[Kind::Broadcast, Kind::Reduce, Kind::Allreduce]);
                    }
                    _ => return None,
                },
                Stmt::Post(side) => match rng.below(3) {
                    0 => side.peer = Scalar::Const((side.peer.value(rank, 0, ranks) + 1) % ranks),
                    1 => side.sends = !side.sends,
                    _ => swap(&mut side.buffer),
                },
                Stmt::Group { sides, .. } => {
                    let at = rng.below(sides.len());
                    match rng.below(3) {
                        0 => sides[at].peer = Scalar::Rank(rng.below(ranks)),
                        1 => swap(&mut sides[at].buffer),
                        _ => drop(sides.remove(at)),
                    }
                }
                _ => return None,
            }
            "operand"
        }
        _ => {
            // One rank executes two statements in the other order.
            let (Some(Node::One(_)), Some(Node::One(next))) =
                (program.nodes.get(place.0), program.nodes.get(place.0 + 1))
            else {
                return None;
            };
            let mut moved = next.clone();
            moved.ranks &= 1 << rank;
            let next = program.item_mut((place.0 + 1, None))?;
            next.ranks &= !(1 << rank);
            program.insert(place, moved);
            "swap"
        }
    })
}
