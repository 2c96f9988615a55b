//! Checks that no option of a tool writes to a file that another option writes or reads.

use grammar::InvalidOption;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use hir_process::atomic_file;

/// The file of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionFile<'a> {
    /// The option, such as `-J`, or what else the file is.
    pub option: &'static str,
    /// The file.
    pub path: &'a Path,
}

/// The options whose file is a program; a certificate is one with comments. A program in place of the file of another option is a slip,
/// such as `-J program.hir`.
const WRITE_PROGRAMS: [&str; 3] = ["-o", "--crash-reproducer", "--certificate"];

/// Checks that each of several options has its own file, and that none is one of the `inputs`: the program or its
/// reference.
///
/// # Errors
/// A message if one option would replace what another one writes or reads.
pub fn check_option_files(files: &[OptionFile<'_>], inputs: &[OptionFile<'_>]) -> Result<(), InvalidOption> {
    let mut options: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for OptionFile { option, path } in files {
        let Some(destination) = exclusive_destination(path) else { continue };
        if let Some(input) = inputs.iter().find(|it| atomic_file::destination(it.path) == destination) {
            let (input, path) = (input.option, path.display());
            return Err(format!("`{option}` would overwrite {input}, `{path}`: use another file").into());
        }
        if !WRITE_PROGRAMS.contains(option) && destination.extension().is_some_and(|it| it == "hir") {
            let path = path.display();
            let why = if destination.exists() {
                format!("`{option} FILE` would overwrite a program, `{path}`: use another file")
            } else {
                format!(
                    "`{option} FILE` writes no program, and `{path}` has the extension of one: use another"
                )
            };
            return Err(why.into());
        }
        if let Some(other) = options.insert(destination, option) {
            return Err(same_file(other, option, path));
        }
    }
    Ok(())
}

/// Returns the error of two options with the same file.
pub(super) fn same_file(first: &str, second: &str, path: &Path) -> InvalidOption {
    let path = path.display();
    format!("`{first}` and `{second}` name the same file, `{path}`: use another file for one of them").into()
}

/// Returns the file that a path names, or `None` for standard output and devices, such as /dev/null, to which several
/// results can be written.
pub(super) fn exclusive_destination(path: &Path) -> Option<PathBuf> {
    let destination = atomic_file::destination(path);
    let is_shared = path == Path::new("-") || fs::metadata(&destination).is_ok_and(|it| !it.is_file());
    (!is_shared).then_some(destination)
}
