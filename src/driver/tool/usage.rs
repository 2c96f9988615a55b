//! The text of an error in a command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use grammar::list_text;

use crate::auto;

/// Options whose value may be omitted, so that it has to follow `=`.
pub const OPTIONAL_VALUE: &str =
    "--check --fix --print-changed --print-ir-after --print-ir-before --remarks --verify-each";

/// The long flags of each tool, without those that all tools for programs have, in alphabetical order.
pub const FLAGS_BY_TOOL: [(&str, &str); 4] = [
    (
        "hir-opt",
        "bisect certificate check check-model communication crash-reproducer dump-pass-pipeline explain explain-assumptions fix \
         list-ops list-passes machine nccl overlap p2p print print-changed print-hb print-ir-after \
         print-ir-after-all print-ir-after-change print-ir-after-failure print-ir-before print-ir-before-all \
         print-ir-tree-dir print-plan profile rank remarks run-reproducer split-input-file statistics storage \
         timeline timing verify-diagnostics verify-each verify-roundtrip with witness",
    ),
    (
        "hir-run",
        "atol batch certificate check check-model container cudagraph device expect input inputs iters json \
         machine memory output overlap profile-host program reference remarks rtol schedule seed step-by-step \
         stress timeline timeout tune tune-passes tuning warmup witness",
    ),
    ("hir reduce", "max-tests oracle print reference schedule"),
    ("hir hang", "source timeline watch"),
];

/// Returns the error in a command line as one line. `arguments` are those of the command line.
pub fn error_text(error: &clap::Error, arguments: &[String]) -> String {
    if let Some(text) = meant_by(error, arguments) {
        return text;
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    // That a value may look like a flag helps only where the tool takes such values.
    let lines = lines.filter(|line| !line.starts_with("tip: to pass '-"));
    let lines: Vec<&str> = lines.map(|line| line.trim_start_matches("error: ")).collect();
    lines.join("; ").replace(":; ", ": ")
}

/// Returns the tools that have a flag, such as `hir-opt and hir-run`; `None` if no tool, or every tool, has it.
pub(super) fn tools_with(flag: &str) -> Option<String> {
    let tools = FLAGS_BY_TOOL.iter().filter(|it| it.1.split(' ').any(|it| it == flag)).map(|it| it.0);
    let tools: Vec<&str> = tools.collect();
    (!tools.is_empty()).then(|| list_text(tools.iter(), 4, "and"))
}

/// Returns what an argument that the tool does not have may mean: a pass or a pipeline that is given like a flag, a
/// part of a pipeline that a blank separates from it, or a flag of another tool.
fn meant_by(error: &clap::Error, arguments: &[String]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    // `--check race`: the value of these options follows `=`, because it may be omitted.
    let mut pairs = arguments.iter().zip(arguments.iter().skip(1));
    let separate = |(flag, value): &(&String, &String)| {
        OPTIONAL_VALUE.split(' ').any(|it| it == *flag) && *value == argument && !value.starts_with('-')
    };
    if let Some((flag, _)) = pairs.find(separate) {
        return Some(format!("unexpected argument '{argument}' found; write `{flag}={argument}`"));
    }
    let word = argument.trim_start_matches('-');
    let word = word.split(['=', '{']).next().unwrap_or(word).trim_end_matches(',');
    let is_flag = argument.starts_with('-');
    let name = |it: &&str| it.trim_start_matches('@') == word.trim_start_matches('@');
    let all = auto::catalog();
    let passes = all.passes.iter().map(|it| it.name);
    let known = all.pipelines.iter().map(|it| it.name).chain(passes).find(name);
    // The error names only the beginning of `-passes=…`.
    let single = arguments.iter().find(|it| {
        let flag = it.strip_prefix('-').and_then(|it| it.split('=').next()).unwrap_or("");
        argument.len() == 2 && flag.len() > 2 && !flag.starts_with('-') && argument.get(1..) == flag.get(..1)
    });
    if let Some(single) = single {
        return Some(format!("unexpected argument '{single}' found; did you mean `-{single}`?"));
    }
    let meant = match known {
        Some(pass) if is_flag => format!("did you mean `--passes {pass}`?"),
        Some(pass) => {
            format!(
                "`{pass}` is a pass: write the passes without blanks between them, as in `--passes a,b{{x=1}}`"
            )
        }
        None if argument.starts_with('{') => {
            "write the options of a pass without a blank before them, and in quotes: `--passes 'a{x=1}'`"
                .to_owned()
        }
        None => {
            format!("`--{word}` is a flag of {}", tools_with(word)?)
        }
    };
    Some(format!("unexpected argument '{argument}' found; {meant}"))
}
