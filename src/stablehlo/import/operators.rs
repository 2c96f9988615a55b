//! The table of operators: how each one is imported, and what of Host IR stands for it. The table in `OPERATORS.md` is this one.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::{Importer, Results};
use crate::{tree::Operation, value::Value};

/// Imports an operation with these operands, and returns its results.
pub(crate) type Import<'m, 's> = fn(&mut Importer<'m, 's>, &'m Operation<'s>, Vec<Value>) -> Results;

/// Declares the rows: names, what stands for them, and the function.
macro_rules! operators {
    ($($names:literal: $meaning:expr => $import:ident;)*) => {
        /// The names of operators, with commas between them, and what of Host IR stands for them.
        pub const OPERATORS: &[(&str, &str)] = &[$(($names, $meaning)),*];

        /// Returns the function that imports an operator.
        pub(crate) fn import<'m, 's>(name: &str) -> Option<Import<'m, 's>> {
            let functions: [Import<'m, 's>; OPERATORS.len()] = [$(Importer::$import),*];
            functions.get(*ROWS.get(name)?).copied()
        }
    };
}

/// The row of each name.
static ROWS: LazyLock<FxHashMap<&str, usize>> = LazyLock::new(|| {
    let names = |(row, it): (usize, &(&'static str, _))| it.0.split(", ").map(move |name| (name, row));
    OPERATORS.iter().enumerate().flat_map(names).collect()
});

/// Returns whether an operation is read: an operator, a terminator or a mesh.
pub(crate) fn is_read(name: &str) -> bool {
    import(name).is_some() || is_terminator(name) || name == "sdy.mesh"
}

/// Returns whether an operation ends a region.
pub(crate) fn is_terminator(name: &str) -> bool {
    matches!(name, "return" | "func.return" | "stablehlo.return" | "sdy.return")
}

/// Returns whether an operator computes each element of its result from those at the same place of its operands.
pub(crate) fn is_elementwise(name: &str) -> bool {
    let is_named = ROWS.get(name).and_then(|row| OPERATORS.get(*row)).is_some_and(|it| it.1 == OF_THIS_NAME);
    let others =
        "constant compare select convert clamp popcnt count_leading_zeros reduce_precision complex real imag";
    is_named || name.strip_prefix("stablehlo.").is_some_and(|it| others.split(' ').any(|other| other == it))
}

/// What stands for an operator that Host IR has.
const OF_THIS_NAME: &str = "the operator of this name";

/// Returns whether the region of an operator combines elements of its operands.
pub(crate) fn combines(name: &str) -> bool {
    matches!(
        name,
        "stablehlo.reduce"
            | "stablehlo.reduce_window"
            | "stablehlo.scatter"
            | "stablehlo.sort"
            | "stablehlo.all_reduce"
            | "stablehlo.reduce_scatter"
            | "stablehlo.select_and_scatter"
    )
}

/// Returns whether an operation takes tensors that are not stored yet, in pieces: it passes them on, or replaces or reads some of them.
pub(super) fn keeps_pieces(name: &str) -> bool {
    matches!(
        name,
        "stablehlo.dynamic_update_slice"
            | "stablehlo.dynamic_slice"
            | "stablehlo.slice"
            | "stablehlo.while"
            | "stablehlo.optimization_barrier"
            | "call"
            | "func.call"
    )
}

operators! {
    "stablehlo.constant": "a scalar operand, or `full`; other values than one: `TensorConstruct`, of more than 64 elements: `Constant`" => constant;
    "stablehlo.iota": "`iota`, with `broadcast` and `expand`" => iota;
    "stablehlo.broadcast_in_dim": "`broadcast` and `expand`; `Set.Permute` before them if dimensions change their order" => broadcast_in_dim;
    "stablehlo.reshape": "`reshape`" => reshape;
    "stablehlo.transpose": "`Set.Permute`" => transpose;
    "stablehlo.slice": "`slice`" => slice;
    "stablehlo.pad": "`cat` with `full`; negative padding: `slice`" => pad;
    "stablehlo.reverse": "`indexSelect`" => reverse;
    "stablehlo.concatenate": "`cat`" => concatenate;
    "stablehlo.dynamic_slice": "`slice` for starts that the host computes; `takeAlongAxis` for those of tensors" => dynamic_slice;
    "stablehlo.dynamic_update_slice": "`cat` of the parts; for starts that differ between devices, a `Set` to a slice of a copy; for those of tensors, `where`" => dynamic_update_slice;
    "stablehlo.complex, stablehlo.real, stablehlo.imag": "nothing: complex numbers are pairs of floats" => complex_parts_of;
    "stablehlo.fft": "`matmul` with matrices of cosines and sines along each dimension" => fft;
    "stablehlo.dot_general": "`linear` or `matmul`, with `Set.Permute` and `reshape` around them" => dot_general;
    "stablehlo.cholesky": "operators on `slice`s for each column, and `cat`" => cholesky;
    "stablehlo.triangular_solve": "operators on `slice`s for each row, and `cat`" => triangular_solve;
    "stablehlo.convolution": "`matmul` of a `slice` with strides for each position of the kernel and each group, and their sum" => convolution;
    "stablehlo.reduce": "`reduction` of each operand; the two results of `argmax` and `argmin`, of an `iota`: reductions of comparisons; for other regions, their operators on `slice`s" => reduce;
    "stablehlo.reduce_window": "`scan` for `cumsum` and the like, else the operator on `slice`s with strides" => reduce_window;
    "stablehlo.select_and_scatter": "the region and `where` on `slice`s with strides; their sum" => select_and_scatter;
    "stablehlo.gather": "`embedding` for rows of a matrix, else `takeAlongAxis`" => gather;
    "stablehlo.scatter": "`indexPutAccumulate` or `scatter` if the region adds or replaces; else the operators of the region, and `where`" => scatter;
    "stablehlo.sort": "`argsort` of each key, and `takeAlongAxis`" => sort;
    "chlo.top_k": "the first places of `argsort`, and `takeAlongAxis`" => top_k;
    "stablehlo.convert": "a conversion; to 8 bits, with `where` for what becomes infinity or NaN" => convert;
    "stablehlo.compare": "`==`, `!=`, `<`, `<=`, `>`, `>=`" => compare;
    "stablehlo.select": "`where`" => select;
    "stablehlo.bitcast_convert": "`bit_cast`; for elements of another size, with shifts, conversions and sums" => bitcast_convert;
    "stablehlo.popcnt": "shifts, `&` and sums of the bits" => population_count;
    "stablehlo.count_leading_zeros": "shifts and `|`, and what stands for `popcnt`" => count_leading_zeros;
    "stablehlo.reduce_precision": "conversions to bf16 and back, else `+`, `&` and `where` on the bits" => reduce_precision;
    "stablehlo.clamp": "`maximum` and `minimum`" => clamp;
    "stablehlo.add, stablehlo.subtract, stablehlo.multiply, stablehlo.divide, stablehlo.remainder, stablehlo.maximum, stablehlo.minimum, stablehlo.power, stablehlo.atan2, stablehlo.and, stablehlo.or, stablehlo.xor, stablehlo.shift_left, stablehlo.shift_right_arithmetic, stablehlo.shift_right_logical, chlo.next_after": OF_THIS_NAME => binary;
    "stablehlo.abs, stablehlo.cbrt, stablehlo.ceil, stablehlo.cosine, stablehlo.exponential, stablehlo.exponential_minus_one, stablehlo.floor, stablehlo.is_finite, stablehlo.log, stablehlo.log_plus_one, stablehlo.logistic, stablehlo.negate, stablehlo.not, stablehlo.round_nearest_afz, stablehlo.round_nearest_even, stablehlo.rsqrt, stablehlo.sign, stablehlo.sine, stablehlo.sqrt, stablehlo.tan, stablehlo.tanh, chlo.acos, chlo.acosh, chlo.asin, chlo.asinh, chlo.atan, chlo.atanh, chlo.cosh, chlo.erf, chlo.erf_inv, chlo.erfc, chlo.is_inf, chlo.is_neg_inf, chlo.is_pos_inf, chlo.lgamma, chlo.sinh, chlo.square, chlo.tan": OF_THIS_NAME => unary;
    "stablehlo.optimization_barrier, sdy.propagation_barrier": "nothing: its operands" => optimization_barrier;
    "call, func.call, stablehlo.composite": "the operations of the function" => call;
    "stablehlo.case, stablehlo.if": "the operations of the branch; those of all branches and `where`, if the condition is computed" => branches;
    "stablehlo.while": "the operations of each iteration up to a constant bound, and `where` if data decide which is the last one" => while_loop;
    "sdy.sharding_constraint, sdy.reshard": "`Set`, or the sharding of the matrix product or reduction before it" => sharding_constraint;
    "sdy.manual_computation": "the operations of the region, on tensors with a device axis" => manual_computation;
    "stablehlo.custom_call": "`LaunchKernel`: checked, and not run; LAPACK's `potrf` and `trsm`: as `cholesky` and `triangular_solve`" => custom_call;
    "stablehlo.after_all, stablehlo.create_token": "nothing: the program has an order" => token;
    "stablehlo.partition_id, stablehlo.replica_id": "`rank`, and 0; 0 on one device" => device_id;
    "stablehlo.all_reduce": "`reduction` over the device axis" => all_reduce;
    "stablehlo.all_gather": "`Set` to a tensor without the device axis" => all_gather;
    "stablehlo.reduce_scatter": "`reduction` over the device axis to a sharded result" => reduce_scatter;
    "stablehlo.all_to_all": "`Set` that exchanges the device axis" => all_to_all;
    "stablehlo.collective_permute": "`CollectivePermute`" => collective_permute;
}
