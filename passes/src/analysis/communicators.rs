//! Which communications of NCCL could ranks start in different orders?
//!
//! Kernels of NCCL wait for other ranks while they occupy a GPU, which may be unable to run those of two communicators at the same
//! time (E0707). A deadlock needs a cycle of ranks, each of which shares a communicator with the next one. So two communications
//! conflict if they have different communicators and share a rank that the other communicators of the program connect with another
//! rank of the first one. Sends and receives that are in no group may have communicators of their own, and so may a SendRecv
//! (PyTorch without eager initialization): here these are one communicator of their team.

use grammar::{Algorithm, Backend, CommunicationType, Op, OpClass, OpStmt, Program, StmtId, attr};
use rustc_hash::FxHashMap;

/// The largest rank that is looked at: a text may name any.
const MAX_RANK: usize = 1 << 16;

/// A communicator: the ranks of its team in order, and whether it is that of sends and receives which are in no group.
type Communicator = (Vec<usize>, bool);

/// The communicators of a program, of which it has several.
pub struct Communicators {
    /// The communicator of sends and receives: the ranks of all teams and meshes.
    world: Vec<usize>,
    /// All communicators.
    all: Vec<Communicator>,
    /// By communicator, those of its ranks that other communicators connect with another of its ranks.
    cycles: FxHashMap<Communicator, Vec<usize>>,
}

/// A communication of NCCL, or the beginning or the end of a group of sends and receives.
#[derive(Clone)]
pub struct Post {
    /// The number in the text.
    pub number: Option<u32>,
    communicator: Communicator,
    /// Whether it begins here: not the end of a group.
    pub begins: bool,
    /// Whether it may run from here on: not the beginning of a group.
    pub runs: bool,
}

impl Communicators {
    /// Returns the communicators of a program; `None` if it has only one, or ranks that are too large to look at.
    pub fn of(program: &Program) -> Option<Self> {
        Self::updated(program, None)
    }

    /// As `of`, for a program that had the communicators `known`.
    pub fn updated(program: &Program, known: Option<Self>) -> Option<Self> {
        let mut it = Self { world: world_team(program), all: Vec::new(), cycles: FxHashMap::default() };
        let mut is_in_group = false;
        let stmts = program.body().iter();
        let posts = stmts.flat_map(|stmt| it.posts(program, *stmt, &mut is_in_group));
        let mut all: Vec<Communicator> = posts.map(|it| it.communicator).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() < 2 || all.iter().flat_map(|it| &it.0).any(|rank| *rank >= it.world.len()) {
            return None;
        }
        it.cycles = match known.filter(|known| known.all == all && known.world == it.world) {
            Some(known) => known.cycles,
            None => ranks_on_cycles(&all, &it.world),
        };
        it.all = all;
        Some(it)
    }

    /// Returns the ranks of all teams and meshes: the team of groups of sends and receives.
    pub fn world(program: &Program) -> Vec<usize> {
        world_team(program)
    }

    /// Returns the communications of NCCL at a statement, and for a loop or a branch those that it contains. `is_in_group` is the
    /// state of a walk over the statements.
    pub fn posts(&self, program: &Program, stmt: StmtId, is_in_group: &mut bool) -> Vec<Post> {
        let mut found = Vec::new();
        for (_, it) in program.ops_at(stmt) {
            let team = || it.get(attr::TEAM).unwrap_or(&self.world).to_vec();
            let is_send =
                it.op == Op::P2PCommunication || it.get(attr::TYPE) == Some(CommunicationType::SendRecv);
            let post =
                |begins, runs| Post { number: it.number, communicator: (team(), is_send), begins, runs };
            match it.op.def().class {
                OpClass::Coalescing => {
                    *is_in_group = it.op == Op::StartCoalescing;
                    found.push(post(*is_in_group, !*is_in_group));
                }
                OpClass::Communicate if !*is_in_group && is_of_nccl(it) => found.push(post(true, true)),
                _ => (),
            }
        }
        found
    }

    /// Returns whether ranks could start a communication and an earlier one in different orders, if nothing orders them.
    pub fn conflict(&self, post: &Post, earlier: &Post) -> bool {
        let ranks = self.cycles.get(&post.communicator).map_or(&[][..], Vec::as_slice);
        let earlier = &earlier.communicator;
        *earlier != post.communicator && earlier.0.iter().any(|rank| ranks.contains(rank))
    }

    /// Adds the communications at a statement to others, one for each communicator.
    pub fn add(&self, program: &Program, stmt: StmtId, posts: &mut Vec<Post>) {
        for post in self.posts(program, stmt, &mut false) {
            if posts.iter().all(|it| it.communicator != post.communicator) {
                posts.push(post);
            }
        }
    }

    /// Returns whether any two of the communications conflict.
    pub fn conflict_among(&self, posts: &[Post]) -> bool {
        posts.iter().any(|one| posts.iter().any(|two| self.conflict(one, two)))
    }
}

/// Returns, by communicator, those of its ranks that other communicators connect with another of its ranks.
fn ranks_on_cycles(all: &[Communicator], world: &[usize]) -> FxHashMap<Communicator, Vec<usize>> {
    let of = |own: &Communicator| {
        let team = &own.0;
        let mut parent: Vec<usize> = (0..world.len()).collect();
        for other in all.iter().filter(|it| *it != own) {
            for pair in other.0.windows(2) {
                let (one, two) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
                parent[two] = one;
            }
        }
        let mut count: FxHashMap<usize, usize> = FxHashMap::default();
        let roots: Vec<usize> = team.iter().map(|it| root(&mut parent, *it)).collect();
        roots.iter().for_each(|it| *count.entry(*it).or_default() += 1);
        team.iter().zip(roots).filter(|(_, root)| count[root] > 1).map(|(rank, _)| *rank).collect()
    };
    all.iter().map(|it| (it.clone(), of(it))).collect()
}

/// Returns the representative of the set that contains a rank, in a forest of parents.
fn root(parent: &mut [usize], mut it: usize) -> usize {
    while parent[it] != it {
        parent[it] = parent[parent[it]];
        it = parent[it];
    }
    it
}

/// Returns whether a communication runs in kernels of NCCL.
pub fn is_of_nccl(it: &OpStmt) -> bool {
    matches!(it.get(attr::BACKEND), Some(Backend::Nccl) | None)
        && matches!(it.get(attr::ALGO), Some(Algorithm::Nccl) | None)
}

/// Returns the ranks of all teams and meshes: the communicator of sends and receives.
fn world_team(program: &Program) -> Vec<usize> {
    let teams = program.stmts.iter().filter_map(|(_, it)| it.op()?.get(attr::TEAM));
    let in_teams = teams.flat_map(<[usize]>::iter);
    let in_meshes = program.tensors.iter().flat_map(|(_, it)| &it.mesh.devices);
    let largest = in_teams.chain(in_meshes).max().copied().unwrap_or(0);
    (0..=largest.min(MAX_RANK)).collect()
}
