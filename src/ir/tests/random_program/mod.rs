//! Programs that capture, set and wait for streams, at random.

use std::collections::BTreeSet;

/// Writes a program. Each of its choices is an element of a list. Blocks end at the end of the list.
struct Writer {
    choices: Vec<u32>,
    at: usize,
    body: String,
    tensors: usize,
    /// The scalars that have a value.
    scalars: Vec<&'static str>,
    /// Whether it has several names and many expressions. With few, more paths have the same ones.
    is_varied: bool,
    /// Whether it captures streams outside of loops and branches.
    captures_outside: bool,
    /// The names that are captured on every path.
    captured: BTreeSet<usize>,
}

impl Writer {
    fn below(&mut self, bound: usize) -> usize {
        let choice = self.choices.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        choice as usize % bound
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    fn line(&mut self, depth: usize, text: &str) {
        self.body += &format!("{:1$}{text}\n", "", 2 * depth);
    }

    /// Returns a scalar with a value. `i8` and `i9` are defined for the whole program, from others.
    fn scalar(&mut self) -> &'static str {
        if !self.is_varied {
            let at = self.below(2);
            return self.scalars.get(at).copied().unwrap_or("rank");
        }
        let mut all = vec!["rank"];
        all.extend(&self.scalars);
        all.extend(self.scalars.contains(&"i5").then_some("i8"));
        all.extend(self.scalars.contains(&"i7").then_some("i9"));
        all[self.below(all.len())]
    }

    fn expression(&mut self) -> String {
        let scalar = self.scalar();
        match self.below(if self.is_varied { 5 } else { 1 }) {
            0..=2 => scalar.to_owned(),
            3 => format!("( {scalar} % 2 )"),
            _ => format!("( ( {scalar} + {} ) % 5 )", self.scalar()),
        }
    }

    fn name(&mut self) -> usize {
        self.below(if self.is_varied { 3 } else { 2 })
    }

    /// Returns a stream. Some names are not captured on every path.
    fn stream(&mut self) -> String {
        let sure: Vec<usize> = self.captured.iter().copied().collect();
        match self.below(12) {
            0 | 1 if self.is_varied => self.pick(&["0", "1", "2", "( 0 + 1 )"]).to_owned(),
            0 | 1 => "1".to_owned(),
            2..=5 => self.expression(),
            6 | 7 => format!("s{}", self.name()),
            _ if sure.is_empty() => "1".to_owned(),
            _ => format!("s{}", sure[self.below(sure.len())]),
        }
    }

    /// Writes a computation, which shows the current stream in the plan; sometimes it does not.
    fn computation(&mut self, depth: usize) {
        if self.below(8) < 7 {
            self.tensors += 1;
            self.line(depth, &format!("T{} = neg(T0)", self.tensors));
        }
    }

    fn block(&mut self, depth: usize) {
        let outer = self.scalars.len();
        self.computation(depth);
        for _ in 0..self.below(if depth == 1 { 13 } else { 7 }) {
            if self.at >= self.choices.len() {
                break;
            }
            self.statement(depth);
            self.computation(depth);
        }
        self.scalars.truncate(outer);
    }

    fn statement(&mut self, depth: usize) {
        let kind = self.below(if depth <= 3 { 13 } else { 8 });
        match kind {
            3 => {
                let stream = self.stream();
                self.line(depth, &format!("Synchronize(Stream {stream})"));
            }
            4 | 5 if self.is_varied || kind == 4 => {
                let value = match self.below(3) {
                    0 => self.expression(),
                    number => number.to_string(),
                };
                let changed = match self.below(4) {
                    1 => self.scalars.last().copied().unwrap_or("i7"),
                    _ => "i7",
                };
                self.line(depth, &format!("{changed} = {value};"));
                self.scalars.push(changed);
            }
            5..=7 if depth > 1 || self.captures_outside => {
                let name = self.name();
                self.captured.insert(name);
                self.line(depth, &format!("Stream s{name} = GetCurrentStream()"));
            }
            0..=7 => {
                let stream = self.stream();
                self.line(depth, &format!("SetCurrentStream(Stream {stream})"));
            }
            8 | 9 => {
                let index = if self.below(2) == 0 { "i5" } else { "i6" };
                let bound = format!("0 to ( {} % 3 )", self.scalar());
                let bounds = self.pick(&["0 to 3", "0 to 2", "0 to 1", "1 to 3", "0 to 0", &bound]);
                self.line(depth, &format!("FOR {index} from {bounds}:"));
                let before = self.captured.clone();
                self.scalars.push(index);
                self.block(depth + 1);
                self.scalars.pop();
                if bounds == "0 to 0" || bounds == bound {
                    self.captured = before;
                }
            }
            _ => {
                let (scalar, number) = (self.scalar(), self.below(2));
                let condition = match self.below(if self.is_varied { 6 } else { 4 }) {
                    0 | 1 => "rank == 0".to_owned(),
                    2 => "rank == 7".to_owned(),
                    3 => format!("( {scalar} % 2 ) == {number}"),
                    _ => format!("{scalar} == {number}"),
                };
                self.line(depth, &format!("IF Manual ( {condition} ):"));
                let before = self.captured.clone();
                self.block(depth + 1);
                let then = std::mem::replace(&mut self.captured, before);
                if self.below(2) == 1 {
                    self.line(depth, "ELSE:");
                    self.block(depth + 1);
                }
                self.captured = self.captured.intersection(&then).copied().collect();
            }
        }
    }
}

/// Returns the text of a program with tensors up to a number.
pub fn container(tensors: usize, body: &str) -> String {
    let tensor = |it| format!("%tensor T{it}_g_float[iS{it}{{4}}]\n");
    let tensors: String = (0..=tensors).map(tensor).collect();
    format!(
        "{tensors}%HostIrContainer {{ (T0) -> (T1) :\n{body}}} // %HostIrContainer\n\nIndex definitions:\n  i8 = i5 % 2;\n  i9 = i7 + 1;\n"
    )
}

/// Returns the program with these choices.
pub fn random_text(choices: Vec<u32>) -> String {
    let (body, scalars, captured) = (String::new(), Vec::new(), BTreeSet::new());
    let mut it = Writer {
        choices,
        at: 0,
        body,
        tensors: 1,
        scalars,
        captured,
        is_varied: true,
        captures_outside: true,
    };
    (it.is_varied, it.captures_outside) = (it.below(2) == 0, it.below(2) == 0);
    if it.below(3) > 0 {
        it.line(1, "i7 = 1;");
        it.scalars.push("i7");
    }
    if it.captures_outside && it.below(3) == 1 {
        (0..3).for_each(|name| it.line(1, &format!("Stream s{name} = GetCurrentStream()")));
        it.captured.extend(0..3);
    }
    it.block(1);
    it.line(1, "T1 = neg(T0)");
    container(it.tensors, &it.body)
}
