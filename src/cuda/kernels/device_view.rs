//! Views at device addresses, and their aliasing.

use grammar::DType;

use hir_plan::View;

/// A view at a device address.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DeviceView<'a> {
    pub address: u64,
    pub dtype: DType,
    pub view: &'a View,
}

impl DeviceView<'_> {
    /// Returns true if elements with the same index are at the same address in both views.
    pub fn has_same_elements(&self, other: &Self) -> bool {
        let strides = self.view.strides.iter().zip(&other.view.strides);
        self.address == other.address
            && self.dtype.size() == other.dtype.size()
            && self.view.shape == other.view.shape
            && self.view.shape.iter().zip(strides).all(|(extent, (a, b))| *extent == 1 || a == b)
    }

    /// Returns true if both views may have a byte in common. The test is conservative: it may return true for
    /// disjoint views.
    pub fn may_alias(&self, other: &Self) -> bool {
        if self.view.is_empty() || other.view.is_empty() {
            return false;
        }
        let ((first, end), (start, last)) = (self.range(), other.range());
        if end <= start || last <= first {
            return false;
        }
        // The columns of a matrix have overlapping ranges but no common bytes.
        let ((pitch, mine), (same, others)) = (self.row(), other.row());
        if pitch != same || pitch == 0 {
            return true;
        }
        let between = i128::from(other.address) - i128::from(self.address);
        let between = between.rem_euclid(i128::from(pitch)) as u64;
        between < mine || between + others > pitch
    }

    /// Returns true if writing one view element by element may change elements of the other that are still to
    /// be read or written: they may alias, and not as the same elements.
    pub fn may_partially_overlap(&self, other: &Self) -> bool {
        !self.has_same_elements(other) && self.may_alias(other)
    }

    /// Returns the address of the first byte and the address behind the last one.
    fn range(&self) -> (u64, u64) {
        let pairs = self.view.shape.iter().zip(&self.view.strides);
        let last: usize = pairs.map(|(n, s)| (n - 1) * s).sum();
        (self.address, self.address + ((last + 1) * self.dtype.size()) as u64)
    }

    /// Returns the distance between rows and the length of a row, in bytes.
    fn row(&self) -> (u64, u64) {
        let View { shape, strides, .. } = self.view;
        let size = self.dtype.size();
        let outer = strides.iter().max().copied().unwrap_or(0);
        let at = strides.iter().position(|it| *it == outer);
        let inner: usize =
            (0..shape.len()).filter(|it| Some(*it) != at).map(|it| (shape[it] - 1) * strides[it]).sum();
        ((outer * size) as u64, ((inner + 1) * size) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64, dtype: DType, view: &View) -> DeviceView<'_> {
        DeviceView { address, dtype, view }
    }

    #[test]
    fn addresses_show_what_shares_memory() {
        let (row, column) = (View::contiguous(0, vec![8]), View::contiguous(1, vec![1, 8]));
        let float = at(256, DType::Float, &row);
        // Another buffer at the same address.
        assert!(float.has_same_elements(&at(256, DType::Int32, &View::contiguous(3, vec![8]))));
        assert!(
            float.may_partially_overlap(&at(256, DType::BFloat, &row))
                && float.may_partially_overlap(&at(260, DType::Float, &row))
        );
        assert!(float.may_partially_overlap(&at(256, DType::Float, &column)));
        assert!(
            !float.may_alias(&at(288, DType::Float, &row)) && !float.may_alias(&at(240, DType::BFloat, &row))
        );
        assert!(float.may_alias(&at(242, DType::BFloat, &row)));
    }

    #[test]
    fn columns_of_a_matrix_lie_apart() {
        let half = View { buffer: 0, offset: 0, shape: vec![4, 8], strides: vec![16, 1] };
        let left = at(4096, DType::Float, &half);
        assert!(!left.may_alias(&at(4096 + 32, DType::Float, &half)));
        assert!(left.may_partially_overlap(&at(4096 + 28, DType::Float, &half)));
        // Another element type, with rows of the same length.
        let wide = View { buffer: 1, offset: 0, shape: vec![4, 16], strides: vec![32, 1] };
        assert!(!left.may_alias(&at(4096 + 32, DType::BFloat, &wide)));
        assert!(left.may_partially_overlap(&at(4096 + 30, DType::BFloat, &wide)));
    }
}
