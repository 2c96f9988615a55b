//! Explains why a PyTorch job hangs, from the dumps of its flight recorder.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! PyTorch keeps the last calls of `torch.distributed` of each process, and writes them to a file when a collective times out. `files` finds and reads these dumps
//! (`pickle` and `json` give `value`s, `dump` and `batch` make a log of `record`s for each rank, `active` says which calls are open). `queues` puts the calls into the order in which communicators
//! pair them, `stall` finds what does not proceed, and `divergence` where the members of a group stop making the same calls. `cause` decides which
//! of it came first, with the cycles of `graph`; `explain` and `report` say it.
//!
//! `hir_plan::sync` matches and explains the communications of plans, and is not used here: a plan holds the whole program, and its
//! communications are matched before it runs. Records hold sequence numbers, states and a window of the past, lack roots, splits and tags, and
//! may be missing, so that what can be concluded is different.
//!
//! Invariant: the library opens files and executes nothing. Memory and time are linear in the bytes of the dumps, but for searches whose length is
//! limited by a constant (`MAX_…`).
//!
//! ```
//! let folder = std::env::temp_dir().join(format!("hir-hang-{}", std::process::id()));
//! std::fs::create_dir_all(&folder).map_err(|fault| fault.to_string())?;
//! let record = |name: &str| format!(
//!     r#"{{"version": "2.10", "pg_config": {{"0": {{"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}}, "entries": [{{
//!         "process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "nccl:{name}", "state": "scheduled",
//!         "time_created_ns": 1, "retired": false, "input_sizes": [[4]], "input_dtypes": ["Float"]}}]}}"#);
//! for (rank, name) in ["all_reduce", "broadcast"].iter().enumerate() {
//!     std::fs::write(folder.join(format!("rank_{rank}.json")), record(name)).map_err(|fault| fault.to_string())?;
//! }
//! let dumps = hir_hang::files::load(&[folder.clone()]).map_err(|fault| fault.to_string())?;
//! let report = hir_hang::report::report(&dumps);
//! assert!(report.is_hang);
//! assert_eq!(report.findings[0].message, "rank 1 calls broadcast where rank 0 calls all_reduce");
//! # std::fs::remove_dir_all(&folder).map_err(|fault| fault.to_string())?;
//! # Ok::<(), String>(())
//! ```

mod active;
mod agreement;
pub mod answer;
mod archive;
mod batch;
mod blame;
mod cause;
mod census;
mod crossed;
mod departure;
pub mod diagnostics;
mod divergence;
mod dump;
pub mod dumps;
mod earlier;
pub mod explain;
pub mod files;
mod graph;
pub mod host;
mod json;
mod lane;
mod nccl;
mod numbers;
mod order;
mod peers;
mod pickle;
pub mod program;
mod queues;
pub mod record;
mod repair;
pub mod report;
mod rounds;
pub mod site;
mod stall;
mod torch_log;
mod value;
pub mod watch;
mod wording;

pub use archive::unpack_gzip;
