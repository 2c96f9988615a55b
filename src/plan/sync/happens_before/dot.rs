//! Prints the happens-before order in Graphviz's DOT language. An instruction is one node; a communication
//! has a node for its post, its beginning, its end and each of its sides. Nodes are grouped by stream or
//! queue, and these by rank.

use std::{collections::BTreeSet, fmt::Write};

use super::{HappensBeforeGraph, Node};
use crate::{Plan, SyncEffect, inst_text};

impl HappensBeforeGraph {
    /// Returns the graph as DOT text.
    pub fn dot(&self, plans: &[Plan]) -> String {
        // A communication is posted, begins and ends, and its sides execute in between; each of these is a
        // node. Any other instruction is one node.
        let communicates = |it: &Node| {
            let effect = plans[it.inst_ref.rank].code[it.inst_ref.inst].kind.effect();
            !it.is_post && matches!(effect, SyncEffect::Post(_) | SyncEffect::Reshard(_))
        };
        let key = |node: usize| self.nodes.get(node).map(|it| (it.inst_ref, it.actor));
        let first = |node: usize| node == 0 || key(node - 1) != key(node);
        let last = |node: usize| key(node + 1) != key(node);
        let moment = |node: usize| match (first(node), last(node), self.nodes[node].step) {
            _ if !communicates(&self.nodes[node]) => None,
            (true, _, _) => Some("begins".to_owned()),
            (_, true, _) => Some("ends".to_owned()),
            (.., Some(step)) if step.index % 2 == 0 => Some(format!("side {} begins", step.index / 2)),
            (.., Some(step)) => Some(format!("side {}", step.index / 2)),
            (.., None) => None,
        };
        let name = |node: usize| {
            let it = self.nodes[node];
            let post = if it.is_post { "_post" } else { "" };
            let moment = moment(node).map_or(String::new(), |it| format!("_{}", it.replace(' ', "_")));
            format!("r{}_i{}{post}{moment}", it.inst_ref.rank, it.inst_ref.inst)
        };
        let mut text = "digraph order {\n  node [shape=box, fontname=monospace];\n".to_owned();
        let mut shown_place = (None, None);
        let mut shown = BTreeSet::new();
        for (number, it) in self.nodes.iter().enumerate() {
            let place = (Some(it.inst_ref.rank), Some(it.actor));
            if place != shown_place {
                if shown_place.1.is_some() {
                    text += "    }\n";
                }
                if place.0 != shown_place.0 {
                    if shown_place.0.is_some() {
                        text += "  }\n";
                    }
                    _ = writeln!(
                        text,
                        "  subgraph cluster_r{0} {{\n    label=\"rank {0}\";",
                        it.inst_ref.rank
                    );
                }
                let plan = &plans[it.inst_ref.rank];
                let inst = &plan.code[it.inst_ref.inst];
                let queue = inst.kind.communication().filter(|_| !it.is_post);
                let label = match queue {
                    Some(it) => plan.communicators[it.communicator() as usize].backend.name().to_owned(),
                    None => plan.stream_name(inst),
                };
                _ = writeln!(
                    text,
                    "    subgraph cluster_a{} {{\n      label=\"{}\";",
                    it.actor,
                    escaped(&label)
                );
                shown_place = place;
            }
            if shown.insert(name(number)) {
                let plan = &plans[it.inst_ref.rank];
                let inst = &plan.code[it.inst_ref.inst];
                let shown = inst_text(plan, inst);
                // Only the post node keeps the word `post`.
                let shown = if it.is_post { &shown } else { shown.trim_start_matches("post ") };
                let moment = moment(number).map_or(String::new(), |it| format!(" ({it})"));
                let label = format!("{}: {shown}{moment}", plan.location(inst));
                _ = writeln!(text, "      {} [label=\"{}\"];", name(number), escaped(&label));
            }
        }
        if shown_place.0.is_some() {
            text += "    }\n  }\n";
        }
        let mut edges = BTreeSet::new();
        for (number, before) in self.predecessors.iter().enumerate() {
            for it in before {
                let edge = (name(*it as usize), name(number));
                if edge.0 != edge.1 && edges.insert(edge.clone()) {
                    let (from, to) = (self.nodes[*it as usize], self.nodes[number]);
                    let style = if from.inst_ref.rank == to.inst_ref.rank { "" } else { " [style=dashed]" };
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
