//! The options of a named pipeline, which are those of its passes: `overlap.count=4,assign-streams.count=2`.

use grammar::{codes::Code, diagnostic::Diagnostic};

use super::{PassCall, TextSlice, set_option, split, suggest, unknown_option};
use crate::pass::{OptionKind, OptionSpec, Pass, Pipeline};

/// An option of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PassOption {
    pass: &'static str,
    option: &'static str,
}

/// Reads the options of a pipeline into its passes. A pass that the pipeline has twice gets them in both places.
///
/// # Errors
/// An option names no pass of the pipeline, or the pass does not have it or does not accept the value.
pub(super) fn read_named_options(
    pipeline: &Pipeline,
    options: TextSlice<'_>,
    calls: &mut [PassCall],
) -> Result<(), Diagnostic> {
    if options.text.trim().is_empty() {
        return Ok(());
    }
    let mut given: Vec<PassOption> = Vec::new();
    // The last option if its value is a list, with the offset of the value.
    let mut list: Option<(&'static Pass, &'static OptionSpec, usize)> = None;
    for item in split(options)? {
        let (name, value) = item.name_and_value();
        let dot = name.text.find('.').filter(|it| *it > 0);
        let named = dot.map(|dot| (name.part(0, dot).trim(), name.part(dot + 1, name.text.len()).trim()));
        let pass = named.and_then(|(pass, _)| calls.iter().map(|it| it.pass).find(|it| it.name == pass.text));
        let (pass, spec, value, text) = match (pass, named, list) {
            (None, _, Some((pass, spec, start))) if value.is_none() && !item.text.is_empty() => {
                let value = options.part(start - options.start, item.start + item.text.len() - options.start);
                (pass, spec, value, value.text)
            }
            (Some(pass), Some((_, option)), _) => {
                let Some(spec) = pass.options.iter().find(|it| it.name == option.text) else {
                    return Err(unknown_option(pass, option));
                };
                let this = PassOption { pass: pass.name, option: spec.name };
                if given.contains(&this) {
                    let message = format!("the option `{}.{}` is given twice", this.pass, this.option);
                    return Err(Diagnostic::new(Code::BadOption, option.span(), message, "already given"));
                }
                given.push(this);
                list = value.filter(|_| spec.kind == OptionKind::Counts).map(|it| (pass, spec, it.start));
                (pass, spec, value.unwrap_or(option), value.map_or("true", |it| it.text))
            }
            (None, Some((pass, _)), _) => return Err(unknown_pass_of(pipeline, calls, pass)),
            (_, None, _) => return Err(option_without_pass(pipeline, calls, name)),
        };
        for call in calls.iter_mut().filter(|it| it.pass.name == pass.name) {
            set_option(pass, spec, value, text, &mut call.arguments)?;
        }
    }
    Ok(())
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
    let message = match name.text.is_empty() {
        true => "missing option".to_owned(),
        false => format!("`{}` does not name a pass of `{}`", name.text, pipeline.name),
    };
    let has_option = |call: &PassCall| call.pass.options.iter().any(|it| it.name == name.text);
    let mut having: Vec<String> = calls
        .iter()
        .filter(|it| has_option(it))
        .map(|it| format!("`{}.{}`", it.pass.name, name.text))
        .collect();
    having.dedup();
    let it = Diagnostic::new(Code::BadOption, name.span(), message, "expected `PASS.OPTION=VALUE`");
    match having.is_empty() {
        true => it.help(format!("the passes are {}", pass_names(calls).join(", "))),
        false => it.help(format!("write {}", having.join(" or "))),
    }
}
