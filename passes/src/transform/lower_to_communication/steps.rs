//! Lowers resharding steps to collectives and transfers.

use std::sync::Arc;

use grammar::{CommunicationType, DeviceDim, Mesh, TensorId};

use super::Lowering;
use crate::{
    analysis::sharding::Sharding,
    rewrite::{collective::Collective, mesh::teams_along},
};

impl Lowering<'_> {
    pub(super) fn allgather(
        &mut self,
        arg: TensorId,
        out: TensorId,
        recv: &Sharding,
        at: (usize, DeviceDim),
    ) {
        let teams = teams_along(&recv.mesh, &[at.1]);
        self.post_and_unpack(out, recv, at, &mut |this, buffer| {
            for team in &teams {
                this.post(Collective::new(CommunicationType::Allgather, team, arg, buffer));
            }
        });
    }

    pub(super) fn gather(
        &mut self,
        arg: TensorId,
        senders: &Mesh,
        out: TensorId,
        recv: &Sharding,
        at: (usize, DeviceDim),
    ) {
        let team = senders.devices.clone();
        let receivers = recv.mesh.devices.clone();
        self.post_and_unpack(out, recv, at, &mut |this, buffer| {
            for receiver in &receivers {
                match team.iter().position(|rank| rank == receiver) {
                    Some(root) => {
                        let gather = Collective::new(CommunicationType::Gather, &team, arg, buffer);
                        let root = this.program.intern_int(root as i64);
                        this.post(Collective { root: Some(root), ..gather });
                    }
                    None => {
                        let parts = this.split_into_parts(buffer, team.len());
                        for (at, sender) in team.iter().enumerate() {
                            let slot = this.part_view(parts, at);
                            this.send(*sender, *receiver, arg, slot);
                        }
                    }
                }
            }
        });
    }

    pub(super) fn scatter(
        &mut self,
        arg: TensorId,
        send: &Sharding,
        out: TensorId,
        receivers: &Arc<Mesh>,
        at: (usize, DeviceDim),
    ) {
        let input = self.pack_parts(arg, send, at);
        self.allocate(out);
        let from = &send.mesh;
        for team in teams_along(receivers, &[at.1]) {
            match team.iter().position(|rank| from.contains(*rank)) {
                Some(root) => {
                    let scatter = Collective::new(CommunicationType::Scatter, &team, input, out);
                    let root = self.program.intern_int(root as i64);
                    self.post(Collective { root: Some(root), ..scatter });
                }
                None => {
                    let parts = self.split_into_parts(input, team.len());
                    for (at, receiver) in team.iter().enumerate() {
                        let slot = self.part_view(parts, at);
                        self.send(from.devices[0], *receiver, slot, out);
                    }
                }
            }
        }
    }

    pub(super) fn all_to_all(
        &mut self,
        arg: TensorId,
        (send, sent): (&Sharding, usize),
        out: TensorId,
        (recv, received): (&Sharding, usize),
        device: DeviceDim,
        teams: &[Vec<usize>],
    ) {
        let input = self.pack_parts(arg, send, (sent, device));
        self.post_and_unpack(out, recv, (received, device), &mut |this, buffer| {
            for team in teams {
                this.post(Collective::new(CommunicationType::AllToAll, team, input, buffer));
            }
        });
    }
}
