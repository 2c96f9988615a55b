//! A name for each product, for tables of algorithms.

use std::fmt::Write;

use super::{
    alignment,
    desc::{Bias, MatmulDesc, Matrix},
};

/// Returns a text that is equal for two products if cuBLASLt cannot tell them apart: extents, types, layouts, bias, `relu`
/// and alignments of the operands.
///
/// ```text
/// 8192x4096x1024 bf16->bf16 a(ld 1024) b(transposed, ld 1024) out(ld 4096) align(256 256 256)
/// ```
///
/// The extents are those of the program, in row-major order: rows and columns of the result, then the inner dimension.
/// `addresses` are those of a, b, the result and the bias.
pub(super) fn text(desc: &MatmulDesc, addresses: [u64; 4]) -> String {
    let inner = if desc.a.is_transposed { desc.a.columns } else { desc.a.rows };
    let mut text = format!("{}x{}x{inner} ", desc.out.columns, desc.out.rows);
    if desc.out.batch > 1 {
        _ = write!(text, "batch {} ", desc.out.batch);
    }
    _ = write!(text, "{}->{}", desc.operand_dtype.short_name(), desc.result_dtype.short_name());
    for (name, it) in [("a", desc.a), ("b", desc.b), ("out", desc.out)] {
        _ = write!(text, " {name}({})", layout(it, desc.out.batch));
    }
    let [a, b, out, bias] = addresses.map(alignment);
    match desc.bias {
        Bias::None => (),
        Bias::Vector => _ = write!(text, " bias(vector, align {bias})"),
        Bias::Matrix(it) => _ = write!(text, " bias({}, align {bias})", layout(it, desc.out.batch)),
    }
    if desc.has_relu {
        text += " relu";
    }
    _ = write!(text, " align({a} {b} {out})");
    text
}

fn layout(it: Matrix, batch: usize) -> String {
    let turned = if it.is_transposed { "transposed, " } else { "" };
    let stride = match (batch, it.batch) {
        (..=1, _) => String::new(),
        (_, 1) => ", stride 0".to_owned(),
        (..) => format!(", stride {}", it.batch_stride),
    };
    format!("{turned}ld {}{stride}", it.leading_dimension)
}

#[cfg(test)]
mod tests {
    use grammar::DType;

    use super::*;

    #[test]
    fn a_key_has_all_that_distinguishes_products() {
        let matrix = |rows, columns, is_transposed, batch| Matrix {
            is_transposed,
            rows,
            columns,
            leading_dimension: rows as i64,
            batch,
            batch_stride: (rows * columns) as i64,
        };
        let plain = MatmulDesc {
            a: matrix(1024, 8192, false, 1),
            b: matrix(1024, 4096, true, 1),
            out: matrix(4096, 8192, false, 1),
            bias: Bias::None,
            has_relu: false,
            operand_dtype: DType::BFloat,
            result_dtype: DType::BFloat,
        };
        let at = [1 << 20, 1 << 20, 64, 16];
        assert_eq!(
            text(&plain, at),
            "8192x4096x1024 bf16->bf16 a(ld 1024) b(transposed, ld 1024) out(ld 4096) align(256 256 64)"
        );
        let vector = MatmulDesc { bias: Bias::Vector, has_relu: true, result_dtype: DType::Float, ..plain };
        assert_eq!(
            text(&vector, at),
            "8192x4096x1024 bf16->f32 a(ld 1024) b(transposed, ld 1024) out(ld 4096) bias(vector, align 16) \
             relu align(256 256 64)"
        );
        let batch = MatmulDesc {
            a: matrix(1024, 8192, false, 3),
            out: matrix(4096, 8192, false, 3),
            bias: Bias::Matrix(matrix(4096, 8192, false, 1)),
            ..plain
        };
        assert_eq!(
            text(&batch, at),
            "8192x4096x1024 batch 3 bf16->bf16 a(ld 1024, stride 8388608) b(transposed, ld 1024, stride 0) \
             out(ld 4096, stride 33554432) bias(ld 4096, stride 0, align 16) align(256 256 64)"
        );
    }
}
