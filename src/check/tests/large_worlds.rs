//! Programs of many ranks: each group of ranks that share no memory is checked by itself, and one rank of each kind is estimated.
//! On small meshes, both give what all ranks together give, also for programs with faults and with ranks that differ.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use grammar::source::Source;
use hir_check::{Checks, Finding, Report, check, check_in_groups, races, races_in_groups};
use hir_plan::{
    InstKind, World, plans_of_text,
    timeline::{
        cost::CostModel,
        estimate::{estimate_representatives, estimate_with},
        estimator::Estimator,
        machine::Machine,
        overlap::Overlap,
    },
};
use hir_tensor::generate::split_mix;

/// A test's result.
type Tested = Result<(), String>;

/// A lowered program on a mesh of data × tensor devices for each stage of a pipeline.
#[derive(Clone, Copy, Debug)]
struct Mesh {
    data: usize,
    tensor: usize,
    stages: usize,
    layers: usize,
    /// Whether tensor-parallel partial results move over peer memory, from each rank to the next of its row, instead of by NCCL.
    uses_peer_memory: bool,
}

/// The text of a program while it is written.
#[derive(Default)]
struct Text {
    declarations: String,
    body: Vec<String>,
    tensors: usize,
    communications: usize,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Mesh {
    fn ranks(self) -> usize {
        self.data * self.tensor * self.stages
    }

    /// Returns the program: two products and an exchange within rows of the mesh for each layer, then all-reduces of gradients within columns, and
    /// a transfer to the next stage.
    fn text(self) -> Text {
        let mut it = Text::default();
        let (data, tensor) = (self.data, self.tensor);
        let mut x = String::new();
        for stage in 0..self.stages {
            let first = stage * data * tensor;
            let members: Vec<usize> = (first..first + data * tensor).collect();
            let mesh = format!("(DeviceMesh{{{}}})", joined(&members));
            let rows: Vec<Vec<usize>> = members.chunks(tensor).map(<[usize]>::to_vec).collect();
            let columns: Vec<Vec<usize>> =
                (0..tensor).map(|at| rows.iter().map(|row| row[at]).collect()).collect();
            if stage == 0 {
                x = it.tensor(8, &mesh);
                it.inputs.push(x.clone());
            } else {
                let received = it.tensor(8, &mesh);
                it.allocate(&received);
                let (send, recv) = (it.number(), it.number());
                let step = data * tensor;
                it.body.push(format!(
                    "P2PCommunication {send} (type=send, buffer={x}, peer=( rank + {step} ), backend=NCCL)"
                ));
                it.body.push(format!(
                    "P2PCommunication {recv} (type=recv, buffer={received}, peer=( rank - {step} ), backend=NCCL)"
                ));
                it.wait(&[send, recv]);
                x = received;
            }
            let mut weights = Vec::new();
            for _ in 0..self.layers {
                let (weight, part) = (it.tensor(8, &mesh), it.tensor(8, &mesh));
                it.inputs.push(weight.clone());
                it.allocate(&part);
                it.body.push(format!("{part} = linear({x}, {weight})"));
                let sum = it.tensor(8, &mesh);
                it.allocate(&sum);
                if self.uses_peer_memory {
                    it.get(tensor, (&part, &sum));
                } else {
                    it.all_reduce(&rows, (&part, &sum));
                }
                weights.push(weight);
                x = sum;
            }
            for weight in weights {
                let gradient = it.tensor(8, &mesh);
                it.allocate(&gradient);
                it.all_reduce(&columns, (&weight, &gradient));
                it.outputs.push(gradient);
            }
        }
        it.outputs.push(x);
        it
    }
}

fn joined(ranks: &[usize]) -> String {
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

impl Text {
    fn tensor(&mut self, rows: usize, mesh: &str) -> String {
        let number = self.tensors;
        self.tensors += 1;
        let axes = format!("iS{}{{{rows}}}, iS{}{{8}}", 2 * number, 2 * number + 1);
        let _ = writeln!(self.declarations, "%tensor T{number}_g_float[{axes}] {mesh}");
        format!("T{number}")
    }

    fn number(&mut self) -> usize {
        self.communications += 1;
        self.communications - 1
    }

    fn allocate(&mut self, tensor: &str) {
        self.body.push(format!("{tensor} = ALLOCATE(mem_type=global, zero_init=false)"));
    }

    fn wait(&mut self, numbers: &[usize]) {
        self.body.extend(numbers.iter().map(|it| format!("Wait(Communication {it})")));
    }

    fn all_reduce(&mut self, teams: &[Vec<usize>], (input, output): (&str, &str)) {
        let numbers: Vec<usize> = teams.iter().map(|_| self.number()).collect();
        for (number, team) in numbers.iter().zip(teams) {
            let team = joined(team);
            self.body.push(format!(
                "Communication {number} (type=Allreduce, team=({team}), red_op=SUM, input={input}, output={output}, backend=NCCL)"
            ));
        }
        self.wait(&numbers);
    }

    /// Copies from the rank before within a row, over peer memory.
    fn get(&mut self, tensor: usize, (from, to): (&str, &str)) {
        let (send, recv) = (self.number(), self.number());
        let peer = |step: usize| {
            format!("( ( rank - ( rank % {tensor} ) ) + ( ( ( rank % {tensor} ) + {step} ) % {tensor} ) )")
        };
        let send_text =
            format!("P2PCommunication {send} (type=send, buffer={from}, peer={}, backend=CUDA)", peer(1));
        let recv_text = format!(
            "P2PCommunication {recv} (type=recv, buffer={to}, peer={}, backend=CUDA)",
            peer(tensor - 1)
        );
        self.body.push(format!("ShareMemHandles({send_text}, {recv_text})"));
        self.body.extend([send_text, recv_text]);
        self.wait(&[recv, send]);
    }

    fn program(&self) -> String {
        format!(
            "%options roots=team\n{}%HostIrContainer {{ ({}) -> ({}) :\n  {}\n}} // %HostIrContainer\n",
            self.declarations,
            self.inputs.join(", "),
            self.outputs.join(", "),
            self.body.join("\n  ")
        )
    }
}

fn plans(text: &str, ranks: usize) -> Result<World, String> {
    plans_of_text(text, ranks).map_err(|it| it.first().map_or(String::new(), |it| it.message.clone()))
}

/// Random numbers, the same on every machine.
struct Rng(u64);

impl Rng {
    fn below(&mut self, sides: usize) -> usize {
        (split_mix(&mut self.0) % sides.max(1) as u64) as usize
    }
}

/// Returns a mesh of at most 16 ranks.
fn random_mesh(rng: &mut Rng) -> Mesh {
    let [data, tensor, stages] =
        [[4, 2, 1], [2, 4, 2], [2, 2, 2], [8, 2, 1], [2, 2, 4], [3, 2, 1]][rng.below(6)];
    Mesh { data, tensor, stages, layers: 1 + rng.below(2), uses_peer_memory: rng.below(2) == 0 }
}

/// Puts statements on other streams, joins some streams, and leaves waits out.
fn with_random_synchronization(mut text: Text, rng: &mut Rng) -> Text {
    let mut body = Vec::new();
    for statement in std::mem::take(&mut text.body) {
        if statement.starts_with("Wait") && rng.below(8) == 0 {
            continue;
        }
        if rng.below(8) == 0 {
            body.push(format!("SetCurrentStream(Stream {})", rng.below(3)));
        }
        if rng.below(3) == 0 {
            body.push(format!("Synchronize(Stream {})", rng.below(3)));
        }
        body.push(statement);
    }
    body.extend((0..3).filter(|_| rng.below(4) > 0).map(|it| format!("Synchronize(Stream {it})")));
    text.body = body;
    text
}

fn texts(all: &[hir_check::Race]) -> BTreeSet<String> {
    all.iter().map(|it| format!("{it:?}")).collect()
}

#[test]
fn groups_have_the_races_of_the_world() -> Tested {
    let (mut racing, mut clean) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mesh = random_mesh(&mut rng);
        let text = mesh.text();
        // Many are clean, and the others have one fault or many.
        let text = if seed % 4 == 0 { text } else { with_random_synchronization(text, &mut rng) };
        let Ok(world) = plans(&text.program(), mesh.ranks()) else { continue };
        if world.deadlocked_state().is_some() {
            continue;
        }
        let whole = texts(&races(&world));
        let in_groups = races_in_groups(&world).ok_or("not checked")?;
        if whole != texts(&in_groups) {
            return Err(format!(
                "seed {seed}, {mesh:?}: {in_groups:?} instead of {whole:?}\n{}",
                text.program()
            ));
        }
        let checks = Checks { repeat: true, ..Checks::DEFAULT };
        let faults = |it: &Report| {
            let is_fault = |it: &&Finding| !matches!(it, Finding::Excess(_));
            it.findings.iter().filter(is_fault).count()
        };
        let (one, other) = (check(&world, checks), check_in_groups(&world, checks));
        if (faults(&one) > 0) != (faults(&other) > 0) || one.not_checked != other.not_checked {
            return Err(format!("seed {seed}, {mesh:?}: {other:?} instead of {one:?}\n{}", text.program()));
        }
        *if whole.is_empty() { &mut clean } else { &mut racing } += 1;
    }
    // Programs of one kind prove nothing about the other one.
    if racing < 25 || clean < 25 { Err(format!("{racing} programs race, {clean} do not")) } else { Ok(()) }
}

#[test]
fn one_rank_of_each_kind_has_the_times_of_all() -> Tested {
    let mut different = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mesh = random_mesh(&mut rng);
        let text = with_random_synchronization(mesh.text(), &mut rng);
        let Ok(world) = plans(&text.program(), mesh.ranks()) else { continue };
        // In half of the worlds, one rank waits for less than the others.
        let (world, deviating) = if seed % 2 == 0 { (world, None) } else { without_a_wait(&world, &mut rng) };
        if world.deadlocked_state().is_some() {
            continue;
        }
        // An order between two ranks of a class is one between two streams of the rank that is estimated, so that `event_us` counts.
        let measured = Machine { event_us: 0.0, ..Estimator::default().machine.clone() };
        let machine = if seed % 4 < 2 { &Machine::default() } else { &measured };
        let model = CostModel { machine, fused: &[], load: 0.0 };
        let whole = estimate_with(&world, &model).map_err(|it| format!("{it:?}"))?;
        let few = estimate_representatives(&world, &model).map_err(|it| format!("{it:?}"))?;
        let (all, one) = (Overlap::of(&whole), Overlap::of(&few));
        for it in &one.ranks {
            for rank in few.ranks_like(it.rank) {
                let other = &all.ranks[rank];
                let is_near = |a: f64, b: f64| (a - b).abs() < 1e-6;
                if !is_near(it.communication, other.communication) || !is_near(it.hidden, other.hidden) {
                    return Err(format!(
                        "seed {seed}, {mesh:?}: rank {rank} {other:?}, rank {} {it:?}\n{}",
                        it.rank,
                        text.program()
                    ));
                }
            }
        }
        let count: usize = one.ranks.iter().map(|it| few.ranks_like(it.rank).len()).sum();
        if count != world.len() || (whole.end() - few.end()).abs() > 1e-6 {
            return Err(format!("seed {seed}, {mesh:?}: {} instead of {}", few.end(), whole.end()));
        }
        if let Some(deviating) = deviating.filter(|_| !few.classes.is_empty()) {
            different += 1;
            if few.classes.iter().any(|it| it.len() > 1 && it.contains(&deviating)) {
                return Err(format!(
                    "seed {seed}: rank {deviating} has the kind of others, and waits for less"
                ));
            }
        }
    }
    if different < 20 { Err(format!("only {different} worlds have a rank that differs")) } else { Ok(()) }
}

/// Removes a Wait of one rank, which is returned if it has one.
fn without_a_wait(world: &World, rng: &mut Rng) -> (World, Option<usize>) {
    let mut plans = world.plans().to_vec();
    let rank = rng.below(plans.len());
    let code = &mut plans[rank].code;
    let at = code.iter().position(|it| matches!(it.kind, InstKind::Wait { .. }));
    if let Some(at) = at {
        code.remove(at);
    }
    (World::new(plans), at.map(|_| rank))
}

/// The time that planning, checking and estimating 4,096 ranks may take. It takes some seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the time that this thread has computed so far, which does not depend on other processes, where the system states it.
fn computed() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0))
}

const LARGE: Mesh = Mesh { data: 512, tensor: 8, stages: 1, layers: 3, uses_peer_memory: false };

fn large_program(mesh: Mesh, text: &Text) -> Result<(Source, World), String> {
    let source = Source::new("large".to_owned(), text.program());
    let world = plans(&text.program(), mesh.ranks())?;
    Ok((source, world))
}

#[test]
fn thousands_of_ranks_are_checked_and_estimated_in_seconds() -> Tested {
    let meshes = [
        LARGE,
        Mesh { data: 128, stages: 4, layers: 1, ..LARGE },
        Mesh { layers: 1, uses_peer_memory: true, ..LARGE },
    ];
    for mesh in meshes {
        let start = computed();
        let (_, world) = large_program(mesh, &mesh.text())?;
        let report = check(&world, Checks::ALL_FAULTS);
        let groups = if mesh.uses_peer_memory { mesh.data } else { mesh.ranks() };
        if !report.findings.is_empty() || !report.not_checked.is_empty() || report.groups != groups {
            return Err(format!("{mesh:?}: {:?}, {:?}", report.findings.first(), report.not_checked));
        }
        let timeline = Estimator::default().timeline(&world, None).map_err(|it| format!("{it:?}"))?;
        if timeline.classes.len() != mesh.stages {
            return Err(format!("{mesh:?}: {} kinds of ranks", timeline.classes.len()));
        }
        let took = computed() - start;
        if took > LIMIT {
            return Err(format!("{mesh:?} takes {took:?}"));
        }
    }
    Ok(())
}

/// All clocks together may have 2^28 entries. A world with more streams is checked in groups, and else never called clean.
#[test]
fn more_streams_than_clocks_can_count_are_no_reason_to_call_a_program_clean() -> Tested {
    let streams = |mesh: Mesh| {
        let mut text = mesh.text();
        text.body.extend((1..=4).map(|it| format!("Synchronize(Stream {it})")));
        text
    };
    let mesh = Mesh { layers: 1, ..LARGE };
    let (_, world) = large_program(mesh, &streams(mesh))?;
    let actors: usize = world.iter().map(|it| it.streams.len() + it.communicators.len()).sum();
    let report = check(&world, Checks::ALL_FAULTS);
    if actors * actors <= 1 << 28 || !report.findings.is_empty() || !report.not_checked.is_empty() {
        return Err(format!("{actors} actors: {:?}, {:?}", report.findings.first(), report.not_checked));
    }
    // All ranks are in one group.
    let mesh = Mesh { data: 1, tensor: 4_096, layers: 1, stages: 1, uses_peer_memory: true };
    let (_, world) = large_program(mesh, &streams(mesh))?;
    let report = check(&world, Checks::ALL_FAULTS);
    if report.not_checked.is_empty() {
        return Err(format!("{} findings, and all is checked", report.findings.len()));
    }
    Ok(())
}

#[test]
fn faults_of_thousands_of_ranks_are_found() -> Tested {
    let message = |text: &Text| {
        let (source, world) = large_program(LARGE, text)?;
        let report = check(&world, Checks::ALL_FAULTS);
        let first = report.findings.first().ok_or("nothing is found")?;
        Ok::<_, String>((first.diagnostic(&world, &[source]).1.message, report.not_checked.len()))
    };
    // No rank of row 7 waits for its first all-reduce.
    let mut text = LARGE.text();
    text.body.retain(|it| it != "Wait(Communication 7)");
    let (found, left) = message(&text)?;
    if !found.starts_with("race on `T3` of rank 56") {
        return Err(found);
    }
    // Four of the eight groups are checked with all orders, and the others are not called clean.
    if left != 1 {
        return Err(format!("{left} checks are left out"));
    }
    // One rank of thousands does not wait.
    let mut text = LARGE.text();
    let wait = "Wait(Communication 511)";
    text.body.iter_mut().filter(|it| *it == wait).for_each(|it| {
        *it = format!("IF Manual ( rank != 4091 ):\n    {wait}");
    });
    let (found, left) = message(&text)?;
    if !found.starts_with("race on `T3` of rank 4091") || left != 0 {
        return Err(found);
    }
    Ok(())
}
