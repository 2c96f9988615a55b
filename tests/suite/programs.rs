//! Random programs that nothing has lowered yet: operators on sharded tensors, as text.
//!
//! Meshes have 1 to 6 devices in one or two dimensions; operands and results are on the same, overlapping or other
//! devices; every dimension is whole, split, or on the devices altogether, wherever its extent allows that. A program of
//! `n` operators is the beginning of the one of `n + 1` with the same seed, so a failure has a smallest program.

use std::fmt::Write as _;

use crate::dice::Dice;

/// The program of a seed.
pub fn program(seed: u64, operators: usize) -> String {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let meshes = (0..3).map(|_| mesh(&mut dice)).collect();
    let element = dice.any(&["double", "double", "float", "int64_t"]);
    let mut it = Builder { dice, meshes, element, ..Builder::default() };
    for _ in 0..operators {
        it.operator();
    }
    it.text()
}

/// Devices in one or two dimensions; none: every rank.
#[derive(Clone, Debug, Default, PartialEq)]
struct Mesh {
    /// Slowest first.
    shape: Vec<usize>,
    devices: Vec<usize>,
}

fn mesh(dice: &mut Dice) -> Mesh {
    let shapes: &[&[usize]] =
        &[&[2], &[2], &[3], &[4], &[5], &[6], &[1], &[2, 2], &[2, 3], &[3, 2], &[2, 2], &[1, 3], &[2, 1]];
    let shape = dice.any(shapes).to_vec();
    let count: usize = shape.iter().product();
    let mut devices = dice.order(6);
    devices.truncate(count);
    if dice.chance(50) {
        devices = (0..count).collect();
    } else if dice.chance(60) {
        devices.sort_unstable();
    }
    Mesh { shape, devices }
}

impl Mesh {
    /// The number of devices along `.x`, `.y`.
    fn extents(&self) -> Vec<usize> {
        self.shape.iter().rev().copied().collect()
    }

    fn text(&self) -> String {
        let row = |devices: &[usize]| {
            let devices: Vec<String> = devices.iter().map(usize::to_string).collect();
            format!("{{{}}}", devices.join(" "))
        };
        match self.shape[..] {
            [] => String::new(),
            [_] => format!(" (DeviceMesh{})", row(&self.devices)),
            [_, inner, ..] => {
                let rows: String = self.devices.chunks(inner).map(row).collect();
                format!(" (DeviceMesh{{{rows}}})")
            }
        }
    }
}

const NAMES: [&str; 2] = ["deviceIdx.x", "deviceIdx.y"];
const STREAM: &str = "streamIdx";

/// What cuts a dimension, and into how many parts.
type Piece = (&'static str, usize);

/// What a tensor's axis has to be.
#[derive(Clone, Default)]
struct Want {
    extent: usize,
    /// `i`, `b` or `r`.
    kind: char,
    /// Counts partial sums over this device axis.
    partial: Option<usize>,
    /// The place of its number among the tensor's, for results of Permute.
    number: Option<usize>,
}

fn plain(extents: &[usize]) -> Vec<Want> {
    extents.iter().map(|extent| Want { extent: *extent, kind: 'i', ..Want::default() }).collect()
}

#[derive(Clone)]
struct Tensor {
    text: String,
    /// Extents of the dimensions; those that count partial sums make a tensor that only reductions read.
    extents: Vec<usize>,
    is_partial: bool,
    /// All axes are iterations.
    is_plain: bool,
    element: &'static str,
    mesh: Mesh,
}

#[derive(Default)]
struct Builder {
    dice: Dice,
    meshes: Vec<Mesh>,
    element: &'static str,
    axes: usize,
    tensors: Vec<Tensor>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    body: String,
    domains: String,
}

impl Builder {
    fn text(&self) -> String {
        let list = |which: &[usize]| {
            which.iter().map(|it| self.tensors[*it].text.as_str()).collect::<Vec<_>>().join(", ")
        };
        format!(
            "%HostIrContainer {{ ({}) -> ({}) :\n{}}} // %HostIrContainer\n\nDomains:\n{}",
            list(&self.inputs),
            list(&self.outputs),
            self.body,
            self.domains
        )
    }

    // ---- tensors

    fn extent(&mut self) -> usize {
        let devices: Vec<usize> = self.meshes[..2].iter().flat_map(Mesh::extents).chain([1]).collect();
        let (one, other) = (self.dice.any(&devices), self.dice.any(&devices));
        match self.dice.roll(5) {
            0 => self.dice.any(&[1, 2, 3, 5, 6, 7, 8]),
            1 => one,
            2 if one * other <= 12 => one * other,
            _ => one * self.dice.any(&[1, 2, 3]),
        }
    }

    fn extents(&mut self, ranks: &[usize]) -> Vec<usize> {
        let rank = self.dice.any(ranks);
        (0..rank).map(|_| self.extent()).collect()
    }

    fn axis(&mut self) -> usize {
        self.axes += 1;
        self.axes - 1
    }

    /// A tensor somewhere, spread somehow.
    fn tensor(&mut self, wants: &[Want], element: &'static str) -> usize {
        self.somewhere(wants, element, false)
    }

    fn somewhere(&mut self, wants: &[Want], element: &'static str, is_input: bool) -> usize {
        let first = self.meshes[0].clone();
        let mut mesh = match self.dice.roll(10) {
            0..=5 => first.clone(),
            6 | 7 => self.meshes[1].clone(),
            8 => self.meshes[2].clone(),
            _ => self.tensors.last().map_or(first.clone(), |it| it.mesh.clone()),
        };
        if mesh.shape.is_empty() {
            mesh = first;
        }
        if is_input && self.dice.chance(5) {
            mesh = Mesh::default();
        }
        let partial = wants.iter().find_map(|it| it.partial.map(|device| (device, it.extent)));
        if partial.is_some() {
            mesh = self.meshes[0].clone();
        }
        let devices = mesh.extents();
        // What may cut a dimension: every device axis that does not count partial sums, and for some results a stream.
        let mut cuts: Vec<Piece> = NAMES.into_iter().zip(devices.iter().copied()).collect();
        cuts.retain(|(name, _)| partial.is_none_or(|(taken, _)| NAMES[taken] != *name));
        let all = cuts.clone();
        if !is_input && self.dice.chance(12) {
            cuts.push((STREAM, self.dice.any(&[2, 3, 4])));
        }
        let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); wants.len()];
        let mut rest: Vec<usize> = wants.iter().map(|it| it.extent).collect();
        for cut in self.dice.order(cuts.len()) {
            let (name, count) = cuts[cut];
            let fits = |at: &usize| {
                wants[*at].kind == 'i' && wants[*at].partial.is_none() && rest[*at].is_multiple_of(count)
            };
            let fits: Vec<usize> = (0..wants.len()).filter(fits).collect();
            if !fits.is_empty() && self.dice.chance(65) {
                let at = self.dice.any(&fits);
                pieces[at].push((name, count));
                rest[at] /= count;
            }
        }
        let is_free = |cut: &&Piece| !pieces.iter().flatten().any(|it| it.0 == cut.0);
        let free: Vec<Piece> = all.iter().filter(is_free).copied().collect();
        for (at, want) in wants.iter().enumerate() {
            if want.kind == 'r' && partial.is_none() && self.dice.chance(40) {
                let fits = |it: &&Piece| want.extent.is_multiple_of(it.1);
                pieces[at].extend(free.iter().find(fits));
                break;
            }
        }
        self.spelled(wants, &pieces, &mesh, element)
    }

    fn spelled(
        &mut self,
        wants: &[Want],
        pieces: &[Vec<Piece>],
        mesh: &Mesh,
        element: &'static str,
    ) -> usize {
        let first = self.axes;
        self.axes += wants.len();
        let (mut logical, mut loops, mut splits) = (Vec::new(), Vec::new(), String::new());
        for (at, want) in wants.iter().enumerate() {
            let number = first + want.number.unwrap_or(at);
            let mut name = format!("{}S{number}{{{}}}", want.kind, want.extent);
            let mut rest = Some(want.extent);
            if let Some(device) = want.partial {
                name = format!("i{}{number}{{{}}}rf", NAMES[device], want.extent);
                loops.push((true, name.clone()));
                rest = None;
            }
            let mut whole = (pieces[at].is_empty() || want.partial.is_some()).then(|| name.clone());
            for (cut, count) in pieces[at].iter().copied() {
                let Some(extent) = rest else { break };
                if extent == count && self.dice.chance(70) {
                    // The axis is the devices'.
                    let is_first = whole.is_none() && extent == want.extent;
                    let spelled = format!("{}{}", want.kind, cut);
                    let (number, old) = match is_first {
                        true => (number, name.clone()),
                        false => (self.axes - 1, format!("{}S{}{{{extent}}}", want.kind, self.axes - 1)),
                    };
                    let new = format!("{spelled}{number}{{{extent}}}");
                    if is_first {
                        whole = Some(new.clone());
                    } else {
                        splits = splits.replace(&old, &new);
                    }
                    loops.push((true, new));
                    rest = None;
                    break;
                }
                let input = match whole.is_none() {
                    true => name.clone(),
                    false => format!("{}S{}{{{extent}}}", want.kind, self.axes - 1),
                };
                whole.get_or_insert_with(|| name.clone());
                let (outer, inner) = (self.axis(), self.axis());
                let outer = format!("{}{}{outer}{{{count}}}", want.kind, cut);
                let _ = write!(
                    splits,
                    ", outer_split({input}, {count}) -> ({outer}, {}S{inner}{{{}}})",
                    want.kind,
                    extent / count
                );
                loops.push((true, outer));
                rest = Some(extent / count);
            }
            match (rest, pieces[at].is_empty()) {
                (Some(_), true) => loops.push((false, name.clone())),
                (Some(extent), false) => {
                    loops.push((false, format!("{}S{}{{{extent}}}", want.kind, self.axes - 1)));
                }
                (None, _) => (),
            }
            logical.push(whole.unwrap_or(name));
        }
        if self.dice.chance(50) {
            loops.sort_by_key(|(is_device, _)| !is_device);
        }
        let loops: Vec<String> = loops.into_iter().map(|(_, text)| text).collect();
        let number = self.tensors.len();
        let _ = writeln!(self.domains, "  T{number}: logical({}){splits}", logical.join(", "));
        self.tensors.push(Tensor {
            text: format!("T{number}_g_{element}[{}]{}", loops.join(", "), mesh.text()),
            extents: wants.iter().filter(|it| it.kind != 'r').map(|it| it.extent).collect(),
            is_partial: wants.iter().any(|it| it.partial.is_some()),
            is_plain: wants.iter().all(|it| it.kind == 'i' && it.partial.is_none() && it.number.is_none()),
            element,
            mesh: mesh.clone(),
        });
        number
    }

    fn input(&mut self, extents: &[usize], element: &'static str) -> usize {
        let input = self.somewhere(&plain(extents), element, true);
        self.inputs.push(input);
        input
    }

    /// A tensor with these extents, there already or new.
    fn operand(&mut self, extents: &[usize], element: &'static str) -> usize {
        let fits = |at: &usize| {
            let it = &self.tensors[*at];
            it.extents == extents && it.element == element && !it.is_partial
        };
        let known: Vec<usize> = (0..self.tensors.len()).filter(fits).collect();
        match known.is_empty() || self.dice.chance(40) {
            true => self.input(extents, element),
            false => self.dice.any(&known),
        }
    }

    /// A tensor with these extents that a statement has written already: it may be written again.
    fn written(&mut self, extents: &[usize], element: &'static str) -> Option<usize> {
        let fits = |at: &usize| {
            let it = &self.tensors[*at];
            it.extents == extents && it.element == element && it.is_plain
        };
        let known: Vec<usize> = self.outputs.iter().copied().filter(fits).collect();
        (!known.is_empty() && self.dice.chance(8)).then(|| self.dice.any(&known))
    }

    /// The tensor that an operator begins with: the latest, if it has one of these ranks, or a new one.
    fn subject(&mut self, ranks: &[usize], takes_integers: bool) -> usize {
        let usable = |it: &Tensor| {
            ranks.contains(&it.extents.len())
                && !it.is_partial
                && it.element != "bool"
                && (takes_integers || it.element != "int64_t")
        };
        match self.tensors.last() {
            Some(last) if usable(last) && self.dice.chance(80) => self.tensors.len() - 1,
            _ => {
                let extents = self.extents(ranks);
                let element = if takes_integers { self.element } else { self.real() };
                self.input(&extents, element)
            }
        }
    }

    /// The element type, if it is a float, else double.
    fn real(&self) -> &'static str {
        if self.element == "int64_t" { "double" } else { self.element }
    }

    // ---- operators

    fn define(&mut self, out: usize, value: &str) {
        let _ = writeln!(self.body, "  {}\n     = {value}", self.tensors[out].text);
        if !self.outputs.contains(&out) {
            self.outputs.push(out);
        }
    }

    fn result(&mut self, wants: &[Want], element: &'static str, value: &str) -> usize {
        let is_plain = wants.iter().all(|it| it.kind == 'i' && it.partial.is_none() && it.number.is_none());
        let extents: Vec<usize> = wants.iter().map(|it| it.extent).collect();
        let again = if is_plain { self.written(&extents, element) } else { None };
        // Not what the value itself reads: that would depend on the order in which ranks come by.
        let again = again.filter(|it| !value.contains(&self.tensors[*it].text));
        let out = again.unwrap_or_else(|| self.tensor(wants, element));
        self.define(out, value);
        out
    }

    fn named(&self, tensor: usize) -> (String, Vec<usize>, &'static str) {
        let it = &self.tensors[tensor];
        (it.text.clone(), it.extents.clone(), it.element)
    }

    fn operator(&mut self) {
        match self.dice.roll(26) {
            0..=3 => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                self.result(&plain(&extents), element, &format!("Set( {text} )"));
            }
            4..=6 => self.linear(),
            7..=9 => self.matmul(),
            10 | 11 => self.binary(),
            12 => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                let name = self.dice.any(&["neg", "abs", "relu"]);
                self.result(&plain(&extents), element, &format!("{name}({text});"));
            }
            13 => self.choice(),
            14..=17 => self.reduction(),
            18 => self.broadcast(),
            19 => self.squeeze(),
            20 => {
                let (text, extents, element) = self.start(&[2, 3]);
                let order = self.dice.order(extents.len());
                let want = |at: &usize| Want {
                    extent: extents[*at],
                    kind: 'i',
                    number: Some(*at),
                    ..Want::default()
                };
                let wants: Vec<Want> = order.iter().map(want).collect();
                self.result(&wants, element, &format!("Set.Permute( {text} )"));
            }
            21 => self.reshape(),
            22 => self.slice(),
            23 => self.cat(),
            24 => self.select(),
            _ => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                let to = if element == "double" { "int64_t" } else { "double" };
                let cast = match (element, to) {
                    ("float", _) => "__float2double",
                    (_, "double") => "__to_double",
                    _ => "__to_int64_t",
                };
                self.result(&plain(&extents), to, &format!("{cast}({text});"));
            }
        }
    }

    fn start(&mut self, ranks: &[usize]) -> (String, Vec<usize>, &'static str) {
        let subject = self.subject(ranks, true);
        self.named(subject)
    }

    fn linear(&mut self) {
        let subject = self.subject(&[1, 2, 3], false);
        let (x, mut extents, element) = self.named(subject);
        let k = extents.pop().unwrap_or(1);
        let n = self.extent();
        let weight = self.operand(&[n, k], element);
        extents.push(n);
        let bias = self.dice.chance(40);
        let (first, devices) = (self.meshes[0].clone(), self.meshes[0].extents());
        let device = self.dice.roll(devices.len());
        let partial = !bias && k.is_multiple_of(devices[device]) && self.dice.chance(35);
        let mut value = format!("linear({x},\n              {}", self.tensors[weight].text);
        if bias {
            let bias = self.operand(&[n], element);
            let _ = write!(value, ",\n          {}", self.tensors[bias].text);
        }
        let mut wants = plain(&extents);
        if !partial || first.shape.is_empty() {
            if self.dice.chance(50) {
                wants.push(Want { extent: k, kind: 'r', ..Want::default() });
            }
            self.result(&wants, element, &format!("{value})"));
            return;
        }
        // Partial sums on every device, and their sum.
        let count = Want { extent: devices[device], kind: 'i', partial: Some(device), number: None };
        wants.insert(0, count.clone());
        let sums = self.result(&wants, element, &format!("{value})"));
        let mut wants = plain(&extents);
        wants.insert(0, Want { kind: 'r', partial: None, ..count });
        let value = reduction(&self.tensors[sums].text, "add", element);
        self.result(&wants, element, &value);
    }

    fn matmul(&mut self) {
        let subject = self.subject(&[1, 2, 3], false);
        let (a, extents, element) = self.named(subject);
        let k = extents.last().copied().unwrap_or(1);
        let n = self.extent();
        let mut shape = vec![k, n];
        let mut result = extents[..extents.len() - 1].to_vec();
        match self.dice.roll(4) {
            0 if extents.len() < 3 => shape = vec![k],
            1 if extents.len() == 3 => shape.insert(0, extents[0]),
            2 if extents.len() == 3 => shape.insert(0, 1),
            3 if extents.len() == 2 => {
                shape.insert(0, self.extent());
                result.insert(0, shape[0]);
            }
            _ => (),
        }
        if shape.len() > 1 {
            result.push(n);
        }
        let b = self.operand(&shape, element);
        let b = self.tensors[b].text.clone();
        let mut wants = plain(&result);
        if self.dice.chance(50) {
            wants.push(Want { extent: k, kind: 'r', ..Want::default() });
        }
        self.result(&wants, element, &format!("matmul({a},\n              {b})"));
    }

    fn binary(&mut self) {
        let (a, extents, element) = self.start(&[1, 2, 3]);
        let mut other = extents.clone();
        if self.dice.chance(30) {
            let at = self.dice.roll(other.len());
            other[at] = 1;
        }
        let b = match self.dice.chance(15) {
            true => {
                if element == "int64_t" {
                    "3".to_owned()
                } else {
                    format!("{element}(3)")
                }
            }
            false => {
                let b = self.operand(&other, element);
                self.tensors[b].text.clone()
            }
        };
        let (a, b) = if self.dice.chance(50) { (a, b) } else { (b, a) };
        let value = match self.dice.any(&["+", "-", "*", "max", "min"]) {
            name @ ("max" | "min") => format!("{name}({a}\n     , {b});"),
            sign => format!("{a}\n     {sign} {b};"),
        };
        self.result(&plain(&extents), element, &value);
    }

    fn choice(&mut self) {
        let (a, extents, element) = self.start(&[1, 2]);
        let (b, c) = (self.operand(&extents, element), self.operand(&extents, element));
        let (b, c) = (self.tensors[b].text.clone(), self.tensors[c].text.clone());
        let cond = self.result(&plain(&extents), "bool", &format!("{a}\n     < {b};"));
        let cond = self.tensors[cond].text.clone();
        self.result(&plain(&extents), element, &format!("where({cond}\n     , {b}\n     , {c});"));
    }

    fn reduction(&mut self) {
        let (text, extents, element) = self.start(&[1, 2, 3]);
        let mut wants = plain(&extents);
        let first = self.dice.roll(wants.len());
        wants[first].kind = 'r';
        if self.dice.chance(30) {
            let second = self.dice.roll(wants.len());
            wants[second].kind = 'r';
        }
        let op = match element {
            "int64_t" => self.dice.any(&["add", "add", "max", "min", "mul", "bitwise_or", "bitwise_xor"]),
            _ => self.dice.any(&["add", "add", "max", "min", "mul", "fmax"]),
        };
        let mut value = reduction(&text, op, element);
        if op == "add" && self.dice.chance(15) {
            value = value.replace("value = 0,", "value = 10,").replace("(0)", "(10)");
        }
        self.result(&wants, element, &value);
    }

    fn broadcast(&mut self) {
        let (text, extents, element) = self.start(&[1, 2]);
        let at = self.dice.roll(extents.len() + 1);
        let mut wants = plain(&extents);
        wants.insert(at, Want { extent: 1, kind: 'b', ..Want::default() });
        let value = format!("broadcast( {text}, flags = {} )", flags(wants.len(), at));
        self.result(&wants, element, &value);
    }

    fn squeeze(&mut self) {
        let mut extents = self.extents(&[1, 2]);
        let at = self.dice.roll(extents.len() + 1);
        extents.insert(at, 1);
        let element = self.element;
        let subject = self.operand(&extents, element);
        let value =
            format!("squeeze( {}, flags = {} )", self.tensors[subject].text, flags(extents.len(), at));
        extents.remove(at);
        self.result(&plain(&extents), element, &value);
    }

    fn reshape(&mut self) {
        let (text, mut extents, element) = self.start(&[1, 2, 3]);
        if extents.len() > 1 && self.dice.chance(60) {
            let at = self.dice.roll(extents.len() - 1);
            let inner = extents.remove(at + 1);
            extents[at] *= inner;
        } else {
            let at = self.dice.roll(extents.len());
            let divisors: Vec<usize> =
                (1..=extents[at]).filter(|it| extents[at].is_multiple_of(*it)).collect();
            let inner = self.dice.any(&divisors);
            extents[at] /= inner;
            extents.insert(at + 1, inner);
        }
        self.result(&plain(&extents), element, &format!("reshape( {text} )"));
    }

    fn slice(&mut self) {
        let (text, extents, element) = self.start(&[1, 2]);
        let (mut ranges, mut result) = (Vec::new(), Vec::new());
        for extent in extents {
            let start = self.dice.roll(extent);
            let stop = start + 1 + self.dice.roll(extent - start);
            let (start, stop) = if self.dice.chance(50) { (0, extent) } else { (start, stop) };
            ranges.push(format!("{{{start}, {stop}, 1}}"));
            result.push(stop - start);
        }
        self.result(&plain(&result), element, &format!("slice( {text}, {{ {} }} )", ranges.join(" ")));
    }
}

impl Builder {
    fn cat(&mut self) {
        let (text, mut extents, element) = self.start(&[1, 2]);
        let other = self.operand(&extents, element);
        let at = self.dice.roll(extents.len());
        extents[at] *= 2;
        let value = format!("cat( {text}, {}, {at} )", self.tensors[other].text);
        self.result(&plain(&extents), element, &value);
    }

    fn select(&mut self) {
        // The axis is named in the statement: a tensor whose axes are whole.
        let extents = self.extents(&[2, 3]);
        let mesh = self.meshes[0].clone();
        let first = self.axes;
        let wants = plain(&extents);
        let element = self.element;
        let subject = self.spelled(&wants, &vec![Vec::new(); wants.len()], &mesh, element);
        self.inputs.push(subject);
        let at = self.dice.roll(extents.len());
        let index = self.dice.roll(extents[at]);
        let (text, mut extents, element) = self.named(subject);
        let axis = format!("iS{}{{{}}}", first + at, extents[at]);
        extents.remove(at);
        // A view of the operand: it is where that is.
        let out = self.spelled(&plain(&extents), &vec![Vec::new(); extents.len()], &mesh, element);
        self.define(out, &format!("select( {text}, axis = {axis}, index = {index} )"));
    }
}

fn reduction(text: &str, op: &str, element: &str) -> String {
    let is_integer = element == "int64_t";
    let init = match (op, is_integer) {
        ("add" | "bitwise_or" | "bitwise_xor", true) => "0".to_owned(),
        ("mul", true) => "1".to_owned(),
        ("max", true) => i64::MIN.to_string(),
        (_, true) => i64::MAX.to_string(),
        ("add", false) => format!("{element}(0)"),
        ("mul", false) => format!("{element}(1)"),
        ("max" | "fmax", false) => format!("{element}(-inf)"),
        (_, false) => format!("{element}(inf)"),
    };
    format!("reduction( {text}, op = {op}, initial value = {init}, allreduce = false )")
}

fn flags(count: usize, set: usize) -> String {
    let flags: Vec<&str> = (0..count).map(|at| if at == set { "true" } else { "false" }).collect();
    format!("{{{}}}", flags.join(", "))
}
