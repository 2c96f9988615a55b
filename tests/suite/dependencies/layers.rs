//! The layers: which modules of a folder may use which others, and which packages may not know of what.

/// Some modules of a folder, and the modules of the same folder that each of them may use.
pub type Layer = (&'static str, &'static [&'static str]);

/// All modules of the preceding rows. So modules of one row do not use each other.
pub const BEFORE: &[&str] = &["<"];

/// All modules.
pub const ALL: &[&str] = &["*"];

/// The folders of modules, with their layers from the lowest to the highest.
pub const LAYERS: &[(&str, &[Layer])] = &[
    ("grammar/src", GRAMMAR),
    ("passes/src", PASSES),
    ("passes/src/analysis", ANALYSIS),
    ("passes/src/rewrite", REWRITE),
    ("passes/src/transform", TRANSFORM),
    ("src/ir", IR),
    ("src/plan", PLAN),
    ("src/plan/sync", SYNC),
    ("src/plan/transport", TRANSPORT),
    ("src/check", CHECK),
    ("src/cuda", CUDA),
    ("src/driver", DRIVER),
    ("src/executor", EXECUTOR),
    ("src/hang", HANG),
    ("src/lsp", LSP),
    ("src/stablehlo", STABLEHLO),
    ("src/stablehlo/import", STABLEHLO_IMPORT),
];

const GRAMMAR: &[Layer] = &[
    ("named", &[]),
    ("arena codes dtype invalid_option numbering scalar_op shell_word words", BEFORE),
    // The IR: operators have attributes, statements have operators.
    ("diagnostic ids", BEFORE),
    ("algorithm_table", &["invalid_option", "words"]),
    ("collective", &["words"]),
    ("suggest", &["diagnostic"]),
    ("alike", BEFORE),
    ("advice", &[]),
    ("raw_bytes", &["codes", "diagnostic"]),
    ("constant_bytes", &[]),
    ("files", &[]),
    ("sarif", &["codes", "diagnostic", "files", "raw_bytes"]),
    ("attr", BEFORE),
    ("ops", BEFORE),
    ("arithmetic", &["ops", "scalar_op"]),
    ("ir", BEFORE),
    ("tensor_uses operands roots text", BEFORE),
    ("loop_variance scalars", BEFORE),
    ("rules", BEFORE),
    // IR to text.
    ("domains print", BEFORE),
    ("canonical", BEFORE),
    // Text to IR.
    ("dump_cleanup render scan", BEFORE),
    ("fusion_dump", &["dump_cleanup", "files", "scan"]),
    ("indentation", BEFORE),
    ("parse", BEFORE),
    ("tensor", BEFORE),
    ("resolve", BEFORE),
    ("read", BEFORE),
    // Modules that both read and print.
    ("dialect fix verify", BEFORE),
    ("source", &["alike", "diagnostic", "files", "ir", "read", "verify"]),
    (
        "bindings",
        &["arena", "codes", "diagnostic", "invalid_option", "ir", "read", "scalars", "source", "suggest"],
    ),
    ("lib", ALL),
];

const IR: &[Layer] = &[
    ("blocks build search", &[]),
    ("dataflow", BEFORE),
    ("streams", BEFORE),
    ("edit", BEFORE),
    ("lib", ALL),
];

const PASSES: &[Layer] = &[
    ("error pass second_thread", &[]),
    ("analysis", &["pass", "second_thread"]),
    ("oracle", &["pass"]),
    ("rewrite", &["analysis"]),
    ("transform", &["analysis", "pass", "rewrite", "second_thread"]),
    ("list", &["pass", "rewrite", "transform"]),
    ("pipeline", &["list", "pass"]),
    ("catalog", &["list", "pass", "pipeline"]),
    ("driver", &["error", "list", "oracle", "pass", "pipeline", "rewrite", "second_thread"]),
    ("bisect", &["driver", "error", "oracle", "pipeline"]),
    ("lib", ALL),
];

const ANALYSIS: &[Layer] = &[
    ("numbering bindings coalescing posted_work stmt_path sharding", &[]),
    ("communicators loop_body", &[]),
    ("dim_map reshard alias_analysis", BEFORE),
    ("memory_effects dim_equivalence name_uses propagation stale_views written_views", BEFORE),
    ("loop_carried row_shifts", BEFORE),
    ("wait_order", BEFORE),
];

const REWRITE: &[Layer] = &[
    ("communicator_order empty_blocks fold scalars substitute", &[]),
    ("collective mesh sharded_tensors", &[]),
    ("contiguity", &["sharded_tensors"]),
];

const TRANSFORM: &[Layer] = &[
    ("allocate_and_deallocate assign_streams canonicalize common_subexpression decompose_resharding", &[]),
    ("double_buffer hoist_share_mem_handles inline_definitions order_communicators", &[]),
    ("remove_dead_code remove_redundant_sync renumber schedule_communication", &[]),
    ("select_algorithms unroll use_local_shard_in_place", &[]),
    ("fuse_collective_epilogue", &["select_algorithms"]),
    ("specialize_rank", &["canonicalize", "inline_definitions"]),
    ("chunk coalesce_reductions lower_to_communication", &["decompose_resharding"]),
    // Compares what each rule communicates.
    ("propagate_shardings", &["chunk", "decompose_resharding"]),
    ("hierarchical_collectives", &["lower_to_communication"]),
    ("stream_parallel", &["decompose_resharding", "lower_to_communication"]),
    ("swizzle_stream", &["chunk", "decompose_resharding"]),
    // Parallelises loops in several ways and selects the best.
    ("overlap", BEFORE),
];

/// Values of dumps and records, the order of calls, causes, and reports.
const HANG: &[Layer] = &[
    ("archive record value", &[]),
    ("batch", &["record"]),
    ("json pickle", &["value"]),
    ("dump", &["batch", "record", "value"]),
    ("agreement site", &["record"]),
    ("queues", &["agreement", "record", "site"]),
    ("stall", &["queues", "record", "site"]),
    ("graph", &["record", "stall"]),
    ("peers wording", BEFORE),
    ("divergence", &["agreement", "peers", "queues", "record", "site"]),
    ("earlier", &["record", "wording"]),
    ("active", &["record", "site"]),
    ("host", &["record", "site"]),
    ("torch_log", &["host", "record"]),
    ("nccl", &["host", "record", "torch_log"]),
    ("order", &["record"]),
    ("dumps", &["active", "earlier", "host", "order", "record", "wording"]),
    ("files", BEFORE),
    ("lane", &["agreement", "peers", "queues", "record"]),
    ("rounds", &["lane", "queues", "record"]),
    ("departure", &["divergence", "lane", "queues", "record", "rounds", "stall"]),
    ("census", &["departure", "divergence", "queues", "record"]),
    ("numbers", &["agreement", "departure", "divergence", "lane", "queues", "record"]),
    ("blame", &["agreement", "census", "graph", "peers", "queues", "record", "stall"]),
    ("crossed", &["blame", "queues", "record", "stall"]),
    ("repair", &["agreement", "departure", "divergence", "peers", "queues", "record"]),
    ("cause", BEFORE),
    ("explain", BEFORE),
    ("diagnostics program report", BEFORE),
    ("answer", &["dumps", "explain", "record", "report", "site"]),
    ("watch", &["files", "report"]),
    ("lib", ALL),
];

/// Positions and texts, what hir says about a text, and the conversation with the editor.
const LSP: &[Layer] = &[
    ("positions reference transport", &[]),
    ("snapshot", BEFORE),
    ("format", &["snapshot"]),
    ("refusal", &["format"]),
    ("estimate", &[]),
    ("check", &["estimate", "refusal", "snapshot"]),
    ("diagnostics names run_lines streams structure tokens", BEFORE),
    ("completion hints hover lenses lowered navigation", BEFORE),
    ("document", BEFORE),
    ("actions", BEFORE),
    ("session", BEFORE),
    ("requests invariant", BEFORE),
    ("server", BEFORE),
    ("lib", ALL),
];

/// Text to tree, and tree to the text of a program.
const STABLEHLO: &[Layer] = &[
    ("token tree", &[]),
    ("value", &["tree"]),
    ("sharding unique_names", &["tree", "value"]),
    ("parse", &["token", "tree", "unique_names"]),
    ("import", &["sharding", "tree", "value"]),
    ("lib", ALL),
];

/// One file for each kind of operators.
const STABLEHLO_IMPORT: &[Layer] = &[
    ("errors numbers types uniform", &[]),
    ("lift", &["types"]),
    ("tensors device_numbers", BEFORE),
    ("constant control dot elementwise fold index manual opaque pad pieces reduce shape", BEFORE),
    ("data_loop", &["pieces", "types"]),
    ("bits", &["elementwise", "numbers", "reduce"]),
    ("sort", &["elementwise"]),
    ("linear_algebra", &["constant", "reduce"]),
    ("extreme", &["elementwise", "reduce"]),
    ("window", &["lift", "pad", "reduce"]),
    ("select_and_scatter", &["lift", "pad", "reduce"]),
    ("convolution", &["constant", "dot", "pad", "window"]),
    // Collectives and scatters combine values as reductions do.
    ("collective gather", &["reduce"]),
    ("points", &["gather", "reduce"]),
    ("scatter", &["gather", "points", "reduce"]),
    ("selection", &["constant", "gather", "reduce"]),
    // The table names the functions that import operations.
    ("operators", BEFORE),
    ("complex", &["elementwise", "operators", "reduce", "types"]),
    ("complex_functions", &["complex", "elementwise"]),
    ("fourier", &["complex", "dot"]),
];

const DRIVER: &[Layer] = &[
    ("auto build session tensor_file trace", &[]),
    ("source", &["session"]),
    ("tool", &["auto", "session", "source"]),
    ("run", BEFORE),
    ("calibrate exit_code job reduce", BEFORE),
    ("commands", BEFORE),
    ("lib", ALL),
];

/// The data structures of a plan, the lowering of one rank, the matching of all ranks, and the plans of the
/// world.
const PLAN: &[Layer] = &[
    // The fields of a plan have types of other modules, whose functions have plans as arguments.
    ("plan", ALL),
    ("limits missing_handles teams view", BEFORE),
    ("inst", BEFORE),
    ("complex stream", BEFORE),
    ("unbound", BEFORE),
    (
        "access algorithm caching_allocator collective_semantics queue_streams comm_names posted shape print size",
        BEFORE,
    ),
    ("effect indices inst_builder", BEFORE),
    ("operators traffic", BEFORE),
    ("context", BEFORE),
    ("held_operands recorded_streams", BEFORE),
    ("bindings", BEFORE),
    (
        "views comm compute attention construct experts index io reshard skip opaque_call symmetric_view",
        BEFORE,
    ),
    ("token_rows loop_exit", BEFORE),
    ("host_unit", BEFORE),
    ("sync", BEFORE),
    ("uniform", BEFORE),
    ("captured_storage mapped_views transport", BEFORE),
    ("comm_options", BEFORE),
    ("build_rank", BEFORE),
    ("build_world", BEFORE),
    ("assume communication_table lint timeline", BEFORE),
    ("lib", ALL),
];

const SYNC: &[Layer] = &[
    ("matching memory_groups", &[]),
    ("world", &["matching"]),
    ("connections", &["matching", "world"]),
    ("p2p_queues waits", &["matching", "world"]),
    ("symmetry", &["matching", "waits", "world"]),
    ("machine", BEFORE),
    // The guaranteed order and the blocking order are never mixed.
    ("step", &["matching", "world"]),
    ("happens_before", &["machine", "matching", "memory_groups", "step", "symmetry", "waits", "world"]),
    ("comm_order", &["happens_before", "matching", "memory_groups", "p2p_queues", "world"]),
    ("swapped_calls", &["comm_order", "matching", "world"]),
    ("deadlock_detection", &["machine", "waits", "world"]),
    ("wait_graph", &["matching", "waits", "world"]),
    ("blocked_wait", &["matching"]),
    ("host_rules", &[]),
    ("deadlock skipped", &["blocked_wait", "host_rules", "matching", "wait_graph"]),
    ("peer_edit", &["matching", "wait_graph"]),
    ("report_text", &["blocked_wait", "deadlock", "matching", "peer_edit", "wait_graph", "waits"]),
    ("skip_edit", &["skipped"]),
    ("agreement", &["matching", "report_text", "skipped", "wait_graph"]),
    (
        "explain progress",
        &[
            "blocked_wait",
            "deadlock",
            "matching",
            "skip_edit",
            "skipped",
            "wait_graph",
            "waits",
            "report_text",
            "world",
        ],
    ),
    ("host_waits", &["host_rules", "world"]),
    ("host_blocks", &["deadlock", "explain", "host_rules", "host_waits", "waits", "world"]),
];

const CHECK: &[Layer] = &[
    ("execution_fault not_checked not_compared ordering_model overlap stream_waits stream_work", &[]),
    ("capture semaphores", &["execution_fault"]),
    ("plan_index", &["stream_waits"]),
    ("conflict history written", &["overlap"]),
    ("orders", &["conflict", "overlap"]),
    ("deliveries", &[]),
    ("memory storage", &["conflict", "deliveries", "ordering_model", "overlap", "written"]),
    ("joined_runs", &[]),
    ("shared_buffers", &["not_compared"]),
    ("two_runs", &["joined_runs", "storage"]),
    ("replay", &["capture", "joined_runs", "not_compared", "shared_buffers", "two_runs"]),
    ("storage_sharing", &["replay"]),
    ("stream_ordered_frees", &["conflict", "ordering_model", "storage"]),
    ("early_releases", &["conflict", "storage"]),
    ("first_access", &["conflict", "overlap"]),
    (
        "race",
        &[
            "conflict",
            "early_releases",
            "first_access",
            "history",
            "ordering_model",
            "overlap",
            "storage",
            "stream_ordered_frees",
            "stream_work",
        ],
    ),
    ("race_side", &["conflict", "plan_index"]),
    ("repair", &["plan_index", "race_side"]),
    ("order_edits", &["execution_fault", "plan_index", "race_side", "repair"]),
    // Text that edits change.
    ("editable_text", &["repair"]),
    ("exclusive_arms stream_operand", &["editable_text", "repair"]),
    ("deadlock_edits", &["editable_text"]),
    ("missing_write", &["editable_text", "memory", "overlap", "plan_index"]),
    ("reader_edits", &["overlap", "plan_index", "race_side", "repair"]),
    ("iteration_storage", &["plan_index", "race_side", "repair", "written"]),
    ("explanation", &["conflict", "iteration_storage", "plan_index", "race_side", "reader_edits", "repair"]),
    ("storage_explanation", &["conflict", "explanation", "plan_index", "race_side", "repair", "stream_work"]),
    ("between_runs", &["conflict", "explanation", "order_edits", "plan_index", "race_side", "repair"]),
    ("apply", &["editable_text", "repair"]),
    ("loop_edits wait_edits", &["editable_text", "repair"]),
    ("wait_cycle", &["plan_index", "repair"]),
    (
        "repair_help",
        &["apply", "editable_text", "explanation", "plan_index", "race_side", "repair", "wait_cycle"],
    ),
    (
        "excess",
        &[
            "conflict",
            "execution_fault",
            "history",
            "ordering_model",
            "overlap",
            "race",
            "semaphores",
            "stream_ordered_frees",
        ],
    ),
    (
        "finding",
        &["conflict", "execution_fault", "excess", "memory", "not_checked", "ordering_model", "race_side"],
    ),
    ("profile", &["finding", "ordering_model"]),
    ("trials", &[]),
    ("rules", &["finding", "ordering_model", "profile", "trials"]),
    ("not_shown", &["orders", "replay"]),
    (
        "witness",
        &["capture", "conflict", "execution_fault", "finding", "not_shown", "orders", "replay", "semaphores"],
    ),
    (
        "access_checks",
        &[
            "conflict",
            "excess",
            "execution_fault",
            "finding",
            "memory",
            "ordering_model",
            "race",
            "semaphores",
            "storage",
        ],
    ),
    (
        "repeat",
        &[
            "access_checks",
            "conflict",
            "execution_fault",
            "joined_runs",
            "not_compared",
            "ordering_model",
            "race",
            "semaphores",
            "shared_buffers",
            "storage",
            "two_runs",
        ],
    ),
    ("kernels_of_runs", &["access_checks", "joined_runs"]),
    ("progress", &["access_checks", "capture", "excess", "finding", "kernels_of_runs"]),
    ("diagnostics", BEFORE),
    ("fixable_race", BEFORE),
    ("removal", &["fixable_race", "repair"]),
    ("excess_diagnostics merge progress_diagnostics", BEFORE),
    (
        "sequence",
        &[
            "access_checks",
            "between_runs",
            "conflict",
            "diagnostics",
            "finding",
            "kernels_of_runs",
            "not_compared",
            "order_edits",
            "plan_index",
            "progress_diagnostics",
            "race_side",
            "repair_help",
            "repeat",
        ],
    ),
    (
        "checker",
        &[
            "access_checks",
            "capture",
            "conflict",
            "excess",
            "execution_fault",
            "finding",
            "kernels_of_runs",
            "memory",
            "missing_write",
            "not_checked",
            "ordering_model",
            "progress",
            "race",
            "repeat",
            "semaphores",
        ],
    ),
    (
        "fix",
        &[
            "apply",
            "checker",
            "conflict",
            "editable_text",
            "execution_fault",
            "explanation",
            "finding",
            "fixable_race",
            "memory",
            "not_checked",
            "order_edits",
            "plan_index",
            "race_side",
            "removal",
            "repair",
            "repair_help",
        ],
    ),
    ("lib", ALL),
];

const TRANSPORT: &[Layer] = &[
    ("messages signals slots staging", &[]),
    ("queue", &["staging"]),
    ("algorithms", &["signals", "slots"]),
    ("lower", BEFORE),
];

/// Libraries and the device, then the stages of a plan: buffer assignment, lowering of instructions to
/// commands, and execution.
const CUDA: &[Layer] = &[
    ("comm_order epilogue exchange peer_kernel unsupported", &[]),
    ("buffer_assignment", &["epilogue", "peer_kernel"]),
    ("library", BEFORE),
    ("discover", BEFORE),
    ("device", BEFORE),
    ("links", BEFORE),
    ("comm signals kernels memory", BEFORE),
    ("graph", BEFORE),
    ("cudnn matmul", BEFORE),
    ("library_state", BEFORE),
    ("executable progress", BEFORE),
    ("engine", BEFORE),
    ("session", BEFORE),
    ("device_assignment", BEFORE),
    ("shared_memory", BEFORE),
    ("in_process", BEFORE),
    ("backend", BEFORE),
    ("lib", ALL),
];

/// What is exchanged with an executor, and the executors.
const EXECUTOR: &[Layer] = &[
    ("algorithms error measurement", &[]),
    ("attention process_group", &["error"]),
    ("executor in_process", BEFORE),
    ("backend", BEFORE),
    ("lib", ALL),
];

/// The packages from the lowest to the highest, each with what it must not know: packages of the project and of others.
/// `docs/architecture.md` lists them in this order.
pub const PACKAGES: &[(&str, &[&str])] = &[
    ("src/equal_builds", &["clap", "hir-grammar", "hir-syntax"]),
    ("src/syntax", &["ariadne", "hir-grammar", "serde_json"]),
    ("grammar", &["clap", "rayon", "rustix", "tempfile"]),
    ("src/ir", &["clap", "hir-check", "hir-plan", "hir-stablehlo", "passes", "rayon", "rustix", "tempfile"]),
    ("src/stablehlo", &["clap", "hir-check", "hir-plan", "hir-sim", "passes", "rayon", "rustix", "tempfile"]),
    ("src/front", &["clap", "hir-check", "hir-plan", "hir-sim", "passes", "rayon", "rustix", "tempfile"]),
    (
        "src/certify",
        &["hir-check", "hir-plan", "hir-sim", "hir-tensor", "passes", "rayon", "rustix", "tempfile"],
    ),
    ("passes", &["clap", "hir-plan", "rayon", "rustix", "tempfile"]),
    ("src/plan", &["clap", "passes", "rayon", "rustix", "tempfile"]),
    ("src/check", &["clap", "hir-cuda", "hir-sim", "hir-tensor", "passes", "rayon", "rustix", "tempfile"]),
    ("src/tensor", &["clap", "hir-check", "passes", "rustix", "tempfile"]),
    ("src/sim", &["clap", "cudarc", "hir-check", "passes", "rustix", "tempfile"]),
    ("src/executor", &["clap", "cudarc", "hir-check", "hir-sim", "passes", "rayon", "rustix", "tempfile"]),
    ("src/cuda", &["clap", "hir-check", "hir-sim", "passes", "tempfile"]),
    ("src/process", &["clap", "hir-plan", "passes"]),
    ("src/launch", &["clap", "hir-cuda", "hir-plan", "hir-sim", "passes"]),
    ("src/hang", &["clap", "hir-check", "hir-cuda", "hir-plan", "hir-sim", "passes", "rustix"]),
    ("src/lsp", &["clap", "hir-cuda", "hir-hang", "hir-launch", "hir-tensor", "rustix", "tempfile"]),
    // An executor of another vendor does not change it.
    ("src/driver", &["cudarc", "hir-cuda"]),
    ("python", &["clap", "hir-cuda", "passes"]),
];
