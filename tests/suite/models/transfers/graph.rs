//! What a program of sends and receives executes, for races: a kernel that receives ends after the kernels that send to it have begun.

use hir_plan::sync::P2pQueues;

use super::{
    super::{
        sends::{Kernel, RANKS},
        works::Works,
    },
    Program, Statement, TENSORS,
};

/// Returns the works of a program: those of all streams, and the beginning and the end of each kernel.
pub(super) fn works_of(program: &Program, p2p: P2pQueues) -> Works {
    let mut it = Works::new(TENSORS);
    // The beginning and the end of each kernel, by rank and number.
    let mut both = |of: &Vec<Kernel>| of.iter().map(|_| [it.add(Vec::new()), it.add(Vec::new())]).collect();
    let all = &program.kernels;
    let kernels: [Vec<[usize; 2]>; RANKS] = all.of.each_ref().map(&mut both);
    for rank in 0..RANKS {
        for (number, kernel) in all.of[rank].iter().enumerate() {
            let [begin, end] = kernels[rank][number];
            it.needs[end].push(begin);
            for (side, of) in kernel.sides.iter().zip(all.partners(p2p, rank, number)) {
                if let Some(of) = of.filter(|_| !side.sends) {
                    it.needs[end].push(kernels[side.peer][of][0]);
                }
            }
            let queue = |number| all.queue(p2p, rank, number);
            let earlier = (0..number).filter(|it| queue(*it) == queue(number));
            it.needs[begin].extend(earlier.map(|it| kernels[rank][it][1]));
        }
    }
    for (rank, (kernels, statements)) in kernels.iter().zip(&program.statements).enumerate() {
        let entry = it.add(Vec::new());
        // The last work of each stream.
        let mut last = [Some(entry), None];
        for tensor in 1..TENSORS {
            let zeros = it.add(last[0].into_iter().collect());
            it.access([zeros, zeros], (rank, tensor), true);
            last[0] = Some(zeros);
        }
        for statement in statements {
            match *statement {
                Statement::Post { kernel, stream } => {
                    let [begin, end] = kernels[kernel];
                    it.needs[begin].extend(last[stream]);
                    for side in &all.of[rank][kernel].sides {
                        it.access([begin, end], (rank, side.tensor), !side.sends);
                    }
                }
                Statement::Wait { kernel, stream } => {
                    let needs = last[stream].into_iter().chain([kernels[kernel][1]]).collect();
                    last[stream] = Some(it.add(needs));
                }
                Statement::Synchronize { awaited, stream } => {
                    let needs = last[stream].into_iter().chain(last[awaited]).collect();
                    last[stream] = Some(it.add(needs));
                }
                Statement::Compute { out, from, stream } => {
                    let at = it.add(last[stream].into_iter().collect());
                    it.access([at, at], (rank, from), false);
                    it.access([at, at], (rank, out), true);
                    last[stream] = Some(at);
                }
            }
        }
        let exit = it.add(last[0].into_iter().collect());
        it.callers.push([entry, exit]);
    }
    it
}
