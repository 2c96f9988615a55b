//! The machines with whose times estimates are made: those of `--machine`, and those that are part of hir.

use std::{path::Path, str::FromStr, sync::Arc};

use grammar::{InvalidOption, list_text};
use hir_plan::{
    World,
    sync::happens_before::OrderError,
    timeline::{
        Timeline,
        estimate::{CostModel, FusedInsts, estimate, estimate_with},
        hosts::Hosts,
        machine::Machine,
    },
};

/// The machines whose times are part of hir, by name.
const SHIPPED: &[(&str, &str)] =
    &[("h100", include_str!("machines/h100.json")), ("h200", include_str!("machines/h200.json"))];

/// A machine, with the name by which the command line states it.
#[derive(Clone, Debug)]
pub struct MachineFlag {
    /// The name or the file.
    pub name: String,
    /// Its times.
    pub machine: Arc<Machine>,
}

impl MachineFlag {
    /// Returns whether a world can run on the hosts of the machine.
    pub fn can_run(&self, world: &World) -> bool {
        self.machine.hosts.as_ref().is_none_or(|it| it.can_run(world))
    }
}

impl FromStr for MachineFlag {
    type Err = InvalidOption;

    fn from_str(name: &str) -> Result<Self, InvalidOption> {
        Ok(Self { name: name.to_owned(), machine: Arc::new(machine(name)?) })
    }
}

/// Ends the name of a machine whose GPUs have computed for some hundred milliseconds.
const SUSTAINED: &str = ":sustained";

/// Returns a machine, or the machines of the hosts that a file describes, cool or under sustained load.
fn machine(name: &str) -> Result<Machine, InvalidOption> {
    with_load(name, cool_machine)
}

/// Returns the machine whose name `cool` reads, under sustained load if the name ends with `SUSTAINED`.
fn with_load(
    name: &str,
    cool: impl Fn(&str) -> Result<Machine, InvalidOption>,
) -> Result<Machine, InvalidOption> {
    let Some(name) = name.strip_suffix(SUSTAINED) else { return cool(name) };
    let mut machine = cool(name)?;
    if machine.sustained.is_empty() {
        let message =
            format!("`{name}` has no times of sustained load: leave out `{SUSTAINED}`, or measure again");
        return Err(message.into());
    }
    machine.sustain();
    Ok(machine)
}

fn cool_machine(name: &str) -> Result<Machine, InvalidOption> {
    let text = text(name, Path::new(""))?;
    if !Hosts::are_in(&text) {
        return parsed(name, &text);
    }
    let hosts = Hosts::parse(&text).map_err(|why| format!("`{name}` describes no hosts: {why}"))?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let of_host = match &hosts.machine {
        None => Machine::default(),
        Some(it) => with_load(it, |it| {
            let text = self::text(it, folder)?;
            if Hosts::are_in(&text) {
                return Err(format!(
                    "the machine `{it}` of `{name}` describes hosts too: expected a table of `hir calibrate`, or the name of one"
                )
                .into());
            }
            parsed(it, &text)
        })?,
    };
    Ok(Machine { hosts: Some(hosts), ..of_host })
}

/// Returns the text of a machine that is part of hir, or of a file, whose name is seen from `folder`.
fn text(name: &str, folder: &Path) -> Result<String, InvalidOption> {
    match SHIPPED.iter().find(|it| it.0 == name) {
        Some((_, text)) => Ok((*text).to_owned()),
        None => read(&folder.join(name)),
    }
}

fn parsed(name: &str, text: &str) -> Result<Machine, InvalidOption> {
    Machine::parse(text).map_err(|why| format!("`{name}` is not a table of `hir calibrate`: {why}").into())
}

fn read(path: &Path) -> Result<String, InvalidOption> {
    let text = std::fs::read_to_string(path).map(|it| it.trim_start_matches('\u{feff}').to_owned());
    text.map_err(|fault| {
        let names = SHIPPED.iter().flat_map(|it| [format!("`{}`", it.0), format!("`{}{SUSTAINED}`", it.0)]);
        let names = list_text(names.collect::<Vec<_>>().into_iter(), 8, "and");
        format!("cannot read `{}`: {fault}; hir itself has {names}", path.display()).into()
    })
}

/// Estimates when each instruction of all ranks runs on a machine; without one, on the nominal GPU.
///
/// # Errors
/// The world has too many streams.
pub fn estimate_for(world: &World, machine: Option<&MachineFlag>) -> Result<Timeline, OrderError> {
    machine.map_or_else(|| estimate(world), |it| estimate_on(&it.machine, world))
}

/// Estimates when each instruction of all ranks runs on a machine, with the kernels that the executor of GPUs makes.
///
/// # Errors
/// The world has too many streams.
pub fn estimate_on(machine: &Machine, world: &World) -> Result<Timeline, OrderError> {
    let fused = if machine.is_nominal() { Vec::new() } else { fused_instructions(world) };
    estimate_with(world, &CostModel { machine: Some(machine), fused: &fused })
}

#[cfg(feature = "cuda")]
fn fused_instructions(world: &World) -> Vec<FusedInsts> {
    hir_cuda::fused_instructions(world)
}

/// Without the executor of GPUs, every instruction is a kernel.
#[cfg(not(feature = "cuda"))]
fn fused_instructions(_: &World) -> Vec<FusedInsts> {
    Vec::new()
}

/// The machine of estimates that choose passes, if none is named.
pub const DEFAULT: &str = "h200";
