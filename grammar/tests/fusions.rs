//! Which fusion of a log belongs to a container, in logs that were cut off or torn.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path};

/// Returns the complete fusion, its segments and the container of `tests/cases/log/kernels.hir`.
fn parts() -> [String; 3] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases/log/kernels.hir");
    let text = fs::read_to_string(path).expect("the case");
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
