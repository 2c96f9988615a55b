//! Generates consecutive loops over the rows of matrices: forks, joins, views and operators as the lowering
//! passes write them, and small deviations from that. Some of the deviations change what a merged loop would
//! do.

use super::{MATRICES, ProgramWriter, ROWS, STREAMS, TENSORS};

/// A loop of a group.
struct Loop {
    /// The numbers of the matrix that the loop writes and of the one that it reads.
    out: usize,
    operand: usize,
    index: String,
}

/// The common properties of the loops of a group.
struct Group {
    home: usize,
    /// The index of the stream that an iteration works on. Empty for the stream that forks.
    stream: &'static str,
    /// The row index that most statements use.
    row: &'static str,
    /// The number of the first view name.
    names: usize,
    /// A tensor that loops read, the index of the first loop that reads it, and the streams that these loops
    /// must wait for themselves.
    tensor: usize,
    first: usize,
    late: Vec<usize>,
    /// Set if iterations end with a join.
    joins: bool,
}

impl ProgramWriter {
    pub(super) fn matrix(&self, at: usize) -> String {
        let (mesh, axis) = (self.mesh(), 20 + 2 * at);
        format!("T{}_g_float[iS{axis}{{{ROWS}}}, iS{}{{2}}]{mesh}", TENSORS + 1 + at, axis + 1)
    }

    /// Returns the view of a row, by the number of its name.
    pub(super) fn row(&self, name: usize) -> String {
        format!("T{name}_l_float[iS{name}{{2}}]{}", self.mesh())
    }

    pub(super) fn select(&mut self, name: usize, matrix: usize, index: &str) {
        let (row, from, axis) = (self.row(name), self.matrix(matrix), 20 + 2 * matrix);
        self.line(&format!(
            "{row}\n       = HirAliasSelect( {from}, axis = iS{axis}{{{ROWS}}}, index = {index} )"
        ));
    }

    /// Adds two or three loops. Later ones may use what earlier ones have written.
    pub(super) fn slices(&mut self) {
        let group = self.group();
        let rounds = if self.rng.chance(90) { ROWS } else { self.rng.below(ROWS) };
        let mut out = self.rng.below(MATRICES);
        let mut loops = Vec::new();
        for _ in 0..2 + self.rng.below(2) {
            let operand = if self.rng.chance(60) { out } else { self.rng.below(MATRICES) };
            out = self.rng.below(MATRICES);
            self.numbers += 1;
            loops.push(Loop { out, operand, index: format!("i{}", self.numbers) });
        }
        // The stream that forks waits for everything that the loops use.
        for it in &loops {
            self.reads(TENSORS + 1 + it.operand);
            self.writes(TENSORS + 1 + it.out);
        }
        for (at, it) in loops.iter().enumerate() {
            let rounds = if self.rng.chance(6) { rounds.max(2) - 1 } else { rounds };
            self.line(&format!("FOR {} from 0 to {rounds}:", it.index));
            self.indent += 1;
            self.body(it, at, &group);
            self.indent -= 1;
            if let Some(next) = loops.get(at + 1) {
                self.between(it, next, &group);
            }
        }
        // Joins the streams that the loops have not joined, and sometimes streams that they have joined.
        if !group.stream.is_empty() && (!group.joins || self.rng.chance(30)) {
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
        let home = self.rng.below(STREAMS + 1);
        self.stream(home);
        let free: Vec<usize> = (0..=TENSORS).filter(|it| self.is_free(*it)).collect();
        let tensor = self.rng.choose_cloned(&free);
        let mut late = Vec::new();
        if self.rng.chance(40) {
            late.clone_from(&self.uses[tensor].written)
        } else {
            self.reads(tensor)
        }
        self.numbers += 4;
        Group {
            home,
            stream: self.rng.choose_cloned(&["i", "( i % 2 )", "( i % 3 )", "1", "1", ""]),
            row: self.rng.choose_cloned(&["i", "i", "i", "i", "i", "i", "( i / 2 )", "1"]),
            names: 100 + self.numbers,
            tensor,
            first: self.rng.below(2),
            late,
            joins: self.rng.chance(85),
        }
    }

    fn body(&mut self, it: &Loop, at: usize, group: &Group) {
        let (own, main) = (group.stream.replace('i', &it.index), Self::name(group.home));
        if !own.is_empty() {
            self.line(&format!("SetCurrentStream(Stream {own})"));
            if at == 0 || self.rng.chance(70) {
                self.line(&format!("Synchronize(Stream {main})"));
            }
            if self.rng.chance(5) {
                let other = 1 + self.rng.below(STREAMS);
                self.line(&format!("Synchronize(Stream {other})"));
            }
        }
        for stream in group.late.iter().filter(|it| at >= group.first && **it != group.home) {
            self.line(&format!("Synchronize(Stream {})", Self::name(*stream)));
        }
        // Usually the row of this iteration.
        let rows = [0, 1].map(|_| match self.rng.below(20) {
            0 => format!("( {} - {} )", ROWS - 1, it.index),
            1 => format!("( ( {} + 1 ) % {ROWS} )", it.index),
            _ => group.row.replace('i', &it.index),
        });
        let [first, second] = rows;
        // Usually binds the name that the previous loop has written under; rarely, uses a name as the
        // previous loop has left it.
        let mut read = group.names + at;
        match self.rng.below(20) {
            0 if at > 0 => (),
            1 | 2 if at > 0 => read -= 1,
            _ => self.select(read, it.operand, &first),
        }
        let written = group.names + at + 1;
        self.select(written, it.out, &second);
        let tensor = if at < group.first { 0 } else { group.tensor };
        let (out, first, second) = (self.row(written), self.row(read), self.tensor(tensor));
        let sign = if self.rng.chance(70) { "+" } else { "-" };
        self.line(&format!("{out}\n       = {first}\n       {sign} {second};"));
        if !own.is_empty() {
            self.line(&format!("SetCurrentStream(Stream {main})"));
            if group.joins && self.rng.chance(92) {
                self.line(&format!("Synchronize(Stream {own})"));
            }
        }
    }

    /// Usually adds nothing.
    fn between(&mut self, it: &Loop, next: &Loop, group: &Group) {
        match self.rng.below(20) {
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
