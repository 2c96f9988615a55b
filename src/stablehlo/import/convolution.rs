//! Convolutions: for each position of the kernel, the product of the elements that it meets and its matrix; the sum of them.

use super::{Imported, Importer, Results, constant::zero, dot::Roles, pad::Padding, window, window::Window};
use crate::{
    tree::{Attribute, Operation},
    value::{Splat, Value},
};

/// Where the dimensions of a tensor are: the batch or the output features, the features, and the spatial ones.
struct Layout {
    first: usize,
    features: usize,
    spatial: Vec<usize>,
}

impl Layout {
    /// Reads `[b, f, 0, 1]`, `[o, i, 0, 1]` or `[0, 1, i, o]`.
    fn read(stated: &Attribute<'_>, first: &str, features: &str) -> Option<Self> {
        let Attribute::Array(items) = stated else { return None };
        let place = |name: &str| items.iter().position(|it| it.word() == Some(name));
        let spatial = |at: i64| items.iter().position(|it| matches!(it, Attribute::Int(it) if *it == at));
        let count = items.len().checked_sub(2)? as i64;
        let spatial = (0..count).map(spatial).collect::<Option<Vec<_>>>()?;
        Some(Self { first: place(first)?, features: place(features)?, spatial })
    }

    /// Reads what `conv<raw …>` states of one tensor by three names.
    fn raw(entries: &[(&str, Attribute<'_>)], [first, features, spatial]: [&str; 3]) -> Option<Self> {
        let ints = |name: &str| match Attribute::find(entries, name)? {
            Attribute::Int(it) => Some(vec![*it]),
            it => it.ints(),
        };
        let places = |name: &str| -> Option<Vec<usize>> {
            ints(name)?.into_iter().map(|it| usize::try_from(it).ok()).collect()
        };
        let one = |name: &str| match places(name)?[..] {
            [it] => Some(it),
            _ => None,
        };
        let it = Self { first: one(first)?, features: one(features)?, spatial: places(spatial)? };
        let mut all = it.order();
        all.sort_unstable();
        all.into_iter().eq(0..it.spatial.len() + 2).then_some(it)
    }

    /// Reads the layouts of the operands and of the result.
    fn of_convolution(stated: &Attribute<'_>) -> Option<[Self; 3]> {
        match stated {
            Attribute::Named(_, entries, items)
                if !entries.is_empty() && matches!(items[..], [Attribute::Word("raw")]) =>
            {
                let input = ["input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions"];
                let kernel = [
                    "kernel_output_feature_dimension",
                    "kernel_input_feature_dimension",
                    "kernel_spatial_dimensions",
                ];
                let output =
                    ["output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions"];
                let [input, kernel, output] = [input, kernel, output].map(|it| Self::raw(entries, it));
                Some([input?, kernel?, output?])
            }
            Attribute::Named(_, _, items) => Self::of_convolution(items.first()?),
            Attribute::Pair(it) => match &it.0 {
                Attribute::Pair(operands) => Some([
                    Self::read(&operands.0, "b", "f")?,
                    Self::read(&operands.1, "o", "i")?,
                    Self::read(&it.1, "b", "f")?,
                ]),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the dimensions in the order `first`, spatial, features.
    fn order(&self) -> Vec<usize> {
        [self.first].into_iter().chain(self.spatial.iter().copied()).chain([self.features]).collect()
    }
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn convolution(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [image, kernel] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?;
        let groups = |name: &str| op.int(&[name]).unwrap_or(1);
        let (feature_groups, batch_groups) = (groups("feature_group_count"), groups("batch_group_count"));
        let Some(stated) = op.attribute(&["dim_numbers", "dimension_numbers"]) else {
            return Err(self.missing(op, "dim_numbers"));
        };
        let Some([from, weights, to]) = Layout::of_convolution(stated) else {
            return Err(self.bad_module(
                format!("`{}` has `dim_numbers` in which a dimension is missing or comes twice", op.name),
                "expected each dimension once",
            ));
        };
        let count = from.spatial.len();
        let ranks = [image.shape().len(), kernel.shape().len(), ty.shape.len()];
        if ranks != [count + 2; 3] || weights.spatial.len() != count || to.spatial.len() != count {
            return Err(
                self.bad_module("`dim_numbers` do not match the operands", "expected each dimension once")
            );
        }
        let (windows, padding, is_reversed) = self.kernel_window(op, &kernel, &weights)?;
        // The batch, the places and the features; the places, the features and those of the result.
        let (image, kernel) = (self.converted(image, ty.dtype)?, self.converted(kernel, ty.dtype)?);
        let image = self.materialized(image);
        let image = Value::Tensor(self.permuted(image, &from.order()));
        let blank = Value::Splat(Splat { scalar: zero(ty.dtype), shape: Vec::new(), dtype: ty.dtype });
        let image = self.padded(image, &blank, &padding)?;
        let kernel = self.materialized(kernel);
        let order: Vec<usize> =
            weights.spatial.iter().copied().chain([weights.features, weights.first]).collect();
        let kernel = Value::Tensor(self.permuted(kernel, &order));
        // Each group of features, or of the batch, has features of the result of its own.
        let groups = feature_groups.max(batch_groups);
        let (of_image, of_kernel) = (if batch_groups > 1 { 0 } else { count + 1 }, count + 1);
        let has_parts = |value: &Value, dim: usize| value.shape()[dim] % groups == 0;
        if feature_groups.min(batch_groups) != 1
            || !has_parts(&image, of_image)
            || !has_parts(&kernel, of_kernel)
        {
            return Err(
                self.bad_module("the groups do not divide the operands", "expected one kind of groups")
            );
        }
        let positions = self.positions(op, &windows)?;
        if positions.saturating_mul(groups) > window::MAX_POSITIONS {
            let form =
                format!("more than {} products of groups and elements of the kernel", window::MAX_POSITIONS);
            return Err(self.unsupported_form(op, &form));
        }
        let mut parts = Vec::new();
        for group in 0..groups {
            let part = |importer: &mut Self, value: &Value, dim: usize| {
                let mut ranges: Vec<[i64; 3]> = value.shape().iter().map(|it| [0, *it, 1]).collect();
                let size = ranges[dim][1] / groups;
                ranges[dim] = [group * size, (group + 1) * size, 1];
                importer.sliced(value.clone(), &ranges)
            };
            let (image, kernel) = (part(self, &image, of_image), part(self, &kernel, of_kernel));
            parts.push(self.convolved(op, &image, &kernel, &windows, &is_reversed)?);
        }
        let all = self.joined(parts, count + 1);
        let all = self.materialized(all);
        let own = to.order();
        let back: Vec<usize> = (0..own.len()).filter_map(|at| own.iter().position(|it| *it == at)).collect();
        Ok(vec![Value::Tensor(self.permuted(all, &back))])
    }

    /// Returns the convolution of a padded image, whose dimensions are the batch, the places and the features, with a kernel, whose
    /// dimensions are the places, the features and those of the result.
    fn convolved(
        &mut self,
        op: &Operation<'_>,
        image: &Value,
        kernel: &Value,
        windows: &[Window],
        is_reversed: &[bool],
    ) -> Imported<Value> {
        let count = is_reversed.len();
        let matrix = kernel.shape()[count..].to_vec();
        if image.shape()[count + 1] != matrix[0] {
            return Err(
                self.bad_module("the operands have different numbers of features", "expected equal numbers")
            );
        }
        let mut sum: Option<Value> = None;
        for position in 0..windows.iter().map(|it| it.size).product() {
            let met = self.window_elements(op, image.clone(), windows, position)?;
            let mut ranges: Vec<[i64; 3]> = kernel.shape().iter().map(|it| [0, *it, 1]).collect();
            let mut rest = position;
            for at in (0..count).rev() {
                let size = windows[at + 1].size;
                let own = rest % size;
                rest /= size;
                let own = if is_reversed[at] { size - 1 - own } else { own };
                ranges[at] = [own, own + 1, 1];
            }
            let own = self.sliced(kernel.clone(), &ranges);
            let (met, own) = (self.materialized(met), self.materialized(own));
            let own = self.reshaped(own, &matrix);
            let free: Vec<usize> = (0..=count).collect();
            let left = Roles { batch: Vec::new(), contracted: vec![count + 1], free };
            let right = Roles { batch: Vec::new(), contracted: vec![0], free: vec![1] };
            let dtype = met.dtype;
            let mut shape = met.shape.clone();
            shape[count + 1] = matrix[1];
            let product = Value::Tensor(self.product(met, own, [&left, &right], dtype, &shape));
            sum = Some(match sum {
                Some(it) => self.binary_values("add", it, product)?,
                None => product,
            });
        }
        sum.ok_or_else(|| self.unsupported_form(op, "a kernel without elements"))
    }

    /// Returns the window and the padding for the batch, the places and the features, and which places are reversed.
    fn kernel_window(
        &self,
        op: &Operation<'_>,
        kernel: &Value,
        weights: &Layout,
    ) -> Imported<(Vec<Window>, Vec<Padding>, Vec<bool>)> {
        let count = weights.spatial.len();
        let pretty = match op.attribute(&["window"]) {
            Some(Attribute::Dictionary(entries)) => Some(entries),
            _ => None,
        };
        let find = |pretty_name: &str, name: &str| match pretty {
            Some(entries) => Attribute::find(entries, pretty_name),
            None => op.attribute(&[name]),
        };
        let list = |pretty_name: &str, name: &str| {
            find(pretty_name, name)
                .map_or(Some(vec![1; count]), Attribute::ints)
                .filter(|it| it.len() == count)
        };
        let edges = match find("pad", "padding") {
            Some(it) => window::padding_rows(it, count),
            None => Some(vec![[0, 0]; count]),
        };
        let reversal = match find("reverse", "window_reversal") {
            Some(it) => booleans(it, count),
            None => Some(vec![false; count]),
        };
        let Some(reversal) = reversal else {
            return Err(self.bad_module(
                "`reverse` does not say which dimensions of the window are reversed",
                "expected `true` or `false` for each dimension",
            ));
        };
        let (strides, spread) = (list("stride", "window_strides"), list("lhs_dilate", "lhs_dilation"));
        let dilations = list("rhs_dilate", "rhs_dilation");
        let (Some(edges), Some(strides), Some(spread), Some(dilations)) = (edges, strides, spread, dilations)
        else {
            return Err(self.missing(op, "window"));
        };
        let is_positive = [&strides, &spread, &dilations].iter().all(|it| it.iter().all(|it| *it > 0));
        if !is_positive {
            return Err(
                self.bad_module("the window does not match the operands", "expected positive numbers")
            );
        }
        let (plain, none) =
            (Window { size: 1, stride: 1, dilation: 1 }, Padding { low: 0, high: 0, interior: 0 });
        let (mut windows, mut padding) = (vec![plain], vec![none]);
        for at in 0..count {
            let size = kernel.shape()[weights.spatial[at]];
            windows.push(Window { size, stride: strides[at], dilation: dilations[at] });
            padding.push(Padding { low: edges[at][0], high: edges[at][1], interior: spread[at] - 1 });
        }
        windows.push(plain);
        padding.push(none);
        Ok((windows, padding, reversal))
    }
}

/// Returns the booleans of a list, or of `dense<true>`, which is one for all. MLIR also reads numbers.
fn booleans(stated: &Attribute<'_>, count: usize) -> Option<Vec<bool>> {
    let mut items = Vec::new();
    match stated {
        Attribute::Array(_) | Attribute::Dense(..) => stated.flatten(&mut items),
        _ => return None,
    }
    let boolean = |it: &Attribute<'_>| match it {
        Attribute::Word("true") => Some(true),
        Attribute::Word("false") => Some(false),
        Attribute::Int(value) => Some(*value != 0),
        _ => None,
    };
    let found = items.into_iter().map(boolean).collect::<Option<Vec<_>>>()?;
    match (stated, &found[..]) {
        (Attribute::Dense(..), [it]) => Some(vec![*it; count]),
        _ => Some(found).filter(|it| it.len() == count),
    }
}
