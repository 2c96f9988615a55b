//! All tools in one: `hir check`, `hir hang`, `hir opt` and others.

hir_driver::program!("hir", dispatch, hir::install_backend);
