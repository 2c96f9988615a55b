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

#[test]
fn a_group_that_contradicts_its_fusion_is_an_error() {
    let [complete, segments, container] = parts();
    let whole = format!("{complete}{segments}{container}");
    let errors = |text: &str| {
        let found = grammar::read(text).1;
        let own = found.iter().filter(|it| it.code.text().starts_with('E'));
        own.map(|it| (it.code.text(), it.labels.len())).collect::<Vec<_>>()
    };
    assert_eq!(errors(&whole), []);
    let tensor = "T4_g_float[ideviceIdx.x18{2}, iS6{i0}, iS19{2}] (DeviceMesh{0 1})";
    assert!(segments.contains(&format!("{tensor} float")));
    for (from, to) in [
        ("op = add", "op = max"),
        ("= relu(", "= neg("),
        ("   + T2_l", "   - T2_l"),
        ("initial value = float(0)", "initial value = float(100)"),
        (&format!("{tensor} float"), &format!("{tensor} double")),
    ] {
        let other = segments.replace(from, to);
        assert_ne!(other, segments, "{from}");
        let found = errors(&format!("{complete}{other}{container}"));
        assert!(!found.is_empty() && found.iter().all(|it| it.0 == "E0209"), "{to}: {found:?}");
    }
    // nvFuser may print another memory in a group.
    let other = segments.replace("T3_l_", "T3_g_");
    assert_eq!(errors(&format!("{complete}{other}{container}")), []);
    let (before, behind) = complete.split_once("T3_l_").expect("a statement");
    let behind = &behind[behind.find("T4_g_").expect("the next statement")..];
    assert_eq!(errors(&format!("{before}{behind}{segments}{container}")), [("E0209", 2)]);
    for (from, to) in [
        (
            "T1_g_float[ideviceIdx.x12{2}, iS13{2}] (DeviceMesh{0 1})\nOutputs",
            "T1_g_float[ideviceIdx.x12{2}, iS13{2}] (DeviceMesh{1 0})\nOutputs",
        ),
        (
            "  T0_g_float[ideviceIdx.x10{2}, iS0{i0}, iS11{2}] (DeviceMesh{0 1})\n  T1",
            "  T0_g_float[ideviceIdx.x10{2}, iS0{i0}, iS11{3}] (DeviceMesh{0 1})\n  T1",
        ),
    ] {
        let other = complete.replacen(from, to, 1);
        assert_ne!(other, complete, "{from}");
        assert_eq!(errors(&format!("{other}{segments}{container}"))[0], ("E0209", 2), "{to}");
    }
}

#[test]
fn a_group_defines_each_name_once_and_none_of_its_inputs() {
    let [complete, segments, container] = parts();
    let codes = |from: &str, to: &str| {
        let other = segments.replace(from, to);
        assert_ne!(other, segments, "{from}");
        codes(&format!("{complete}{other}{container}"))
    };
    let t0 = "T0_g_float[ideviceIdx.x10{2}, iS0{i0}, iS11{2}] (DeviceMesh{0 1})";
    for statement in [
        &format!("{t0}\n   = neg({t0});"),
        "i0 = 7",
        "i9 = 7\ni9 = 8",
        "T4_g_float[ideviceIdx.x18{2}, iS6{i0}, iS19{2}] (DeviceMesh{0 1})\n   = neg(T3_l_float[ideviceIdx.x16{2}, iS5{i0}, iS17{2}] (DeviceMesh{0 1}));",
    ] {
        assert!(codes("(2)\n", &format!("{statement}\n(2)\n")).contains(&"E0209"), "{statement}");
    }
}

#[test]
fn a_group_that_is_torn_from_its_complete_fusion_is_not_selected() {
    let [complete, segments, container] = parts();
    // Another rank prints the segments of its own fusion behind those of this one, whose second group is torn.
    let torn = segments.replace("group id: 7\n", "group id: 7\n  a line\n").replace("inputs:\n  T4", "  T4");
    assert_ne!(torn, segments);
    let other = segments.replace("relu", "neg");
    assert_eq!(codes(&format!("{complete}{torn}{other}{container}")), ["E0209"]);
}

#[test]
fn the_log_says_whether_fmax_ignores_nans() {
    let whole = parts().concat();
    let read = |text: String| {
        let (programs, found) = grammar::read(&text);
        let is_warned = found.iter().any(|it| it.code.text() == "lossy-max");
        let text = programs.iter().map(grammar::print).collect::<String>();
        (["fmax", "max"].into_iter().find(|it| text.contains(&format!("= {it}("))), is_warned)
    };
    let new = whole.replace(
        "= relu(T3_l_float[ideviceIdx.x16{2}, iS5{i0}, iS17{2}] (DeviceMesh{0 1}))",
        "= fmax(T3_l_float[ideviceIdx.x16{2}, iS5{i0}, iS17{2}] (DeviceMesh{0 1}), double(0))",
    );
    assert_ne!(new, whole);
    assert_eq!(read(new.clone()), (Some("fmax"), false));
    assert_eq!(read(new.replace("logical domain:", "logical domain :")), (Some("max"), true));
    assert_eq!(read(new.replace("logical domain:", "leaf domain:")), (Some("max"), false));
}

#[test]
fn a_fusion_has_the_prefix_of_its_container() {
    let whole = parts().concat();
    let print = |text: &str| {
        let (programs, found) = grammar::read(text);
        assert!(found.iter().any(|it| it.code.text() == "lossy-kernel"), "{text:.200}: {found:?}");
        programs.iter().map(grammar::print).collect::<Vec<_>>()
    };
    let with = |prefix: &dyn Fn(usize) -> String| {
        let lines = whole.lines().enumerate().map(|(at, line)| format!("{}{line}\n", prefix(at)));
        lines.collect::<String>()
    };
    let own = print(&whole);
    for prefix in ["worker-0 | ", "> ", "// ", "pod/trainer-0 "] {
        assert_eq!(print(&with(&|_| prefix.to_owned())), own, "{prefix}");
    }
    assert_eq!(print(&with(&|at| format!("2025-11-25T03:00:{:02}.123Z ", at % 60))), own);
    assert_eq!(print(&with(&|at| format!("I1125 03:00:00.{:06} 1234 x.cpp:7] ", 120_000 + at))), own);
    let logger = whole.replace("Segmented_Fusion Dump", "INFO x: Segmented_Fusion Dump");
    assert_eq!(print(&logger.replace("%HostIrContainer {", "INFO x: %HostIrContainer {")), own);
    // Another process prints its fusion between the lines, and no container.
    let [complete, segments, container] = parts();
    let both = format!("{complete}{segments}");
    let both = both.lines().map(|it| format!("worker-0 | {it}\nworker-1 | {}\n", it.replace("relu", "neg")));
    let container = container.lines().map(|it| format!("worker-0 | {it}\n"));
    assert_eq!(print(&both.chain(container).collect::<String>()), own);
}
