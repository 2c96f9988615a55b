//! The machines with whose times estimates are made: those of `--machine`, and those that are part of hir.

use std::{
    path::Path,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use grammar::{InvalidOption, list_text};
use hir_executor::backend;
use hir_plan::{
    World,
    sync::happens_before::OrderError,
    timeline::{
        Timeline,
        cost::FusedInsts,
        estimator::Estimator,
        hosts::Hosts,
        machine::Machine,
        shipped::{self, NOMINAL},
    },
};

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

    /// Returns the machine of a flag; without it, the default one.
    pub fn or_default(flag: Option<&Self>) -> &Self {
        static DEFAULT: LazyLock<MachineFlag> = LazyLock::new(|| MachineFlag {
            name: shipped::DEFAULT.to_owned(),
            machine: Arc::new(shipped::default_machine().clone()),
        });
        flag.unwrap_or(&DEFAULT)
    }

    /// Returns what estimates with the times of the machine.
    pub fn estimator(&self) -> Estimator<'_> {
        Estimator { machine: &self.machine, lower: passes::lowered, fused: fused_instructions }
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
    if name == NOMINAL {
        return Ok(Machine::default());
    }
    let text = text(name, Path::new(""))?;
    if !Hosts::are_in(&text) {
        return parsed(name, &text);
    }
    let hosts = Hosts::parse(&text).map_err(|why| format!("`{name}` describes no hosts: {why}"))?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let of_host = match &hosts.machine {
        None => Machine::default(),
        Some(it) => with_load(it, |it| {
            if it == NOMINAL {
                return Ok(Machine::default());
            }
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
    shipped::text(name).map_or_else(|| read(&folder.join(name)), |it| Ok(it.to_owned()))
}

fn parsed(name: &str, text: &str) -> Result<Machine, InvalidOption> {
    Machine::parse(text).map_err(|why| format!("`{name}` is not a table of `hir calibrate`: {why}").into())
}

fn read(path: &Path) -> Result<String, InvalidOption> {
    let text = std::fs::read_to_string(path).map(|it| it.trim_start_matches('\u{feff}').to_owned());
    text.map_err(|fault| {
        let names = shipped::names().flat_map(|it| [format!("`{it}`"), format!("`{it}{SUSTAINED}`")]);
        let names = names.chain([format!("`{NOMINAL}`")]);
        let names = list_text(names.collect::<Vec<_>>().into_iter(), 8, "and");
        format!("cannot read `{}`: {fault}; hir itself has {names}", path.display()).into()
    })
}

/// Returns what estimates where no machine is named.
pub fn default_estimator() -> Estimator<'static> {
    MachineFlag::or_default(None).estimator()
}

/// Estimates when each instruction of all ranks of a lowered program runs on a machine.
///
/// # Errors
/// The world has too many streams.
pub fn estimate_on(machine: &Machine, world: &World) -> Result<Timeline, OrderError> {
    Estimator { machine, lower: |_| None, fused: fused_instructions }.timeline(world, None)
}

/// Returns, by rank, the instructions that the executor of GPUs runs in the kernel of another one. Without an executor, every
/// instruction is a kernel.
pub fn fused_instructions(world: &World) -> Vec<FusedInsts> {
    backend().map_or_else(|_| Vec::new(), |it| it.fused_instructions(world))
}
