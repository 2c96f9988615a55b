//! Element types and the names that the text uses for them.

mod composite;

use std::fmt;

pub use composite::Composite;

/// Declares the element types: variant, printed name, short name, bytes per element, class.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $short:literal, $size:literal, $class:ident;)*) => {
        /// An element type. Its `Display` output is what nvFuser prints after the memory letter.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DType {
            $($(#[$doc])* $name,)*
            /// A composite type. It can be read and printed, but not computed with.
            Composite(Composite),
        }

        impl DType {
            /// All element types of the table, in its order.
            pub const ALL: &'static [DType] = &[$(DType::$name),*];

            /// Returns the printed name.
            pub fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* DType::Composite(it) => it.name() }
            }

            /// Returns the short name that is common outside dumps (`bf16`, `i64`), for flags and reports.
            pub fn short_name(self) -> &'static str {
                match self { $(DType::$name => $short,)* DType::Composite(it) => it.name() }
            }

            /// Returns the bytes per element; 0 for composite types.
            pub const fn size(self) -> usize {
                match self { $(DType::$name => $size,)* DType::Composite(_) => 0 }
            }

            /// Returns whether arithmetic treats the type as an integer; Booleans are 0 and 1.
            pub const fn is_integral(self) -> bool {
                match self.class() {
                    Class::Int | Class::Bool => true,
                    Class::Float | Class::SmallFloat | Class::Complex | Class::Composite => false,
                }
            }

            /// Returns the class of the type.
            pub const fn class(self) -> Class {
                match self { $(DType::$name => Class::$class,)* DType::Composite(_) => Class::Composite }
            }
        }
    };
}

/// Classes of element types that share arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Booleans.
    Bool,
    /// Signed or unsigned integers.
    Int,
    /// Real floating point of 16, 32 or 64 bits.
    Float,
    /// Floating point of 8 bits or less.
    SmallFloat,
    /// Complex floating point.
    Complex,
    /// Types composed of other types.
    Composite,
}

dtypes! {
    /// Boolean.
    Bool = "bool", "bool", 1, Bool;
    /// IEEE binary64.
    Double = "double", "f64", 8, Float;
    /// IEEE binary32.
    Float = "float", "f32", 4, Float;
    /// IEEE binary16.
    Half = "__half", "f16", 2, Float;
    /// bfloat16.
    BFloat = "__bfloat", "bf16", 2, Float;
    /// fp8 with 4 exponent bits.
    E4M3 = "__e4m3", "f8e4m3", 1, SmallFloat;
    /// fp8 with 5 exponent bits.
    E5M2 = "__e5m2", "f8e5m2", 1, SmallFloat;
    /// fp8 exponent only (block scales).
    E8M0 = "__e8m0", "f8e8m0", 1, SmallFloat;
    /// fp4. hir stores one element a byte.
    E2M1 = "__e2m1", "f4e2m1", 1, SmallFloat;
    /// Two packed fp4.
    E2M1x2 = "__e2m1_x2", "f4e2m1x2", 1, SmallFloat;
    /// nvFuser's index type, 64 bits on the host.
    Index = "nvfuser_index_t", "index", 8, Int;
    /// 8-bit signed integer.
    Int8 = "int8_t", "i8", 1, Int;
    /// 16-bit signed integer.
    Int16 = "int16_t", "i16", 2, Int;
    /// 32-bit signed integer.
    Int32 = "int", "i32", 4, Int;
    /// 64-bit signed integer.
    Int64 = "int64_t", "i64", 8, Int;
    /// 8-bit unsigned integer.
    UInt8 = "uint8_t", "u8", 1, Int;
    /// 16-bit unsigned integer.
    UInt16 = "uint16_t", "u16", 2, Int;
    /// 32-bit unsigned integer.
    UInt32 = "uint32_t", "u32", 4, Int;
    /// 64-bit unsigned integer.
    UInt64 = "uint64_t", "u64", 8, Int;
    /// Complex of two binary32.
    Complex64 = "std::complex<float>", "c64", 8, Complex;
    /// Complex of two binary64.
    Complex128 = "std::complex<double>", "c128", 16, Complex;
}

/// Names of element types in C, CUDA, NumPy and PyTorch.
const COMMON_NAMES: [(&str, DType); 18] = [
    ("float16", DType::Half),
    ("fp16", DType::Half),
    ("bfloat16", DType::BFloat),
    ("nv_bfloat16", DType::BFloat),
    ("float32", DType::Float),
    ("fp32", DType::Float),
    ("float64", DType::Double),
    ("fp64", DType::Double),
    ("int8", DType::Int8),
    ("int16", DType::Int16),
    ("int32", DType::Int32),
    ("int32_t", DType::Int32),
    ("int64", DType::Int64),
    ("long", DType::Int64),
    ("boolean", DType::Bool),
    ("uint8", DType::UInt8),
    ("float8_e4m3fn", DType::E4M3),
    ("float8_e5m2", DType::E5M2),
];

impl DType {
    /// Returns the type whose printed name is `name`; `None` if it is neither in the table nor composed of
    /// types in it.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = Self::ALL.iter().copied().find(|it| it.name() == name);
        plain.or_else(|| Composite::from_name(name).map(Self::Composite))
    }

    /// Returns whether `name` is a conversion, such as `__bfloat2float(x)` or `__to_index(x)`: nvFuser names a
    /// conversion by the types that it converts between.
    pub(crate) fn is_cast_name(name: &str) -> bool {
        let types = name.strip_prefix("__");
        types.is_some_and(|it| it.starts_with("to_") || it.contains('2') && !it.starts_with("e2m1"))
            || Self::from_name(name).is_some()
    }

    /// Returns the type to which the conversion `name` converts, such as `__to_int64_t` or `__bfloat2float`.
    pub(crate) fn of_cast(name: &str) -> Option<Self> {
        let name = name.strip_prefix("__").map_or(name, |it| it.strip_prefix("to_").unwrap_or(it));
        let last = name.rsplit_once('2').map_or(name, |(_, to)| to);
        [name, last]
            .into_iter()
            .find_map(|it| Self::from_name(it).or_else(|| Self::from_name(&format!("__{it}"))))
    }

    /// Returns the type of the parts of a complex type.
    pub const fn part(self) -> Option<Self> {
        match self {
            Self::Complex64 => Some(Self::Float),
            Self::Complex128 => Some(Self::Double),
            _ => None,
        }
    }

    /// Returns the name of the conversion of a scalar to the type.
    pub(crate) fn cast_name(self) -> String {
        match self {
            Self::Index => "__to_index".to_owned(),
            Self::Complex64 => "__to_complex_float".to_owned(),
            Self::Complex128 => "__to_complex_double".to_owned(),
            _ => format!("__to_{}", self.name().trim_start_matches('_')),
        }
    }

    /// Returns the type that a name denotes in other languages and tools, such as `bf16`, `half` or `float32`.
    pub(crate) fn from_common_name(name: &str) -> Option<Self> {
        let plain = name.trim_matches('_').to_ascii_lowercase();
        let common = COMMON_NAMES.iter().find(|(word, _)| *word == plain).map(|(_, it)| *it);
        let short = || Self::ALL.iter().copied().find(|it| it.short_name() == plain);
        let own = || Self::ALL.iter().copied().find(|it| it.name().trim_matches('_') == plain);
        common.or_else(short).or_else(own)
    }

    /// Returns the least and the greatest number of an integer type; `None` for others.
    pub fn integer_range(self) -> Option<(i128, i128)> {
        let bits = 8 * self.size();
        let half = || 1i128 << (bits - 1);
        match self {
            Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64 => Some((0, 2 * half() - 1)),
            _ => (self.class() == Class::Int).then(|| (-half(), half() - 1)),
        }
    }

    /// Returns whether the type has a zero, at which sums start. Where it has none, a sum is not the sum of sums of parts.
    pub const fn has_zero(self) -> bool {
        !matches!(self, Self::E8M0)
    }

    /// Returns the bits of the significand, including the hidden bit: every integer up to 2 to this power is
    /// representable. Returns `None` for types that are not real floating point.
    pub const fn significand_bits(self) -> Option<u32> {
        match self {
            Self::Double => Some(53),
            Self::Float => Some(24),
            Self::Half => Some(11),
            Self::BFloat => Some(8),
            Self::E4M3 => Some(4),
            Self::E5M2 => Some(3),
            Self::E2M1 | Self::E2M1x2 => Some(2),
            Self::E8M0 => Some(1),
            Self::Bool
            | Self::Index
            | Self::Int8
            | Self::Int16
            | Self::Int32
            | Self::Int64
            | Self::UInt8
            | Self::UInt16
            | Self::UInt32
            | Self::UInt64
            | Self::Complex64
            | Self::Complex128
            | Self::Composite(_) => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
