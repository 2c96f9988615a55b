//! Checks that a name has one definition. MLIR refuses other texts, such as those that two modules were pasted into.

use grammar::{Code, Diagnostic, Span};
use rustc_hash::FxHashMap;

use crate::tree::{Attribute, Block, Module, Operation};

/// The names of values that are visible, with their definitions.
type Names<'s> = FxHashMap<&'s str, Span>;

/// Checks the names of the functions, meshes and values of a module.
///
/// # Errors
/// Returns an error for the first name that is defined again.
pub(crate) fn check(module: &Module<'_>) -> Result<(), Box<Diagnostic>> {
    let mut symbols: FxHashMap<(&str, &str), Span> = FxHashMap::default();
    for op in &module.ops {
        if let Some(Attribute::String(name)) = op.attribute(&["sym_name"]) {
            let name = name.trim_matches('"');
            if let Some(first) = symbols.insert((op.name, name), op.span) {
                return Err(defined_again(&format!("@{name}"), Some(first), op.span));
            }
        }
        op.regions.iter().try_for_each(|it| check_block(it, &mut Names::default()))?;
    }
    Ok(())
}

/// Checks a block whose operations see `names`. What it defines is gone behind it.
fn check_block<'s>(block: &Block<'s>, names: &mut Names<'s>) -> Result<(), Box<Diagnostic>> {
    let mut own = Vec::new();
    let mut define = |names: &mut Names<'s>, name: &'s str, at: Span| match names.insert(name, at) {
        Some(first) => Err(defined_again(name, Some(first), at)),
        None => {
            own.push(name);
            Ok(())
        }
    };
    for it in &block.arguments {
        define(names, it.name, it.span)?;
    }
    for op in &block.ops {
        let sees_names = !is_isolated(op);
        for region in &op.regions {
            if sees_names { check_block(region, names)? } else { check_block(region, &mut Names::default())? }
        }
        for (name, _) in &op.results {
            define(names, name, op.span)?;
        }
    }
    for name in own {
        names.remove(name);
    }
    Ok(())
}

/// Whether the regions of an operation see no names from outside (`IsolatedFromAbove` of MLIR).
fn is_isolated(op: &Operation<'_>) -> bool {
    op.name == "sdy.manual_computation"
}

/// Returns the error that a name has two definitions: at `first`, if that is known, and at `again`.
pub(crate) fn defined_again(name: &str, first: Option<Span>, again: Span) -> Box<Diagnostic> {
    let it =
        Diagnostic::new(Code::BadModule, again, format!("`{name}` is defined twice"), "defined again here");
    let it = first.into_iter().fold(it, |it, first| it.label(first, "it is defined here"));
    Box::new(
        it.help("a text has one module, and each name in it one definition: write it again with `as_text()`"),
    )
}
