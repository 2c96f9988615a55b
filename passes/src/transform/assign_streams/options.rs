//! The options of assign-streams, and the style that they select for a group of loops.

use grammar::{Diagnostic, ExprId, For, Program, Span, StmtId};
use hir_ir::build;

use super::{
    communications::can_leave_communications,
    fork_join::{CommStream, ForkJoinStyle},
};
use crate::{analysis::memory_effects::MemoryEffects, pass::Arguments};

/// The parsed options.
pub(super) struct StreamOptions {
    count: StreamCount,
    /// Whether the fork is in the loop; `None` for the default.
    fork_inline: Option<bool>,
    /// Whether the join is in the loop; `None` for the default.
    join_inline: Option<bool>,
    inter_stream: bool,
    communications: CommStream,
}

/// The number of streams.
#[derive(Clone, Copy)]
enum StreamCount {
    PerIteration,
    Number(ExprId),
    Auto,
}

impl StreamOptions {
    pub(super) fn of(program: &mut Program, arguments: &Arguments) -> Result<Self, Diagnostic> {
        let communications = match arguments.text("communications") {
            Some("shared-stream") => CommStream::Shared,
            Some("auto") => CommStream::Auto,
            Some(_) | None => CommStream::Inline,
        };
        let count = match arguments.text("count") {
            None | Some("per-iteration") => StreamCount::PerIteration,
            Some("auto") if communications == CommStream::Inline => {
                let label = "`communications=inline` gives them none";
                let message = "`count=auto` needs communications that may get a stream of their own";
                return Err(arguments
                    .error("count", message, label)
                    .help("set `communications=auto` or `communications=shared-stream`"));
            }
            Some("auto") => StreamCount::Auto,
            Some("numberOfStreams") => {
                let symbol = program.intern_symbol(None, "numberOfStreams", Span::default());
                StreamCount::Number(build::symbol(program, symbol))
            }
            Some(text) => match text.parse::<i64>() {
                Ok(count) if count > 0 => StreamCount::Number(program.intern_int(count)),
                Ok(_) | Err(_) => {
                    let message = format!("`{text}` is not a number of streams");
                    let label = "expected `per-iteration`, `numberOfStreams`, `auto` or a number above 0";
                    return Err(arguments.error("count", message, label));
                }
            },
        };
        let inline = |name: &str| arguments.text(name).map(|it| it == "inline");
        let (fork_inline, join_inline) = (inline("fork"), inline("join"));
        let inter_stream = arguments.flag("inter-stream-sync");
        if inter_stream && communications != CommStream::Inline {
            let message = "`inter-stream-sync` needs communications on the streams of the iterations";
            let label = "the communications may get a stream of their own";
            let fault = arguments.error("communications", message, label);
            return Err(fault.help("set `communications=inline`, or leave out `inter-stream-sync`"));
        }
        Ok(Self { count, fork_inline, join_inline, inter_stream, communications })
    }

    /// Returns whether loops can share a fork and a join.
    pub(super) fn can_share_fork_and_join(&self) -> bool {
        let is_per_iteration = matches!(self.count, StreamCount::PerIteration);
        let (fork_inline, join_inline) = self.placement(is_per_iteration, !is_per_iteration);
        !(fork_inline && join_inline || self.inter_stream)
    }

    /// Returns whether the fork and the join are in the loop.
    fn placement(&self, fork_default: bool, join_default: bool) -> (bool, bool) {
        (self.fork_inline.unwrap_or(fork_default), self.join_inline.unwrap_or(join_default))
    }

    /// Returns whether an iteration waits for the communications of the one before it.
    pub(super) fn orders_iterations(&self) -> bool {
        self.inter_stream
    }

    /// Returns the style for loops that share a fork and a join. If ranks could start their communications in different orders, one
    /// stream orders them.
    pub(super) fn style_for(
        &self,
        program: &mut Program,
        storage: &MemoryEffects,
        loops: &[(StmtId, For)],
        conflict: bool,
    ) -> ForkJoinStyle {
        let communications = if conflict { CommStream::Ordered } else { self.communications };
        let style = |count, (fork_inline, join_inline), communications| ForkJoinStyle {
            count,
            fork_inline,
            join_inline,
            inter_stream: self.inter_stream,
            communications,
        };
        match self.count {
            StreamCount::PerIteration => style(None, self.placement(true, false), communications),
            StreamCount::Number(count) => style(Some(count), self.placement(false, true), communications),
            StreamCount::Auto => {
                if loops.iter().all(|(_, it)| can_leave_communications(program, storage, it.body)) {
                    let one = program.intern_int(1);
                    let shared = if conflict { communications } else { CommStream::Shared };
                    style(Some(one), self.placement(false, false), shared)
                } else {
                    let two = program.intern_int(2);
                    style(Some(two), self.placement(false, true), communications)
                }
            }
        }
    }
}
