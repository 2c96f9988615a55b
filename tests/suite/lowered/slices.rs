//! Loops over the rows of matrices, one behind the other: forks, joins, views and operators as the lowering passes write them, and
//! small differences from that, of which some change what a merged loop would do.

use super::{MATRICES, ProgramWriter, ROWS, STREAMS, TENSORS};

/// A loop of a group.
struct Loop {
    /// The matrix that it writes and the one that it reads, by number.
    out: usize,
    operand: usize,
    index: String,
}

/// What the loops of a group have in common.
struct Group {
    home: usize,
    /// The index of the stream that an iteration works on; empty: the one that forks.
    stream: &'static str,
    /// The rows that most statements use.
    row: &'static str,
    /// Where the names of views begin.
    names: usize,
    /// A tensor that loops read, the first of them that does, and the streams that they have to wait for themselves.
    tensor: usize,
    first: usize,
    late: Vec<usize>,
    /// Whether iterations end with a join.
    joins: bool,
}

impl ProgramWriter {
    pub(super) fn matrix(&self, at: usize) -> String {
        let (mesh, axis) = (self.mesh(), 20 + 2 * at);
        format!("T{}_g_float[iS{axis}{{{ROWS}}}, iS{}{{2}}]{mesh}", TENSORS + 1 + at, axis + 1)
    }

    /// A view of a row, by the number of its name.
    pub(super) fn row(&self, name: usize) -> String {
        format!("T{name}_l_float[iS{name}{{2}}]{}", self.mesh())
    }

    pub(super) fn select(&mut self, name: usize, matrix: usize, index: &str) {
        let (row, from, axis) = (self.row(name), self.matrix(matrix), 20 + 2 * matrix);
        self.line(&format!(
            "{row}\n       = HirAliasSelect( {from}, axis = iS{axis}{{{ROWS}}}, index = {index} )"
        ));
    }

    /// Two loops or three, the later ones over what the earlier ones have written, or not.
    pub(super) fn slices(&mut self) {
        let group = self.group();
        let rounds = if self.dice.chance(90) { ROWS } else { self.dice.below(ROWS) };
        let mut out = self.dice.below(MATRICES);
        let mut loops = Vec::new();
        for _ in 0..2 + self.dice.below(2) {
            let operand = if self.dice.chance(60) { out } else { self.dice.below(MATRICES) };
            out = self.dice.below(MATRICES);
            self.numbers += 1;
            loops.push(Loop { out, operand, index: format!("i{}", self.numbers) });
        }
        // The stream that forks waits for all that the loops use.
        for it in &loops {
            self.reads(TENSORS + 1 + it.operand);
            self.writes(TENSORS + 1 + it.out);
        }
        for (at, it) in loops.iter().enumerate() {
            let rounds = if self.dice.chance(6) { rounds.max(2) - 1 } else { rounds };
            self.line(&format!("FOR {} from 0 to {rounds}:", it.index));
            self.indent += 1;
            self.body(it, at, &group);
            self.indent -= 1;
            if let Some(next) = loops.get(at + 1) {
                self.between(it, next, &group);
            }
        }
        // What the loops have not joined, and a little that they have.
        if !group.stream.is_empty() && (!group.joins || self.dice.chance(30)) {
            for index in 0..ROWS {
                self.line(&format!("Synchronize(Stream {index})"));
            }
        }
        for it in &loops {
            self.uses[TENSORS + 1 + it.out].written = vec![group.home];
        }
        self.uses[group.tensor].read.push(group.home);
    }

    fn group(&mut self) -> Group {
        let home = self.dice.below(STREAMS + 1);
        self.stream(home);
        let free: Vec<usize> = (0..=TENSORS).filter(|it| self.is_free(*it)).collect();
        let tensor = self.dice.choose_cloned(&free);
        let mut late = Vec::new();
        match self.dice.chance(40) {
            true => late.clone_from(&self.uses[tensor].written),
            false => self.reads(tensor),
        }
        self.numbers += 4;
        Group {
            home,
            stream: self.dice.choose_cloned(&["i", "( i % 2 )", "( i % 3 )", "1", "1", ""]),
            row: self.dice.choose_cloned(&["i", "i", "i", "i", "i", "i", "( i / 2 )", "1"]),
            names: 100 + self.numbers,
            tensor,
            first: self.dice.below(2),
            late,
            joins: self.dice.chance(85),
        }
    }

    fn body(&mut self, it: &Loop, at: usize, group: &Group) {
        let (own, main) = (group.stream.replace('i', &it.index), Self::name(group.home));
        if !own.is_empty() {
            self.line(&format!("SetCurrentStream(Stream {own})"));
            if at == 0 || self.dice.chance(70) {
                self.line(&format!("Synchronize(Stream {main})"));
            }
            if self.dice.chance(5) {
                let other = 1 + self.dice.below(STREAMS);
                self.line(&format!("Synchronize(Stream {other})"));
            }
        }
        for stream in group.late.iter().filter(|it| at >= group.first && **it != group.home) {
            self.line(&format!("Synchronize(Stream {})", Self::name(*stream)));
        }
        // A row that this iteration has, mostly.
        let rows = [0, 1].map(|_| match self.dice.below(20) {
            0 => format!("( {} - {} )", ROWS - 1, it.index),
            1 => format!("( ( {} + 1 ) % {ROWS} )", it.index),
            _ => group.row.replace('i', &it.index),
        });
        let [first, second] = rows;
        // The name that the loop before has written under; seldom one as that loop has left it.
        let mut read = group.names + at;
        match self.dice.below(20) {
            0 if at > 0 => (),
            1 | 2 if at > 0 => read -= 1,
            _ => self.select(read, it.operand, &first),
        }
        let written = group.names + at + 1;
        self.select(written, it.out, &second);
        let tensor = if at < group.first { 0 } else { group.tensor };
        let (out, first, second) = (self.row(written), self.row(read), self.tensor(tensor));
        let sign = if self.dice.chance(70) { "+" } else { "-" };
        self.line(&format!("{out}\n       = {first}\n       {sign} {second};"));
        if !own.is_empty() {
            self.line(&format!("SetCurrentStream(Stream {main})"));
            if group.joins && self.dice.chance(92) {
                self.line(&format!("Synchronize(Stream {own})"));
            }
        }
    }

    /// Mostly nothing.
    fn between(&mut self, it: &Loop, next: &Loop, group: &Group) {
        match self.dice.below(20) {
            1..=3 if !group.joins => (),
            0 => {
                let other = (group.home + 1) % (STREAMS + 1);
                self.line(&format!("Synchronize(Stream {})", Self::name(other)));
            }
            1 if it.out != it.operand => {
                let (matrix, other) = (self.matrix(it.out), self.matrix(it.operand));
                self.line(&format!("{matrix}\n     = Set( {other} )"));
            }
            2 if group.tensor > 0 => {
                self.writes(group.tensor);
                let (out, first) = (self.tensor(group.tensor), self.tensor(0));
                self.line(&format!("{out}\n     = {first}\n     + {first};"));
            }
            3 if next.out > 0 => {
                let matrix = self.matrix(next.out);
                self.line(&format!("{matrix} = ALLOCATE(mem_type=global, zero_init=false)"));
            }
            _ => (),
        }
    }
}
