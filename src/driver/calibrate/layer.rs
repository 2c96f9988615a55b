//! Layers of a transformer: programs that no table of a machine contains.

use grammar::{DType, Named, Op, Program, TensorId, attr};
use hir_ir::build::{Dim, apply};

use super::{
    draft::{Draft, dim},
    programs::attention,
};

/// A layer of a transformer on several ranks, not lowered: a program that no table of a machine contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The kind of layer.
    pub kind: LayerKind,
    /// The number of tokens.
    pub rows: usize,
    /// The number of features of a token; the MLP has four times as many in between.
    pub width: usize,
}

grammar::named_enum! {
    /// A kind of layer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LayerKind {
        /// An all-gather of the rows, then a linear layer with sharded columns.
        ColumnParallel = "column-parallel",
        /// A linear layer with a sharded sum, then an all-reduce.
        RowParallel = "row-parallel",
        /// All-gather, linear, relu, linear, reduce-scatter.
        Mlp = "mlp",
        /// Attention and an MLP with residual sums, without norms. Heads have 128 elements, sequences at most 1024 rows.
        Block = "block",
    }
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows={} width={}", self.kind.name(), self.rows, self.width)
    }
}

impl std::str::FromStr for Layer {
    type Err = grammar::InvalidOption;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |word: Option<&str>, key: &str| word?.strip_prefix(key)?.parse().ok();
        let mut words = text.split(' ');
        let kind = words.next().and_then(LayerKind::of_name);
        let (rows, width) = (number(words.next(), "rows="), number(words.next(), "width="));
        match (kind, rows, width) {
            (Some(kind), Some(rows), Some(width)) => Ok(Self { kind, rows, width }),
            _ => Err(format!("`{text}` is not a layer such as `mlp rows=512 width=4096`").into()),
        }
    }
}

impl Layer {
    /// Returns the program for a number of ranks.
    pub fn program(&self, ranks: usize) -> Program {
        let Self { kind, rows, width } = *self;
        let inner = 4 * width;
        let mut draft = Draft::of(ranks);
        let result = match kind {
            LayerKind::ColumnParallel => {
                let x = draft.sharded_input([rows, width], 0);
                let weights = draft.sharded_input([inner, width], 0);
                let out = draft.sharded([rows, inner], Some(1));
                draft.out.assign(out, apply(Op::Linear, [x, weights]));
                out
            }
            LayerKind::RowParallel => {
                let x = draft.sharded_input([rows, inner], 1);
                let weights = draft.sharded_input([width, inner], 1);
                let out = draft.sharded([rows, width], None);
                draft.out.assign(out, apply(Op::Linear, [x, weights]));
                out
            }
            LayerKind::Mlp => {
                let x = draft.sharded_input([rows, width], 0);
                let weights = mlp_weights(&mut draft, width);
                mlp(&mut draft, x, weights, [rows, width])
            }
            LayerKind::Block => {
                let x = draft.sharded_input([rows, width], 0);
                let weights = draft.sharded_input([3 * width, width], 0);
                let back = draft.sharded_input([width, width], 1);
                let of_mlp = mlp_weights(&mut draft, width);
                let attended = heads(&mut draft, x, weights, [rows, width]);
                let [out, residual] = [(); 2].map(|()| draft.sharded([rows, width], Some(0)));
                draft.out.assign(out, apply(Op::Linear, [attended, back]));
                draft.out.assign(residual, apply(Op::Add, [x, out]));
                let out = mlp(&mut draft, residual, of_mlp, [rows, width]);
                let sum = draft.sharded([rows, width], Some(0));
                draft.out.assign(sum, apply(Op::Add, [residual, out]));
                sum
            }
        };
        draft.finish(&[result])
    }
}

fn mlp_weights(draft: &mut Draft, width: usize) -> [TensorId; 2] {
    [draft.sharded_input([4 * width, width], 0), draft.sharded_input([width, 4 * width], 1)]
}

fn mlp(draft: &mut Draft, x: TensorId, weights: [TensorId; 2], [rows, width]: [usize; 2]) -> TensorId {
    let [inner, active] = [(); 2].map(|()| draft.sharded([rows, 4 * width], Some(1)));
    let out = draft.sharded([rows, width], Some(0));
    draft.out.assign(inner, apply(Op::Linear, [x, weights[0]]));
    draft.out.assign(active, apply(Op::Relu, [inner]));
    draft.out.assign(out, apply(Op::Linear, [active, weights[1]]));
    out
}

/// Adds the attention of all heads, and returns its rows. Tensors between the products have no mesh: passes propagate it.
fn heads(draft: &mut Draft, x: TensorId, weights: TensorId, [rows, width]: [usize; 2]) -> TensorId {
    let (heads, length) = (width / 128, rows.min(1024));
    let sequences = rows / length;
    let all = draft.sharded([rows, 3 * width], Some(1));
    draft.out.assign(all, apply(Op::Linear, [x, weights]));
    let mut tensor = |extents: &[usize]| {
        let dims: Vec<Dim> = extents.iter().copied().map(dim).collect();
        draft.out.tensor(dims, DType::BFloat, Default::default())
    };
    let split = tensor(&[sequences, length, heads, 3, 128]);
    let parts = [(); 3].map(|()| tensor(&[sequences, length, heads, 128]));
    let attended = tensor(&[sequences, heads, length, 128]);
    let joined = tensor(&[rows, width]);
    let out = &mut draft.out;
    out.assign(split, apply(Op::Reshape, [all]));
    let axis = out.axis(split, 3);
    for (at, part) in parts.into_iter().enumerate() {
        let index = out.int(at as i64);
        out.assign(part, apply(Op::Select, [split]).with(attr::AXIS, axis).with(attr::INDEX, index));
    }
    let operands = parts.map(|it| permuted(draft, it));
    // For inputs between -1 and 1, the deviation of the scores is 1.
    let scale = 9.0 / (width as f64 * 128_f64.sqrt());
    let call = attention(&mut draft.out, operands, &format!("{scale:.7}"), false);
    draft.out.assign(attended, call);
    let back = permuted(draft, attended);
    draft.out.assign(joined, apply(Op::Reshape, [back]));
    joined
}

/// Returns a tensor with its dimensions 1 and 2 exchanged.
fn permuted(draft: &mut Draft, it: TensorId) -> TensorId {
    let dims = draft.out.dims(it).to_vec();
    draft.out.permuted(it, &dims, vec![0, 2, 1, 3], Default::default())
}
