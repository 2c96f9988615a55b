//! Waits for the dumps of a job, beside which hir runs.

use std::{fs, path::PathBuf, thread, time::Duration};

use crate::{files, report::report};

/// The number of pauses without a change behind which dumps count as complete, although some ranks have none.
const PATIENCE: u32 = 60;

/// Returns as soon as there are dumps of all ranks that can be read, or some that have not changed for `PATIENCE` pauses.
pub fn wait(paths: &[PathBuf], pause: Duration) {
    let (mut before, mut same) = (Vec::new(), 0);
    loop {
        let now = files_of(paths);
        same = if now == before { same + 1 } else { 0 };
        if same > 0 && !now.is_empty() {
            // A file that is not written to its end cannot be read.
            let dumps = (same == 1 || same >= PATIENCE).then(|| files::load(paths).ok()).flatten();
            let is_whole = dumps.is_some_and(|it| {
                let found = report(&it);
                same >= PATIENCE || it.skipped.is_empty() && found.printed == 0 && found.dumps == found.world
            });
            if is_whole {
                return;
            }
        }
        before = now;
        thread::sleep(pause);
    }
}

/// Returns the files of some paths and of their folders, with their sizes.
fn files_of(paths: &[PathBuf]) -> Vec<(PathBuf, u64)> {
    let inner = |it: &PathBuf| fs::read_dir(it).into_iter().flatten().flatten().map(|it| it.path()).collect();
    let below: Vec<PathBuf> = paths.iter().flat_map(inner as fn(&PathBuf) -> Vec<PathBuf>).collect();
    let deeper: Vec<PathBuf> = below.iter().flat_map(inner as fn(&PathBuf) -> Vec<PathBuf>).collect();
    let all = paths.iter().chain(&below).chain(&deeper);
    let size = |it: &PathBuf| fs::metadata(it).ok().filter(|it| it.is_file()).map(|it| it.len());
    let mut found: Vec<(PathBuf, u64)> = all.filter_map(|it| Some((it.clone(), size(it)?))).collect();
    found.sort();
    found
}
