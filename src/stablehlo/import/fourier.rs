//! Discrete Fourier transforms: along each dimension, products with the matrices of cosines and sines, which Host IR has no operator for.

use std::{f64::consts::TAU, sync::Arc};

use grammar::dtype::DType;

use super::{Imported, Importer, dot::Roles};
use crate::{
    tree::Operation,
    value::{Scalar, Tensor, Value},
};

/// The greatest length of a transform: its matrices have the square of it.
const MAX_LENGTH: i64 = 2048;

/// The real and the imaginary part.
type Parts = [Value; 2];

impl<'m, 's> Importer<'m, 's> {
    pub(super) fn fourier(&mut self, op: &'m Operation<'s>, value: &Value, parts: Parts) -> Imported<Parts> {
        let kind = op.keyword(&["type", "fft_type"]).map(str::to_owned);
        let (Some(kind), Some(lengths)) = (kind, op.ints(&["length", "fft_length"])) else {
            return Err(self.missing(op, "length"));
        };
        let rank = value.shape().len();
        if lengths.is_empty()
            || lengths.len() > rank
            || lengths.iter().any(|it| !(1..=MAX_LENGTH).contains(it))
        {
            return Err(self
                .unsupported_form(op, &format!("without a length of 1 to {MAX_LENGTH} for each dimension")));
        }
        let dims: Vec<(usize, i64)> = (rank - lengths.len()..rank).zip(lengths).collect();
        let Some(((last, length), others)) = dims.split_last().map(|(last, others)| (*last, others)) else {
            return Err(self.missing(op, "length"));
        };
        let is_inverse = matches!(&kind[..], "IFFT" | "IRFFT");
        let mut parts = parts;
        if kind == "RFFT" {
            parts =
                self.transformed(parts, last, (length, length / 2 + 1), |j, k| angle(j, k, length, false))?;
        }
        for (dim, length) in others
            .iter()
            .copied()
            .chain((!kind.starts_with("RF") && kind != "IRFFT").then_some((last, length)))
        {
            let scale = if is_inverse { 1.0 / length as f64 } else { 1.0 };
            parts = self.transformed(parts, dim, (length, length), |j, k| {
                angle(j, k, length, is_inverse).map(|it| it * scale)
            })?;
        }
        if kind == "IRFFT" {
            let stored = length / 2 + 1;
            parts = self.transformed(parts, last, (stored, length), |k, j| {
                // The other half of the spectrum is the conjugate of this one.
                let has_twin = k != 0 && 2 * k != length;
                let scale = if has_twin { 2.0 } else { 1.0 } / length as f64;
                angle(j, k, length, true).map(|it| it * scale)
            })?;
        }
        Ok(parts)
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
            let found = self.product(it, matrix.clone(), &left, &right, &shape);
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

/// Returns the cosine and the sine of the angle of a transform. The product is reduced first, so that it is exact.
fn angle(j: i64, k: i64, length: i64, is_inverse: bool) -> [f64; 2] {
    let turn = (j * k % length) as f64 / length as f64;
    let (sin, cos) = (TAU * turn).sin_cos();
    [cos, if is_inverse { sin } else { -sin }]
}
