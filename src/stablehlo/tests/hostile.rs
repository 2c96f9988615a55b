//! Texts that no program writes: no text ends in a panic, every error has a place in the text, and the time is linear.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path};

use grammar::codes::Code;
use proptest::prelude::*;

/// Returns the modules of the cases.
fn modules() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/stablehlo");
    let entries = fs::read_dir(folder).expect("the cases").map(|it| it.expect("an entry").path());
    let mut paths: Vec<_> = entries.filter(|it| it.extension().is_some_and(|it| it == "mlir")).collect();
    paths.sort();
    paths.iter().map(|it| fs::read_to_string(it).expect("a case")).collect()
}

/// Reads a text, and checks the places of its diagnostics.
fn read(text: &str) -> Vec<Code> {
    let (_, diagnostics) = hir_stablehlo::read(text);
    for it in &diagnostics {
        assert!(it.labels.iter().all(|(span, _)| span.end as usize <= text.len()), "{it:?}");
        assert!(it.help.is_some() || !it.labels[0].1.is_empty(), "{it:?}");
    }
    diagnostics.iter().map(|it| it.code).collect()
}

/// Returns whether a text is read as a module, by the text alone.
fn is_module(text: &str) -> bool {
    (hir_stablehlo::READER.accepts)("", text)
}

fn module(body: &str) -> String {
    format!(
        "module {{\n  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {{\n{body}\n  }}\n}}\n"
    )
}

#[test]
fn the_cases_are_modules() {
    let all = modules();
    assert!(all.len() > 10);
    assert!(all.iter().all(|it| is_module(it)));
    assert!(!is_module("# a comment\n%HostIrContainer { () -> () :\n}"));
}

#[test]
fn bytecode_is_named() {
    let text = grammar::decode(b"ML\xefR\x0dStableHLO_v1.13.0\0\x01\x1b\xff".to_vec());
    assert!(is_module(&text));
    assert_eq!(read(&text), [Code::BadToken]);
    let (_, diagnostics) = hir_stablehlo::read(&text);
    assert!(diagnostics[0].message.contains("bytecode"), "{diagnostics:?}");
}

#[test]
fn depth_is_limited() {
    for open in ["(", "[", "{", "dense<", "#a<", "({"] {
        let text = module(&format!("    %0 = stablehlo.constant {}", open.repeat(100_000)));
        assert!(!read(&text).is_empty());
    }
    let regions = "stablehlo.x ({".repeat(100_000);
    assert!(!read(&module(&regions)).is_empty());
}

#[test]
fn shapes_are_limited() {
    for shape in [
        "9223372036854775807x",
        "99999999999999999999x",
        "1000000x1000000x1000000x",
        "0x9223372036854775807x",
        "?x",
    ] {
        let text = module(&format!(
            "    %0 = stablehlo.iota dim = 0 : tensor<{shape}f32>\n    return %arg0 : tensor<4xf32>"
        ));
        assert_eq!(read(&text), [Code::UnsupportedOperation], "{shape}");
    }
}

#[test]
fn calls_that_double_are_limited() {
    let mut text = "module {\n  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = call @f0(%arg0) : (tensor<4xf32>) -> tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n".to_owned();
    for number in 0..60 {
        let call = |from: &str| format!("call @f{}(%{from}) : (tensor<4xf32>) -> tensor<4xf32>", number + 1);
        text += &format!(
            "  func.func private @f{number}(%arg0: tensor<4xf32>) -> tensor<4xf32> {{\n    %0 = {}\n    %1 = {}\n    return %1 : tensor<4xf32>\n  }}\n",
            call("arg0"),
            call("0")
        );
    }
    text += "  func.func private @f60(%arg0: tensor<4xf32>) -> tensor<4xf32> {\n    return %arg0 : tensor<4xf32>\n  }\n}\n";
    assert_eq!(read(&text), [Code::UnboundedLoop]);
}

#[test]
fn a_function_that_calls_itself_is_an_error() {
    let text = module(
        "    %0 = call @main(%arg0) : (tensor<4xf32>) -> tensor<4xf32>\n    return %0 : tensor<4xf32>",
    );
    assert_eq!(read(&text), [Code::BadModule]);
}

#[test]
fn an_endless_loop_is_limited() {
    let text = module(
        "    %c = stablehlo.constant dense<true> : tensor<i1>\n    %0 = stablehlo.while(%iterArg = %arg0) : tensor<4xf32>\n    cond {\n      stablehlo.return %c : tensor<i1>\n    } do {\n      stablehlo.return %iterArg : tensor<4xf32>\n    }\n    return %0 : tensor<4xf32>",
    );
    assert_eq!(read(&text), [Code::UnboundedLoop]);
}

#[test]
fn truncated_modules_are_errors() {
    for text in modules() {
        // Behind the last function, a part is a module.
        let end = text.rfind("return").expect("a terminator");
        for cut in (0..end).step_by(97).filter(|it| text.is_char_boundary(*it)) {
            let part = &text[..cut];
            if is_module(part) {
                assert!(!read(part).is_empty(), "{part}");
            }
        }
    }
}

/// An edit of a text: what replaces a word.
fn replacement() -> impl Strategy<Value = String> {
    let words = [
        "",
        "%0",
        "%arg0",
        "%9",
        "@main",
        "@mesh",
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        "[",
        "]",
        ":",
        ",",
        "=",
        "->",
        "x",
        "-1",
        "0",
        "1",
        "3",
        "9223372036854775807",
        "-9223372036854775808",
        "tensor<f32>",
        "tensor<0xf32>",
        "tensor<4x4xi32>",
        "tensor<1xi1>",
        "dense<1>",
        "dense<[[0, 1]]>",
        "stablehlo.add",
        "stablehlo.reshape",
        "stablehlo.dot_general",
        "\"tp\"",
        "{?}",
        "return",
    ];
    prop::sample::select(words.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_edit_ends_in_a_panic(
        seed in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 1..4),
    ) {
        let all = modules();
        let text = seed.get(&all);
        let is_word = |it: char| it.is_ascii_alphanumeric() || "_.%@#\"".contains(it);
        let mut parts: Vec<String> = text.split_inclusive(|it: char| !is_word(it)).map(str::to_owned).collect();
        for (at, new) in edits {
            let at = at.index(parts.len());
            parts[at] = new;
        }
        read(&parts.concat());
    }
}
