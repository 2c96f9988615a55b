//! Fuzzes sequences of edits of a text in an editor: the state after them is that of the text when it is opened, and every request has an answer.

#![no_main]

libfuzzer_sys::fuzz_target!(|session: &str| {
    if let Err(fault) = hir_lsp::follows_edits(session) {
        panic!("{fault}");
    }
});
