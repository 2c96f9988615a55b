//! Rank and size from the environment that a launcher sets.
//!
//! One family of variables is chosen whole: mixing a rank of one launcher with a size of another is how jobs started
//! inside other jobs go wrong.

use super::LaunchError;

/// A process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchInfo {
    /// Which launcher's variables were found.
    pub launcher: &'static str,
    /// This process.
    pub rank: usize,
    /// Number of processes.
    pub world: usize,
    /// This process among those of its host.
    pub local_rank: usize,
    /// Number of processes of its host, where the launcher says so.
    pub local_size: Option<usize>,
    /// What tells this job from others on the same host; the same text on all ranks. `None` where the launcher has none.
    pub job: Option<String>,
}

/// The names of a launcher's variables.
struct LauncherVariables {
    name: &'static str,
    rank: &'static str,
    /// The first one that is set counts.
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    /// All that are set count.
    job: &'static [&'static str],
    /// Without this variable the others are about something else.
    requires: Option<&'static str>,
    /// Whether a rank and a size come together or something is wrong. Other tools set these names one by one.
    is_strict: bool,
}

/// torchrun's agent may itself have been started by one of the others, so its own mark counts first.
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
    // A batch script has SLURM_PROCID and SLURM_NTASKS too; only what `srun` starts is a rank, and has a step.
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

/// Every variable that makes a process part of a job: what starts a job of its own removes them.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    LAUNCHERS.iter().flat_map(|it| {
        let others = [it.size, it.local_rank, it.local_size, it.job];
        std::iter::once(it.rank).chain(others.into_iter().flatten().copied())
    })
}

/// The launcher that started this process; `None` without one.
///
/// # Errors
/// A family whose rank or size is missing or does not make sense.
pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Result<Option<LaunchInfo>, LaunchError> {
    let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
    for family in LAUNCHERS {
        let LauncherVariables { name, .. } = family;
        if family.requires.is_some_and(|mark| set(mark).is_none()) {
            continue;
        }
        let wrong = |message: String| Err(LaunchError::Environment(format!("{name}: {message}")));
        let number = |names: &[&'static str]| match names.iter().find_map(|name| Some((name, set(name)?))) {
            None => Ok(None),
            Some((name, text)) => match text.trim().parse::<usize>() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(format!("`{name}` is `{text}`, not a number")),
            },
        };
        // A family that is not there is not asked what its other variables hold.
        if set(family.rank).is_none() && !(family.is_strict && family.size.iter().any(|it| set(it).is_some()))
        {
            continue;
        }
        let numbers = || -> Result<_, String> {
            Ok((
                number(&[family.rank])?,
                number(family.size)?,
                number(family.local_rank)?,
                number(family.local_size)?,
            ))
        };
        if !family.is_strict && family.size.iter().all(|it| set(it).is_none()) {
            continue;
        }
        let (rank, size, local_rank, local_size) = match numbers() {
            Ok((Some(rank), Some(size), local_rank, local_size)) => (rank, size, local_rank, local_size),
            Ok((None, ..)) => {
                return wrong(format!("`{}` is not set where `{}` is", family.rank, family.size[0]));
            }
            Ok((_, None, ..)) => {
                return wrong(format!("`{}` is not set where `{}` is", family.size[0], family.rank));
            }
            Err(message) => return wrong(message),
        };
        if rank >= size {
            return wrong(format!("rank {rank} of {size} processes"));
        }
        let local = local_rank.unwrap_or(rank);
        if local_size.is_some_and(|of| of > size || local >= of) {
            let of = local_size.unwrap_or_default();
            return wrong(format!("local rank {local} of {of} processes on this host, {size} in all"));
        }
        let ids: Vec<String> = family.job.iter().filter_map(|name| set(name)).collect();
        let job = (!ids.is_empty()).then(|| ids.join(" "));
        return Ok(Some(LaunchInfo {
            launcher: name,
            rank,
            world: size,
            local_rank: local,
            local_size,
            job,
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<LaunchInfo>, LaunchError> {
        detect(|name| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
    }

    fn place(variables: &[(&str, &str)]) -> Option<(&'static str, usize, usize, usize)> {
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
        assert_eq!(place(&mixed), Some(("Open MPI", 3, 4, 3)));
        assert_eq!(found(&[("RANK", "1"), ("SLURM_NTASKS", "4")]), Ok(None));
        // torchrun, started under mpirun once a host.
        let inside = [mixed.as_slice(), &[("TORCHELASTIC_RUN_ID", "7"), ("LOCAL_RANK", "0")]].concat();
        assert_eq!(place(&inside), Some(("torchrun", 1, 2, 0)));
    }

    #[test]
    fn a_batch_script_is_no_rank() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "12")];
        assert_eq!(found(&batch), Ok(None));
        let step = [batch.as_slice(), &[("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "2")]].concat();
        assert_eq!(place(&step), Some(("Slurm", 0, 2, 0)));
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
