//! Discrete Fourier transforms: along each dimension, products with the matrices of cosines and sines, which Host IR has no operator for.

use std::{f64::consts::TAU, sync::Arc};

use grammar::DType;

use super::{Imported, Importer, Results, complex::Parts, dot::Roles};
use crate::{
    tree::Operation,
    value::{Scalar, Tensor, Value},
};

/// The greatest length of a transform: its matrices have the square of it.
const MAX_LENGTH: i64 = 2048;

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn fft(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let (Some(kind), Some(lengths)) =
            (op.keyword(&["type", "fft_type"]), op.ints(&["length", "fft_length"]))
        else {
            return Err(self.missing(op, "length"));
        };
        let rank = value.shape().len();
        let first = rank.checked_sub(lengths.len());
        let is_short = lengths.iter().all(|it| (1..=MAX_LENGTH).contains(it));
        let (Some(first), Some(length), true) = (first, lengths.last().copied(), is_short) else {
            let form = format!("without a length of 1 to {MAX_LENGTH} for each dimension");
            return Err(self.unsupported_form(op, &form));
        };
        let is_inverse = kind.starts_with('I');
        let complete = |length: i64| {
            let scale = if is_inverse { 1.0 / length as f64 } else { 1.0 };
            move |j, k| turned(j * k, length, is_inverse).map(|it| it * scale)
        };
        let (last, half) = (rank - 1, length / 2 + 1);
        let mut parts = self.parts_of(&value)?;
        if kind == "RFFT" {
            parts = self.transformed(parts, last, (length, half), complete(length))?;
        }
        let is_real = matches!(kind, "RFFT" | "IRFFT");
        for (dim, length) in (first..rank - usize::from(is_real)).zip(lengths) {
            parts = self.transformed(parts, dim, (length, length), complete(length))?;
        }
        match kind {
            "FFT" | "IFFT" | "RFFT" => Ok(vec![self.complex_value(parts)]),
            "IRFFT" => {
                // The other half of the spectrum is the conjugate of this one.
                let has_twin = |k: i64| k != 0 && 2 * k != length;
                let element = |k, j| complete(length)(j, k).map(|it| if has_twin(k) { 2.0 * it } else { it });
                let [re, _] = self.transformed(parts, last, (half, length), element)?;
                Ok(vec![re])
            }
            _ => Err(self.missing(op, "type")),
        }
    }

    /// Returns the product with a matrix of complex numbers along a dimension.
    fn transformed(
        &mut self,
        [re, im]: Parts,
        dim: usize,
        (rows, columns): (i64, i64),
        element: impl Fn(i64, i64) -> [f64; 2],
    ) -> Imported<Parts> {
        if re.shape()[dim] != rows {
            return Err(
                self.bad_module("`length` is not the extent of the dimension", "expected the same number")
            );
        }
        let dtype = re.dtype();
        let matrix = |importer: &mut Self, part: usize| {
            let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let bytes: Arc<[u8]> = all
                .flat_map(|(row, column)| match dtype {
                    DType::Double => element(row, column)[part].to_le_bytes().to_vec(),
                    _ => (element(row, column)[part] as f32).to_le_bytes().to_vec(),
                })
                .collect();
            importer.of_bytes(&[rows, columns], dtype, bytes)
        };
        let (cos, sin) = (matrix(self, 0), matrix(self, 1));
        let rank = re.shape().len();
        let free: Vec<usize> = (0..rank).filter(|it| *it != dim).collect();
        let mut shape: Vec<i64> = free.iter().map(|it| re.shape()[*it]).collect();
        shape.push(columns);
        let back: Vec<usize> =
            (0..rank).map(|it| if it == dim { rank - 1 } else { it - usize::from(it > dim) }).collect();
        let mut product = |it: &Value, matrix: &Tensor| {
            let it = self.materialized(it.clone());
            let left = Roles { batch: Vec::new(), contracted: vec![dim], free: free.clone() };
            let right = Roles { batch: Vec::new(), contracted: vec![0], free: vec![1] };
            let found = self.product(it, matrix.clone(), [&left, &right], dtype, &shape);
            Value::Tensor(self.permuted(found, &back))
        };
        let (a, c) = (product(&re, &cos), product(&re, &sin));
        if im.constant() == Some(&Scalar::Float(0.0)) {
            return Ok([a, c]);
        }
        let (b, d) = (product(&im, &sin), product(&im, &cos));
        Ok([self.binary_values("subtract", a, b)?, self.binary_values("add", c, d)?])
    }
}

/// Returns the cosine and the sine of so many steps of a circle of `length` steps. Whole turns are left out first, so that the angle is exact.
fn turned(steps: i64, length: i64, is_inverse: bool) -> [f64; 2] {
    let (sin, cos) = (TAU * ((steps % length) as f64 / length as f64)).sin_cos();
    [cos, if is_inverse { sin } else { -sin }]
}
