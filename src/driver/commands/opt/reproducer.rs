//! Reads and writes reproducers of failures.

use std::sync::Arc;

use crate::{
    session::Session,
    tool::{
        self,
        reproducer::{self, ReproducerError},
    },
};
use clap::FromArgMatches;
use hir_process::exit::Exit;
use passes::PipelineError;

use super::{
    options::{EXAMPLES, Options, VerifyEach},
    pass_pipeline::pipeline_text,
    processor::Processor,
};

/// Parses the command line. With `--run-reproducer`, the flags of the reproducer come first, so that explicit
/// flags override them.
pub fn parse_options(session: &Arc<Session>) -> Result<Options, Exit> {
    let usage = |error| tool::report_usage_error(session, &error, |_| ());
    let given: Options = tool::help::parse_arguments(session, EXAMPLES).map_err(usage)?;
    let Some(path) = given.run_reproducer else { return Ok(given) };
    let screen = given.diagnostics.reporter(session);
    let flags = reproducer::flags(&session.files, &path).map_err(|fault| match fault {
        ReproducerError::Io(fault) => screen.fail_to_read(path.display(), &fault),
        ReproducerError::Invalid(reason) => screen.fail(Exit::Usage, reason),
    })?;
    // Passes of the command line replace those of the reproducer; other options do so by themselves.
    let flags = flags.into_iter().filter(|it| given.passes.is_empty() || !it.starts_with("--passes"));
    let tool = std::iter::once("hir-opt".into());
    let line = tool.chain(flags.map(Into::into)).chain(session.command_line.arguments.iter().cloned());
    let command = tool::help::command::<Options>(EXAMPLES).args_override_self(true);
    let matches = command.try_get_matches_from(line);
    let options = matches.and_then(|it| Options::from_arg_matches(&it)).map_err(usage)?;
    Ok(Options { file: path.display().to_string(), ..options })
}

impl Processor<'_> {
    /// Returns the flags that reproduce an internal error from the same text.
    pub fn reproducer_flags(&self) -> Vec<String> {
        let options = self.options;
        let mut flags = vec![format!("--verify-each={}", tool::value_name(options.verify_each))];
        let calls = &self.calls;
        flags.extend((!calls.is_empty()).then(|| format!("--passes={}", pipeline_text(calls))));
        let switches = [
            (options.verify_roundtrip, "--verify-roundtrip"),
            (options.print_plan, "--print-plan"),
            (options.print_hb, "--print-hb"),
            (options.bisect, "--bisect"),
        ];
        flags.extend(switches.into_iter().filter(|it| it.0).map(|it| it.1.to_owned()));
        flags.extend(options.check.map(|it| format!("--check={it}")));
        let needs_model = options.check.is_some() || options.verify_each == VerifyEach::Check;
        if needs_model {
            flags.extend(options.models.arguments());
        }
        flags.extend(options.world.ranks.map(|it| format!("--ranks={it}")));
        flags.extend(options.rank.map(|it| format!("--rank={it}")));
        flags.push(format!("--max-ranks={}", options.world.max_ranks));
        flags.push(format!("--memory-limit={}", options.world.memory_limit));
        flags.extend(options.set.iter().map(|it| format!("--set={it}")));
        flags
    }

    /// Writes the file of `--crash-reproducer` for the first failure.
    pub fn write_reproducer(
        &mut self,
        call: &str,
        failure: &PipelineError,
        verify: VerifyEach,
        before: &str,
    ) {
        let Some(path) = self.options.crash_reproducer.as_ref().filter(|_| !self.has_reproducer) else {
            return;
        };
        let mut flags =
            vec![format!("--passes={call}"), format!("--verify-each={}", tool::value_name(verify))];
        flags.extend(self.options.verify_roundtrip.then(|| "--verify-roundtrip".to_owned()));
        if verify == VerifyEach::Check {
            flags.extend(self.options.models.arguments());
        }
        flags.extend(self.options.world.ranks.map(|ranks| format!("--ranks={ranks}")));
        if self
            .screen
            .write_result(&reproducer::text("hir-opt", &failure.to_string(), &flags, before), Some(path))
            == Exit::Success
        {
            self.screen.session().crash_record.disable();
            self.has_reproducer = true;
            let (tool, path) = (self.screen.session().command_text(), path.display());
            self.screen.message(format!("`{tool} --run-reproducer {path}` reproduces this failure"));
        }
    }
}
