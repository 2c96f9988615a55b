//! The guaranteed order in Graphviz's DOT language: an instruction is a node, in a box of its stream or queue, in a box of its rank.

use std::{collections::BTreeSet, fmt::Write};

use super::Graph;
use crate::plan::{Plan, inst_text};

impl Graph {
    /// The graph as text.
    pub fn dot(&self, plans: &[Plan]) -> String {
        // An instruction that is posted and run has a node for each.
        let name = |node: usize| {
            let it = self.nodes[node];
            let post = if it.posts { "_post" } else { "" };
            format!("r{}_i{}{post}", it.at.rank, it.at.inst)
        };
        let mut text = "digraph order {\n  node [shape=box, fontname=monospace];\n".to_owned();
        let mut last = (None, None);
        let mut shown = BTreeSet::new();
        for (number, it) in self.nodes.iter().enumerate() {
            let place = (Some(it.at.rank), Some(it.actor));
            if place != last {
                if last.1.is_some() {
                    text += "    }\n";
                }
                if place.0 != last.0 {
                    if last.0.is_some() {
                        text += "  }\n";
                    }
                    _ = writeln!(text, "  subgraph cluster_r{0} {{\n    label=\"rank {0}\";", it.at.rank);
                }
                let plan = &plans[it.at.rank];
                let inst = &plan.code[it.at.inst];
                let queue = inst.kind.communication().filter(|_| !it.posts);
                let label = match queue {
                    Some(it) => plan.communicators[it.communicator() as usize].backend.name(),
                    None => plan.streams.get(inst.stream as usize).map_or("", String::as_str),
                };
                _ = writeln!(
                    text,
                    "    subgraph cluster_a{} {{\n      label=\"{}\";",
                    it.actor,
                    escaped(label)
                );
                last = place;
            }
            if shown.insert(name(number)) {
                let plan = &plans[it.at.rank];
                let inst = &plan.code[it.at.inst];
                let shown = inst_text(plan, inst);
                // Where it runs, it is not posted.
                let shown = if it.posts { &shown } else { shown.trim_start_matches("post ") };
                let label = format!("{}: {shown}", plan.place(inst));
                _ = writeln!(text, "      {} [label=\"{}\"];", name(number), escaped(&label));
            }
        }
        if last.0.is_some() {
            text += "    }\n  }\n";
        }
        let mut edges = BTreeSet::new();
        for (number, before) in self.before.iter().enumerate() {
            for it in before {
                let edge = (name(*it as usize), name(number));
                if edge.0 != edge.1 && edges.insert(edge.clone()) {
                    let (from, to) = (self.nodes[*it as usize], self.nodes[number]);
                    let style = if from.at.rank == to.at.rank { "" } else { " [style=dashed]" };
                    _ = writeln!(text, "  {} -> {}{style};", edge.0, edge.1);
                }
            }
        }
        text + "}\n"
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
