//! Communication between hosts in estimates: how many GPUs a host has, and how fast the links between hosts are.
//!
//! Rank r is on host r / `gpus_per_host`. Each GPU has a link of its own to the other hosts. A communication that leaves its host takes
//! `link_us`, and then the longer one of two times: that within a host, as without this file, and that of the bytes
//! which a GPU exchanges with other hosts over its link. Of a collective, NCCL lets each GPU of a host send its share: the data crosses
//! between hosts once for all GPUs of the team on a host (NCCL, rings and trees over several network interfaces). Links do not slow each
//! other down, and nothing is known of the switches between hosts.

use grammar::{InvalidOption, words::CommunicationType};
use serde::{Deserialize, Serialize};

use crate::{Communication, Direction, InstKind, PermutePeers, Plan, World, traffic::bus_factor};

/// The version of the format.
pub const VERSION: u32 = 1;

/// A file that describes hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// The version of the format.
    pub version: u32,
    /// The machine that each host is: the name of one, or the file of `hir calibrate`, seen from the folder of this file. Without
    /// it, the nominal GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The number of GPUs of a host, one rank each.
    pub gpus_per_host: usize,
    /// Gigabytes (10^9) per second of the link of each GPU to other hosts, in each direction.
    pub link_gb_per_s: f64,
    /// Microseconds that a communication between hosts takes in addition.
    pub link_us: f64,
}

impl Hosts {
    /// Returns whether a text is meant as a file that describes hosts, and not as a machine: it is an object with the key
    /// `gpus_per_host`, which no machine has. The rest of the text may be wrong: `parse` reports that.
    pub fn are_in(text: &str) -> bool {
        text.trim_start().starts_with('{') && text.contains("\"gpus_per_host\"")
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// It has another version or other keys, or a number that cannot be.
    pub fn parse(text: &str) -> Result<Self, InvalidOption> {
        let it: Self = serde_json::from_str(text).map_err(|it| it.to_string())?;
        if it.version != VERSION {
            let version = it.version;
            return Err(format!(
                "it has version {version}, and this hir reads version {VERSION}: write `\"version\": {VERSION}` and the keys that docs/machines.md lists"
            )
            .into());
        }
        if it.gpus_per_host == 0 {
            return Err("`gpus_per_host` is 0: expected at least 1".into());
        }
        // Outside of these, the sums of times would not be finite.
        if !(1e-6..=1e6).contains(&it.link_gb_per_s) {
            return Err(
                format!("`link_gb_per_s` is {:e}: expected GB/s, 1e-6 to 1e6", it.link_gb_per_s).into()
            );
        }
        if !(0.0..=1e9).contains(&it.link_us) {
            return Err(format!("`link_us` is {:e}: expected microseconds, 0 to 1e9", it.link_us).into());
        }
        Ok(it)
    }

    /// Returns whether a world can run on these hosts: no rank accesses the memory of a rank on another host, which only a library
    /// reaches.
    pub fn can_run(&self, world: &World) -> bool {
        let host = |rank: usize| rank / self.gpus_per_host;
        let crosses = |plan: &Plan, inst: &InstKind| match inst.communication() {
            Some(_) => false,
            None => inst.accesses(plan.rank).iter().any(|it| host(it.rank) != host(plan.rank)),
        };
        !world.iter().any(|plan| plan.code.iter().any(|inst| crosses(plan, &inst.kind)))
    }

    /// Returns where times come from, in words that follow those on one host.
    pub(super) fn source(&self) -> String {
        let Self { gpus_per_host, link_gb_per_s, link_us, .. } = self;
        format!(
            ", on hosts of {gpus_per_host} GPUs with a link of {link_gb_per_s} GB/s and {link_us} µs for each GPU"
        )
    }

    /// Returns the microseconds of an instruction, or of the collective over peer memory that begins with its first transfer, which
    /// takes `within` on one host.
    pub(super) fn microseconds(&self, plan: &Plan, at: usize, within: f64) -> f64 {
        match self.bytes_between(plan, at) {
            None => within,
            // A gigabyte per second is a thousand bytes per microsecond.
            Some(bytes) => self.link_us + within.max(bytes / (self.link_gb_per_s * 1e3)),
        }
    }

    /// Returns the bytes that a rank exchanges with other hosts; `None` if it does not communicate with any.
    fn bytes_between(&self, plan: &Plan, at: usize) -> Option<f64> {
        let host = |rank: usize| rank / self.gpus_per_host;
        let own = host(plan.rank);
        let inst = &plan.code[at];
        match inst.kind.communication() {
            Some(Communication::Collective(it)) => {
                let team = &plan.communicators[it.communicator as usize].team;
                let mut hosts: Vec<usize> = team.iter().map(|rank| host(*rank)).collect();
                let members = hosts.iter().filter(|it| **it == own).count().max(1) as f64;
                hosts.sort_unstable();
                hosts.dedup();
                let bytes = plan.traffic(inst).bytes as f64;
                if hosts.len() == 1 {
                    return None;
                }
                match (it.kind.of, it.kind.peers) {
                    // Each member has other data for each member.
                    (CommunicationType::AllToAll, _) => Some(bytes * (1.0 - members / team.len() as f64)),
                    (_, Some(PermutePeers { send, recv })) => {
                        let leaves = [send, recv]
                            .into_iter()
                            .any(|it| team.get(it).is_some_and(|rank| host(*rank) != own));
                        leaves.then_some(bytes)
                    }
                    _ => Some(bytes * bus_factor(it.kind, hosts.len()) / members),
                }
            }
            Some(Communication::P2pGroup(it)) => {
                let outside = |direction: Direction| {
                    let sides =
                        it.ops.iter().filter(move |it| it.direction == direction && host(it.peer) != own);
                    sides.map(|it| plan.bytes_of(&it.view) as f64)
                };
                let leaves = it.ops.iter().any(|it| host(it.peer) != own);
                let [sent, received] = [Direction::Send, Direction::Recv].map(|it| outside(it).sum::<f64>());
                leaves.then_some(sent.max(received))
            }
            None => {
                let accesses = plan.peer_accesses(plan.kernel_range(at)).into_iter();
                let outside = accesses.filter(|(it, _)| host(it.rank) != own);
                let bytes: f64 = outside.map(|(_, bytes)| bytes as f64).sum();
                (bytes > 0.0).then_some(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Backend, Buffer, Collective, CollectiveKind, Communicator, Inst, PlanStream, ReduceOp, View,
    };

    /// A collective of a team on 1,000 floats, on rank 0.
    fn plan(kind: CollectiveKind, team: &[usize]) -> Plan {
        let view = View::contiguous(0, vec![1_000]);
        let (input, output) = (Some(view.clone()), Some(view));
        let it = Collective { communicator: 0, kind, input, output, work: 0 };
        let kind = InstKind::Collective(Box::new(it));
        Plan {
            buffers: vec![Buffer::new("T0", grammar::dtype::DType::Float, 1_000)],
            communicators: vec![Communicator {
                backend: Backend::Nccl,
                team: Arc::from(team),
                pair_of: None,
            }],
            code: vec![Inst { kind, stream: 0, origin: 0 }],
            ..Plan::empty(0, 16, vec![PlanStream::Entry])
        }
    }

    #[test]
    fn data_crosses_between_hosts_once_for_all_gpus_of_a_host() -> Result<(), String> {
        let text = r#"{"version": 1, "gpus_per_host": 4, "link_gb_per_s": 1.0, "link_us": 5.0}"#;
        let hosts = Hosts::parse(text).map_err(|it| it.to_string())?;
        let of = |of| CollectiveKind::new(of, 0, ReduceOp::Sum);
        let all_reduce = of(CommunicationType::Allreduce);
        let time = |kind, team: &[usize]| hosts.microseconds(&plan(kind, team), 0, 2.0);
        // A team on one host.
        assert_eq!(time(all_reduce, &[0, 1, 2, 3]), 2.0);
        // 4,000 bytes at 1,000 bytes per microsecond, 2 (n-1) / n times with two hosts.
        assert_eq!(time(all_reduce, &[0, 4]), 5.0 + 4.0);
        assert_eq!(time(all_reduce, &[0, 1, 2, 3, 4, 5, 6, 7]), 5.0 + 2.0);
        assert_eq!(time(of(CommunicationType::AllToAll), &[0, 1, 4, 5]), 5.0 + 2.0);
        // A rank whose two peers are on its host does not communicate with another one.
        let permute = CollectiveKind::permute;
        assert_eq!(time(permute(1, 2), &[0, 1, 2, 4]), 2.0);
        assert_eq!(time(permute(1, 3), &[0, 1, 2, 4]), 5.0 + 4.0);
        Ok(())
    }

    #[test]
    fn impossible_hosts_are_refused() {
        let refusal = |text: &str| Hosts::parse(text).err().map(|it| it.to_string()).unwrap_or_default();
        let hosts = |gpus: usize, speed: f64| {
            format!(r#"{{"version": 1, "gpus_per_host": {gpus}, "link_gb_per_s": {speed}, "link_us": 1}}"#)
        };
        assert_eq!(refusal(&hosts(8, 50.0)), "");
        assert!(refusal(&hosts(0, 50.0)).contains("gpus_per_host"));
        assert!(refusal(&hosts(8, 0.0)).contains("link_gb_per_s"));
    }
}
