//! Layers of a transformer: programs that no table of a machine contains.

use std::fmt::Write as _;

use super::programs::Text;

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

/// A kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// An all-gather of the rows, then a linear layer with sharded columns.
    ColumnParallel,
    /// A linear layer with a sharded sum, then an all-reduce.
    RowParallel,
    /// All-gather, linear, relu, linear, reduce-scatter.
    Mlp,
    /// Attention and an MLP with residual sums, without norms. Heads have 128 elements, sequences at most 1024 rows.
    Block,
}

impl LayerKind {
    /// All kinds, with their names.
    pub const ALL: [(Self, &str); 4] = [
        (Self::ColumnParallel, "column-parallel"),
        (Self::RowParallel, "row-parallel"),
        (Self::Mlp, "mlp"),
        (Self::Block, "block"),
    ];
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = LayerKind::ALL.iter().find(|it| it.0 == self.kind).map_or("", |it| it.1);
        write!(f, "{name} rows={} width={}", self.rows, self.width)
    }
}

impl std::str::FromStr for Layer {
    type Err = grammar::InvalidOption;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |word: Option<&str>, key: &str| word?.strip_prefix(key)?.parse().ok();
        let mut words = text.split(' ');
        let kind = words.next().and_then(|name| LayerKind::ALL.iter().find(|it| it.1 == name)).map(|it| it.0);
        let (rows, width) = (number(words.next(), "rows="), number(words.next(), "width="));
        match (kind, rows, width) {
            (Some(kind), Some(rows), Some(width)) => Ok(Self { kind, rows, width }),
            _ => Err(format!("`{text}` is not a layer such as `mlp rows=512 width=4096`").into()),
        }
    }
}

impl Layer {
    /// Returns the program for a number of ranks.
    pub fn text(&self, ranks: usize) -> String {
        let Self { kind, rows, width } = *self;
        let inner = 4 * width;
        let mut text = Text::of(ranks);
        let lines = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        match kind {
            LayerKind::ColumnParallel => {
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [inner, width], Some(0));
                text.sharded(2, [rows, inner], Some(1));
                text.program("T0, T1", "T2", &lines(&["T2 = linear(T0, T1)"]))
            }
            LayerKind::RowParallel => {
                text.sharded(0, [rows, inner], Some(1));
                text.sharded(1, [width, inner], Some(1));
                text.sharded(2, [rows, width], None);
                text.program("T0, T1", "T2", &lines(&["T2 = linear(T0, T1)"]))
            }
            LayerKind::Mlp => {
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [inner, width], Some(0));
                text.sharded(2, [width, inner], Some(1));
                text.sharded(3, [rows, inner], Some(1));
                text.sharded(4, [rows, inner], Some(1));
                text.sharded(5, [rows, width], Some(0));
                let body = ["T3 = linear(T0, T1)", "T4 = relu(T3);", "T5 = linear(T4, T2)"];
                text.program("T0, T1, T2", "T5", &lines(&body))
            }
            LayerKind::Block => {
                let (heads, length) = (width / 128, rows.min(1024));
                let sequences = rows / length;
                text.sharded(0, [rows, width], Some(0));
                text.sharded(1, [3 * width, width], Some(0));
                text.sharded(2, [width, width], Some(1));
                text.sharded(3, [inner, width], Some(0));
                text.sharded(4, [width, inner], Some(1));
                text.sharded(5, [rows, 3 * width], Some(1));
                // `Set.Permute` takes the axes of its operand in the order of the numbers of those of its result.
                let axes = |name: usize, extents: &[usize]| {
                    let numbers =
                        if matches!(name, 10..=12 | 23) { [0, 2, 1, 3, 4] } else { [0, 1, 2, 3, 4] };
                    let axes = numbers.iter().zip(extents).map(|(at, it)| format!("iS{name}0{at}{{{it}}}"));
                    axes.collect::<Vec<_>>().join(", ")
                };
                for (name, extents) in [
                    (6, vec![sequences, length, heads, 3, 128]),
                    (7, vec![sequences, length, heads, 128]),
                    (8, vec![sequences, length, heads, 128]),
                    (9, vec![sequences, length, heads, 128]),
                    (10, vec![sequences, heads, length, 128]),
                    (11, vec![sequences, heads, length, 128]),
                    (12, vec![sequences, heads, length, 128]),
                    (22, vec![sequences, heads, length, 128]),
                    (23, vec![sequences, length, heads, 128]),
                    (24, vec![rows, width]),
                ] {
                    // Passes propagate the mesh.
                    let _ =
                        writeln!(text.declarations, "%tensor T{name}_g___bfloat[{}]", axes(name, &extents));
                }
                for name in [25, 26, 29, 30] {
                    text.sharded(name, [rows, width], Some(0));
                }
                for name in [27, 28] {
                    text.sharded(name, [rows, inner], Some(1));
                }
                // For inputs between -1 and 1, the deviation of the scores is 1.
                let scale = 9.0 / (width as f64 * 128_f64.sqrt());
                let attention = format!(
                    "T22 = sdpa(T10, T11, T12, dropout_p=double(0), is_causal=false, scale=double({scale:.7}))"
                );
                let body = [
                    "T5 = linear(T0, T1)",
                    "T6 = reshape( T5 )",
                    "T7 = select( T6, axis = iS603{3}, index = 0 )",
                    "T8 = select( T6, axis = iS603{3}, index = 1 )",
                    "T9 = select( T6, axis = iS603{3}, index = 2 )",
                    "T10 = Set.Permute( T7 )",
                    "T11 = Set.Permute( T8 )",
                    "T12 = Set.Permute( T9 )",
                    &attention,
                    "T23 = Set.Permute( T22 )",
                    "T24 = reshape( T23 )",
                    "T25 = linear(T24, T2)",
                    "T26 = T0 + T25;",
                    "T27 = linear(T26, T3)",
                    "T28 = relu(T27);",
                    "T29 = linear(T28, T4)",
                    "T30 = T26 + T29;",
                ];
                text.program("T0, T1, T2, T3, T4", "T30", &lines(&body))
            }
        }
    }
}
