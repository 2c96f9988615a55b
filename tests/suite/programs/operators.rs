//! Generates operators with matching operands and results.

use std::fmt::Write as _;

use super::{
    Builder, Tensor,
    shapes::{AxisSpec, unpermuted_axes},
};

/// Operators whose result may be a view of their operand.
const VIEWS: &[&str] = &["Set", "broadcast", "squeeze", "slice", "reshape", "select"];

impl Builder {
    fn define(&mut self, out: usize, value: &str) {
        if VIEWS.iter().any(|name| value.starts_with(name)) {
            self.tensors[out].is_shared = true;
            let reads = |it: &&mut Tensor| value.contains(&it.text);
            self.tensors.iter_mut().filter(reads).for_each(|it| it.is_shared = true);
        }
        let _ = writeln!(self.body, "  {}\n     = {value}", self.tensors[out].text);
        if !self.outputs.contains(&out) {
            self.outputs.push(out);
        }
    }

    fn result(&mut self, wants: &[AxisSpec], element: &'static str, value: &str) -> usize {
        let is_plain = wants.iter().all(|it| it.kind == 'i' && it.partial.is_none() && it.number.is_none());
        let extents: Vec<usize> = wants.iter().map(|it| it.extent).collect();
        let again = if is_plain { self.written(&extents, element) } else { None };
        // Does not overwrite an operand of the value itself, since the result would depend on the order of
        // the ranks.
        let again = again.filter(|it| !value.contains(&self.tensors[*it].text));
        let out = again.unwrap_or_else(|| self.tensor(wants, element));
        self.define(out, value);
        out
    }

    fn named(&self, tensor: usize) -> (String, Vec<usize>, &'static str) {
        let it = &self.tensors[tensor];
        (it.text.clone(), it.extents.clone(), it.element)
    }

    pub(super) fn operator(&mut self) {
        match self.rng.below(30) {
            0..=3 => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                self.result(&unpermuted_axes(&extents), element, &format!("Set( {text} )"));
            }
            4..=6 => self.linear(),
            7..=9 => self.matmul(),
            10 | 11 => self.binary(),
            12 => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                let name = self.rng.choose_cloned(&["neg", "abs", "relu"]);
                self.result(&unpermuted_axes(&extents), element, &format!("{name}({text});"));
            }
            13 => self.choice(),
            14..=17 => self.reduction(),
            18 => self.broadcast(),
            19 => self.squeeze(),
            20 => {
                let (text, extents, element) = self.start(&[2, 3]);
                let order = self.rng.permutation(extents.len());
                let want = |at: &usize| AxisSpec {
                    extent: extents[*at],
                    kind: 'i',
                    number: Some(*at),
                    ..AxisSpec::default()
                };
                let wants: Vec<AxisSpec> = order.iter().map(want).collect();
                self.result(&wants, element, &format!("Set.Permute( {text} )"));
            }
            21 => self.reshape(),
            22 => self.slice(),
            23 => self.cat(),
            24 | 25 => self.select(),
            26 => self.slice(),
            27 => self.cat(),
            28 => {
                let (extents, element) = (self.extents(&[1, 1, 2, 3]), self.element);
                self.generated(&extents, element);
            }
            _ => {
                let (text, extents, element) = self.start(&[1, 2, 3]);
                let to = if element == "double" { "int64_t" } else { "double" };
                let cast = match (element, to) {
                    ("float", _) => "__float2double",
                    (_, "double") => "__to_double",
                    _ => "__to_int64_t",
                };
                self.result(&unpermuted_axes(&extents), to, &format!("{cast}({text});"));
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
        let bias = self.rng.chance(40);
        let (first, devices) = (self.meshes[0].clone(), self.meshes[0].extents());
        let device = self.rng.below(devices.len());
        let partial = !bias && k.is_multiple_of(devices[device]) && self.rng.chance(35);
        let mut value = format!("linear({x},\n              {}", self.tensors[weight].text);
        if bias {
            let bias = self.operand(&[n], element);
            let _ = write!(value, ",\n          {}", self.tensors[bias].text);
        }
        let mut wants = unpermuted_axes(&extents);
        if !partial || first.shape.is_empty() {
            if self.rng.chance(50) {
                wants.push(AxisSpec { extent: k, kind: 'r', ..AxisSpec::default() });
            }
            self.result(&wants, element, &format!("{value})"));
            return;
        }
        // The partial sums on every device, and their sum.
        let count = AxisSpec { extent: devices[device], kind: 'i', partial: Some(device), number: None };
        wants.insert(0, count.clone());
        let sums = self.result(&wants, element, &format!("{value})"));
        let mut wants = unpermuted_axes(&extents);
        wants.insert(0, AxisSpec { kind: 'r', partial: None, ..count });
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
        match self.rng.below(4) {
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
        let mut wants = unpermuted_axes(&result);
        if self.rng.chance(50) {
            wants.push(AxisSpec { extent: k, kind: 'r', ..AxisSpec::default() });
        }
        self.result(&wants, element, &format!("matmul({a},\n              {b})"));
    }

    fn binary(&mut self) {
        let (a, extents, element) = self.start(&[1, 2, 3]);
        let mut other = extents.clone();
        if self.rng.chance(30) {
            let at = self.rng.below(other.len());
            other[at] = 1;
        }
        let b = if self.rng.chance(15) {
            if element == "int64_t" { "3".to_owned() } else { format!("{element}(3)") }
        } else {
            let b = self.operand(&other, element);
            self.tensors[b].text.clone()
        };
        let (a, b) = if self.rng.chance(50) { (a, b) } else { (b, a) };
        let value = match self.rng.choose_cloned(&["+", "-", "*", "max", "min"]) {
            name @ ("max" | "min") => format!("{name}({a}\n     , {b});"),
            sign => format!("{a}\n     {sign} {b};"),
        };
        self.result(&unpermuted_axes(&extents), element, &value);
    }

    fn choice(&mut self) {
        let (a, extents, element) = self.start(&[1, 2]);
        let (b, c) = (self.operand(&extents, element), self.operand(&extents, element));
        let (b, c) = (self.tensors[b].text.clone(), self.tensors[c].text.clone());
        let cond = self.result(&unpermuted_axes(&extents), "bool", &format!("{a}\n     < {b};"));
        let cond = self.tensors[cond].text.clone();
        self.result(&unpermuted_axes(&extents), element, &format!("where({cond}\n     , {b}\n     , {c});"));
    }

    fn reduction(&mut self) {
        let (text, extents, element) = self.start(&[1, 2, 3]);
        let mut wants = unpermuted_axes(&extents);
        let first = self.rng.below(wants.len());
        wants[first].kind = 'r';
        if self.rng.chance(30) {
            let second = self.rng.below(wants.len());
            wants[second].kind = 'r';
        }
        let op = match element {
            "int64_t" => {
                self.rng.choose_cloned(&["add", "add", "max", "min", "mul", "bitwise_or", "bitwise_xor"])
            }
            _ => self.rng.choose_cloned(&["add", "add", "max", "min", "mul", "fmax"]),
        };
        let mut value = reduction(&text, op, element);
        if op == "add" && self.rng.chance(15) {
            value = value.replace("value = 0,", "value = 10,").replace("(0)", "(10)");
        }
        self.result(&wants, element, &value);
    }

    fn broadcast(&mut self) {
        let (text, extents, element) = self.start(&[1, 2]);
        let at = self.rng.below(extents.len() + 1);
        let mut wants = unpermuted_axes(&extents);
        wants.insert(at, AxisSpec { extent: 1, kind: 'b', ..AxisSpec::default() });
        let value = format!("broadcast( {text}, flags = {} )", flags(wants.len(), at));
        self.result(&wants, element, &value);
    }

    fn squeeze(&mut self) {
        let mut extents = self.extents(&[1, 2]);
        let at = self.rng.below(extents.len() + 1);
        extents.insert(at, 1);
        let element = self.element;
        let subject = self.operand(&extents, element);
        let value =
            format!("squeeze( {}, flags = {} )", self.tensors[subject].text, flags(extents.len(), at));
        extents.remove(at);
        self.result(&unpermuted_axes(&extents), element, &value);
    }

    fn reshape(&mut self) {
        let (text, mut extents, element) = self.start(&[1, 2, 3]);
        if extents.len() > 1 && self.rng.chance(60) {
            let at = self.rng.below(extents.len() - 1);
            let inner = extents.remove(at + 1);
            extents[at] *= inner;
        } else {
            let at = self.rng.below(extents.len());
            let divisors: Vec<usize> =
                (1..=extents[at]).filter(|it| extents[at].is_multiple_of(*it)).collect();
            let inner = self.rng.choose_cloned(&divisors);
            extents[at] /= inner;
            extents.insert(at + 1, inner);
        }
        self.result(&unpermuted_axes(&extents), element, &format!("reshape( {text} )"));
    }

    /// Adds a tensor that an operator generates without operands: a one-dimensional iota, a square eye, or
    /// full.
    pub(super) fn generated(&mut self, extents: &[usize], element: &'static str) -> usize {
        let number = |value: i64| match element {
            "int64_t" => value.to_string(),
            _ => format!("{element}({value})"),
        };
        let value = match *extents {
            [length] if self.rng.chance(75) => {
                let (start, step) =
                    (self.rng.choose_cloned(&[0, 0, 1, -3]), self.rng.choose_cloned(&[1, 1, 1, 2, -1]));
                format!("iota({length}, {start}, {step}, {element});")
            }
            [rows, columns] if rows == columns && self.rng.chance(75) => format!("eye({rows}, {element});"),
            _ => {
                let shape: Vec<String> = extents.iter().map(usize::to_string).collect();
                format!("full({{{}}}, {});", shape.join(", "), number(self.rng.choose_cloned(&[0, 1, 2, -3])))
            }
        };
        self.result(&unpermuted_axes(extents), element, &value)
    }

    fn slice(&mut self) {
        let (text, extents, element) = self.start(&[1, 2, 3]);
        let (mut ranges, mut result) = (Vec::new(), Vec::new());
        for extent in extents {
            let start = self.rng.below(extent);
            let stop = start + 1 + self.rng.below(extent - start);
            let (start, stop) = if self.rng.chance(50) { (0, extent) } else { (start, stop) };
            let step = self.rng.choose_cloned(&[1, 1, 1, 2]);
            ranges.push(format!("{{{start}, {stop}, {step}}}"));
            result.push((stop - start).div_ceil(step));
        }
        self.result(
            &unpermuted_axes(&result),
            element,
            &format!("slice( {text}, {{ {} }} )", ranges.join(" ")),
        );
    }

    fn cat(&mut self) {
        let (mut value, mut extents, element) = self.start(&[1, 2, 3]);
        let at = self.rng.below(extents.len());
        for _ in 0..self.rng.choose_cloned(&[1, 1, 2]) {
            let mut part = extents.clone();
            part[at] = if self.rng.chance(60) { part[at] } else { self.extent() };
            let other = self.operand(&part, element);
            extents[at] += part[at];
            let _ = write!(value, ", {}", self.tensors[other].text);
        }
        self.result(&unpermuted_axes(&extents), element, &format!("cat( {value}, {at} )"));
    }

    fn select(&mut self) {
        let subject = self.subject(&[1, 2, 3], true);
        let (text, mut extents, element) = self.named(subject);
        let at = self.rng.below(extents.len());
        let (axis, index) = (self.tensors[subject].axes[at].clone(), self.rng.below(extents[at]));
        extents.remove(at);
        let value = format!("select( {text}, axis = {axis}, index = {index} )");
        let out = self.result(&unpermuted_axes(&extents), element, &value);
        // The result is a view, so writing it again would write the operand.
        self.tensors[out].is_plain = false;
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
