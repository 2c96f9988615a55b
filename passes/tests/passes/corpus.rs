//! Tests properties of passes on all samples and cases: results read back, and a second run changes nothing.

use super::{corpus, transform};

#[test]
fn what_is_left_reads_back_and_stays() {
    let texts = corpus();
    for pass in ["common-subexpression", "select-algorithms"] {
        let mut changed = 0;
        for (path, text) in &texts {
            let once = transform(pass, text);
            assert!(once.is_ok(), "{pass}, {path}: {once:?}");
            let Ok(once) = once else { continue };
            changed += usize::from(transform("", text).as_ref() != Ok(&once));
            assert_eq!(transform(pass, &once).as_ref(), Ok(&once), "{pass}, {path}, twice");
        }
        // Most programs have nothing for the pass.
        assert!((1..texts.len() / 2).contains(&changed), "{pass}: {changed} of {}", texts.len());
    }
}

/// Returns whether a pass refuses the program, or finds that it is invalid.
fn is_refusal(why: &str) -> bool {
    why.contains("cannot rewrite") || why.contains("the program is invalid")
}

#[test]
fn what_is_unrolled_reads_back() {
    let mut unrolled = 0;
    for (path, text) in corpus() {
        match transform("unroll", &text) {
            Ok(once) => {
                unrolled += usize::from(transform("", &text).as_ref() != Ok(&once));
                assert_eq!(transform("unroll", &once).as_ref(), Ok(&once), "{path}, twice");
            }
            Err(why) => assert!(is_refusal(&why), "{path}: {why}"),
        }
    }
    assert!(unrolled > 10, "{unrolled}");
}

#[test]
fn definitions_are_inlined_only_where_there_are_some() {
    for (path, text) in corpus().iter().filter(|(_, text)| !text.contains("Index definitions:")) {
        assert_eq!(transform("inline-definitions", text), transform("", text), "{path}");
    }
}

#[test]
fn what_is_left_for_a_rank_reads_back() {
    for (path, text) in corpus() {
        for rank in 0..4 {
            let pass = format!("specialize-rank{{rank={rank}}}");
            match transform(&pass, &text) {
                Ok(once) => {
                    // The options in the header mention the rank.
                    let container = once.lines().filter(|line| !line.starts_with("%options"));
                    let container = container.take_while(|line| !line.starts_with("HostUnit"));
                    let container: String = container.flat_map(|line| [line, "\n"]).collect();
                    assert!(!container.contains("rank ") && !container.contains(" rank"), "{path}: {once}");
                    let twice = transform(&pass, &once);
                    // The remaining program may not mention a mesh that contains the rank.
                    let is_refused = twice.as_ref().is_err_and(|why| why.contains("no mesh of the program"));
                    assert!(is_refused || twice.as_ref() == Ok(&once), "{path}, twice: {twice:?}");
                }
                Err(why) => {
                    assert!(is_refusal(&why) || why.contains("no mesh of the program"), "{path}: {why}");
                }
            }
        }
    }
}
