//! Fuzzes the reader of StableHLO modules: any text gives a program or errors with places in it.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = grammar::decode(bytes.to_vec());
    let (programs, diagnostics) = hir_stablehlo::read(&text);
    let is_placed = |it: &grammar::diagnostic::Diagnostic| it.span().end as usize <= text.len();
    assert!(diagnostics.iter().all(is_placed), "a place outside of the text");
    if !grammar::diagnostic::has_errors(&diagnostics) {
        programs.iter().for_each(|it| drop(grammar::verify(it)));
    }
});
