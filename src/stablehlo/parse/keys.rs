//! The keys of attributes: each is stated once, and those of dimension numbers are known.

use grammar::{Code, Diagnostic};

use super::{Parsed, Parser};
use crate::tree::Attribute;

/// The attributes whose keys all change what an operation computes, with these keys.
const KEYS: [(&str, &[&str]); 4] = [
    (
        "#stablehlo.conv",
        &[
            "input_batch_dimension",
            "input_feature_dimension",
            "input_spatial_dimensions",
            "kernel_input_feature_dimension",
            "kernel_output_feature_dimension",
            "kernel_spatial_dimensions",
            "output_batch_dimension",
            "output_feature_dimension",
            "output_spatial_dimensions",
        ],
    ),
    (
        "#stablehlo.dot",
        &[
            "lhs_batching_dimensions",
            "rhs_batching_dimensions",
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
        ],
    ),
    (
        "#stablehlo.gather",
        &[
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
            "index_vector_dim",
        ],
    ),
    (
        "#stablehlo.scatter",
        &[
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ],
    ),
];

impl Parser<'_, '_> {
    /// Checks the key at this place, of an attribute of this name: it is not among the entries before it, and the attribute has it.
    pub(super) fn check_key(
        &self,
        attribute: &str,
        key: &str,
        before: &[(&str, Attribute<'_>)],
    ) -> Parsed<()> {
        let (message, label) = if Attribute::find(before, key).is_some() {
            (format!("`{key}` is stated twice"), "stated again here".to_owned())
        } else {
            match KEYS.iter().find(|it| it.0 == attribute) {
                Some((_, keys)) if !keys.contains(&key) => {
                    let known = grammar::list_text(keys.iter().copied(), keys.len(), "or");
                    (format!("`{attribute}` has no `{key}`"), format!("expected {known}"))
                }
                _ => return Ok(()),
            }
        };
        let it = Diagnostic::new(Code::BadModule, self.span(), message, label);
        Err(Box::new(it.help("the text was edited or damaged: write it again with `as_text()`")))
    }
}
