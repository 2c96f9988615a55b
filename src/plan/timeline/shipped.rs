//! The machines whose times are part of hir. `hir calibrate` has measured them.

use std::sync::LazyLock;

use super::machine::Machine;

/// The name of the machine with whose times everything is estimated that names no other one.
pub const DEFAULT: &str = "h200";
/// The name of the GPU of which nothing was measured (`cost`).
pub const NOMINAL: &str = "nominal";
/// The texts of the machines, by name.
const SHIPPED: &[(&str, &str)] =
    &[("h100", include_str!("machines/h100.json")), (DEFAULT, include_str!("machines/h200.json"))];

/// Returns the names of the measured machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|it| it.0)
}

/// Returns the text of a machine; `None` if hir has none of this name.
pub fn text(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|it| it.0 == name).map(|it| it.1)
}

/// Returns the machine of `DEFAULT`.
pub fn default_machine() -> &'static Machine {
    // A test reads all of them.
    static MACHINE: LazyLock<Machine> =
        LazyLock::new(|| text(DEFAULT).and_then(|it| Machine::parse(it).ok()).unwrap_or_default());
    &MACHINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_machines_can_be_read() {
        for name in names() {
            assert!(text(name).is_some_and(|it| Machine::parse(it).is_ok()), "{name}");
        }
        assert!(!default_machine().is_nominal());
    }
}
