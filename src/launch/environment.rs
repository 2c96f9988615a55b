//! Determines rank and number of ranks from the environment that a launcher sets.
//!
//! The variables of exactly one launcher are used. A mixture of the rank of one launcher and the size of
//! another is a common error in jobs that are started inside other jobs.

use super::{LaunchError, Result};

/// The rank of a process in its job, as its launcher sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchInfo {
    /// Name of the launcher whose variables were found.
    pub launcher: &'static str,
    /// Rank of this process.
    pub rank: usize,
    /// Number of processes.
    pub world: usize,
    /// Rank of this process among the processes of its host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// Number of processes of its host, if the launcher sets it.
    pub local_size: Option<usize>,
    /// Distinguishes this job from others on the same host; the same text on all ranks. `None` if the
    /// launcher sets nothing.
    pub job: Option<String>,
}

/// The names of the variables that a launcher sets.
struct LauncherVariables {
    name: &'static str,
    rank: &'static str,
    /// The first variable that is set is used.
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    /// All variables that are set are used.
    job: &'static [&'static str],
    /// A variable without which the others do not describe a rank.
    requires: Option<&'static str>,
    /// If set, a rank without a size, or a size without a rank, is an error. Not set for launchers whose
    /// variables other tools also set one by one.
    is_strict: bool,
}

/// Another launcher may have started torchrun's agent, so the agent's own variable is checked first.
const LAUNCHERS: &[LauncherVariables] = &[
    TORCHRUN,
    LauncherVariables {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        requires: None,
        is_strict: true,
    },
    LauncherVariables { requires: None, ..TORCHRUN },
    LauncherVariables {
        name: "PMI",
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: &["PMI_LOCAL_RANK", "MPI_LOCALRANKID"],
        local_size: &["PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"],
        job: &["PMI_JOBID", "PMI_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"],
        requires: None,
        is_strict: true,
    },
    LauncherVariables {
        name: "PMIx",
        rank: "PMIX_RANK",
        size: &["PMIX_SIZE"],
        local_rank: &["PMIX_LOCAL_RANK"],
        local_size: &["PMIX_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
        requires: None,
        is_strict: false,
    },
    // A batch script has SLURM_PROCID and SLURM_NTASKS too. Only processes that `srun` starts are ranks, and
    // have a step.
    LauncherVariables {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        requires: Some("SLURM_STEP_ID"),
        is_strict: false,
    },
];

const TORCHRUN: LauncherVariables = LauncherVariables {
    name: "torchrun",
    rank: "RANK",
    size: &["WORLD_SIZE"],
    local_rank: &["LOCAL_RANK"],
    local_size: &["LOCAL_WORLD_SIZE"],
    job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    requires: Some("TORCHELASTIC_RUN_ID"),
    is_strict: false,
};

/// Returns the names of all variables that make a process part of a job. A process that starts a job removes
/// them for its children.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    LAUNCHERS.iter().flat_map(|it| {
        let others = [it.size, it.local_rank, it.local_size, it.job];
        std::iter::once(it.rank).chain(others.into_iter().flatten().copied())
    })
}

/// Returns the variable in which a launcher puts the rank.
pub(super) fn rank_variable(launcher: &str) -> Option<&'static str> {
    LAUNCHERS.iter().find(|it| it.name == launcher).map(|it| it.rank)
}

/// Returns whether this process prints the verdict of a job whose ranks have not met: rank 0, and a process without a launcher.
pub fn is_first() -> bool {
    detect(|name| std::env::var(name).ok()).ok().flatten().is_none_or(|it| it.rank == 0)
}

/// Returns what the launcher of this process has set, or `None` without a launcher.
///
/// # Errors
/// Returns an error if the rank or the size of a launcher is missing or invalid.
pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Result<Option<LaunchInfo>> {
    let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
    for family in LAUNCHERS {
        let LauncherVariables { name, .. } = family;
        if family.requires.is_some_and(|mark| set(mark).is_none()) {
            continue;
        }
        let wrong = |message: String| LaunchError::Environment(format!("{name}: {message}"));
        let number = |names: &[&'static str]| match names.iter().find_map(|name| Some((name, set(name)?))) {
            None => Ok(None),
            Some((name, text)) => match text.trim().parse::<usize>() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(wrong(format!("`{name}` is `{text}`, not a number"))),
            },
        };
        // If the launcher is not present, its other variables are not read, so their values cannot cause
        // errors.
        if set(family.rank).is_none() && !(family.is_strict && family.size.iter().any(|it| set(it).is_some()))
        {
            continue;
        }
        if !family.is_strict && family.size.iter().all(|it| set(it).is_none()) {
            continue;
        }
        let (rank, size) = (number(&[family.rank])?, number(family.size)?);
        let (local_rank, local_size) = (number(family.local_rank)?, number(family.local_size)?);
        let unset = |one: &str, other: &str| wrong(format!("`{one}` is not set where `{other}` is"));
        let rank = rank.ok_or_else(|| unset(family.rank, family.size[0]))?;
        let size = size.ok_or_else(|| unset(family.size[0], family.rank))?;
        if rank >= size {
            return Err(wrong(format!("rank {rank} of {size} processes")));
        }
        if local_size.is_some_and(|of| of > size || local_rank.is_some_and(|local| local >= of)) {
            let (local, of) = (local_rank.unwrap_or(rank), local_size.unwrap_or_default());
            return Err(wrong(format!("local rank {local} of {of} processes on this host, {size} in all")));
        }
        let ids: Vec<String> = family.job.iter().filter_map(|name| set(name)).collect();
        let job = (!ids.is_empty()).then(|| ids.join(" "));
        return Ok(Some(LaunchInfo { launcher: name, rank, world: size, local_rank, local_size, job }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<LaunchInfo>> {
        detect(|name| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
    }

    fn place(variables: &[(&str, &str)]) -> Option<(&'static str, usize, usize, Option<usize>)> {
        found(variables).ok().flatten().map(|it| (it.launcher, it.rank, it.world, it.local_rank))
    }

    #[test]
    fn a_family_is_taken_whole() {
        let mixed = [
            ("RANK", "1"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("WORLD_SIZE", "2"),
        ];
        assert_eq!(place(&mixed), Some(("Open MPI", 3, 4, None)));
        assert_eq!(found(&[("RANK", "1"), ("SLURM_NTASKS", "4")]), Ok(None));
        // torchrun, started by mpirun once per host.
        let inside = [mixed.as_slice(), &[("TORCHELASTIC_RUN_ID", "7"), ("LOCAL_RANK", "0")]].concat();
        assert_eq!(place(&inside), Some(("torchrun", 1, 2, Some(0))));
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "12")];
        assert_eq!(found(&batch), Ok(None));
        let step = [batch.as_slice(), &[("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "2")]].concat();
        assert_eq!(place(&step), Some(("Slurm", 0, 2, None)));
        assert_eq!(found(&step).ok().flatten().and_then(|it| it.job).as_deref(), Some("12 3"));
    }

    #[test]
    fn nonsense_is_refused() {
        let wrong =
            |variables: &[(&str, &str)]| found(variables).err().map(|it| it.to_string()).unwrap_or_default();
        assert_eq!(wrong(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "torchrun: rank 2 of 2 processes");
        assert_eq!(wrong(&[("RANK", "x"), ("WORLD_SIZE", "2")]), "torchrun: `RANK` is `x`, not a number");
        assert_eq!(
            wrong(&[("OMPI_COMM_WORLD_SIZE", "2")]),
            "Open MPI: `OMPI_COMM_WORLD_RANK` is not set where `OMPI_COMM_WORLD_SIZE` is"
        );
        assert_eq!(
            wrong(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "1")]),
            "torchrun: local rank 1 of 1 processes on this host, 2 in all"
        );
    }
}
