//! Plans for tests.

use grammar::source::Source;

use super::{CallerUses, World, build_per_rank};

/// Returns the plans of a valid program, by rank.
pub(crate) fn plans_of(text: &str, ranks: usize) -> World {
    let source = Source::new("test.hir".to_owned(), text.to_owned());
    let (programs, faults) = source.programs();
    assert!(faults.is_empty(), "{faults:?}");
    let world: Vec<_> = (0..ranks).map(|_| (&programs[0], &source.lines)).collect();
    let plans =
        build_per_rank(&world, &super::limits::Limits::default(), &CallerUses::default()).unwrap_or_default();
    assert_eq!(plans.len(), ranks, "{text}");
    plans
}
