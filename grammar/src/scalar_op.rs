//! The operators of scalar expressions.

use std::fmt;

macro_rules! operators {
    ($(#[doc = $doc:literal])+ $name:ident { $($op:ident = $text:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $op,)+
        }

        impl $name {
            /// Returns the operator as it is written.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$op => $text,)+
                }
            }

            /// Returns the operator that is written like this.
            pub fn from_text(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$op),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

operators! {
    /// An operator before its operand.
    PrefixOp {
        Neg = "-",
        Not = "!",
        BitNot = "~",
        Deref = "*",
        AddressOf = "&",
    }
}

operators! {
    /// An operator between two operands.
    InfixOp {
        Add = "+",
        Sub = "-",
        Mul = "*",
        Div = "/",
        Rem = "%",
        Shl = "<<",
        Shr = ">>",
        Eq = "==",
        Ne = "!=",
        Lt = "<",
        Le = "<=",
        Gt = ">",
        Ge = ">=",
        And = "&&",
        Or = "||",
        BitAnd = "&",
        BitOr = "|",
        BitXor = "^",
    }
}

impl InfixOp {
    /// Returns whether the operator compares its operands.
    pub fn is_comparison(self) -> bool {
        match self {
            Self::Eq | Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge => true,
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Rem
            | Self::Shl
            | Self::Shr
            | Self::And
            | Self::Or
            | Self::BitAnd
            | Self::BitOr
            | Self::BitXor => false,
        }
    }

    /// Returns whether the operator is a bitwise one, which combines Booleans, too.
    pub fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }

    /// Returns whether the result is a Boolean whatever the operands are.
    pub fn is_boolean(self) -> bool {
        self.is_comparison() || matches!(self, Self::And | Self::Or)
    }
}
