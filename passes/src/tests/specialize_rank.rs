//! What specialize-rank leaves of programs for each of their ranks.

use super::{corpus, transform};

#[test]
fn every_program_reads_back_for_every_rank() {
    for (path, text) in corpus() {
        for rank in 0..4 {
            let pass = format!("specialize-rank{{rank={rank}}}");
            match transform(&pass, &text) {
                Ok(once) => {
                    // The header's options name the rank.
                    let container = once.lines().filter(|line| !line.starts_with("%options"));
                    let container = container.take_while(|line| !line.starts_with("HostUnit"));
                    let container: String = container.flat_map(|line| [line, "\n"]).collect();
                    assert!(!container.contains("rank ") && !container.contains(" rank"), "{path}: {once}");
                    let twice = transform(&pass, &once);
                    // What is left may name no mesh of the rank.
                    let is_refused = twice.as_ref().is_err_and(|why| why.contains("no mesh of the program"));
                    assert!(is_refused || twice.as_ref() == Ok(&once), "{path}, twice: {twice:?}");
                }
                Err(why) => assert!(why.contains("cannot rewrite"), "{path}: {why}"),
            }
        }
    }
}
