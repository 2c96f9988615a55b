//! Passes over whole programs leave what they have nothing to do with, and text that reads back.

use super::{corpus, transform};

#[test]
fn what_is_left_reads_back_and_stays() {
    for pass in [
        "common-subexpression",
        "merge-stream-loops",
        "merge-stream-loops{forks}",
        "fuse-epilogue",
        "select-allreduce",
    ] {
        let mut changed = 0;
        for (path, text) in corpus() {
            let once = transform(pass, &text);
            assert!(once.is_ok(), "{pass}, {path}: {once:?}");
            let Ok(once) = once else { continue };
            changed += usize::from(transform("", &text).as_ref() != Ok(&once));
            assert_eq!(transform(pass, &once).as_ref(), Ok(&once), "{pass}, {path}, twice");
        }
        assert!((1..100).contains(&changed), "{pass}: {changed}");
    }
}
