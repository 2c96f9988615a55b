//! Healthy jobs: what each rank of a TP × DP × PP × EP mesh calls.
//!
//! The steps are those of training loops: pipelines with blocking or batched sends, all-reduces of tensor parallelism, all-to-alls of experts,
//! rings of attention, gradients that are reduced synchronously, by DDP's asynchronous buckets, or by FSDP, the loss, and checkpoints.

use super::rng::Rng;

/// A message of a send, a receive or a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub sends: bool,
    /// The other rank, of the world.
    pub peer: usize,
}

/// What is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    AllReduce,
    Barrier,
    /// From this rank of the world.
    Broadcast(usize),
    /// To this rank of the world.
    Reduce(usize),
    AllGather,
    ReduceScatter,
    AllToAll,
    Message(Message),
    Batch(Vec<Message>),
}

/// A call of a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    pub group: usize,
    pub kind: Kind,
    /// The number of elements of the input.
    pub size: u64,
    /// The name of the element type and its bytes.
    pub dtype: (&'static str, u64),
    pub line: u32,
    /// Whether the program's stream does not wait for it before the next `WaitAll`.
    pub is_async: bool,
    pub iteration: usize,
    /// The time that the host computes before it, and the time that it takes, in nanoseconds.
    pub host_time: u64,
    pub device_time: u64,
}

/// A step of a rank.
#[derive(Clone, Debug)]
pub enum Step {
    Call(Call),
    /// The program's stream waits for all asynchronous calls.
    WaitAll,
    /// The host waits for the program's stream, as `.item()` does.
    Item,
}

/// A process group.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    pub desc: String,
    pub ranks: Vec<usize>,
}

/// A job.
#[derive(Clone)]
pub struct Program {
    pub groups: Vec<Group>,
    pub ranks: Vec<Vec<Step>>,
}

impl Program {
    /// Returns the calls of a rank with their positions among its steps.
    pub fn calls(&self, rank: usize) -> impl Iterator<Item = (usize, &Call)> {
        self.ranks[rank].iter().enumerate().filter_map(|(at, step)| match step {
            Step::Call(call) => Some((at, call)),
            Step::WaitAll | Step::Item => None,
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Pipeline {
    Blocking,
    Batched,
    /// The send of an activation and the receive of a gradient are one batch.
    Joined,
}

#[derive(Clone, Copy, PartialEq)]
enum Gradients {
    Synchronous,
    Ddp,
    Fsdp,
}

/// The choices of a job.
struct Plan {
    iterations: usize,
    micro: usize,
    layers: usize,
    pipeline: Pipeline,
    gradients: Gradients,
    has_experts: bool,
    has_ring: bool,
    logs_every: usize,
    saves_every: usize,
    items: bool,
    sizes: [u64; 4],
    dtype: (&'static str, u64),
}

/// The groups of one rank: tensor, data, pipeline and expert parallel; `None` if it is alone.
#[derive(Clone, Copy)]
struct Own {
    rank: usize,
    tp: Option<usize>,
    dp: Option<usize>,
    ep: Option<usize>,
    pp: Option<usize>,
    stage: usize,
    stages: usize,
}

/// Makes a job of at most so many ranks.
pub fn generate(rng: &mut Rng, max_world: usize) -> Program {
    let dims = loop {
        let dims = [rng.pick(&[1, 2, 4]), rng.pick(&[1, 2, 3, 4]), rng.pick(&[1, 2, 4])];
        if (2..=max_world).contains(&dims.iter().product()) {
            break dims;
        }
    };
    let pool = [64, 64, 1024, 4096, 1 << 20];
    let plan = Plan {
        iterations: rng.between(3, 7) as usize,
        micro: rng.between(1, 3) as usize,
        layers: rng.between(1, 2) as usize,
        pipeline: rng.pick(&[Pipeline::Blocking, Pipeline::Batched, Pipeline::Joined]),
        gradients: rng.pick(&[Gradients::Synchronous, Gradients::Ddp, Gradients::Fsdp]),
        has_experts: rng.percent(35),
        has_ring: rng.percent(25),
        logs_every: rng.pick(&[1, 1, 1, 2]),
        saves_every: rng.pick(&[2, 3, 100]),
        items: rng.percent(50),
        sizes: [rng.pick(&pool), rng.pick(&pool), rng.pick(&pool), rng.pick(&pool)],
        dtype: rng.pick(&[("Float", 4), ("BFloat16", 2)]),
    };
    let mut groups = Vec::new();
    let hashed = rng.percent(30);
    let mut add = |ranks: Vec<usize>, desc: &str| {
        let number = groups.len();
        let name =
            if hashed && number > 0 { format!("{:016x}", number * 0x9e37_79b9) } else { number.to_string() };
        groups.push(Group { name, desc: desc.to_owned(), ranks });
        number
    };
    let [tp, dp, pp] = dims;
    let world = tp * dp * pp;
    let at = |t: usize, d: usize, p: usize| (p * dp + d) * tp + t;
    add((0..world).collect(), "default_pg");
    let mut owns: Vec<Own> = (0..world)
        .map(|rank| Own { rank, tp: None, dp: None, ep: None, pp: None, stage: rank / (tp * dp), stages: pp })
        .collect();
    for p in 0..pp {
        for d in (0..dp).filter(|_| tp > 1) {
            let ranks: Vec<usize> = (0..tp).map(|t| at(t, d, p)).collect();
            let group = add(ranks.clone(), "mesh_tp");
            ranks.iter().for_each(|&rank| owns[rank].tp = Some(group));
        }
        for t in (0..tp).filter(|_| dp > 1) {
            let ranks: Vec<usize> = (0..dp).map(|d| at(t, d, p)).collect();
            let group = add(ranks.clone(), "mesh_dp");
            ranks.iter().for_each(|&rank| owns[rank].dp = Some(group));
            if plan.has_experts {
                let group = add(ranks.clone(), "mesh_ep");
                ranks.iter().for_each(|&rank| owns[rank].ep = Some(group));
            }
        }
    }
    for d in 0..dp {
        for t in (0..tp).filter(|_| pp > 1) {
            let ranks: Vec<usize> = (0..pp).map(|p| at(t, d, p)).collect();
            let group = add(ranks.clone(), "mesh_pp");
            ranks.iter().for_each(|&rank| owns[rank].pp = Some(group));
        }
    }
    let ranks = owns.iter().map(|own| Writer::new(&plan, &groups, *own, rng).job()).collect();
    Program { groups, ranks }
}

/// Writes the steps of one rank.
struct Writer<'a> {
    plan: &'a Plan,
    groups: &'a [Group],
    own: Own,
    rng: &'a mut Rng,
    iteration: usize,
    steps: Vec<Step>,
}

impl<'a> Writer<'a> {
    fn new(plan: &'a Plan, groups: &'a [Group], own: Own, rng: &'a mut Rng) -> Self {
        Self { plan, groups, own, rng, iteration: 0, steps: Vec::new() }
    }

    fn job(mut self) -> Vec<Step> {
        self.call(Some(0), Kind::Broadcast(0), 128, 10, false);
        for iteration in 0..self.plan.iterations {
            self.iteration = iteration;
            self.iterate();
        }
        self.call(Some(0), Kind::Barrier, 1, 90, false);
        self.steps.push(Step::Item);
        self.steps
    }

    fn iterate(&mut self) {
        let (own, plan) = (self.own, self.plan);
        if plan.gradients == Gradients::Fsdp {
            for layer in 0..plan.layers {
                self.call(own.dp, Kind::AllGather, plan.sizes[2] + layer as u64 * 64, 20, true);
            }
            self.steps.push(Step::WaitAll);
        }
        let (is_first, is_last) = (own.stage == 0, own.stage + 1 == own.stages);
        let joined = plan.pipeline == Pipeline::Joined;
        for micro in 0..plan.micro {
            if !is_first {
                self.messages(&[(false, -1)], 30);
            }
            self.layers(40);
            // One forward, one backward: the last of these sends is in a batch with the first receive of a gradient.
            if !(is_last || joined && micro + 1 == plan.micro) {
                self.messages(&[(true, 1)], 31);
            }
        }
        for micro in 0..plan.micro {
            match (is_last, joined && micro == 0) {
                (true, _) => {}
                (false, true) => self.messages(&[(true, 1), (false, 1)], 32),
                (false, false) => self.messages(&[(false, 1)], 33),
            }
            self.layers(50);
            if !is_first {
                self.messages(&[(true, -1)], 34);
            }
        }
        self.gradients();
        if (self.iteration + 1).is_multiple_of(plan.logs_every) {
            self.call(Some(0), Kind::AllReduce, 1, 70, false);
            if plan.items {
                self.steps.push(Step::Item);
            }
        }
        if (self.iteration + 1).is_multiple_of(plan.saves_every) {
            self.call(own.tp, Kind::Reduce(self.first_of(own.tp)), plan.sizes[3], 80, false);
            self.call(Some(0), Kind::Barrier, 1, 81, false);
        }
    }

    fn layers(&mut self, line: u32) {
        let (own, plan) = (self.own, self.plan);
        for _ in 0..plan.layers {
            self.call(own.tp, Kind::AllReduce, plan.sizes[0], line, false);
            if plan.has_ring && own.tp.is_some() {
                self.ring(line + 1);
            }
            self.call(own.ep, Kind::AllToAll, plan.sizes[1], line + 2, false);
            self.call(own.ep, Kind::AllToAll, plan.sizes[1], line + 3, false);
            self.call(own.tp, Kind::AllReduce, plan.sizes[0], line + 4, false);
        }
    }

    /// Sends to the next rank of the tensor parallel group and receives from the one before, in one batch.
    fn ring(&mut self, line: u32) {
        let Some(group) = self.own.tp else { return };
        let ranks = &self.groups[group].ranks;
        let at = ranks.iter().position(|&it| it == self.own.rank).unwrap_or(0);
        let count = ranks.len();
        let next = Message { sends: true, peer: ranks[(at + 1) % count] };
        let before = Message { sends: false, peer: ranks[(at + count - 1) % count] };
        self.call(Some(group), Kind::Batch(vec![next, before]), self.plan.sizes[1], line, false);
    }

    fn gradients(&mut self) {
        let (own, plan) = (self.own, self.plan);
        for layer in (0..plan.layers).rev() {
            let size = plan.sizes[2] + layer as u64 * 64;
            match plan.gradients {
                Gradients::Synchronous => self.call(own.dp, Kind::AllReduce, size, 60, false),
                Gradients::Ddp => self.call(own.dp, Kind::AllReduce, size, 61, true),
                Gradients::Fsdp => self.call(own.dp, Kind::ReduceScatter, size, 62, true),
            }
        }
        self.steps.push(Step::WaitAll);
        self.call(own.tp, Kind::AllReduce, plan.sizes[3], 63, false);
    }

    /// Sends to and receives from neighbours of the pipeline.
    fn messages(&mut self, wanted: &[(bool, isize)], line: u32) {
        let Some(group) = self.own.pp else { return };
        let ranks = &self.groups[group].ranks;
        let peer = |distance: isize| ranks[self.own.stage.wrapping_add_signed(distance)];
        let messages: Vec<Message> =
            wanted.iter().map(|&(sends, distance)| Message { sends, peer: peer(distance) }).collect();
        let batched = self.plan.pipeline != Pipeline::Blocking;
        let size = self.plan.sizes[1];
        if batched {
            self.call(Some(group), Kind::Batch(messages), size, line, false);
        } else {
            for message in messages {
                self.call(Some(group), Kind::Message(message), size, line, false);
            }
        }
    }

    fn first_of(&self, group: Option<usize>) -> usize {
        group.map_or(0, |it| self.groups[it].ranks[0])
    }

    fn call(&mut self, group: Option<usize>, kind: Kind, size: u64, line: u32, is_async: bool) {
        let Some(group) = group else { return };
        let dtype = if matches!(kind, Kind::Barrier) { ("Float", 4) } else { self.plan.dtype };
        let host_time = if self.rng.percent(1) { 5_000_000 } else { self.rng.between(10_000, 150_000) };
        let device_time = self.rng.between(10_000, 300_000);
        let iteration = self.iteration;
        self.steps.push(Step::Call(Call {
            group,
            kind,
            size,
            dtype,
            line,
            is_async,
            iteration,
            host_time,
            device_time,
        }));
    }
}
