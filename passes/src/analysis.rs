//! Analyses of programs: name uses, bindings, memory effects, shardings and loop-carried dependences.
//!
//! | question | module |
//! | --- | --- |
//! | Which statements does a block contain, also nested ones? | `hir_ir::blocks`, `stmt_path` |
//! | Who binds, reads and writes a name? | `bindings`, `name_uses` |
//! | Which names share storage? | `alias_analysis`, `written_views`, `stale_views` |
//! | What does a statement read, write, bind and wait for, and may it move over another one? | `memory_effects` |
//! | What does an iteration depend on, and which names and works are its own? | `loop_carried`, `loop_body` |
//! | Which communication is posted, and who waits for it? | `posted_work`, `wait_order`, `coalescing` |
//! | Which communications could ranks start in different orders? | `communicators` |
//! | How is a tensor sharded, and which dimensions correspond? | `sharding`, `dim_map`, `dim_equivalence`, `propagation`, `reshard`, `row_shifts` |
//!
//! Invariant: an analysis does not change the program and does not call code that does.

pub mod alias_analysis;
pub mod bindings;
pub mod coalescing;
pub mod communicators;
pub mod dim_equivalence;
pub mod dim_map;
pub mod loop_body;
pub mod loop_carried;
pub mod memory_effects;
pub mod name_uses;
pub(crate) mod numbering;
pub mod posted_work;
pub mod propagation;
pub mod reshard;
pub mod row_shifts;
pub mod sharding;
pub mod stale_views;
pub mod stmt_path;
pub mod wait_order;
pub mod written_views;
