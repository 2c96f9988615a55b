//! The name of the tool, for messages.

use std::sync::OnceLock;

static NAME: OnceLock<&str> = OnceLock::new();

/// Returns the name of the tool that this process runs; `hir` in tests of the library.
pub fn tool_name() -> &'static str {
    NAME.get().copied().unwrap_or("hir")
}

/// Sets the name; later calls have no effect.
pub fn set_tool_name(name: &'static str) {
    NAME.get_or_init(|| name);
}
