//! Checks which module may use which. Which package uses which is in the manifests; the
//! dependencies of modules are read from the `use` lines and paths of the sources. A dependency on a higher layer fails, and a
//! new module must be assigned to a layer.

mod sources;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use libtest_mimic::{Failed, Trial};

use crate::ROOT;
use sources::{dependencies_of, paths_of_modules_are_read, production, sources};

/// Some modules of a folder, and the modules of the same folder that each of them may use.
type Layer = (&'static str, &'static [&'static str]);

/// All modules of the preceding rows. So modules of one row do not use each other.
const BEFORE: &[&str] = &["<"];

/// All modules.
const ALL: &[&str] = &["*"];

/// The folders of modules, with their layers from the lowest to the highest.
const LAYERS: &[(&str, &[Layer])] = &[
    ("grammar/src", GRAMMAR),
    ("passes/src", PASSES),
    ("passes/src/analysis", ANALYSIS),
    ("passes/src/rewrite", REWRITE),
    ("passes/src/transform", TRANSFORM),
    ("src/plan", PLAN),
    ("src/plan/sync", SYNC),
    ("src/plan/transport", TRANSPORT),
    ("src/check", CHECK),
    ("src/cuda", CUDA),
    ("src/driver", DRIVER),
    ("src/hang", HANG),
    ("src/lsp", LSP),
    ("src/stablehlo", STABLEHLO),
    ("src/stablehlo/import", STABLEHLO_IMPORT),
];

const GRAMMAR: &[Layer] = &[
    ("arena codes dtype invalid_option numbering scalar_op words", &[]),
    // The IR: operators have attributes, statements have operators.
    ("diagnostic ids", BEFORE),
    ("algorithm_table", &["invalid_option", "words"]),
    ("suggest", &["diagnostic"]),
    ("alike", BEFORE),
    ("raw_bytes", &["codes", "diagnostic"]),
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
    ("bindings", &["arena", "codes", "diagnostic", "invalid_option", "ir", "read", "source", "suggest"]),
    ("lib reference roundtrip", ALL),
];

const PASSES: &[Layer] = &[
    ("analysis error pass", &[]),
    ("oracle", &["pass"]),
    ("rewrite", &["analysis"]),
    ("transform", &["analysis", "pass", "rewrite"]),
    ("list", &["pass", "transform"]),
    ("pipeline", &["list", "pass"]),
    ("catalog", &["list", "pass", "pipeline"]),
    ("driver", &["error", "list", "oracle", "pass", "pipeline"]),
    ("bisect", &["driver", "error", "oracle", "pipeline"]),
    ("lib", ALL),
];

const ANALYSIS: &[Layer] = &[
    ("numbering bindings blocks coalescing posted_work stmt_path sharding", &[]),
    ("communicators loop_body", &["blocks"]),
    ("dim_map reshard alias_analysis", BEFORE),
    ("memory_effects dim_equivalence name_uses propagation stale_views written_views", BEFORE),
    ("loop_carried row_shifts", BEFORE),
    ("wait_order", BEFORE),
];

const REWRITE: &[Layer] = &[
    ("blocks builder fold scalars streams substitute", &[]),
    ("collective mesh sharded_tensors", &["builder"]),
    ("contiguity", &["builder", "sharded_tensors"]),
];

const TRANSFORM: &[Layer] = &[
    ("allocate_and_deallocate assign_streams canonicalize common_subexpression decompose_resharding", &[]),
    ("double_buffer fuse_epilogue hoist_share_mem_handles inline_definitions order_communicators", &[]),
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
    ("files", BEFORE),
    ("agreement site", &["record"]),
    ("queues", &["agreement", "record", "site"]),
    ("divergence stall", &["agreement", "queues", "record", "site"]),
    ("graph", &["record", "stall"]),
    ("peers wording", BEFORE),
    ("blame", BEFORE),
    ("cause", BEFORE),
    ("explain", BEFORE),
    ("diagnostics program report", BEFORE),
    ("lib", ALL),
];

/// Positions and texts, what hir says about a text, and the conversation with the editor.
const LSP: &[Layer] = &[
    ("positions reference", &[]),
    ("snapshot", BEFORE),
    ("estimate", &[]),
    ("check", &["estimate", "snapshot"]),
    ("diagnostics format names run_lines streams structure tokens", BEFORE),
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
    ("token tree value writer", &[]),
    ("parse", &["token", "tree"]),
    ("sharding", &["tree"]),
    ("import", &["sharding", "tree", "value", "writer"]),
    ("lib", ALL),
];

/// One file for each kind of operators.
const STABLEHLO_IMPORT: &[Layer] = &[
    ("errors", &[]),
    ("tensors", BEFORE),
    ("constant control dot elementwise index manual opaque pad reduce shape", BEFORE),
    ("bits sort", &["elementwise"]),
    ("window", &["pad", "reduce"]),
    ("convolution", &["constant", "dot", "pad", "window"]),
    // Collectives and scatters combine values as reductions do.
    ("collective gather", &["reduce"]),
    ("points", &["gather"]),
    ("selection", &["constant", "gather", "reduce"]),
    // The table names the functions that import operations.
    ("operators", BEFORE),
];

const DRIVER: &[Layer] = &[
    ("auto build session tensor_file", &[]),
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
    ("limits missing_handles teams view", &[]),
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
    ("bindings", BEFORE),
    (
        "views comm compute attention construct experts index io reshard skip opaque_call symmetric_view",
        BEFORE,
    ),
    ("token_rows", BEFORE),
    ("host_unit", BEFORE),
    ("sync", BEFORE),
    ("transport", BEFORE),
    ("comm_options", BEFORE),
    ("build_rank", BEFORE),
    ("build_world", BEFORE),
    ("assume communication_table lint timeline", BEFORE),
    ("lib", ALL),
];

const SYNC: &[Layer] = &[
    ("matching memory_groups", &[]),
    ("world", &["matching"]),
    ("p2p_queues waits", &["matching", "world"]),
    ("symmetry", &["matching", "waits", "world"]),
    ("machine", BEFORE),
    // The guaranteed order and the blocking order are never mixed.
    ("step", &["matching", "world"]),
    ("happens_before", &["machine", "matching", "memory_groups", "step", "symmetry", "waits", "world"]),
    ("comm_order", &["happens_before", "matching", "memory_groups", "p2p_queues", "world"]),
    ("deadlock_detection", &["machine", "waits", "world"]),
    ("wait_graph", &["matching", "waits", "world"]),
    ("blocked_wait", &["matching"]),
    ("deadlock skipped", &["blocked_wait", "matching", "wait_graph"]),
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
];

const CHECK: &[Layer] = &[
    ("execution_fault numbered_lines ordering_model overlap stmt_places stream_waits two_runs", &[]),
    ("capture semaphores", &["execution_fault"]),
    ("line_changes", &["numbered_lines"]),
    ("stream_operand", &["stmt_places"]),
    ("editable_text", &["numbered_lines", "stmt_places", "stream_operand"]),
    ("plan_index", &["stream_waits"]),
    ("conflict history written", &["overlap"]),
    ("orders", &["conflict", "overlap"]),
    ("deliveries", &[]),
    ("memory storage", &["conflict", "deliveries", "ordering_model", "overlap", "written"]),
    ("missing_write", &["memory", "overlap", "plan_index"]),
    ("stream_ordered_frees", &["conflict", "storage"]),
    ("race", &["conflict", "history", "ordering_model", "overlap", "storage", "stream_ordered_frees"]),
    ("race_side", &["conflict", "plan_index"]),
    ("edit", &["plan_index", "race_side"]),
    ("explanation", &["conflict", "edit", "plan_index", "race_side"]),
    ("storage_explanation", &["conflict", "edit", "explanation", "plan_index", "race_side"]),
    ("apply", &["edit", "editable_text", "line_changes", "numbered_lines"]),
    ("loop_edits", &["edit", "editable_text"]),
    ("edit_help", &["apply", "edit", "editable_text", "explanation", "plan_index", "race_side"]),
    ("excess", &["conflict", "history", "ordering_model", "overlap", "race"]),
    ("finding", &["conflict", "execution_fault", "excess", "memory", "ordering_model", "race_side"]),
    (
        "access_checks",
        &["conflict", "excess", "finding", "memory", "ordering_model", "race", "semaphores", "storage"],
    ),
    (
        "repeat",
        &[
            "access_checks",
            "conflict",
            "execution_fault",
            "ordering_model",
            "race",
            "semaphores",
            "storage",
            "two_runs",
        ],
    ),
    ("diagnostics", BEFORE),
    ("fixable_race", BEFORE),
    ("removal", &["edit", "fixable_race"]),
    ("excess_diagnostics merge progress_diagnostics", BEFORE),
    ("sequence", &["conflict", "finding", "repeat"]),
    (
        "checker",
        &[
            "access_checks",
            "capture",
            "conflict",
            "excess",
            "execution_fault",
            "finding",
            "memory",
            "ordering_model",
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
            "edit",
            "editable_text",
            "explanation",
            "finding",
            "fixable_race",
            "line_changes",
            "numbered_lines",
            "plan_index",
            "race_side",
            "removal",
        ],
    ),
    ("lib", ALL),
];

const TRANSPORT: &[Layer] = &[
    ("messages signals slots staging", &[]),
    ("queue", &["staging"]),
    ("one_shot", BEFORE),
    // Both algorithms use the same reductions and copies.
    ("two_shot", &["one_shot"]),
    ("push two_shot_copy", &["slots", "two_shot"]),
    ("lower", BEFORE),
];

/// Libraries and the device, then the stages of a plan: buffer assignment, lowering of instructions to
/// commands, and execution.
const CUDA: &[Layer] = &[
    ("epilogue error comm_order peer_kernel", &[]),
    ("exchange", &["error"]),
    ("buffer_assignment", &["epilogue", "peer_kernel"]),
    ("library", BEFORE),
    ("discover", BEFORE),
    ("device", BEFORE),
    ("links", BEFORE),
    ("comm signals kernels memory", BEFORE),
    ("graph", BEFORE),
    ("matmul", BEFORE),
    ("library_state", BEFORE),
    ("executable progress", BEFORE),
    ("engine", BEFORE),
    ("session", BEFORE),
    ("device_assignment", BEFORE),
    ("in_process", BEFORE),
    ("lib", ALL),
];

/// The packages from the lowest to the highest, each with what it must not know: packages of the project and of others.
/// `docs/architecture.md` lists them in this order.
const PACKAGES: &[(&str, &[&str])] = &[
    ("src/syntax", &["ariadne", "hir-grammar", "serde_json"]),
    ("grammar", &["clap", "rayon", "rustix", "tempfile"]),
    (
        "src/certify",
        &["hir-check", "hir-plan", "hir-sim", "hir-tensor", "passes", "rayon", "rustix", "tempfile"],
    ),
    ("passes", &["clap", "hir-plan", "rayon", "rustix", "tempfile"]),
    ("src/plan", &["clap", "passes", "rayon", "rustix", "tempfile"]),
    ("src/check", &["clap", "hir-cuda", "hir-sim", "hir-tensor", "passes", "rayon", "rustix", "tempfile"]),
    ("src/tensor", &["clap", "hir-check", "passes", "rustix", "tempfile"]),
    ("src/sim", &["clap", "cudarc", "hir-check", "passes", "rustix", "tempfile"]),
    ("src/cuda", &["clap", "hir-check", "hir-sim", "passes", "tempfile"]),
    ("src/process", &["clap", "hir-plan", "passes"]),
    ("src/launch", &["clap", "hir-cuda", "hir-plan", "hir-sim", "passes"]),
    ("src/hang", &["clap", "hir-check", "hir-cuda", "hir-plan", "hir-sim", "passes", "rustix"]),
    ("src/lsp", &["clap", "hir-cuda", "hir-hang", "hir-launch", "hir-tensor", "rustix", "tempfile"]),
    ("src/stablehlo", &["clap", "hir-check", "hir-plan", "hir-sim", "passes", "rayon", "rustix", "tempfile"]),
    ("src/driver", &[]),
    ("python", &["clap", "passes"]),
];

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("modules_use_only_layers_below", modules_use_only_layers_below),
        Trial::test("architecture_lists_packages_by_layer", architecture_lists_packages_by_layer),
        Trial::test("packages_know_only_what_they_may", packages_know_only_what_they_may),
        Trial::test("analyses_change_no_program", analyses_change_no_program),
        Trial::test("runs_share_no_state", runs_share_no_state),
        Trial::test("paths_of_modules_are_read", paths_of_modules_are_read),
    ]
}

fn modules_use_only_layers_below() -> Result<(), Failed> {
    let mut faults = Vec::new();
    for (folder, rows) in LAYERS {
        let allowed = allowed(rows).map_err(|it| format!("{folder}: {it}"))?;
        let known: BTreeSet<String> = allowed.keys().map(|it| (*it).to_owned()).collect();
        let found = dependencies_of(folder, &known)?;
        for (module, (used, file)) in &found {
            let Some(below) = allowed.get(module.as_str()) else {
                faults.push(format!("{file}: module `{module}` is not assigned to a layer"));
                continue;
            };
            let up = used.iter().filter(|(it, _)| !below.contains(it.as_str()));
            faults.extend(up.map(|(it, file)| format!("{file}: `{module}` uses `{it}`")));
        }
        let gone = known.iter().filter(|it| !found.contains_key(*it));
        faults.extend(gone.map(|it| format!("{folder}: there is no module `{it}`")));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Checks that the table of `docs/architecture.md` has the packages in the order of `PACKAGES`.
fn architecture_lists_packages_by_layer() -> Result<(), Failed> {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/architecture.md"))?;
    let table = page.split("| package |").nth(1).ok_or("the page has no table of packages")?;
    let rows = table.lines().skip(2).take_while(|it| it.starts_with('|'));
    let listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let wanted: Vec<&str> = PACKAGES.iter().map(|it| it.0).collect();
    if listed == wanted {
        Ok(())
    } else {
        Err(format!("docs/architecture.md lists {listed:?}, the packages are {wanted:?}").into())
    }
}

/// Checks that each package depends on packages before it in `PACKAGES` only, and on nothing that it must not know.
fn packages_know_only_what_they_may() -> Result<(), Failed> {
    let folder_of = |name: &str| match name.strip_prefix("hir-") {
        Some(name) => format!("src/{name}"),
        None => name.to_owned(),
    };
    let position = |folder: &str| PACKAGES.iter().position(|it| it.0 == folder);
    let mut faults = Vec::new();
    for (at, (folder, unknown)) in PACKAGES.iter().enumerate() {
        let manifest = fs::read_to_string(Path::new(ROOT).join(folder).join("Cargo.toml"))?;
        let dependencies =
            manifest.split("[dependencies]\n").nth(1).ok_or("a manifest has no dependencies")?;
        let names = dependencies.lines().take_while(|it| !it.starts_with('['));
        for name in names.filter_map(|it| it.split(['.', ' ', '=']).next()).filter(|it| !it.is_empty()) {
            if unknown.contains(&name) || position(&folder_of(name)).is_some_and(|it| it >= at) {
                faults.push(format!("{folder}/Cargo.toml depends on `{name}`"));
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// Returns the modules that each module of some rows may use.
fn allowed(rows: &[Layer]) -> Result<BTreeMap<&'static str, BTreeSet<&'static str>>, String> {
    let all: BTreeSet<&str> = rows.iter().flat_map(|row| row.0.split_whitespace()).collect();
    let mut before = BTreeSet::new();
    let mut allowed = BTreeMap::new();
    for (modules, below) in rows {
        let below = match *below {
            ALL => all.clone(),
            BEFORE => before.clone(),
            listed => match listed.iter().find(|it| !before.contains(**it)) {
                Some(it) => return Err(format!("`{modules}` may use `{it}`, which is not in a lower layer")),
                None => listed.iter().copied().collect(),
            },
        };
        before.extend(modules.split_whitespace());
        allowed.extend(modules.split_whitespace().map(|module| (module, below.clone())));
    }
    Ok(allowed)
}

fn analyses_change_no_program() -> Result<(), Failed> {
    for path in sources("passes/src/analysis")? {
        if production(&fs::read_to_string(&path)?).contains("&mut Program") {
            return Err(format!("{}: takes a mutable program", path.display()).into());
        }
    }
    Ok(())
}

/// Checks that only what the operating system, or a library of the vendor, gives once to a process is process-wide state:
/// jobs with different sessions run at the same time.
fn runs_share_no_state() -> Result<(), Failed> {
    let kinds = ["Mutex<", "RwLock<", "OnceLock<", "LazyLock<", ": Once ", "Atomic"];
    // `grammar` interns names, which are the same in all runs.
    for (folder, _) in PACKAGES.iter().filter(|it| !["grammar", "src/cuda", "src/process"].contains(&it.0)) {
        for path in sources(folder)? {
            let text = production(&fs::read_to_string(&path)?);
            let is_static = |line: &str| line.replace("'static", "").contains("static ");
            let is_state = |line: &str| is_static(line) && kinds.iter().any(|it| line.contains(it));
            if let Some(line) = text.lines().find(|line| is_state(line)) {
                return Err(format!("{}: state of the process: {}", path.display(), line.trim()).into());
            }
        }
    }
    Ok(())
}
