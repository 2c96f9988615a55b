//! Generates programs that grow along one axis, for benchmarks and for `tests/suite/scaling.rs`.

#![allow(dead_code, reason = "each user reads some of the fields")]

mod growth;
mod statements;
mod training_step;

use growth::*;
use statements::*;
use training_step::training_step;

/// An axis along which a program grows, and what is measured on it.
pub struct Axis {
    /// The name of what grows.
    pub name: &'static str,
    /// Returns the text of a program of the given size.
    pub program: fn(usize) -> String,
    /// A pipeline; empty if no pass is measured.
    pub passes: &'static str,
    /// The size at which tests measure the passes, and stages of the tools. They measure four times the size, too.
    pub size: usize,
    /// Whole tools.
    pub tools: &'static [Tool],
}

/// A run of a tool on the program of an axis.
pub struct Tool {
    /// The tool and its options.
    pub command: &'static [&'static str],
    /// The smallest size. Twice and four times the size are measured, too.
    pub size: usize,
    /// The expected exit code.
    pub exit: i32,
    /// What the tool prints. `{n}` stands for the size, and `{n-1}` for the number below.
    pub prints: &'static str,
}

const fn opt(command: &'static [&'static str], size: usize) -> Tool {
    Tool { command, size, exit: 0, prints: "} // %HostIrContainer" }
}

const fn run(command: &'static [&'static str], size: usize) -> Tool {
    Tool { command, size, exit: 0, prints: "[SUCCESS]" }
}

/// All axes.
pub const AXES: &[Axis] = &[
    Axis {
        name: "operators",
        program: chain,
        passes: "decompose-resharding,lower-to-communication,@default",
        size: 5_000,
        tools: &[
            opt(&["hir-opt", "--passes", "@lower"], 1_000),
            run(&["hir-run", "--passes", "@lower"], 500),
        ],
    },
    Axis {
        name: "equal statements",
        program: equal,
        passes: "allocate-and-deallocate,common-subexpression,remove-dead-code,renumber",
        size: 5_000,
        tools: &[opt(&["hir-opt"], 5_000), run(&["hir-run"], 5_000)],
    },
    Axis {
        name: "views",
        program: views,
        passes: "common-subexpression,remove-redundant-sync,@default",
        size: 5_000,
        tools: &[opt(&["hir-opt", "--passes", "@default"], 5_000)],
    },
    Axis {
        name: "loops",
        program: loops,
        passes: "remove-redundant-sync,common-subexpression,hoist-communication,sink-waits,double-buffer,unroll,\
                 remove-redundant-sync,@default",
        size: 750,
        tools: &[opt(&["hir-opt", "--passes", "@default"], 750), run(&["hir-run"], 750)],
    },
    Axis {
        name: "depth",
        program: depth,
        passes: "remove-redundant-sync,common-subexpression,hoist-communication,sink-waits,renumber,@default",
        // The reader limits the nesting of loops to 200.
        size: 24,
        tools: &[opt(&["hir-opt", "--passes", "@default"], 48)],
    },
    Axis { name: "waits", program: waits, passes: "sink-waits,defer-waits", size: 5_000, tools: &[] },
    Axis {
        name: "pending",
        program: pending,
        passes: "sink-waits,defer-waits",
        size: 5_000,
        tools: &[run(&["hir-run"], 2_000)],
    },
    Axis {
        name: "posted late",
        program: posted_late,
        passes: "hoist-communication",
        size: 5_000,
        tools: &[],
    },
    Axis {
        name: "views of views",
        program: views_of_views,
        passes: "allocate-and-deallocate,common-subexpression,remove-dead-code",
        size: 5_000,
        tools: &[run(&["hir-run"], 5_000)],
    },
    Axis {
        name: "exchanges",
        program: exchanges,
        passes: "hoist-share-mem-handles,allocate-and-deallocate,remove-redundant-sync",
        size: 5_000,
        tools: &[run(&["hir-run"], 1_000)],
    },
    Axis {
        name: "ranks",
        program: ranks,
        passes: "@lower",
        size: 512,
        tools: &[run(&["hir-run", "--passes", "@lower"], 64)],
    },
    Axis {
        name: "ring",
        program: ring,
        passes: "@default",
        size: 512,
        tools: &[Tool { prints: "{n} simulated ranks", ..run(&["hir-run"], 1_024) }],
    },
    Axis {
        name: "meshes",
        program: meshes,
        passes: "@overlap-pipeline-stages",
        size: 64,
        tools: &[
            opt(&["hir-opt", "--passes", "@overlap-pipeline-stages"], 256),
            Tool { prints: "{n} simulated ranks", ..run(&["hir-run"], 128) },
        ],
    },
    Axis {
        name: "layers",
        program: layers,
        passes: "@overlap",
        size: 16,
        tools: &[opt(&["hir-opt", "--passes", "@overlap"], 100)],
    },
    Axis {
        name: "training step",
        program: training_step,
        passes: "@overlap{propagate-shardings.prefer=weights-stay}",
        size: 3,
        tools: &[opt(&["hir-opt", "--passes", "@overlap{propagate-shardings.prefer=weights-stay}"], 50)],
    },
    Axis {
        name: "streams",
        program: streams,
        passes: "@default",
        size: 2_000,
        tools: &[run(&["hir-run"], 1_000), run(&["hir-run", "--schedule=explore:100"], 250)],
    },
    Axis {
        name: "axes",
        program: axes,
        passes: "@default",
        size: 500,
        tools: &[opt(&["hir-opt"], 2_000), run(&["hir-run"], 1_000)],
    },
    Axis {
        name: "operands",
        program: operands,
        passes: "@default",
        size: 2_000,
        tools: &[opt(&["hir-opt"], 8_000), run(&["hir-run"], 2_000)],
    },
    Axis { name: "line", program: line, passes: "", size: 5_000, tools: &[opt(&["hir-opt"], 16_000)] },
    Axis {
        name: "scalars",
        program: scalars,
        passes: "@default",
        size: 5_000,
        tools: &[opt(&["hir-opt"], 8_000), run(&["hir-run"], 8_000)],
    },
    Axis {
        name: "containers",
        program: containers,
        passes: "",
        size: 500,
        tools: &[opt(&["hir-opt"], 2_000), opt(&["hir-opt", "--split-input-file"], 500)],
    },
    Axis {
        name: "undeclared tensors",
        program: undeclared,
        passes: "",
        size: 2_000,
        tools: &[Tool { exit: 1, prints: "{n-1} more errors", ..opt(&["hir-opt"], 2_000) }],
    },
    Axis {
        name: "unknown operators",
        program: misspelled,
        passes: "",
        size: 2_000,
        tools: &[Tool { exit: 1, prints: "{n-1} more errors", ..opt(&["hir-opt"], 2_000) }],
    },
    Axis {
        name: "races",
        program: races,
        passes: "",
        size: 2_000,
        tools: &[
            Tool { exit: 7, prints: "[FAILED] race", ..run(&["hir-run"], 2_000) },
            opt(&["hir", "reduce", "--oracle", "race"], 50),
        ],
    },
];
