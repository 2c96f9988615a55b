//! Works of streams, hosts and kernels, with what each has to follow and the memory that it accesses. A work is executed once all that it
//! needs are. Two works are unordered if each may be executed before the other one.

use hir_check::OrderingModel;

/// All works of a program.
pub struct Works {
    /// By work: the works that have to be executed before.
    pub needs: Vec<Vec<usize>>,
    pub accesses: Vec<Access>,
    /// By rank: the works of the caller, before and after the program.
    pub callers: Vec<[usize; 2]>,
    /// The tensors before this one belong to the caller. `T0` is an input, the others are outputs.
    locals: usize,
    /// What is added belongs to this run.
    run: usize,
}

/// A read or write of a tensor of a rank, from the beginning of a work to the end of one.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub begin: usize,
    pub end: usize,
    pub rank: usize,
    pub tensor: usize,
    writes: bool,
    run: usize,
}

impl Works {
    /// Returns no works. The tensors from `locals` on do not belong to the caller.
    pub fn new(locals: usize) -> Self {
        Self { needs: Vec::new(), accesses: Vec::new(), callers: Vec::new(), locals, run: 0 }
    }

    /// What is added from now on belongs to the next run.
    pub fn next_run(&mut self) {
        self.run += 1;
    }

    /// Adds a work.
    pub fn add(&mut self, needs: Vec<usize>) -> usize {
        self.needs.push(needs);
        self.needs.len() - 1
    }

    /// Adds an access of some works to a tensor of a rank.
    pub fn access(&mut self, [begin, end]: [usize; 2], (rank, tensor): (usize, usize), writes: bool) {
        self.accesses.push(Access { begin, end, rank, tensor, writes, run: self.run });
    }

    /// Executes all works that need not wait for `held`. Returns by work whether it was executed.
    pub fn without(&self, held: Option<usize>) -> Vec<bool> {
        let mut done = vec![false; self.needs.len()];
        let mut proceeds = true;
        while std::mem::take(&mut proceeds) {
            for at in 0..done.len() {
                if !done[at] && Some(at) != held && self.needs[at].iter().all(|it| done[*it]) {
                    done[at] = true;
                    proceeds = true;
                }
            }
        }
        done
    }

    /// Returns for each work which works may be executed before it.
    fn all_without(&self) -> Vec<Vec<bool>> {
        (0..self.needs.len()).map(|it| self.without(Some(it))).collect()
    }

    /// Returns two accesses that may be at the same time or in either order, if there are any.
    pub fn race(&self, model: OrderingModel) -> Option<String> {
        let before = self.all_without();
        for (at, one) in self.accesses.iter().enumerate() {
            let [entry, exit] = self.callers[one.rank];
            let documented = model == OrderingModel::Nccl;
            if documented && one.tensor == 0 && before[entry][one.begin] {
                return Some(format!("the caller before: {one:?}"));
            }
            // hir's executors overwrite nothing before all streams have ended.
            if one.tensor < self.locals && (documented || one.writes) && before[one.end][exit] {
                return Some(format!("the caller after: {one:?}"));
            }
            if let Some(other) = self.accesses[..at].iter().find(|it| race_of(&before, it, one)) {
                return Some(format!("{other:?} and {one:?}"));
            }
        }
        None
    }

    /// Returns two accesses of different runs that may be at the same time or in either order.
    pub fn race_between_runs(&self) -> Option<String> {
        let before = self.all_without();
        let mut pairs = self.accesses.iter().enumerate().flat_map(|(at, one)| {
            self.accesses[..at].iter().filter(|it| it.run != one.run).map(move |it| (it, one))
        });
        pairs.find(|it| race_of(&before, it.0, it.1)).map(|it| format!("{it:?}"))
    }
}

/// Returns whether two accesses conflict and are unordered.
fn race_of(before: &[Vec<bool>], one: &Access, other: &Access) -> bool {
    (one.rank, one.tensor) == (other.rank, other.tensor)
        && (one.writes || other.writes)
        && one.begin != other.begin
        && before[one.end][other.begin]
        && before[other.end][one.begin]
}
