//! A module as it is written: functions, operations, regions and attributes.
//!
//! Pretty and generic spelling give the same tree: an operation has operands, named attributes, attributes without a name,
//! regions and types.

use std::fmt;

use grammar::{DType, Span};

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Module<'s> {
    /// The operations of the module: functions and meshes.
    pub(crate) ops: Vec<Operation<'s>>,
    /// The attributes of the module, such as `mhlo.num_partitions`.
    pub(crate) attributes: Vec<(&'s str, Attribute<'s>)>,
}

/// A block: its arguments and operations.
#[derive(Debug, Default)]
pub(crate) struct Block<'s> {
    /// The arguments, with the attributes that functions give them.
    pub(crate) arguments: Vec<Argument<'s>>,
    /// The operations; the last one is the terminator.
    pub(crate) ops: Vec<Operation<'s>>,
}

/// An argument of a block.
#[derive(Debug)]
pub(crate) struct Argument<'s> {
    pub(crate) name: &'s str,
    pub(crate) ty: Type<'s>,
    pub(crate) attributes: Vec<(&'s str, Attribute<'s>)>,
    pub(crate) span: Span,
}

/// An operation.
#[derive(Debug, Default)]
pub(crate) struct Operation<'s> {
    /// The full name, such as `stablehlo.add`.
    pub(crate) name: &'s str,
    /// From its first result up to its types.
    pub(crate) span: Span,
    /// The names of the results, and how many values each stands for.
    pub(crate) results: Vec<(&'s str, usize)>,
    pub(crate) operands: Vec<Use<'s>>,
    pub(crate) attributes: Vec<(&'s str, Attribute<'s>)>,
    /// Attributes without a name, in the order of the text.
    pub(crate) positional: Vec<Attribute<'s>>,
    pub(crate) regions: Vec<Block<'s>>,
    /// The types of the operands, or fewer ones for all of them.
    pub(crate) operand_types: Vec<Type<'s>>,
    /// Whether the types are `(types) -> types`.
    pub(crate) has_function_type: bool,
    pub(crate) result_types: Vec<Type<'s>>,
    /// The attributes of the results of a function.
    pub(crate) result_attributes: Vec<Vec<(&'s str, Attribute<'s>)>>,
}

/// A use of a value: `%7#1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use<'s> {
    pub(crate) name: &'s str,
    pub(crate) index: usize,
    pub(crate) span: Span,
}

/// A type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Type<'s> {
    /// A tensor with constant extents and an element type that hir has.
    Tensor(TensorType),
    /// Another type, as it is written.
    Other(&'s str),
}

impl Type<'_> {
    /// Returns whether it is the type of tokens, which order effects.
    pub(crate) fn is_token(&self) -> bool {
        *self == Self::Other("!stablehlo.token")
    }
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorType {
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: DType,
    /// How many bits an integer has if these are fewer than those of `dtype`; else 0.
    pub(crate) bits: u8,
}

/// The element types of MLIR that hir has. Of several names, the first one is written.
pub(crate) const ELEMENT_TYPES: &[(&str, DType)] = &[
    ("i1", DType::Bool),
    ("i8", DType::Int8),
    ("si8", DType::Int8),
    ("i16", DType::Int16),
    ("si16", DType::Int16),
    ("i32", DType::Int32),
    ("si32", DType::Int32),
    ("i64", DType::Int64),
    ("si64", DType::Int64),
    // Attributes such as layouts have elements of type `index`.
    ("index", DType::Int64),
    ("ui8", DType::UInt8),
    ("ui16", DType::UInt16),
    ("ui32", DType::UInt32),
    ("ui64", DType::UInt64),
    ("f16", DType::Half),
    ("bf16", DType::BFloat),
    ("f32", DType::Float),
    ("f64", DType::Double),
    ("f8E4M3FN", DType::E4M3),
    ("f8E5M2", DType::E5M2),
    ("complex<f32>", DType::Complex64),
    ("complex<f64>", DType::Complex128),
];

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for extent in &self.shape {
            write!(f, "{extent}x")?;
        }
        let name = ELEMENT_TYPES.iter().find(|it| it.1 == self.dtype).map_or("?", |it| it.0);
        match self.bits {
            0 => write!(f, "{name}>"),
            bits => write!(f, "{}{bits}>", name.trim_end_matches('8')),
        }
    }
}

/// An attribute.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Attribute<'s> {
    Int(i64),
    /// A number with a fraction or of any other spelling, as it is written.
    Number(&'s str),
    String(&'s str),
    /// `true`, `LT`, `stablehlo.add`.
    Word(&'s str),
    /// `@relu`.
    Symbol(&'s str),
    /// `[1, 0]`, `array<i64: 1, 0>`.
    Array(Vec<Attribute<'s>>),
    /// `{"tp"}`, `{?}`.
    Set(Vec<Attribute<'s>>),
    /// `[1] x [0]`.
    Pair(Box<(Attribute<'s>, Attribute<'s>)>),
    /// `0:8:2`: start, limit and stride.
    Range(Vec<i64>),
    Dictionary(Vec<(&'s str, Attribute<'s>)>),
    /// `dense<…>`: a value, or nested lists of values, and their type if it is stated behind them.
    Dense(Vec<Attribute<'s>>, Option<TensorType>),
    /// `#sdy.sharding<…>` and every other one in angle brackets: the name (empty for none), and what the brackets contain. A part of an
    /// axis, `"x":(1)2`: its numbers.
    Named(&'s str, Vec<(&'s str, Attribute<'s>)>, Vec<Attribute<'s>>),
    /// The initial value of a reduction: `init: %cst`.
    Initial(Use<'s>),
    /// `(tensor<8xf32>) -> tensor<f32>`.
    FunctionType(Vec<Type<'s>>, Vec<Type<'s>>),
    /// Another type, which no operation needs.
    Type,
    /// `?`.
    Other(&'s str),
}

impl<'s> Attribute<'s> {
    /// Returns the integers of an array.
    pub(crate) fn ints(&self) -> Option<Vec<i64>> {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Dense(items, _) => {
                let mut found = Vec::with_capacity(items.len());
                for it in items {
                    match it {
                        Self::Int(value) => found.push(*value),
                        Self::Array(_) => found.extend(it.ints()?),
                        _ => return None,
                    }
                }
                Some(found)
            }
            _ => None,
        }
    }

    /// Returns the integers among attributes.
    pub(crate) fn numbers(items: &[Self]) -> Vec<i64> {
        items.iter().filter_map(|it| if let Self::Int(it) = it { Some(*it) } else { None }).collect()
    }

    /// Returns the word that the attribute is.
    pub(crate) fn word(&self) -> Option<&'s str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Returns the rows of `dense<[[0, 1], [2, 3]]>`.
    pub(crate) fn rows(&self) -> Option<Vec<Vec<i64>>> {
        match self {
            Self::Dense(items, _) => match &items[..] {
                [] => Some(Vec::new()),
                [Self::Array(rows)] => rows.iter().map(Self::ints).collect(),
                [Self::Int(value)] => Some(vec![vec![*value]]),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether the attribute is a sharding whose dimensions, at least one, are all `{?}`.
    pub(crate) fn is_open_sharding(&self) -> bool {
        let is_open = |it: &Self| matches!(it, Self::Set(axes) if matches!(axes[..], [Self::Other("?")]));
        match self {
            Self::Named(_, _, items) => match &items[..] {
                [_, Self::Array(dims)] => !dims.is_empty() && dims.iter().all(is_open),
                _ => false,
            },
            _ => false,
        }
    }

    /// Adds the values of nested lists in their order.
    pub(crate) fn flatten<'a>(&'a self, into: &mut Vec<&'a Self>) {
        match self {
            Self::Array(items) | Self::Dense(items, _) => items.iter().for_each(|it| it.flatten(into)),
            other => into.push(other),
        }
    }

    /// Returns the value of an attribute in a list.
    pub(crate) fn find<'a>(list: &'a [(&'s str, Self)], name: &str) -> Option<&'a Self> {
        list.iter().find(|it| it.0 == name).map(|it| &it.1)
    }
}

impl<'s> Operation<'s> {
    /// Returns the attribute with one of these names.
    pub(crate) fn attribute(&self, names: &[&str]) -> Option<&Attribute<'s>> {
        self.attributes.iter().find(|it| names.contains(&it.0)).map(|it| &it.1)
    }

    /// Returns the integers of the attribute with one of these names.
    pub(crate) fn ints(&self, names: &[&str]) -> Option<Vec<i64>> {
        self.attribute(names)?.ints()
    }

    /// Returns the name that the attribute is, or the last one in its brackets: `LT`, `#stablehlo<comparison_direction LT>`.
    pub(crate) fn keyword(&self, names: &[&str]) -> Option<&'s str> {
        match self.attribute(names)? {
            Attribute::Named(_, _, words) => words.last().and_then(Attribute::word),
            it => it.word(),
        }
    }

    /// Returns the integer of the attribute with one of these names.
    pub(crate) fn int(&self, names: &[&str]) -> Option<i64> {
        match self.attribute(names)? {
            Attribute::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the first symbol that the operation states, such as the callee.
    pub(crate) fn symbol(&self, name: &str) -> Option<&'s str> {
        let stated = self.attribute(&[name]).into_iter().chain(&self.positional);
        stated.into_iter().find_map(|it| match it {
            Attribute::Symbol(name) => Some(*name),
            _ => None,
        })
    }
}
