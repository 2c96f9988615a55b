//! Enums whose values have names.

/// An enum whose values have names.
pub trait Named: Copy + 'static {
    /// All values, in the order of their declaration.
    const ALL: &'static [Self];
    /// Their names.
    const NAMES: &'static [&'static str];

    /// Returns the value of a name.
    fn of_name(name: &str) -> Option<Self>;
}

/// Declares an enum with the name of each value, which `name` returns, and implements `Named` and `Display` for it.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $vis:vis enum $of:ident { $($(#[$value_meta:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $of { $($(#[$value_meta])* $value,)+ }

        impl $of {
            /// Returns the name.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }
        }

        impl std::fmt::Display for $of {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::Named for $of {
            const ALL: &'static [Self] = &[$(Self::$value),+];
            const NAMES: &'static [&'static str] = &[$($name),+];

            fn of_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.name() == name)
            }
        }
    };
}
