//! Where a call is in the program: the first frame outside PyTorch and installed packages.

use crate::record::{Frame, Record, Records, StackId};

/// A place of the program that issues a call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// The file, as Python names it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// Whether autograd issued the call: the line is then that of `backward()`.
    pub autograd: bool,
}

/// Returns the place of a record's call, if its dump has stacks.
pub fn site(records: &Records, record: &Record) -> Option<Site> {
    let frame = records.stack(record.stack).frames[named_frame(records, record.stack)?];
    Some(Site {
        file: records.name(frame.file).to_owned(),
        line: frame.line,
        function: records.name(frame.function).to_owned(),
        autograd: is_autograd(records, record.stack),
    })
}

/// Returns the position of the frame that is named as the place of a call.
fn named_frame(records: &Records, stack: StackId) -> Option<usize> {
    let own = records.stack(stack).frames.iter().position(|it| is_own(records, it));
    own.or_else(|| program_frame(records, stack))
}

/// Whether autograd issues the calls of a stack.
pub(crate) fn is_autograd(records: &Records, stack: StackId) -> bool {
    let inner = &records.stack(stack).frames[..named_frame(records, stack).unwrap_or(0)];
    inner.iter().any(|it| records.name(it.file).contains("torch/autograd/"))
}

/// Returns the callers of a record's call, innermost first: the frames outside PyTorch and the standard library, as
/// `step (train.py:14)`. Those of one installed package that follow each other are one, as `3 frames of deepspeed`.
pub fn callers(records: &Records, record: &Record) -> Vec<String> {
    let frames: Vec<&Frame> =
        records.stack(record.stack).frames.iter().filter(|it| is_program(records, it)).collect();
    let has_own = frames.iter().any(|it| is_own(records, it));
    let package = |it: &Frame| package(records.name(it.file)).filter(|_| has_own);
    let text = |of: &[&Frame]| match package(of[0]) {
        Some(name) => format!("{} of {name}", grammar::count_text(of.len(), "frame")),
        None => format!("{} ({}:{})", records.name(of[0].function), records.name(of[0].file), of[0].line),
    };
    frames.chunk_by(|a, b| package(a).is_some() && package(a) == package(b)).map(text).collect()
}

/// Returns the name of the installed package that a file is in.
fn package(file: &str) -> Option<&str> {
    let (_, inner) = file.split_once("site-packages/").or_else(|| file.split_once("dist-packages/"))?;
    inner.split(['/', '.']).next()
}

/// Whether a frame is of the program, and of no installed package.
fn is_own(records: &Records, frame: &Frame) -> bool {
    is_own_file(records.name(frame.file))
}

/// Whether a file is of the program, and of no installed package.
pub(crate) fn is_own_file(file: &str) -> bool {
    is_program_file(file) && package(file).is_none()
}

/// Returns the position of the first frame outside PyTorch; of the outermost frame if there is none.
pub(crate) fn program_frame(records: &Records, stack: StackId) -> Option<usize> {
    let frames = &records.stack(stack).frames;
    let found = frames.iter().position(|it| is_program(records, it));
    found.or_else(|| frames.len().checked_sub(1))
}

fn is_program(records: &Records, frame: &Frame) -> bool {
    is_program_file(records.name(frame.file))
}

fn is_program_file(file: &str) -> bool {
    let in_torch = file.starts_with("torch/")
        || file.contains("-packages/torch/")
        || ["distributed/", "autograd/", "nn/", "_", "utils/", "optim/", "fx/", "cuda/", "amp/", "profiler/"]
            .iter()
            .any(|it| file.contains(&format!("/torch/{it}")));
    let in_library = file.starts_with("<frozen")
        || file.contains("/lib/python3.") && !file.contains("-packages/")
        || file == "??"
        || [".cpp", ".h", ".c", ".so", ".cc"].iter().any(|it| file.ends_with(it));
    !file.is_empty() && !in_torch && !in_library
}

/// Returns the name of the Python function that the program called, such as `all_gather_into_tensor`, or else the name in the
/// record.
pub(crate) fn call_name<'r>(records: &'r Records, record: &Record) -> &'r str {
    let signature = records.signature(record.signature);
    // `send` calls `isend`: the outermost function is the one that the program names.
    let frames = records.stack(record.stack).frames.iter();
    let in_torch = frames.take_while(|it| !is_program(records, it));
    let function = in_torch
        .filter(|it| records.name(it.file).ends_with("torch/distributed/distributed_c10d.py"))
        .filter(|it| {
            !matches!(records.name(it.function), "wrapper" | "")
                && !records.name(it.function).starts_with('_')
        })
        .last();
    match function.map(|it| records.name(it.function)) {
        Some(name) => name,
        None => signature.name.trim_start_matches('_'),
    }
}
