//! Dense tensors in host memory with the state of their elements.

use std::borrow::Cow;

use super::data::{Data, Shadow, WrittenMask};
use hir_plan::View;

/// A dense tensor: an operand or result of a kernel, or the data of a copy to or from a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTensor {
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data,
    /// The elements that were computed from written storage only.
    pub written: WrittenMask,
    /// The values without rounding; `None` if all values are exact.
    pub shadow: Option<Shadow>,
}

impl DenseTensor {
    /// Creates a tensor whose elements are all written. The shape must have as many elements as `data`.
    pub fn full(shape: Vec<usize>, data: Data) -> Self {
        Self { shape, written: WrittenMask::full(data.len()), data, shadow: None }
    }

    /// Returns the elements repeated or permuted: the tensor with the new shape and these strides into the
    /// elements.
    pub fn view(&self, shape: Vec<usize>, strides: Vec<usize>) -> Self {
        let view = View { buffer: 0, offset: 0, shape, strides };
        let (data, written) = (self.data.gather(&view), self.written.gather(&view));
        Self { data, written, shadow: self.shadow.as_ref().map(|it| it.gather(&view)), shape: view.shape }
    }

    /// Returns the shadow; for exact values it is created from the values.
    pub fn shadow(&self) -> Cow<'_, Shadow> {
        self.shadow.as_ref().map_or_else(|| Cow::Owned(Shadow::of(&self.data)), Cow::Borrowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_repeat_and_permute() {
        let tensor = DenseTensor::full(vec![2, 2], Data::I8(vec![1, 2, 3, 4]));
        assert_eq!(tensor.view(vec![2, 2], vec![1, 2]).data, Data::I8(vec![1, 3, 2, 4]));
        assert_eq!(tensor.view(vec![2, 2], vec![0, 1]).data, Data::I8(vec![1, 2, 1, 2]));
    }
}
