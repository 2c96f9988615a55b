//! What the process calls itself in messages.

use std::sync::OnceLock;

static NAME: OnceLock<&str> = OnceLock::new();

/// The name of the tool that this process is; `hir` in tests of the library.
pub fn tool_name() -> &'static str {
    NAME.get().copied().unwrap_or("hir")
}

/// Sets the name, once.
pub fn set_tool_name(name: &'static str) {
    NAME.get_or_init(|| name);
}
