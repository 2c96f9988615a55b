//! Generates programs with collectives whose Waits stand anywhere: behind other statements, in branches and loops, on other
//! streams, and for numbers that are used again. `hierarchical-collectives` must keep the meaning of each of them.

use std::fmt::Write;

use libtest_mimic::Trial;

use super::check_meaning;
use crate::{part, rng::Rng};

/// Number of programs.
const PROGRAMS: usize = 500;
/// Number of ranks of a team.
const TEAM: usize = 4;
/// Number of tensors of which each rank holds one row of its team, and of all tensors: of the others, it holds all rows.
const SHARDS: usize = 3;
const TENSORS: usize = 7;
const PASS: &str = "hierarchical-collectives{per-host=2}";

/// Returns the trial of this file.
pub(super) fn trial() -> Trial {
    Trial::test("steps_of_collectives_keep_the_meaning", || {
        let mut changed = 0;
        for seed in 0..PROGRAMS as u64 {
            let text = Writer::program(seed);
            let is_free =
                check_meaning(&text, PASS).map_err(|fault| format!("seed {seed}: {fault}\n{text}"))?;
            changed += usize::from(is_free && is_changed(&text)?);
        }
        // Programs that stay as they are, or that have races, test nothing.
        if changed * 4 >= PROGRAMS {
            Ok(())
        } else {
            Err(format!("{changed} of {PROGRAMS} programs have collectives in steps").into())
        }
    })
    .with_ignored_flag(!part::includes(0))
}

fn is_changed(text: &str) -> Result<bool, String> {
    let calls = passes::parse(PASS).map_err(|it| it.message)?;
    let (mut programs, _) = grammar::read(text);
    let program = programs.first_mut().ok_or("no program")?;
    let before = grammar::print(program);
    passes::run(program, &calls, passes::Settings::default(), &mut |_| ()).map_err(|it| it.to_string())?;
    Ok(grammar::print(program) != before)
}

/// A collective of which not all teams have waited.
#[derive(Clone)]
struct Open {
    /// The number of each team.
    numbers: Vec<usize>,
    /// The teams that have not waited.
    teams: Vec<usize>,
    from: usize,
    to: usize,
}

struct Writer {
    rng: Rng,
    text: String,
    indent: usize,
    /// The members of each team.
    teams: Vec<[usize; TEAM]>,
    open: Vec<Open>,
    stream: usize,
    loops: usize,
}

impl Writer {
    fn program(seed: u64) -> String {
        let mut rng = Rng(seed ^ 0xc011);
        let order = rng.choose_cloned(&[[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 1, 3]]);
        let count = 1 + rng.below(2);
        let teams: Vec<_> = (0..count).map(|team| order.map(|it| it + TEAM * team)).collect();
        let mut writer =
            Self { rng, text: String::new(), indent: 0, teams, open: Vec::new(), stream: 0, loops: 0 };
        let ranks = TEAM * count;
        let mesh: Vec<String> = (0..ranks).map(|it| it.to_string()).collect();
        let mesh = mesh.join(" ");
        for at in 0..TENSORS {
            let [a, b, c] = [3 * at, 3 * at + 1, 3 * at + 2];
            // Each rank has its own elements.
            let rows = if at < SHARDS { 1 } else { TEAM };
            let axes = format!("ideviceIdx.x{a}{{{ranks}}}, iS{b}{{{rows}}}, iS{c}{{4}}");
            writer.line(&format!("%tensor T{at}_g_float[{axes}] (DeviceMesh{{{mesh}}})"));
        }
        writer.line(&format!("%HostIrContainer {{ (T0, T{SHARDS}) -> (T2, T5, T6) :"));
        writer.indent = 1;
        for at in (0..TENSORS).filter(|it| *it != 0 && *it != SHARDS) {
            writer.line(&format!("T{at} = ALLOCATE(mem_type=global, zero_init=true)"));
        }
        writer.line("Stream s0 = GetCurrentStream()");
        for _ in 0..4 + writer.rng.below(8) {
            writer.statement();
        }
        while !writer.open.is_empty() {
            writer.wait();
        }
        writer.switch(0);
        writer.indent = 0;
        writer.line("} // %HostIrContainer");
        writer.text
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{:1$}{line}", "", 2 * self.indent);
    }

    fn statement(&mut self) {
        match self.rng.below(10) {
            0..=2 => self.open_one(),
            3..=5 if !self.open.is_empty() => self.wait(),
            6 => self.read_on_one_team(),
            7 => {
                let stream = self.rng.below(3);
                self.switch(stream);
            }
            8 => self.repeat(),
            _ => self.compute(),
        }
    }

    /// Makes another stream, which waits for this one, the current one.
    fn switch(&mut self, stream: usize) {
        if stream != self.stream {
            let name = |it| if it == 0 { "s0".to_owned() } else { format!("{it}") };
            self.line(&format!("SetCurrentStream(Stream {})", name(stream)));
            self.line(&format!("Synchronize(Stream {})", name(self.stream)));
            self.stream = stream;
        }
    }

    fn tensors(&self, of: std::ops::Range<usize>, writes: bool) -> Vec<usize> {
        let is_used = |at: usize| self.open.iter().any(|it| it.to == at || (writes && it.from == at));
        of.filter(|at| !is_used(*at) && !(writes && (*at == 0 || *at == SHARDS))).collect()
    }

    /// Returns a collective of free tensors: its type and its further attributes, and its operands.
    fn collective(&mut self) -> Option<(String, usize, usize)> {
        let (shards, whole) = (0..SHARDS, SHARDS..TENSORS);
        let (kind, from, to) = match self.rng.below(3) {
            0 => ("Allgather", shards, whole),
            1 => ("Allreduce", whole.clone(), whole),
            _ => ("ReduceScatter", whole, shards),
        };
        let (mut from, to) = (self.tensors(from, false), self.tensors(to, true));
        // Rarely, relies on the order of the collectives.
        if kind == "Allreduce" && self.rng.chance(10) {
            from.extend(self.open.iter().map(|it| it.to).filter(|it| *it >= SHARDS));
        }
        if from.is_empty() || to.is_empty() {
            return None;
        }
        let (from, to) = (self.rng.choose_cloned(&from), self.rng.choose_cloned(&to));
        let sum = if kind == "Allgather" { "" } else { " red_op=SUM," };
        let text = format!("{kind}:{sum} input=T{from}, output=T{to}, backend=NCCL)");
        (from != to).then_some((text, from, to))
    }

    /// Returns a collective, with numbers that no other one has at this point.
    fn new_one(&mut self) -> Option<(String, Open)> {
        let (text, from, to) = self.collective()?;
        let is_taken = |number: &usize| self.open.iter().any(|it| it.numbers.contains(number));
        let free: Vec<usize> = (0..20).filter(|it| !is_taken(it)).collect();
        let at = self.rng.below(3);
        let teams: Vec<usize> = (0..self.teams.len()).collect();
        let numbers = teams.iter().map(|team| free[at + team]).collect();
        Some((text, Open { numbers, teams, from, to }))
    }

    fn post(&mut self, text: &str, numbers: &[usize]) {
        let (kind, rest) = text.split_once(':').unwrap_or_default();
        for (team, number) in numbers.iter().enumerate() {
            let members = self.teams[team].map(|it| it.to_string()).join(" ");
            self.line(&format!("Communication {number} (type={kind}, team=({members}),{rest}"));
        }
    }

    fn open_one(&mut self) {
        if let Some((text, open)) = self.new_one() {
            self.post(&text, &open.numbers);
            self.open.push(open);
        }
    }

    /// Waits for one team or for all teams of a collective, on its own members or on all ranks, on one stream or on two.
    fn wait(&mut self) {
        let at = self.rng.below(self.open.len());
        let count = if self.rng.chance(60) { self.open[at].teams.len() } else { 1 };
        for _ in 0..count {
            let index = self.rng.below(self.open[at].teams.len());
            let team = self.open[at].teams.remove(index);
            let number = self.open[at].numbers[team];
            let is_nested = self.rng.chance(5);
            if is_nested {
                self.line(&format!("IF Manual ( {} ):", condition(team)));
            }
            self.indent += usize::from(is_nested);
            self.line(&format!("Wait(Communication {number})"));
            self.indent -= usize::from(is_nested);
            if self.rng.chance(10) {
                self.switch((self.stream + 1) % 3);
                if self.rng.chance(30) {
                    self.line(&format!("Wait(Communication {number})"));
                }
            }
        }
        if self.open[at].teams.is_empty() {
            self.open.remove(at);
        }
    }

    /// Reads a result on the ranks of a team that has waited, where another one has not.
    fn read_on_one_team(&mut self) {
        let half = self.open.iter().find(|it| it.to >= SHARDS && it.teams.len() < it.numbers.len()).cloned();
        let free = self.tensors(SHARDS..TENSORS, true);
        if let Some(it) = half.filter(|_| !free.is_empty()) {
            let team = usize::from(it.teams.contains(&0));
            let out = self.rng.choose_cloned(&free);
            self.line(&format!("IF Manual ( {} ):", condition(team)));
            self.line(&format!("  T{out} = Set( T{} )", it.to));
        }
    }

    fn compute(&mut self) {
        let (read, written) = (self.tensors(SHARDS..TENSORS, false), self.tensors(SHARDS..TENSORS, true));
        if !written.is_empty() && !read.is_empty() {
            let (out, a, b) = (
                self.rng.choose_cloned(&written),
                self.rng.choose_cloned(&read),
                self.rng.choose_cloned(&read),
            );
            self.line(&format!("T{out} = T{a} + T{b};"));
        }
    }

    /// Repeats a collective: with its Wait in the same iteration, or in the next one.
    fn repeat(&mut self) {
        let Some((text, open)) = self.new_one() else { return };
        let waits_in_next = self.rng.chance(40);
        if waits_in_next {
            self.post(&text, &open.numbers);
        }
        let rounds = self.rng.below(4);
        self.line(&format!("FOR i{} from 0 to {rounds}:", self.loops));
        self.loops += 1;
        self.indent += 1;
        let wait = |writer: &mut Self| {
            open.numbers.iter().for_each(|it| writer.line(&format!("Wait(Communication {it})")));
        };
        if waits_in_next {
            wait(self);
            self.compute();
            self.post(&text, &open.numbers);
        } else {
            self.post(&text, &open.numbers);
            self.open.push(open.clone());
            self.compute();
            self.open.pop();
            wait(self);
            self.compute();
        }
        self.indent -= 1;
        if waits_in_next {
            self.open.push(open);
        }
    }
}

/// Returns the condition that holds on the ranks of a team.
fn condition(team: usize) -> String {
    if team == 0 { format!("rank < {TEAM}") } else { format!("rank >= {TEAM}") }
}
