//! Parses tensors in flags.

use grammar::InvalidOption;
use grammar::{DType, dtype::Class};

use hir_tensor::data::{Data, Element, NdArray, each};

/// Parses a literal such as `2x2xf32=1 2 3 4`; `f32=1` has no dimensions. Values are separated by blanks or
/// commas.
pub(super) fn read(text: &str) -> Result<NdArray, InvalidOption> {
    let (head, values) = text
        .split_once('=')
        .ok_or("a file starts with `@`, and a literal has its shape and type before `=`")?;
    let (mut shape, mut name) = (Vec::new(), head);
    // Names of types begin with a letter, so each number before an `x` is an extent.
    while let Some((extent, rest)) = name.split_once('x') {
        let Ok(extent) = extent.parse() else { break };
        shape.push(extent);
        name = rest;
    }
    let known = DType::ALL.iter().copied().find(|it| it.short_name() == name);
    let dtype = known.ok_or_else(|| format!("`{name}` is not an element type"))?;
    let values: Vec<&str> =
        values.split(|it: char| it == ',' || it.is_whitespace()).filter(|it| !it.is_empty()).collect();
    let len = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    if len != Some(values.len()) {
        return Err(
            format!("the shape {shape:?} does not match the number of values, {}", values.len()).into()
        );
    }
    let mut data = Data::zeros(dtype, values.len()).map_err(|it| it.to_string())?;
    each!(&mut data, to => parse_values(to, &values))?;
    Ok(NdArray { shape, data })
}

fn parse_values<T: Element>(to: &mut [T], values: &[&str]) -> Result<(), InvalidOption> {
    for (slot, text) in to.iter_mut().zip(values) {
        let value = match T::DTYPE.class() {
            Class::Bool => match *text {
                "true" | "1" => Some(T::from_i128(1).0),
                "false" | "0" => Some(T::from_i128(0).0),
                _ => None,
            },
            Class::Int => {
                text.parse().ok().map(T::from_i128).and_then(|(it, wrapped)| (!wrapped).then_some(it))
            }
            Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => {
                text.parse().ok().map(|it| T::from_f64(it).0)
            }
        };
        *slot = value.ok_or_else(|| format!("`{text}` is not a valid {}", T::DTYPE.short_name()))?;
    }
    Ok(())
}
