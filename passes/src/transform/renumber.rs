//! renumber: numbers everything in order of first appearance, so that programs that differ only in numbers
//! print the same.
//!
//! Before:
//! ```text
//! (T7_g_float[iS30{i9}, iS12{4}]) -> (T3_g_float[iS5{i9}, iS6{4}]) :
//!   Stream s2 = GetCurrentStream()
//!   FOR i84 from 0 to 4:
//!     Communication 35 (type=Broadcast, team=(0 1), root=i84, input=T7_g_float[…], output=T3_g_float[…])
//! ```
//! After:
//! ```text
//! (T0_g_float[iS0{i9}, iS1{4}]) -> (T1_g_float[iS2{i9}, iS3{4}]) :
//!   Stream s0 = GetCurrentStream()
//!   FOR i0 from 0 to 4:
//!     Communication 0 (type=Broadcast, team=(0 1), root=i0, input=T0_g_float[…], output=T1_g_float[…])
//! ```
//!
//! The pass renumbers tensors, axes, captured streams, communications and HostUnits, and the scalars that the
//! program defines, if their names end in a number: loop indices, scalars that statements assign, and
//! `Index definitions:`, which are reordered by first use. A scalar that the program does not define is set
//! by the user and keeps its name, as does `streamIdx`. The tensors, axes and scalars of a HostUnit are
//! numbered separately.
//!
//! Two things are encoded in numbers and are preserved. `Set.Permute` numbers the axes of its result in the
//! order of its operand, so these axes keep their relative order. In a dump, numbers also show which axes
//! were split: the printer writes `Domains:` if the new numbers would mislead.

use grammar::{Attr, AxisId, Diagnostic, ExprId, Program, Stmt, Stream, SymbolId, TensorId, UnitId};
use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::numbering::{MentionOrder, NumberedWork},
    pass::{Arguments, Change, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("renumber", include_str!("renumber.rs"), run)
    .about("number tensors, axes, communications and scalars in order of first appearance");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut order = MentionOrder::new(program);
    let options: Vec<ExprId> = program.options.values().copied().collect();
    options.iter().for_each(|it| order.scalar(*it));
    order.operands(&program.inputs);
    order.operands(&program.outputs);
    program.body.iter().for_each(|body| order.block(*body));
    for (id, unit) in program.units.iter() {
        order.unit(id);
        order.namespace = Some(id);
        order.operands(&unit.inputs);
        order.operands(&unit.outputs);
        unit.body.iter().for_each(|body| order.block(*body));
        order.namespace = None;
    }
    order.definitions();
    order.domains();
    let new = order.assign_numbers();
    Ok(Change::from_flag(write(program, &new)))
}

/// The new numbers and names.
struct Numbers {
    tensors: FxHashMap<TensorId, u32>,
    axes: FxHashMap<AxisId, u32>,
    streams: FxHashMap<u32, u32>,
    works: FxHashMap<NumberedWork, u32>,
    symbols: FxHashMap<SymbolId, String>,
    definitions: IndexSet<SymbolId>,
}

impl MentionOrder<'_> {
    fn assign_numbers(mut self) -> Numbers {
        let program = self.program;
        // Entities that the text no longer mentions get the numbers after those that it mentions.
        self.tensors.extend(program.tensors.ids());
        let mut next: FxHashMap<Option<UnitId>, u32> = FxHashMap::default();
        let tensors = self.tensors.iter().map(|id| (*id, next_number(&mut next, program.tensors[*id].unit)));
        let tensors = tensors.collect();
        let axes = self.axis_numbers();
        let streams = self.streams.iter().copied().zip(0..).collect();
        let works = self.works.iter().copied().zip(0..).collect();
        let symbols = self.new_symbol_names();
        Numbers { tensors, axes, streams, works, symbols, definitions: self.definitions }
    }

    fn axis_numbers(&self) -> FxHashMap<AxisId, u32> {
        let mut next: FxHashMap<Option<UnitId>, u32> = FxHashMap::default();
        let space = |axis: &AxisId| self.axis_spaces.get(axis).copied().flatten();
        let mut numbers: FxHashMap<AxisId, u32> = FxHashMap::default();
        for axis in &self.axes {
            let mut stack = vec![*axis];
            while let Some(top) = stack.last().copied() {
                let smaller = self.smaller.get(&top).into_iter().flatten();
                match smaller.copied().find(|it| !numbers.contains_key(it)) {
                    Some(first) => stack.push(first),
                    None => {
                        numbers.entry(top).or_insert_with(|| next_number(&mut next, space(&top)));
                        stack.pop();
                    }
                }
            }
        }
        let program = self.program;
        for axis in program.axes.ids().filter(|axis| !self.axes.contains(axis)) {
            let alike = self.by_number.get(&(space(&axis), program.axes[axis].number)).into_iter().flatten();
            let same = alike.into_iter().find(|it| program.axes[**it] == program.axes[axis]);
            let number = same.filter(|_| self.axis_spaces.contains_key(&axis)).and_then(|it| numbers.get(it));
            let number = number.copied().unwrap_or_else(|| next_number(&mut next, None));
            numbers.insert(axis, number);
        }
        numbers
    }

    /// Returns the new names of the scalars that are renamed.
    fn new_symbol_names(&self) -> FxHashMap<SymbolId, String> {
        let program = self.program;
        let prefix = |symbol: SymbolId, space: Option<UnitId>| {
            let own = space.is_some() || self.defined.contains(&symbol) && !self.free.contains(&symbol);
            let name = program.symbols[symbol].as_str();
            let letters = name.trim_end_matches(|it: char| it.is_ascii_digit());
            let is_numbered =
                letters.len() < name.len() && letters.bytes().all(|it| it.is_ascii_alphabetic());
            (own && is_numbered).then_some(letters)
        };
        let kept: FxHashSet<(Option<UnitId>, &str)> = self
            .symbols
            .iter()
            .filter(|(symbol, space)| prefix(**symbol, **space).is_none())
            .map(|(symbol, space)| (*space, program.symbols[*symbol].as_str()))
            .collect();
        let mut next: FxHashMap<Option<UnitId>, u32> = FxHashMap::default();
        let mut names = FxHashMap::default();
        for (symbol, space) in &self.symbols {
            let Some(letters) = prefix(*symbol, *space) else { continue };
            let mut name = format!("{letters}{}", next_number(&mut next, *space));
            while kept.contains(&(*space, name.as_str())) {
                name = format!("{letters}{}", next_number(&mut next, *space));
            }
            names.insert(*symbol, name);
        }
        names
    }
}

fn next_number(next: &mut FxHashMap<Option<UnitId>, u32>, space: Option<UnitId>) -> u32 {
    let next = next.entry(space).or_default();
    *next += 1;
    *next - 1
}

/// Writes the numbers into the program. Returns whether any of them changed.
fn write(program: &mut Program, new: &Numbers) -> bool {
    let mut changed = false;
    let mut set = |old: &mut u32, new: Option<&u32>| {
        if let Some(new) = new {
            changed |= *old != *new;
            *old = *new;
        }
    };
    let mut named: FxHashMap<(Option<UnitId>, u32), u32> = FxHashMap::default();
    for id in program.tensors.ids() {
        let tensor = &mut program.tensors[id];
        new.tensors.get(&id).into_iter().for_each(|it| _ = named.insert((tensor.unit, tensor.number), *it));
        set(&mut tensor.number, new.tensors.get(&id));
    }
    for id in program.axes.ids() {
        set(&mut program.axes[id].number, new.axes.get(&id));
    }
    for id in program.streams.ids() {
        if let Stream::Named(number) = &mut program.streams[id] {
            let fresh = new.streams.get(number).copied();
            set(number, fresh.as_ref());
        }
    }
    for id in program.units.ids() {
        set(&mut program.units[id].number, new.works.get(&NumberedWork::Unit(id)));
    }
    for id in program.stmts.ids() {
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        let awaited = it.attrs.iter_mut().filter_map(|(_, attr)| match attr {
            Attr::Work(number) => Some(number),
            _ => None,
        });
        for number in it.number.iter_mut().chain(awaited) {
            let fresh = new.works.get(&NumberedWork::Posted(*number)).copied();
            set(number, fresh.as_ref());
        }
    }
    for id in program.tensors.ids() {
        let tensor = &mut program.tensors[id];
        let positions = positions(&tensor.positions, &|number| named.get(&(tensor.unit, number)).copied());
        changed |= positions != tensor.positions;
        tensor.positions = positions;
    }
    changed |= new.symbols.iter().any(|(symbol, name)| program.symbols[*symbol] != *name);
    program.rename_symbols(&new.symbols);
    let definitions: IndexMap<_, _> = new
        .definitions
        .iter()
        .filter_map(|symbol| Some((*symbol, *program.definitions.get(symbol)?)))
        .collect();
    changed |= !definitions.keys().eq(program.definitions.keys());
    program.definitions = definitions;
    changed
}

/// Returns the text of a tensor's positions, such as `compute_with( T5, 1 )`, with the new tensor numbers.
fn positions(text: &str, new: &dyn Fn(u32) -> Option<u32>) -> String {
    let mut parts = text.split('T');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|it: char| it.is_ascii_digit());
        let number = part.strip_suffix(rest).and_then(|it| it.parse().ok()).and_then(new);
        out += &match number {
            Some(number) => format!("T{number}{rest}"),
            None => format!("T{part}"),
        };
    }
    out
}
