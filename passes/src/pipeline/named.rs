//! The options of a named pipeline, which are those of its passes: `overlap.count=4,assign-streams.count=2`.

use grammar::{Code, Diagnostic};

use super::{PassCall, TextSlice, find_option, read_options, set_option, suggest};
use crate::pass::Pipeline;

/// Reads the options of a pipeline into its passes. A pass that the pipeline has twice gets them in both places.
///
/// # Errors
/// An option names no pass of the pipeline, or the pass does not have it or does not accept the value.
pub(super) fn read_named_options(
    pipeline: &Pipeline,
    options: TextSlice<'_>,
    calls: &mut [PassCall],
) -> Result<(), Diagnostic> {
    let known = calls.to_vec();
    let find = |name: TextSlice<'_>| {
        let Some(dot) = name.text.find('.').filter(|it| *it > 0) else {
            return Err(option_without_pass(pipeline, &known, name));
        };
        let pass = name.part(0, dot).trim();
        match known.iter().find(|it| it.pass.name == pass.text) {
            Some(call) => find_option(call.pass, name.part(dot + 1, name.text.len()).trim()),
            None => Err(unknown_pass_of(pipeline, &known, pass)),
        }
    };
    read_options(options, find, |option, value, text| {
        let mut named = calls.iter_mut().filter(|it| it.pass.name == option.pass.name);
        named.try_for_each(|it| set_option(option, value, text, &mut it.arguments))
    })
}

/// Returns the names of the passes of a pipeline, each once.
fn pass_names(calls: &[PassCall]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for call in calls {
        if !names.contains(&call.pass.name) {
            names.push(call.pass.name);
        }
    }
    names
}

fn unknown_pass_of(pipeline: &Pipeline, calls: &[PassCall], name: TextSlice<'_>) -> Diagnostic {
    let message = format!("the pipeline `{}` has no pass `{}`", pipeline.name, name.text);
    let names = pass_names(calls);
    let label = format!("expected one of {}", names.join(", "));
    suggest(Diagnostic::new(Code::BadOption, name.span(), message, label), name.text, names.into_iter())
}

/// Returns the error for an option of a pipeline that does not name its pass.
fn option_without_pass(pipeline: &Pipeline, calls: &[PassCall], name: TextSlice<'_>) -> Diagnostic {
    let message = if name.text.is_empty() {
        "missing option".to_owned()
    } else {
        format!("`{}` does not name a pass of `{}`", name.text, pipeline.name)
    };
    let has_option = |call: &PassCall| call.pass.options.iter().any(|it| it.name == name.text);
    let mut having: Vec<String> = calls
        .iter()
        .filter(|it| has_option(it))
        .map(|it| format!("`{}.{}`", it.pass.name, name.text))
        .collect();
    having.dedup();
    let diagnostic = Diagnostic::new(Code::BadOption, name.span(), message, "expected `PASS.OPTION=VALUE`");
    if having.is_empty() {
        diagnostic.help(format!("the passes are {}", pass_names(calls).join(", ")))
    } else {
        diagnostic.help(format!("write {}", having.join(" or ")))
    }
}
