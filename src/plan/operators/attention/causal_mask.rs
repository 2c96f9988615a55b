//! The causal mask of the parts of an attention, in one buffer.

use grammar::{DType, Op};

use crate::{Arg, Attention, BufferNo, View, inst_builder::InstBuilder};

/// The buffers of the mask.
pub(super) struct CausalMask {
    /// The numbers from 0 to the largest index of a row or a key.
    indices: View,
    /// The booleans.
    mask: BufferNo,
    /// The first row of the current mask, and its shape.
    current: Option<(usize, Vec<usize>)>,
}

impl CausalMask {
    /// Adds the buffers of the masks of all parts; `None` if they have none.
    pub fn of_parts(code: &mut InstBuilder, parts: &[Attention]) -> Option<Self> {
        if !parts.first()?.is_causal {
            return None;
        }
        let (mut longest, mut largest) = (0, 0);
        for it in parts {
            let [rows, keys] = matrix_shape(it);
            longest = longest.max(it.first_row + rows).max(keys);
            largest = largest.max(rows * keys);
        }
        let indices = code.temporary("indices", DType::Int32, vec![longest]);
        let mask = code.buffer("causal mask", DType::Bool, largest);
        code.iota(&indices, 0, 1);
        Some(Self { indices, mask, current: None })
    }

    /// Returns the mask `[l, s]` of a part: whether the index of the key is at most that of the row.
    pub fn of(&mut self, code: &mut InstBuilder, part: &Attention) -> View {
        let shape = matrix_shape(part).to_vec();
        let mask = View::contiguous(self.mask, shape.clone());
        let wanted = Some((part.first_row, shape.clone()));
        if self.current != wanted {
            let repeated = |offset, strides: [usize; 2]| {
                Arg::View(View {
                    offset,
                    shape: shape.clone(),
                    strides: strides.to_vec(),
                    ..self.indices.clone()
                })
            };
            code.map(Op::Ge, [repeated(part.first_row, [1, 0]), repeated(0, [0, 1])], &mask);
            self.current = wanted;
        }
        mask
    }
}

/// Returns the numbers of rows and of keys.
fn matrix_shape(it: &Attention) -> [usize; 2] {
    match it.score_shape()[..] {
        [.., rows, keys] => [rows, keys],
        _ => [0, 0],
    }
}
