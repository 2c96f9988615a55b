//! Inputs and outputs of a rank, and what is bound when the program ends.

use grammar::{
    codes::Code,
    ir::{Program, TensorId},
};

use super::{
    InstKind, Port, Shard, View,
    build::{Builder, Result},
};

impl Builder<'_> {
    pub(super) fn inputs(&mut self) -> Result<()> {
        for tensor in Program::tensors_of(&self.program.inputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = match self.is_here(tensor) {
                true => {
                    let layout = self.layout(tensor)?;
                    let shape = layout.local_shape();
                    let buffer = self.buffer(tensor, shape.iter().product());
                    let view = View::contiguous(buffer, shape);
                    self.bind(tensor, view.clone(), None);
                    Shard { view: Some(view), layout }
                }
                false => self.absent(tensor)?,
            };
            let port = self.port(tensor, port);
            self.plan.inputs.push(port);
        }
        Ok(())
    }

    pub(super) fn outputs(&mut self) -> Result<()> {
        (self.origin, self.frame) = (0, None);
        for tensor in Program::tensors_of(&self.program.outputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = match self.is_here(tensor) {
                true => {
                    let layout = self.layout(tensor)?;
                    let Some(view) = self.binding(tensor).map(|it| it.view.clone()) else {
                        let name = self.program.tensor_name(tensor);
                        let message = format!("no statement gives the output `{name}` storage or a value");
                        return Err(self.fault(Code::UndefinedTensor, message, "declared here"));
                    };
                    if view.shape != layout.local_shape() {
                        let name = self.program.tensor_name(tensor);
                        let message = format!(
                            "output `{name}` is bound to {:?}, not {:?}",
                            view.shape,
                            layout.local_shape()
                        );
                        return Err(self.fault(Code::RuntimeShape, message, "declared here"));
                    }
                    Shard { view: Some(view), layout }
                }
                false => self.absent(tensor)?,
            };
            let port = self.port(tensor, port);
            self.plan.outputs.push(port);
        }
        self.name_all();
        self.emit(InstKind::Finish);
        Ok(())
    }

    /// The shard of a rank outside the mesh: nothing, of a whole whose shape a member tells.
    fn absent(&self, tensor: TensorId) -> Result<Shard> {
        let member = self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0);
        Ok(Shard { view: None, layout: self.layout_on(tensor, member)? })
    }

    fn port(&self, tensor: TensorId, shard: Shard) -> Port {
        Port { name: self.program.tensor_name(tensor), dtype: self.dtype(tensor), shard }
    }

    /// Lists what is bound, for those who want to look at more than the outputs.
    fn name_all(&mut self) {
        for (tensor, it) in self.program.tensors.iter() {
            let (None, Some(binding)) = (it.unit, self.binding(tensor)) else { continue };
            let Ok(layout) = self.layout(tensor) else { continue };
            let shard = Shard { view: Some(binding.view.clone()), layout };
            let port = self.port(tensor, shard);
            self.plan.named.push(port);
        }
    }
}
