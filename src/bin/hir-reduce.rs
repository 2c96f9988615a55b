//! Reduces a failing Host IR program while it still fails in the same way.

hir::program!("hir-reduce", reduce);
