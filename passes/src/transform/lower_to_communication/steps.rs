//! What collectives and transfers a step of resharding becomes.

use std::sync::Arc;

use grammar::{
    ir::{DeviceDim, Mesh, TensorId},
    words::CommunicationType,
};

use super::{Ctx, post::Post};
use crate::{analysis::sharding::Sharding, rewrite::mesh::teams};

impl Ctx<'_> {
    pub(super) fn allgather(
        &mut self,
        arg: TensorId,
        out: TensorId,
        recv: &Sharding,
        at: (usize, DeviceDim),
    ) {
        let teams = teams(&recv.mesh, at.1);
        self.unpacked(out, recv, at, &mut |this, buffer| {
            for team in &teams {
                let (input, output) = (arg, buffer);
                this.post(Post {
                    kind: CommunicationType::Allgather,
                    team,
                    root: None,
                    red_op: None,
                    input,
                    output,
                });
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
        self.unpacked(out, recv, at, &mut |this, buffer| {
            for receiver in &receivers {
                match team.iter().position(|rank| rank == receiver) {
                    Some(root) => {
                        let (root, input, output) = (Some(root), arg, buffer);
                        this.post(Post {
                            kind: CommunicationType::Gather,
                            team: &team,
                            root,
                            red_op: None,
                            input,
                            output,
                        });
                    }
                    None => {
                        let parts = this.as_parts(buffer, team.len());
                        for (at, sender) in team.iter().enumerate() {
                            let slot = this.part(parts, at);
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
        let input = self.parts_of(arg, send, at);
        self.allocate(out);
        let from = &send.mesh;
        for team in teams(receivers, at.1) {
            match team.iter().position(|rank| from.contains(*rank)) {
                Some(root) => {
                    let (root, output) = (Some(root), out);
                    self.post(Post {
                        kind: CommunicationType::Scatter,
                        team: &team,
                        root,
                        red_op: None,
                        input,
                        output,
                    });
                }
                None => {
                    let parts = self.as_parts(input, team.len());
                    for (at, receiver) in team.iter().enumerate() {
                        let slot = self.part(parts, at);
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
    ) {
        let input = self.parts_of(arg, send, (sent, device));
        let teams = teams(&send.mesh, device);
        self.unpacked(out, recv, (received, device), &mut |this, buffer| {
            for team in &teams {
                let output = buffer;
                this.post(Post {
                    kind: CommunicationType::AllToAll,
                    team,
                    root: None,
                    red_op: None,
                    input,
                    output,
                });
            }
        });
    }
}
