//! Which fusion belongs to a container, in logs that were cut off or torn and in other files.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path};

use grammar::source::Source;

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).expect("a file")
}

/// Returns the complete fusion, its segments and the container of `tests/cases/log/kernels.hir`.
fn parts() -> [String; 3] {
    let text = file("tests/cases/log/kernels.hir");
    let place = |it: &str| text.find(it).expect("a part of the case");
    let (first, segments) =
        (place("Segmented_Fusion Dump"), place("Segmented_Fusion Dump: -- fusion segments"));
    let container = place("%HostIrContainer {");
    [first..segments, segments..container, container..text.len()].map(|it| text[it].to_owned())
}

fn codes(text: &str) -> Vec<&'static str> {
    grammar::read(text).1.iter().map(|it| it.code.text()).collect()
}

#[test]
fn the_fusion_of_a_container_that_is_cut_off_is_not_replaced_by_an_older_one() {
    let [complete, segments, container] = parts();
    let older = format!("{complete}{segments}").replace("relu", "abs");
    let cut = &segments[..segments.find("group details:").expect("groups")];
    assert_eq!(codes(&format!("{older}{complete}{cut}{container}")), ["W0403"]);
    assert_eq!(codes(&format!("{older}{complete}{container}")), ["W0403"]);
}

#[test]
fn equal_fusions_of_ranks_whose_lines_are_mixed_are_one() {
    let [complete, segments, container] = parts();
    let whole = format!("{complete}{segments}{container}");
    let mixed = format!("{complete}{complete}{segments}{segments}{container}");
    assert_eq!(codes(&mixed), codes(&whole));
    let print = |text: &str| grammar::read(text).0.iter().map(grammar::print).collect::<Vec<_>>();
    assert_eq!(print(&mixed), print(&whole));
}

#[test]
fn a_file_without_a_fusion_that_fits_has_no_effect_and_is_reported() {
    let log = file("tests/cases/log/reduction-operator.hir");
    let container = &log[log.find("%HostIrContainer {").expect("a container")..];
    let codes = |files: &[&str]| {
        let program = Source::new("program.hir".to_owned(), container.to_owned());
        let files = files.iter().map(|it| Source::new((*it).to_owned(), file(it)));
        let found = files.fold(program, |program, file| program.with_fusions(&file)).programs().1;
        found.iter().map(|it| it.code.text()).collect::<Vec<_>>()
    };
    assert_eq!(codes(&["tests/cases/log/reduction-operator.hir"]), Vec::<&str>::new());
    // README.md has lines with the prefixes of a log.
    assert_eq!(codes(&["README.md"]), ["W0209", "lossy-red-op"]);
    let both = ["tests/cases/log/reduction-operator.hir", "tests/cases/log/kernels.hir"];
    assert_eq!(codes(&both), ["W0209"]);
}
