//! Enums whose variants have names, so that Python need not repeat their order.

/// Define an enum of numbered variants, each with its name; `ALL`: the variants in the order of their numbers; and
/// `NAMES`: the names in this order.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        // Python gets the number as a byte, and looks the name up in `NAMES`.
        #[repr(u8)]
        pub enum $enum {
            $($(#[$doc])* $variant,)*
        }

        impl $enum {
            /// All variants, in the order of their numbers.
            pub const ALL: &[$enum] = &[$($enum::$variant,)*];
            /// The names of all variants, in the order of their numbers.
            pub const NAMES: &[&str] = &[$($name,)*];
        }
    };
}
pub(crate) use named;
