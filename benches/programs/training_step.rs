//! A training step of a GPT: blocks of causal attention and an MLP, their gradients, and Adam.
//!
//! The mesh is data x tensor, of 2 x 4 devices. `deviceIdx.y` splits the sequences of the batch, and the states of Adam besides (ZeRO).
//! `deviceIdx.x` splits the weights, and outside of the products the rows of each sequence. Only inputs and outputs have a
//! mesh. The gradient of the last block's result is an input.

use std::fmt::Write as _;

const MESH: &str = "(DeviceMesh{{0 1 2 3}{4 5 6 7}})";
const BATCH: usize = 4;
const ROWS: usize = 8;
const WIDTH: usize = 8;
const HEADS: usize = 8;
const HEAD: usize = 4;
const HIDDEN: usize = 16;

/// Returns a step of so many blocks.
pub fn training_step(blocks: usize) -> String {
    let mut step = Step::default();
    let mut x = step.input(&[BATCH, ROWS, WIDTH], &["y", "x", ""]);
    let mut gradient = step.input(&[BATCH, ROWS, WIDTH], &["y", "x", ""]);
    let mut forward = Vec::new();
    for _ in 0..blocks {
        let block = Block::of(&mut step, x);
        x = block.out;
        forward.push(block);
    }
    for block in forward.iter().rev() {
        gradient = block.backward(&mut step, gradient);
    }
    step.output(x, &["y", "x", ""]);
    step.output(gradient, &["y", "x", ""]);
    step.text()
}

type Value = usize;

/// A weight, with how it is split, and how its states of Adam are.
#[derive(Clone, Copy)]
struct Weight {
    value: Value,
    split: &'static [&'static str],
    states: &'static [&'static str],
}

impl Weight {
    fn of(
        step: &mut Step,
        shape: &[usize],
        split: &'static [&'static str],
        states: &'static [&'static str],
    ) -> Self {
        Self { value: step.input(shape, split), split, states }
    }

    fn norm(step: &mut Step) -> Self {
        Self::of(step, &[WIDTH], &[""], &["y"])
    }

    /// Whose rows, the features of the result, are split.
    fn by_rows(step: &mut Step, shape: &[usize]) -> Self {
        Self::of(step, shape, &["x", ""], &["xy", ""])
    }

    /// Whose columns, the features of the operand, are split.
    fn by_columns(step: &mut Step, shape: &[usize]) -> Self {
        Self::of(step, shape, &["", "x"], &["y", "x"])
    }
}

/// What the backward pass of a block reads.
struct Block {
    norms: [Norm; 2],
    /// Of queries, keys and values.
    weights: [Weight; 3],
    attention_out: Weight,
    up: Weight,
    down: Weight,
    /// Queries, keys and values.
    heads: [Value; 3],
    /// The results of the attention: values, log sum of exponentials, seed and offset of the random numbers.
    attention: [Value; 4],
    attended: Value,
    hidden: Value,
    sigmoid: Value,
    active: Value,
    out: Value,
}

struct Norm {
    weight: Weight,
    normal: Value,
    scale: Value,
    out: Value,
}

impl Norm {
    fn of(step: &mut Step, x: Value) -> Self {
        let weight = Weight::norm(step);
        let squares = step.map("{0} * {0}", &[x]);
        let mean = step.reduce(squares, &[2]);
        let mean = step.map("{0} * float(0.125)", &[mean]);
        let mean = step.map("{0} + float(1e-05)", &[mean]);
        let scale = step.map("rsqrt({0})", &[mean]);
        let scale = step.broadcast(scale, &[false, false, true]);
        let normal = step.map("{0} * {1}", &[x, scale]);
        let factors = step.broadcast(weight.value, &[true, true, false]);
        let out = step.map("{0} * {1}", &[normal, factors]);
        Self { weight, normal, scale, out }
    }

    fn backward(&self, step: &mut Step, gradient: Value) -> Value {
        let of_weight = step.map("{0} * {1}", &[gradient, self.normal]);
        let of_weight = step.reduce(of_weight, &[0, 1]);
        step.adam(self.weight, of_weight);
        let factors = step.broadcast(self.weight.value, &[true, true, false]);
        let of_normal = step.map("{0} * {1}", &[gradient, factors]);
        let product = step.map("{0} * {1}", &[of_normal, self.normal]);
        let mean = step.reduce(product, &[2]);
        let mean = step.map("{0} * float(0.125)", &[mean]);
        let mean = step.broadcast(mean, &[false, false, true]);
        let mean = step.map("{0} * {1}", &[self.normal, mean]);
        let inner = step.map("{0} - {1}", &[of_normal, mean]);
        step.map("{0} * {1}", &[inner, self.scale])
    }
}

impl Block {
    fn of(step: &mut Step, x: Value) -> Self {
        let norm = Norm::of(step, x);
        let weights = [(); 3].map(|()| Weight::by_rows(step, &[HEADS * HEAD, WIDTH]));
        let heads = weights.map(|weight| {
            let product = step.linear(norm.out, weight.value);
            step.heads(product)
        });
        let attention = step.attention(heads);
        let attended = step.joined(attention[0]);
        let attention_out = Weight::by_columns(step, &[WIDTH, HEADS * HEAD]);
        let product = step.linear(attended, attention_out.value);
        let middle = step.map("{0} + {1}", &[x, product]);
        let second = Norm::of(step, middle);
        let up = Weight::by_rows(step, &[HIDDEN, WIDTH]);
        let hidden = step.linear(second.out, up.value);
        let sigmoid = step.map("sigmoid({0})", &[hidden]);
        let active = step.map("{0} * {1}", &[hidden, sigmoid]);
        let down = Weight::by_columns(step, &[WIDTH, HIDDEN]);
        let product = step.linear(active, down.value);
        let out = step.map("{0} + {1}", &[middle, product]);
        let norms = [norm, second];
        Self {
            norms,
            weights,
            attention_out,
            up,
            down,
            heads,
            attention,
            attended,
            hidden,
            sigmoid,
            active,
            out,
        }
    }

    /// Updates the weights, and returns the gradient of the block's operand.
    fn backward(&self, step: &mut Step, gradient: Value) -> Value {
        step.weight_gradient(self.down, gradient, self.active);
        let active = step.matmul(gradient, self.down.value);
        // The derivative of x · sigmoid(x) is sigmoid(x) · (1 + x · (1 - sigmoid(x))).
        let rest = step.map("float(1) - {0}", &[self.sigmoid]);
        let rest = step.map("{0} * {1}", &[self.hidden, rest]);
        let rest = step.map("{0} + float(1)", &[rest]);
        let slope = step.map("{0} * {1}", &[self.sigmoid, rest]);
        let hidden = step.map("{0} * {1}", &[active, slope]);
        step.weight_gradient(self.up, hidden, self.norms[1].out);
        let product = step.matmul(hidden, self.up.value);
        let of_norm = self.norms[1].backward(step, product);
        let middle = step.map("{0} + {1}", &[of_norm, gradient]);
        step.weight_gradient(self.attention_out, middle, self.attended);
        let attended = step.matmul(middle, self.attention_out.value);
        let attended = step.heads(attended);
        let heads = step.attention_backward(attended, self.heads, self.attention).map(|it| step.joined(it));
        for (weight, it) in self.weights.into_iter().zip(heads) {
            step.weight_gradient(weight, it, self.norms[0].out);
        }
        let [query, key, value] = [0, 1, 2].map(|at| step.matmul(heads[at], self.weights[at].value));
        let sum = step.map("{0} + {1}", &[query, key]);
        let sum = step.map("{0} + {1}", &[sum, value]);
        let of_norm = self.norms[0].backward(step, sum);
        step.map("{0} + {1}", &[of_norm, middle])
    }
}

/// The text of a program.
#[derive(Default)]
struct Step {
    axis: usize,
    shapes: Vec<Vec<usize>>,
    /// The declaration of each tensor.
    declared: Vec<String>,
    domains: String,
    body: String,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl Step {
    fn axis(&mut self, kind: &str, extent: usize) -> String {
        self.axis += 1;
        format!("{kind}{}{{{extent}}}", self.axis)
    }

    fn declare(&mut self, shape: &[usize], dtype: &str, axes: &[String], mesh: &str) -> Value {
        let number = self.shapes.len();
        self.declared.push(format!("%tensor T{number}_g_{dtype}[{}] {mesh}", axes.join(", ")));
        self.shapes.push(shape.to_vec());
        number
    }

    fn tensor(&mut self, shape: &[usize], dtype: &str) -> Value {
        let axes: Vec<String> =
            shape.iter().map(|it| self.axis(if *it == 1 { "bS" } else { "iS" }, *it)).collect();
        self.declare(shape, dtype, &axes, "")
    }

    /// Declares a tensor whose dimensions are split over devices, such as `["xy", ""]`. `value` is declared before.
    fn shard(&mut self, value: Value, split: &[&str]) {
        let (mut axes, mut logical, mut clauses) = (Vec::new(), Vec::new(), String::new());
        for (mut extent, devices) in self.shapes[value].clone().into_iter().zip(split) {
            let mut axis = self.axis("iS", extent);
            logical.push(axis.clone());
            for device in devices.chars() {
                let count = if device == 'y' { 2 } else { 4 };
                extent /= count;
                let outer = self.axis(&format!("ideviceIdx.{device}"), count);
                let inner = self.axis("iS", extent);
                let _ = write!(clauses, ", outer_split({axis}, {count}) -> ({outer}, {inner})");
                axes.push(outer);
                axis = inner;
            }
            axes.push(axis);
        }
        self.declared[value] = format!("%tensor T{value}_g_float[{}] {MESH}", axes.join(", "));
        if !clauses.is_empty() {
            let _ = writeln!(self.domains, "  T{value}: logical({}){clauses}", logical.join(", "));
        }
    }

    fn input(&mut self, shape: &[usize], split: &[&str]) -> Value {
        let value = self.declare(shape, "float", &[], "");
        self.shard(value, split);
        self.inputs.push(value);
        value
    }

    fn output(&mut self, value: Value, split: &[&str]) {
        self.shard(value, split);
        self.outputs.push(value);
    }

    fn set(&mut self, value: Value, text: &str) -> Value {
        let _ = writeln!(self.body, "  T{value} = {text}");
        value
    }

    /// Adds an elementwise statement. `text` is an expression of `{0}` and `{1}`.
    fn map(&mut self, text: &str, operands: &[Value]) -> Value {
        let mut shape = self.shapes[operands[0]].clone();
        let mut text = format!("{text};");
        for (at, operand) in operands.iter().enumerate() {
            text = text.replace(&format!("{{{at}}}"), &format!("T{operand}"));
            shape.iter_mut().zip(&self.shapes[*operand]).for_each(|(it, other)| *it = (*it).max(*other));
        }
        let out = self.tensor(&shape, "float");
        self.set(out, &text)
    }

    fn reduce(&mut self, value: Value, dims: &[usize]) -> Value {
        let shape = self.shapes[value].clone();
        let kind = |dim| if dims.contains(&dim) { "rS" } else { "iS" };
        let axes: Vec<String> = shape.iter().enumerate().map(|(dim, it)| self.axis(kind(dim), *it)).collect();
        let kept: Vec<usize> =
            shape.iter().enumerate().filter(|(dim, _)| !dims.contains(dim)).map(|it| *it.1).collect();
        let out = self.declare(&kept, "float", &axes, "");
        self.set(
            out,
            &format!("reduction( T{value}, op = add, initial value = float(0), allreduce = false )"),
        )
    }

    fn broadcast(&mut self, value: Value, flags: &[bool]) -> Value {
        let mut kept = self.shapes[value].clone().into_iter();
        let shape: Vec<usize> =
            flags.iter().map(|it| if *it { 1 } else { kept.next().unwrap_or_default() }).collect();
        let out = self.tensor(&shape, "float");
        let flags: Vec<String> = flags.iter().map(bool::to_string).collect();
        self.set(out, &format!("broadcast( T{value}, flags = {{{}}} )", flags.join(", ")))
    }

    fn permute(&mut self, value: Value, order: &[usize]) -> Value {
        let shape: Vec<usize> = order.iter().map(|it| self.shapes[value][*it]).collect();
        let out = self.tensor(&shape, "float");
        let order: Vec<String> = order.iter().map(usize::to_string).collect();
        self.set(out, &format!("Set.Permute( T{value}, dims = {{{}}} )", order.join(", ")))
    }

    fn reshape(&mut self, value: Value, shape: &[usize]) -> Value {
        let out = self.tensor(shape, "float");
        self.set(out, &format!("reshape( T{value} )"))
    }

    fn linear(&mut self, value: Value, weight: Value) -> Value {
        let mut shape = self.shapes[value].clone();
        shape[2] = self.shapes[weight][0];
        let out = self.tensor(&shape, "float");
        self.set(out, &format!("linear(T{value}, T{weight})"))
    }

    fn matmul(&mut self, left: Value, right: Value) -> Value {
        let mut shape = self.shapes[left].clone();
        let last = shape.len() - 1;
        shape[last] = self.shapes[right][1];
        let out = self.tensor(&shape, "float");
        self.set(out, &format!("matmul(T{left}, T{right})"))
    }

    fn heads(&mut self, value: Value) -> Value {
        let parts = self.reshape(value, &[BATCH, ROWS, HEADS, HEAD]);
        self.permute(parts, &[0, 2, 1, 3])
    }

    fn joined(&mut self, value: Value) -> Value {
        let rows = self.permute(value, &[0, 2, 1, 3]);
        self.reshape(rows, &[BATCH, ROWS, HEADS * HEAD])
    }

    fn attention(&mut self, [q, k, v]: [Value; 3]) -> [Value; 4] {
        let out = self.tensor(&[BATCH, HEADS, ROWS, HEAD], "float");
        let sums = self.tensor(&[BATCH, HEADS, ROWS], "float");
        let (seed, offset) = (self.tensor(&[2], "uint64_t"), self.tensor(&[], "uint64_t"));
        let _ = writeln!(
            self.body,
            "  T{out}, T{sums}, T{seed}, T{offset} = sdpa(T{q}, T{k}, T{v}, dropout_p=double(0), is_causal=true, scale=double(0.5))"
        );
        [out, sums, seed, offset]
    }

    fn attention_backward(
        &mut self,
        gradient: Value,
        [q, k, v]: [Value; 3],
        [out, sums, seed, offset]: [Value; 4],
    ) -> [Value; 3] {
        let [dq, dk, dv] = [(); 3].map(|()| self.tensor(&[BATCH, HEADS, ROWS, HEAD], "float"));
        let _ = writeln!(
            self.body,
            "  T{dq}, T{dk}, T{dv} = sdpa_bwd(T{gradient}, T{q}, T{k}, T{v}, T{out}, logsum_exp=T{sums}, dropout_p=double(0), \
             is_causal=true, philox_seed=T{seed}, philox_offset=T{offset}, scale=double(0.5))"
        );
        [dq, dk, dv]
    }

    /// Updates the weight of a linear layer with a product over all rows of all sequences.
    fn weight_gradient(&mut self, weight: Weight, gradient: Value, value: Value) {
        let [gradient, value] = [gradient, value].map(|it| {
            let columns = self.shapes[it][2];
            self.reshape(it, &[BATCH * ROWS, columns])
        });
        let transposed = self.permute(gradient, &[1, 0]);
        let product = self.matmul(transposed, value);
        self.adam(weight, product);
    }

    fn adam(&mut self, weight: Weight, gradient: Value) {
        let shape = self.shapes[weight.value].clone();
        let [mut first, mut second] = [(); 2].map(|()| self.input(&shape, weight.states));
        first = self.map("{0} * float(0.9)", &[first]);
        let part = self.map("{0} * float(0.1)", &[gradient]);
        first = self.map("{0} + {1}", &[first, part]);
        self.output(first, weight.states);
        second = self.map("{0} * float(0.95)", &[second]);
        let squares = self.map("{0} * {0}", &[gradient]);
        let part = self.map("{0} * float(0.05)", &[squares]);
        second = self.map("{0} + {1}", &[second, part]);
        self.output(second, weight.states);
        let root = self.map("sqrt({0})", &[second]);
        let root = self.map("{0} + float(1e-08)", &[root]);
        let change = self.map("{0} / {1}", &[first, root]);
        let change = self.map("{0} * float(0.01)", &[change]);
        let new = self.map("{0} - {1}", &[weight.value, change]);
        self.output(new, weight.split);
    }

    fn text(&self) -> String {
        let names = |values: &[Value]| {
            let names: Vec<String> = values.iter().map(|it| format!("T{it}")).collect();
            names.join(", ")
        };
        format!(
            "{}\n%HostIrContainer {{ ({}) -> ({}) :\n{}}} // %HostIrContainer\n\nDomains:\n{}",
            self.declared.join("\n"),
            names(&self.inputs),
            names(&self.outputs),
            self.body,
            self.domains
        )
    }
}
